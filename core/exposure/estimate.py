"""From exposure and clicks by stratum to the estimate, with standard errors clustered by page or by query.

With p_b the shares of stratum b and lambda_b = C_b / sum_k E_bk theta_k, a row i of cluster u adds

    s_u = sum_i w_i (c_i - lambda_b theta_k g_i) (1_k - p_b),    H_u = sum_i w_i c_i (diag(p_b) - p_b p_b')

The second term of the residual is what E_bk varies by when other pages are drawn; it adds up to 0 over all rows. The
rest is as in `standard_errors.cluster`: leaving one out, effective clusters, intervals.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import reduce
from operator import add

import numpy as np

from posbias.core.arrays.count_table import CountTable, Integers
from posbias.core.arrays.linalg import counted, sparse_product
from posbias.core.choices import Cluster
from posbias.core.counts.sufficient_statistics import SufficientStatistics
from posbias.core.errors import IdentifiabilityError
from posbias.core.estimators import Estimate, EstimationOptions
from posbias.core.estimators.estimate import FittedCurve, cells_like, conditional_estimate
from posbias.core.estimators.features import FeaturesMethod
from posbias.core.exposure.strata import ExposureCounts, ScoredRows
from posbias.core.standard_errors.cluster import errors_from_sums
from posbias.core.standard_errors.leave_one_out import ClusterScores, ClusterSums, LeaveOneOut
from posbias.core.standard_errors.session import parts_of_score
from posbias.core.theta.conditional import ConditionalFit, fit_conditional
from posbias.core.theta.linkage import NOT_LINKED, find_linkage
from posbias.core.theta.linked_counts import linked_counts, shares_at


@dataclass(frozen=True)
class FittedExposure:
    """A fit of the whole log, which its parts are held against."""

    table: CountTable  # exposure and clicks of the whole log (`ExposureCounts.table`)
    fit: ConditionalFit
    context: Integers  # number of each cell's context, shape (K,)
    n_strata: int  # of one context

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
        return LeaveOneOut(self.fit, ClusterScores(linked, shares, scores, clicks, np.ones(len(found)))).sums()


NOT_ALIKE = "no row like its own links it to the reference"


def fit_exposure(
    counts: ExposureCounts,
    statistics: SufficientStatistics,
    options: EstimationOptions,
    on_iteration: Callable[[str], None] = lambda _: None,
) -> FittedExposure:
    """Fit theta to exposure and clicks by stratum.

    Args:
        counts: of the whole log.
        statistics: of the same log; its cells are those of the counts.
        options: what is asked of the estimate.
        on_iteration: is told how far it is.

    Raises:
        IdentifiabilityError: rows that are alike stand at one position only, or have no click.
        UsageError: there is no such reference cell.
    """
    context = statistics.context_of_cell
    table = counts.table(context)
    try:
        linkage = find_linkage(table, context, cells_like(statistics, options.reference))
    except IdentifiabilityError as error:
        raise IdentifiabilityError(
            f"--method {FeaturesMethod.name}: no two positions can be compared by rows with like features: there are "
            f"{statistics.cell_totals[1].sum():,.0f} clicks in {statistics.n_cells} cells (positions). Add more days."
        ) from error
    reason = tuple(NOT_ALIKE if why == NOT_LINKED else why for why in linkage.reason)
    fit = fit_conditional(
        table,
        replace(linkage, reason=reason),
        on_iteration=lambda number, change: on_iteration(f"Newton {number}: {change:.1e}"),
        **options.limits,
    )
    return FittedExposure(table, fit, context, len(counts.exposure))


def features_estimate(fitted: FittedExposure, sums: Iterable[ClusterSums], by: Cluster) -> Estimate:
    """The estimate with its errors.

    Args:
        fitted: the estimate from all rows.
        sums: those over the clusters of each part of the log.
        by: what the clusters are.
    """
    fit, no_pair = fitted.fit, np.zeros(len(fitted.context))
    behind = FittedCurve(fit, errors_from_sums(fit.log_theta, fit.free_cells, reduce(add, sums)))
    estimate = conditional_estimate(FeaturesMethod.name, behind, fitted.table, by)
    return replace(estimate, linkage=replace(fit.linkage, linking_pairs=no_pair, linking_clicks=no_pair))
