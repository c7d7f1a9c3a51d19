"""A sample of the pages of a log, counted for tests of the model."""

from dataclasses import replace

import polars as pl

from posbias.core.counts.clicks_above import CountedPages, count_pages
from posbias.core.fit.model_tests import why_no_pages
from posbias.core.schema import QUERY, SESSION
from posbias.io.counting.count import CountedLog

MOST_ROWS = 1 << 17
"""Impressions that are looked at, about."""

_FAR_OFF = 4  # times as many or as few as wanted
_SEED = 1  # not that of the buckets, which hold one in so many queries already


def sample_pages(counted: CountedLog) -> CountedPages | None:
    """Whole pages of some queries, by what was clicked above; None where there are none or they are not needed.

    In a larger log than `MOST_ROWS` they are those of a sample of queries, so that documents are seen as often as in
    the whole log; where few queries hold most of it, a sample of pages.
    """
    pages = None if counted.read is None else counted.read.some_pages
    if pages is None or why_no_pages(counted.plan):
        return None
    rows = pages.select(pl.len()).collect(engine="streaming").item()
    sample = _one_in(pages, QUERY, -(-rows // MOST_ROWS))
    if rows > MOST_ROWS and not MOST_ROWS // _FAR_OFF <= sample.height <= _FAR_OFF * MOST_ROWS:
        sample = _one_in(pages, SESSION, -(-rows // MOST_ROWS))
    by_position = replace(counted.plan, position_bins=())  # of a bin's positions, one is clicked more than the other
    return count_pages(sample, by_position) if sample.height else None


def _one_in(pages: pl.LazyFrame, column: str, number: int) -> pl.DataFrame:
    """The rows of one in so many values of a column."""
    chosen = pages if number == 1 else pages.filter(pl.col(column).hash(_SEED) % number == 0)
    return chosen.collect(engine="streaming")
