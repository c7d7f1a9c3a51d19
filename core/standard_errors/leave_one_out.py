"""Leaving out one cluster at a time: what it changes in the conditional estimate, for errors by cluster.

    x_g = H (H - H_g)^-1 s_g,    d_g = H^-1 x_g

d_g is what the estimate loses with cluster g, to first order in everything but the cluster's own leverage; x_g is the
score adjusted for that leverage (Bell & McCaffrey 2002).
"""

from dataclasses import dataclass, replace

import numpy as np

from posbias.core.arrays.count_table import CountTable, Flags, Floats, Integers, sum_by_number
from posbias.core.arrays.linalg import Sparse, by_unit_and_cell, gram, solve_positive, student_quantile
from posbias.core.arrays.threads import at_once
from posbias.core.arrays.unit_diagonal import inverse, unit_diagonal
from posbias.core.standard_errors.conjugate_gradients import ClusterEntries, adjust_together
from posbias.core.theta.conditional import ConditionalFit
from posbias.core.theta.linked_counts import LinkedCounts

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
_TOGETHER = 256  # clusters
_BLOCK = 4_000_000  # numbers in one dense block of work, 32 MB


@dataclass(frozen=True)
class ClusterSums:
    """What the clusters add up to: parts of a log that share no cluster can be summed one by one.

    Attributes:
        outer: shape (F, F), sum_g d_g d_g' over the free cells.
        influence: shape (F,), sum_g a_gk.
        influence_squared: shape (F,), sum_g a_gk^2.
        clusters_of_cell: shape (F,), G_k, clusters with a_gk > 0.
        n_clusters: number of clusters that count.
        alone: shape (F,), cells that one of the clusters alone identifies.
    """

    outer: Floats
    influence: Floats
    influence_squared: Floats
    clusters_of_cell: Floats
    n_clusters: int
    alone: Flags

    @property
    def agreeing(self) -> Flags:
        """Cells on which the clusters agree to the last click, shape (F,): their V_kk is rounding."""
        return np.diag(self.covariance) <= AGREEMENT**2

    @property
    def effective_clusters(self) -> Floats:
        """G*_k, shape (F,)."""
        return self.influence**2 / self.influence_squared

    @property
    def degrees(self) -> Floats:
        """nu_k, degrees of freedom, shape (F,)."""
        return np.maximum(np.minimum(self.effective_clusters, self.clusters_of_cell - 1), 1.0)

    @property
    def quantile(self) -> Floats:
        """t_{.975, nu_k}, shape (F,)."""
        return student_quantile((1 + CONFIDENCE) / 2, self.degrees)

    @property
    def covariance(self) -> Floats:
        """V, shape (F, F)."""
        return self.outer * np.outer(self.correction, self.correction)

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


def low_and_high(leverage: Floats) -> tuple[Integers, Integers]:
    """The clusters that need not be left out one by one, as x_g = s_g to within a percent, and the others."""
    return np.flatnonzero(leverage < _LEVERAGE), np.flatnonzero(leverage >= _LEVERAGE)


@dataclass(frozen=True)
class ClusterScores:
    """Score and information of G clusters, in terms of S units: s_g, and H_g = sum_j w_gj (diag(p_j) - p_j p_j').

    Attributes:
        linked: the units and the I identified cells.
        shares: shape (R,), p_je of each entry of `linked.table`.
        scores: shape (G, I), s_g on the identified cells.
        weight: shape (G, S), w_gj, the clicks on unit j in cluster g.
        copies: shape (G,), how many equal clusters each row stands for.
    """

    linked: LinkedCounts
    shares: Floats
    scores: Sparse
    weight: Sparse
    copies: Floats

    @property
    def n_rows(self) -> int:
        """Number of different clusters G."""
        return len(self.copies)


class WholeInformation:
    """The information of all clusters together, from which one cluster's can be taken away.

    Attributes:
        information: shape (F, F), H.
        inverse: shape (F, F), H^-1.
        scale: shape (F,), that makes H's diagonal 1; `scaled` is H with it.
    """

    def __init__(self, fit: ConditionalFit) -> None:
        self.information = fit.information
        self.inverse = inverse(fit.information)
        self.scaled, self.scale = unit_diagonal(fit.information)
        # Minus an entry of H is what links two cells, and a row's sum what links its cell with the reference.
        self._to_reference = fit.information.sum(axis=1)
        self._links = self.scaled < -_NO_LINK

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
        scale, others = self.scale[cells], np.ones(len(self.scale), np.bool_)
        others[cells] = False
        linked = self._to_reference * self.scale**2 > _NO_LINK
        linked[cells] = (self._to_reference[cells] - own.sum(axis=1)) * scale**2 > _NO_LINK
        links = self._links[cells]  # those of the cluster's cells, without the cluster
        links[:, cells] = self.scaled[np.ix_(cells, cells)] - own * np.outer(scale, scale) < -_NO_LINK
        n_linked = -1
        while n_linked < (n_linked := int(linked.sum())) < len(linked):
            linked |= self._links[linked & others].any(axis=0) | links[linked[cells]].any(axis=0)
        return linked


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
        self._leverage, self._sums = self._influence()
        self.low, self.high = low_and_high(self._leverage)

    def sums(self) -> ClusterSums:
        """Sums over the clusters, those with much leverage one by one."""
        copies = self.clusters.copies
        scores = self.clusters.scores[self.low]
        scores.data *= np.repeat(np.sqrt(copies[self.low]), np.diff(scores.indptr))
        total = gram(scores)[np.ix_(self.free, self.free)]
        alone = np.zeros(len(self.free), np.bool_)
        n_rows = max(1, _BLOCK // len(self.free))
        for first in range(0, len(self.high), n_rows):
            some = self.high[first : first + n_rows]
            adjusted, lost = self.adjusted_scores(some)
            adjusted *= np.sqrt(copies[some])[:, np.newaxis]
            total += adjusted.T @ adjusted
            alone |= lost
        return replace(self._sums, outer=self.inverse @ total @ self.inverse, alone=alone)

    def adjusted_scores(self, rows: Integers) -> tuple[Floats, Flags]:
        """x_g of the given clusters, shape (len(rows), F), and the cells that one of them alone identifies."""
        scores = self.clusters.scores[rows].toarray()[:, self.free]
        adjusted, alone = np.empty_like(scores), np.zeros(len(self.free), np.bool_)

        def adjust(some: slice) -> Flags:
            adjusted[some], lost = self._adjusted(rows[some], scores[some])
            return lost

        together = _TOGETHER if len(self.free) >= _MANY_CELLS else len(rows)
        blocks = [slice(first, first + together) for first in range(0, len(rows), max(together, 1))]
        for lost in at_once(adjust, blocks, self.threads):
            alone |= lost
        return adjusted, alone

    def _adjusted(self, rows: Integers, scores: Floats) -> tuple[Floats, Flags]:
        """x_g of some clusters with the scores s_g, and the cells that one of them alone identifies."""
        adjusted, found = np.empty_like(scores), np.zeros(len(rows), np.bool_)
        if len(self.free) >= _MANY_CELLS:
            adjusted, found = adjust_together(scores, self.inverse, self._entries_of(rows))
        alone = np.zeros(len(self.free), np.bool_)
        for row in np.flatnonzero(~found | (self._leverage[rows] >= _WHOLE)).tolist():
            without = self.without(int(rows[row]))
            alone |= ~without.kept
            if not (found[row] and without.kept.all()):
                adjusted[row] = without.adjust(scores[row])
        return adjusted, alone

    def _entries_of(self, rows: Integers) -> ClusterEntries:
        """The entries of the units of some clusters on the free cells."""
        weight, table, n_free = self.clusters.weight[rows], self.linked.table, len(self.free)
        free_cell = np.full(table.n_cells, -1)
        free_cell[self.free] = np.arange(n_free)
        entries, start = table.entries_of(weight.indices.astype(np.int64))
        member = np.repeat(np.arange(len(start) - 1), np.diff(start))
        row = np.repeat(np.arange(len(rows)), np.diff(weight.indptr))
        kept = np.flatnonzero(free_cell[table.cell[entries]] >= 0)
        entries, member = entries[kept], member[kept]
        first = np.flatnonzero(np.diff(member, prepend=-1))
        return ClusterEntries(
            place=row[member] * n_free + free_cell[table.cell[entries]],
            share=self.clusters.shares[entries],
            weight=weight.data[member[first]],
            start=np.append(first, len(entries)),
            shape=(len(rows), n_free),
        )

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
        shares = by_unit_and_cell(table, self.clusters.shares)
        n_free = len(self.free)
        full = np.zeros((table.n_cells, n_free))
        full[self.free] = self.inverse
        diagonal = np.zeros(table.n_cells)
        diagonal[self.free] = np.diag(self.inverse)
        unit_leverage = table.sum_by_unit(self.clusters.shares * diagonal[table.cell])
        sums, squares, number = np.zeros((3, n_free))
        width = max(1, _BLOCK // max(table.n_units, self.clusters.n_rows, 1))
        for first in range(0, n_free, width):
            columns = slice(first, first + width)
            q = full[:, columns]
            mean = shares @ q
            unit_leverage -= self._share_of_columns(mean, self.free[columns])
            of_click = np.maximum(shares @ q**2 - mean**2, 0.0)
            influence = weight @ of_click
            sums[columns] = copies @ influence
            squares[columns] = copies @ influence**2
            number[columns] = copies @ (influence > _NOTHING * np.diag(self.inverse)[columns])
        return weight @ unit_leverage, ClusterSums(
            outer=np.zeros((n_free, n_free)),
            influence=sums,
            influence_squared=squares,
            clusters_of_cell=number,
            n_clusters=round(float(copies.sum())),
            alone=np.zeros(n_free, np.bool_),
        )

    def _share_of_columns(self, mean: Floats, cells: Integers) -> Floats:
        """Each unit's sum over the given cells of p_je [H^-1 p_j]_e."""
        table = self.linked.table
        column = np.full(table.n_cells, -1)
        column[cells] = np.arange(len(cells))
        entries = np.flatnonzero(column[table.cell] >= 0)
        unit = np.searchsorted(table.start, entries, side="right") - 1
        product = self.clusters.shares[entries] * mean[unit, column[table.cell[entries]]]
        return sum_by_number(unit, product, table.n_units)

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
        coupling = _gram(own, self.clusters.shares[entries] * root)
        np.fill_diagonal(coupling, 0.0)
        kept = self.linked.reference_of[cells] != cells
        information = (np.diag(coupling.sum(axis=1)) - coupling)[np.ix_(kept, kept)]
        return information, np.searchsorted(self.free, cells[kept])


@dataclass(frozen=True)
class Without:
    """The estimate without one cluster.

    Attributes:
        all: the estimate with it.
        information: H_g on the T free cells that the cluster was shown in.
        cells: shape (T,), those cells' numbers among the free ones.
        kept: shape (F,), cells that are linked with their reference without the cluster, too.
    """

    all: WholeInformation
    information: Floats
    cells: Integers
    kept: Flags

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
        rest = self.all.scaled.copy()
        rest[np.ix_(self.cells, self.cells)] -= self.information * np.outer(scale, scale)
        rest = rest if kept.all() else rest[np.ix_(kept, kept)]
        change = np.zeros_like(scores)
        own_scale = self.all.scale[kept]
        change[kept] = (own_scale * solve_positive(rest, (own_scale * scores[kept].T).T).T).T
        return change


def _gram(table: CountTable, values: Floats) -> Floats:
    """A'A of the matrix that holds one value per entry, shape (K, K): densely unless nearly all of it is zero."""
    rows = by_unit_and_cell(table, values)
    if _DENSE * table.n_units * table.n_cells > len(values):
        return gram(rows)
    dense = rows.toarray()
    return dense.T @ dense
