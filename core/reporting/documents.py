"""Documents whose click rate says something else than their attractiveness: what position bias does to each.

A document that stands low is clicked less often than it attracts, one at the top about as often. How sure the
difference is, its posterior says: documents are ordered by

    |attractiveness - click rate| - 1.96 standard deviations,

which is above 0 where the click rate lies outside of the 95 % interval of attractiveness.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from posbias.core.reporting.curves import CLICK_RATE
from posbias.core.schema import CLICKS, IMPRESSIONS

ATTRACTIVENESS, STD_DEV = "attractiveness", "std_dev"
COLUMNS = (IMPRESSIONS, CLICKS, ATTRACTIVENESS, STD_DEV)
BINS = 20
"""Of click rates and of attractiveness, from 0 to 1."""

FEWEST_IMPRESSIONS = 10
"""Of documents that were shown less often, the prior says more than their clicks."""

_Z = 1.959963984540054
_SURE = "sure"


@dataclass(frozen=True)
class DocumentDifferences:
    """What was found."""

    # `click_rate` and `attractiveness` (the lower ends of their bins), `documents`; bins without any are left out
    grid: pl.DataFrame
    documents: int  # how many there are with enough impressions
    outside: int  # how many have a click rate outside of the 95 % interval of their attractiveness
    # the keys, `impressions`, `clicks`, `click_rate`, `attractiveness`, `std_dev` of the documents that are clicked
    # less often than they attract, those of which it is surest first
    underrated: pl.DataFrame
    overrated: pl.DataFrame  # likewise of those that are clicked more often


def document_differences(table: pl.LazyFrame, keys: Sequence[str], most: int) -> DocumentDifferences:
    """Compare attractiveness with click rates, in one pass each over the documents.

    Args:
        table: rows of `attractiveness.parquet`; those with values that cannot be are left out.
        keys: the columns that say which document it is.
        most: how many documents of each kind are named.
    """
    rate, mean, deviation = pl.col(CLICK_RATE), pl.col(ATTRACTIVENESS), pl.col(STD_DEV)
    rows = (
        table.select(*keys, IMPRESSIONS, CLICKS, pl.col(ATTRACTIVENESS, STD_DEV).cast(pl.Float64))
        .filter(pl.col(IMPRESSIONS) >= FEWEST_IMPRESSIONS)
        .with_columns((pl.col(CLICKS) / pl.col(IMPRESSIONS)).alias(CLICK_RATE))
        .filter(rate.is_between(0, 1) & mean.is_between(0, 1) & deviation.is_between(0, 1))
        .with_columns(((mean - rate).abs() - _Z * deviation).alias(_SURE))
    )
    bins = [((value * BINS).floor().clip(0, BINS - 1) / BINS).round(9) for value in (rate, mean)]
    grid = rows.group_by(bins).agg(
        pl.len().cast(pl.Int64).alias("documents"), (pl.col(_SURE) > 0).sum().alias("outside")
    )
    found = grid.sort(CLICK_RATE, ATTRACTIVENESS).collect(engine="streaming")
    named = [
        rows.filter((pl.col(_SURE) > 0) & which)
        .sort([_SURE, *COLUMNS], descending=[True, *[True] * len(COLUMNS)])
        .head(most)
        .drop(_SURE)
        .collect(engine="streaming")
        for which in (mean > rate, mean < rate)
    ]
    return DocumentDifferences(
        grid=found.drop("outside"),
        documents=int(found["documents"].sum()),
        outside=int(found["outside"].sum()),
        underrated=named[0],
        overrated=named[1],
    )
