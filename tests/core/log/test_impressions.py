"""The row contract, one kind of value at a time: what is read as what, and which rows are refused and why."""

from collections.abc import Sequence
from datetime import date, datetime, timedelta, timezone
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posbias.core.errors import SchemaError
from posbias.core.log.impressions import (
    REJECTED,
    TIME_UNITS,
    ReadingRules,
    RowRejection,
    canonical_impressions,
    time_unit_of,
)
from posbias.core.log.pages import PageRejection, pages
from posbias.core.schema import Roles

GOOD = 0
COUNTS = ReadingRules(click_counts=True)
DAILY = ReadingRules(period="day")
SETTINGS = settings(max_examples=60, deadline=None, derandomize=True)


def read(column: str, values: pl.Series, rules: ReadingRules = ReadingRules(), **roles: Any) -> pl.DataFrame:  # noqa: ANN401, B008
    """Read rows that are good but for one column, given by role."""
    size = len(values)
    columns: dict[str, pl.Series] = {
        "session": pl.Series(range(size), dtype=pl.Int64),
        "query": pl.Series(["q"] * size, dtype=pl.String),
        "doc": pl.Series(range(size), dtype=pl.Int64),
        "position": pl.Series([1] * size, dtype=pl.Int32),
        "click": pl.Series([0] * size, dtype=pl.Int8),
    }
    raw = pl.LazyFrame(columns | {column: values})
    all_roles = Roles(("session",), ("query",), ("doc",), "position", "click", **roles)
    return canonical_impressions(raw, all_roles, raw.collect_schema(), rules).collect()


def found(column: str, values: pl.Series, rules: ReadingRules = ReadingRules()) -> list[Any]:  # noqa: B008
    """What is read of each row, or the name of its fault."""
    roles = {"w": {"weight": "w"}, "time": {"timestamp": "time"}}.get(column, {})
    frame, name = read(column, values, rules, **roles), {"w": "weight", "time": "period"}.get(column, column)
    assert frame[name].dtype == {"position": pl.Int32, "click": pl.Int8, "w": pl.Float64}.get(column, frame[name].dtype)
    return [row[name] if row[REJECTED] == GOOD else RowRejection(row[REJECTED]) for row in frame.iter_rows(named=True)]


INTEGERS = [pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64]
NUMBERS = [*INTEGERS, pl.Float32, pl.Float64, pl.String]
ANY = [pl.Int64, pl.Float64, pl.String]
NO_NUMBERS = [float("nan"), float("inf"), float("-inf")]
LOW, LARGE, NOT_WHOLE = (getattr(RowRejection, f"POSITION_{why}") for why in ("BELOW_BASE", "TOO_LARGE", "NOT_WHOLE"))
NO_CLICK, NO_WEIGHT, NO_TIME = (getattr(RowRejection, f"{what}_INVALID") for what in ("CLICK", "WEIGHT", "TIMESTAMP"))
DAY = date(2026, 1, 5)
MORNING = datetime(2026, 1, 6, 3, 30, tzinfo=timezone(timedelta(hours=9)))  # still January 5 in UTC
CLOCKS = ["", "T00:00", " 1:05", "T23:59:60.5Z", "T24:00:00", " 10:00:00.123-0830", "T10:00+14:00[Pacific/Apia]"]
NO_CLOCKS = ["T25:00:00Z", "T99:00", "T24:30", " 10:61", "T10:00:75Z", "T10:00:00+99:99", " 10:00 -2000"]
BASES = {base: ReadingRules(position_base=base) for base in (0, 1, 2, -2)}

READ: list[tuple[str, Sequence[object], list[Any], ReadingRules, list[object]]] = [
    # the column, its values, the types that they may have, and what is read, or the fault
    ("position", [1, 2, 120], NUMBERS, BASES[1], [1, 2, 120]),
    ("position", [0, 1, 2], NUMBERS, BASES[1], [LOW, 1, 2]),
    ("position", [0, 1, 2], NUMBERS, BASES[0], [1, 2, 3]),
    ("position", [0, 1, 2], NUMBERS, BASES[2], [LOW, LOW, 1]),
    *(("position", [-1, -2], [pl.Int64], BASES[base], [LOW, LOW]) for base in (0, 1)),
    ("position", [-1, -2], [pl.Int64], BASES[-2], [2, 1]),
    ("position", [2**31 - 1, 2**31], [pl.Int64], BASES[1], [2**31 - 1, LARGE]),
    ("position", ["1.0", "2", "3.00"], [pl.String], BASES[1], [1, 2, 3]),
    *(
        ("position", values, types, BASES[base], [fault] * len(values))
        for base in (0, 1, 2)
        for values, types, fault in (
            ([2**31 + 1, 2**63, 2**64 - 1], [pl.UInt64, pl.Float64, pl.String], LARGE),
            ([2**31 + 1, 2**40, 2**63 - 1], [pl.Int64], LARGE),
            ([1e300], [pl.Float64], LARGE),
            (["4e9"], [pl.String], LARGE),
            ([1.5, *NO_NUMBERS], [pl.Float64], NOT_WHOLE),
            (["1.5", "x", "", "inf"], [pl.String], NOT_WHOLE),
        )
    ),
    ("position", [None], ANY, BASES[1], [RowRejection.POSITION_MISSING]),
    *((role, [None], ANY, BASES[1], [RowRejection[f"NULL_{role.upper()}"]]) for role in ("session", "query", "doc")),
    *(("click", [None], ANY, rules, [RowRejection.CLICK_MISSING]) for rules in (BASES[1], COUNTS)),
    ("click", [0, 1, 2], NUMBERS, BASES[1], [0, 1, NO_CLICK]),
    ("click", [True, False, None], [pl.Boolean], BASES[1], [1, 0, RowRejection.CLICK_MISSING]),
    *(
        ("click", ["true", "False", "TRUE", "f", "t", "0", "1", "1.0"], [pl.String], rules, [1, 0, 1, 0, 1, 0, 1, 1])
        for rules in (BASES[1], COUNTS)
    ),
    ("click", [0, 1, 2, 300], [pl.Int16, pl.UInt64, pl.Float64, pl.String], COUNTS, [0, 1, 1, 1]),
    ("click", [-1, 2, 7, 128, 300], [pl.Int64], BASES[1], [NO_CLICK] * 5),
    ("click", [-1.0, 0.5, 2.0, *NO_NUMBERS], [pl.Float64], BASES[1], [NO_CLICK] * 6),
    ("click", ["-1", "yes", "", "0.5", "nan"], [pl.String], BASES[1], [NO_CLICK] * 5),
    ("click", [-1], [pl.Int64], COUNTS, [NO_CLICK]),
    ("click", [-1.0, 0.5, *NO_NUMBERS], [pl.Float64], COUNTS, [NO_CLICK] * 5),
    ("click", ["-1", "0.5", "many", "nan", "inf"], [pl.String], COUNTS, [NO_CLICK] * 5),
    ("w", [1, 3, 0, -1], [pl.Int64, pl.Float32, pl.Float64, pl.String], BASES[1], [1.0, 3.0, NO_WEIGHT, NO_WEIGHT]),
    ("w", [None, *NO_NUMBERS], [pl.Float64], BASES[1], [NO_WEIGHT] * 4),
    ("w", [None, "x", "", "inf"], [pl.String], BASES[1], [NO_WEIGHT] * 4),
    ("time", [DAY], [pl.Date, pl.String], DAILY, [DAY]),
    ("time", ["2026-01-05T23:59:59Z", "2026-01-05 23:59:59.123"], [pl.String], DAILY, [DAY, DAY]),
    ("time", [datetime(2026, 1, 5, 23, 59)], [pl.Datetime("us")], DAILY, [DAY]),  # noqa: DTZ001 - logs have such times
    ("time", [MORNING], [pl.Datetime("us", "Asia/Tokyo")], DAILY, [DAY]),
    ("time", [MORNING.isoformat()], [pl.String], DAILY, [MORNING.date()]),  # of text, the day that is written
    ("time", ["yesterday", None, "2026-13-01"], [pl.String], DAILY, [NO_TIME] * 3),
    ("time", [f"2026-01-05{clock}" for clock in NO_CLOCKS], [pl.String], DAILY, [NO_TIME] * len(NO_CLOCKS)),
]


@pytest.mark.parametrize(("column", "values", "types", "rules", "expected"), READ)
def test_what_is_read_of_a_value_of_any_type_and_which_fault_it_has(
    column: str, values: Sequence[object], types: list[Any], rules: ReadingRules, expected: list[object]
) -> None:
    for dtype in types:
        series = (
            pl.Series(values).cast(dtype) if types[0] != pl.UInt64 else pl.Series(values, dtype=types[0]).cast(dtype)
        )
        read_as = found(column, series, rules)
        assert [(type(value), value) for value in read_as] == [(type(value), value) for value in expected], dtype


def test_text_is_a_time_only_where_a_clock_and_a_zone_can_show_it() -> None:
    frame = read("time", pl.Series([f"2026-01-05{clock}" for clock in CLOCKS]), DAILY, timestamp="time")
    assert set(frame[REJECTED]) == {GOOD}


def test_where_no_days_are_asked_for_no_time_is_refused() -> None:
    frame = read("time", pl.Series(["yesterday", None, "2026-13-01"]), timestamp="time")
    assert set(frame[REJECTED]) == {GOOD}


def test_a_date_beyond_all_calendars_is_refused() -> None:
    assert found("time", pl.Series([10**7]).cast(pl.Date), DAILY) == [NO_TIME]


@pytest.mark.parametrize("dtype", ANY)
def test_numbers_are_days_in_one_unit_and_refused_where_they_are_none_in_it(dtype: type[pl.DataType]) -> None:
    seconds = [1767571200, 1767657599]
    others = pl.Series([20260105, 2026010512000, 20458, 0, -1, 99_999_999_999, None])
    values = pl.Series(seconds).append(others).cast(pl.Int64).cast(dtype)
    rules = ReadingRules(period="day", time_unit=time_unit_of(pl.Series(seconds)))

    assert found("time", values, rules) == [DAY] * 2 + [NO_TIME] * 7


@pytest.mark.parametrize("dtype", [pl.Int128, pl.UInt128, pl.List(pl.Int64), pl.Struct({"a": pl.Int64})])
@pytest.mark.parametrize("role", ["context", "stratify"])
def test_rows_are_told_apart_by_plain_values_only(role: str, dtype: pl.DataType) -> None:
    roles: dict[str, Any] = {role: ("kind",)}

    with pytest.raises(SchemaError, match=rf"'kind' \(--{role}\) holds"):
        read("kind", pl.Series([None], dtype=dtype), **roles)


@pytest.mark.parametrize("dtype", [pl.Int32, pl.Int64, pl.UInt64, pl.String, pl.Binary, pl.Categorical])
def test_keys_keep_their_type_and_values(dtype: type[pl.DataType]) -> None:
    text = pl.Series(["007", "7", "70"])
    values = text.cast(dtype) if dtype in {pl.String, pl.Binary, pl.Categorical} else text.cast(pl.Int64).cast(dtype)
    for role in ("session", "query", "doc"):
        kept = read(role, values)[role]
        assert kept.dtype == dtype
        assert kept.to_list() == values.to_list()


def test_several_columns_form_one_key_and_none_of_them_may_be_missing() -> None:
    raw = pl.LazyFrame(
        {
            "visit": [1, 1, None],
            "page": ["a", "b", "c"],
            "query": ["x", None, "x"],
            "language": ["en", "en", "de"],
            "doc": [1, 1, 1],
            "position": [1, 1, 1],
            "click": [0, 1, 0],
        }
    )
    roles = Roles(("visit", "page"), ("query", "language"), ("doc",), "position", "click")
    frame = canonical_impressions(raw, roles, raw.collect_schema(), ReadingRules()).collect()

    assert frame[REJECTED].to_list() == [GOOD, RowRejection.NULL_QUERY, RowRejection.NULL_SESSION]
    assert frame["session"][0] == {"visit": 1, "page": "a"}
    assert frame["query"][0] == {"query": "x", "language": "en"}


def test_a_row_with_several_faults_is_counted_under_the_first() -> None:
    raw = pl.LazyFrame({"session": [None], "query": [None], "doc": [None], "position": [None], "click": [None]})
    raw = raw.cast({"position": pl.Int64, "click": pl.Int64})
    roles = Roles(("session",), ("query",), ("doc",), "position", "click")

    frame = canonical_impressions(raw, roles, raw.collect_schema(), ReadingRules()).collect()
    assert frame[REJECTED].to_list() == [min(RowRejection)]


def test_strata_are_kept_as_they_came_and_other_columns_are_dropped() -> None:
    frame = read("segment", pl.Series(["a", None]), stratify=("segment",))

    assert frame.columns == ["session", "query", "doc", "position", "click", "segment", REJECTED]
    assert frame["segment"].to_list() == ["a", None]


@pytest.mark.parametrize(
    ("column", "values", "roles"),
    [
        ("position", pl.Series([True]), {}),
        ("position", pl.Series([[1]]), {}),
        ("position", pl.Series([date(2026, 1, 5)]), {}),
        ("click", pl.Series([[1]]), {}),
        ("w", pl.Series([[1.0]]), {"weight": "w"}),
        ("time", pl.Series([[1]]), {"timestamp": "time"}),
    ],
    ids=["boolean-position", "list-position", "date-position", "list-click", "list-weight", "list-time"],
)
def test_a_type_that_cannot_play_its_role_is_an_error_that_names_the_column(
    column: str, values: pl.Series, roles: dict[str, str]
) -> None:
    with pytest.raises(SchemaError, match=f"'{column}'"):
        read(column, values, DAILY, **roles)


def brute_fault(page: Sequence[tuple[int, int, int]]) -> int:
    """The fault of one page given as (query, doc, position)."""
    queries, docs, positions = zip(*page, strict=True)
    if len(set(queries)) > 1:
        return PageRejection.SEVERAL_QUERIES
    if len(set(docs)) < len(page):
        return PageRejection.REPEATED_DOC
    return PageRejection.REPEATED_POSITION if len(set(positions)) < len(page) else GOOD


PAGE = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 20), st.integers(1, 20)), min_size=1, max_size=4)


@SETTINGS
@given(st.lists(PAGE, min_size=1, max_size=5))
def test_a_page_holds_one_query_and_each_document_and_position_once(drawn: list[list[tuple[int, int, int]]]) -> None:
    rows = [(session, *row) for session, page in enumerate(drawn) for row in page]
    names = ["session", "query", "doc", "position"]
    shown = pl.LazyFrame(rows, schema=names, orient="row").with_columns(click=pl.lit(0))
    faulty = pages(shown).filter(pl.col(REJECTED) > 0).collect()

    expected = {
        (session, len(page), int(fault)) for session, page in enumerate(drawn) if (fault := brute_fault(page)) != GOOD
    }
    assert set(faulty.select("session", "rows", REJECTED).rows()) == expected


QUARTER = "2026-01-05 13:30:00"


@pytest.mark.parametrize(
    ("values", "unit"),
    [
        (["2026-01-05T13:44:59Z"], None),
        (["2026-01-05 13:44:59.5"], None),
        ([datetime.fromisoformat("2026-01-05T13:44:59")], None),
        ([1_767_620_699], "seconds since 1970"),
        ([1_767_620_699_000], "milliseconds since 1970"),
        ([202601051344], "yyyymmddhhmm"),
    ],
)
def test_a_time_lies_in_its_quarter_of_an_hour_however_it_is_written(values: list[object], unit: str | None) -> None:
    known = next((entry for entry in TIME_UNITS if entry.words == unit), None)
    rules = ReadingRules(period="quarter", time_unit=known)
    frame = read("time", pl.Series(values), rules, timestamp="time")

    assert frame["period"].cast(pl.String).str.slice(0, 19).to_list() == [QUARTER]


def test_a_date_without_a_time_lies_in_the_first_quarter_of_its_day() -> None:
    frame = read("time", pl.Series(["2026-01-05"]), ReadingRules(period="quarter"), timestamp="time")

    assert frame["period"].to_list() == [datetime.fromisoformat("2026-01-05")]
