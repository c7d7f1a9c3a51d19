"""Errors of the conditional estimate by query, pair or the bootstrap, and intervals from them.

A cluster (a query) g has the score s_g and the information H_g = sum_{j in g} C_j (diag(p_j) - p_j p_j'); H = sum H_g.

    d_g  = (H - H_g)^-1 s_g         what leaving the cluster out would change (H^-1 s_g where tr(H^-1 H_g) < .01)
    a_gk = [H^-1 H_g H^-1]_kk,      G*_k = (sum_g a_gk)^2 / sum_g a_gk^2
    V_kl = sqrt((G_k - 1)/G_k (G_l - 1)/G_l) sum_g d_gk d_gl,     G_k = number of clusters with a_gk > 0
    log theta_k +- t_{.975, nu_k} sqrt(V_kk),     nu_k = max(min(G*_k, G_k - 1), 1)

Clusters that agree to the last click (two with the same counts do) say nothing about how far they could differ: a cell
whose V_kk is 0 gets no interval, instead of one of width 0.

CR3 is the jackknife's estimate (Bell & McCaffrey 2002; MacKinnon, Nielsen & Webb 2023); G* after Carter, Schnepel &
Steigerwald (2017): under Zipf's law thousands of queries can be worth a few dozen. The scores of G clusters sum to
zero, so they never hold more than G - 1 independent numbers.

Each replicate gives every cluster g (a query) an independent sign w_g = +1 or -1 and lets it move the estimate by its
adjusted score x_g = H (H - H_g)^-1 s_g (`leave_one_out`); the scores are then taken again at the moved estimate, and
their clustered variance (CR3, as for the estimate itself) studentises the move:

    delta = H^-1 sum_g w_g x_g,    d*_g = (H - H_g)^-1 (w_g x_g - H_g delta),    t*_k = delta_k / sqrt(V*_kk)
    V*_kk = (G_k - 1)/G_k sum_g d*_gk^2,    interval  log theta_k +- q_k sqrt(V_kk)

with q_k the .95 quantile of |t*_k|, but never less than the t_{.975, nu_k} of `cluster_errors`, nor more than t with
one degree of freedom. Where a cluster has hardly any leverage, x_g = s_g and d*_g = w_g H^-1 x_g. No replicate is
refitted, so none can lose the link of a cell.

Sources: Kline & Santos 2012 (score bootstrap); Cameron, Gelbach & Miller 2008 (why studentised); MacKinnon, Nielsen &
Webb 2023 (scores adjusted by CR3). Without restricting the scores to a hypothesis, such quantiles are somewhat too
small where few clusters carry most of the weight (MacKinnon & Webb 2017), hence the lower bound: this bootstrap can
widen the sandwich's interval, and never narrows it. Its standard error is the sandwich's.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Self

import numpy as np

from posbias.core.arrays.count_table import CountTable, Floats, Integers, Members, Numbers
from posbias.core.arrays.linalg import MANY, Sparse, by_unit_and_cell, gram, occurrences
from posbias.core.arrays.threads import at_once
from posbias.core.counts.sufficient_statistics import Strata
from posbias.core.standard_errors import leave_one_out
from posbias.core.standard_errors.column import TwoWaySums
from posbias.core.standard_errors.leave_one_out import ClusterScores, ClusterSums, LeaveOneOut
from posbias.core.theta.conditional import ConditionalFit, LinkedCounts, linked_counts


def upper_end(log_theta: Floats) -> Floats:
    """The upper end of an interval from its logarithm; NaN where it is beyond all numbers."""
    with np.errstate(over="ignore"):
        high = np.exp(log_theta)
    return np.where(np.isinf(high), np.nan, high)


@dataclass(frozen=True)
class Intervals:
    """Standard errors and 95 % intervals, each array of shape (K,)."""

    std_error: Floats  # of log theta; 0 at a reference, NaN where there is none
    low: Floats  # lower end of the 95 % interval of theta; 1 at a reference, NaN where there is none
    high: Floats  # its upper end; the upper limit alone where a cell has no clicks
    effective_clusters: Floats  # G*, how many equal clusters the data are worth; NaN at a reference and without error
    reason: tuple[str | None, ...]  # why a cell has no number or no interval, or on what its number rests

    @classmethod
    def unknown(cls, reason: tuple[str | None, ...]) -> Self:
        """No interval anywhere, as of a method that has none."""
        nothing = np.full(len(reason), np.nan)
        return cls(nothing, nothing, nothing, nothing, reason)

    def reach(self, log_theta: Floats) -> Floats:
        """How far the interval of log theta reaches from it, at the further end, shape (K,).

        That is half the interval, unless it was moved towards what others say.

        Args:
            log_theta: shape (K,), the estimate.
        """
        with np.errstate(divide="ignore", invalid="ignore"):  # an interval from 0 has no end
            return np.maximum(np.log(self.high) - log_theta, log_theta - np.log(self.low))

    def or_else(self, other: "Intervals") -> "Intervals":
        """These where there is an error, the other ones where there is none."""
        has = np.isfinite(self.std_error)
        return Intervals(
            std_error=np.where(has, self.std_error, other.std_error),
            low=np.where(has, self.low, other.low),
            high=np.where(has, self.high, other.high),
            effective_clusters=np.where(has, self.effective_clusters, other.effective_clusters),
            reason=tuple(np.where(has, np.array(self.reason, object), np.array(other.reason, object)).tolist()),
        )


_BLOCK = 1 << 16  # members that are worked on at a time

ONE_CLUSTER = "one query alone identifies it"
AGREEING = "its queries agree to the last click, so that no error can be read from them"


@dataclass(frozen=True)
class ClusterErrors(Intervals):
    """Standard errors and intervals by cluster."""

    degrees: Floats  # shape (K,), nu, degrees of freedom of the interval; NaN where there is no G*
    n_clusters: int  # G, clusters that hold a unit with a click and two identified cells
    covariance: Floats  # shape (F, F), V on the fit's free cells; NaN beside cells without interval


def cluster_errors(fit: ConditionalFit, strata: Strata) -> ClusterErrors:
    """Standard errors clustered by whatever the members are grouped by, as a rule queries.

    Args:
        fit: the estimate from `strata`.
        strata: the counts, and the clusters of their members; a unit's multiplicity is the number of its members.
    """
    return errors_from_sums(fit.log_theta, fit.free_cells, sum_clusters(fit, strata))


def pair_errors(fit: ConditionalFit, table: CountTable) -> ClusterErrors:
    """Standard errors clustered by member (pair or stratum): those of `cluster_errors` with each member a cluster.

    Equal members have equal scores, so that the signatures and their multiplicities are enough. Too small where
    something is shared within a query.

    Args:
        fit: the estimate from `table`.
        table: counts per unit; a unit's multiplicity is the number of its members.
    """
    linked = linked_counts(table, fit.linkage)
    each = np.arange(len(linked.units))
    members = occurrences(each, each, (len(each), len(each)))
    scores = scores_of_members(fit, linked, members, linked.table.multiplicity)
    return errors_from_sums(fit.log_theta, fit.free_cells, LeaveOneOut(fit, scores).sums())


def sum_clusters(fit: ConditionalFit, strata: Strata) -> ClusterSums:
    """The sums over the clusters of some members: all members of these clusters, not necessarily all clusters.

    Args: as for `cluster_errors`.
    """
    blocks = list(_blocks_of_clusters(strata.members.cluster))
    if len(blocks) == 1 or len(fit.free_cells) >= MANY:  # each block has a dense matrix, and three products
        return LeaveOneOut(fit, cluster_scores(fit, strata)).sums()
    return reduce(add, at_once(lambda block: _left_out(fit, strata, block).sums(), blocks))


def adjusted_scores(fit: ConditionalFit, strata: Strata) -> Iterator[tuple[Integers, Floats]]:
    """The numbers of some clusters that count, and their x_g = H (H - H_g)^-1 s_g, shape (B, F); all clusters in turn.

    Args: as for `cluster_errors`.
    """
    linked = linked_counts(strata.signatures, fit.linkage).units
    for block in _blocks_of_clusters(strata.members.cluster):
        clusters = np.unique(Members(strata.members.unit[block], strata.members.cluster[block]).among(linked).cluster)
        left_out = _left_out(fit, strata, block)
        adjusted = left_out.clusters.scores.toarray()[:, left_out.free]
        adjusted[left_out.high], _ = left_out.adjusted_scores(left_out.high)
        yield clusters.astype(np.int64), adjusted


def _left_out(fit: ConditionalFit, strata: Strata, block: slice) -> LeaveOneOut:
    """Leaving out each of the clusters of some members, which are all of these clusters."""
    units, unit = np.unique(strata.members.unit[block], return_inverse=True)
    part = Strata(strata.signatures.take(units), Members(unit, strata.members.cluster[block]))
    return LeaveOneOut(fit, cluster_scores(fit, part), threads=1)


def _blocks_of_clusters(cluster_of_member: Numbers) -> Iterator[slice]:
    """Runs of members of whole clusters; one run of all where the members are not in the order of their clusters."""
    change = np.flatnonzero(np.diff(cluster_of_member)) + 1
    ordered = bool((cluster_of_member[1:] >= cluster_of_member[:-1]).all())
    first, n_members = 0, len(cluster_of_member)
    while ordered and n_members - first > _BLOCK:
        later = change[np.searchsorted(change, first + _BLOCK) :]
        last = int(later[0]) if len(later) else n_members
        yield slice(first, last)
        first = last
    if first < n_members or not n_members:
        yield slice(first, n_members)


def cluster_scores(fit: ConditionalFit, strata: Strata) -> ClusterScores:
    """Score and information of each cluster that counts, in ascending order of the clusters' numbers.

    Args: as for `cluster_errors`.
    """
    linked = linked_counts(strata.signatures, fit.linkage)
    clusters, members = strata.members.among(linked.units).occurrences(len(linked.units))
    return scores_of_members(fit, linked, members, np.ones(len(clusters)))


def scores_of_members(fit: ConditionalFit, linked: LinkedCounts, members: Sparse, copies: Floats) -> ClusterScores:
    """Score and information of clusters of whole units; row g of `members` counts cluster g's units."""
    table = linked.table
    shares = linked.shares(fit.log_theta[linked.cells])
    unit_scores = by_unit_and_cell(table, table.clicks - table.spread(linked.unit_clicks) * shares)
    scores = members @ unit_scores
    members.data *= linked.unit_clicks[members.indices]
    return ClusterScores(linked, shares, scores, members, copies)


def errors_from_sums(
    log_theta: Floats, free_cells: Integers, sums: ClusterSums | TwoWaySums, quantile: Floats | None = None
) -> ClusterErrors:
    """Standard errors and intervals from the sums over all clusters.

    A cell that one cluster alone identifies gets no interval. The others do: without that cluster, the cells that it
    alone identifies fall apart from the rest, and leaving it out is well defined for the rest. Nor does a cell on
    which the clusters agree to the last click.

    Args:
        log_theta: shape (K,), the estimate; NaN where not identified.
        free_cells: shape (F,), the identified cells other than the references.
        sums: over all clusters.
        quantile: shape (F,), half the width of the interval of log theta, in standard errors; by default t_{.975, nu}.
    """
    covariance = sums.covariance
    variance = np.maximum(np.diag(covariance), 0.0)
    without = sums.alone | (variance <= leave_one_out.AGREEMENT**2)
    covariance[without, :] = np.nan
    covariance[:, without] = np.nan
    center = np.where(without, np.nan, log_theta[free_cells])
    margin = (leave_one_out.t_quantile(sums.degrees) if quantile is None else quantile) * np.sqrt(variance)
    why = np.where(sums.alone, ONE_CLUSTER, AGREEING)
    reason = dict(zip(free_cells[without].tolist(), map(str, why[without]), strict=True))

    def on_all_cells(of_free: Floats, of_reference: float) -> Floats:
        values = np.where(np.isnan(log_theta), np.nan, of_reference)
        values[free_cells] = of_free
        return values

    return ClusterErrors(
        std_error=on_all_cells(np.sqrt(np.diag(covariance)), 0.0),
        low=on_all_cells(np.exp(center - margin), 1.0),
        high=on_all_cells(upper_end(center + margin), 1.0),
        effective_clusters=on_all_cells(sums.effective_clusters, np.nan),
        degrees=on_all_cells(sums.degrees, np.nan),
        n_clusters=sums.n_clusters,
        reason=tuple(reason.get(cell) for cell in range(len(log_theta))),
        covariance=covariance,
    )


FEW_EFFECTIVE_CLUSTERS = 10
"""With fewer, intervals are wide and hardly known themselves."""

FEWEST_REPLICATES = 19
"""Below it, the quantile .95 lies outside the replicates."""

_SIGNS_AT_ONCE = 4_000_000  # signs at a time, 32 MB


def bootstrap(fit: ConditionalFit, strata: Strata, replicates: int, seed: int) -> ClusterErrors:
    """Bootstrap intervals beside the sandwich's standard errors.

    Args:
        fit: the estimate from `strata`.
        strata: the counts. The ascending order of the clusters, with the seed, decides their signs.
        replicates: B >= 19; with 1,000 the width of an interval is known to about 3 %.
        seed: of the random signs, >= 0.

    Raises:
        ValueError: there are fewer than 19 replicates.
    """
    if replicates < FEWEST_REPLICATES:
        raise ValueError(f"A bootstrap interval needs at least {FEWEST_REPLICATES} replicates, not {replicates}.")
    left_out = LeaveOneOut(fit, cluster_scores(fit, strata))
    sums = left_out.sums()
    statistic = _statistics(left_out, sums, np.random.default_rng(seed), replicates)
    widest = leave_one_out.t_quantile(np.ones(1))
    quantile = np.quantile(np.minimum(statistic, widest), leave_one_out.CONFIDENCE, axis=1, method="weibull")
    quantile = np.maximum(quantile, leave_one_out.t_quantile(sums.degrees))
    return errors_from_sums(fit.log_theta, fit.free_cells, sums, quantile)


def _statistics(left_out: LeaveOneOut, sums: ClusterSums, random: np.random.Generator, number: int) -> Floats:
    """|t*| of each free cell and replicate, shape (F, B)."""
    inverse, high = left_out.inverse, left_out.high
    low = left_out.clusters.scores[left_out.low]
    adjusted, _ = left_out.adjusted_scores(high)
    signs = _signs(random, len(high), number)
    total = adjusted.T @ signs
    n_rows = max(1, _SIGNS_AT_ONCE // number)
    for first in range(0, len(left_out.low), n_rows):
        rows = low[first : first + n_rows]
        total += (rows.T @ _signs(random, len(rows.indptr) - 1, number))[left_out.free]
    moved = inverse @ total
    of_low = inverse @ gram(low)[np.ix_(left_out.free, left_out.free)] @ inverse
    variance = np.repeat(np.diag(of_low)[:, np.newaxis], number, axis=1)
    for score, sign, cluster in zip(adjusted, signs, high.tolist(), strict=True):
        without = left_out.without(cluster)
        again = np.outer(score, sign)
        again[without.cells] -= without.information @ moved[without.cells]
        variance += (inverse @ without.adjust(again)) ** 2
    spread = sums.correction[:, np.newaxis] * np.sqrt(variance)
    # Two clusters of opposite sign agree perfectly after the move: nothing is left to studentise by.
    return np.divide(np.abs(moved), spread, out=np.full_like(moved, np.inf), where=spread > 0)


def _signs(random: np.random.Generator, n_rows: int, n_columns: int) -> Floats:
    return np.where(random.random((n_rows, n_columns)) < 0.5, -1.0, 1.0)  # noqa: PLR2004 - a fair coin
