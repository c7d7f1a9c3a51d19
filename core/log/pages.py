"""Check the results pages of a log: sessions, repeated documents, position bases, order, and last rows.

Two kinds of logs keep the row contract and allow no estimate. Totals over rows and pages detect them:

only clicked rows        nearly every row is clicked: results without a click were not logged
down to the last click   nearly every page ends on a click: results below the last click were not logged
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
"""Possible differences between the position bases of a log's parts."""

FEWEST_PAGES = 30
"""Fewest shifted pages to report: fewer may be chance."""

FEWEST_SHIFTED = 0.01
"""Least share of shifted pages to report."""

USUAL_END = 0.1
"""Least share of pages with the usual start that end at the usual end; otherwise there is no usual end."""

AS_OFTEN = 0.5
"""Least share of pages from the shifted start that end at the shifted end, relative to that share of usual pages."""

FIRST, LAST, PAGES = "first", "last", "pages"


@dataclass(frozen=True)
class ShiftedPages:
    """Pages whose positions start from another base than those of most pages."""

    pages: int  # number of shifted pages
    of: int  # number of all pages with several positions
    span: tuple[int, int]  # first and last position of shifted pages
    usual: tuple[int, int]  # first and last position of usual pages


def shifted_pages(per_page: pl.DataFrame, cell: Sequence[str] = ()) -> ShiftedPages | None:
    """Find pages whose positions are shifted, from the `first` and `last` position of each page.

    Args:
        per_page: one row per page, or per page and value of the `cell` columns.
        cell: cell columns other than the position: only pages with the same values are compared, as an advert above
            moves all results down.

    Returns:
        None if no pages are shifted.
    """
    if cell:
        return next(filter(None, map(shifted_pages, per_page.partition_by(cell))), None)
    longer = per_page.filter(pl.col(LAST) > pl.col(FIRST))
    spans = longer.group_by(FIRST, LAST).agg(pl.len().alias(PAGES))
    if not spans.height:
        return None
    pages = {(first, last): number for first, last, number in spans.sort(FIRST, LAST).iter_rows()}
    starts = spans.group_by(FIRST).agg(pl.col(PAGES).sum()).sort(PAGES, FIRST, descending=[True, False])
    pages_from: dict[int, int] = dict(starts.iter_rows())
    total, usual_start = sum(pages_from.values()), int(starts[FIRST][0])
    ends = {last: number for (first, last), number in pages.items() if first == usual_start}
    usual_end = max(
        (last for last, number in ends.items() if number >= USUAL_END * pages_from[usual_start]), default=None
    )
    if usual_end is None:
        return None
    reach = ends[usual_end] / pages_from[usual_start]
    for shift in SHIFTS:
        span = usual_start + shift, usual_end + shift
        shifted = pages.get(span, 0)
        as_often = shifted >= AS_OFTEN * reach * pages_from.get(span[0], 0)
        # A shift down is certain only if pages with the usual start hardly ever end at the shifted end
        is_beyond = shift < 0 or ends.get(span[1], 0) < FEWEST_SHIFTED * ends[usual_end]
        if shifted >= max(FEWEST_PAGES, FEWEST_SHIFTED * total) and as_often and is_beyond:
            return ShiftedPages(shifted, total, span, (usual_start, usual_end))
    return None


ENDS = (pl.col(POSITION).min().alias(FIRST), pl.col(POSITION).max().alias(LAST))
"""The first and last position of a page."""


def find_shifted_pages(rows: pl.DataFrame, cell: Sequence[str] = ()) -> ShiftedPages | None:
    """Find shifted pages among canonical impressions; None if there are none, or no sessions."""
    return shifted_pages(rows.group_by(SESSION, *cell).agg(*ENDS), cell) if SESSION in rows.columns else None


PLACE = "posbias_place"
"""Column of `add_place`."""

_LARGEST = 2**63 - 1


def add_place(impressions: pl.DataFrame) -> pl.DataFrame | None:
    """Add one Int64 column that sorts impressions by session and position.

        place = P (session - smallest session) + position,  P = largest position + 1

    Sessions of text are replaced by their dense rank.

    Returns:
        None if sessions are neither integers nor text without nulls, or if place exceeds 63 bits.
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
    """Sort impressions by session and position, by one integer column if possible, which is much faster.

    Sorted impressions are returned unchanged. If a page shows a position several times, in cells with further columns
    (rows of a grid, several lists), these columns precede the position.
    """
    with_place = add_place(impressions)
    if with_place is None:
        rows = impressions.sort(SESSION, POSITION)
    else:
        rows = impressions if with_place[PLACE].is_sorted() else with_place.sort(PLACE).drop(PLACE)
    repeats = pl.all_horizontal(pl.col(name) == pl.col(name).shift() for name in (SESSION, POSITION))
    return rows.sort(SESSION, *cell, POSITION) if cell and rows.select(repeats.any()).item() else rows


PAGE_ROWS, PAGE_CLICKS, LAST_CLICKED = "rows", "page_clicks", "last_clicked"
"""Columns of pages: impressions, clicks, and 1 if the lowest row is clicked, else 0."""

# `_faultless_pages` is faster than `pages` for at least 2 rows per page on average, and at most 100 rows on any page
_FEWEST_ROWS_OF_PAGE, _MOST_ROWS_OF_PAGE = 2, 100


_VISIT = (
    "A session is one results page, and this looks like a visit: name the columns of one results page, "
    "e.g. `--session visit --session query_time`."
)


class PageRejection(Rejection):
    """Reason why the rows of a session cannot be one results page, or why a row of a page is not counted."""

    FAULTY_ROW = (20, "another row of the page is faulty", SESSION)
    SEVERAL_QUERIES = (21, "the session holds several queries", SESSION, _VISIT)
    REPEATED_DOC = (22, "the session shows a document twice", SESSION, _VISIT)
    REPEATED_POSITION = (23, "the session shows a position twice", SESSION, _VISIT)
    SHOWN_ABOVE = (24, "the document stands further up on the page", SESSION)
    BELOW_SHOWN_ABOVE = (25, "a repeated document was clicked further up on the page", SESSION)
    COPY = (26, "the row stands twice", SESSION)


@dataclass(frozen=True)
class PageRules:
    """What a results page may contain."""

    docs_repeat: bool = False  # whether it may show a document several times
    several_queries: bool = False  # whether its rows may have several queries, e.g. if each document is its own query
    cell: tuple[str, ...] = ()  # cell columns other than the position: a position may occur once for each value


USUAL_PAGES = PageRules()
"""One query, and each document once."""

HARMLESS = frozenset(
    (
        *(RowRejection.EMPTY_PAGE, RowRejection.NO_IMPRESSIONS, RowRejection.RARE_QUERY, RowRejection.OTHER_VALUE),
        *(PageRejection.SHOWN_ABOVE, PageRejection.BELOW_SHOWN_ABOVE, PageRejection.COPY),
    )
)
"""Rejections that are no fault of the log: empty rows and pages, copies, and rows that options exclude."""


def pages(impressions: pl.LazyFrame, rules: PageRules = USUAL_PAGES) -> pl.LazyFrame:
    """Summarise canonical impressions by session, and check whether each session can be one results page.

    Args:
        impressions: canonical impressions with sessions.
        rules: what a page may contain.

    Returns:
        One row per session: `session`, `rows` (impressions), `page_clicks`, `last_clicked` (0 or 1) and `rejected`, a
        `PageRejection` code or 0: several queries, a repeated document, or a repeated position (with its cell columns).
    """
    place_and_click = 2 * pl.col(POSITION).cast(pl.Int64) + pl.col(CLICK)  # largest on the last row
    last = place_and_click.max() % 2
    if rules.cell:  # several rows may have the last position
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
    """Return `pages` for impressions in memory; much faster if rows are in page order and no page has a fault."""
    faultless = _faultless_pages(impressions, rules)
    return pages(impressions.lazy(), rules).collect(engine="streaming") if faultless is None else faultless


def _faultless_pages(impressions: pl.DataFrame, rules: PageRules) -> pl.DataFrame | None:
    """Return the `pages` if rows are in page order and no page has a fault; None if that is not certain.

    The documents of a page differ if their hashes do. If two hashes are equal, the result is None, and `pages` compares
    the documents themselves.
    """
    if not impressions.height:
        return None
    session = impressions[SESSION]
    is_first = np.ones(impressions.height, dtype=bool)
    is_first[1:] = session[1:].ne_missing(session[:-1]).to_numpy()
    first = np.flatnonzero(is_first)
    ids = session.gather(first)
    position = impressions[POSITION].to_numpy()
    is_below = is_first[1:] | (position[1:] > position[:-1])
    if len(first) * _FEWEST_ROWS_OF_PAGE > impressions.height or not is_below.all() or ids.is_duplicated().any():
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
            SESSION: ids,
            PAGE_ROWS: n_rows,
            PAGE_CLICKS: sum_rows(click, start),
            LAST_CLICKED: click[start[1:] - 1],
            REJECTED: np.zeros(len(first), np.uint8),
        }
    )


def merge_pages(pages_of_parts: pl.LazyFrame) -> pl.LazyFrame:
    """Merge the pages of the parts of a log that was split by query: a page in several parts has several queries.

    Args:
        pages_of_parts: the `pages` of all parts, concatenated.
    """
    several = pl.when(pl.len() > 1).then(int(PageRejection.SEVERAL_QUERIES)).otherwise(pl.col(REJECTED).max())
    counts = pl.col(PAGE_ROWS, PAGE_CLICKS).sum(), pl.col(LAST_CLICKED).max()
    return pages_of_parts.group_by(SESSION).agg(*counts, several.cast(pl.UInt8).alias(REJECTED))


_LATER, _CUT = "posbias_later", "posbias_cut"


def mark_repeats(impressions: pl.LazyFrame, *, clicks_above_matter: bool, cell: Sequence[str] = ()) -> pl.LazyFrame:
    """Set `rejected` so that each document counts once per page, at its topmost position; 0 for rows that count.

    Of equal rows one counts. Rows of one document at one position with different clicks are not marked: such a page is
    faulty.

    Args:
        impressions: canonical impressions that keep the row contract, of whole pages.
        clicks_above_matter: whether cells depend on the clicks above: rows below a click on a repeated document are
            then rejected too.
        cell: cell columns other than the position; of one position, the smallest values are topmost.
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
"""Fewest rows to judge a log by: fewer may all be clicked by chance."""

MOSTLY_CLICKED, ENOUGH_ROWS = 0.98, 500
"""From 500 rows on, 98 % clicked rows mean that only clicks were logged: real click rates are far lower."""

FEWEST_ENDED = 30
"""Fewest pages with a click, of two or more rows, to judge a log by: fewer may all end on a click by chance."""

MOSTLY_ENDED = 0.95
"""Share of such pages that end on a click from which pages were cut off there."""

OFTEN_ENDED = 1.5
"""Ratio of the click rates of last rows and of rows above from which some pages seem to be cut off."""

LONE_CLICKS = 0.01
"""Most clicks above the last row, per page with a click, for which pages are assumed to end at their only click."""

SURELY_EXPECTED = 8.0
"""Expected number of last rows without a click, by the rows above, whose absence is no chance: p = e^-8."""

FEWER_THAN_EXPECTED = 5.0
"""Least ratio of expected to actual last rows without a click on pages that are cut off. If documents are merely very
attractive, rows without a click are as rare above."""


@dataclass(frozen=True)
class PageEnds:
    """Totals over faultless pages of two or more rows that show whether pages are cut off at their last click."""

    without_click: int = 0  # number of pages without a click; all other fields are about pages with a click
    pages: int = 0  # number of pages with a click
    ended: int = 0  # number of these whose last row is clicked
    rows_above: int = 0  # rows above the last rows
    clicks_above: int = 0  # clicks on these rows

    @property
    def cut_off(self) -> bool:
        """Whether pages were logged only down to the last click.

        False if pages end at their only click while others have none: whether a row is logged then depends only on the
        clicks above it, which biases no click rate.
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
        """Whether last rows are clicked far more often than rows above, as if some pages were cut off there.

        In general, lower rows are clicked less often.
        """
        if self.clicks_above <= LONE_CLICKS * self.pages:
            return False
        most = OFTEN_ENDED * self.pages * self.clicks_above / self.rows_above
        return self.ended > max(most + 4 * math.sqrt(most), FEWEST_ENDED)


@dataclass(frozen=True)
class LogTotals:
    """Totals over the rows of a log."""

    impressions: int  # on rows that keep the row contract
    clicked: int  # number of these with a click
    page_ends: PageEnds = PageEnds()  # of all pages or of a sample; zeros without sessions
    clicks_read: int = 0  # on accepted and rejected rows
    clicks_left_out: int = 0  # on rejected rows and pages, except on copies and on rows that options exclude

    @property
    def only_clicked(self) -> bool:
        """Whether (nearly) every row is clicked."""
        every = self.clicked == self.impressions >= FEWEST_ROWS
        return every or (self.impressions >= ENOUGH_ROWS and self.clicked >= MOSTLY_CLICKED * self.impressions)


PAGE_ENDS = pl.Schema({field.name: pl.Int64() for field in fields(PageEnds)})
"""Columns of `count_page_ends`."""


def count_page_ends(pages: pl.LazyFrame) -> pl.LazyFrame:
    """Return the `PageEnds` of `pages` as one row."""
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
    """Sum the `PageEnds` of the parts of a log."""
    return PageEnds(**pl.concat(counts).sum().row(0, named=True))


def check_totals(where: str, totals: LogTotals, advice: str = "") -> None:
    """Check that results without a click were logged.

    Args:
        where: name of the log, for the message.
        totals: totals of the log.
        advice: advice if every row is clicked, for the message.

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
