"""Rows as numbers: what fits comes back as it was and in its order, and what does not fit is known."""

from datetime import UTC, date, datetime

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from present import present

from posbias.core.arrays.packing import NUMBER, bit_fields

SETTINGS = settings(max_examples=80, deadline=None, derandomize=True)
SCHEMA = {
    "query": pl.Int64,
    "doc": pl.UInt32,
    "device": pl.Int8,
    "day": pl.Date,
    "hour": pl.Datetime("us"),
    "logged_in": pl.Boolean,
    "click": pl.Int8,
}


def in_utc(*moment: int) -> datetime:
    return datetime(*moment, tzinfo=UTC).replace(tzinfo=None)  # pyright: ignore[reportArgumentType]


ROWS = st.fixed_dictionaries(
    {
        "query": st.integers(-(2**16), 2**16),
        "doc": st.sampled_from([0, 1, 70_000]),
        "device": st.integers(-128, 127),
        "day": st.dates(date(1969, 12, 1), date(1970, 2, 1)),
        "hour": st.sampled_from([in_utc(1969, 12, 31, 23, 45), in_utc(1970, 1, 1, 2, 0)]),
        "logged_in": st.booleans(),
        "click": st.integers(0, 1),
    }
)


@pytest.mark.slow
@SETTINGS
@given(st.lists(ROWS, min_size=1, max_size=20))
def test_rows_come_back_as_they_were_and_in_their_order(rows: list[dict[str, object]]) -> None:
    log = pl.DataFrame(rows, schema=SCHEMA)
    fields = present(bit_fields(log, growing=("query", "doc"), known={"click": 1}))
    assert fields.names == tuple(SCHEMA)
    assert log.select(fields.fit).to_series().all()
    numbers = log.select(fields.number)
    assert numbers.schema == {NUMBER: pl.UInt64}
    assert_frame_equal(numbers.select(fields.values), log)
    assert_frame_equal(numbers.sort(NUMBER).select(fields.values), log.sort(log.columns))


def test_days_and_times_have_places_as_far_from_those_seen_as_these_are_apart() -> None:
    seen = pl.DataFrame({"day": [date(2026, 1, 10), date(2026, 1, 20)]})
    seen = seen.with_columns(hour=pl.col("day").cast(pl.Datetime("us")))
    fields = present(bit_fields(seen.select("day", "hour"), growing=(), known={}))
    near = pl.concat(seen.select("day", "hour").select(pl.all().dt.offset_by(by)) for by in ("-10d", "0d", "10d"))
    assert near.select(fields.fit).to_series().all()
    assert_frame_equal(near.select(fields.number).select(fields.values), near)
    assert not seen.select(pl.all().dt.offset_by("-10y")).select(fields.fit).to_series().any()
    assert sum(field.bits for field in fields.fields) < 2 * 16


SEEN = pl.DataFrame({"query": [0, 900], "position": [1, 10]}, schema={"query": pl.Int64, "position": pl.Int32})


@pytest.mark.parametrize(
    ("query", "position", "fits"),
    [
        (0, 1, True),
        (900 * 2**20, 40, True),
        (None, 1, False),
        (1, None, False),
        (-1, 1, False),
        (2**62, 1, False),
        (1, 2**20, False),
    ],
)
def test_what_was_not_seen_fits_where_it_has_its_place_in_the_bits(
    query: int | None, position: int | None, *, fits: bool
) -> None:
    fields = present(bit_fields(SEEN, growing=("query",), known={}))
    row = pl.DataFrame({"query": [query], "position": [position]}, schema=SEEN.schema)
    assert row.select(fields.fit).item() is fits
    if fits:
        assert_frame_equal(row.select(fields.number).select(fields.values), row)


@pytest.mark.parametrize(
    "column",
    [
        pl.Series([0.5]),
        pl.Series(["a"]),
        pl.Series([-(2**63)]),
        pl.Series([2**64 - 1], dtype=pl.UInt64),
        pl.Series([None], dtype=pl.Int64),
        pl.Series([], dtype=pl.Int64),
        pl.Series([in_utc(2026, 1, 1, 0, 7)]),
    ],
    ids=repr,
)
def test_other_columns_have_no_bits(column: pl.Series) -> None:
    assert bit_fields(column.rename("value").to_frame(), growing=(), known={}) is None


def test_numbers_beyond_64_bits_that_come_later_do_not_fit() -> None:
    fields = present(bit_fields(pl.DataFrame({"doc": pl.Series([1, 5], dtype=pl.UInt64)}), growing=("doc",), known={}))
    later = pl.DataFrame({"doc": pl.Series([2**64 - 1, 2**63 - 1], dtype=pl.UInt64)})
    assert later.select(fields.fit).to_series().to_list() == [False, True]
    assert_frame_equal(later[1:].select(fields.number).select(fields.values), later[1:])


@pytest.mark.parametrize("dtype", [pl.Int64, pl.Int128, pl.UInt128])
def test_values_that_fit_only_modulo_2_to_the_64_do_not_fit(dtype: pl.DataType) -> None:
    fields = present(bit_fields(pl.DataFrame({"doc": pl.Series([1, 5], dtype=dtype)}), growing=("doc",), known={}))
    beyond = [2**63 - 1, -1, -(2**63)] if dtype == pl.Int64 else [2**64 + 1, 2**64, 2**63]
    later = pl.DataFrame({"doc": pl.Series([3, *beyond], dtype=pl.Int128).cast(dtype, strict=False)})
    fits = later.select(fields.fit).to_series().to_list()
    assert fits == [True, dtype == pl.Int64, False, False]  # 63 bits hold 2^63 - 1


@pytest.mark.parametrize("value", [-(2**20), -1, 0, 2**20])
def test_values_below_zero_have_their_place_where_some_were_seen(value: int) -> None:
    fields = present(bit_fields(pl.DataFrame({"doc": pl.Series([-3, 5], dtype=pl.Int32)}), growing=("doc",), known={}))
    row = pl.DataFrame({"doc": pl.Series([value], dtype=pl.Int32)})
    assert row.select(fields.fit).item()
    assert_frame_equal(row.select(fields.number).select(fields.values), row)
