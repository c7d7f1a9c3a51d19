"""Rows and pages that cannot be counted are named by file, row and value, or left out on request."""

import json

import polars as pl
import pytest
from workshop import N_POSITIONS, N_SESSIONS, ROW, Make, Row, Workshop, assert_refused, attempt, case, good_rows

# --- rows -----------------------------------------------------------------------------------------------------

ROW_FAULTS = [
    ("session", None, "the session is missing", ()),
    ("query", None, "the query is missing", ()),
    ("doc", None, "the document is missing", ()),
    ("position", None, "the position is missing", ()),
    ("position", "1.5", "the position is not a whole number", ()),
    ("position", "abc", "the position is not a whole number", ()),
    ("position", "3000000000", "the position is too large", ()),
    ("position", "0", "the position is below the base", ("--position-base 0",)),
    ("position", "-2", "the position is below the base", ()),
    ("click", None, "the click is missing", ()),
    ("click", "2", "the click is neither 0 nor 1", ("--click-counts",)),
    ("click", "-1", "the click is neither 0 nor 1", ()),
    ("click", "yes", "the click is neither 0 nor 1", ()),
    ("click", "nan", "the click is neither 0 nor 1", ()),
]
WEIGHT_FAULTS = ["0", "-1", "nan", "inf", "heavy", None]


def shown(column: str, value: object) -> str:
    """How a value stands in a message."""
    return f"({column} = {value!r})"


@pytest.mark.parametrize(("column", "value", "reason", "advice"), ROW_FAULTS)
def test_a_faulty_row_is_named_with_file_row_and_value(
    workshop: Workshop, column: str, value: str | None, reason: str, advice: tuple[str, ...]
) -> None:
    log = workshop.log_with(column, value)
    says = (f"1 of {len(good_rows())} rows", f"1 x {reason}", f"{log} row {ROW} {shown(column, value)}", *advice)
    assert_refused(attempt(workshop, "run", log), workshop, *says, "--on-bad-rows drop")


@pytest.mark.parametrize(("column", "value", "reason", "advice"), ROW_FAULTS)
def test_a_faulty_row_is_left_out_and_counted_on_request(
    workshop: Workshop, column: str, value: str | None, reason: str, advice: tuple[str, ...]
) -> None:
    del advice
    done = attempt(workshop, "run", workshop.log_with(column, value), "--on-bad-rows", "drop")
    assert done.returncode == 0, done.stderr
    assert rows_of(workshop) == {"read": 120, "used": 119, "rejected": {reason: 1}}
    assert f"1 left out (1 because {reason})" in done.stderr
    assert impressions_of(workshop) == 119


@pytest.mark.parametrize("value", WEIGHT_FAULTS)
def test_a_weight_that_is_not_above_0_is_named_and_left_out_on_request(workshop: Workshop, value: str | None) -> None:
    rows = [{**row, "times": 2} for row in good_rows()]
    rows[ROW - 1]["times"] = value
    log = workshop.log(rows=rows)
    reason = "the weight is not a number above 0"
    weighted = ("run", log, "--weight-column", "times")
    says = (f"1 x {reason}", f"{log} row {ROW} {shown('times', value)}")
    assert_refused(attempt(workshop, *weighted), workshop, *says)
    done = attempt(workshop, *weighted, "--on-bad-rows", "drop")
    assert done.returncode == 0, done.stderr
    assert rows_of(workshop) == {"read": 120, "used": 119, "rejected": {reason: 1}}
    assert impressions_of(workshop) == 2 * 119


def rows_of(workshop: Workshop) -> dict[str, object]:
    """What the manifest says about the rows."""
    return json.loads((workshop.output / "manifest.json").read_text(encoding="utf-8"))["rows"]


def impressions_of(workshop: Workshop) -> float:
    """Impressions that were counted."""
    return float(pl.read_parquet(workshop.output / "propensities.parquet")["impressions"].sum())


def test_positions_from_0_are_told_from_stray_ones_and_work_with_the_advice(workshop: Workshop) -> None:
    from_1 = workshop.log("from_1.csv")
    from_0 = workshop.log("from_0.csv", [{**row, "position": int(str(row["position"])) - 1} for row in good_rows()])
    done = attempt(workshop, "run", from_0)
    assert_refused(done, workshop, f"{N_SESSIONS} x the position is below the base", "say --position-base 0")
    found = {log: workshop.folder.parent / log.stem for log in (from_0, from_1)}
    assert workshop.run("fit", from_0, "-o", found[from_0], "--position-base", "0").returncode == 0
    assert workshop.run("fit", from_1, "-o", found[from_1]).returncode == 0
    tables = [(folder / "propensities.parquet").read_bytes() for folder in found.values()]
    assert tables[0] == tables[1]


def test_rows_are_located_in_their_own_file_among_several_of_every_format(workshop: Workshop) -> None:
    rows = good_rows()
    for number, name in ((1, "a"), (40, "b"), (120, "c")):  # the first row, one between, the last
        broken = [{**row, "session": f"{name}{row['session']}", "doc": str(row["doc"])} for row in rows]
        broken[number - 1]["position"] = -number
        frame = pl.DataFrame(broken)
        frame.write_csv(workshop.folder / f"{name}.csv")
        frame.write_parquet(workshop.folder / f"{name}.parquet", row_group_size=50)
        frame.write_ndjson(workshop.folder / f"{name}.ndjson")
    for ending in ("csv", "parquet", "ndjson"):
        files = [workshop.folder / f"{name}.{ending}" for name in "abc"]
        values = [-number if ending == "parquet" else str(-number) for number in (1, 40, 120)]  # text has no types
        places = [
            f"{file} row {number} {shown('position', value)}"
            for file, number, value in zip(files, (1, 40, 120), values, strict=True)
        ]
        done = attempt(workshop, "run", *files)
        assert_refused(done, workshop, "3 of 360 rows", "; ".join(places))


def test_only_the_first_rows_of_a_reason_are_shown(workshop: Workshop) -> None:
    rows = [{**row, "position": -1, "click": "maybe"} for row in good_rows()]
    done = attempt(workshop, "run", workshop.log(rows=rows))
    assert_refused(done, workshop, "120 of 120 rows", "120 x the position is below the base")
    assert done.stderr.count(" row ") == 3


def test_a_log_of_faulty_rows_only_is_refused_also_when_they_are_left_out(workshop: Workshop) -> None:
    rows: list[Row] = [{**row, "click": "maybe"} for row in good_rows()]
    done = attempt(workshop, "run", workshop.log(rows=rows), "--on-bad-rows", "drop")
    assert_refused(done, workshop, "every row was rejected", "120 x the click is neither 0 nor 1")


# --- pages ----------------------------------------------------------------------------------------------------


def visits() -> list[Row]:
    """Two results pages a visit, told apart by the time of the query."""
    return [
        {**row, "session": f"v{index // (2 * N_POSITIONS)}", "query_time": index // N_POSITIONS}
        for index, row in enumerate(good_rows())
    ]


@pytest.mark.parametrize("model", ["pbm", "ubm"])
def test_a_visit_is_told_from_a_session(workshop: Workshop, model: str) -> None:
    log = workshop.log(rows=[{("visit" if key == "session" else key): v for key, v in r.items()} for r in visits()])
    arguments = ("run", log, "--model", model)
    done = attempt(workshop, *arguments, "--session", "visit")
    assert_refused(done, workshop, "several queries", "a visit", "--session visit --session query_time", f"{log} row")
    done = attempt(workshop, *arguments, "--session", "visit", "--session", "query_time")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("model", ["pbm", "ubm"])
@pytest.mark.parametrize(
    ("column", "reason"), [("doc", "shows a document twice"), ("position", "shows a position twice")]
)
def test_a_page_that_repeats_itself_is_named_and_left_out_on_request(
    workshop: Workshop, model: str, column: str, reason: str
) -> None:
    log = workshop.log_with(column, good_rows()[ROW - 2][column])
    done = attempt(workshop, "run", log, "--model", model)
    assert_refused(done, workshop, "1 x the session", reason, f"{log} row 4 (session = 's1')", "--on-bad-rows drop")
    done = attempt(workshop, "run", log, "--model", model, "--on-bad-rows", "drop")
    assert done.returncode == 0, done.stderr
    assert rows_of(workshop) == {"read": 120, "used": 117, "rejected": {f"the session {reason}": 3}}


def test_visits_are_refused_even_where_faulty_pages_are_left_out(workshop: Workshop) -> None:
    done = attempt(workshop, "run", workshop.log(rows=visits()), "--on-bad-rows", "drop")
    assert_refused(done, workshop, "several queries", "a visit")


# --- what a log cannot say ------------------------------------------------------------------------------------

UNSAYABLE = [
    case(
        "no click", lambda w: ["run", w.log(rows=[{**row, "click": 0} for row in good_rows()])], "no click", "--click"
    ),
    case("one position", lambda w: ["run", w.log(rows=good_rows()[::N_POSITIONS])], "position"),
    case(
        "no pair at two positions",
        lambda w: ["run", w.log(rows=[{**row, "doc": f"d{row['position']}"} for row in good_rows()])],
        "no document was shown at two positions",
        "more days",
    ),
]


@pytest.mark.parametrize(("make", "says"), UNSAYABLE)
@pytest.mark.parametrize("method", ["conditional", "joint"])
def test_a_log_that_cannot_say_it_is_refused_with_what_would_help(
    workshop: Workshop, make: Make, says: tuple[str, ...], method: str
) -> None:
    assert_refused(attempt(workshop, *make(workshop), "--method", method), workshop, *says)
