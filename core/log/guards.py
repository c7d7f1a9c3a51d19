"""Logs that follow the row contract and still carry no estimate, told by a few totals over their rows and pages.

only clicked rows        nearly every row is clicked: what was shown and not clicked was not logged
down to the last click   nearly every page ends on a click: what was shown below the last click was not logged
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import polars as pl

from posbias.core.errors import SchemaError
from posbias.core.log.impressions import REJECTED
from posbias.core.log.pages import LAST_CLICKED, PAGE_CLICKS, PAGE_ROWS

FEWEST_ROWS = 100
"""Fewer rows may all be clicked by chance."""

MOSTLY_CLICKED, ENOUGH_ROWS = 0.98, 500
"""A larger share of clicked rows, of so many rows, is no click rate: those of real logs are far below."""

FEWEST_ENDED = 30
"""Fewer pages with a click, of two rows or more, may end on one by chance."""

MOSTLY_ENDED = 0.95
"""A larger share of such pages that end on a click is no click rate of last rows."""

LONE_CLICKS = 0.01
"""Clicks above the last row, per page with a click, up to which pages rather end at their only click."""

SURELY_EXPECTED = 8.0
"""So many last rows without a click, expected by the rows above them, are not all missing by chance: p = e^-8."""

FEWER_THAN_EXPECTED = 5.0
"""Last rows without a click are rarer than expected by at least this factor where pages are cut off; where documents
are just very attractive, rows without a click are as rare above."""


@dataclass(frozen=True)
class PageEnds:
    """Where pages end, summed over those of two rows or more that are not faulty."""

    without_click: int = 0  # how many there are without a click; all else is about the others
    pages: int = 0  # how many there are with a click
    ended: int = 0  # how many of them end on a click
    rows_above: int = 0  # rows other than the last of each
    clicks_above: int = 0  # clicks on these

    @property
    def cut_off(self) -> bool:
        """Whether pages were logged only down to the last click.

        Not where they end at their only click while others have none: what is logged of a page then depends only on
        what happened above, which changes no click rate.
        """
        if self.pages < FEWEST_ENDED or self.ended < MOSTLY_ENDED * self.pages:
            return False
        every_page = self.ended >= MOSTLY_ENDED * (self.pages + self.without_click)
        if not every_page and self.clicks_above <= LONE_CLICKS * self.pages:  # pages end at their only click
            return False
        expected = self.pages * (1 - self.clicks_above / self.rows_above)
        return expected >= max(SURELY_EXPECTED, FEWER_THAN_EXPECTED * (self.pages - self.ended))


@dataclass(frozen=True)
class LogTotals:
    """What is known of a log when it was read."""

    impressions: int  # those of the rows that keep the row contract
    clicked: int  # how many of them are clicked
    # where pages end; of a sample where only a sample was looked at, of none where there are no sessions
    page_ends: PageEnds = PageEnds()

    @property
    def only_clicked(self) -> bool:
        """Whether every row is clicked, or nearly every one."""
        every = self.clicked == self.impressions >= FEWEST_ROWS
        return every or (self.impressions >= ENOUGH_ROWS and self.clicked >= MOSTLY_CLICKED * self.impressions)


PAGE_ENDS = pl.Schema({field.name: pl.Int64() for field in fields(PageEnds)})
"""The columns of `count_page_ends`."""


def count_page_ends(pages: pl.LazyFrame) -> pl.LazyFrame:
    """The `PageEnds` of the `pages` of a log, as one row."""
    told, clicked = pages.filter(pl.col(REJECTED) == 0, pl.col(PAGE_ROWS) > 1), pl.col(PAGE_CLICKS) > 0
    counts = {
        "without_click": (~clicked).sum(),
        "pages": clicked.sum(),
        "ended": pl.col(LAST_CLICKED).sum(),
        "rows_above": (pl.col(PAGE_ROWS) - 1).filter(clicked).sum(),
        "clicks_above": (pl.col(PAGE_CLICKS) - pl.col(LAST_CLICKED)).sum(),
    }
    return told.select(count.cast(pl.Int64).alias(name) for name, count in counts.items())


def sum_page_ends(counts: Sequence[pl.DataFrame]) -> PageEnds:
    """The `PageEnds` of all pages, from those of their parts."""
    return PageEnds(**pl.concat(counts).sum().row(0, named=True))


def check_totals(where: str, totals: LogTotals, advice: str = "") -> None:
    """See that a log holds what was shown, not only what was clicked.

    Args:
        where: the log, for the message.
        totals: what is known of it.
        advice: what to look at first where every row is clicked, if something is known.

    Raises:
        SchemaError: nearly every row is clicked, or nearly every page ends on a click.
    """
    if totals.only_clicked:
        raise SchemaError(
            f"{where}: {totals.clicked:,} of {totals.impressions:,} impressions are clicked. This looks like a log of "
            "clicks only, without the results that were shown and not clicked. Nothing can be estimated from it: how "
            "often a position is clicked can only be told where it is also seen without a click. "
            f"{advice or _LOG_EVERYTHING}"
        )
    ends = totals.page_ends
    if ends.cut_off:
        raise SchemaError(
            f"{where}: {ends.ended:,} of {ends.pages:,} pages with a click end on a click (pages of one row do not "
            "count). They seem to be logged only down to the last click. Without the results below it, low positions "
            "look as if they were clicked far more often than they are, and every estimate is wrong. "
            "Log each page down to the last result that was shown."
        )


_LOG_EVERYTHING = "Log every result that was shown, with 0 in the click column where it was not clicked."
