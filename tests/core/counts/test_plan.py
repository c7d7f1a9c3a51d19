"""Statistics against loops over the rows: cells, bins, strata and weights, whatever the order of the rows."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date

import narwhals as nw
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.models import get_model
from posbias.core.schema import Resolution

PBM = StatisticsPlan(get_model("pbm"))
UBM = StatisticsPlan(get_model("ubm"))
PLANS = [PBM, UBM]
SETTINGS = settings(max_examples=30, deadline=None, derandomize=True)


@dataclass(frozen=True)
class Row:
    """One impression."""

    session: int
    query: int
    doc: int
    position: int
    click: int
    weight: float = 1.0
    segment: str = "a"
    period: date = date(2026, 1, 5)


Counts = dict[tuple[Hashable, ...], tuple[float, float]]


def frame_of(rows: Sequence[Row]) -> pl.LazyFrame:
    columns = {name: [getattr(row, name) for row in rows] for name in Row.__dataclass_fields__}
    types = {"position": pl.Int32, "click": pl.Int8, "session": pl.Int64, "query": pl.Int64, "doc": pl.Int64}
    return pl.LazyFrame(columns, schema_overrides=types)


def count(plan: StatisticsPlan, rows: Sequence[Row]) -> pl.DataFrame:
    return plan.count(nw.from_native(frame_of(rows))).to_native().collect()


def as_counts(plan: StatisticsPlan, statistics: pl.DataFrame) -> Counts:
    assert statistics.select(pl.struct(plan.keys).n_unique()).item() == statistics.height
    return {
        key: (impressions, clicks)
        for *names, impressions, clicks in statistics.select(*plan.keys, "impressions", "clicks").iter_rows()
        if (key := tuple(names))
    }


def previous_click(row: Row, rows: Iterable[Row]) -> int:
    """Look for the last click above, row by row."""
    clicked = [
        other.position
        for other in rows
        if other.session == row.session and other.click == 1 and other.position < row.position
    ]
    return max(clicked, default=0)


def brute_counts(plan: StatisticsPlan, rows: Sequence[Row]) -> Counts:
    """What a plan counts, in a loop over the rows."""

    def binned(position: int) -> int:
        return max(
            (first for first in plan.position_bins if first <= position), default=0 if plan.position_bins else position
        )

    found: dict[tuple[Hashable, ...], tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for row in rows:
        if plan.max_position is None or row.position <= plan.max_position:
            above = [binned(previous_click(row, rows))] if plan.model.name == "ubm" else []
            apart = [*([row.period] if plan.period else []), *(row.segment for _ in plan.strata)]
            key = (row.query, row.doc, *apart, binned(row.position), *above)
            impressions, clicks = found[key]
            found[key] = impressions + row.weight, clicks + row.weight * row.click
    return dict(found)


@st.composite
def shuffled_pages(draw: st.DrawFn) -> list[Row]:
    """A few pages of any length and with gaps between the positions, their rows mixed."""
    rows: list[Row] = []
    for session in range(draw(st.integers(1, 5))):
        query = draw(st.integers(0, 1))
        positions = draw(st.lists(st.integers(1, 12), min_size=1, max_size=8, unique=True))
        docs = draw(st.permutations(range(8)))
        for doc, position in zip(docs, positions, strict=False):
            rows.append(Row(session, query, doc, position, draw(st.integers(0, 1))))
    return draw(st.permutations(rows))


SESSIONS = {
    "small numbers": pl.col("session"),
    "negative numbers": pl.col("session") - 3,
    "numbers too far apart": pl.col("session") * (2**60),
    "unsigned numbers": pl.lit(2**64 - 1, pl.UInt64) - pl.col("session").cast(pl.UInt64),
    "text": pl.col("session").cast(pl.String),
    "two columns": pl.struct("session", query="query"),
}


@pytest.mark.parametrize("session", SESSIONS.values(), ids=SESSIONS)
@SETTINGS
@given(shuffled_pages())
@pytest.mark.slow_after(1)
def test_cells_are_the_same_in_memory_whatever_sessions_are_named_by(session: pl.Expr, rows: list[Row]) -> None:
    log = frame_of(rows).with_columns(session.alias("session"))
    plain = UBM.with_cells(nw.from_native(log)).to_native().collect()
    assert_frame_equal(UBM.with_cells_in_memory(log.collect()), plain, check_row_order=False)


COUNTED = {
    "pbm": PBM,
    "ubm": UBM,
    "down to a position": replace(UBM, max_position=5),
    "bins of positions and previous clicks": replace(UBM, position_bins=(1, 3, 5)),
    "the largest position is meant before binning": replace(PBM, max_position=7, position_bins=(1, 2, 4)),
}


@pytest.mark.slow_after(2)
@pytest.mark.parametrize("plan", COUNTED.values(), ids=COUNTED)
@SETTINGS
@given(rows=shuffled_pages())
def test_counts_are_those_of_a_loop_over_the_rows(plan: StatisticsPlan, rows: list[Row]) -> None:
    assert as_counts(plan, count(plan, rows)) == brute_counts(plan, rows)


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.model.name)
@SETTINGS
@given(rows=shuffled_pages(), cut=st.integers(0, 5))
@pytest.mark.slow_after(1)
def test_counts_add_up_over_a_split_of_the_log_by_sessions(plan: StatisticsPlan, rows: list[Row], cut: int) -> None:
    parts = [count(plan, [row for row in rows if (row.session < cut) == early]) for early in (True, False)]
    together = plan.add_up(nw.from_native(pl.concat(parts).lazy())).to_native().collect()

    assert as_counts(plan, together) == as_counts(plan, count(plan, rows))
    assert together["impressions"].dtype == together["clicks"].dtype == pl.Int64


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.model.name)
@SETTINGS
@given(rows=shuffled_pages())
@pytest.mark.slow
def test_counts_of_cells_are_the_counts_of_pairs_added_up(plan: StatisticsPlan, rows: list[Row]) -> None:
    columns = list(plan.model.cell_columns)
    cells = (
        plan.count_in_cells(plan.with_cells(nw.from_native(frame_of(rows))), columns)
        .to_native()
        .collect()
        .sort(columns)
    )

    assert cells.equals(count(plan, rows).group_by(columns).agg(pl.col("impressions", "clicks").sum()).sort(columns))


PAGES = [
    Row(0, 0, 0, 1, 1, segment="a", period=date(2026, 1, 5)),
    Row(0, 0, 1, 2, 0, segment="a", period=date(2026, 1, 5)),
    Row(1, 0, 0, 1, 0, segment="b", period=date(2026, 1, 5)),
    Row(1, 0, 1, 2, 1, segment="b", period=date(2026, 1, 5)),
    Row(2, 0, 0, 1, 1, segment="a", period=date(2026, 1, 6)),
    Row(3, 0, 0, 1, 1, segment="a", period=date(2026, 1, 6)),
]


def test_the_keys_are_the_pair_its_period_and_strata_and_the_cell() -> None:
    plan = replace(PBM, period="day", strata=("segment",))

    assert plan.keys == ("query", "doc", "period", "segment", "position")
    assert plan.columns == ("query", "doc", "position", "period", "segment", "impressions", "clicks")


@pytest.mark.parametrize(("period", "strata"), [("day", ("segment",)), ("day", ()), (None, ("segment",)), (None, ())])
def test_what_is_to_be_kept_apart_is_and_the_rest_is_counted_together(
    period: Resolution | None, strata: tuple[str, ...]
) -> None:
    plan = replace(PBM, period=period, strata=strata)

    assert as_counts(plan, count(plan, PAGES)) == brute_counts(plan, PAGES)


def test_weighted_counts_are_sums_of_weights_as_floats() -> None:
    plan = replace(UBM, weighted=True)
    rows = [replace(row, weight=weight) for row, weight in zip(PAGES, [0.5, 2.0, 0.25, 4.0, 8.0, 1.5], strict=True)]
    statistics = count(plan, rows)

    assert as_counts(plan, statistics) == brute_counts(plan, rows)
    assert statistics["impressions"].dtype == statistics["clicks"].dtype == pl.Float64


def test_narrow_columns_do_not_overflow() -> None:
    """Int8 clicks and positions, 1,000 of them: sums must not wrap at 127."""
    rows = [Row(session, 0, 0, 1, 1) for session in range(1_000)]
    log = frame_of(rows).cast({"position": pl.Int8, "click": pl.Int8})
    statistics = PBM.count(nw.from_native(log)).to_native().collect()

    assert statistics.select("impressions", "clicks").row(0) == (1_000, 1_000)
