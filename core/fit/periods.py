"""How long a stretch of the log may be within which attractiveness is taken for one, in the estimation of theta.

A ranker that learns from clicks shows a document higher because it was clicked. Within a stratum that holds clicks and
what the ranker made of them, position and clicks depend on each other, and every estimator is off; within one that lies
between two updates they do not. Finer strata leave less to compare. So the log is parted from coarse to fine - not at
all, by week, by day, by hour - and each time two tests ask whether clicks move documents within the strata:

* feedback: whether documents stand higher after they were clicked (`core/fit/periods.py`);
* halves: whether the estimate differs by more than chance from that by the earlier and the later half of each stratum
  (Hausman 1978), which holds half as much of what a ranker may have learnt.

The coarsest length that survives is used: neither test rejects it, and the first would have detected what matters. Of a
large log they look at some of the queries, until feedback shows: how often a ranker learns takes all. Once feedback has
shown at a coarser length, the ranker learns, and the question is only how often. Then a length survives only if
feedback within it can do no more to the slope of the curve than the interval leaves open, and if halves differ by no
more than they do in nine of ten logs.

Where none survives there are two cases. Where feedback showed at some length, no claim is made: the estimate is that by
the coarsest length which only this doubt keeps from surviving, else by the finest. Where none showed, but the log says
too little, the finest is taken that identifies the same cells with errors at most 1.5 times those of the coarsest: it
costs little and may help.

The test of feedback: do documents stand higher after they were clicked, within one stratum?

With the sums A, W of each query (`core/counts/order.py`),

    a = sum A / sum W                                by how much a surplus click moves what follows, in -log(position)
    sd = sqrt((G - 1) / G sum (A_g / (1 - h_g))^2) / sum W,       h_g = the query's share of the variance

and a / sd is judged by Student's t with min(1 / sum h^2, G - 1) degrees of freedom. What four of five logs would show
is a_80 = (t_.9875 + t_.8) sd; it would leave eta, theta = position ** -eta, off by a_80 sum C / 2 / sum C Var_p(m).

Where the ranker is known to learn, as feedback showed in longer periods, "not rejected" is too little: the upper limit
(80 %) of what feedback may do to eta,

    2 (max(a, 0) + t_.8 sd) sum C / 2 / sum C Var_p(m)

must be no larger than what the interval leaves open. The 2 is measured, on the seeds from 1000 of the benchmark: the
test rests on documents that are shown often, and those that are not, which say as much about eta, are moved further.

A page that was changed has another theta from then on, which no stratum shows. So theta of the days that hold the first
half of the impressions is compared with that of the others, each with attractiveness of its own (Hausman 1978).
"""

from dataclasses import dataclass, replace
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
from posbias.core.schema import IMPRESSIONS, Length
from posbias.core.standard_errors.contrasts import LEVEL, POWER, ContrastTest, detectable, difference_test

LEVEL_OF_EACH = LEVEL / 2
"""Level of this test, and of the comparison with halves: the two together make a false alarm in one log of twenty."""

LARGEST_MISSED_BIAS = 0.25
"""Bias of eta that feedback may cause and yet be missed by one test in five, up to which a test says enough."""

LEVEL_AFTER_FEEDBACK = 0.1
"""Level of the comparison with halves where feedback showed in longer periods."""

LEVEL_OF_STOPS = 0.01
"""Level at which a fit is not to be used; also that of the test by the order of rows, which is made of every log."""

LEAST_BIAS_BY_ROWS = 0.02
"""Change of eta implied by movement in the order of rows, from which on the propensities are not to be used."""

_MOVED_FURTHER = 2.0
"""How far documents that are shown little are moved, to those that the test rests on."""


@dataclass(frozen=True)
class FeedbackTest:
    """Whether clicks move documents within strata."""

    move: float  # a, in -log(position) of later impressions, per surplus click; above 0 where a click lifts a document
    std_error: float  # its standard error
    degrees: float  # its degrees of freedom
    p_value: float  # of a = 0, two-sided
    bias: float  # what that movement does to eta, by its size
    detectable_move: float  # a_80, the move that four of five logs like this one would show
    missed_bias: float  # what that does to eta
    largest_bias: float  # what feedback may do to eta: the upper limit
    by_rows: bool = False  # whether the order of rows is the clock

    @property
    def moves(self) -> bool:
        """Whether clicks move documents, by however little."""
        return self.p_value < (LEVEL_OF_STOPS if self.by_rows else LEVEL_OF_EACH)

    @property
    def rejected(self) -> bool:
        """Whether clicks move documents by so much that it matters."""
        return self.moves and (not self.by_rows or self.bias >= LEAST_BIAS_BY_ROWS)

    @property
    def enough(self) -> bool:
        """Whether feedback that matters would have been detected."""
        return self.missed_bias <= LARGEST_MISSED_BIAS


def feedback_test(sums: OrderSums, *, by_rows: bool = False) -> FeedbackTest | None:
    """Test that clicks do not move documents; None where fewer than two queries show several positions in order.

    Args:
        sums: by query, or by group of queries.
        by_rows: whether the order of rows is the clock.
    """
    t, p_value, error, degrees = group_t_test(sums.area, sums.variance)
    if not (np.isfinite(t) and sums.weight > 0):
        return None
    std_error, move = error / sums.weight, float(sums.area.sum()) / sums.weight
    bias_of_move = sums.clicks / 2 / sums.information if sums.information > 0 else np.inf
    detectable_move = detectable(std_error, degrees, LEVEL_OF_STOPS if by_rows else LEVEL_OF_EACH)
    largest = _MOVED_FURTHER * (max(move, 0.0) + float(scipy.special.stdtrit(degrees, POWER)) * std_error)
    return FeedbackTest(
        move=move,
        std_error=std_error,
        degrees=degrees,
        p_value=p_value,
        bias=abs(move) * bias_of_move,
        detectable_move=detectable_move,
        missed_bias=detectable_move * bias_of_move,
        largest_bias=largest * bias_of_move,
        by_rows=by_rows,
    )


def feedback_by_rows(order: RowOrder | None) -> FeedbackTest | None:
    """The same test by the order of rows; None also where rows are sorted by position or click."""
    return None if order is None or order.is_sorted else feedback_test(order.sums, by_rows=True)


LARGEST_ERROR_RATIO = 1.5
"""Standard errors, relative to those of a coarser length, up to which a finer one is taken to be on the safe side."""

Outcome = Literal[
    "survives", "feedback", "little feedback", "says too little", "cannot be looked into", "nothing to compare"
]


@dataclass(frozen=True)
class PeriodLook:
    """The tests of periods of one length.

    Attributes:
        feedback: whether clicks move documents within them, where the order within them is known: by the times that
            statistics keep, else by that of rows.
        slope_width: half the width of what the intervals leave open of eta, theta = position ** -eta; nan without any.
    """

    length: Length  # of the periods
    estimate: Estimate | None = None  # by them; None where nothing can be compared
    feedback: FeedbackTest | None = None
    halves: ContrastTest | None = None  # whether halving the strata changes the estimate, where both exist
    ordered: bool = True  # whether times within such periods are known: else feedback may not show
    learns: bool = False  # whether feedback showed at a coarser length
    slope_width: float = np.nan

    @property
    def outcome(self) -> Outcome:
        """The verdict on periods of this length."""
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
        """Whether feedback that matters would have been detected."""
        return self.feedback is not None and self.feedback.enough

    @property
    def in_doubt(self) -> bool:
        """Whether a ranker that is known to learn may do so within it, and matter."""
        if not self.learns or self.feedback is None:
            return False
        differs = self.halves is not None and self.halves.p_value < LEVEL_AFTER_FEEDBACK
        return differs or self.feedback.largest_bias > self.slope_width


@dataclass(frozen=True)
class PeriodChoice:
    """Which strata theta is estimated from, and why.

    Attributes:
        looks: the tests of each length that was looked at, from the coarsest on; one where it was given.
        error_ratio: the largest ratio of standard errors, of the length used to the coarsest; nan without a choice.
    """

    used: Length = "none"  # the length of the periods that strata are parts of
    looks: tuple[PeriodLook, ...] = ()
    error_ratio: float = np.nan

    @property
    def chosen(self) -> Estimate | None:
        """The conditional estimate of the chosen strata, where the choice needed one."""
        return self.estimate_by(self.used)

    @property
    def difference(self) -> ContrastTest | None:
        """Whether the chosen estimate differs from that of the whole log, where it is another one."""
        whole, chosen = (self.looks[0].estimate if self.looks else None), self.chosen
        return None if whole is None or chosen is None or whole is chosen else _difference(chosen, whole)

    def estimate_by(self, length: Length) -> Estimate | None:
        """The estimate by periods of a length, where it was looked at."""
        return next((look.estimate for look in self.looks if look.length == length), None)

    @property
    def survivor(self) -> PeriodLook | None:
        """The coarsest length that survives, where one does."""
        return next((look for look in self.looks if look.outcome == "survives"), None)

    @property
    def feedback_seen(self) -> bool:
        """Whether clicks were seen to move documents, at some length."""
        return any(look.outcome == "feedback" for look in self.looks)

    @property
    def feedback_is_sure(self) -> bool:
        """Whether it was seen at the level at which a fit is not to be used."""
        tests = (test for look in self.looks for test in (look.feedback, look.halves) if look.outcome == "feedback")
        return any(test.p_value < LEVEL_OF_STOPS for test in tests if test is not None)

    @property
    def claims(self) -> bool:
        """Whether what is known of feedback allows the estimate to be taken at face value."""
        return self.survivor is not None or not self.feedback_seen


def choose_period(
    statistics: SufficientStatistics, options: EstimationOptions, on_iteration: OnIteration
) -> PeriodChoice:
    """Decide by the conditional estimate, whatever method is to follow.

    Raises:
        IdentifiabilityError: nothing links two cells, not even over the whole log.
        UsageError: there is no such reference cell.
    """
    lengths = statistics.plan.lengths
    if len(lengths) == 1 and statistics.row_order is None:
        return PeriodChoice()
    if options.period != "auto":
        given = options.period if options.period in lengths else lengths[-1]
        try:
            return PeriodChoice(given, (_look(statistics, given, options, on_iteration),))
        except IdentifiabilityError:  # as the estimate will say
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
    # The length that survives, else the finest, or the finest that costs little.
    known = [look for look in looks if look.estimate is not None]
    choice = PeriodChoice(looks=tuple(looks))
    used = choice.survivor
    if used is None and choice.feedback_seen:  # the coarsest of which nothing but doubt is known, else the finest
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
    # The median over the cells of half the width of the interval of log theta, per log position.
    low, high, position = estimate.intervals.low, estimate.intervals.high, statistics.position_of_cell
    distance = np.abs(np.log(position) - np.log(position[estimate.linkage.references].min()))
    known = np.isfinite(low) & np.isfinite(high) & (low > 0) & (high > low) & (distance > 0)
    width = float(np.median(np.log(high[known] / low[known]) / 2 / distance[known])) if known.any() else np.nan
    look = PeriodLook(length, estimate, learns=learns, slope_width=width)
    if length == (statistics.plan.period or "none"):
        return replace(look, feedback=feedback_by_rows(statistics.row_order), ordered=False)
    n_parts = None if learns else statistics.parts_for_tests  # how often a ranker learns takes all that is known
    look = replace(look, feedback=feedback_test(statistics.order(length, n_parts)))
    if look.outcome == "feedback":
        return look
    in_halves, whole = (statistics.strata(length, halved=halved, n_parts=n_parts) for halved in (True, False))
    try:
        halves = ConditionalEstimator().estimate(statistics, in_halves, options, on_iteration)
        if whole is not statistics.strata(length):
            estimate = ConditionalEstimator().estimate(statistics, whole, options, on_iteration)
    except IdentifiabilityError:
        return look
    return replace(look, halves=_difference(halves, estimate))


def _error_ratio(coarse: PeriodLook, fine: PeriodLook) -> float:
    """The largest over the cells with an error; infinite where the finer one identifies fewer or lacks an error."""
    if coarse.estimate is None or fine.estimate is None:
        return np.inf
    pooled, parted = coarse.estimate, fine.estimate
    if (pooled.linkage.identified & ~parted.linkage.identified).any():
        return np.inf
    pooled_error, parted_error = pooled.intervals.std_error, parted.intervals.std_error
    has_error = np.isfinite(pooled_error) & (pooled_error > 0)
    ratio = parted_error[has_error] / pooled_error[has_error]
    return float(np.nan_to_num(ratio, nan=np.inf).max(initial=1.0))


def _difference(halves: Estimate, whole: Estimate) -> ContrastTest | None:
    """Whether the two differ by more than chance, cell by cell; None where they have different references."""
    if halves.fitted is None or whole.fitted is None:
        return None
    if not np.array_equal(halves.linkage.references, whole.linkage.references):
        return None
    return difference_test(halves.fitted.scored(), whole.fitted.scored())


@dataclass(frozen=True)
class ChangeOfTheta:
    """Theta of the earlier and of the later days of a log."""

    first_day: str  # of the later days
    before: Floats  # propensities, shape (K,)
    after: Floats
    test: ContrastTest  # of their difference, after - before

    @property
    def matters(self) -> bool:
        """Whether some propensity differs surely, and by more than a tenth."""
        differs = self.test.p_values < LEVEL_OF_CHANGE
        return bool((differs & (np.abs(np.log(self.after / self.before)) > LEAST_CHANGE)).any())


LEVEL_OF_CHANGE, LEAST_CHANGE = 0.01, 0.1
"""Level of the comparison of earlier and later days, and the least difference of log theta that matters."""


def change_of_theta(
    statistics: SufficientStatistics, used: Length, options: EstimationOptions, on_iteration: OnIteration
) -> ChangeOfTheta | None:
    """Compare theta of the days of the first half of the impressions with that of the others, where that can be."""
    if statistics.by_day is None:
        return None
    days = statistics.by_day.group_by(DAY).agg(pl.col(IMPRESSIONS).sum()).sort(DAY)
    up_to = np.cumsum(days[IMPRESSIONS].to_numpy())
    first = int(np.abs(2 * up_to[:-1] - up_to[-1]).argmin()) + 1 if len(up_to) > 1 else 0
    if not first:
        return None
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
