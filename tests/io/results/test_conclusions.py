"""A conclusion: its verdict is as bad as the worst reason, and decides the exit code."""

from pathlib import Path

import pytest

from posbias.io.jobs.tables import Result
from posbias.io.progress import SilentProgress
from posbias.io.results.conclusions import CAUTION, CODES, GOOD, NOTE, STOP, STOPS, Reason, Severity, conclude

FEW = Reason(
    "few-queries",
    CAUTION,
    "A few queries dominate: the intervals are as wide as with 5 queries of equal size.",
    {"worth": 5.0},
)
LOST = Reason("clicks-lost", STOP, "Half of the clicks are lost.")
PASSED = Reason("model-check-passed", GOOD, "Earlier clicks make no difference.")
OFF = Reason("textbook-em-off", NOTE, "For comparison only: textbook EM would be off.")


@pytest.mark.parametrize(
    ("reasons", "verdict", "sentence"),
    [
        ([], "good", "position 5 gets 0.39."),
        ([PASSED, OFF], "good", "position 5 gets 0.39."),
        ([PASSED, FEW], "with care", "position 5 gets 0.39; but a few queries dominate."),
        ([FEW, LOST], "do not use", "clicks are lost."),
    ],
)
def test_the_verdict_is_as_bad_as_the_worst_reason_and_decides_the_exit_code(
    reasons: list[Reason], verdict: str, sentence: str, tmp_path: Path
) -> None:
    conclusion = conclude("position 5 gets 0.39", reasons, "posbias show fit")
    assert (conclusion.verdict, conclusion.conclusion, conclusion.next) == (verdict, sentence, "posbias show fit")
    result = Result(tmp_path, SilentProgress(), headline="position 5 gets 0.39", reasons=reasons)
    assert result.conclusion.verdict == verdict
    assert (result.exit_code == 1) == (verdict == "do not use")


@pytest.mark.parametrize(("code", "severity"), [("no-such-code", NOTE), ("few-queries", STOP)])
def test_a_reason_that_is_not_documented_is_refused(code: str, severity: Severity) -> None:
    with pytest.raises(ValueError, match=code):
        Reason(code, severity, "It is wrong.")


def test_every_code_that_stops_is_a_code_and_what_is_no_number_is_null() -> None:
    assert set(CODES) >= STOPS
    assert Reason("few-queries", CAUTION, "", {"worth": float("nan"), "of": 3.0}).figures == {"worth": None, "of": 3.0}
