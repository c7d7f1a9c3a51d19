"""From exposure and clicks by stratum to the estimate that every method returns."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from posbias.core.choices import Cluster
from posbias.core.counts.sufficient_statistics import SufficientStatistics
from posbias.core.errors import IdentifiabilityError
from posbias.core.estimators import Estimate, EstimationOptions
from posbias.core.estimators.estimate import FittedCurve, cells_like, relative_to_largest
from posbias.core.estimators.features import FeaturesMethod
from posbias.core.exposure.errors import FittedExposure
from posbias.core.exposure.strata import ExposureCounts
from posbias.core.fit.refinements import in_terms_of
from posbias.core.standard_errors.cluster import errors_from_sums
from posbias.core.standard_errors.leave_one_out import ClusterSums
from posbias.core.theta.conditional import fit_conditional, upper_limits_without_clicks
from posbias.core.theta.linkage import NOT_LINKED, find_linkage

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
