"""What was found of feedback, and what follows from it, in words."""

import numpy as np

from posbias.core.arrays.linalg import student_quantile
from posbias.core.fit.feedback import FeedbackTest
from posbias.core.fit.periods import PeriodChoice, PeriodLook
from posbias.core.periods import Length
from posbias.core.standard_errors.contrasts import LEVEL

KEPT: dict[Length, str] = {
    "none": "the log is not parted by time",
    "week": "weeks are kept apart",
    "day": "days are kept apart",
    "hour": "hours are kept apart",
}
WITHIN: dict[Length, str] = {"none": "the whole log", "week": "a week", "day": "a day", "hour": "an hour"}


def why(choice: PeriodChoice) -> str:
    """Why the periods were chosen; empty where there was nothing to choose."""
    if not choice.looks:
        return ""
    survivor = choice.survivor
    if survivor is not None and survivor.feedback is not None:
        before = [look for look in choice.looks if look.outcome == "feedback"]
        found = f" (feedback shows within {' and '.join(WITHIN[look.length] for look in before)})" if before else ""
        return (
            f"{KEPT[choice.used]}: no feedback shows within {WITHIN[choice.used]}{found}. {_moved(survivor.feedback)}"
        )
    reasons = "; ".join(_reason(look) for look in choice.looks)
    cost = f", with errors up to {choice.error_ratio:.2g} times as large" if choice.used != "none" else ""
    return f"{KEPT[choice.used]}{cost}. {reasons[0].upper()}{reasons[1:]}."


def _reason(look: PeriodLook) -> str:
    """Why a length does not survive."""
    within, test = WITHIN[look.length], look.feedback
    if look.outcome == "nothing to compare":
        return f"within {within} nothing can be compared"
    if look.outcome == "cannot be looked into":
        return f"within {within} the log has no finer times, so that feedback would not show"
    if look.outcome == "says too little":
        return f"within {within} {_too_little(look)}"
    if test is not None and test.rejected:
        return f"within {within} clicks move documents ({_in_percent(test.move)}, p = {test.p_value:.1g})"
    p_value = np.nan if look.halves is None else look.halves.p_value
    return f"within {within} earlier and later halves differ from the whole (p = {p_value:.1g})"


def _too_little(look: PeriodLook) -> str:
    test = look.feedback
    if test is None or not np.isfinite(test.missed_bias):
        return "documents hardly move, so that feedback would not show"
    if not test.enough:
        return f"feedback that puts the slope of the curve off by {test.missed_bias:.2f} might not show"
    if test.largest_bias > look.slope_width:
        limit, width = f"{test.largest_bias:.2g}", f"{look.slope_width:.2g}"
        return f"what is left of it may put the slope of the curve off by {limit}, and the intervals allow for {width}"
    p_value = np.nan if look.halves is None else look.halves.p_value
    return f"earlier and later halves may differ from the whole (p = {p_value:.2g})"


def _moved(test: FeedbackTest) -> str:
    quantile = float(student_quantile(1 - LEVEL / 2, np.array([test.degrees]))[0])
    low, high = (test.move + sign * quantile * test.std_error for sign in (-1, 1))
    moved = f"After a click a document stands {_in_percent(test.move)}"
    interval = f"(95 % interval {_percent(low)} to {_percent(high)})"
    shown = f"feedback that puts the slope of the curve off by {test.missed_bias:.2g} would show"
    return f"{moved} {interval}; {shown} in four of five such logs"


def _in_percent(move: float) -> str:
    return f"{_percent(abs(move))} {'higher' if move >= 0 else 'lower'}"


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"
