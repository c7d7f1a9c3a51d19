"""AllPairs intervention harvesting: theta from documents that a changing ranker has shown in several cells.

The interventional set S_ab holds the units that were shown in both cells a and b. A unit's click rate r_je =
c_je / n_je has the mean theta_e gamma_j, so that over one set the click rates of two cells differ by theta alone:

    A_ab = sum_{j in S_ab} m_j r_ja,    M_ab = sum_{j in S_ab} m_j,    E[A_ab] / E[A_ba] = theta_a / theta_b

AllPairs uses every set at once, with one average attractiveness r_ab = r_ba per set, as if each rate were one draw:

    l(theta, r) = sum_{a != b} A_ab log(theta_a r_ab) + (M_ab - A_ab) log(1 - theta_a r_ab)

In (log theta, log r) every term is linear or log(1 - exp(.)), so l is jointly concave: there are no starting values.
Given theta, the best r_ab is a root of a quadratic equation, in closed form; what is left is a concave function of log
theta whose Hessian is minus the Laplacian of a graph, cells being its nodes and sets its edges. Newton's method climbs
it. The optimum is finite exactly on the strongly connected cells (`find_linkage`).

Where every unit of a set was clicked each time, theta_a r_ab = 1 and l has a kink. Every set therefore counts a share
of .001 more units, never clicked: no ratio E[A_ab] / E[A_ba] changes by that, and the optimum stays inside.

Standard errors of AllPairs, clustered (by query), by the rule of `cluster_errors`.

A unit j adds to the set {a, b} its rates r_a and r_b, and one unit. With the set's x, y and share t = W_a / (W_a + W_b)
at the optimum, and its best r_ab following along (the Schur complement of l's Hessian), its score is along e_a - e_b:

    s_j,ab = (1 - t) (r_a - x) / (1 - x) - t (r_b - y) / (1 - y)

A cluster's score is s_g = sum_j m_gj sum_ab s_j,ab (e_a - e_b), and the scores of all units sum to zero. Under the
model the score of a unit without a click is zero too, wherefore the clusters need hold clicked units only.

Information is shared by clicks: with conductances L_ab, H = sum_ab L_ab (e_a - e_b)(e_a - e_b)', H_g = sum_ab
L_ab (share of the set's clicks that are g's)(e_a - e_b)(e_a - e_b)'. With D_ab = H^-1 (e_a - e_b), one row per set,

    H^-1 s_g = sum_ab s_g,ab D_ab,    a_gk = sum_ab H_g,ab D_ab,k^2,    leverage = sum_ab H_g,ab (e_a - e_b)' D_ab

A cluster with much leverage is left out by one Newton step from the estimate on the sets without it, each at its best
r_ab again: d_g = (H - H_g)^-1 s_g where H - H_g and s_g are those of l without the cluster, exactly. How that is solved
is the same for all clusters (`standard_errors.cluster`).

Source: Agarwal, Zaitsev, Wang, Li, Najork & Joachims 2019, "Estimating Position Bias without Intrusive Interventions".
"""

from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise, starmap
from operator import add

import numpy as np

from posbias.core.arrays import linalg, optimize
from posbias.core.arrays.count_table import CountTable, Floats, Integers, Members, Numbers, starts, sum_by_number
from posbias.core.choices import Cluster
from posbias.core.counts.sufficient_statistics import Strata, SufficientStatistics
from posbias.core.estimators.estimate import (
    Estimate,
    EstimationOptions,
    Estimator,
    OnIteration,
    linkage_of,
    relative_to_largest,
)
from posbias.core.standard_errors.cluster import ClusterSums, TotalInformation, errors_from_sums
from posbias.core.theta.conditional import Linkage, LinkedCounts, linked_counts

BLOCK = 4_000_000
"""Floats in one dense block of work, 32 MB."""

NOTHING = 1e-12
"""Share of a cell's information or variance below which a value is rounding."""

ALL_CLICKS = 1 - 1e-9
"""Share of the clicks from which a cluster counts as having all of them."""

UNCLICKED_SHARE = 1e-3
"""Units without a click that are added to each set, as a share of its units."""

_LEVERAGE = 0.01  # below it, leaving a cluster out changes H^-1 by about one percent
_LIMITS = optimize.Limits(longest_step=4.0, tolerance=1e-10, stalled=optimize.ROUNDING)  # of a log propensity
_CANCELLED = 1e-13  # of the objective: a smaller change of it is rounding


@dataclass(frozen=True)
class InterventionalSets:
    """Interventional sets S_ab of all pairs of identified cells with a common clicked unit: the edges of a graph."""

    first: Integers  # shape (E,), the lower cell a of each set, numbered 0 .. I - 1 among the identified cells.
    second: Integers  # shape (E,), the higher cell b
    first_clicks: Floats  # shape (E,), A_ab, the sum of the units' click rates in a
    second_clicks: Floats  # shape (E,), A_ba
    units: Floats  # shape (E,), (1 + .001) M_ab

    def profile(self, log_theta: Floats) -> "Profile":
        """Maximise each set over r_ab, given log_theta of shape (I,).

        With w = theta_b / theta_a, x = theta_a r solves (A - M x)(1 - w x) + (B - M w x)(1 - x) = 0. The smaller root
        is the one below 1 / max(1, w); its discriminant is written as a sum, which cannot cancel.
        """
        ratio = np.exp(log_theta[self.second] - log_theta[self.first])
        a, b, units = self.first_clicks, self.second_clicks, self.units
        linear = (units + b, ratio * (units + a))
        root = np.sqrt((linear[0] - linear[1]) ** 2 + 4 * ratio * (units - a) * (units - b))
        x = 2 * (a + b) / (linear[0] + linear[1] + root)
        y = ratio * x
        first_curvature = (units - a) * x / (1 - x) ** 2
        second_curvature = (units - b) * y / (1 - y) ** 2
        total = first_curvature + second_curvature
        share = np.divide(first_curvature, total, out=np.full_like(total, 1 / 2), where=total > 0)
        # Both slopes are the flow; the one of the smaller curvature, of the cell with fewer clicks, is rounded less.
        flow = (1 - share) * (a - units * x) / (1 - x) - share * (b - units * y) / (1 - y)
        return Profile(x, y, flow, conductance=share * second_curvature, share=share)

    def at_cells(self, flow: Floats, n_cells: int) -> Floats:
        """Return the net flow out of each cell: the sum over sets where it is first minus that where it is second."""
        return sum_by_number(self.first, flow, n_cells) - sum_by_number(self.second, flow, n_cells)

    def laplacian(self, conductance: Floats, n_cells: int) -> Floats:
        """Return the sum over the sets of conductance (e_a - e_b)(e_a - e_b)', shape (I, I)."""
        coupling = np.zeros((n_cells, n_cells))
        coupling[self.first, self.second] = coupling[self.second, self.first] = conductance
        return np.diag(coupling.sum(axis=1)) - coupling

    def objective(self, profile: "Profile") -> float:
        """Return the value of l."""
        x, y, a, b = profile.first_probability, profile.second_probability, self.first_clicks, self.second_clicks
        terms = a * np.log(x) + (self.units - a) * np.log1p(-x) + b * np.log(y) + (self.units - b) * np.log1p(-y)
        return float(terms.sum())


@dataclass(frozen=True)
class Profile:
    """The sets at their best r, each array of shape (E,)."""

    first_probability: Floats  # x = theta_a r_ab, in (0, 1)
    second_probability: Floats  # y = theta_b r_ab
    flow: Floats  # the slope of l in log theta_a, which is minus that in log theta_b
    # Minus the curvature of l in log theta_a - log theta_b, W_a W_b / (W_a + W_b), where W_a = (M - A) x / (1 - x)^2
    # is that of cell a's term alone
    conductance: Floats
    share: Floats  # W_a / (W_a + W_b)


@dataclass(frozen=True)
class AllPairsFit:
    """The optimum of l."""

    linked: LinkedCounts  # the part of the table that carries information, and the identified cells' numbers
    sets: InterventionalSets  # the interventional sets
    log_theta: Floats  # shape (I,), on the identified cells, 0 at the references
    profile: Profile  # the sets at the optimum
    information: Floats  # shape (F, F), minus the Hessian on the identified cells other than the references
    converged: bool  # whether the last Newton step was below the tolerance
    iterations: int  # Newton steps taken


def fit_allpairs(table: CountTable, linkage: Linkage, on_iteration: optimize.OnStep | None = None) -> AllPairsFit:
    """Maximise l by Newton's method with step halving, on the identified cells.

    Args:
        table: counts per unit (a pair, stratum or signature) and cell. Units without a click count in the sets.
        linkage: which cells are identified, of the same table.
        on_iteration: called after each step with its number and its largest change.
    """
    linked = linked_counts(table, linkage)
    sets, free, n_cells = interventional_sets(table, linked), linked.free, len(linked.cells)

    def propose(log_theta: Floats) -> optimize.Proposal:
        """Newton's step from log_theta; enough is a gain that is as promised but for rounding."""
        profile, step = sets.profile(log_theta), np.zeros(n_cells)
        gradient = sets.at_cells(profile.flow, n_cells)[free]
        step[free] = linalg.solve(sets.laplacian(profile.conductance, n_cells)[np.ix_(free, free)], gradient)
        objective = sets.objective(profile)

        def falls_short(step: Floats) -> bool:
            promised = optimize.ENOUGH_ASCENT * float(gradient @ step[free])
            gain = sets.objective(sets.profile(log_theta + step)) - objective
            return not gain >= promised - _CANCELLED * abs(objective)

        return step, falls_short, None

    log_theta, converged, iterations = optimize.climb(propose, np.zeros(n_cells), _LIMITS, on_iteration)
    profile = sets.profile(log_theta)
    information = sets.laplacian(profile.conductance, n_cells)[np.ix_(free, free)]
    return AllPairsFit(linked, sets, log_theta, profile, information, converged, iterations)


def interventional_sets(table: CountTable, linked: LinkedCounts) -> InterventionalSets:
    """The sets of all units, those without a click included, between the identified cells."""
    kept = np.zeros(table.n_cells, np.bool_)
    kept[linked.cells] = True
    inside = table.only_cells(kept)
    root = inside.spread(np.sqrt(inside.multiplicity))
    units = linalg.gram(linalg.by_unit_and_cell(inside, root))[np.ix_(linked.cells, linked.cells)]
    clicked = linked.table
    rates = linalg.by_unit_and_cell(
        clicked, clicked.spread(clicked.multiplicity) * clicked.clicks / clicked.impressions
    )
    shown = linalg.by_unit_and_cell(clicked, np.ones(len(clicked.cell)))
    clicks = linalg.gram(rates, shown)
    first, second = np.nonzero(np.triu(clicks + clicks.T, k=1))
    return InterventionalSets(
        first=first.astype(np.int64),
        second=second.astype(np.int64),
        first_clicks=clicks[first, second],
        second_clicks=clicks[second, first],
        units=(1 + UNCLICKED_SHARE) * units[first, second],
    )


def sum_clusters_of_pairs(fit: AllPairsFit, members: Members) -> ClusterSums:
    """Compute the sums over the clusters of the members, in blocks of clusters.

    Args:
        fit: the estimate.
        members: of the units of the table that was fitted.
    """
    linked = members.among(fit.linked.units).by_cluster()
    unit, cluster = linked.unit, linked.cluster
    n_free = len(fit.linked.free)
    entries = fit.linked.table.entries_of_unit[unit]
    ends = np.flatnonzero(np.diff(cluster, append=-1)) + 1
    block = np.cumsum(entries * (entries - 1) // 2 * n_free)[ends - 1] // BLOCK
    bounds = pairwise([0, *ends[np.flatnonzero(np.diff(block, append=-1))].tolist()])
    blocks = ((unit[first:end], cluster[first:end] - cluster[first]) for first, end in bounds)
    return reduce(add, starmap(_Clusters(fit).sums, blocks))


class _Clusters:
    """Influence of clusters on the estimate, from their units."""

    def __init__(self, fit: AllPairsFit) -> None:
        self.table, self.free, self.fit = fit.linked.table, fit.linked.free, fit
        n_cells, sets = self.table.n_cells, fit.sets
        self.whole = TotalInformation(fit.information, linalg.inverse(fit.information))
        inverse = np.zeros((n_cells, n_cells))  # zero in the rows and columns of references
        inverse[np.ix_(self.free, self.free)] = self.whole.inverse
        self.inverse, diagonal = inverse, np.diag(inverse)
        self.set_of = np.full((n_cells, n_cells), -1)
        self.set_of[sets.first, sets.second] = np.arange(len(sets.first))
        self.per_click = fit.profile.conductance / (sets.first_clicks + sets.second_clicks)
        self.resistance = diagonal[sets.first] + diagonal[sets.second] - 2 * inverse[sets.first, sets.second]

    def sums(self, unit: Numbers, cluster: Numbers) -> ClusterSums:
        """Compute the sums over clusters, numbered from 0, from the unit and cluster of each member."""
        units, local = np.unique(unit, return_inverse=True)
        members = linalg.occurrences(cluster, local, (int(cluster[-1]) + 1, len(units)))
        start, number, first_rate, second_rate = self._sets_of(self.table.take(units))
        used, column = np.unique(number, return_inverse=True)
        sets, at = self.fit.sets, self.fit.profile
        response = (self.inverse[sets.first[used]] - self.inverse[sets.second[used]])[:, self.free]  # D_ab, one a row
        information = self.per_click[number] * (first_rate + second_rate)
        of_unit = np.repeat(np.arange(len(units)), np.diff(start))
        leverage = members @ sum_by_number(of_unit, information * self.resistance[number], len(units))
        influence = members @ (linalg.in_rows(information, column, start, len(used)) @ response**2)
        # The score s_j,ab of each set of each unit: how it grows with r_a and falls with r_b.
        x, y = at.first_probability, at.second_probability
        of_first, of_second = (1 - at.share) / (1 - x), at.share / (1 - y)
        scores = of_first[number] * first_rate - of_second[number] * second_rate
        scores -= ((1 + UNCLICKED_SHARE) * (of_first * x - of_second * y))[number]
        change = members @ (linalg.in_rows(scores, column, start, len(used)) @ response)
        alone = np.zeros(len(self.free), np.bool_)
        ends = np.cumsum(np.bincount(cluster))
        for which in np.flatnonzero(leverage >= _LEVERAGE).tolist():
            own, cells, flow = self._lost_with(unit[ends[which - 1] if which else 0 : ends[which]])
            of_cluster = float((own * self.whole.inverse[np.ix_(cells, cells)]).sum())
            kept, score = self.whole.linked_without(own, cells, of_cluster), np.zeros(len(self.free))
            score[cells] = flow
            change[which] = np.where(kept, self.whole.inverse @ self.whole.adjust(own, cells, kept, score), 0.0)
            alone |= ~kept
        # What is left of a cell's resistance after rounding does not count.
        influence[influence <= NOTHING * np.diag(self.whole.inverse)] = 0.0
        number, squares = (influence > 0).sum(axis=0).astype(np.float64), (influence**2).sum(axis=0)
        return ClusterSums(change.T @ change, influence.sum(axis=0), squares, number, len(change), alone)

    def _sets_of(self, table: CountTable) -> tuple[Integers, Integers, Floats, Floats]:
        """Each set of each unit of a part of the table, unit after unit: every two of its cells that make a set.

        Returns:
            Where the P sets of each unit begin, shape (U + 1,); and of each the number, r_a and r_b, shape (P,).
        """
        entry = np.arange(len(table.cell))
        later = table.start[1:][table.unit_of_entry] - 1 - entry  # the unit's entries behind each entry
        begin = np.cumsum(later) - later
        first = np.repeat(entry, later)
        second = first + 1 + np.arange(len(first)) - np.repeat(begin, later)
        number = self.set_of[table.cell[first], table.cell[second]]
        kept = number >= 0
        start = starts(kept)[np.append(begin, len(first))[table.start]]
        rate = table.clicks / table.impressions
        return start, number[kept], rate[first[kept]], rate[second[kept]]

    def _lost_with(self, units: Integers) -> tuple[Floats, Integers, Floats]:
        """H_g, shape (T, T), the numbers of its free cells, and s_g on them, of the cluster of some units."""
        _, set_of, first_rate, second_rate = self._sets_of(self.table.take(units))
        number, local = np.unique(set_of, return_inverse=True)
        sets, at = self.fit.sets, self.fit.profile
        own_first, own_second = (sum_by_number(local, rate, len(number)) for rate in (first_rate, second_rate))
        own_units = (1 + UNCLICKED_SHARE) * np.bincount(local, minlength=len(number))
        emptied = own_first + own_second > ALL_CLICKS * (sets.first_clicks[number] + sets.second_clicks[number])
        left = np.where(emptied, 0.0, 1.0)
        cells, ends = np.unique(np.concatenate([sets.first[number], sets.second[number]]), return_inverse=True)
        first, second = np.split(ends, 2)
        rest = InterventionalSets(
            first=first,
            second=second,
            first_clicks=np.maximum(sets.first_clicks[number] - own_first, 0) * left,
            second_clicks=np.maximum(sets.second_clicks[number] - own_second, 0) * left,
            units=np.where(emptied, 1.0, sets.units[number] - own_units),
        )
        after = rest.profile(self.fit.log_theta[cells])
        flow = rest.at_cells(at.flow[number] - after.flow, len(cells))
        information = rest.laplacian(at.conductance[number] - after.conductance, len(cells))
        kept = self.fit.linked.reference_of[cells] != cells
        return information[np.ix_(kept, kept)], np.searchsorted(self.free, cells[kept]), flow[kept]


def harvest_allpairs(
    strata: Strata, linkage: Linkage, by: Cluster = "query", on_iteration: optimize.OnStep | None = None
) -> Estimate:
    """AllPairs on the identified cells: the optimum of l, with its standard errors.

    Args:
        strata: the counts. Those without a click count in the sets.
        linkage: which cells are identified, of the same counts.
        by: what the clusters of the strata are.
        on_iteration: called after each step with its number and its largest change.
    """
    fit = fit_allpairs(strata.signatures, linkage, on_iteration=on_iteration)
    log_theta = np.full(strata.signatures.n_cells, np.nan)
    log_theta[fit.linked.cells] = fit.log_theta
    errors = errors_from_sums(log_theta, fit.linked.cells[fit.linked.free], sum_clusters_of_pairs(fit, strata.members))
    theta = np.exp(log_theta)
    reason = tuple(unlinked or no_error for unlinked, no_error in zip(linkage.reason, errors.reason, strict=True))
    return Estimate(
        method=AllPairsEstimator.name,
        linkage=linkage,
        propensity=theta,
        examination=relative_to_largest(theta, linkage),
        intervals=replace(errors, reason=reason),
        converged=fit.converged,
        iterations=fit.iterations,
        errors_by=by,
        n_clusters=errors.n_clusters,
    )


class AllPairsEstimator(Estimator):
    """Maximum of the weighted likelihood of all interventional sets, errors clustered by query."""

    name = "allpairs"
    reference = "Agarwal, Zaitsev, Wang, Li, Najork & Joachims 2019 (WSDM)"
    takes = ("cluster",)

    def estimate(
        self, statistics: SufficientStatistics, strata: Strata, options: EstimationOptions, on_iteration: OnIteration
    ) -> Estimate:
        """Estimate theta on the cells that the log can compare with the reference."""
        if options.cluster not in {None, "query"}:  # each stratum by itself
            unit = strata.members.unit
            strata = replace(strata, members=Members(unit, np.arange(len(unit))))
        return harvest_allpairs(
            strata,
            linkage_of(statistics, strata, options),
            options.cluster or "query",
            on_iteration=lambda number, change: on_iteration(f"AllPairs {number}: {change:.1e}"),
        )
