"""Errors of the conditional estimate by query, pair or the bootstrap, and intervals from them.

A cluster (a query) g has the score s_g and the information H_g = sum_{j in g} C_j (diag(p_j) - p_j p_j'); H = sum H_g.

    x_g = H (H - H_g)^-1 s_g        its score adjusted for its leverage (x_g = s_g where tr(H^-1 H_g) < .01)
    d_g = H^-1 x_g                  what leaving the cluster out would change, to first order in all but that leverage
    a_gk = [H^-1 H_g H^-1]_kk,      G*_k = (sum_g a_gk)^2 / sum_g a_gk^2
    V_kl = sqrt((G_k - 1)/G_k (G_l - 1)/G_l) sum_g d_gk d_gl,     G_k = number of clusters with a_gk > 0
    log theta_k +- t_{.975, nu_k} sqrt(V_kk),     nu_k = max(min(G*_k, G_k - 1), 1)

Clusters that agree to the last click (two with the same counts do) say nothing about how far they could differ: a cell
whose V_kk is 0 gets no interval, instead of one of width 0.

CR3 is the jackknife's estimate (Bell & McCaffrey 2002; MacKinnon, Nielsen & Webb 2023); G* after Carter, Schnepel &
Steigerwald (2017): under Zipf's law thousands of queries can be worth a few dozen. The scores of G clusters sum to
zero, so they never hold more than G - 1 independent numbers.

How x_g is computed. s_g and x_g are 0 outside of the cells in which the cluster was shown. With few cells each cluster
is left out by itself: on its own cells (Woodbury), or on all cells by Cholesky where these are most of them, or where
some cells fall apart from the rest without it. With many cells, clusters of about as many cells are left out together,
on the cells that they have among them, by conjugate gradients on

    (H - H_g) d = s,    x = H d

preconditioned by H^-1: the eigenvalues of H^-1 (H - H_g) lie between 0 and 1, most of them close to 1, and a dozen
iterations give all digits. One costs a product with H^-1 for all clusters together, and a pass over the entries of the
clusters' units; H itself is not needed, as the directions p are kept with H p:

    r = s, z = H^-1 r, p = z, Hp = r;    A p = Hp - H_g p,  a = r'z / p'Ap,  x += a Hp,  r -= a Ap,
    z = H^-1 r,  b = r'z / (the one before),  p = z + b p,  Hp = r + b Hp

(Hestenes & Stiefel 1952; Nocedal & Wright 2006, algorithm 5.3).

The bootstrap. Each replicate gives every cluster g (a query) an independent sign w_g = +1 or -1 and lets it move the
estimate by its adjusted score x_g; the scores are then taken again at the moved estimate, and their clustered variance
(CR3, as for the estimate itself) studentises the move:

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

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from itertools import pairwise
from operator import add
from typing import Self

import numpy as np
import scipy

from posbias.core.arrays.count_table import CountTable, Flags, Floats, Integers, Members, Numbers, Sums, sum_by_number
from posbias.core.arrays.linalg import MANY, Sparse, by_unit_and_cell, gram, in_rows, unit_diagonal
from posbias.core.arrays.threads import thread_map
from posbias.core.counts.sufficient_statistics import Strata
from posbias.core.theta.conditional import ConditionalFit, LinkedCounts, laplacian, linked_counts

CONFIDENCE = 0.95

AGREEMENT = 1e-10
"""A standard error of log theta that is rounding: 10^20 clicks would not give it."""

ONE_CLUSTER = "one query alone identifies it"
AGREEING = "its queries agree to the last click, so that no error can be read from them"

FEW_EFFECTIVE_CLUSTERS = 10
"""With fewer, intervals are wide and hardly known themselves."""

FEWEST_REPLICATES = 19
"""Below it, the quantile .95 lies outside the replicates."""

_MEMBERS = 1 << 16  # members of clusters that are worked on at a time
_SIGNS_AT_ONCE = 4_000_000  # signs at a time, 32 MB
_LEVERAGE = 0.01  # below it, leaving a cluster out changes H^-1 by less than one percent
_WHOLE = 1 - 1e-9  # a cluster with less leverage cannot be the only one that identifies a direction
_NOTHING = 1e-12  # share of a cell's information that is rounding
_NO_LINK = 1e-9  # share of a cell's information that no longer links it: more digits are lost in H - H_g
_DIRECT = 0.5  # share of all cells from which on solving with H - H_g is cheaper than with the cluster's cells
_DENSE = 0.05  # share of non-zeros from which on a dense product is faster than a sparse one
_MANY_CELLS = 50  # from which on clusters are left out together, as matrices take longer than the interpreter
_TOGETHER = 256  # clusters
_COST_OF_ITERATIONS = 24  # of a cluster in operations, times the square of the number of cells
_COST_OF_CLUSTER = 4e6  # that is left out by itself, in operations, beside the cube of the number of its cells
_MOST_ITERATIONS = 60
_PRECISION = 1e-13  # of x, in the norm of (H - H_g)^-1, relative to the score
_BLOCK = 4_000_000  # numbers in one dense block of work, 32 MB


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

    def where(self, has: Flags, other: "Intervals") -> "Intervals":
        """These in some cells, shape (K,), and the other ones elsewhere."""
        names = ("std_error", "low", "high", "effective_clusters")
        numbers: dict[str, Floats] = {name: np.where(has, getattr(self, name), getattr(other, name)) for name in names}
        reason = np.where(has, np.array(self.reason, object), np.array(other.reason, object))
        return Intervals(**numbers, reason=tuple(reason.tolist()))


@dataclass(frozen=True)
class ClusterErrors(Intervals):
    """Standard errors and intervals by cluster."""

    degrees: Floats  # shape (K,), nu, degrees of freedom of the interval; NaN where there is no G*
    n_clusters: int  # G, clusters that hold a unit with a click and two identified cells
    covariance: Floats  # shape (F, F), V on the fit's free cells; NaN beside cells without interval


def t_quantile(degrees: Floats) -> Floats:
    """t_{.975, nu}: how many standard errors a 95 % interval reaches."""
    return scipy.special.stdtrit(degrees, (1 + CONFIDENCE) / 2)


@dataclass(frozen=True)
class ClusterSums(Sums):
    """Sums over clusters: parts of a log that share no cluster can be summed one by one."""

    outer: Floats  # shape (F, F), sum_g d_g d_g' over the free cells
    influence: Floats  # shape (F,), sum_g a_gk
    influence_squared: Floats  # shape (F,), sum_g a_gk^2
    clusters_of_cell: Floats  # shape (F,), G_k, clusters with a_gk > 0
    n_clusters: int  # that count
    alone: Flags  # shape (F,), cells that one of the clusters alone identifies

    @property
    def effective_clusters(self) -> Floats:
        """Effective number of clusters G*_k, shape (F,)."""
        return self.influence**2 / self.influence_squared

    @property
    def degrees(self) -> Floats:
        """nu_k, degrees of freedom, shape (F,)."""
        return np.maximum(np.minimum(self.effective_clusters, self.clusters_of_cell - 1), 1.0)

    @property
    def variance(self) -> Floats:
        """Variance V_kk, shape (F,)."""
        return np.diag(self.outer) * self.correction**2

    @property
    def covariance(self) -> Floats:
        """V, shape (F, F), in an array of its own."""
        covariance = np.outer(self.correction, self.correction)
        covariance *= self.outer
        return covariance

    @property
    def correction(self) -> Floats:
        """sqrt((G_k - 1) / G_k), shape (F,), 0 without clusters."""
        return np.sqrt(np.maximum(self.clusters_of_cell - 1, 0) / np.maximum(self.clusters_of_cell, 1))


def two_way_covariance(query: ClusterSums, column: ClusterSums, both: ClusterSums) -> Floats:
    """V = V_q + V_c - V_qc of the clusters of each way, and of those of both at once, shape (F, F).

    Negative eigenvalues are set to 0 (Cameron, Gelbach & Miller 2011). Where few clusters leave a variance below that
    of one way alone, it is raised to that, and its covariances with it (MacKinnon, Nielsen & Webb 2024).
    """
    ways = query.covariance, column.covariance
    values, vectors = np.linalg.eigh(ways[0] + ways[1] - both.covariance)
    covariance = (vectors * np.maximum(values, 0.0)) @ vectors.T
    variance = np.diag(covariance)
    one_way = np.maximum(np.diag(ways[0]), np.diag(ways[1]))
    if not (variance > 0).all():  # nothing to raise: what one way says
        covariance, variance = covariance + np.diag(one_way), variance + one_way
    with np.errstate(divide="ignore", invalid="ignore"):
        raised = np.where(variance > 0, np.sqrt(np.maximum(one_way / variance, 1.0)), 1.0)
    return covariance * np.outer(raised, raised)


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
    each = np.arange(table.n_units)
    scores = cluster_scores(fit, Strata(table, Members(each, each)))
    scores = replace(scores, copies=scores.linked.table.multiplicity)
    return errors_from_sums(fit.log_theta, fit.free_cells, LeaveOneOut(fit, scores).sums())


def sum_clusters(fit: ConditionalFit, strata: Strata) -> ClusterSums:
    """The sums over the clusters of some members: all members of these clusters, not necessarily all clusters.

    Args: as for `cluster_errors`.
    """
    blocks = list(_blocks_of_clusters(strata.members.cluster))
    if len(blocks) == 1 or len(fit.free_cells) >= MANY:  # each block has a dense matrix, and three products
        return LeaveOneOut(fit, cluster_scores(fit, strata)).sums()
    return reduce(add, thread_map(lambda block: _left_out(fit, strata, block).sums(), blocks))


def adjusted_scores(fit: ConditionalFit, strata: Strata) -> Iterator[tuple[Integers, Floats]]:
    """The numbers of some clusters that count, and their x_g = H (H - H_g)^-1 s_g, shape (B, F); all clusters in turn.

    Args: as for `cluster_errors`.
    """
    for block in _blocks_of_clusters(strata.members.cluster):
        left_out = _left_out(fit, strata, block)
        adjusted = left_out.clusters.scores.toarray()[:, left_out.free]
        adjusted[left_out.high], _ = left_out.adjusted_scores(left_out.high)
        yield left_out.clusters.numbers, adjusted


def _left_out(fit: ConditionalFit, strata: Strata, block: slice) -> "LeaveOneOut":
    """Leaving out each of the clusters of some members, which are all of these clusters."""
    units, unit = np.unique(strata.members.unit[block], return_inverse=True)
    part = Strata(strata.signatures.take(units), Members(unit, strata.members.cluster[block]))
    return LeaveOneOut(fit, cluster_scores(fit, part), threads=1)


def _blocks_of_clusters(cluster_of_member: Numbers) -> Iterator[slice]:
    """Runs of members of whole clusters; one run of all where the members are not in the order of their clusters."""
    change = np.flatnonzero(np.diff(cluster_of_member)) + 1
    ordered = bool((cluster_of_member[1:] >= cluster_of_member[:-1]).all())
    first, n_members = 0, len(cluster_of_member)
    while ordered and n_members - first > _MEMBERS:
        later = change[np.searchsorted(change, first + _MEMBERS) :]
        last = int(later[0]) if len(later) else n_members
        yield slice(first, last)
        first = last
    if first < n_members or not n_members:
        yield slice(first, n_members)


def cluster_scores(fit: ConditionalFit, strata: Strata, linked: LinkedCounts | None = None) -> "ClusterScores":
    """Score and information of each cluster that counts, in ascending order of the clusters' numbers.

    Args:
        fit: the estimate from `strata`.
        strata: the counts, and the clusters of their members; a unit's multiplicity is the number of its members.
        linked: the part of the counts that carries information; by default what the fit links.
    """
    linked = linked or linked_counts(strata.signatures, fit.linkage)
    clusters, members = strata.members.among(linked.units).occurrences(len(linked.units))
    table, shares = linked.table, linked.shares(fit.log_theta[linked.cells])
    scores = members @ by_unit_and_cell(table, table.clicks - table.spread(linked.unit_clicks) * shares)
    members.data *= linked.unit_clicks[members.indices]
    return ClusterScores(linked, shares, scores, members, np.ones(len(clusters)), clusters)


def errors_from_sums(
    log_theta: Floats,
    free_cells: Integers,
    sums: ClusterSums | tuple[ClusterSums, ClusterSums, ClusterSums],
    quantile: Floats | None = None,
) -> ClusterErrors:
    """Standard errors and intervals from the sums over all clusters.

    A cell that one cluster alone identifies gets no interval. The others do: without that cluster, the cells that it
    alone identifies fall apart from the rest, and leaving it out is well defined for the rest. Nor does a cell on
    which the clusters agree to the last click.

    Args:
        log_theta: shape (K,), the estimate; NaN where not identified.
        free_cells: shape (F,), the identified cells other than the references.
        sums: over all clusters; of two ways, those of each and of both at once (`two_way_covariance`): a cell has the
            degrees of freedom of the way that has fewer.
        quantile: shape (F,), half the width of the interval of log theta, in standard errors; by default t_{.975, nu}.
    """
    ways = (sums,) if isinstance(sums, ClusterSums) else sums[:2]
    covariance = sums.covariance if isinstance(sums, ClusterSums) else two_way_covariance(*sums)
    degrees = np.minimum.reduce([way.degrees for way in ways])
    effective = np.minimum.reduce([way.effective_clusters for way in ways])
    alone = np.logical_or.reduce([way.alone for way in ways])
    variance = np.maximum(np.diag(covariance), 0.0)
    without = alone | (variance <= AGREEMENT**2)
    covariance[without, :] = np.nan
    covariance[:, without] = np.nan
    center = np.where(without, np.nan, log_theta[free_cells])
    margin = (t_quantile(degrees) if quantile is None else quantile) * np.sqrt(variance)
    why = np.where(alone, ONE_CLUSTER, AGREEING)
    reason = dict(zip(free_cells[without].tolist(), map(str, why[without]), strict=True))

    def on_all_cells(of_free: Floats, of_reference: float) -> Floats:
        values = np.where(np.isnan(log_theta), np.nan, of_reference)
        values[free_cells] = of_free
        return values

    return ClusterErrors(
        std_error=on_all_cells(np.sqrt(np.diag(covariance)), 0.0),
        low=on_all_cells(np.exp(center - margin), 1.0),
        high=on_all_cells(upper_end(center + margin), 1.0),
        effective_clusters=on_all_cells(effective, np.nan),
        degrees=on_all_cells(degrees, np.nan),
        n_clusters=min(way.n_clusters for way in ways),
        reason=tuple(reason.get(cell) for cell in range(len(log_theta))),
        covariance=covariance,
    )


def bootstrap(fit: ConditionalFit, strata: Strata, replicates: int, seed: int) -> ClusterErrors:
    """Bootstrap intervals beside the sandwich's standard errors.

    Args:
        fit: the estimate from `strata`.
        strata: the counts. The ascending order of the clusters, with the seed, decides their signs.
        replicates: B >= 19; with 1,000 the width of an interval is known to about 3 %.
        seed: of the random signs, >= 0.
    """
    left_out, random = LeaveOneOut(fit, cluster_scores(fit, strata)), np.random.default_rng(seed)
    sums = left_out.sums()

    def signs(n_rows: int) -> Floats:
        return np.where(random.random((n_rows, replicates)) < 0.5, -1.0, 1.0)  # noqa: PLR2004 - a fair coin

    inverse, low = left_out.inverse, left_out.clusters.scores[left_out.low]
    adjusted, _ = left_out.adjusted_scores(left_out.high)
    of_high = signs(len(left_out.high))
    total = adjusted.T @ of_high
    n_rows = max(1, _SIGNS_AT_ONCE // replicates)
    for first in range(0, len(left_out.low), n_rows):
        rows = low[first : first + n_rows]
        total += (rows.T @ signs(len(rows.indptr) - 1))[left_out.free]
    moved = inverse @ total
    of_low = inverse @ gram(low)[np.ix_(left_out.free, left_out.free)] @ inverse
    variance = np.repeat(np.diag(of_low)[:, np.newaxis], replicates, axis=1)
    for score, sign, cluster in zip(adjusted, of_high, left_out.high.tolist(), strict=True):
        own, cells, kept = left_out.of_cluster(cluster)
        again = np.outer(score, sign)
        again[cells] -= own @ moved[cells]
        variance += (inverse @ left_out.adjusted(own, cells, kept, again)) ** 2
    spread = sums.correction[:, np.newaxis] * np.sqrt(variance)
    # |t*|, shape (F, B). Two clusters of opposite sign agree perfectly after the move: nothing is left to divide by.
    statistic = np.divide(np.abs(moved), spread, out=np.full_like(moved, np.inf), where=spread > 0)
    statistic = np.minimum(statistic, t_quantile(np.ones(1)))
    quantile = np.quantile(statistic, CONFIDENCE, axis=1, method="weibull")
    quantile = np.maximum(quantile, t_quantile(sums.degrees))
    return errors_from_sums(fit.log_theta, fit.free_cells, sums, quantile)


def low_and_high(leverage: Floats) -> tuple[Integers, Integers]:
    """The clusters that need not be left out one by one, as x_g = s_g to within a percent, and the others."""
    return np.flatnonzero(leverage < _LEVERAGE), np.flatnonzero(leverage >= _LEVERAGE)


@dataclass(frozen=True)
class ClusterScores:
    """Score and information of G clusters, in terms of S units: s_g, and H_g = sum_j w_gj (diag(p_j) - p_j p_j')."""

    linked: LinkedCounts  # the units and the I identified cells
    shares: Floats  # shape (R,), p_je of each entry of `linked.table`
    scores: Sparse  # shape (G, I), s_g on the identified cells
    weight: Sparse  # shape (G, S), w_gj, the clicks on unit j in cluster g
    copies: Floats  # shape (G,), how many equal clusters each row stands for
    numbers: Integers  # shape (G,), the clusters' numbers, ascending

    @property
    def n_rows(self) -> int:
        """Number of different clusters G."""
        return len(self.copies)

    def information(self, rows: Integers) -> Iterator[tuple[Integers, Floats]]:
        """H_g on the identified cells, shape (B, I, I), of B of the given clusters at a time, and which they are."""
        n_cells, indptr = self.linked.table.n_cells, self.weight.indptr
        size = np.cumsum((indptr[rows + 1] - indptr[rows] + n_cells) * n_cells)
        for some in np.split(rows, np.flatnonzero(np.diff(size // _BLOCK)) + 1) if len(rows) else ():
            weight = self.weight[some]
            units = weight.indices.astype(np.int64)
            entries, start = self.linked.table.entry_indices(units)
            shares = self.shares[entries] * np.repeat(np.sqrt(weight.data), np.diff(start))
            table = in_rows(shares, self.linked.table.cell[entries], start, n_cells)
            table = table if len(units) * n_cells > 2 * _BLOCK else table.toarray()
            bounds = pairwise(weight.indptr.tolist())
            yield some, laplacian(np.stack([gram(table[first:last]) for first, last in bounds]))


class WholeInformation:
    """The information of all clusters together, from which one cluster's can be taken away.

    Attributes:
        information: shape (F, F), H.
        inverse: shape (F, F), H^-1.
        scale: shape (F,), that makes H's diagonal 1.
        held: whether a penalty in H holds all cells, so that none falls apart without any one cluster.
    """

    def __init__(self, information: Floats, inverse: Floats, *, held: bool = False) -> None:
        self.information, self.inverse, self.held = information, inverse, held
        self.scale = 1 / np.sqrt(np.diag(information))
        # Minus an entry of H is what links two cells, and a row's sum what links its cell with the reference.
        self._to_reference = information.sum(axis=1)

    def linked_without(self, own: Floats, cells: Integers, leverage: float) -> Flags:
        """Free cells that H - H_g still links with their reference, shape (F,); it is singular where some are not.

        Args:
            own: shape (T, T), H_g on the free cells that the cluster was shown in.
            cells: shape (T,), those cells' numbers among the free ones, ascending.
            leverage: tr(H^-1 H_g).
        """
        if leverage < _WHOLE or self.held:
            return np.ones(len(self.scale), np.bool_)
        linked, place = self._to_reference * self.scale**2 > _NO_LINK, np.full(len(self.scale), -1)
        linked[cells] = (self._to_reference[cells] - own.sum(axis=1)) * self.scale[cells] ** 2 > _NO_LINK
        place[cells] = np.arange(len(cells))
        new = np.flatnonzero(linked)
        while len(new) and not linked.all():
            left = np.flatnonzero(~linked)
            link = self.information[np.ix_(new, left)]
            row, column = np.flatnonzero(place[new] >= 0), np.flatnonzero(place[left] >= 0)
            link[np.ix_(row, column)] -= own[np.ix_(place[new[row]], place[left[column]])]
            new = left[(link * self.scale[new, np.newaxis] * self.scale[left] < -_NO_LINK).any(axis=0)]
            linked[new] = True
        return linked

    def adjusted(self, own: Floats, cells: Integers, kept: Flags, scores: Floats) -> Floats:
        """H (H - H_g)^-1 s for one s or several, shape (F,) or (F, B), zero outside of the cluster's cells.

        Args:
            own: as for `linked_without`.
            cells: as for `linked_without`.
            kept: as from `linked_without`.
            scores: s.
        """
        all_kept, adjusted = bool(kept.all()), np.zeros_like(scores)
        if all_kept and len(cells) <= _DIRECT * len(kept):
            # Woodbury, M the block of H^-1 on the cluster's cells: x = (I - H_g M)^-1 s
            shrunk = np.eye(len(cells)) - own @ self.inverse[np.ix_(cells, cells)]
            adjusted[cells] = np.linalg.solve(shrunk, scores[cells])
            return adjusted
        # (H - H_g)^-1 s on the kept cells, solved at unit diagonal; 0 on the others
        scale, rest = self.scale, unit_diagonal(self.information)[0]
        rest[np.ix_(cells, cells)] -= own * np.outer(scale[cells], scale[cells])
        factor = scipy.linalg.cho_factor(rest if all_kept else rest[np.ix_(kept, kept)], lower=True, overwrite_a=True)
        adjusted[kept] = (scale[kept] * scipy.linalg.cho_solve(factor, (scale[kept] * scores[kept].T).T).T).T
        return self.information @ adjusted

    def strongest_links(self) -> tuple[Integers, Floats, Floats]:
        """A spanning tree of the cells and their reference, grown by the strongest link each time (Prim 1957).

        Returns:
            For each cell the one that it hangs from, -1 for the reference; how strong that link is, as a share of the
            information; and what makes information such a share. Each has the shape (F,).
        """
        strength, parent = self._to_reference * self.scale**2, np.full(len(self.scale), -1)
        left = np.ones(len(strength), np.bool_)
        for _ in range(len(strength)):
            cell = int(np.argmax(np.where(left, strength, -np.inf)))
            left[cell] = False
            further = -self.information[cell] * self.scale[cell] * self.scale
            stronger = left & (further > strength)
            strength[stronger], parent[stronger] = further[stronger], cell
        return parent, strength, self.scale * np.where(parent < 0, self.scale, self.scale[parent])


_Adjusted = tuple[Integers, Integers, Floats, Flags]
"""Of B clusters: which, shape (B,); the free cells outside of which all their adjusted scores are 0, shape (T,); x_g on
these, shape (B, T); and the cells that one of them alone identifies, shape (F,)."""


class LeaveOneOut(WholeInformation):
    """The adjusted scores x_g of some clusters, and their sums.

    Attributes:
        free: shape (F,), numbers of the free cells among the identified ones.
        low: the clusters whose leverage tr(H^-1 H_g) is so small that x_g = s_g.
        high: the others.
        threads: how many of them are worked on at once; None: as many as there are.
    """

    def __init__(
        self, fit: ConditionalFit, clusters: ClusterScores, *, threads: int | None = None, held: bool = False
    ) -> None:
        super().__init__(fit.information, fit.inverse, held=held)
        self.threads = threads
        self.clusters = clusters
        self.linked = clusters.linked
        self.free = clusters.linked.free
        self._free_cell = np.full(self.linked.table.n_cells, -1)
        self._free_cell[self.free] = np.arange(len(self.free))
        self._leverage, self._sums = self._influence()
        self.low, self.high = low_and_high(self._leverage)

    def sums(self) -> ClusterSums:
        """Sums over the clusters, those with much leverage one by one."""
        copies = self.clusters.copies
        scores = self.clusters.scores[self.low]
        scores.data *= np.repeat(np.sqrt(copies[self.low]), np.diff(scores.indptr))
        if len(self.free) >= max(MANY, self.clusters.n_rows):  # two products of F x F cost more than all d_g
            adjusted, alone = self.adjusted_scores(self.high)
            adjusted *= np.sqrt(copies[self.high])[:, np.newaxis]
            change = np.concatenate([scores.toarray()[:, self.free], adjusted]) @ self.inverse
            return replace(self._sums, outer=change.T @ change, alone=alone)
        total = gram(scores)[np.ix_(self.free, self.free)]
        alone = np.zeros(len(self.free), np.bool_)
        for rows, cells, of_rows, of_rows_alone in self._left_out(self.high):
            adjusted = of_rows * np.sqrt(copies[rows])[:, np.newaxis]
            total[np.ix_(cells, cells) if len(cells) < len(total) else ...] += adjusted.T @ adjusted
            alone |= of_rows_alone
        total = self.inverse @ total
        return replace(self._sums, outer=total @ self.inverse, alone=alone)

    def adjusted_scores(self, rows: Integers) -> tuple[Floats, Flags]:
        """x_g of the given clusters, shape (len(rows), F), and the cells that one of them alone identifies."""
        place = np.empty(self.clusters.n_rows, np.int64)
        place[rows] = np.arange(len(rows))
        adjusted, alone = np.zeros((len(rows), len(self.free))), np.zeros(len(self.free), np.bool_)
        for some, cells, scores, of_some in self._left_out(rows):
            adjusted[np.ix_(place[some], cells)] = scores
            alone |= of_some
        return adjusted, alone

    def _left_out(self, rows: Integers) -> Iterator[_Adjusted]:
        """The given clusters, some at a time; with many cells those together that reach equally far down."""
        if len(self.free) < _MANY_CELLS:
            scaled = unit_diagonal(self.information)[0]
            for some, information in self.clusters.information(rows):
                scores = self.clusters.scores[some].toarray()[:, self.free]
                # H (H - H_g)^-1 s at unit diagonal, where no cluster is all that says something about a direction
                together = (self._leverage[some] < _WHOLE) | self.held
                rest = information[np.ix_(together, self.free, self.free)] * -np.outer(self.scale, self.scale) + scaled
                scaled_scores: Floats = (scores[together] * self.scale)[:, :, np.newaxis]
                change = np.linalg.solve(rest, scaled_scores)[:, :, 0]
                adjusted = np.empty_like(scores)
                adjusted[together] = (change * self.scale) @ self.information
                yield self._one_by_one(some, np.arange(len(self.free)), scores, adjusted, ~together)
            return
        weight, table = self.clusters.weight[rows], self.linked.table
        last_cell = table.cell[table.start[1:] - 1]
        last = np.maximum.reduceat(last_cell[weight.indices], weight.indptr[:-1]) if len(rows) else rows
        ordered = rows[np.argsort(last, kind="stable")]
        blocks = (ordered[first : first + _TOGETHER] for first in range(0, len(rows), _TOGETHER))
        yield from thread_map(self._together, blocks, self.threads)

    def _together(self, rows: Integers) -> _Adjusted:
        """Some clusters, on the cells that they have among them."""
        weight, table = self.clusters.weight[rows], self.linked.table
        entries, start = table.entry_indices(weight.indices.astype(np.int64))
        member = np.repeat(np.arange(len(start) - 1), np.diff(start))
        kept = np.flatnonzero(self._free_cell[table.cell[entries]] >= 0)
        entries, member = entries[kept], member[kept]
        cells, column = np.unique(self._free_cell[table.cell[entries]], return_inverse=True)
        first = np.flatnonzero(np.diff(member, prepend=-1))
        row = np.repeat(np.arange(len(rows)), np.diff(weight.indptr))
        place = row[member] * len(cells) + column
        given = self.clusters.scores[rows].toarray()[:, self.free[cells]]
        own_cells = np.bincount(np.unique(place) // len(cells)).astype(np.float64)
        if (own_cells**3 + _COST_OF_CLUSTER).sum() < _COST_OF_ITERATIONS * len(rows) * len(cells) ** 2:
            return self._one_by_one(rows, cells, given, np.empty_like(given), np.ones(len(rows), np.bool_))
        # What a cluster alone links falls apart from the rest without it, and says nothing about the rest.
        cut = np.flatnonzero((self._leverage[rows] >= _WHOLE) & self._loses_a_link[rows])
        kept_without = {row: self.of_cluster(int(rows[row]))[2] for row in cut.tolist()}
        cut_off = {row: ~kept for row, kept in kept_without.items() if not kept.all()}
        for row, lost in cut_off.items():
            given[row, lost[cells]] = 0.0
        share, length = self.clusters.shares[entries], np.diff(first, append=len(entries))
        clicks = np.repeat(weight.data[member[first]], length)

        def information_times(vectors: Floats) -> Floats:
            """H_b v_b = sum_j w_bj (p_j * v - p_j (p_j'v)) of each cluster, both of shape (B, T)."""
            product = share * vectors.ravel()[place]
            mean = np.add.reduceat(product, first) if len(product) else product
            product -= share * np.repeat(mean, length)
            product *= clicks
            return sum_by_number(place, product, vectors.size).reshape(vectors.shape)

        adjusted, solved = _adjust_together(given, self.inverse[np.ix_(cells, cells)], information_times)
        _, _, adjusted, alone = self._one_by_one(rows, cells, given, adjusted, ~solved)
        for row, lost in cut_off.items():
            change = np.where(lost, 0.0, adjusted[row] @ self.inverse[cells])
            adjusted[row] = (self.information @ change)[cells]
            alone[lost] = True
        return rows, cells, adjusted, alone

    def _one_by_one(self, rows: Integers, cells: Integers, scores: Floats, adjusted: Floats, todo: Flags) -> _Adjusted:
        """Some clusters with the scores s_g on given cells; those that are still to be done by themselves."""
        alone, whole = np.zeros(len(self.free), np.bool_), np.zeros(len(self.free))
        for row in np.flatnonzero(todo).tolist():
            own, own_cells, kept = self.of_cluster(int(rows[row]))
            alone |= ~kept
            whole[cells] = scores[row]
            adjusted[row] = self.adjusted(own, own_cells, kept, whole)[cells]
        return rows, cells, adjusted, alone

    @cached_property
    def _loses_a_link(self) -> Flags:
        """The clusters without which a link of `strongest_links` is gone, shape (G,): others cut no cell off."""
        table, shares = self.linked.table, self.clusters.shares
        parent, strength, scale = self.strongest_links()
        hangs_from = np.arange(table.n_cells)
        hangs_from[self.free] = np.where(parent < 0, self.linked.reference_of[self.free], self.free[parent])
        key = table.entry_keys
        link = key - table.cell + hangs_from[table.cell]
        at = np.minimum(np.searchsorted(key, link), len(key) - 1)
        own_link = np.where((key[at] == link) & (self._free_cell[table.cell] >= 0), shares * shares[at], 0.0)
        own = self.clusters.weight @ by_unit_and_cell(table, own_link)
        cell = self._free_cell[own.indices]
        gone = (own.data > 0) & (strength[cell] - own.data * scale[cell] <= _NO_LINK)
        loses = np.zeros(self.clusters.n_rows, np.bool_)
        loses[np.repeat(np.arange(len(loses)), np.diff(own.indptr))[gone]] = True
        return loses

    def of_cluster(self, cluster: int) -> tuple[Floats, Integers, Flags]:
        """H_g of one cluster on its T free cells, their numbers, and the cells that are linked without it."""
        weight = self.clusters.weight
        first, last = weight.indptr[cluster : cluster + 2]
        units = weight.indices[first:last].astype(np.int64)
        entries, _ = self.linked.table.entry_indices(units)
        own = self.linked.table.take(units)
        cells, column = np.unique(own.cell, return_inverse=True)
        own = replace(own, n_cells=len(cells), cell=column)
        rows = by_unit_and_cell(own, self.clusters.shares[entries] * own.spread(np.sqrt(weight.data[first:last])))
        # densely unless nearly all of it is zero
        coupling = gram(rows if _DENSE * own.n_units * own.n_cells > len(own.cell) else rows.toarray())
        kept = self.linked.reference_of[cells] != cells
        information, free = laplacian(coupling)[np.ix_(kept, kept)], np.searchsorted(self.free, cells[kept])
        return information, free, self.linked_without(information, free, self._leverage[cluster])

    def _influence(self) -> tuple[Floats, ClusterSums]:
        """Leverage tr(H^-1 H_g), shape (G,), and the sums that need no cluster to be left out.

        With q_e = [H^-1]_ek, a click on unit j has a_jk = sum_e p_je q_e^2 - (sum_e p_je q_e)^2, the variance of q
        under p_j. Done in blocks of columns k, to bound the memory.
        """
        table, weight, copies = self.linked.table, self.clusters.weight, self.clusters.copies
        n_free = len(self.free)
        column = self._free_cell[table.cell]
        kept = np.flatnonzero(column >= 0)
        start = np.concatenate([np.zeros(1, np.int64), np.cumsum(column >= 0, dtype=np.int64)])[table.start]
        unit, column, share = table.unit_of_entry[kept], column[kept], self.clusters.shares[kept]
        shares = in_rows(share, column, start, n_free)
        unit_leverage = sum_by_number(unit, share * np.diag(self.inverse)[column], table.n_units)
        by_column = np.argsort(column.astype(np.min_scalar_type(n_free)), kind="stable")  # by radix where they are few
        bounds = np.searchsorted(column[by_column], np.arange(n_free + 1))
        sums, squares, number = np.zeros((3, n_free))
        width = max(1, _BLOCK // max(table.n_units, self.clusters.n_rows, 1))
        for first in range(0, n_free, width):
            columns = slice(first, min(first + width, n_free))
            q = self.inverse[:, columns]
            mean = shares @ q
            those = by_column[bounds[columns.start] : bounds[columns.stop]]
            product = share[those] * mean[unit[those], column[those] - first]
            unit_leverage -= sum_by_number(unit[those], product, table.n_units)
            of_click = np.maximum(shares @ q**2 - mean**2, 0.0)
            influence = weight @ of_click
            sums[columns] = copies @ influence
            squares[columns] = copies @ influence**2
            number[columns] = copies @ (influence > _NOTHING * np.diag(self.inverse)[columns])
        no_cell = np.zeros(n_free, np.bool_)
        whole = ClusterSums(np.zeros((0, 0)), sums, squares, number, round(float(copies.sum())), no_cell)
        return weight @ unit_leverage, whole


def _adjust_together(
    scores: Floats, inverse: Floats, information_times: Callable[[Floats], Floats]
) -> tuple[Floats, Flags]:
    """x_b = H (H - H_b)^-1 s_b of B clusters.

    Args:
        scores: s, shape (B, F).
        inverse: H^-1, shape (F, F).
        information_times: H_b v_b of each cluster, both of shape (B, F).

    Returns:
        x, shape (B, F), and for which clusters it is exact to all digits, shape (B,); not where H - H_b is singular,
        or nearly so.
    """
    x, r = np.zeros_like(scores), scores.copy()
    p = r @ inverse
    of_x = r.copy()  # H p
    before = first = np.einsum("bk,bk->b", r, p)
    todo = first > 0
    for _ in range(_MOST_ITERATIONS):
        if not todo.any():
            break
        change = of_x - information_times(p)
        bent = np.einsum("bk,bk->b", p, change)
        going = todo & (bent > 0)
        step = np.divide(before, bent, out=np.zeros_like(bent), where=going)[:, np.newaxis]
        x += step * of_x
        r -= step * change
        z = r @ inverse
        after = np.einsum("bk,bk->b", r, z)
        todo = going & (after > _PRECISION**2 * first)
        ratio = np.divide(after, before, out=np.zeros_like(after), where=todo)[:, np.newaxis]
        p = z + ratio * p
        of_x = r + ratio * of_x
        before = after
    return x, (first <= 0) | ~todo & (before <= _PRECISION**2 * first)
