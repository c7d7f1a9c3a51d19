"""Standard errors and intervals of the conditional estimate, clustered by query or pair, or by the bootstrap.

A cluster (a query) g has the score s_g and the information H_g = sum_{j in g} C_j (diag(p_j) - p_j p_j'); H = sum H_g.

    x_g = H (H - H_g)^-1 s_g        leverage-adjusted score (x_g = s_g where tr(H^-1 H_g) < .01)
    d_g = H^-1 x_g                  change of log theta without the cluster, to first order in all but the leverage
    a_gk = [H^-1 H_g H^-1]_kk,      G*_k = (sum_g a_gk)^2 / sum_g a_gk^2
    V_kl = sqrt((G_k - 1)/G_k (G_l - 1)/G_l) sum_g d_gk d_gl,     G_k = number of clusters with a_gk > 0
    log theta_k +- t_{.975, nu_k} sqrt(V_kk),     nu_k = max(min(G*_k, G_k - 1), 1)

Identical clusters (two with the same counts) carry no information on the variance between clusters: a cell whose V_kk
is 0 gets no interval, instead of an interval of width 0.

CR3 is the jackknife's estimate (Bell & McCaffrey 2002; MacKinnon, Nielsen & Webb 2023); G* after Carter, Schnepel &
Steigerwald (2017): under Zipf's law thousands of queries can be worth a few dozen. The scores of G clusters sum to
zero, so they never hold more than G - 1 independent numbers.

Computation of x_g. s_g and x_g are 0 outside of the cells in which the cluster was shown. With few cells, each cluster
is left out by itself: on its own cells (Woodbury), or by Cholesky on all cells where its own cells are most of them or
are all that link other cells to the reference. With many cells, blocks of clusters with similar last cells are left out
together, on the union of their cells, by conjugate gradients on

    (H - H_g) d = s,    x = H d

preconditioned by H^-1: the eigenvalues of H^-1 (H - H_g) lie between 0 and 1, most of them close to 1, and a dozen
iterations reach machine precision. An iteration costs one product with H^-1 for the whole block, and one pass over the
entries of the clusters' units; H itself is not needed, as H p is updated beside the directions p:

    r = s, z = H^-1 r, p = z, Hp = r;    A p = Hp - H_g p,  a = r'z / p'Ap,  x += a Hp,  r -= a Ap,
    z = H^-1 r,  b = r'z / (previous r'z),  p = z + b p,  Hp = r + b Hp

(Hestenes & Stiefel 1952; Nocedal & Wright 2006, algorithm 5.3).

Bootstrap. Each replicate draws an independent sign w_g = +1 or -1 for every cluster g (a query), which moves the
estimate by w_g x_g; the scores are recomputed at the moved estimate, and their clustered variance (CR3, as for the
estimate itself) studentises the move:

    delta = H^-1 sum_g w_g x_g,    d*_g = (H - H_g)^-1 (w_g x_g - H_g delta),    t*_k = delta_k / sqrt(V*_kk)
    V*_kk = (G_k - 1)/G_k sum_g d*_gk^2,    interval  log theta_k +- q_k sqrt(V_kk)

with q_k the .95 quantile of |t*_k|, at least the t_{.975, nu_k} of `cluster_errors`, and at most t_{.975, 1}. For
clusters of small leverage, x_g = s_g and d*_g = w_g H^-1 x_g. No replicate is refitted, so every cell stays linked.

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

SMALLEST_ERROR = 1e-10
"""Standard errors of log theta up to this are rounding: 10^20 clicks would not reach it."""

ONE_CLUSTER = "one query alone identifies it"
IDENTICAL_CLUSTERS = "its queries agree to the last click, so that no error can be read from them"

FEW_EFFECTIVE_CLUSTERS = 10
"""With fewer, intervals are wide and their own width is uncertain."""

FEWEST_REPLICATES = 19
"""Below it, the quantile .95 lies outside the replicates."""

ROUNDING = 1e-12
"""Share of the information on a cell or a direction that is rounding."""

_MEMBERS = 1 << 16  # least members in a block of clusters
_SIGNS = 4_000_000  # signs per block, 32 MB
_LEVERAGE = 0.01  # below it, leaving a cluster out changes H^-1 by less than one percent
_FULL_LEVERAGE = 1 - 1e-9  # a cluster with less cannot be the only one that identifies a direction
_NO_LINK = 1e-9  # share of a cell's information that is too small to link it: more digits are lost in H - H_g
_DIRECT = 0.5  # share of all cells from which on solving with H - H_g is cheaper than with the cluster's cells
_DENSE = 0.05  # share of non-zeros from which on a dense product is faster than a sparse one
_MANY_CELLS = 50  # from which on clusters are left out in blocks, as matrices take longer than the interpreter
_CLUSTERS = 256  # per block
_COST_OF_ITERATIONS = 24  # operations per cluster, times the square of the number of cells
_COST_OF_CLUSTER = 4e6  # operations per cluster left out by itself, besides the cube of its number of cells
_MOST_ITERATIONS = 60
_PRECISION = 1e-13  # of x, in the norm of (H - H_g)^-1, relative to the score
_BLOCK = 4_000_000  # numbers per dense block, 32 MB


def finite_exp(log_theta: Floats) -> Floats:
    """exp(log theta); NaN where it overflows."""
    with np.errstate(over="ignore"):
        theta = np.exp(log_theta)
    return np.where(np.isinf(theta), np.nan, theta)


@dataclass(frozen=True)
class Intervals:
    """Standard errors and 95 % intervals, each array of shape (K,)."""

    std_error: Floats  # of log theta; 0 at a reference, NaN where there is none
    low: Floats  # lower end of the 95 % interval of theta; 1 at a reference, NaN where there is none
    high: Floats  # its upper end; the upper limit alone where a cell has no clicks
    effective_clusters: Floats  # G*, how many equal clusters the data are worth; NaN at a reference and without error
    reason: tuple[str | None, ...]  # why a cell lacks an estimate or interval, or which assumption its estimate needs

    @classmethod
    def unknown(cls, reason: tuple[str | None, ...]) -> Self:
        """NaN in every cell, for methods without standard errors."""
        unknown = np.full(len(reason), np.nan)
        return cls(unknown, unknown, unknown, unknown, reason)

    def half_width(self, log_theta: Floats) -> Floats:
        """Distance of log theta, shape (K,), from the further end of its interval, shape (K,).

        Intervals that `compare_contexts` moved towards other contexts are not symmetric; all others are.
        """
        with np.errstate(divide="ignore", invalid="ignore"):  # low may be 0
            return np.maximum(np.log(self.high) - log_theta, log_theta - np.log(self.low))

    def where(self, mask: Flags, other: "Intervals") -> "Intervals":
        """These intervals in the cells of the mask, shape (K,), and `other` elsewhere."""
        names = ("std_error", "low", "high", "effective_clusters")
        numbers: dict[str, Floats] = {name: np.where(mask, getattr(self, name), getattr(other, name)) for name in names}
        reason = np.where(mask, np.array(self.reason, object), np.array(other.reason, object))
        return Intervals(**numbers, reason=tuple(reason.tolist()))


@dataclass(frozen=True)
class ClusterErrors(Intervals):
    """Clustered standard errors and intervals."""

    degrees: Floats  # shape (K,), nu, degrees of freedom of the interval; NaN where G* is NaN
    n_clusters: int  # G, clusters with a unit that has a click and two identified cells
    covariance: Floats  # shape (F, F), V on the fit's free cells; NaN beside cells without interval


def t_quantile(degrees: Floats) -> Floats:
    """t_{.975, nu}: half the width of a 95 % interval in standard errors."""
    return scipy.special.stdtrit(degrees, (1 + CONFIDENCE) / 2)


@dataclass(frozen=True)
class ClusterSums(Sums):
    """Sums over clusters; those of parts of a log without common clusters add up."""

    outer: Floats  # shape (F, F), sum_g d_g d_g' over the free cells
    influence: Floats  # shape (F,), sum_g a_gk
    influence_squared: Floats  # shape (F,), sum_g a_gk^2
    clusters_of_cell: Floats  # shape (F,), G_k, clusters with a_gk > 0
    n_clusters: int  # G
    alone: Flags  # shape (F,), cells that a single cluster identifies

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
        """V, shape (F, F), a new array."""
        covariance = np.outer(self.correction, self.correction)
        covariance *= self.outer
        return covariance

    @property
    def correction(self) -> Floats:
        """sqrt((G_k - 1) / G_k), shape (F,), 0 without clusters."""
        return np.sqrt(np.maximum(self.clusters_of_cell - 1, 0) / np.maximum(self.clusters_of_cell, 1))


def two_way_covariance(query: ClusterSums, column: ClusterSums, both: ClusterSums) -> Floats:
    """Two-way clustered V = V_q + V_c - V_qc, of queries, columns and their intersections, shape (F, F).

    Negative eigenvalues are set to 0 (Cameron, Gelbach & Miller 2011). A variance below the larger one-way variance is
    raised to it, and its covariances by the same factor (MacKinnon, Nielsen & Webb 2024).
    """
    ways = query.covariance, column.covariance
    values, vectors = np.linalg.eigh(ways[0] + ways[1] - both.covariance)
    covariance = (vectors * np.maximum(values, 0.0)) @ vectors.T
    variance = np.diag(covariance)
    one_way = np.maximum(np.diag(ways[0]), np.diag(ways[1]))
    if not (variance > 0).all():  # 0 cannot be raised by a factor
        covariance, variance = covariance + np.diag(one_way), variance + one_way
    with np.errstate(divide="ignore", invalid="ignore"):
        raised = np.where(variance > 0, np.sqrt(np.maximum(one_way / variance, 1.0)), 1.0)
    return covariance * np.outer(raised, raised)


def cluster_errors(fit: ConditionalFit, strata: Strata) -> ClusterErrors:
    """Standard errors clustered by the groups of the members, usually queries.

    Args:
        fit: the estimate from `strata`.
        strata: the counts, and the clusters of their members; a unit's multiplicity is the number of its members.
    """
    return errors_from_sums(fit.log_theta, fit.free_cells, sum_clusters(fit, strata))


def pair_errors(fit: ConditionalFit, table: CountTable) -> ClusterErrors:
    """Standard errors clustered by member (pair or stratum): `cluster_errors` with each member a cluster.

    Equal members have equal scores, so that the signatures and their multiplicities are enough. Too small where
    the pairs of a query are correlated.

    Args:
        fit: the estimate from `table`.
        table: counts per unit; a unit's multiplicity is the number of its members.
    """
    each = np.arange(table.n_units)
    scores = cluster_scores(fit, Strata(table, Members(each, each)))
    scores = replace(scores, copies=scores.linked.table.multiplicity)
    return errors_from_sums(fit.log_theta, fit.free_cells, LeaveOneOut(fit, scores).sums())


def sum_clusters(fit: ConditionalFit, strata: Strata) -> ClusterSums:
    """Sums over the clusters of a part of a log that holds whole clusters.

    Args: as for `cluster_errors`.
    """
    blocks = list(_cluster_blocks(strata.members.cluster))
    if len(blocks) == 1 or len(fit.free_cells) >= MANY:  # each block has a dense matrix, and three products
        return LeaveOneOut(fit, cluster_scores(fit, strata)).sums()
    return reduce(add, thread_map(lambda block: _leave_out_in_block(fit, strata, block).sums(), blocks))


def adjusted_scores(fit: ConditionalFit, strata: Strata) -> Iterator[tuple[Integers, Floats]]:
    """Yield clusters block by block: their numbers, shape (B,), and x_g = H (H - H_g)^-1 s_g, shape (B, F).

    Args: as for `cluster_errors`.
    """
    for block in _cluster_blocks(strata.members.cluster):
        left_out = _leave_out_in_block(fit, strata, block)
        adjusted = left_out.clusters.scores.toarray()[:, left_out.free]
        adjusted[left_out.high], _ = left_out.adjusted_scores(left_out.high)
        yield left_out.clusters.numbers, adjusted


def _leave_out_in_block(fit: ConditionalFit, strata: Strata, block: slice) -> "LeaveOneOut":
    """`LeaveOneOut` of a block of members, which holds whole clusters."""
    units, unit = np.unique(strata.members.unit[block], return_inverse=True)
    part = Strata(strata.signatures.take(units), Members(unit, strata.members.cluster[block]))
    return LeaveOneOut(fit, cluster_scores(fit, part), threads=1)


def _cluster_blocks(cluster_of_member: Numbers) -> Iterator[slice]:
    """Split members into blocks of whole clusters; a single block where members are not sorted by cluster."""
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
    """Score and information of each cluster with a linked unit, by ascending number of the cluster.

    Args:
        fit: the estimate from `strata`.
        strata: the counts, and the clusters of their members; a unit's multiplicity is the number of its members.
        linked: the counts that carry information; by default those that the fit links.
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

    No interval for cells that a single cluster identifies, or whose clusters are identical. The other cells of such a
    cluster have intervals: without it, they are separate from the cells it identifies, and leaving it out is well
    defined for them.

    Args:
        log_theta: shape (K,), the estimate; NaN where not identified.
        free_cells: shape (F,), the identified cells other than the references.
        sums: over all clusters; two-way, the arguments of `two_way_covariance`: a cell has the smaller degrees of
            freedom of its two ways.
        quantile: shape (F,), half the width of the interval of log theta, in standard errors; by default t_{.975, nu}.
    """
    ways = (sums,) if isinstance(sums, ClusterSums) else sums[:2]
    covariance = sums.covariance if isinstance(sums, ClusterSums) else two_way_covariance(*sums)
    degrees = np.minimum.reduce([way.degrees for way in ways])
    effective = np.minimum.reduce([way.effective_clusters for way in ways])
    alone = np.logical_or.reduce([way.alone for way in ways])
    variance = np.maximum(np.diag(covariance), 0.0)
    without = alone | (variance <= SMALLEST_ERROR**2)
    covariance[without, :] = np.nan
    covariance[:, without] = np.nan
    center = np.where(without, np.nan, log_theta[free_cells])
    margin = (t_quantile(degrees) if quantile is None else quantile) * np.sqrt(variance)
    reason = np.full(len(log_theta), None, object)
    reason[free_cells[without]] = np.where(alone, ONE_CLUSTER, IDENTICAL_CLUSTERS)[without].tolist()

    def all_cells(free: Floats, reference: float) -> Floats:
        values = np.where(np.isnan(log_theta), np.nan, reference)
        values[free_cells] = free
        return values

    return ClusterErrors(
        std_error=all_cells(np.sqrt(np.diag(covariance)), 0.0),
        low=all_cells(np.exp(center - margin), 1.0),
        high=all_cells(finite_exp(center + margin), 1.0),
        effective_clusters=all_cells(effective, np.nan),
        degrees=all_cells(degrees, np.nan),
        n_clusters=min(way.n_clusters for way in ways),
        reason=tuple(reason.tolist()),
        covariance=covariance,
    )


def bootstrap(fit: ConditionalFit, strata: Strata, replicates: int, seed: int) -> ClusterErrors:
    """Bootstrap intervals with the standard errors of `cluster_errors`.

    Args:
        fit: the estimate from `strata`.
        strata: the counts. Signs depend on the seed and the ascending order of the clusters' numbers.
        replicates: B >= 19; with 1,000 the Monte Carlo error of an interval's width is about 3 %.
        seed: of the random signs, >= 0.
    """
    left_out, random = LeaveOneOut(fit, cluster_scores(fit, strata)), np.random.default_rng(seed)
    sums = left_out.sums()

    def signs(n_rows: int) -> Floats:
        return np.where(random.random((n_rows, replicates)) < 0.5, -1.0, 1.0)  # noqa: PLR2004 - a fair coin

    inverse, low = left_out.inverse, left_out.clusters.scores[left_out.low]
    adjusted, _ = left_out.adjusted_scores(left_out.high)
    high_signs = signs(len(left_out.high))
    total = adjusted.T @ high_signs
    n_rows = max(1, _SIGNS // replicates)
    for first in range(0, len(left_out.low), n_rows):
        rows = low[first : first + n_rows]
        total += (rows.T @ signs(len(rows.indptr) - 1))[left_out.free]
    moved = inverse @ total
    low_covariance = inverse @ gram(low)[np.ix_(left_out.free, left_out.free)] @ inverse
    variance = np.repeat(np.diag(low_covariance)[:, np.newaxis], replicates, axis=1)
    for score, sign, cluster in zip(adjusted, high_signs, left_out.high.tolist(), strict=True):
        own, cells, linked = left_out.cluster_information(cluster)
        residual = np.outer(score, sign)
        residual[cells] -= own @ moved[cells]
        variance += (inverse @ left_out.adjust(own, cells, linked, residual)) ** 2
    spread = sums.correction[:, np.newaxis] * np.sqrt(variance)
    # |t*|, shape (F, B). Two clusters of opposite sign have equal scores after the move: the spread is 0.
    statistic = np.divide(np.abs(moved), spread, out=np.full_like(moved, np.inf), where=spread > 0)
    statistic = np.minimum(statistic, t_quantile(np.ones(1)))
    quantile = np.quantile(statistic, CONFIDENCE, axis=1, method="weibull")
    quantile = np.maximum(quantile, t_quantile(sums.degrees))
    return errors_from_sums(fit.log_theta, fit.free_cells, sums, quantile)


def split_by_leverage(leverage: Floats) -> tuple[Integers, Integers]:
    """Split clusters into those with x_g = s_g to within a percent, and those to leave out one by one."""
    return np.flatnonzero(leverage < _LEVERAGE), np.flatnonzero(leverage >= _LEVERAGE)


@dataclass(frozen=True)
class ClusterScores:
    """Scores s_g of G clusters, and their information H_g = sum_j w_gj (diag(p_j) - p_j p_j') by S units."""

    linked: LinkedCounts  # S units and I identified cells
    shares: Floats  # shape (R,), p_je of each entry of `linked.table`
    scores: Sparse  # shape (G, I), s_g on the identified cells
    weight: Sparse  # shape (G, S), w_gj, the clicks on unit j in cluster g
    copies: Floats  # shape (G,), number of equal clusters per row
    numbers: Integers  # shape (G,), the clusters' numbers, ascending

    def information(self, rows: Integers) -> Iterator[tuple[Integers, Floats]]:
        """Yield `rows` in blocks of B clusters, with their H_g on the identified cells, shape (B, I, I)."""
        n_cells, indptr = self.linked.table.n_cells, self.weight.indptr
        size = np.cumsum((indptr[rows + 1] - indptr[rows] + n_cells) * n_cells)
        for block in np.split(rows, np.flatnonzero(np.diff(size // _BLOCK)) + 1) if len(rows) else ():
            weight = self.weight[block]
            units = weight.indices.astype(np.int64)
            entries, start = self.linked.table.entry_indices(units)
            shares = self.shares[entries] * np.repeat(np.sqrt(weight.data), np.diff(start))
            table = in_rows(shares, self.linked.table.cell[entries], start, n_cells)
            table = table if len(units) * n_cells > 2 * _BLOCK else table.toarray()
            bounds = pairwise(weight.indptr.tolist())
            yield block, laplacian(np.stack([gram(table[first:last]) for first, last in bounds]))


class TotalInformation:
    """Information H of all clusters, from which H_g of one cluster is subtracted.

    Attributes:
        information: shape (F, F), H.
        inverse: shape (F, F), H^-1.
        scale: shape (F,), H_kk^(-1/2).
        penalised: whether H includes a penalty, so that H - H_g is regular for every cluster.
    """

    def __init__(self, information: Floats, inverse: Floats, *, penalised: bool = False) -> None:
        self.information, self.inverse, self.penalised = information, inverse, penalised
        self.scale = 1 / np.sqrt(np.diag(information))
        # H is a Laplacian without its reference: -H_kl links cells k and l, the sum of row k links k to the reference.
        self._to_reference = information.sum(axis=1)

    def linked_without(self, own: Floats, cells: Integers, leverage: float) -> Flags:
        """Free cells that H - H_g links to their reference, shape (F,). H - H_g is singular unless these are all.

        Args:
            own: shape (T, T), H_g on the free cells in which the cluster was shown.
            cells: shape (T,), numbers of these cells among the free cells, ascending.
            leverage: tr(H^-1 H_g).
        """
        if leverage < _FULL_LEVERAGE or self.penalised:
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

    def adjust(self, own: Floats, cells: Integers, linked: Flags, scores: Floats) -> Floats:
        """X = H (H - H_g)^-1 s, shape (F,) or (F, B) as s, 0 outside of the cluster's cells.

        Where H - H_g is singular, its inverse is that of the linked cells, 0 elsewhere.

        Args:
            own: as for `linked_without`.
            cells: as for `linked_without`.
            linked: as from `linked_without`.
            scores: s, 0 outside of the cluster's cells.
        """
        all_linked, adjusted = bool(linked.all()), np.zeros_like(scores)
        if all_linked and len(cells) <= _DIRECT * len(linked):
            # Woodbury, M the block of H^-1 on the cluster's cells: x = (I - H_g M)^-1 s
            shrunk = np.eye(len(cells)) - own @ self.inverse[np.ix_(cells, cells)]
            adjusted[cells] = np.linalg.solve(shrunk, scores[cells])
            return adjusted
        # (H - H_g)^-1 s on the linked cells, solved at unit diagonal; 0 elsewhere
        scale, rest = self.scale, unit_diagonal(self.information)[0]
        rest[np.ix_(cells, cells)] -= own * np.outer(scale[cells], scale[cells])
        rest = rest if all_linked else rest[np.ix_(linked, linked)]
        factor = scipy.linalg.cho_factor(rest, lower=True, overwrite_a=True)
        adjusted[linked] = (scale[linked] * scipy.linalg.cho_solve(factor, (scale[linked] * scores[linked].T).T).T).T
        return self.information @ adjusted

    def spanning_tree(self) -> tuple[Integers, Floats, Floats]:
        """Maximum spanning tree of the cells and their reference, by strength of the link (Prim 1957).

        Returns:
            Of each cell, shape (F,): its parent, -1 for the reference; the strength of the link to it, in units of the
            scaled information; and the factor that scales information on the link.
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


_AdjustedBlock = tuple[Integers, Integers, Floats, Flags]
"""A block of B clusters: their rows, shape (B,); the T free cells in which any of them was shown; x_g on these, shape
(B, T); and the free cells that one of them alone identifies, shape (F,)."""


class LeaveOneOut(TotalInformation):
    """Leverage-adjusted scores x_g of clusters, and their sums.

    Attributes:
        free: shape (F,), numbers of the free cells among the identified cells.
        low: rows of the clusters of small leverage tr(H^-1 H_g), x_g = s_g.
        high: rows of the other clusters.
        threads: number of blocks in parallel; None: number of processors.
    """

    def __init__(
        self, fit: ConditionalFit, clusters: ClusterScores, *, threads: int | None = None, penalised: bool = False
    ) -> None:
        super().__init__(fit.information, fit.inverse, penalised=penalised)
        self.threads = threads
        self.clusters = clusters
        self.linked = clusters.linked
        self.free = clusters.linked.free
        self._free_cell = np.full(self.linked.table.n_cells, -1)
        self._free_cell[self.free] = np.arange(len(self.free))
        self._leverage, self._sums = self._leverage_and_sums()
        self.low, self.high = split_by_leverage(self._leverage)

    def sums(self) -> ClusterSums:
        """Sums over the clusters."""
        copies = self.clusters.copies
        scores = self.clusters.scores[self.low]
        scores.data *= np.repeat(np.sqrt(copies[self.low]), np.diff(scores.indptr))
        if len(self.free) >= max(MANY, len(copies)):  # two products of F x F cost more than all d_g
            adjusted, alone = self.adjusted_scores(self.high)
            adjusted *= np.sqrt(copies[self.high])[:, np.newaxis]
            change = np.concatenate([scores.toarray()[:, self.free], adjusted]) @ self.inverse
            return replace(self._sums, outer=change.T @ change, alone=alone)
        total = gram(scores)[np.ix_(self.free, self.free)]
        alone = np.zeros(len(self.free), np.bool_)
        for rows, cells, scores, alone_in_block in self._adjusted_blocks(self.high):
            adjusted = scores * np.sqrt(copies[rows])[:, np.newaxis]
            total[np.ix_(cells, cells) if len(cells) < len(total) else ...] += adjusted.T @ adjusted
            alone |= alone_in_block
        total = self.inverse @ total
        return replace(self._sums, outer=total @ self.inverse, alone=alone)

    def adjusted_scores(self, rows: Integers) -> tuple[Floats, Flags]:
        """x_g of clusters, shape (len(rows), F), and the free cells that one of them alone identifies, shape (F,)."""
        place = np.empty(len(self.clusters.copies), np.int64)
        place[rows] = np.arange(len(rows))
        adjusted, alone = np.zeros((len(rows), len(self.free))), np.zeros(len(self.free), np.bool_)
        for block, cells, scores, alone_in_block in self._adjusted_blocks(rows):
            adjusted[np.ix_(place[block], cells)] = scores
            alone |= alone_in_block
        return adjusted, alone

    def _adjusted_blocks(self, rows: Integers) -> Iterator[_AdjustedBlock]:
        """Yield x_g of clusters block by block; with many cells, sorted by the last cell of the cluster."""
        if len(self.free) < _MANY_CELLS:
            scaled = unit_diagonal(self.information)[0]
            for block, information in self.clusters.information(rows):
                scores = self.clusters.scores[block].toarray()[:, self.free]
                # H (H - H_g)^-1 s at unit diagonal, where H - H_g is regular
                regular = (self._leverage[block] < _FULL_LEVERAGE) | self.penalised
                rest = information[np.ix_(regular, self.free, self.free)] * -np.outer(self.scale, self.scale) + scaled
                scaled_scores: Floats = (scores[regular] * self.scale)[:, :, np.newaxis]
                change = np.linalg.solve(rest, scaled_scores)[:, :, 0]
                adjusted = np.empty_like(scores)
                adjusted[regular] = (change * self.scale) @ self.information
                yield self._adjust_singly(block, np.arange(len(self.free)), scores, adjusted, ~regular)
            return
        weight, table = self.clusters.weight[rows], self.linked.table
        last_cell = table.cell[table.start[1:] - 1]
        last = np.maximum.reduceat(last_cell[weight.indices], weight.indptr[:-1]) if len(rows) else rows
        ordered = rows[np.argsort(last, kind="stable")]
        blocks = (ordered[first : first + _CLUSTERS] for first in range(0, len(rows), _CLUSTERS))
        yield from thread_map(self._adjust_block, blocks, self.threads)

    def _adjust_block(self, rows: Integers) -> _AdjustedBlock:
        """x_g of a block of clusters: by conjugate gradients, or one by one where that is cheaper."""
        weight, table = self.clusters.weight[rows], self.linked.table
        entries, start = table.entry_indices(weight.indices.astype(np.int64))
        member = np.repeat(np.arange(len(start) - 1), np.diff(start))
        free = np.flatnonzero(self._free_cell[table.cell[entries]] >= 0)
        entries, member = entries[free], member[free]
        cells, column = np.unique(self._free_cell[table.cell[entries]], return_inverse=True)
        first = np.flatnonzero(np.diff(member, prepend=-1))
        row = np.repeat(np.arange(len(rows)), np.diff(weight.indptr))
        place = row[member] * len(cells) + column
        scores = self.clusters.scores[rows].toarray()[:, self.free[cells]]
        own_cells = np.bincount(np.unique(place) // len(cells)).astype(np.float64)
        if (own_cells**3 + _COST_OF_CLUSTER).sum() < _COST_OF_ITERATIONS * len(rows) * len(cells) ** 2:
            return self._adjust_singly(rows, cells, scores, np.empty_like(scores), np.ones(len(rows), np.bool_))
        # Cells that only this cluster links are separate without it, and carry no information on the other cells.
        cut = np.flatnonzero((self._leverage[rows] >= _FULL_LEVERAGE) & self._breaks_tree[rows])
        linked_without = {row: self.cluster_information(int(rows[row]))[2] for row in cut.tolist()}
        cut_off = {row: ~linked for row, linked in linked_without.items() if not linked.all()}
        for row, lost in cut_off.items():
            scores[row, lost[cells]] = 0.0
        share, length = self.clusters.shares[entries], np.diff(first, append=len(entries))
        clicks = np.repeat(weight.data[member[first]], length)

        def information_times(vectors: Floats) -> Floats:
            """H_b v_b = sum_j w_bj (p_j * v_b - p_j (p_j'v_b)), shape (B, T) as v."""
            product = share * vectors.ravel()[place]
            mean = np.add.reduceat(product, first) if len(product) else product
            product -= share * np.repeat(mean, length)
            product *= clicks
            return sum_by_number(place, product, vectors.size).reshape(vectors.shape)

        adjusted, solved = _conjugate_gradients(scores, self.inverse[np.ix_(cells, cells)], information_times)
        _, _, adjusted, alone = self._adjust_singly(rows, cells, scores, adjusted, ~solved)
        for row, lost in cut_off.items():
            change = np.where(lost, 0.0, adjusted[row] @ self.inverse[cells])
            adjusted[row] = (self.information @ change)[cells]
            alone[lost] = True
        return rows, cells, adjusted, alone

    def _adjust_singly(
        self, rows: Integers, cells: Integers, scores: Floats, adjusted: Floats, todo: Flags
    ) -> _AdjustedBlock:
        """Complete `adjusted`, shape (B, T), by x_g of the clusters marked in `todo`, shape (B,), one by one."""
        alone, score = np.zeros(len(self.free), np.bool_), np.zeros(len(self.free))
        for row in np.flatnonzero(todo).tolist():
            own, own_cells, linked = self.cluster_information(int(rows[row]))
            alone |= ~linked
            score[cells] = scores[row]
            adjusted[row] = self.adjust(own, own_cells, linked, score)[cells]
        return rows, cells, adjusted, alone

    @cached_property
    def _breaks_tree(self) -> Flags:
        """Clusters without which a link of the `spanning_tree` is lost, shape (G,); no other cluster cuts cells off."""
        table, shares = self.linked.table, self.clusters.shares
        parent, strength, scale = self.spanning_tree()
        parent_cell = np.arange(table.n_cells)
        parent_cell[self.free] = np.where(parent < 0, self.linked.reference_of[self.free], self.free[parent])
        key = table.entry_keys
        link = key - table.cell + parent_cell[table.cell]
        at = np.minimum(np.searchsorted(key, link), len(key) - 1)
        own_link = np.where((key[at] == link) & (self._free_cell[table.cell] >= 0), shares * shares[at], 0.0)
        own = self.clusters.weight @ by_unit_and_cell(table, own_link)
        cell = self._free_cell[own.indices]
        lost = (own.data > 0) & (strength[cell] - own.data * scale[cell] <= _NO_LINK)
        breaks = np.zeros(len(self.clusters.copies), np.bool_)
        breaks[np.repeat(np.arange(len(breaks)), np.diff(own.indptr))[lost]] = True
        return breaks

    def cluster_information(self, cluster: int) -> tuple[Floats, Integers, Flags]:
        """H_g on the T free cells of a cluster, shape (T, T), their numbers, and the free cells linked without it."""
        weight = self.clusters.weight
        first, last = weight.indptr[cluster : cluster + 2]
        units = weight.indices[first:last].astype(np.int64)
        entries, _ = self.linked.table.entry_indices(units)
        own = self.linked.table.take(units)
        cells, column = np.unique(own.cell, return_inverse=True)
        own = replace(own, n_cells=len(cells), cell=column)
        rows = by_unit_and_cell(own, self.clusters.shares[entries] * own.spread(np.sqrt(weight.data[first:last])))
        coupling = gram(rows if _DENSE * own.n_units * own.n_cells > len(own.cell) else rows.toarray())
        is_free = self.linked.reference_of[cells] != cells
        information, free = laplacian(coupling)[np.ix_(is_free, is_free)], np.searchsorted(self.free, cells[is_free])
        return information, free, self.linked_without(information, free, self._leverage[cluster])

    def _leverage_and_sums(self) -> tuple[Floats, ClusterSums]:
        """Leverage tr(H^-1 H_g), shape (G,), and the sums of a_gk; `outer` and `alone` are filled in by `sums`.

        With q_e = [H^-1]_ek, a click on unit j has a_jk = sum_e p_je q_e^2 - (sum_e p_je q_e)^2, the variance of q
        under p_j. In blocks of columns k, to bound the memory.
        """
        table, weight, copies = self.linked.table, self.clusters.weight, self.clusters.copies
        n_free = len(self.free)
        column = self._free_cell[table.cell]
        free = np.flatnonzero(column >= 0)
        start = np.concatenate([np.zeros(1, np.int64), np.cumsum(column >= 0, dtype=np.int64)])[table.start]
        unit, column, share = table.unit_of_entry[free], column[free], self.clusters.shares[free]
        shares = in_rows(share, column, start, n_free)
        unit_leverage = sum_by_number(unit, share * np.diag(self.inverse)[column], table.n_units)
        by_column = np.argsort(column.astype(np.min_scalar_type(n_free)), kind="stable")  # by radix where they are few
        bounds = np.searchsorted(column[by_column], np.arange(n_free + 1))
        sums, squares, number = np.zeros((3, n_free))
        width = max(1, _BLOCK // max(table.n_units, len(copies), 1))
        for first in range(0, n_free, width):
            columns = slice(first, min(first + width, n_free))
            q = self.inverse[:, columns]
            mean = shares @ q
            entries = by_column[bounds[columns.start] : bounds[columns.stop]]
            product = share[entries] * mean[unit[entries], column[entries] - first]
            unit_leverage -= sum_by_number(unit[entries], product, table.n_units)
            influence = weight @ np.maximum(shares @ q**2 - mean**2, 0.0)
            sums[columns] = copies @ influence
            squares[columns] = copies @ influence**2
            number[columns] = copies @ (influence > ROUNDING * np.diag(self.inverse)[columns])
        alone = np.zeros(n_free, np.bool_)
        totals = ClusterSums(np.zeros((0, 0)), sums, squares, number, round(float(copies.sum())), alone)
        return weight @ unit_leverage, totals


def _conjugate_gradients(
    scores: Floats, inverse: Floats, information_times: Callable[[Floats], Floats]
) -> tuple[Floats, Flags]:
    """x_b = H (H - H_b)^-1 s_b of B clusters.

    Args:
        scores: s, shape (B, T).
        inverse: H^-1 on the T cells, shape (T, T).
        information_times: v, shape (B, T), to H_b v_b, shape (B, T).

    Returns:
        x, shape (B, T), and whether it converged, shape (B,); not where H - H_b is singular, or nearly so.
    """
    x, r = np.zeros_like(scores), scores.copy()
    p = r @ inverse
    hp = r.copy()
    before = first = np.einsum("bk,bk->b", r, p)
    todo = first > 0
    for _ in range(_MOST_ITERATIONS):
        if not todo.any():
            break
        ap = hp - information_times(p)
        curvature = np.einsum("bk,bk->b", p, ap)
        todo &= curvature > 0
        step = np.divide(before, curvature, out=np.zeros_like(curvature), where=todo)[:, np.newaxis]
        x += step * hp
        r -= step * ap
        z = r @ inverse
        after = np.einsum("bk,bk->b", r, z)
        todo &= after > _PRECISION**2 * first
        ratio = np.divide(after, before, out=np.zeros_like(after), where=todo)[:, np.newaxis]
        p = z + ratio * p
        hp = r + ratio * hp
        before = after
    return x, (first <= 0) | ~todo & (before <= _PRECISION**2 * first)
