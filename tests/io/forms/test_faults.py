"""What may be wrong with a log of each form is counted under its reason, or refused in these words."""

import re
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from command_results import Output, Posbias, Refused, Run, invoke
from log_faults import COUNTED, REFUSED, Counted, write_small
from log_faults import Refused as Damaged
from log_forms import FORMS
from polars.testing import assert_frame_equal

Good = Callable[..., Output]
DROP = ("--on-bad-rows", "drop", "--max-bad-rows", 0.9)


def account(output: Output) -> dict[str, Any]:
    """Return what became of the lines of raw files; those used and those not used are all of them."""
    rows = output.manifest["rows"]
    (found,) = rows["raw"].values() if "raw" in rows else [rows["ubi"]]
    assert found["lines"] == sum(found["used"].values()) + sum(found["not_used"].values())
    assert sum(found["other_actions"].values()) <= found["not_used"].get("events of other actions", len(found))
    if "positions" in found:
        assert sum(found["positions"].values()) == rows["read"]
    return found


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Good:
    """Return a function that returns what is counted of a form without a fault."""

    @cache
    def of(form: str, without: int | None = None) -> Output:
        folder = tmp_path_factory.mktemp("good")
        invoke("collect", *FORMS[form].words(write_small(folder, form, without=without)), "-o", folder / "out")
        return Output(folder / "out")

    return of


def by_form(faults: list[Any]) -> list[Any]:
    """Mark all faults of a form as slow but the first two."""
    seen = Counter[str]()
    found = list[Any]()
    for fault in faults:
        seen[fault.form] += 1
        found.append(pytest.param(fault, marks=[pytest.mark.slow] if seen[fault.form] > 2 else [], id=repr(fault)[:90]))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("fault", by_form(COUNTED))
def test_what_is_odd_is_counted_under_its_reason_and_changes_nothing(
    good: Good, posbias: Posbias, tmp_path: Path, fault: Counted
) -> None:
    odd = posbias("collect", *FORMS[fault.form].words(write_small(tmp_path, fault.form, fault.lines)))

    assert_frame_equal(odd.statistics, good(fault.form).statistics)
    found, usual = account(odd), account(good(fault.form))
    of_pages = sum('"click"' in line for line in fault.lines) if "and queries of pages" in fault.reason else 0
    reasons = {fault.reason: len(fault.lines) - of_pages, "clicks on a page that is not used": of_pages}
    assert Counter(found["not_used"]) - Counter(usual["not_used"]) == +Counter(reasons)
    assert {key: found[key] for key in ("used", "positions") if key in found} == {
        key: usual[key] for key in ("used", "positions") if key in usual
    }


@pytest.mark.slow
@pytest.mark.parametrize("fault", by_form(REFUSED))
def test_a_damaged_line_stops_the_run_with_its_place_or_is_left_out(
    good: Good, run_in_process: Run, refused: Refused, tmp_path: Path, fault: Damaged
) -> None:
    files = write_small(tmp_path, fault.form, [fault.line])
    words = ("collect", *FORMS[fault.form].words(files))

    said = " ".join(refused(*words).split())
    done = run_in_process(*words, *DROP, "-o", tmp_path / "out", code=(0, 1))

    assert f"1 x {fault.reason}: {files[-1]} {fault.place}" in said
    assert re.match(r"posbias: error: (1 of (8|10) rows are not valid|Some (lines|rows) cannot be read|1 )", said)
    assert "with --on-bad-rows drop." in said
    left_out = Output(tmp_path / "out")
    assert_frame_equal(left_out.statistics, good(fault.form, fault.without).statistics)
    rows = left_out.manifest["rows"]
    if "Some lines" in said:
        assert Counter(account(left_out)["not_used"]) - Counter(account(good(fault.form))["not_used"]) == {
            fault.reason: 1
        }
    elif "cannot be read" not in said:
        assert rows["rejected"] == {fault.reason: fault.rows}
        assert rows["used"] == rows["read"] - fault.rows
        assert f"{fault.rows} left out ({fault.rows} because {fault.reason})" in " ".join(done.stderr.split())


PARQUET = [fault for fault in REFUSED if fault.form in {"sums", "well-known names without times"}]


@pytest.mark.parametrize("fault", by_form(PARQUET))
def test_a_damaged_row_of_typed_columns_is_damaged_as_well(
    good: Good, posbias: Posbias, refused: Refused, tmp_path: Path, fault: Damaged
) -> None:
    (text,) = write_small(tmp_path, fault.form, [fault.line])
    file = text.with_suffix(".parquet")
    pl.read_csv(text, infer_schema_length=None).write_parquet(file)

    said = refused("collect", *FORMS[fault.form].words([file]))
    left_out = posbias("collect", *FORMS[fault.form].words([file]), *DROP)

    assert f"1 x {fault.reason}: {file} {fault.place.partition(' (')[0]}" in said
    found = left_out.statistics.with_columns(pl.col("query", "doc").cast(pl.String))
    assert_frame_equal(found, good(fault.form, fault.without).statistics)
