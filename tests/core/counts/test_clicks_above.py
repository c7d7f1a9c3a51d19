"""What was clicked above an impression, and how it is counted."""

import polars as pl
import pytest

from posbias.core.counts.checks import STATE, ClicksAbove, count_pages, with_state
from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.models import get_model

PLAN = StatisticsPlan(get_model("pbm"))
NONE, DIRECTLY, FURTHER, TWO, MORE = ClicksAbove


def log_of(clicks: dict[object, list[int]], query: str = "q") -> pl.DataFrame:
    rows = [
        {"session": session, "query": query, "doc": place, "position": place, "click": click}
        for session, of_page in clicks.items()
        for place, click in enumerate(of_page, start=1)
    ]
    return pl.DataFrame(rows).with_columns(pl.col("position").cast(pl.Int32), pl.col("click").cast(pl.Int8))


@pytest.mark.parametrize("names", [(7, 3), ("b", "a")], ids=["numbers", "texts"])
def test_states_of_pages_whose_rows_stand_in_any_order(names: tuple[object, object]) -> None:
    first, second = names
    log = log_of({first: [0, 1, 0, 0, 1, 1, 0], second: [1, 0, 1]})
    states = with_state(log.sample(fraction=1, shuffle=True, seed=5))

    assert states.filter(session=first)[STATE].to_list() == [NONE, NONE, DIRECTLY, FURTHER, FURTHER, TWO, MORE]
    assert states.filter(session=second)[STATE].to_list() == [NONE, DIRECTLY, FURTHER]


def test_a_page_without_clicks_below_a_clicked_one_starts_anew() -> None:
    states = with_state(log_of({1: [0, 1], 2: [0, 0, 0]}))
    assert states.filter(session=2)[STATE].to_list() == [NONE] * 3


def test_a_unit_is_a_document_at_a_position_and_positions_beyond_the_last_count_as_clicked_above() -> None:
    log = pl.concat([log_of({1: [1, 0], 2: [0, 1], 3: [1, 1]}), log_of({4: [1, 1]}, "r")])
    strata = count_pages(log, PLAN).strata()

    table = strata.signatures
    assert table.n_units == 4
    assert strata.members.cluster.tolist() == [0, 0, 1, 1]
    assert table.cell.tolist() == [NONE, NONE, DIRECTLY, NONE, DIRECTLY]
    assert table.impressions.tolist() == [3, 1, 2, 1, 1]
    assert table.clicks.tolist() == [2, 1, 1, 1, 1]
