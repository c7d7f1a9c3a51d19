"""Intervention harvesting: theta from the click rates of documents shown in several cells, with its errors.

Source: Agarwal, Zaitsev, Wang, Li, Najork & Joachims 2019, "Estimating Position Bias without Intrusive Interventions".

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
r_ab again: d_g = (H - H_g)^-1 s_g where H - H_g and s_g are those of l without the cluster, exactly.
"""

from dataclasses import dataclass, replace

import numpy as np

from posbias.core.arrays import linalg, optimize
from posbias.core.arrays.count_table import CountTable, Flags, Floats, Integers, Members, Numbers, starts, sum_by_number
from posbias.core.choices import Cluster
from posbias.core.counts.sufficient_statistics import Strata, SufficientStatistics
from posbias.core.estimators.estimate import (
    Estimate,
    EstimationOptions,
    Estimator,
    OnIteration,
    clustered,
    linkage_of,
    relative_to_largest,
)
from posbias.core.standard_errors.cluster import errors_from_sums
from posbias.core.standard_errors.leave_one_out import ClusterSums
from posbias.core.theta.allpairs import UNCLICKED_SHARE, AllPairsFit, InterventionalSets, fit_allpairs
from posbias.core.theta.conditional import Linkage

BLOCK = 4_000_000
"""Numbers in one dense block of work, 32 MB."""

NOTHING = 1e-12
"""Share of a cell's information, or variance, that is rounding."""

ALL_CLICKS = 1 - 1e-9
"""A cluster with at least this share of some clicks leaves none."""

_LEVERAGE = 0.01  # below it, leaving a cluster out changes H^-1 by about one percent
_WHOLE = 1 - 1e-9  # sets with less leverage cannot be the only ones that identify a direction


def sum_clusters(fit: AllPairsFit, members: Members) -> ClusterSums:
    """The sums over the clusters of the members, in blocks of clusters.

    Args:
        fit: the estimate.
        members: of the units of the table that was fitted.
    """
    linked = members.among(fit.linked.units).by_cluster()
    unit, cluster = linked.unit, linked.cluster
    clusters, n_free = _Clusters(fit), len(fit.linked.free)
    entries = fit.linked.table.entries_of_unit[unit]
    ends = np.flatnonzero(np.diff(cluster, append=-1)) + 1
    block = np.cumsum(entries * (entries - 1) // 2 * n_free)[ends - 1] // BLOCK
    nothing = np.zeros((0, n_free))
    sums, first = ClusterSums.of(nothing, nothing, np.zeros(n_free, np.bool_)), 0
    for end in ends[np.flatnonzero(np.diff(block, append=-1))].tolist():
        sums = sums + clusters.sums(unit[first:end], cluster[first:end] - cluster[first])
        first = end
    return sums


@dataclass(frozen=True)
class _UnitSets:
    """Each set of each unit, unit after unit: P of them."""

    start: Integers  # shape (U + 1,), where each unit's begin
    number: Integers  # shape (P,), of the set
    first_rate: Floats  # shape (P,), r_a
    second_rate: Floats  # shape (P,), r_b

    def sum_by_unit(self, values: Floats) -> Floats:
        """Sum over each unit's sets, shape (U,)."""
        unit = np.repeat(np.arange(len(self.start) - 1), np.diff(self.start))
        return sum_by_number(unit, values, len(self.start) - 1)


class _Clusters:
    """Influence of clusters on the estimate, from their units."""

    def __init__(self, fit: AllPairsFit) -> None:
        self.table = fit.linked.table
        self.free = fit.linked.free
        self.reference_of = fit.linked.reference_of
        self.fit = fit
        n_cells = self.table.n_cells
        self.inverse = np.zeros((n_cells, n_cells))  # zero in the rows and columns of references
        self.inverse[np.ix_(self.free, self.free)] = linalg.solve(fit.information, np.eye(len(self.free)))
        sets, at = fit.sets, fit.profile
        self.set_of = np.full((n_cells, n_cells), -1)
        self.set_of[sets.first, sets.second] = np.arange(len(sets.first))
        self.per_click = at.conductance / (sets.first_clicks + sets.second_clicks)
        diagonal = np.diag(self.inverse)
        self.resistance = diagonal[sets.first] + diagonal[sets.second] - 2 * self.inverse[sets.first, sets.second]

    def sums(self, unit: Numbers, cluster: Numbers) -> ClusterSums:
        """The sums over some clusters, numbered from 0; `unit` and `cluster` are their members'."""
        units, local = np.unique(unit, return_inverse=True)
        members = linalg.occurrences(cluster, local, (int(cluster[-1]) + 1, len(units)))
        sets_of = self._sets_of(self.table.take(units))
        used, column = np.unique(sets_of.number, return_inverse=True)
        sets = self.fit.sets
        response = (self.inverse[sets.first[used]] - self.inverse[sets.second[used]])[:, self.free]  # D_ab, one a row
        information = self.per_click[sets_of.number] * (sets_of.first_rate + sets_of.second_rate)
        leverage = members @ sets_of.sum_by_unit(information * self.resistance[sets_of.number])
        influence = members @ (linalg.in_rows(information, column, sets_of.start, len(used)) @ response**2)
        change = members @ (linalg.in_rows(self._scores(sets_of), column, sets_of.start, len(used)) @ response)
        alone = np.zeros(len(self.free), np.bool_)
        ends = np.cumsum(np.bincount(cluster))
        for which in np.flatnonzero(leverage >= _LEVERAGE).tolist():
            own = unit[ends[which - 1] if which else 0 : ends[which]]
            change[which], lost = self._change_without(own)
            alone |= lost
        # What is left of a cell's resistance after rounding does not count.
        influence[influence <= NOTHING * np.diag(self.inverse)[self.free]] = 0.0
        return ClusterSums.of(change, influence, alone)

    def _sets_of(self, table: CountTable) -> _UnitSets:
        """The sets of each unit of a part of the table: every two of its cells that make a set."""
        entry = np.arange(len(table.cell))
        later = table.start[1:][table.unit_of_entry] - 1 - entry  # the unit's entries behind each entry
        begin = np.cumsum(later) - later
        first = np.repeat(entry, later)
        second = first + 1 + np.arange(len(first)) - np.repeat(begin, later)
        number = self.set_of[table.cell[first], table.cell[second]]
        kept = number >= 0
        before = starts(kept)
        bounds = np.append(begin, len(first))[table.start]
        first, second = first[kept], second[kept]
        rate = table.clicks / table.impressions
        return _UnitSets(before[bounds], number[kept], rate[first], rate[second])

    def _scores(self, sets_of: _UnitSets) -> Floats:
        """The score s_j,ab of each set of each unit, shape (P,)."""
        at = self.fit.profile
        x, y = at.first_probability, at.second_probability
        of_first, of_second = (1 - at.share) / (1 - x), at.share / (1 - y)  # how s grows with r_a and falls with r_b
        of_unit = (1 + UNCLICKED_SHARE) * (of_first * x - of_second * y)
        number = sets_of.number
        return of_first[number] * sets_of.first_rate - of_second[number] * sets_of.second_rate - of_unit[number]

    def _change_without(self, units: Integers) -> tuple[Floats, Flags]:
        """The change by leaving out one cluster, shape (F,), and the free cells that it alone identifies.

        With M the block of H^-1 on the cluster's cells T: d_g = [H^-1]_{:,T} (I - H_g M)^-1 s_T (Woodbury).
        """
        number, lost_conductance, lost_flow, emptied = self._without(units)
        cells, ends = np.unique(
            np.concatenate([self.fit.sets.first[number], self.fit.sets.second[number]]), return_inverse=True
        )
        first, second = np.split(ends, 2)
        flow = sum_by_number(first, lost_flow, len(cells)) - sum_by_number(second, lost_flow, len(cells))
        own = np.zeros((len(cells), len(cells)))
        own[first, second] = own[second, first] = -lost_conductance
        np.fill_diagonal(own, -own.sum(axis=1))
        lost = self._cut_off(number[emptied])
        if not lost.any():
            shrunk = np.eye(len(cells)) - own @ self.inverse[np.ix_(cells, cells)]
            return (np.linalg.solve(shrunk, flow) @ self.inverse[cells])[self.free], lost
        rest = self.fit.sets.laplacian(self.fit.profile.conductance, self.table.n_cells)
        rest[np.ix_(cells, cells)] -= own
        score = np.zeros(self.table.n_cells)
        score[cells] = flow
        kept = self.free[~lost]
        change = np.zeros(len(self.free))
        if len(kept):
            change[~lost] = linalg.solve(rest[np.ix_(kept, kept)], score[kept])
        return change, lost

    def _without(self, units: Integers) -> tuple[Integers, Floats, Floats, Flags]:
        """The cluster's sets, what of their conductance and flow goes with it, and which lose their last click."""
        sets_of = self._sets_of(self.table.take(units))
        number, local = np.unique(sets_of.number, return_inverse=True)
        sets, at = self.fit.sets, self.fit.profile
        own_first = sum_by_number(local, sets_of.first_rate, len(number))
        own_second = sum_by_number(local, sets_of.second_rate, len(number))
        own_units = (1 + UNCLICKED_SHARE) * np.bincount(local, minlength=len(number))
        clicks = sets.first_clicks[number] + sets.second_clicks[number]
        emptied = own_first + own_second > ALL_CLICKS * clicks
        left = np.where(emptied, 0.0, 1.0)
        rest = InterventionalSets(
            first=sets.first[number],
            second=sets.second[number],
            first_clicks=np.maximum(sets.first_clicks[number] - own_first, 0) * left,
            second_clicks=np.maximum(sets.second_clicks[number] - own_second, 0) * left,
            units=np.where(emptied, 1.0, sets.units[number] - own_units),
        ).profile(self.fit.log_theta)
        return number, at.conductance[number] - rest.conductance, at.flow[number] - rest.flow, emptied

    def _cut_off(self, emptied: Integers) -> Flags:
        """The free cells that nothing links with their reference once some sets have no click.

        Without these sets H is singular only if their leverage, the trace of H^-1 times their part of H, is at least 1.
        """
        sets = self.fit.sets
        if self.fit.profile.conductance[emptied] @ self.resistance[emptied] < _WHOLE:
            return np.zeros(len(self.free), np.bool_)
        rest = np.ones(len(sets.first), np.bool_)
        rest[emptied] = False
        component = linalg.connected(sets.first[rest], sets.second[rest], self.table.n_cells, both_ways=False)
        return component[self.free] != component[self.reference_of[self.free]]


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
    errors = errors_from_sums(log_theta, fit.linked.cells[fit.linked.free], sum_clusters(fit, strata.members))
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
        return harvest_allpairs(
            clustered(strata, options),
            linkage_of(statistics, strata, options),
            options.cluster or "query",
            on_iteration=lambda number, change: on_iteration(f"AllPairs {number}: {change:.1e}"),
        )
