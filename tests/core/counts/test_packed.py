"""Packed counts are the plan's, to the row; what cannot be packed is left to the plan."""

from datetime import date

import narwhals as nw
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from present import present

from posbias.core.counts.counting_plan import StatisticsPlan, count_packed
from posbias.core.models import get_model

SETTINGS = settings(max_examples=60, deadline=None, derandomize=True)
DAYS = [date(1969, 12, 31), date(2026, 1, 5)]
PLAN = StatisticsPlan(get_model("pbm"), context=("device",), period="day", strata=("logged_in",))
ROWS = st.fixed_dictionaries(
    {
        "query": st.sampled_from([-5, 0, 7, 10**9]),
        "doc": st.integers(0, 3),
        "device": st.sampled_from([0, 200]),
        "period": st.sampled_from(DAYS),
        "logged_in": st.booleans(),
        "position": st.integers(1, 3),
        "click": st.integers(0, 1),
    }
)
SCHEMA = {
    "query": pl.Int64,
    "doc": pl.UInt32,
    "device": pl.UInt8,
    "period": pl.Date,
    "logged_in": pl.Boolean,
    "position": pl.Int32,
    "click": pl.Int8,
}


def counted_by_the_plan(log: pl.DataFrame, plan: StatisticsPlan) -> pl.DataFrame:
    return plan.count(nw.from_native(log.lazy())).to_native().collect().sort(plan.keys)


@pytest.mark.slow
@SETTINGS
@given(st.lists(ROWS, min_size=1, max_size=40))
def test_packed_counts_are_those_of_the_plan(rows: list[dict[str, object]]) -> None:
    log = pl.DataFrame(rows, schema=SCHEMA)
    assert_frame_equal(present(count_packed(log, PLAN)), counted_by_the_plan(log, PLAN))


@pytest.mark.slow
@SETTINGS
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["", "a", "a b", "B", "é", "\0", "hotel near the station", "hotel near the Station"]),
            st.sampled_from([2**64 - 1, 2**63, 5, 0]),
            st.sampled_from([-(2**63), -1, 2**63 - 1]),
            st.integers(1, 3),
            st.integers(0, 1),
        ),
        min_size=1,
        max_size=40,
    )
)
def test_text_and_hashes_are_packed_like_other_numbers(rows: list[tuple[str, int, int, int, int]]) -> None:
    schema = {"query": pl.String, "doc": pl.UInt64, "shop": pl.Int64, "position": pl.Int32, "click": pl.Int8}
    log, plan = pl.DataFrame(rows, schema=schema, orient="row"), StatisticsPlan(get_model("pbm"), strata=("shop",))
    assert_frame_equal(present(count_packed(log, plan)), counted_by_the_plan(log, plan))


@pytest.mark.parametrize("query", [pl.Series([1, None]), pl.Series(["a", None]), pl.Series([1.0, 2.0])])
def test_keys_that_cannot_be_packed_are_left_to_the_plan(query: pl.Series) -> None:
    log = pl.DataFrame({"query": query, "doc": [1, 2], "position": [1, 2], "click": [0, 1]})
    assert count_packed(log, StatisticsPlan(get_model("pbm"))) is None


def test_keys_with_too_many_different_values_are_left_to_the_plan() -> None:
    n = 1 << 13
    apart = pl.Series(range(n)) * (2**63 // n)
    log = pl.DataFrame(dict.fromkeys(("query", "doc", "a", "b", "c"), apart))
    plan = StatisticsPlan(get_model("pbm"), strata=("a", "b", "c"))
    assert count_packed(log.with_columns(position=1, click=0), plan) is None


def test_weights_are_left_to_the_plan() -> None:
    log = pl.DataFrame({"query": [1], "doc": [1], "position": [1], "click": [1], "weight": [0.5]})
    assert count_packed(log, StatisticsPlan(get_model("pbm"), weighted=True)) is None
