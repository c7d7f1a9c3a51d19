"""Choose the length of the periods within which attractiveness is constant, by tests for feedback from clicks.

A ranker that learns from clicks lifts a document because it was clicked. Within a stratum that contains both the clicks
and the reaction of the ranker, position and clicks depend on each other, and every estimator is biased; between two
updates of the ranker they do not. Finer strata contain fewer comparisons. The log is therefore divided from coarse to
fine - whole, by week, by day, by hour - and at each length two tests are made:

* feedback: whether documents rise after they were clicked, within strata;
* halves: whether the estimate with each stratum split into an earlier and a later half, which contain half of the
  feedback, differs from the estimate by more than chance (Hausman 1978). Finer strata weigh documents differently, and
  change the estimate also where one curve does not hold for all of them. It must therefore also differ from the
  estimate with each stratum split into every first and every second of its moments, which contain all of the feedback.

The coarsest length that survives is used: neither test rejects it, and the feedback test has the power to detect a
relevant bias. In a large log both use a part of the queries, until feedback shows; the frequency of updates needs all
queries. After feedback at a coarser length, the ranker is known to learn. A finer length then survives only if the
possible bias of the slope by feedback is smaller than its interval, and if halves differ no more than in nine of ten
logs.

If no length survives: after feedback at some length nothing is claimed, and the estimate has the coarsest length that
only this doubt keeps from surviving, else the finest. Without feedback but also without power, it has the finest length
that identifies the same cells with standard errors at most `LARGEST_ERROR_RATIO` times those of the coarsest: a cheap
precaution.

Feedback test: with the sums A, W of each query (`core/counts/order.py`),

    a = sum A / sum W                                change of -log(position) of later impressions per surplus click
    sd = sqrt((G - 1) / G sum (A_g / (1 - h_g))^2) / sum W,       h_g = share of the query in the variance

and a / sd has Student's t with min(1 / sum h^2, G - 1) degrees of freedom. Four of five logs would show
a_80 = (t_.9875 + t_.8) sd. It would bias eta, theta = position ** -eta, by a_80 sum C / 2 / sum C Var_p(m).

After feedback in longer periods, a test that does not reject is not sufficient: the upper limit (80 %) of the bias of
eta by feedback,

    2 (max(a, 0) + t_.8 sd) sum C / 2 / sum C Var_p(m)

must not exceed the half width of the interval of eta. The factor 2 was measured on benchmark seeds from 1000: the test
is determined by frequently shown documents, but rarely shown documents, as informative of eta, are moved further.

Drift: where documents only fall (a feed with the newest on top) or only rise, position and age are one, and what
documents lose with age, or all lose with the season, is taken for theta. With t from 0 to 1 over a stratum and
attractiveness exp(-g t), eta is off by

    -g sum C Cov_p(t, m) / sum C Var_p(m),

which is reported for g = log 2. Where documents fall and rise alike, the sum is 0.

A change of the page changes theta from then on, which no stratum shows. Theta of the days with the first half of the
impressions is therefore compared with theta of later days, each with its own attractiveness (Hausman 1978).
"""

from dataclasses import dataclass, replace
from math import log
from typing import Literal

import numpy as np
import polars as pl
import scipy

from posbias.core.arrays.count_table import Floats
from posbias.core.counts.odd_days import DAY
from posbias.core.counts.order import OrderSums, RowOrder, group_t_test
from posbias.core.counts.sufficient_statistics import SufficientStatistics
from posbias.core.errors import IdentifiabilityError
from posbias.core.estimators.estimate import Estimate, EstimationOptions, OnIteration
from posbias.core.estimators.methods import ConditionalEstimator
from posbias.core.schema import ALTERNATE, HALF, IMPRESSIONS, Length
from posbias.core.standard_errors.contrasts import LEVEL, POWER, ContrastTest, detectable, difference_test

LEVEL_OF_EACH = LEVEL / 2
"""Level of the feedback test and of the test of halves, .05 for the two together."""

LARGEST_MISSED_BIAS = 0.25
"""Bias of eta that one test in five may miss if the test is to be conclusive."""

LEVEL_AFTER_FEEDBACK = 0.1
"""Level of the test of halves after feedback in longer periods."""

LEVEL_OF_STOPS = 0.01
"""Level at which a fit must not be used; also of the test by the order of rows, which every log undergoes."""

LEAST_BIAS_BY_ROWS = 0.02
"""Bias of eta by movement in the order of rows from which on propensities must not be used."""

LARGEST_DRIFT = 0.15
"""Bias of eta, if documents lose half of their attractiveness, up to which position is distinct from age and season: a
feed with the newest on top has 0.26, a change to a much better ranker 0.09, rankers that go up and down below 0.02."""

_MOVED_FURTHER = 2.0
"""Ratio of the movement of rarely shown documents to that of the documents that determine the test."""


@dataclass(frozen=True)
class FeedbackTest:
    """Test whether clicks move documents within strata."""

    move: float  # a, change of -log(position) of later impressions per surplus click; above 0 if clicks lift documents
    std_error: float  # of a
    degrees: float  # degrees of freedom
    p_value: float  # of a = 0, two-sided
    bias: float  # absolute bias of eta by a
    detectable_move: float  # a_80, which four of five such logs would show
    missed_bias: float  # bias of eta by a_80
    largest_bias: float  # upper limit (80 %) of the bias of eta by feedback
    by_rows: bool = False  # whether time is the order of rows
    drift: float = 0.0  # bias of eta if documents are half as attractive at the end of a stratum; > 0 where they fall
    drift_p_value: float = 1.0  # of drift = 0, two-sided

    @property
    def moves(self) -> bool:
        """Whether clicks move documents, however little."""
        return self.p_value < (LEVEL_OF_STOPS if self.by_rows else LEVEL_OF_EACH)

    @property
    def rejected(self) -> bool:
        """Whether clicks move documents far enough to matter."""
        return self.moves and (not self.by_rows or self.bias >= LEAST_BIAS_BY_ROWS)

    @property
    def enough(self) -> bool:
        """Whether the test would have detected feedback that matters."""
        return self.missed_bias <= LARGEST_MISSED_BIAS

    @property
    def drifts(self) -> bool:
        """Whether documents fall, or rise, with time, so that position has one effect with age or season."""
        return abs(self.drift) >= LARGEST_DRIFT and self.drift_p_value < LEVEL_OF_STOPS


def feedback_test(sums: OrderSums, *, by_rows: bool = False) -> FeedbackTest | None:
    """Test that clicks do not move documents; None if fewer than two queries have several positions in order.

    Args:
        sums: by query, or by group of queries.
        by_rows: whether time is the order of rows.
    """
    t, p_value, error, degrees = group_t_test(sums.area, sums.variance)
    if not (np.isfinite(t) and sums.weight > 0):
        return None
    std_error, move = error / sums.weight, float(sums.area.sum()) / sums.weight
    bias_per_move = sums.clicks / 2 / sums.information if sums.information > 0 else np.inf
    detectable_move = detectable(std_error, degrees, LEVEL_OF_STOPS if by_rows else LEVEL_OF_EACH)
    largest = _MOVED_FURTHER * (max(move, 0.0) + float(scipy.special.stdtrit(degrees, POWER)) * std_error)
    test = FeedbackTest(
        move=move,
        std_error=std_error,
        degrees=degrees,
        p_value=p_value,
        bias=abs(move) * bias_per_move,
        detectable_move=detectable_move,
        missed_bias=detectable_move * bias_per_move,
        largest_bias=largest * bias_per_move,
        by_rows=by_rows,
    )
    if by_rows or not sums.information > 0:
        return test
    drift = -log(2) * float(sums.drift.sum()) / sums.information
    return replace(test, drift=drift, drift_p_value=group_t_test(sums.drift, sums.variance)[1])


def feedback_by_rows(order: RowOrder | None) -> FeedbackTest | None:
    """Test for feedback in the order of rows; None also if rows are sorted by position or click."""
    return None if order is None or order.is_sorted else feedback_test(order.sums, by_rows=True)


LARGEST_ERROR_RATIO = 1.5
"""Largest ratio of standard errors to those of the coarsest length at which a finer length is used as a precaution."""

Outcome = Literal[
    "survives", "feedback", "little feedback", "says too little", "cannot be looked into", "nothing to compare"
]


@dataclass(frozen=True)
class PeriodLook:
    """Tests of periods of one length."""

    length: Length
    estimate: Estimate | None = None  # with strata by these periods; None if nothing links cells
    feedback: FeedbackTest | None = None  # within periods, by the times of the statistics, else by the order of rows
    halves: ContrastTest | None = None  # estimate by halves against the estimate, or that by alternate moments
    ordered: bool = True  # whether the statistics have times within periods; else feedback may remain hidden
    learns: bool = False  # whether feedback showed at a coarser length
    slope_width: float = (
        np.nan
    )  # half the width of the interval of eta, theta = position ** -eta; NaN without intervals

    @property
    def outcome(self) -> Outcome:
        """Verdict on periods of this length."""
        if self.estimate is None:
            return "nothing to compare"
        differs = self.halves is not None and self.halves.p_value < LEVEL_OF_EACH
        if differs or (self.feedback is not None and self.feedback.rejected):
            return "feedback"
        if self.feedback is not None and self.feedback.moves:
            return "little feedback"
        if not self.ordered:
            return "cannot be looked into"
        return "survives" if self.enough and not self.in_doubt else "says too little"

    @property
    def enough(self) -> bool:
        """Whether the test would have detected feedback that matters."""
        return self.feedback is not None and self.feedback.enough

    @property
    def in_doubt(self) -> bool:
        """Whether feedback that showed at a coarser length may matter within these periods too."""
        if not self.learns or self.feedback is None:
            return False
        differs = self.halves is not None and self.halves.p_value < LEVEL_AFTER_FEEDBACK
        return differs or self.feedback.largest_bias > self.slope_width


@dataclass(frozen=True)
class PeriodChoice:
    """The length of the periods within which attractiveness is constant, with the tests that led to it."""

    used: Length = "none"
    looks: tuple[PeriodLook, ...] = ()  # tests of each length, the coarsest first; only the given one if it was given
    error_ratio: float = np.nan  # largest ratio of standard errors of `used` to the coarsest; NaN without a choice

    @property
    def chosen(self) -> Estimate | None:
        """Conditional estimate by the chosen periods; None if not computed."""
        return self.estimate_by(self.used)

    @property
    def difference(self) -> ContrastTest | None:
        """The chosen estimate against that of the coarsest length; None if they are the same."""
        coarsest, chosen = (self.looks[0].estimate if self.looks else None), self.chosen
        return None if coarsest is None or chosen is None or coarsest is chosen else _difference(chosen, coarsest)

    def estimate_by(self, length: Length) -> Estimate | None:
        """Return the estimate by periods of a length; None if not computed."""
        return next((look.estimate for look in self.looks if look.length == length), None)

    @property
    def survivor(self) -> PeriodLook | None:
        """The coarsest length that survives; None if no length does."""
        return next((look for look in self.looks if look.outcome == "survives"), None)

    @property
    def feedback_seen(self) -> bool:
        """Whether clicks move documents at some length."""
        return any(look.outcome == "feedback" for look in self.looks)

    @property
    def feedback_is_sure(self) -> bool:
        """Whether feedback is significant at the level at which a fit must not be used."""
        tests = (test for look in self.looks for test in (look.feedback, look.halves) if look.outcome == "feedback")
        return any(test.p_value < LEVEL_OF_STOPS for test in tests if test is not None)

    @property
    def claims(self) -> bool:
        """Whether the estimate is claimed to be free of bias by feedback."""
        return self.survivor is not None or not self.feedback_seen


def choose_period(
    statistics: SufficientStatistics, options: EstimationOptions, on_iteration: OnIteration
) -> PeriodChoice:
    """Choose the length of periods by conditional estimates, whatever the method of the fit.

    Raises:
        IdentifiabilityError: nothing links two cells, even over the whole log.
        UsageError: the reference cell does not exist.
    """
    lengths = statistics.plan.lengths
    if len(lengths) == 1 and statistics.row_order is None:
        return PeriodChoice()
    if options.period != "auto":
        given = options.period if options.period in lengths else lengths[-1]
        try:
            return PeriodChoice(given, (_look(statistics, given, options, on_iteration),))
        except IdentifiabilityError:  # the estimate of the fit will raise it
            return PeriodChoice(given)
    looks = list[PeriodLook]()
    for length in lengths:
        try:
            learns = any(look.outcome == "feedback" for look in looks)
            looks.append(_look(statistics, length, options, on_iteration, learns=learns))
        except IdentifiabilityError:
            if not looks:
                raise
            looks.append(PeriodLook(length))
        if looks[-1].outcome in {"survives", "nothing to compare"}:
            break
    known = [look for look in looks if look.estimate is not None]
    choice = PeriodChoice(looks=tuple(looks))
    used = choice.survivor
    if used is None and choice.feedback_seen:  # the coarsest that only doubt keeps from surviving, else the finest
        used = next((look for look in known if look.outcome == "says too little" and look.enough), known[-1])
    elif used is None:  # the finest at little cost
        used = [look for look in known if _error_ratio(known[0], look) <= LARGEST_ERROR_RATIO][-1]
    return replace(choice, used=used.length, error_ratio=_error_ratio(known[0], used))


def _look(
    statistics: SufficientStatistics,
    length: Length,
    options: EstimationOptions,
    on_iteration: OnIteration,
    *,
    learns: bool = False,
) -> PeriodLook:
    estimate = ConditionalEstimator().estimate(statistics, statistics.strata(length), options, on_iteration)
    # Median over cells of half the width of the interval of log theta, per log position
    low, high, position = estimate.intervals.low, estimate.intervals.high, statistics.position_of_cell
    distance = np.abs(np.log(position) - np.log(position[estimate.linkage.references].min()))
    known = np.isfinite(low) & np.isfinite(high) & (low > 0) & (high > low) & (distance > 0)
    width = float(np.median(np.log(high[known] / low[known]) / 2 / distance[known])) if known.any() else np.nan
    look = PeriodLook(length, estimate, learns=learns, slope_width=width)
    if length == (statistics.plan.period or "none"):
        return replace(look, feedback=feedback_by_rows(statistics.row_order), ordered=False)
    n_parts = None if learns else statistics.parts_for_tests  # after feedback, all queries are needed
    look = replace(look, feedback=feedback_test(statistics.order(length, n_parts)))
    if look.outcome == "feedback":
        return look

    def estimate_by(half: str | None) -> Estimate:
        strata = statistics.strata(length, half, n_parts=n_parts)
        if strata is statistics.strata(length):
            return estimate
        return ConditionalEstimator().estimate(statistics, strata, options, on_iteration)

    try:
        halves, whole = estimate_by(HALF), estimate_by(None)
    except IdentifiabilityError:
        return look
    test = _difference(halves, whole)
    if test is not None and test.p_value < LEVEL_AFTER_FEEDBACK:
        try:
            alternate = _difference(halves, estimate_by(ALTERNATE))
        except IdentifiabilityError:
            alternate = None
        test = max(test, alternate or test, key=lambda difference: difference.p_value)
    return replace(look, halves=test)


def _error_ratio(coarse: PeriodLook, fine: PeriodLook) -> float:
    """Return the largest ratio of standard errors over cells, at least 1; infinite if `fine` lacks a cell or error."""
    if coarse.estimate is None or fine.estimate is None:
        return np.inf
    if (coarse.estimate.linkage.identified & ~fine.estimate.linkage.identified).any():
        return np.inf
    coarse_error, fine_error = coarse.estimate.intervals.std_error, fine.estimate.intervals.std_error
    has_error = np.isfinite(coarse_error) & (coarse_error > 0)
    ratio = fine_error[has_error] / coarse_error[has_error]
    return float(np.nan_to_num(ratio, nan=np.inf).max(initial=1.0))


def _difference(one: Estimate, other: Estimate) -> ContrastTest | None:
    """Test whether two estimates differ, by cell; None without errors or with different references."""
    if one.fitted is None or other.fitted is None:
        return None
    if not np.array_equal(one.linkage.references, other.linkage.references):
        return None
    return difference_test(one.fitted.scored(), other.fitted.scored())


@dataclass(frozen=True)
class ChangeOfTheta:
    """Theta of the earlier days of a log against the later days."""

    first_day: str  # of the later days
    before: Floats  # propensities, shape (K,)
    after: Floats  # propensities, shape (K,)
    test: ContrastTest  # of the log ratios, after over before

    @property
    def matters(self) -> bool:
        """Whether some propensity changes significantly and by more than a tenth."""
        differs = self.test.p_values < LEVEL_OF_CHANGE
        return bool((differs & (np.abs(np.log(self.after / self.before)) > LEAST_CHANGE)).any())


LEVEL_OF_CHANGE, LEAST_CHANGE = 0.01, 0.1
"""Level of the test of earlier against later days, and the smallest change of log theta that matters."""


def change_of_theta(
    statistics: SufficientStatistics, used: Length, options: EstimationOptions, on_iteration: OnIteration
) -> ChangeOfTheta | None:
    """Compare theta of the days with the first half of the impressions with that of later days.

    None without counts by day, with a single day, or if the days of a half do not link the same references.
    """
    if statistics.by_day is None:
        return None
    days = statistics.by_day.group_by(DAY).agg(pl.col(IMPRESSIONS).sum()).sort(DAY)
    if days.height <= 1:
        return None
    up_to = np.cumsum(days[IMPRESSIONS].to_numpy())
    first = int(np.abs(2 * up_to[:-1] - up_to[-1]).argmin()) + 1
    day = str(days[DAY][first])
    try:
        before, after = (
            ConditionalEstimator().estimate(statistics, strata, options, on_iteration)
            for strata in statistics.before_and_after(day, used)
        )
    except (IdentifiabilityError, np.linalg.LinAlgError):
        return None
    test = _difference(after, before)
    return None if test is None else ChangeOfTheta(day, before.propensity, after.propensity, test)
