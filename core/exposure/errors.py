"""Standard errors of the estimate on strata with exposure, clustered by page or by query.

With p_b the shares of stratum b and lambda_b = C_b / sum_k E_bk theta_k, a row i of cluster u adds

    s_u = sum_i w_i (c_i - lambda_b theta_k g_i) (1_k - p_b),    H_u = sum_i w_i c_i (diag(p_b) - p_b p_b')

The second term of the residual is what E_bk varies by when other pages are drawn; it adds up to 0 over all rows. The
rest is as in `standard_errors.cluster`: leaving one out, effective clusters, intervals.
"""

from dataclasses import dataclass

import numpy as np

from posbias.core.arrays.count_table import CountTable, Integers
from posbias.core.arrays.linalg import counted, sparse_product
from posbias.core.exposure.strata import ScoredRows
from posbias.core.standard_errors.cluster import sum_scores
from posbias.core.standard_errors.leave_one_out import ClusterScores, ClusterSums
from posbias.core.standard_errors.session import parts_of_score
from posbias.core.theta.conditional import ConditionalFit
from posbias.core.theta.linked_counts import linked_counts, shares_at


@dataclass(frozen=True)
class FittedExposure:
    """A fit of the whole log, which its parts are held against.

    Attributes:
        table: exposure and clicks of the whole log (`ExposureCounts.table`).
        fit: the estimate from it.
        context: the number of each cell's context, shape (K,).
        n_strata: number of strata of one context.
    """

    table: CountTable
    fit: ConditionalFit
    context: Integers
    n_strata: int

    def sums_of(self, rows: ScoredRows, cluster: Integers) -> ClusterSums:
        """The sums over the clusters of a part that holds whole clusters; sums of parts add up.

        Args:
            rows: those of the part.
            cluster: what each row shares its errors with, any whole numbers, shape (n,).
        """
        linked = linked_counts(self.table, self.fit.linkage)
        n_units, n_cells = len(linked.units), len(linked.cells)
        number = np.full(self.table.n_units, -1)
        number[linked.units] = np.arange(n_units)
        row_unit = number[self.context[rows.cell] * self.n_strata + rows.stratum]
        known = np.flatnonzero((row_unit >= 0) & self.fit.linkage.identified[rows.cell])
        log_theta = self.fit.log_theta[linked.cells]
        shares, log_total = shares_at(linked.table, log_theta)
        unit, cell = row_unit[known], np.searchsorted(linked.cells, rows.cell[known])
        expected = rows.exposure[known] * np.exp(np.log(linked.unit_clicks) - log_total)[unit] * np.exp(log_theta[cell])
        residual = rows.weight[known] * (rows.click[known] - expected)
        found, of = np.unique(cluster[known], return_inverse=True)
        parts = counted(
            np.tile(of, 2),
            np.concatenate([unit, n_units + cell]),
            (len(found), n_units + n_cells),
            np.tile(residual, 2),
        )
        clicks = counted(of, unit, (len(found), n_units), rows.weight[known] * rows.click[known])
        scores = sparse_product(parts, parts_of_score(linked, shares))
        return sum_scores(self.fit, ClusterScores(linked, shares, scores, clicks, np.ones(len(found))))
