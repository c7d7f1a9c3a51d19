"""By day or pooled: whether attractiveness may differ from day to day in the estimation of theta.

A ranker that learns from clicks shows a document higher because it was clicked. Pooled over days, position and clicks
of a pair then depend on each other and every estimator is off; within a day they do not. But a ranker that hardly
moves documents within a day leaves little to compare there. So both ways are estimated, and the days are kept if they
identify the same cells with standard errors at most 1.5 times the pooled ones.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from posbias.core.contrasts import ContrastTest, difference_test
from posbias.core.errors import IdentifiabilityError
from posbias.core.estimators.conditional import ConditionalEstimator
from posbias.core.estimators.estimate import Estimate, EstimationOptions, numbers
from posbias.core.evidence import Evidence

LARGEST_ERROR_RATIO = 1.5
"""Standard errors by day, relative to the pooled ones, up to which the days are kept."""


@dataclass(frozen=True)
class PeriodChoice:
    """Which strata theta is estimated from, and why.

    Attributes:
        by_day: whether a stratum is a part of a day.
        why: in words; empty where there was nothing to choose.
        error_ratio: the largest ratio of standard errors, by day to pooled; nan where the days identify fewer cells.
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

    def summary(self) -> dict[str, Any]:
        """What the manifest says about the choice."""
        used = {"used": "day" if self.by_day else "none"}
        if not self.why:
            return used
        return {
            **used,
            "why": self.why,
            "largest_ratio_of_standard_errors": None if np.isnan(self.error_ratio) else self.error_ratio,
            "difference": None if self.test is None else self.test.summary(),
            "pooled": None if self.pooled is None else numbers(self.pooled.propensity),
            "by_day": None if self.daily is None else numbers(self.daily.propensity),
        }


def choose_period(evidence: Evidence, options: EstimationOptions, on_iteration: Callable[[str], None]) -> PeriodChoice:
    """Decide by the conditional estimate, whatever method is to follow.

    Raises:
        IdentifiabilityError: nothing links two cells, not even over days.
        UsageError: there is no such reference cell.
    """
    if not evidence.plan.period or options.period != "auto":
        return PeriodChoice(by_day=evidence.plan.period and options.period == "day")
    pooled = _estimate(evidence, options, on_iteration, by_day=False)
    try:
        daily = _estimate(evidence, options, on_iteration, by_day=True)
    except IdentifiabilityError:
        return PeriodChoice(by_day=False, why="within a day, nothing can be compared", pooled=pooled)
    if not np.array_equal(pooled.linkage.identified, daily.linkage.identified):
        return PeriodChoice(by_day=False, why="within days, fewer cells can be compared", pooled=pooled, daily=daily)
    ratio = _largest_error_ratio(pooled, daily)
    test = _difference(daily, pooled)
    if ratio <= LARGEST_ERROR_RATIO:
        why = f"within days the same cells are identified, with errors at most {ratio:.2f} times as large"
        return PeriodChoice(by_day=True, why=why, error_ratio=ratio, test=test, pooled=pooled, daily=daily)
    why = f"within days, errors would be up to {ratio:.1f} times as large"
    return PeriodChoice(by_day=False, why=why, error_ratio=ratio, test=test, pooled=pooled, daily=daily)


def _estimate(
    evidence: Evidence, options: EstimationOptions, on_iteration: Callable[[str], None], *, by_day: bool
) -> Estimate:
    return ConditionalEstimator().estimate(evidence, evidence.strata(by_period=by_day), options, on_iteration)


def _largest_error_ratio(pooled: Estimate, daily: Estimate) -> float:
    """Over the cells with a pooled error; infinite where one has none by day."""
    has_error = np.isfinite(pooled.std_error) & (pooled.std_error > 0)
    if not has_error.any():
        return 1.0
    return float(np.nan_to_num(daily.std_error[has_error] / pooled.std_error[has_error], nan=np.inf).max())


def _difference(daily: Estimate, pooled: Estimate) -> ContrastTest | None:
    if daily.fitted is None or pooled.fitted is None:
        return None
    return difference_test(daily.fitted.scored(), pooled.fitted.scored())
