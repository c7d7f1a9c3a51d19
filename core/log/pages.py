"""Pages of a log: whether the rows of a session can be one results page, and where pages end."""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import polars as pl

from posbias.core.arrays.compression import GOLDEN
from posbias.core.arrays.count_table import sum_rows
from posbias.core.log.impressions import REJECTED, RowFault
from posbias.core.schema import CLICK, DOC, POSITION, QUERY, SESSION

PAGE_ROWS, PAGE_CLICKS, LAST_CLICKED = "rows", "page_clicks", "last_clicked"
"""Columns of pages: impressions on each, clicks among them, and 1 where the row furthest down is clicked."""

_FEWEST_ROWS_OF_PAGE, _MOST_ROWS_OF_PAGE = 2, 100  # on average, and at most, so that their order is worth a look


class PageFault(IntEnum):
    """Why the rows of one session cannot be one results page, or some of them are not counted."""

    FAULTY_ROW = 20
    SEVERAL_QUERIES = 21
    REPEATED_DOC = 22
    REPEATED_POSITION = 23
    SHOWN_ABOVE = 24
    BELOW_SHOWN_ABOVE = 25


@dataclass(frozen=True)
class PageRules:
    """What a results page may be.

    Attributes:
        docs_repeat: whether it may show a document twice.
        several_queries: whether its documents belong to several queries: each to its own, where a log has none.
    """

    docs_repeat: bool = False
    several_queries: bool = False


USUAL_PAGES = PageRules()
"""A document once, and one query."""

HARMLESS = frozenset((RowFault.EMPTY_PAGE, RowFault.NO_IMPRESSIONS, PageFault.SHOWN_ABOVE, PageFault.BELOW_SHOWN_ABOVE))
"""What is counted and left out, and is nobody's mistake: what holds nothing, and what was asked to be left out."""


def pages(impressions: pl.LazyFrame, rules: PageRules = USUAL_PAGES) -> pl.LazyFrame:
    """The sessions of canonical impressions, and whether each can be one results page.

    Args:
        impressions: with their sessions.
        rules: what a page may be.

    Returns:
        `session`, `rows` (impressions in it), `page_clicks`, `last_clicked`, and `rejected`, a `PageFault` or 0:
        several queries, or a document or a position twice.
    """
    place_and_click = 2 * pl.col(POSITION).cast(pl.Int64) + pl.col(CLICK)  # its maximum is that of the last row
    per_page = impressions.group_by(SESSION).agg(
        pl.len().cast(pl.Int64).alias(PAGE_ROWS),
        pl.col(CLICK).cast(pl.Int64).sum().alias(PAGE_CLICKS),
        (place_and_click.max() % 2).alias(LAST_CLICKED),
        queries=pl.col(QUERY).n_unique(),
        docs=pl.col(DOC).n_unique(),
        positions=pl.col(POSITION).n_unique(),
    )
    several = pl.lit(value=False) if rules.several_queries else pl.col("queries") > 1
    repeated = pl.lit(value=False) if rules.docs_repeat else pl.col("docs") < pl.col(PAGE_ROWS)
    fault = (
        pl.when(several)
        .then(int(PageFault.SEVERAL_QUERIES))
        .when(repeated)
        .then(int(PageFault.REPEATED_DOC))
        .when(pl.col("positions") < pl.col(PAGE_ROWS))
        .then(int(PageFault.REPEATED_POSITION))
        .otherwise(0)
    )
    return per_page.select(SESSION, PAGE_ROWS, PAGE_CLICKS, LAST_CLICKED, fault.cast(pl.UInt8).alias(REJECTED))


def pages_in_memory(impressions: pl.DataFrame, rules: PageRules = USUAL_PAGES) -> pl.DataFrame:
    """The same of impressions in memory: much faster where each page stands together, from top to bottom, and is sound.

    Rows of a page hold different documents where the hashes of page and document differ; where two do not, documents
    are compared themselves.
    """
    found = _sound_pages(impressions, rules)
    return pages(impressions.lazy(), rules).collect(engine="streaming") if found is None else found


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


def over_parts(pages_of_parts: pl.LazyFrame) -> pl.LazyFrame:
    """The pages of a log that was split by query, so that a page in several parts holds several queries.

    Args:
        pages_of_parts: the `pages` of each part, one after the other.
    """
    several = pl.when(pl.len() > 1).then(int(PageFault.SEVERAL_QUERIES)).otherwise(pl.col(REJECTED).max())
    counts = pl.col(PAGE_ROWS, PAGE_CLICKS).sum(), pl.col(LAST_CLICKED).max()
    return pages_of_parts.group_by(SESSION).agg(*counts, several.cast(pl.UInt8).alias(REJECTED))
