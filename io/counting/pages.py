"""A sample of the pages of a log, for tests of the model and for a look at other ones."""

from dataclasses import replace

import polars as pl

from posbias.core.counts.clicks_above import CountedPages, count_pages
from posbias.core.fit.other_models import OtherModels, can_compare, compare_models
from posbias.core.schema import QUERY, SESSION
from posbias.io.counting.count import CountedLog
from posbias.io.progress import Progress

MOST_ROWS = 1 << 17
"""Impressions that are looked at, about."""

_FAR_OFF = 4  # times as many or as few as wanted
_SEED = 1  # not that of the buckets, which hold one in so many queries already


def sample_pages(counted: CountedLog) -> CountedPages | None:
    """Whole pages of some queries, by what was clicked above; None where there are none or they are not needed."""
    if counted.plan.weighted:
        return None
    sample = _some_rows(counted, MOST_ROWS)
    by_position = replace(counted.plan, position_bins=())  # of a bin's positions, one is clicked more than the other
    return None if sample is None else count_pages(sample, by_position)


def other_models(counted: CountedLog, progress: Progress) -> OtherModels | None:
    """Which click models explain pages of the log better than the one that was fitted; None where nobody can say."""
    with progress.stage("looking at other click models"):
        sample = _some_rows(counted, MOST_ROWS // 2) if can_compare(counted.plan) else None
        return None if sample is None else compare_models(sample, counted.plan.model.name)


def _some_rows(counted: CountedLog, most: int) -> pl.DataFrame | None:
    """Impressions of whole pages; None where there are none.

    In a larger log than `most` they are those of a sample of queries, so that documents are seen as often as in the
    whole log; where few queries hold most of it, a sample of pages.
    """
    pages = None if counted.read is None else counted.read.some_pages
    if pages is None:
        return None
    rows = pages.select(pl.len()).collect(engine="streaming").item()
    sample = _one_in(pages, QUERY, -(-rows // most))
    if rows > most and not most // _FAR_OFF <= sample.height <= _FAR_OFF * most:
        sample = _one_in(pages, SESSION, -(-rows // most))
    return sample if sample.height else None


def _one_in(pages: pl.LazyFrame, column: str, number: int) -> pl.DataFrame:
    """The rows of one in so many values of a column."""
    chosen = pages if number == 1 else pages.filter(pl.col(column).hash(_SEED) % number == 0)
    return chosen.collect(engine="streaming")
