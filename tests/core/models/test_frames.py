"""From impressions to pages as matrices."""

import numpy as np
import polars as pl

from posbias.core.models.page_matrices import UNIT, page_batches


def frame(pages: list[tuple[str, list[int], list[int], list[int]]]) -> pl.DataFrame:
    """Impressions of pages: session, units, positions, clicks."""
    return pl.concat(
        pl.DataFrame({"session": [session] * len(unit), UNIT: unit, "position": position, "click": click})
        for session, unit, position, click in pages
    )


PAGES: list[tuple[str, list[int], list[int], list[int]]] = [
    ("a", [0, 1, 2], [1, 2, 4], [0, 1, 0]),
    ("b", [3], [1], [1]),
    ("c", [0, 1, 2], [1, 2, 4], [0, 1, 0]),  # the page of session a again
    ("d", [0, 1, 2], [1, 2, 3], [0, 1, 0]),  # at other positions
    ("e", [0, 1, 2], [1, 2, 4], [0, 0, 0]),  # with other clicks
]


def test_equal_pages_stand_once_with_their_number() -> None:
    found = {
        (tuple(unit), tuple(position), tuple(click.astype(int))): weight
        for batch in page_batches(frame(PAGES))
        for unit, position, click, weight in zip(batch.unit, batch.position, batch.click, batch.weight, strict=True)
    }
    assert found == {
        ((0, 1, 2), (1, 2, 4), (0, 1, 0)): 2,
        ((3,), (1,), (1,)): 1,
        ((0, 1, 2), (1, 2, 3), (0, 1, 0)): 1,
        ((0, 1, 2), (1, 2, 4), (0, 0, 0)): 1,
    }


def test_the_order_of_rows_changes_nothing_and_nothing_is_padded() -> None:
    rows = frame(PAGES)
    shuffled = rows.sample(fraction=1.0, shuffle=True, seed=1)
    for one, other in zip(page_batches(rows), page_batches(shuffled), strict=True):
        assert (one.unit == other.unit).all()
        assert (one.click == other.click).all()
        assert (one.weight == other.weight).all()
        assert one.shown.all()


def test_weights_of_equal_pages_add_up() -> None:
    rows = frame(PAGES[:1] + PAGES[2:3]).with_columns(weight=pl.Series([0.5] * 3 + [2.0] * 3))
    (batch,) = page_batches(rows)
    assert np.allclose(batch.weight, [2.5])
