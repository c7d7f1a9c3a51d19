"""What was asked for beyond the free estimate: other errors, a shape over positions, contexts that are alike."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from posbias.core.arrays.count_table import Integers
from posbias.core.counts.sufficient_statistics import SufficientStatistics
from posbias.core.errors import UsageError
from posbias.core.estimators import Estimate, EstimationOptions, clusters_of
from posbias.core.estimators.estimate import FittedCurve, conditional_estimate, relative_to_largest
from posbias.core.periods import Length
from posbias.core.schema import QUERY
from posbias.core.shapes import get_shape
from posbias.core.shapes.contexts import ShrunkContexts, shrink_contexts
from posbias.core.shapes.shape import ShapedEstimate
from posbias.core.standard_errors.bootstrap import bootstrap
from posbias.core.standard_errors.cluster import errors_from_sums, pair_errors, sum_clusters
from posbias.core.standard_errors.column import TwoWaySums, column_sums
from posbias.core.standard_errors.contrasts import FittedStrata
from posbias.core.standard_errors.leave_one_out import ClusterSums
from posbias.core.standard_errors.session import FittedLog


def with_requested_errors(
    estimate: Estimate,
    statistics: SufficientStatistics,
    options: EstimationOptions,
    period: Length,
    sum_sessions: Callable[[FittedLog], ClusterSums] | None,
) -> Estimate:
    """The estimate with errors of the kind that was asked for; it comes with those by query.

    Args:
        estimate: by any method; only a conditional fit can have other errors.
        statistics: what it was made from.
        options: what was asked for.
        period: the length of the periods that its strata are parts of.
        sum_sessions: goes over the log once more, for errors by session; None where there is no log.

    Raises:
        UsageError: errors by session are asked for without the log.
    """
    fitted, by = estimate.fitted, clusters_of(estimate.method, statistics.plan, options)
    if fitted is None or (by == "query" and not options.bootstrap):
        return estimate
    fit, strata, clusters = fitted.fit, fitted.strata, statistics.plan.clusters
    if options.bootstrap:
        errors = bootstrap(fit, strata, options.bootstrap, options.seed)
    elif by == "pair":
        errors = pair_errors(fit, strata.signatures)
    else:
        if by == "column":
            sums = column_sums(statistics, fit, period, clusters)
        elif by == "two-way":
            sums = TwoWaySums(
                sum_clusters(fit, strata),
                column_sums(statistics, fit, period, clusters),
                column_sums(statistics, fit, period, (QUERY, *clusters)),
            )
        elif sum_sessions is None:
            raise UsageError("--cluster session: it needs the log itself, not only statistics. Name the logs.")
        else:
            sums = sum_sessions(FittedLog(statistics.plan, statistics.cells, fit, period))
        errors = errors_from_sums(fit.log_theta, fit.free_cells, sums)
    return conditional_estimate(estimate.method, replace(fitted, errors=errors), strata.signatures, by)


def with_shape(
    estimate: Estimate, fitted: FittedStrata, shape: str, position_of_cell: Integers
) -> tuple[Estimate, ShapedEstimate]:
    """The estimate under a shape other than `free`, and the shape's own findings."""
    shaped = get_shape(shape).fit(fitted, position_of_cell)
    high = np.where(np.isfinite(shaped.theta), shaped.intervals.high, estimate.intervals.high)
    refined = replace(
        estimate,
        propensity=shaped.theta,
        examination=relative_to_largest(shaped.theta, fitted.fit.linkage),
        intervals=replace(shaped.intervals, high=high),
        converged=estimate.converged and shaped.converged,
    )
    return refined, shaped


OF_OTHERS = "its number is that of the other contexts, without an interval for this one"


def with_shrinkage(
    estimate: Estimate, fitted: FittedStrata | FittedCurve, position_of_cell: Integers
) -> tuple[Estimate, ShrunkContexts]:
    """The estimate with each context shrunk towards the curve that they share, and how far.

    A cell for which no context has an error stays as it is. One whose own context has none has the others' number, and
    no interval: these say nothing of how far it may be from them.
    """
    shrunk = shrink_contexts(fitted.fit, fitted.errors, position_of_cell)
    known = np.isfinite(shrunk.log_theta)
    propensity = np.where(known, np.exp(shrunk.log_theta), estimate.propensity)
    intervals = shrunk.intervals.or_else(estimate.intervals)
    of_others = known & np.isnan(intervals.std_error)
    reason = (f"{why}; {OF_OTHERS}" if of and why else why for why, of in zip(intervals.reason, of_others, strict=True))
    refined = replace(
        estimate,
        propensity=propensity,
        examination=relative_to_largest(propensity, fitted.fit.linkage),
        intervals=replace(intervals, reason=tuple(reason)),
    )
    return refined, shrunk
