"""Results pages of a log: where they end, their order, documents that stand twice, and other position bases.

Logs that follow the row contract and still carry no estimate, recognised by a few totals over their rows and pages.

only clicked rows        nearly every row is clicked: what was shown and not clicked was not logged
down to the last click   nearly every page ends on a click: what was shown below the last click was not logged
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import GOLDEN, sum_rows
from posbias.core.arrays.packing import dense_ranks
from posbias.core.errors import SchemaError
from posbias.core.log.impressions import REJECTED, Rejection, RowRejection
from posbias.core.schema import CLICK, DOC, POSITION, QUERY, SESSION

SHIFTS = (1, -1, 2, -2)
"""By how much bases differ: from 0 or 1, at times from 2."""

FEWEST_PAGES = 30
"""Fewer shifted pages may be so by chance."""

FEWEST_SHIFTED = 0.01
"""Share of all pages: fewer are no part of a log."""

USUAL_END = 0.1
"""Share of the pages of the usual start that end where they end at most: else there is no usual end."""

AS_OFTEN = 0.5
"""A shifted page reaches its end at least this often, beside the others."""

FIRST, LAST, PAGES = "first", "last", "pages"


@dataclass(frozen=True)
class ShiftedPages:
    """Pages that count from another base."""

    pages: int  # how many
    of: int  # how many were looked at
    span: tuple[int, int]  # their first and last position
    usual: tuple[int, int]  # that of most pages


def shifted_pages(per_page: pl.DataFrame, cell: Sequence[str] = ()) -> ShiftedPages | None:
    """The pages that are shifted, by the `first` and `last` position of each; None where there are none.

    Args:
        per_page: the pages, or the parts of pages with one value of the further columns of cells.
        cell: those columns: only what has the same values is compared, as an advert above moves all results down.
    """
    if cell:
        return next(filter(None, map(shifted_pages, per_page.partition_by(cell))), None)
    several = per_page.filter(pl.col(LAST) > pl.col(FIRST))
    spans = several.group_by(FIRST, LAST).agg(pl.len().alias(PAGES))
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
        shifted = pages.get(span, 0)
        as_often = shifted >= AS_OFTEN * reach * of_start.get(span[0], 0)
        # Those of the usual start hardly go there themselves.
        is_beyond = shift < 0 or ends.get(span[1], 0) < FEWEST_SHIFTED * ends[usual_end]
        if shifted >= max(FEWEST_PAGES, FEWEST_SHIFTED * total) and as_often and is_beyond:
            return ShiftedPages(shifted, total, span, (usual_start, usual_end))
    return None


ENDS = (pl.col(POSITION).min().alias(FIRST), pl.col(POSITION).max().alias(LAST))
"""The first and last position of a page."""


def find_shifted_pages(rows: pl.DataFrame, cell: Sequence[str] = ()) -> ShiftedPages | None:
    """The pages of some impressions that are shifted; None where there are none, or no sessions."""
    return shifted_pages(rows.group_by(SESSION, *cell).agg(*ENDS), cell) if SESSION in rows.columns else None


PLACE = "posbias_place"
"""The column of `add_place`."""

_LARGEST = 2**63 - 1


def add_place(impressions: pl.DataFrame) -> pl.DataFrame | None:
    """Impressions with one number that orders them by session and position; None where there is none.

    It is P session + position, P beyond every position, with sessions counted from the smallest; a text is its number
    among the different ones.
    """
    session, position = impressions[SESSION], impressions[POSITION]
    if isinstance(session.dtype, pl.String) and not session.null_count():
        session = pl.Series(dense_ranks(session)[0])
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


def in_page_order(impressions: pl.DataFrame, cell: Sequence[str] = ()) -> pl.DataFrame:
    """Impressions by session and position: sorted by one number where that is possible, which is much faster.

    Those that stand in that order already, as in many logs, are not sorted. Where positions begin anew on a page, in
    cells with further columns, pages are in the order of these (row by row, list by list), then of the positions.
    """
    placed = add_place(impressions)
    if placed is None:
        rows = impressions.sort(SESSION, POSITION)
    else:
        rows = impressions if placed[PLACE].is_sorted() else placed.sort(PLACE).drop(PLACE)
    anew = pl.all_horizontal(pl.col(name) == pl.col(name).shift() for name in (SESSION, POSITION))
    return rows.sort(SESSION, *cell, POSITION) if cell and rows.select(anew.any()).item() else rows


PAGE_ROWS, PAGE_CLICKS, LAST_CLICKED = "rows", "page_clicks", "last_clicked"
"""Columns of pages: impressions on each, clicks among them, and 1 where the row furthest down is clicked."""

_FEWEST_ROWS_OF_PAGE, _MOST_ROWS_OF_PAGE = 2, 100  # on average, and at most, so that their order is worth a look


_VISIT = (
    "A session is one results page, and this looks like a visit: name the columns of one results page, "
    "e.g. `--session visit --session query_time`."
)


class PageRejection(Rejection):
    """Why the rows of one session cannot be one results page, or some of them are not counted."""

    FAULTY_ROW = (20, "another row of the page is faulty", SESSION)
    SEVERAL_QUERIES = (21, "the session holds several queries", SESSION, _VISIT)
    REPEATED_DOC = (22, "the session shows a document twice", SESSION, _VISIT)
    REPEATED_POSITION = (23, "the session shows a position twice", SESSION, _VISIT)
    SHOWN_ABOVE = (24, "the document stands further up on the page", SESSION)
    BELOW_SHOWN_ABOVE = (25, "a repeated document was clicked further up on the page", SESSION)
    COPY = (26, "the row stands twice", SESSION)


@dataclass(frozen=True)
class PageRules:
    """Rules of a results page."""

    docs_repeat: bool = False  # whether it may show a document twice
    # whether its documents belong to several queries: each to its own, where a log has none
    several_queries: bool = False
    cell: tuple[str, ...] = ()  # columns by which places of one position differ: it may be shown once for each value


USUAL_PAGES = PageRules()
"""A document once, and one query."""

HARMLESS = frozenset(
    (
        *(RowRejection.EMPTY_PAGE, RowRejection.NO_IMPRESSIONS, RowRejection.RARE_QUERY, RowRejection.OTHER_VALUE),
        *(PageRejection.SHOWN_ABOVE, PageRejection.BELOW_SHOWN_ABOVE, PageRejection.COPY),
    )
)
"""Rejections that are nobody's mistake: rows and pages that hold nothing, and those that options leave out."""


def pages(impressions: pl.LazyFrame, rules: PageRules = USUAL_PAGES) -> pl.LazyFrame:
    """The sessions of canonical impressions, and whether each can be one results page.

    Args:
        impressions: with their sessions.
        rules: what a page may be.

    Returns:
        `session`, `rows` (impressions in it), `page_clicks`, `last_clicked`, and `rejected`, a `PageRejection` or 0:
        several queries, or a document or a place (the position, with the columns of its cell) twice.
    """
    place_and_click = 2 * pl.col(POSITION).cast(pl.Int64) + pl.col(CLICK)  # its maximum is that of the last row
    last = place_and_click.max() % 2
    if rules.cell:  # which of several rows of one position is the last
        last = pl.col(CLICK).sort_by(POSITION, *rules.cell).last().cast(pl.Int64)
    per_page = impressions.group_by(SESSION).agg(
        pl.len().cast(pl.Int64).alias(PAGE_ROWS),
        pl.col(CLICK).cast(pl.Int64).sum().alias(PAGE_CLICKS),
        last.alias(LAST_CLICKED),
        queries=pl.col(QUERY).n_unique(),
        docs=pl.col(DOC).n_unique(),
        places=(pl.struct(POSITION, *rules.cell) if rules.cell else pl.col(POSITION)).n_unique(),
    )
    several = pl.lit(value=False) if rules.several_queries else pl.col("queries") > 1
    repeated = pl.lit(value=False) if rules.docs_repeat else pl.col("docs") < pl.col(PAGE_ROWS)
    fault = (
        pl.when(several)
        .then(int(PageRejection.SEVERAL_QUERIES))
        .when(repeated)
        .then(int(PageRejection.REPEATED_DOC))
        .when(pl.col("places") < pl.col(PAGE_ROWS))
        .then(int(PageRejection.REPEATED_POSITION))
        .otherwise(0)
    )
    return per_page.select(SESSION, PAGE_ROWS, PAGE_CLICKS, LAST_CLICKED, fault.cast(pl.UInt8).alias(REJECTED))


def pages_in_memory(impressions: pl.DataFrame, rules: PageRules = USUAL_PAGES) -> pl.DataFrame:
    """The same of impressions in memory: much faster where each page stands together, from top to bottom, and is sound.

    Rows of a page hold different documents where the hashes of page and document differ; where two do not, documents
    are compared themselves.
    """
    sound = _sound_pages(impressions, rules)
    return pages(impressions.lazy(), rules).collect(engine="streaming") if sound is None else sound


def _sound_pages(impressions: pl.DataFrame, rules: PageRules) -> pl.DataFrame | None:
    """Pages none of which is at fault; None where that is not seen at once."""
    if not impressions.height:
        return None
    session = impressions[SESSION]
    is_first = np.ones(impressions.height, dtype=bool)
    is_first[1:] = session[1:].ne_missing(session[:-1]).to_numpy()
    first = np.flatnonzero(is_first)
    of_pages = session.gather(first)
    position = impressions[POSITION].to_numpy()
    is_below = is_first[1:] | (position[1:] > position[:-1])
    if len(first) * _FEWEST_ROWS_OF_PAGE > impressions.height or not is_below.all() or of_pages.is_duplicated().any():
        return None
    if not rules.several_queries:
        query = impressions[QUERY]
        if (query[1:].ne_missing(query[:-1]).to_numpy() & ~is_first[1:]).any():
            return None
    start = np.append(first, impressions.height)
    n_rows = np.diff(start)
    if not rules.docs_repeat:
        documents = impressions[DOC].hash().to_numpy() ^ (np.cumsum(is_first, dtype=np.uint64) * GOLDEN)
        longest = int(n_rows.max())
        if longest > _MOST_ROWS_OF_PAGE or any(
            (documents[apart:] == documents[:-apart]).any() for apart in range(1, longest)
        ):
            return None
    click = impressions[CLICK].to_numpy().astype(np.int64)
    return pl.DataFrame(
        {
            SESSION: of_pages,
            PAGE_ROWS: n_rows,
            PAGE_CLICKS: sum_rows(click, start),
            LAST_CLICKED: click[start[1:] - 1],
            REJECTED: np.zeros(len(first), np.uint8),
        }
    )


def merge_pages(pages_of_parts: pl.LazyFrame) -> pl.LazyFrame:
    """The pages of a log that was split by query, so that a page in several parts holds several queries.

    Args:
        pages_of_parts: the `pages` of each part, one after the other.
    """
    several = pl.when(pl.len() > 1).then(int(PageRejection.SEVERAL_QUERIES)).otherwise(pl.col(REJECTED).max())
    counts = pl.col(PAGE_ROWS, PAGE_CLICKS).sum(), pl.col(LAST_CLICKED).max()
    return pages_of_parts.group_by(SESSION).agg(*counts, several.cast(pl.UInt8).alias(REJECTED))


_LATER, _CUT = "posbias_later", "posbias_cut"


def mark_repeats(impressions: pl.LazyFrame, *, clicks_above_matter: bool, cell: Sequence[str] = ()) -> pl.LazyFrame:
    """Mark in `rejected` the rows that are left out so that each document counts once a page; 0 for the others.

    A row that stands twice counts once. Rows of a document at one position that differ in their click are not marked:
    such a page is faulty.

    Args:
        impressions: canonical impressions that keep the row contract, of whole pages.
        clicks_above_matter: whether cells depend on the clicks above.
        cell: columns by which places of one position differ; the first of them is the smallest.
    """
    page = (SESSION, QUERY)
    place = pl.struct(POSITION, *cell).rank("dense") if cell else pl.col(POSITION)
    impressions, place = impressions.with_columns(place.alias(PLACE)), pl.col(PLACE)
    later = place > place.min().over(*page, DOC)
    clicked_later = pl.when(_LATER, pl.col(CLICK) == 1).then(pl.col(POSITION)).min().over(*page)
    below = pl.col(POSITION) > pl.col(_CUT) if clicks_above_matter else pl.lit(value=False)
    is_copy = ~pl.struct(*page, DOC, POSITION, *cell, CLICK).is_first_distinct()
    fault = (
        pl.when(_LATER)
        .then(int(PageRejection.SHOWN_ABOVE))
        .when(below)
        .then(int(PageRejection.BELOW_SHOWN_ABOVE))
        .when(is_copy)
        .then(int(PageRejection.COPY))
        .otherwise(0)
        .cast(pl.UInt8)
    )
    marked = impressions.with_columns(later.alias(_LATER)).with_columns(clicked_later.alias(_CUT))
    return marked.with_columns(fault.alias(REJECTED)).drop(PLACE, _LATER, _CUT)


FEWEST_ROWS = 100
"""Fewer rows may all be clicked by chance."""

MOSTLY_CLICKED, ENOUGH_ROWS = 0.98, 500
"""A larger share of clicked rows, of so many rows, is no click rate: those of real logs are far below."""

FEWEST_ENDED = 30
"""Fewer pages with a click, of two rows or more, may end on one by chance."""

MOSTLY_ENDED = 0.95
"""A larger share of such pages that end on a click is no click rate of last rows."""

OFTEN_ENDED = 1.5
"""Rate of clicks on the last rows of pages, against that of rows above, from which some pages seem to be cut off."""

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

    @property
    def partly_cut_off(self) -> bool:
        """Whether pages end on a click far more often than rows above are clicked, as where some are cut off there.

        Further down, clicks are as a rule rarer than above.
        """
        if self.clicks_above <= LONE_CLICKS * self.pages:
            return False
        most = OFTEN_ENDED * self.pages * self.clicks_above / self.rows_above
        return self.ended > max(most + 4 * math.sqrt(most), FEWEST_ENDED)


@dataclass(frozen=True)
class LogTotals:
    """Totals of a log that was read."""

    impressions: int  # those of the rows that keep the row contract
    clicked: int  # how many of them are clicked
    # where pages end; of a sample where only a sample was looked at, of none where there are no sessions
    page_ends: PageEnds = PageEnds()
    clicks_read: int = 0  # on all rows
    clicks_left_out: int = 0  # of these, on rows and pages that are left out, other than copies and rare queries

    @property
    def only_clicked(self) -> bool:
        """Whether every row is clicked, or nearly every one."""
        every = self.clicked == self.impressions >= FEWEST_ROWS
        return every or (self.impressions >= ENOUGH_ROWS and self.clicked >= MOSTLY_CLICKED * self.impressions)


PAGE_ENDS = pl.Schema({field.name: pl.Int64() for field in fields(PageEnds)})
"""The columns of `count_page_ends`."""


def count_page_ends(pages: pl.LazyFrame) -> pl.LazyFrame:
    """The `PageEnds` of the `pages` of a log, as one row."""
    longer, clicked = pages.filter(pl.col(REJECTED) == 0, pl.col(PAGE_ROWS) > 1), pl.col(PAGE_CLICKS) > 0
    counts = {
        "without_click": (~clicked).sum(),
        "pages": clicked.sum(),
        "ended": pl.col(LAST_CLICKED).sum(),
        "rows_above": (pl.col(PAGE_ROWS) - 1).filter(clicked).sum(),
        "clicks_above": (pl.col(PAGE_CLICKS) - pl.col(LAST_CLICKED)).sum(),
    }
    return longer.select(count.cast(pl.Int64).alias(name) for name, count in counts.items())


def sum_page_ends(counts: Sequence[pl.DataFrame]) -> PageEnds:
    """The `PageEnds` of all pages, from those of their parts."""
    return PageEnds(**pl.concat(counts).sum().row(0, named=True))


def check_totals(where: str, totals: LogTotals, advice: str = "") -> None:
    """Raise SchemaError unless a log holds what was shown, not only what was clicked.

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
            "often a position is clicked shows only where it is also seen without a click. "
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
