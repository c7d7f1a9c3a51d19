"""By what the standard errors of a fit are clustered: as asked for, from the statistics or from the log."""

from collections.abc import Callable

from posbias.core.counts.sufficient_statistics import SufficientStatistics
from posbias.core.errors import UsageError
from posbias.core.estimators import Estimate, EstimationOptions, clusters_of
from posbias.core.fit.refinements import with_errors
from posbias.core.periods import Length
from posbias.core.schema import QUERY
from posbias.core.standard_errors.bootstrap import bootstrap
from posbias.core.standard_errors.cluster import errors_from_sums, pair_errors, sum_clusters
from posbias.core.standard_errors.column import TwoWaySums, column_sums
from posbias.core.standard_errors.contrasts import FittedStrata
from posbias.core.standard_errors.leave_one_out import ClusterSums
from posbias.core.standard_errors.session import FittedLog


def with_wanted_errors(
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
    if fitted is None:
        return estimate
    if options.bootstrap:
        errors = bootstrap(fitted.fit, fitted.strata, options.bootstrap, options.seed)
    elif by == "pair":
        errors = pair_errors(fitted.fit, fitted.strata.signatures)
    elif by == "session" and sum_sessions is not None:
        log = FittedLog(statistics.plan, statistics.cells, fitted.fit, period=period)
        errors = errors_from_sums(fitted.fit.log_theta, fitted.fit.free_cells, sum_sessions(log))
    elif by == "session":
        raise UsageError("--cluster session: it needs the log itself, not only statistics. Name the logs.")
    elif by in {"column", "two-way"}:
        sums = _sum_clusters(fitted, statistics, period, two_ways=by == "two-way")
        errors = errors_from_sums(fitted.fit.log_theta, fitted.fit.free_cells, sums)
    else:
        return estimate
    return with_errors(estimate, fitted, errors, by)


def _sum_clusters(
    fitted: FittedStrata, statistics: SufficientStatistics, period: Length, *, two_ways: bool
) -> ClusterSums | TwoWaySums:
    """The sums over the values of the column of clusters, and over queries where both are asked for."""
    columns = statistics.plan.clusters
    by_column = column_sums(statistics, fitted.fit, period, columns)
    if not two_ways:
        return by_column
    by_both = column_sums(statistics, fitted.fit, period, (QUERY, *columns))
    return TwoWaySums(sum_clusters(fitted.fit, fitted.strata), by_column, by_both)
