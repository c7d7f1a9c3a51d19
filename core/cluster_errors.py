"""Standard errors of the conditional estimate: CR3 sandwich over clusters, with effective degrees of freedom.

A cluster (a query) g has the score s_g and the information H_g = sum_{j in g} C_j (diag(p_j) - p_j p_j'); H = sum H_g.

    d_g  = (H - H_g)^-1 s_g         what leaving the cluster out would change (H^-1 s_g where tr(H^-1 H_g) < .01)
    V    = (G - 1)/G sum_g d_g d_g'
    a_gk = [H^-1 H_g H^-1]_kk,      G*_k = (sum_g a_gk)^2 / sum_g a_gk^2
    log theta_k +- t_{.975, nu_k} sqrt(V_kk),     nu_k = max(min(G*_k, G - 1), 1)

CR3 is the jackknife's estimate (Bell & McCaffrey 2002; MacKinnon, Nielsen & Webb 2023); G* after Carter, Schnepel &
Steigerwald (2017): under Zipf's law thousands of queries can be worth a few dozen. The scores of G clusters sum to
zero, so they never hold more than G - 1 independent numbers.

Only clusters that hold a unit with a click and two identified cells count.
"""

from dataclasses import dataclass, replace

import numpy as np

from posbias.core.conditional import ConditionalFit, LinkedCounts, linked_counts
from posbias.core.linkage import Linkage
from posbias.core.numerics import (
    Sparse,
    by_unit_and_cell,
    connected,
    counted,
    gram,
    sparse_product,
    student_quantile,
)
from posbias.core.signatures import CountTable, Flags, Floats, Integers, sum_by_number

ONE_CLUSTER = "one query alone identifies it"
CONFIDENCE = 0.95

_LEVERAGE = 0.01  # below it, leaving a cluster out changes H^-1 by less than one percent
_WHOLE = 1 - 1e-9  # a cluster with less leverage cannot be the only one that identifies a direction
_BLOCK = 4_000_000  # numbers in one dense block of work, 32 MB


@dataclass(frozen=True)
class ClusterErrors:
    """Standard errors and intervals by cluster.

    Attributes:
        std_error: shape (K,), of log theta; 0 at the reference, NaN where there is none.
        low: shape (K,), lower end of the 95 % interval of theta; 1 at the reference, NaN where there is none.
        high: shape (K,), its upper end.
        effective_clusters: shape (K,), G*, how many equal clusters the cell's evidence is worth; NaN where not
            identified and at the reference.
        n_clusters: G, clusters that hold a unit with a click and two identified cells.
        reason: K reasons why an identified cell has no interval, else None.
        covariance: shape (F, F), V on the fit's free cells; rows and columns of cells without interval are NaN.
    """

    std_error: Floats
    low: Floats
    high: Floats
    effective_clusters: Floats
    n_clusters: int
    reason: tuple[str | None, ...]
    covariance: Floats


@dataclass(frozen=True)
class ClusterSums:
    """What the clusters add up to: parts of a log that share no cluster can be summed one by one.

    Attributes:
        outer: shape (F, F), sum_g d_g d_g' over the free cells.
        influence: shape (F,), sum_g a_gk.
        influence_squared: shape (F,), sum_g a_gk^2.
        n_clusters: number of clusters that count.
        alone: shape (F,), cells that one of the clusters alone identifies.
    """

    outer: Floats
    influence: Floats
    influence_squared: Floats
    n_clusters: int
    alone: Flags

    def __add__(self, other: "ClusterSums") -> "ClusterSums":
        return ClusterSums(
            outer=self.outer + other.outer,
            influence=self.influence + other.influence,
            influence_squared=self.influence_squared + other.influence_squared,
            n_clusters=self.n_clusters + other.n_clusters,
            alone=self.alone | other.alone,
        )


def cluster_errors(
    fit: ConditionalFit,
    table: CountTable,
    linkage: Linkage,
    unit_of_member: Integers,
    cluster_of_member: Integers,
) -> ClusterErrors:
    """Standard errors clustered by whatever the members are grouped by: queries, or the pairs themselves.

    Args:
        fit: the estimate from `table` and `linkage`.
        table: counts per unit; a unit's multiplicity is the number of its members.
        linkage: which cells are identified.
        unit_of_member: shape (N,), the unit (signature) of each member (pair or stratum), in 0 .. J - 1.
        cluster_of_member: shape (N,), the cluster (query) of each member; any whole numbers.
    """
    return errors_from_sums(fit, sum_clusters(fit, table, linkage, unit_of_member, cluster_of_member))


def sum_clusters(
    fit: ConditionalFit,
    table: CountTable,
    linkage: Linkage,
    unit_of_member: Integers,
    cluster_of_member: Integers,
) -> ClusterSums:
    """The sums over the clusters of some members: all members of these clusters, not necessarily all clusters.

    Args: as for `cluster_errors`.
    """
    linked = linked_counts(table, linkage)
    number = np.full(table.n_units, -1)
    number[linked.units] = np.arange(len(linked.units))
    unit = number[unit_of_member]
    _, cluster = np.unique(cluster_of_member[unit >= 0], return_inverse=True)
    n_clusters = int(cluster.max(initial=-1)) + 1
    members = counted(cluster, unit[unit >= 0], (n_clusters, len(linked.units)))
    return _Clusters(fit, linked, members, n_clusters).sums()


def errors_from_sums(fit: ConditionalFit, sums: ClusterSums) -> ClusterErrors:
    """Standard errors and intervals from the sums over all clusters.

    A cell that one cluster alone identifies gets no interval. The others do: without that cluster, the cells that it
    alone identifies fall apart from the rest, and leaving it out is well defined for the rest.
    """
    n_cells, free = len(fit.log_theta), fit.free_cells
    covariance = sums.outer * (max(sums.n_clusters - 1, 0) / max(sums.n_clusters, 1))
    covariance[sums.alone, :] = np.nan
    covariance[:, sums.alone] = np.nan
    effective = sums.influence**2 / sums.influence_squared
    std_error = np.sqrt(np.diag(covariance))
    degrees = np.maximum(np.minimum(effective, sums.n_clusters - 1), 1.0)
    margin = student_quantile((1 + CONFIDENCE) / 2, degrees) * std_error
    alone = set(free[sums.alone].tolist())
    with np.errstate(over="ignore"):  # an interval without an upper end has none
        high = np.exp(fit.log_theta[free] + margin)
    high[np.isinf(high)] = np.nan

    def on_all_cells(of_free: Floats, of_reference: float) -> Floats:
        values = np.where(np.isnan(fit.log_theta), np.nan, of_reference)
        values[free] = of_free
        return values

    return ClusterErrors(
        std_error=on_all_cells(std_error, 0.0),
        low=on_all_cells(np.exp(fit.log_theta[free] - margin), 1.0),
        high=on_all_cells(high, 1.0),
        effective_clusters=on_all_cells(effective, np.nan),
        n_clusters=sums.n_clusters,
        reason=tuple(ONE_CLUSTER if cell in alone else None for cell in range(n_cells)),
        covariance=covariance,
    )


class _Clusters:
    """Scores and information of G clusters, from those of S units: row g of `members` counts cluster g's units."""

    def __init__(self, fit: ConditionalFit, linked: LinkedCounts, members: Sparse, n_clusters: int) -> None:
        self.members = members
        self.n_clusters = n_clusters
        self.linked = linked
        self.free = linked.free
        self.information = fit.information
        self.inverse = _inverse(fit.information)
        table = linked.table
        self.shares = linked.shares(fit.log_theta[linked.cells])
        score = table.clicks - table.spread(linked.unit_clicks) * self.shares
        self.unit_scores = by_unit_and_cell(table, score)

    def sums(self) -> ClusterSums:
        """Sums over the clusters, those with much leverage one by one."""
        leverage, influence, influence_squared = self._influence()
        scores = sparse_product(self.members, self.unit_scores)
        low = scores[np.flatnonzero(leverage < _LEVERAGE)]
        outer = self.inverse @ gram(low)[np.ix_(self.free, self.free)] @ self.inverse
        alone = np.zeros(len(self.free), np.bool_)
        for cluster in np.flatnonzero(leverage >= _LEVERAGE).tolist():
            score = scores[cluster : cluster + 1].toarray()[0]
            lost = self._lost_without(cluster) if leverage[cluster] >= _WHOLE else np.zeros_like(alone)
            change = self._change_without(cluster, score, ~lost)
            outer += np.outer(change, change)
            alone |= lost
        return ClusterSums(outer, influence, influence_squared, self.n_clusters, alone)

    def _influence(self) -> tuple[Floats, Floats, Floats]:
        """Leverage tr(H^-1 H_g), shape (G,); sum_g a_gk and sum_g a_gk^2, shape (F,).

        With q_e = [H^-1]_ek, a unit's a_jk = C_j (sum_e p_je q_e^2 - (sum_e p_je q_e)^2), the variance of q under p_j.
        Done in blocks of columns k, to bound the memory.
        """
        table = self.linked.table
        shares = by_unit_and_cell(table, self.shares)
        n_free = len(self.free)
        full = np.zeros((table.n_cells, n_free))
        full[self.free] = self.inverse
        unit_leverage = table.sum_by_unit(self.shares * np.diag(self._on_cells(self.inverse))[table.cell])
        sums, squares = np.zeros(n_free), np.zeros(n_free)
        width = max(1, _BLOCK // max(table.n_units, self.n_clusters, 1))
        clicks = self.linked.unit_clicks[:, np.newaxis]
        for first in range(0, n_free, width):
            columns = slice(first, first + width)
            q = full[:, columns]
            mean = shares @ q
            unit_leverage -= self._share_of_columns(mean, self.free[columns])
            influence = self.members @ (clicks * np.maximum(shares @ q**2 - mean**2, 0.0))
            sums[columns] = influence.sum(axis=0)
            squares[columns] = (influence**2).sum(axis=0)
        return self.members @ (self.linked.unit_clicks * unit_leverage), sums, squares

    def _share_of_columns(self, mean: Floats, cells: Integers) -> Floats:
        """Each unit's sum over the given cells of p_je [H^-1 p_j]_e."""
        table = self.linked.table
        column = np.full(table.n_cells, -1)
        column[cells] = np.arange(len(cells))
        entries = np.flatnonzero(column[table.cell] >= 0)
        unit = np.searchsorted(table.start, entries, side="right") - 1
        product = self.shares[entries] * mean[unit, column[table.cell[entries]]]
        return sum_by_number(unit, product, table.n_units)

    def _on_cells(self, of_free: Floats) -> Floats:
        """A matrix on the free cells, with zeros in the references' rows and columns, shape (I, I)."""
        full = np.zeros((self.linked.table.n_cells, self.linked.table.n_cells))
        full[np.ix_(self.free, self.free)] = of_free
        return full

    def _units_of(self, cluster: int) -> tuple[Integers, Floats]:
        """The cluster's units, and how many of its members each stands for."""
        first, last = self.members.indptr[cluster : cluster + 2]
        return self.members.indices[first:last].astype(np.int64), self.members.data[first:last]

    def _information_of(self, cluster: int) -> tuple[Floats, Integers]:
        """H_g on the free cells that the cluster was shown in, and those cells' numbers among the free ones."""
        units, count = self._units_of(cluster)
        entries, _ = self.linked.table.entries_of(units)
        own = self.linked.table.take(units)
        cells, column = np.unique(own.cell, return_inverse=True)
        own = replace(own, n_cells=len(cells), cell=column)
        root = own.spread(np.sqrt(count * self.linked.unit_clicks[units]))
        coupling = gram(by_unit_and_cell(own, self.shares[entries] * root))
        np.fill_diagonal(coupling, 0.0)
        kept = self.linked.reference_of[cells] != cells
        information = (np.diag(coupling.sum(axis=1)) - coupling)[np.ix_(kept, kept)]
        return information, np.searchsorted(self.free, cells[kept])

    def _change_without(self, cluster: int, score: Floats, kept: Flags) -> Floats:
        """d_g = (H - H_g)^-1 s_g on the kept free cells, 0 on the others.

        With M the block of H^-1 on the cluster's cells T: d_g = [H^-1]_{:,T} (I - H_g M)^-1 s_T (Woodbury).
        """
        own, cells = self._information_of(cluster)
        change = np.zeros(len(self.free))
        if kept.all():
            block = self.inverse[np.ix_(cells, cells)]
            change[:] = self.inverse[:, cells] @ np.linalg.solve(
                np.eye(len(cells)) - own @ block, score[self.free[cells]]
            )
        elif kept.any():
            rest = self.information.copy()
            rest[np.ix_(cells, cells)] -= own
            change[kept] = np.linalg.solve(rest[np.ix_(kept, kept)], score[self.free[kept]])
        return change

    def _lost_without(self, cluster: int) -> Flags:
        """Free cells that nothing links with their reference once the cluster's members are left out.

        H - H_g is singular exactly then: clicked units link a reference with some of its cells only.
        """
        table = self.linked.table
        units, count = self._units_of(cluster)
        left = table.multiplicity.copy()
        left[units] -= count
        rest = table.take(np.flatnonzero(left > 1 / 2))
        unit = rest.n_cells + rest.unit_of_entry
        component = connected(unit, rest.cell, rest.n_cells + rest.n_units, both_ways=False)
        return component[self.free] != component[self.linked.reference_of[self.free]]


def _inverse(information: Floats) -> Floats:
    """The inverse, computed at unit diagonal: cells may differ by many orders of magnitude."""
    scale = 1 / np.sqrt(np.diag(information))
    inverse = np.linalg.inv(information * np.outer(scale, scale)) * np.outer(scale, scale)
    return (inverse + inverse.T) / 2
