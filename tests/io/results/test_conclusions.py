"""A conclusion: its verdict is as bad as the worst reason, and decides the exit code."""

import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from posbias.io.jobs.tables import Result
from posbias.io.progress import SilentProgress
from posbias.io.results.conclusions import CAUTION, CODES, GOOD, NOTE, STOP, STOPS, Reason, Severity, conclude, reason

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


def test_every_entry_and_case_has_a_severity_where_it_has_a_sentence() -> None:
    entries: dict[str, dict[str, Any]] = tomllib.loads(
        files("posbias.io.results").joinpath("reasons.toml").read_text(encoding="utf-8")
    )
    known = {"meaning", "condition", "severity", "sentence", "more", "advice"}
    for code, entry in entries.items():
        cases: list[dict[str, str]] = [case for case in entry.values() if isinstance(case, dict)]
        assert {name for name, value in entry.items() if isinstance(value, str)} <= known, code
        assert all(case.keys() <= known - {"meaning", "condition"} for case in cases), code
        assert "severity" in entry or "meaning" not in entry or not ("sentence" in entry or cases), code
        assert {entry.get("severity"), *(case.get("severity") for case in cases)} <= {GOOD, NOTE, CAUTION, STOP, None}


@pytest.mark.parametrize(
    ("number", "words"), [(1, "1 document has no judgment and is"), (2000, "2,000 documents have")]
)
def test_a_sentence_counts_and_has_the_verb_that_goes_with_it(number: int, words: str) -> None:
    one = reason("documents-without-judgment", {"documents": number})
    assert one.sentence.startswith(words)
    assert (one.severity, one.figures) == (CAUTION, {"documents": number})
    doubtful = reason("not-converged.unchecked", {"iterations": 1}, "method joint", severity=CAUTION)
    assert (doubtful.code, doubtful.severity, doubtful.details) == ("not-converged", CAUTION, "method joint")
    assert doubtful.sentence.endswith("whether it had converged was not checked (--tolerance 0).")
