"""Intervention harvesting: two estimates of theta from the click rates of documents shown in several cells.

The interventional set S_ab holds the units that were shown in both cells a and b; its clicks are A_ab, the sum of the
units' click rates in a, and A_ba, with E[A_ab] / E[A_ba] = theta_a / theta_b (`allpairs`).

AllPairs fits all sets together. AdjacentChain takes the sets of neighbours only and multiplies their ratios,

    log theta_e - log theta_p = log A_ep - log A_pe,    p the neighbour of e on the side of the reference,

so that errors add up along the chain, and a set without clicks in one of its cells breaks it. Its standard errors are
the jackknife's over clusters (queries), V = (G - 1)/G sum_g d_g d_g' with d_g the exact change when g is left out:

    d_g,e = d_g,p + log(1 - A_g,ep / A_ep) - log(1 - A_g,pe / A_pe)

G* from a_gk, cluster g's share in the variance of log theta_k if rates varied like Poisson counts, and intervals by the
rule of `cluster_errors`. A cluster that holds all clicks of a link in one of its
cells identifies what lies beyond alone.

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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from posbias.core.arrays import linalg
from posbias.core.arrays.compression import Members
from posbias.core.arrays.count_table import CountTable, Flags, Floats, Integers, Numbers, starts, sum_by_number
from posbias.core.choices import Cluster
from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.counts.sufficient_statistics import Strata, SufficientStatistics
from posbias.core.errors import UsageError
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
    sums = ClusterSums.none(n_free)
    entries = fit.linked.table.entries_of_unit[unit]
    for block in blocks_of_clusters(cluster, entries * (entries - 1) // 2 * n_free):
        sums = sums + clusters.sums(unit[block], cluster[block] - cluster[block.start])
    return sums


def blocks_of_clusters(cluster: Numbers, cost: Integers) -> Iterator[slice]:
    """Cut members that are sorted by cluster into runs of whole clusters, of about BLOCK numbers each."""
    ends = np.flatnonzero(np.diff(cluster, append=-1)) + 1
    block = np.cumsum(cost)[ends - 1] // BLOCK
    last = ends[np.flatnonzero(np.diff(block, append=-1))]
    first = 0
    for end in last.tolist():
        yield slice(first, end)
        first = end


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
        members = linalg.counted(cluster, local, (int(cluster[-1]) + 1, len(units)))
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


NOT_ON_A_CHAIN = "it lies on no chain of neighbours from the reference"
BROKEN = "the chain breaks at {here}: pairs shown there and at {there} were not clicked in both"


def harvest_allpairs(
    strata: Strata, linkage: Linkage, by: Cluster = "query", on_iteration: linalg.OnStep | None = None
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
    free, sums = fit.linked.cells[fit.linked.free], sum_clusters(fit, strata.members)
    estimate = _estimate(AllPairsEstimator.name, log_theta, free, sums, linkage.reason, linkage, by)
    return replace(estimate, converged=fit.converged, iterations=fit.iterations)


def harvest_adjacent_chain(
    strata: Strata, linkage: Linkage, chains: Sequence[Integers], names: Sequence[str], by: Cluster = "query"
) -> Estimate:
    """AdjacentChain: the product of the ratios between neighbours, from the reference on, with the jackknife's errors.

    Args:
        strata: the counts.
        linkage: the reference of each cell.
        chains: one array of cells per chain (a context), neighbours in order: each with its reference, no cell twice.
            A cell on no such chain has no number.
        names: K names of the cells, for the reasons; e.g. `position 4`.
        by: what the clusters of the strata are.
    """
    paths = [path for chain in chains for path in _outward(chain, linkage)]
    links = _find_links(strata.signatures, paths)
    reason = _missing(paths, links, linkage, names)
    free = np.setdiff1d(np.flatnonzero([why is None for why in reason]), linkage.references)
    route = _routes(paths, free)
    log_theta = np.full(strata.signatures.n_cells, np.nan)
    log_theta[linkage.references] = 0.0
    log_theta[free] = route @ np.log(links.head_clicks[free] / links.tail_clicks[free])
    sums = _sum_jackknife(strata, links, free, route)
    return _estimate(AdjacentChainEstimator.name, log_theta, free, sums, reason, linkage, by)


def _estimate(
    method: str,
    log_theta: Floats,
    free_cells: Integers,
    sums: ClusterSums,
    missing: Sequence[str | None],
    linkage: Linkage,
    by: Cluster,
) -> Estimate:
    """The estimate with the intervals that the sums give; cells without a number are not identified by it."""
    errors = errors_from_sums(log_theta, free_cells, sums)
    linkage, theta = replace(linkage, identified=np.isfinite(log_theta)), np.exp(log_theta)
    reason = tuple(none or no_error for none, no_error in zip(missing, errors.reason, strict=True))
    return Estimate(
        method=method,
        linkage=linkage,
        propensity=theta,
        examination=relative_to_largest(theta, linkage),
        intervals=replace(errors, reason=reason),
        converged=True,
        iterations=0,
        errors_by=by,
        n_clusters=errors.n_clusters,
    )


def _missing(
    paths: Sequence[Integers], links: "_Links", linkage: Linkage, names: Sequence[str]
) -> tuple[str | None, ...]:
    """Why a cell has no number, else None: K reasons."""
    reason: list[str | None] = [unlinked or NOT_ON_A_CHAIN for unlinked in linkage.reason]
    for reference in linkage.references.tolist():
        reason[reference] = None
    for path in paths:
        n_reached = 1 + int(links.intact[path[1:]].cumprod().sum())
        for cell in path[:n_reached].tolist():
            reason[cell] = None
        for cell in path[n_reached:].tolist():
            here, there = names[int(path[n_reached])], names[int(path[n_reached - 1])]
            reason[cell] = linkage.reason[cell] or BROKEN.format(here=here, there=there)
    return tuple(reason)


def _outward(chain: Integers, linkage: Linkage) -> list[Integers]:
    """The two paths that lead from a chain's reference to its ends, each with the reference; none without it.

    e.g. [2, 5, 7, 8] with the reference 5 -> [5, 7, 8] and [5, 2]
    """
    at = np.flatnonzero(np.isin(chain, linkage.references) & (linkage.reference_of[chain] == chain))
    return [chain[at[0] :], chain[: at[0] + 1][::-1]] if len(at) else []


@dataclass(frozen=True)
class _Links:
    """The links of chains: each cell but the reference with its neighbour on the side of the reference, its tail."""

    head_clicks: Floats  # shape (K,), A_ep of the link whose head is cell e; 0 for a cell that is none
    tail_clicks: Floats  # shape (K,), A_pe
    heads: Integers  # shape (L,), entries of the table in a head whose unit was also shown in its tail
    tails: Integers  # shape (L,), those units' entries in the tail
    rate: Floats  # shape (R,), click rate of each entry

    @property
    def intact(self) -> Flags:
        """Whether both cells of the link have clicks, shape (K,)."""
        return (self.head_clicks > 0) & (self.tail_clicks > 0)


def _find_links(table: CountTable, paths: Sequence[Integers]) -> _Links:
    tail_of = np.full(table.n_cells, -1)
    for path in paths:
        tail_of[path[1:]] = path[:-1]
    heads = np.flatnonzero(tail_of[table.cell] >= 0)
    unit = table.unit_of_entry
    key = table.entry_keys
    link = unit[heads] * table.n_cells + tail_of[table.cell[heads]]
    tails = np.minimum(np.searchsorted(key, link), len(key) - 1)
    shown = key[tails] == link
    heads, tails = heads[shown], tails[shown]
    rate = table.clicks / table.impressions
    weighted = rate * table.spread(table.multiplicity)
    return _Links(
        head_clicks=sum_by_number(table.cell[heads], weighted[heads], table.n_cells),
        tail_clicks=sum_by_number(table.cell[heads], weighted[tails], table.n_cells),
        heads=heads,
        tails=tails,
        rate=rate,
    )


def _routes(paths: Sequence[Integers], free: Integers) -> Floats:
    """1 where a link (column, by its head) lies on the way from the reference to a cell (row), else 0; shape (F, F)."""
    route = np.zeros((len(free), len(free)))
    for path in paths:
        way = path[np.isin(path, free)]
        number = np.searchsorted(free, way)
        route[np.ix_(number, number)] = np.tri(len(number))
    return route


def _sum_jackknife(strata: Strata, links: _Links, free: Integers, route: Floats) -> ClusterSums:
    """The exact change by leaving out each cluster, and its share in the variance, in blocks of clusters."""
    table = strata.signatures
    kept = np.isin(table.cell[links.heads], free)
    links = replace(links, heads=links.heads[kept], tails=links.tails[kept])
    shares = _shares_and_variance(table, links)
    clicked = np.flatnonzero(table.sum_by_unit(shares[0] + shares[1]) > 0)
    linked = strata.members.among(clicked).by_cluster()
    number, cluster = linked.unit, linked.cluster
    by_unit = [linalg.by_unit_and_cell(table, share) for share in shares]
    copies = table.spread(table.multiplicity)
    total = route @ table.sum_by_cell(copies * shares[2])[free]
    sums = ClusterSums.none(len(free))
    for block in blocks_of_clusters(cluster, np.full(len(cluster), table.n_cells)):
        own = cluster[block] - cluster[block.start]
        members = linalg.counted(own, clicked[number[block]], (int(own[-1]) + 1, table.n_units))
        head, tail, variance = (linalg.sparse_product(members, share).toarray()[:, free] for share in by_unit)
        alone = route @ (np.maximum(head, tail) >= ALL_CLICKS).any(axis=0) > 0
        head, tail = np.minimum(head, ALL_CLICKS), np.minimum(tail, ALL_CLICKS)
        change = (np.log1p(-head) - np.log1p(-tail)) @ route.T
        influence = variance @ route.T
        influence[influence <= NOTHING * total] = 0.0
        sums = sums + ClusterSums.of(change, influence, alone)
    return sums


def _shares_and_variance(table: CountTable, links: _Links) -> tuple[Floats, Floats, Floats]:
    """At each entry in a head, shape (R,): its unit's share of the link's clicks there, of those in the tail, and v.

    v is what each link adds to the variance of log theta. A rate r_p on the way enters log theta by 1 / A_p,pp of the
    link before and by -1 / A_pe of the link behind; the reference's has no link before. What it adds is the square of
    their sum times r_p, the variance of a Poisson rate but for a factor.
    """
    heads, head = links.heads, table.cell[links.heads]
    head_share, tail_share, per_head_click, variance = np.zeros((4, len(table.cell)))
    head_share[heads] = links.rate[heads] / links.head_clicks[head]
    tail_share[heads] = links.rate[links.tails] / links.tail_clicks[head]
    per_head_click[heads], per_tail_click = 1 / links.head_clicks[head], 1 / links.tail_clicks[head]
    of_tail = per_tail_click * (per_tail_click - 2 * per_head_click[links.tails])
    variance[heads] = links.rate[heads] * per_head_click[heads] ** 2 + links.rate[links.tails] * of_tail
    return head_share, tail_share, variance


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


class AdjacentChainEstimator(Estimator):
    """Product of the click-rate ratios of neighbours, with the jackknife's errors over queries."""

    name = "adjacent-chain"
    reference = "Agarwal, Zaitsev, Wang, Li, Najork & Joachims 2019 (WSDM)"
    takes = ("cluster",)

    def check(self, plan: StatisticsPlan) -> None:
        """Raise a UsageError where a cell is more than a position: it needs cells in a row."""
        if plan.model.beside_position:
            raise UsageError(
                f"--method adjacent-chain: it goes from position to position, and cells that differ by "
                f"{plan.model.beside_position} do not lie in a row. Use --method allpairs, or --model pbm."
            )

    def estimate(
        self,
        statistics: SufficientStatistics,
        strata: Strata,
        options: EstimationOptions,
        on_iteration: OnIteration,  # noqa: ARG002 - every estimator takes the same
    ) -> Estimate:
        """Estimate theta as far as the chain reaches."""
        linkage, context = linkage_of(statistics, strata, options), statistics.context_of_cell
        chains = [np.flatnonzero(context == number) for number in np.unique(context)]
        names = [f"position {position}" for position in statistics.position_of_cell]
        return harvest_adjacent_chain(clustered(strata, options), linkage, chains, names, options.cluster or "query")
