"""Impressions in the order of their pages, each from top to bottom."""

import polars as pl

from posbias.core.arrays.text_numbers import ranks_of
from posbias.core.schema import POSITION, SESSION

PLACE = "posbias_place"
"""The column of `with_places`."""

_LARGEST = 2**63 - 1


def with_places(impressions: pl.DataFrame) -> pl.DataFrame | None:
    """Impressions with one number that orders them by session and position; None where there is none.

    It is P session + position, P beyond every position, with sessions counted from the smallest; a text is its number
    among the different ones.
    """
    session, position = impressions[SESSION], impressions[POSITION]
    if isinstance(session.dtype, pl.String) and not session.null_count():
        session = pl.Series(ranks_of(session)[0])
    if not session.dtype.is_integer():
        return None
    match session.min(), session.max(), position.max():
        case int() as first, int() as last, int() as deepest if max(-first, last) <= _LARGEST:
            n_places = deepest + 1
            if (last - first + 1) * n_places > _LARGEST:
                return None
            return impressions.with_columns(((session.cast(pl.Int64) - first) * n_places + position).alias(PLACE))
        case _:
            return None


def in_page_order(impressions: pl.DataFrame) -> pl.DataFrame:
    """Impressions by session and position: sorted by one number where that is possible, which is much faster.

    Those that stand in that order already, as in many logs, are not sorted.
    """
    placed = with_places(impressions)
    if placed is None:
        return impressions.sort(SESSION, POSITION)
    return impressions if placed[PLACE].is_sorted() else placed.sort(PLACE).drop(PLACE)
