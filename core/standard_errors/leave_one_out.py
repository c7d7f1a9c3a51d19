"""Leaving out one cluster at a time: what it changes in the conditional estimate, for errors by cluster.

    x_g = H (H - H_g)^-1 s_g,    d_g = H^-1 x_g

d_g is what the estimate loses with cluster g, to first order in everything but the cluster's own leverage; x_g is the
score adjusted for that leverage (Bell & McCaffrey 2002).

Both s_g and x_g are 0 outside of the cells in which the cluster was shown. With many cells, clusters of about as many
cells are therefore left out together, on the cells that they have among them.

Leaving out one cluster at a time where there are many cells: several clusters together, by conjugate gradients.

    (H - H_g) d = s,    x = H d

The preconditioner is H^-1, so that what iterations have to find is one cluster's part in the whole: the eigenvalues of
H^-1 (H - H_g) lie between 0 and 1, most of them close to 1, and a dozen iterations give all digits. One costs a product
with H^-1 for all clusters together, and a pass over the entries of the clusters' units; H itself is not needed, as the
directions p are kept with H p:

    r = s, z = H^-1 r, p = z, Hp = r;    A p = Hp - H_g p,  a = r'z / p'Ap,  x += a Hp,  r -= a Ap,
    z = H^-1 r,  b = r'z / (the one before),  p = z + b p,  Hp = r + b Hp

Source: Hestenes & Stiefel 1952; Nocedal & Wright 2006, algorithm 5.3.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy

from posbias.core.arrays.count_table import CountTable, Flags, Floats, Integers, sum_by_number
from posbias.core.arrays.linalg import MANY, Sparse, by_unit_and_cell, gram, in_rows, unit_diagonal
from posbias.core.arrays.threads import at_once
from posbias.core.theta.conditional import ConditionalFit, LinkedCounts, laplacian

_MOST_ITERATIONS = 60
_PRECISION = 1e-13  # of x, in the norm of (H - H_g)^-1, relative to the score


@dataclass(frozen=True)
class ClusterEntries:
    """The entries of the units of B clusters on the F free cells."""

    place: Integers  # shape (R,), b F + k for an entry of cluster b in the free cell k
    share: Floats  # shape (R,), p_je
    weight: Floats  # shape (M,), w_bj of each unit of a cluster
    start: Integers  # shape (M + 1,), where the entries of each of these begin; one at least has each
    shape: tuple[int, int]  # (B, F)

    def information_times(self, vectors: Floats) -> Floats:
        """H_b v_b = sum_j w_bj (p_j * v - p_j (p_j'v)) of each cluster, both of shape (B, F)."""
        product = self.share * vectors.ravel()[self.place]
        mean = np.add.reduceat(product, self.start[:-1]) if len(product) else product
        length = np.diff(self.start)
        product -= self.share * np.repeat(mean, length)
        product *= np.repeat(self.weight, length)
        n_clusters, n_free = self.shape
        return sum_by_number(self.place, product, n_clusters * n_free).reshape(self.shape)


def adjust_together(scores: Floats, inverse: Floats, entries: ClusterEntries) -> tuple[Floats, Flags]:
    """x_b = H (H - H_b)^-1 s_b of B clusters.

    Args:
        scores: s, shape (B, F).
        inverse: H^-1, shape (F, F).
        entries: of the clusters.

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
        change = of_x - entries.information_times(p)
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


CONFIDENCE = 0.95

AGREEMENT = 1e-10
"""A standard error of log theta that is rounding: 10^20 clicks would not give it."""

_LEVERAGE = 0.01  # below it, leaving a cluster out changes H^-1 by less than one percent
_WHOLE = 1 - 1e-9  # a cluster with less leverage cannot be the only one that identifies a direction
_NOTHING = 1e-12  # share of a cell's information that is rounding
_NO_LINK = 1e-9  # share of a cell's information that no longer links it: more digits are lost in H - H_g
_DIRECT = 0.5  # share of all cells from which on solving with H - H_g is cheaper than with the cluster's cells
_DENSE = 0.05  # share of non-zeros from which on a dense product is faster than a sparse one
_MANY_CELLS = 100  # from which on clusters are left out together, as matrices take longer than the interpreter
_TOGETHER = 64  # clusters
_COST_OF_ITERATIONS = 24  # of a cluster in operations, times the square of the number of cells
_COST_OF_CLUSTER = 4e6  # that is left out by itself, in operations, beside the cube of the number of its cells
_BLOCK = 4_000_000  # numbers in one dense block of work, 32 MB


@dataclass(frozen=True)
class ClusterSums:
    """Sums over clusters: parts of a log that share no cluster can be summed one by one."""

    outer: Floats  # shape (F, F), sum_g d_g d_g' over the free cells
    influence: Floats  # shape (F,), sum_g a_gk
    influence_squared: Floats  # shape (F,), sum_g a_gk^2
    clusters_of_cell: Floats  # shape (F,), G_k, clusters with a_gk > 0
    n_clusters: int  # that count
    alone: Flags  # shape (F,), cells that one of the clusters alone identifies

    @classmethod
    def of(cls, change: Floats, influence: Floats, alone: Flags) -> "ClusterSums":
        """The sums of some clusters, from d_g and a_gk of each, shape (G, F)."""
        return cls(
            outer=change.T @ change,
            influence=influence.sum(axis=0),
            influence_squared=(influence**2).sum(axis=0),
            clusters_of_cell=(influence > 0).sum(axis=0).astype(np.float64),
            n_clusters=len(change),
            alone=alone,
        )

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

    def __add__(self, other: "ClusterSums") -> "ClusterSums":
        return ClusterSums(
            outer=self.outer + other.outer,
            influence=self.influence + other.influence,
            influence_squared=self.influence_squared + other.influence_squared,
            clusters_of_cell=self.clusters_of_cell + other.clusters_of_cell,
            n_clusters=self.n_clusters + other.n_clusters,
            alone=self.alone | other.alone,
        )


def t_quantile(degrees: Floats) -> Floats:
    """t_{.975, nu}: how many standard errors a 95 % interval reaches."""
    return scipy.special.stdtrit(degrees, (1 + CONFIDENCE) / 2)


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

    @property
    def n_rows(self) -> int:
        """Number of different clusters G."""
        return len(self.copies)


class WholeInformation:
    """The information of all clusters together, from which one cluster's can be taken away.

    Attributes:
        information: shape (F, F), H.
        inverse: shape (F, F), H^-1.
        scale: shape (F,), that makes H's diagonal 1.
    """

    def __init__(self, fit: ConditionalFit) -> None:
        self.information = fit.information
        self.inverse = fit.inverse
        self.scale = 1 / np.sqrt(np.diag(fit.information))
        # Minus an entry of H is what links two cells, and a row's sum what links its cell with the reference.
        self._to_reference = fit.information.sum(axis=1)

    def without_information(self, own: Floats, cells: Integers, leverage: float) -> "Without":
        """The estimate without the cluster that holds some information.

        Args:
            own: shape (T, T), H_g on the free cells that the cluster was shown in.
            cells: shape (T,), those cells' numbers among the free ones, ascending.
            leverage: tr(H^-1 H_g).
        """
        whole = leverage >= _WHOLE
        kept = self.linked_without(own, cells) if whole else np.ones(len(self.information), np.bool_)
        return Without(self, own, cells, kept)

    def linked_without(self, own: Floats, cells: Integers) -> Flags:
        """Free cells that H - H_g still links with their reference; it is singular where some are not."""
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

    def __init__(self, fit: ConditionalFit, clusters: ClusterScores, threads: int | None = None) -> None:
        super().__init__(fit)
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
        n_free = len(self.free)
        if n_free < _MANY_CELLS:
            n_rows = max(1, _BLOCK // n_free)
            for first in range(0, len(rows), n_rows):
                some = rows[first : first + n_rows]
                scores = self.clusters.scores[some].toarray()[:, self.free]
                yield self._one_by_one(some, np.arange(n_free), scores, scores, np.ones(len(some), np.bool_))
            return
        weight, table = self.clusters.weight[rows], self.linked.table
        last_cell = table.cell[table.start[1:] - 1]
        last = np.maximum.reduceat(last_cell[weight.indices], weight.indptr[:-1]) if len(rows) else rows
        ordered = rows[np.argsort(last, kind="stable")]
        blocks = (ordered[first : first + _TOGETHER] for first in range(0, len(rows), _TOGETHER))
        yield from at_once(self._together, blocks, self.threads)

    def _together(self, rows: Integers) -> _Adjusted:
        """Some clusters, on the cells that they have among them."""
        weight, table = self.clusters.weight[rows], self.linked.table
        entries, start = table.entries_of(weight.indices.astype(np.int64))
        member = np.repeat(np.arange(len(start) - 1), np.diff(start))
        kept = np.flatnonzero(self._free_cell[table.cell[entries]] >= 0)
        entries, member = entries[kept], member[kept]
        cells, column = np.unique(self._free_cell[table.cell[entries]], return_inverse=True)
        first = np.flatnonzero(np.diff(member, prepend=-1))
        row = np.repeat(np.arange(len(rows)), np.diff(weight.indptr))
        place = row[member] * len(cells) + column
        of_clusters = ClusterEntries(
            place=place,
            share=self.clusters.shares[entries],
            weight=weight.data[member[first]],
            start=np.append(first, len(entries)),
            shape=(len(rows), len(cells)),
        )
        given = self.clusters.scores[rows].toarray()[:, self.free[cells]]
        own_cells = np.bincount(np.unique(place) // len(cells)).astype(np.float64)
        if (own_cells**3 + _COST_OF_CLUSTER).sum() < _COST_OF_ITERATIONS * len(rows) * len(cells) ** 2:
            return self._one_by_one(rows, cells, given, np.empty_like(given), np.ones(len(rows), np.bool_))
        # What a cluster alone links falls apart from the rest without it, and says nothing about the rest.
        cut = np.flatnonzero((self._leverage[rows] >= _WHOLE) & self._loses_a_link[rows])
        kept_without = {row: self.without(int(rows[row])).kept for row in cut.tolist()}
        cut_off = {row: ~kept for row, kept in kept_without.items() if not kept.all()}
        for row, lost in cut_off.items():
            given[row, lost[cells]] = 0.0
        adjusted, solved = adjust_together(given, self.inverse[np.ix_(cells, cells)], of_clusters)
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
            without = self.without(int(rows[row]))
            alone |= ~without.kept
            whole[cells] = scores[row]
            adjusted[row] = without.adjust(whole)[cells]
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

    def without(self, cluster: int) -> "Without":
        """The estimate without one cluster."""
        own, cells = self._information_of(cluster)
        return self.without_information(own, cells, float(self._leverage[cluster]))

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
        by_column = np.argsort(column, kind="stable")
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
        return weight @ unit_leverage, ClusterSums(
            outer=np.zeros((0, 0)),
            influence=sums,
            influence_squared=squares,
            clusters_of_cell=number,
            n_clusters=round(float(copies.sum())),
            alone=np.zeros(n_free, np.bool_),
        )

    def _information_of(self, cluster: int) -> tuple[Floats, Integers]:
        """H_g on the free cells that the cluster was shown in, and those cells' numbers among the free ones."""
        weight = self.clusters.weight
        first, last = weight.indptr[cluster : cluster + 2]
        units = weight.indices[first:last].astype(np.int64)
        entries, _ = self.linked.table.entries_of(units)
        own = self.linked.table.take(units)
        cells, column = np.unique(own.cell, return_inverse=True)
        own = replace(own, n_cells=len(cells), cell=column)
        root = own.spread(np.sqrt(weight.data[first:last]))
        information = laplacian(_gram(own, self.clusters.shares[entries] * root))
        kept = self.linked.reference_of[cells] != cells
        return information[np.ix_(kept, kept)], np.searchsorted(self.free, cells[kept])


@dataclass(frozen=True)
class Without:
    """The estimate without one cluster."""

    all: WholeInformation  # the estimate with it
    information: Floats  # H_g on the T free cells that the cluster was shown in
    cells: Integers  # shape (T,), those cells' numbers among the free ones
    kept: Flags  # shape (F,), cells that are linked with their reference without the cluster, too

    def adjust(self, scores: Floats) -> Floats:
        """H (H - H_g)^-1 s for one s or several, shape (F,) or (F, B), zero outside of the cluster's cells."""
        if not self.kept.all() or len(self.cells) > _DIRECT * len(self.kept):
            return self.all.information @ self._change(scores)
        # Woodbury, M the block of H^-1 on the cluster's cells: x = (I - H_g M)^-1 s
        shrunk = np.eye(len(self.cells)) - self.information @ self.all.inverse[np.ix_(self.cells, self.cells)]
        adjusted = np.zeros_like(scores)
        adjusted[self.cells] = np.linalg.solve(shrunk, scores[self.cells])
        return adjusted

    def _change(self, scores: Floats) -> Floats:
        """(H - H_g)^-1 s on the kept cells, solved at unit diagonal; 0 on the others."""
        kept, scale = self.kept, self.all.scale[self.cells]
        rest = unit_diagonal(self.all.information)[0]
        rest[np.ix_(self.cells, self.cells)] -= self.information * np.outer(scale, scale)
        rest = rest if kept.all() else rest[np.ix_(kept, kept)]
        change = np.zeros_like(scores)
        own_scale = self.all.scale[kept]
        factor = scipy.linalg.cho_factor(rest, lower=True, overwrite_a=True)
        change[kept] = (own_scale * scipy.linalg.cho_solve(factor, (own_scale * scores[kept].T).T).T).T
        return change


def _gram(table: CountTable, values: Floats) -> Floats:
    """A'A of the matrix that holds one value per entry, shape (K, K): densely unless nearly all of it is zero."""
    rows = by_unit_and_cell(table, values)
    if _DENSE * table.n_units * table.n_cells > len(values):
        return gram(rows)
    dense = rows.toarray()
    return dense.T @ dense
