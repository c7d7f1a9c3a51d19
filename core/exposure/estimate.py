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
from typing import Any

import numpy as np

from posbias.core.arrays.count_table import CountTable, Integers
from posbias.core.arrays.linalg import counted, sparse_product
from posbias.core.choices import Cluster
from posbias.core.counts.sufficient_statistics import SufficientStatistics
from posbias.core.errors import IdentifiabilityError
from posbias.core.estimators import Estimate, EstimationOptions
from posbias.core.estimators.estimate import FittedCurve, cells_like, relative_to_largest
from posbias.core.estimators.features import FeaturesMethod
from posbias.core.exposure.strata import ExposureCounts, ScoredRows
from posbias.core.fit.refinements import in_terms_of
from posbias.core.standard_errors.cluster import errors_from_sums, sum_scores
from posbias.core.standard_errors.leave_one_out import ClusterScores, ClusterSums
from posbias.core.standard_errors.session import parts_of_score
from posbias.core.theta.conditional import ConditionalFit, fit_conditional, upper_limits_without_clicks
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
        return sum_scores(self.fit, ClusterScores(linked, shares, scores, clicks, np.ones(len(found))))


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
    preference = cells_like(statistics, options.reference) if options.reference else None
    try:
        linkage = find_linkage(table, context, preference)
    except IdentifiabilityError as error:
        raise IdentifiabilityError(
            f"--method {FeaturesMethod.name}: no two positions can be compared by rows with like features: there are "
            f"{statistics.cell_totals[1].sum():,.0f} clicks in {statistics.n_cells} cells (positions). Add more days."
        ) from error
    reason = tuple(NOT_ALIKE if why == NOT_LINKED else why for why in linkage.reason)
    limits: dict[str, Any] = {"max_iterations": options.max_iterations, "tolerance": options.tolerance}
    fit = fit_conditional(
        table,
        replace(linkage, reason=reason),
        on_iteration=lambda number, change: on_iteration(f"Newton {number}: {change:.1e}"),
        **{name: value for name, value in limits.items() if value is not None},
    )
    return FittedExposure(table, fit, context, len(counts.exposure))


def features_estimate(fitted: FittedExposure, sums: Iterable[ClusterSums], by: Cluster) -> Estimate:
    """The estimate with its errors.

    Args:
        fitted: the estimate from all rows.
        sums: those over the clusters of each part of the log.
        by: what the clusters are.
    """
    fit, n_cells = fitted.fit, len(fitted.context)
    errors = errors_from_sums(fit.log_theta, fit.free_cells, reduce(add, sums))
    upper = upper_limits_without_clicks(fit, fitted.table)
    alone = (in_terms_of(by, reason) for reason in errors.reason)
    reason = tuple(unlinked or why for unlinked, why in zip(fit.linkage.reason, alone, strict=True))
    return Estimate(
        method=FeaturesMethod.name,
        linkage=replace(fit.linkage, linking_pairs=np.zeros(n_cells), linking_clicks=np.zeros(n_cells)),  # no pair does
        propensity=fit.theta,
        examination=relative_to_largest(fit.theta, fit.linkage),
        intervals=replace(errors, high=np.where(np.isnan(upper), errors.high, upper), reason=reason),
        converged=fit.converged,
        iterations=fit.iterations,
        curve=FittedCurve(fit, errors),
        errors_by=by,
        n_clusters=errors.n_clusters,
    )
