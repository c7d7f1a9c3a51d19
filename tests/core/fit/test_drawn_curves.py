"""Curves are cut to what an eye can tell apart, and say so; contexts that differ never share a name."""

from collections.abc import Sequence

import polars as pl
import pytest

from posbias.core.errors import LogFormatError
from posbias.core.fit.plot_data import MOST_CONTEXTS, MOST_POSITIONS, plotted_curves, thin_out


def table(positions: list[int], **more: Sequence[object]) -> pl.DataFrame:
    """A table of propensities."""
    n = len(positions)
    columns = {
        "position": positions,
        "impressions": [100] * n,
        "clicks": [50 // position for position in positions],
        "ctr": [0.5 / position for position in positions],
        "propensity": [1 / position**0.5 for position in positions],
        "ci_low": [0.9 / position for position in positions],
        "ci_high": [1.1 / position for position in positions],
        "linking_clicks": [10] * n,
    }
    return pl.DataFrame({**columns, **more})


def test_a_few_positions_are_all_drawn_with_click_rates_relative_to_the_reference() -> None:
    curves = plotted_curves(table([1, 2, 4]), (), where="here")

    assert curves.positions == (1, 2, 4)
    assert curves.cells["relative_rate"].to_list() == [1.0, 0.5, 0.25]
    assert curves.omissions == []
    assert not curves.browsing


def test_of_ten_thousand_positions_the_first_and_the_last_are_drawn_and_no_more_than_can_be_seen() -> None:
    curves = plotted_curves(table(list(range(1, 10_001))), (), where="here")

    assert curves.positions[:50] == tuple(range(1, 51))
    assert curves.positions[-1] == 10_000
    assert len(curves.positions) <= MOST_POSITIONS
    assert curves.cells["position"].to_list() == list(curves.positions)
    assert "10,000 positions" in curves.omissions[0]


def test_of_ten_thousand_contexts_the_most_frequent_are_drawn() -> None:
    n = 10_000
    curves = plotted_curves(
        table([1] * n, market=list(range(n)), impressions=list(range(1, n + 1))), ["market"], where="here"
    )

    assert curves.contexts == tuple(str(market) for market in range(n - 1, n - 1 - MOST_CONTEXTS, -1))
    assert curves.n_contexts == n
    assert "10,000 contexts" in curves.omissions[0]


def test_contexts_have_names_of_their_own_whatever_they_look_like() -> None:
    long = "x" * 200
    values = ["a\x1b", "a\\x1b", f"{long}1", f"{long}2", None, "none", "<b>"]
    curves = plotted_curves(table([1] * 7, market=values, impressions=list(range(7, 0, -1))), ["market"], where="here")

    assert curves.n_contexts == 7
    assert all(context.isprintable() and len(context) < 80 for context in curves.contexts)


def test_cells_with_a_last_click_above_are_no_points_of_the_curve() -> None:
    curves = plotted_curves(table([1, 2, 2], previous_click=[0, 0, 1]), (), where="here")

    assert curves.browsing
    assert curves.lines["position"].to_list() == [1, 2]


def test_numbers_that_are_none_are_null() -> None:
    curves = plotted_curves(table([1, 2], ci_low=[float("nan"), 0.1], ci_high=[float("inf"), None]), (), where="here")

    assert curves.cells["low"].to_list() == [None, 0.1]
    assert curves.cells["high"].to_list() == [None, None]


def test_without_a_reference_there_are_no_relative_click_rates() -> None:
    curves = plotted_curves(table([2, 3]), (), where="here")

    assert curves.cells["relative_rate"].to_list() == [None, None]


def test_columns_of_another_type_are_named() -> None:
    with pytest.raises(LogFormatError, match="here: column 'ctr' holds"):
        plotted_curves(table([1, 2], ctr=["a", "b"]), (), where="here")


@pytest.mark.parametrize("n", [1, 2, 99, 100, 101, 150, 5000])
def test_thinning_keeps_order_and_ends(n: int) -> None:
    kept = thin_out(list(range(1, n + 1)), 100)

    assert kept == sorted(set(kept))
    assert kept[0] == 1
    assert kept[-1] == n
    assert len(kept) <= 100


def test_a_value_of_a_cell_is_a_line_relative_to_the_cell_that_all_are_held_against() -> None:
    cells = table(
        [1, 2, 1, 2], block=[False, False, True, True], propensity=[0.5, 0.25, 1.0, 0.5], ctr=[0.2, 0.1, 0.4, 0.1]
    )
    curves = plotted_curves(cells, (), ["block"], where="here")

    assert not curves.grid
    assert curves.contexts == ("True", "False")
    assert curves.cells["relative_rate"].to_list() == pytest.approx([0.5, 0.25, 1.0, 0.25])


def test_more_values_are_a_grid_whose_rows_are_in_their_order() -> None:
    rows = [row for row in range(1, 12) for _ in range(2)]
    page = table(list(range(1, 23)), row=rows, column=[1, 2] * 11, impressions=list(range(22)))
    numbered = plotted_curves(page, (), ["row", "column"], where="here")
    by_row = plotted_curves(page.with_columns(position="column").drop("column"), (), ["row"], where="here")

    assert (numbered.grid, numbered.across, numbered.by) == (True, "column", "row")
    assert (by_row.grid, by_row.across, by_row.by) == (True, "position", "row")
    for curves in (numbered, by_row):
        assert curves.cells["context"].unique(maintain_order=True).to_list() == [str(row) for row in range(1, 12)]
        assert curves.positions == (1, 2)
