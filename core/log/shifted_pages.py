"""Pages that count their positions from another base than most pages of a log: they start later and end later.

A page may lack its top result, or end early, and nothing is wrong. But pages that start one position later than most
and also end one position later, as often as the others reach their usual end, are shifted.
"""

from dataclasses import dataclass

import polars as pl

from posbias.core.schema import POSITION, SESSION

SHIFTS = (1, -1, 2, -2)
"""By how much bases differ: from 0 or 1, at times from 2."""

FEWEST_PAGES = 30
"""Fewer shifted pages may be so by chance."""

FEWEST_SHIFTED = 0.01
"""Of all pages: fewer are no part of a log."""

USUAL_END = 0.1
"""Share of the pages of the usual start that end where they end at most: else there is no usual end."""

AS_OFTEN = 0.5
"""A shifted page reaches its end at least this often, beside the others."""

FIRST, LAST, PAGES = "first", "last", "pages"


@dataclass(frozen=True)
class ShiftedPages:
    """Pages that count from another base.

    Attributes:
        pages: how many.
        of: how many were looked at.
        span: their first and last position.
        usual: that of most pages.
    """

    pages: int
    of: int
    span: tuple[int, int]
    usual: tuple[int, int]


def count_spans(impressions: pl.LazyFrame) -> pl.LazyFrame:
    """How many pages go from which position to which: `first`, `last`, `pages`."""
    position = pl.col(POSITION)
    spans = impressions.group_by(SESSION).agg(position.min().alias(FIRST), position.max().alias(LAST))
    return spans.filter(pl.col(LAST) > pl.col(FIRST)).group_by(FIRST, LAST).agg(pl.len().alias(PAGES))


def shifted_pages(spans: pl.DataFrame) -> ShiftedPages | None:
    """The pages that are shifted, by `count_spans`; None where there are none."""
    if not spans.height:
        return None
    pages = {(first, last): number for first, last, number in spans.sort(FIRST, LAST).iter_rows()}
    starts = spans.group_by(FIRST).agg(pl.col(PAGES).sum()).sort(PAGES, FIRST, descending=[True, False])
    of_start: dict[int, int] = dict(starts.iter_rows())
    total, usual_start = sum(of_start.values()), int(starts[FIRST][0])
    ends = {last: number for (first, last), number in pages.items() if first == usual_start}
    usual_end = max(
        (last for last, number in ends.items() if number >= USUAL_END * of_start[usual_start]), default=None
    )
    if usual_end is None:
        return None
    reach = ends[usual_end] / of_start[usual_start]
    for shift in SHIFTS:
        span = usual_start + shift, usual_end + shift
        found = pages.get(span, 0)
        as_often = found >= AS_OFTEN * reach * of_start.get(span[0], 0)
        # Those of the usual start hardly go there themselves.
        is_beyond = shift < 0 or ends.get(span[1], 0) < FEWEST_SHIFTED * ends[usual_end]
        if found >= max(FEWEST_PAGES, FEWEST_SHIFTED * total) and as_often and is_beyond:
            return ShiftedPages(found, total, span, (usual_start, usual_end))
    return None
