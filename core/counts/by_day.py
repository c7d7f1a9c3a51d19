"""Click rates by day and position, and how far queries lie apart in them: a small table, from statistics of any size.

    impressions n_dk, clicks c_dk     day d, position k
    sums over queries q               of n_dkq^2, n_dkq c_dkq and c_dkq^2

The sums say how much of the differences between days is due to the queries that happened to be asked.
"""

from collections.abc import Sequence

import polars as pl

from posbias.core.schema import CLICKS, IMPRESSIONS, POSITION, QUERY

DAY = "day"
"""The day as text; or another name of what is compared, such as that of a file."""

IMPRESSIONS_SQUARED, PRODUCT, CLICKS_SQUARED = "impressions_squared", "product", "clicks_squared"
"""Columns of sums over queries."""

_COUNTS = (IMPRESSIONS, CLICKS, IMPRESSIONS_SQUARED, PRODUCT, CLICKS_SQUARED)

BY_DAY = pl.Schema({DAY: pl.String(), POSITION: pl.Int32()} | dict.fromkeys(_COUNTS, pl.Float64()))
"""The columns of `count_by_day`."""


def count_by_day(statistics: pl.LazyFrame, day: pl.Expr) -> pl.LazyFrame:
    """Counts by day and position of statistics that hold whole queries.

    Args:
        statistics: `query`, `position`, `impressions` and `clicks`; rows may have equal keys.
        day: what becomes `day`, as text at the end: texts are slow to group by.
    """
    n, c = pl.col(IMPRESSIONS), pl.col(CLICKS)
    by_query = statistics.group_by(day.alias(DAY), QUERY, POSITION).agg(pl.col(IMPRESSIONS, CLICKS).sum().cast(float))
    sums = (n.sum(), c.sum(), (n * n).sum(), (n * c).sum(), (c * c).sum())
    counted = by_query.group_by(DAY, POSITION).agg(total.alias(name) for name, total in zip(_COUNTS, sums, strict=True))
    return counted.select(pl.col(name).cast(of_type) for name, of_type in BY_DAY.items())


def count_positions(impressions: pl.LazyFrame, day: str) -> pl.LazyFrame:
    """The same with impressions only: which positions there are, of a log that is not yet counted."""
    counted = impressions.filter(pl.col(POSITION) >= 1).group_by(POSITION).agg(pl.len().alias(IMPRESSIONS))
    rest = {name: pl.lit(0) for name in (CLICKS, PRODUCT, CLICKS_SQUARED)}
    named = counted.with_columns(pl.lit(day).alias(DAY), pl.col(IMPRESSIONS).alias(IMPRESSIONS_SQUARED), **rest)
    return named.select(pl.col(name).cast(of_type) for name, of_type in BY_DAY.items())


def add_by_day(counts: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """The same of all parts together, from that of each."""
    together = pl.concat([BY_DAY.to_frame(), *counts])
    return together.group_by(DAY, POSITION).agg(pl.col(_COUNTS).sum()).sort(DAY, POSITION)
