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


def faults(frame: pl.DataFrame) -> list[int]:
    return frame[REJECTED].to_list()


def good_values(frame: pl.DataFrame, column: str) -> list[Any]:
    return frame.filter(pl.col(REJECTED) == 0)[column].to_list()


INTEGERS = [pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64]


@pytest.mark.parametrize("dtype", [*INTEGERS, pl.Float32, pl.Float64, pl.String])
def test_a_whole_position_of_any_type_is_read_as_int32(dtype: type[pl.DataType]) -> None:
    frame = read("position", pl.Series([1, 2, 120]).cast(dtype))

    assert frame["position"].dtype == pl.Int32
    assert frame["position"].to_list() == [1, 2, 120]
    assert faults(frame) == [GOOD] * 3


@pytest.mark.parametrize("dtype", [*INTEGERS, pl.Float32, pl.Float64, pl.String])
def test_a_position_above_the_base_is_good_and_one_below_is_refused(dtype: type[pl.DataType]) -> None:
    values = pl.Series([0, 1, 2]).cast(dtype)

    assert faults(read("position", values)) == [RowRejection.POSITION_BELOW_BASE, GOOD, GOOD]
    from_0 = read("position", values, ReadingRules(position_base=0))
    assert from_0["position"].to_list() == [1, 2, 3]
    assert faults(from_0) == [GOOD] * 3
    from_2 = read("position", values, ReadingRules(position_base=2))
    assert faults(from_2) == [RowRejection.POSITION_BELOW_BASE, RowRejection.POSITION_BELOW_BASE, GOOD]
    assert good_values(from_2, "position") == [1]


@pytest.mark.parametrize(
    ("values", "base", "positions"),
    [
        ([-1, -2], 1, [RowRejection.POSITION_BELOW_BASE] * 2),
        ([-1, -2], 0, [RowRejection.POSITION_BELOW_BASE] * 2),
        ([-1, -2], -2, [2, 1]),
        ([2**31 - 1, 2**31], 1, [2**31 - 1, RowRejection.POSITION_TOO_LARGE]),
        (["1.0", "2", "3.00"], 1, [1, 2, 3]),
    ],
)
def test_positions_and_faults_of_a_base(values: list[Any], base: int, positions: list[int]) -> None:
    frame = read("position", pl.Series(values), ReadingRules(position_base=base))
    found = [row["position"] if row[REJECTED] == GOOD else row[REJECTED] for row in frame.iter_rows(named=True)]
    assert found == positions


@pytest.mark.parametrize(
    ("rules", "values"),
    [
        (ReadingRules(), [-1, 2, 7, 128, 300]),
        (ReadingRules(), [-1.0, 0.5, 2.0, float("nan"), float("inf")]),
        (ReadingRules(), ["-1", "yes", "", "0.5", "nan"]),
        (COUNTS, [-1]),
        (COUNTS, [-1.0, 0.5, float("nan"), float("inf")]),
        (COUNTS, ["-1", "0.5", "many", "nan", "inf"]),
    ],
)
def test_a_click_that_is_neither_0_nor_1_or_no_count_is_refused(rules: ReadingRules, values: list[Any]) -> None:
    assert set(faults(read("click", pl.Series(values), rules))) == {RowRejection.CLICK_INVALID}


@pytest.mark.parametrize("base", [0, 1, 2])
def test_positions_that_are_too_large_are_called_that(base: int) -> None:
    rules = ReadingRules(position_base=base)
    whole = pl.Series([2**31 + 1, 2**63, 2**64 - 1], dtype=pl.UInt64)
    large = (pl.Series([2**31 + 1, 2**40, 2**63 - 1]), pl.Series([1e300]), pl.Series(["4e9"]))
    for values in (whole, whole.cast(pl.Float64), whole.cast(pl.String), *large):
        assert set(faults(read("position", values, rules))) == {RowRejection.POSITION_TOO_LARGE}
    for values in (pl.Series([1.5, float("nan"), float("inf"), float("-inf")]), pl.Series(["1.5", "x", "", "inf"])):
        assert set(faults(read("position", values, rules))) == {RowRejection.POSITION_NOT_WHOLE}


@pytest.mark.parametrize("dtype", [pl.Int64, pl.Float64, pl.String])
def test_missing_values_are_refused_by_role(dtype: type[pl.DataType]) -> None:
    missing = pl.Series([None, None], dtype=dtype)

    assert faults(read("position", missing)) == [RowRejection.POSITION_MISSING] * 2
    assert faults(read("click", missing)) == [RowRejection.CLICK_MISSING] * 2
    assert faults(read("click", missing, COUNTS)) == [RowRejection.CLICK_MISSING] * 2
    assert faults(read("session", missing)) == [RowRejection.NULL_SESSION] * 2
    assert faults(read("query", missing)) == [RowRejection.NULL_QUERY] * 2
    assert faults(read("doc", missing)) == [RowRejection.NULL_DOC] * 2


@pytest.mark.parametrize("dtype", [*INTEGERS, pl.Float32, pl.Float64, pl.String])
def test_a_click_is_0_or_1_of_any_type(dtype: type[pl.DataType]) -> None:
    frame = read("click", pl.Series([0, 1, 2]).cast(dtype))

    assert frame["click"].dtype == pl.Int8
    assert good_values(frame, "click") == [0, 1]
    assert faults(frame) == [GOOD, GOOD, RowRejection.CLICK_INVALID]


def test_a_boolean_click_is_0_or_1() -> None:
    frame = read("click", pl.Series([True, False, None]))

    assert frame["click"].dtype == pl.Int8
    assert good_values(frame, "click") == [1, 0]
    assert faults(frame) == [GOOD, GOOD, RowRejection.CLICK_MISSING]


@pytest.mark.parametrize("rules", [ReadingRules(), COUNTS])
def test_true_and_false_in_words_are_clicks(rules: ReadingRules) -> None:
    frame = read("click", pl.Series(["true", "False", "TRUE", "f", "t", "0", "1", "1.0"]), rules)

    assert good_values(frame, "click") == [1, 0, 1, 0, 1, 0, 1, 1]
    assert faults(frame) == [GOOD] * 8


@pytest.mark.parametrize("dtype", [pl.Int16, pl.UInt64, pl.Float64, pl.String])
def test_any_number_of_clicks_above_0_is_a_click_where_the_column_counts(dtype: type[pl.DataType]) -> None:
    frame = read("click", pl.Series([0, 1, 2, 300]).cast(dtype), COUNTS)

    assert frame["click"].to_list() == [0, 1, 1, 1]
    assert frame["click"].dtype == pl.Int8
    assert faults(frame) == [GOOD] * 4


@pytest.mark.parametrize("dtype", [pl.Int64, pl.Float32, pl.Float64, pl.String])
def test_a_weight_is_a_number_above_0(dtype: type[pl.DataType]) -> None:
    frame = read("w", pl.Series([1, 3, 0, -1]).cast(dtype), weight="w")

    assert frame["weight"].dtype == pl.Float64
    assert good_values(frame, "weight") == [1.0, 3.0]
    assert faults(frame) == [GOOD, GOOD, RowRejection.WEIGHT_INVALID, RowRejection.WEIGHT_INVALID]


@pytest.mark.parametrize(
    "values",
    [pl.Series([None, float("nan"), float("inf"), float("-inf")]), pl.Series([None, "x", "", "inf"])],
    ids=["float", "text"],
)
def test_a_weight_that_is_no_finite_number_is_refused(values: pl.Series) -> None:
    assert faults(read("w", values, weight="w")) == [RowRejection.WEIGHT_INVALID] * 4


MORNING = datetime(2026, 1, 6, 3, 30, tzinfo=timezone(timedelta(hours=9)))  # still January 5 in UTC


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pl.Series([date(2026, 1, 5)]), date(2026, 1, 5)),
        (pl.Series(["2026-01-05"]), date(2026, 1, 5)),
        (pl.Series(["2026-01-05T23:59:59Z"]), date(2026, 1, 5)),
        (pl.Series(["2026-01-05 23:59:59.123"]), date(2026, 1, 5)),
        (pl.Series([datetime(2026, 1, 5, 23, 59)]), date(2026, 1, 5)),  # noqa: DTZ001 - logs have such times
        (pl.Series([MORNING]).dt.convert_time_zone("Asia/Tokyo"), date(2026, 1, 5)),
    ],
    ids=["date", "text", "iso", "iso-with-blank", "datetime", "zone"],
)
def test_the_period_is_the_calendar_day_in_utc(values: pl.Series, expected: date) -> None:
    frame = read("time", values, DAILY, timestamp="time")

    assert frame["period"].to_list() == [expected]
    assert faults(frame) == [GOOD]


def test_the_day_of_text_with_an_offset_is_the_one_that_is_written() -> None:
    text = read("time", pl.Series([MORNING.isoformat()]), DAILY, timestamp="time")

    assert text["period"].to_list() == [MORNING.date()]


@pytest.mark.parametrize("dtype", [pl.Int64, pl.Float64, pl.String])
def test_numbers_are_days_in_one_unit_and_refused_where_they_are_none_in_it(dtype: type[pl.DataType]) -> None:
    seconds = [1767571200, 1767657599]
    others = pl.Series([20260105, 2026010512000, 20458, 0, -1, 99_999_999_999, None])
    values = pl.Series(seconds).append(others).cast(pl.Int64).cast(dtype)
    unit = time_unit_of(pl.Series(seconds))

    frame = read("time", values, ReadingRules(period="day", time_unit=unit), timestamp="time")

    assert frame["period"].to_list() == [date(2026, 1, 5)] * 2 + [None] * 7
    assert faults(frame) == [GOOD] * 2 + [RowRejection.TIMESTAMP_INVALID] * 7


def test_a_date_beyond_all_calendars_is_refused() -> None:
    far = pl.Series([10**7]).cast(pl.Date)

    assert faults(read("time", far, DAILY, timestamp="time")) == [RowRejection.TIMESTAMP_INVALID]


def test_text_is_a_time_only_where_a_clock_and_a_zone_can_show_it() -> None:
    good = ["", "T00:00", " 1:05", "T23:59:60.5Z", "T24:00:00", " 10:00:00.123-0830", "T10:00+14:00[Pacific/Apia]"]
    bad = ["T25:00:00Z", "T99:00", "T24:30", " 10:61", "T10:00:75Z", "T10:00:00+99:99", " 10:00 -2000"]
    values = pl.Series([f"2026-01-05{clock}" for clock in (*good, *bad)])

    expected = [GOOD] * len(good) + [RowRejection.TIMESTAMP_INVALID] * len(bad)
    assert faults(read("time", values, DAILY, timestamp="time")) == expected


@pytest.mark.parametrize("dtype", [pl.Int128, pl.UInt128, pl.List(pl.Int64), pl.Struct({"a": pl.Int64})])
@pytest.mark.parametrize("role", ["context", "stratify"])
def test_rows_are_told_apart_by_plain_values_only(role: str, dtype: pl.DataType) -> None:
    roles: dict[str, Any] = {role: ("kind",)}

    with pytest.raises(SchemaError, match=rf"'kind' \(--{role}\) holds"):
        read("kind", pl.Series([None], dtype=dtype), **roles)


def test_what_is_no_date_is_refused_only_where_days_are_asked_for() -> None:
    values = pl.Series(["yesterday", None, "2026-13-01"])

    assert faults(read("time", values, DAILY, timestamp="time")) == [RowRejection.TIMESTAMP_INVALID] * 3
    assert faults(read("time", values, timestamp="time")) == [GOOD] * 3


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

    assert faults(frame) == [GOOD, RowRejection.NULL_QUERY, RowRejection.NULL_SESSION]
    assert frame["session"][0] == {"visit": 1, "page": "a"}
    assert frame["query"][0] == {"query": "x", "language": "en"}


def test_a_row_with_several_faults_is_counted_under_the_first() -> None:
    raw = pl.LazyFrame({"session": [None], "query": [None], "doc": [None], "position": [None], "click": [None]})
    raw = raw.cast({"position": pl.Int64, "click": pl.Int64})
    roles = Roles(("session",), ("query",), ("doc",), "position", "click")

    frame = canonical_impressions(raw, roles, raw.collect_schema(), ReadingRules()).collect()
    assert faults(frame) == [min(RowRejection)]


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
    found = pages(shown).filter(pl.col(REJECTED) > 0).collect()

    expected = {
        (session, len(page), int(fault)) for session, page in enumerate(drawn) if (fault := brute_fault(page)) != GOOD
    }
    assert set(found.select("session", "rows", REJECTED).rows()) == expected


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
