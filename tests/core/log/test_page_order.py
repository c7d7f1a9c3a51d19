"""Impressions come page by page, from top to bottom, however they stood."""

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from posbias.core.log.pages import in_page_order
from posbias.core.schema import CLICK, POSITION, SESSION

SESSIONS: dict[str, list[object]] = {
    "numbers": [3, -5, 2**40],
    "far apart": [-(2**62), 0, 2**62],
    "texts": ["b", "é", "a"],
    "true, false and unknown": [None, True, False],
}


@pytest.mark.parametrize("sessions", SESSIONS.values(), ids=SESSIONS)
@pytest.mark.parametrize("seed", [None, 1, 2], ids=["as they should be", "mixed", "mixed otherwise"])
def test_impressions_stand_by_session_and_position(sessions: list[object], seed: int | None) -> None:
    rows = pl.DataFrame(
        {
            SESSION: pl.Series([session for session in sessions for _ in range(4)]),
            POSITION: pl.Series([1, 2, 3, 7] * len(sessions), dtype=pl.Int8),
            CLICK: list(range(4 * len(sessions))),
        }
    ).sort(SESSION, POSITION)

    assert_frame_equal(in_page_order(rows if seed is None else rows.sample(fraction=1, shuffle=True, seed=seed)), rows)


ORDERS = (("of the whole page", [1, 2, 3, 4]), ("of each list", [1, 2, 1, 2]))


def test_pages_are_in_the_order_of_cells_only_where_positions_begin_anew() -> None:
    page = {SESSION: [0] * 4, "cell": ["b", "b", "a", "a"], CLICK: [0, 1, 2, 3]}
    order = {name: in_page_order(pl.DataFrame(page | {POSITION: at}), ["cell"])[CLICK].to_list() for name, at in ORDERS}

    assert order == {"of the whole page": [0, 1, 2, 3], "of each list": [2, 3, 0, 1]}
