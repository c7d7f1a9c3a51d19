"""By day or pooled: whether attractiveness may differ from day to day in the estimation of theta.

A ranker that learns from clicks shows a document higher because it was clicked. Pooled over days, position and clicks
of a pair then depend on each other and every estimator is off; within a day they do not. But a ranker that hardly
moves documents within a day leaves little to compare there. So both ways are estimated. The days are kept apart

* if they identify the same cells with standard errors at most 1.5 times the pooled ones: it costs little; or
* if the two estimates differ by more than chance (Hausman 1978): the pooled one is then wrong, however small its
  errors. On simulated logs of a strongly re-ranking ranker it was off by 93 % where the days, with errors beyond 1.5
  times the pooled ones, were off by 2 %.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from posbias.core.counts.sufficient_statistics import SufficientStatistics
from posbias.core.errors import IdentifiabilityError
from posbias.core.estimators.conditional import ConditionalEstimator
from posbias.core.estimators.estimate import Estimate, EstimationOptions
from posbias.core.standard_errors.contrasts import ContrastTest, difference_test

LARGEST_ERROR_RATIO = 1.5
"""Standard errors by day, relative to the pooled ones, up to which the days are kept."""


@dataclass(frozen=True)
class PeriodChoice:
    """Which strata theta is estimated from, and why.

    Attributes:
        by_day: whether a stratum is a part of a day.
        why: in words; empty where there was nothing to choose.
        error_ratio: the largest ratio of standard errors, by day to pooled; infinite where the days identify fewer
            cells, nan where nothing was compared.
        test: whether the two estimates differ by more than chance, where both exist.
        pooled: the pooled estimate, where the choice was made here.
        daily: the estimate by day, likewise.
    """

    by_day: bool
    why: str = ""
    error_ratio: float = np.nan
    test: ContrastTest | None = None
    pooled: Estimate | None = None
    daily: Estimate | None = None

    @property
    def chosen(self) -> Estimate | None:
        """The conditional estimate of the chosen strata, where the choice needed one."""
        return self.daily if self.by_day else self.pooled

    @property
    def feedback_possible(self) -> bool:
        """Whether days were known but could not be kept, so that a re-ranking bias cannot be excluded."""
        return bool(self.why) and not self.by_day


def choose_period(
    statistics: SufficientStatistics, options: EstimationOptions, on_iteration: Callable[[str], None]
) -> PeriodChoice:
    """Decide by the conditional estimate, whatever method is to follow.

    Raises:
        IdentifiabilityError: nothing links two cells, not even over days.
        UsageError: there is no such reference cell.
    """
    if not statistics.plan.period or options.period != "auto":
        return PeriodChoice(by_day=statistics.plan.period and options.period == "day")
    pooled = _estimate(statistics, options, on_iteration, by_day=False)
    try:
        daily = _estimate(statistics, options, on_iteration, by_day=True)
    except IdentifiabilityError:
        return PeriodChoice(by_day=False, why="days are pooled: within a day, nothing can be compared", pooled=pooled)
    ratio, test = _error_ratio(pooled, daily), _difference(daily, pooled)
    cost = (
        f"with errors up to {ratio:.2g} times as large"
        if np.isfinite(ratio)
        else "where fewer cells can be compared, or none of them with an error"
    )
    if ratio <= LARGEST_ERROR_RATIO:
        by_day, why = True, f"days are kept apart, {cost}"
    elif test is not None and test.rejected:
        by_day, why = True, f"days are kept apart, {cost}, because pooled they differ by more than chance"
    else:
        by_day, why = False, f"days are pooled: kept apart, they would be estimated {cost}"
    return PeriodChoice(by_day=by_day, why=why, error_ratio=ratio, test=test, pooled=pooled, daily=daily)


def _estimate(
    statistics: SufficientStatistics, options: EstimationOptions, on_iteration: Callable[[str], None], *, by_day: bool
) -> Estimate:
    return ConditionalEstimator().estimate(statistics, statistics.strata(by_period=by_day), options, on_iteration)


def _error_ratio(pooled: Estimate, daily: Estimate) -> float:
    """The largest ratio over the cells with a pooled error; infinite where the days identify fewer or lack an error."""
    if (pooled.linkage.identified & ~daily.linkage.identified).any():
        return np.inf
    pooled_error, daily_error = pooled.intervals.std_error, daily.intervals.std_error
    has_error = np.isfinite(pooled_error) & (pooled_error > 0)
    ratio = daily_error[has_error] / pooled_error[has_error]
    return float(np.nan_to_num(ratio, nan=np.inf).max(initial=0.0))


def _difference(daily: Estimate, pooled: Estimate) -> ContrastTest | None:
    """Whether the two differ by more than chance, cell by cell; None where they have different references."""
    if daily.fitted is None or pooled.fitted is None:
        return None
    if not np.array_equal(daily.linkage.references, pooled.linkage.references):
        return None
    return difference_test(daily.fitted.scored(), pooled.fitted.scored())
