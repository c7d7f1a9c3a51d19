"""Logs that hold only what was clicked are told by their totals; attractive documents and short pages are no fault."""

import polars as pl
import pytest

from posbias.core.errors import SchemaError
from posbias.core.log.pages import LogTotals, PageEnds, check_totals, count_page_ends, merge_pages, pages, sum_page_ends
from posbias.core.simulation.simulate import SimulationOptions, simulate


def log_of(*, n_sessions: int = 1000, seed: int = 7, **options: object) -> pl.DataFrame:
    """A simulated log."""
    return simulate(SimulationOptions(n_sessions=n_sessions, n_queries=20, seed=seed, **options)).log  # pyright: ignore[reportArgumentType]


def ends_of(log: pl.DataFrame) -> PageEnds:
    """Where the pages of a log end."""
    return sum_page_ends([count_page_ends(pages(log.lazy())).collect()])


LAST_CLICK = pl.col("position").filter(pl.col("click") == 1).max().over("session")
FIRST_CLICK = pl.col("position").filter(pl.col("click") == 1).min().over("session")


@pytest.mark.parametrize(
    ("rows", "clicked", "stopped"),
    [
        (60_000, 59_321, True),
        (60_000, 58_000, False),
        (100, 100, True),
        (99, 99, False),
        (100, 99, False),
        (0, 0, False),
    ],
)
def test_nearly_every_row_of_a_log_is_clicked_or_it_passes(rows: int, clicked: int, *, stopped: bool) -> None:
    totals = LogTotals(rows, clicked)
    assert totals.only_clicked is stopped
    if stopped:
        with pytest.raises(SchemaError, match=f"log: {clicked:,} of {rows:,} impressions are clicked"):
            check_totals("log", totals)
    else:
        check_totals("log", totals)


@pytest.mark.parametrize("with_pages_without_click", [True, False])
def test_pages_that_end_at_their_last_click_are_told(*, with_pages_without_click: bool) -> None:
    log = log_of()
    last = LAST_CLICK.fill_null(99) if with_pages_without_click else LAST_CLICK
    assert not ends_of(log).cut_off
    ends = ends_of(log.filter(pl.col("position") <= last))
    assert ends.cut_off
    assert ends.ended == ends.pages > 0
    assert (ends.without_click > 0) is with_pages_without_click
    with pytest.raises(SchemaError, match=rf"log: {ends.ended:,} of {ends.pages:,} pages with a click end on a click"):
        check_totals("log", LogTotals(log.height, 0, ends))


def test_a_few_pages_that_go_on_below_their_clicks_hide_nothing() -> None:
    log = log_of()
    whole = pl.col("session") % 50 == 0
    assert ends_of(log.filter(whole | (pl.col("position") <= LAST_CLICK))).cut_off


def test_pages_that_end_at_their_only_click_beside_pages_without_one_are_no_fault() -> None:
    assert not ends_of(log_of().filter(pl.col("position") <= FIRST_CLICK.fill_null(99))).cut_off


def test_pages_that_end_at_their_only_click_are_told_where_none_is_without_one() -> None:
    assert ends_of(log_of().filter(pl.col("position") <= FIRST_CLICK)).cut_off


@pytest.mark.parametrize("n_positions", [2, 5])
def test_pages_of_very_attractive_documents_are_no_fault(n_positions: int) -> None:
    log = log_of(n_positions=n_positions, eta=0.0, attractiveness_shape=(20.0, 1.0))
    ends = ends_of(log)
    assert ends.ended > 0.9 * ends.pages  # and still
    assert not ends.cut_off
    assert not LogTotals(log.height, int(log["click"].sum()), ends).only_clicked


def test_pages_of_one_row_say_nothing_of_where_pages_end() -> None:
    clicked = log_of().filter(pl.col("click") == 1)
    single = clicked.filter(pl.col("position") == pl.col("position").min().over("session"))
    assert ends_of(single) == PageEnds()
    assert not ends_of(single).cut_off


def test_ends_of_pages_are_those_of_their_last_positions_whatever_the_order_and_the_parts() -> None:
    rows = [(1, 5, 1), (1, 2, 0), (2, 1, 1), (2, 3, 0), (3, 1, 0), (3, 2, 0), (4, 9, 1)]
    log = pl.DataFrame(rows, schema=["session", "position", "click"], orient="row").with_columns(
        query=pl.lit(1), doc=pl.col("position")
    )
    expected = PageEnds(without_click=1, pages=2, ended=1, rows_above=2, clicks_above=1)
    assert ends_of(log) == expected
    parts = [pages(log.filter(pl.col("session") % 2 == part).lazy()) for part in (0, 1)]
    assert sum_page_ends([count_page_ends(part).collect() for part in parts]) == expected
    assert sum_page_ends([count_page_ends(merge_pages(pl.concat(parts))).collect()]) == expected


def test_a_faulty_page_says_nothing_of_where_pages_end() -> None:
    log = pl.DataFrame({"session": [1, 1], "query": [1, 2], "doc": [1, 2], "position": [1, 2], "click": [0, 1]})
    assert ends_of(log) == PageEnds()


@pytest.mark.parametrize("options", [{}, {"depth": 0.8}, {"n_positions": 3}, {"attractiveness_shape": (20.0, 1.0)}])
def test_whole_pages_do_not_often_end_on_a_click(options: dict[str, object]) -> None:
    assert not ends_of(log_of(**options)).partly_cut_off  # pyright: ignore[reportArgumentType]


def test_pages_of_which_half_end_at_their_last_click_often_do() -> None:
    is_cut = pl.col("session") % 2 == 0
    ends = ends_of(log_of().filter(~is_cut | (pl.col("position") <= LAST_CLICK)))
    assert ends.partly_cut_off
    assert not ends.cut_off
