"""What pages look like: where they start, whether they have gaps, and whether somebody clicks everything."""

from dataclasses import dataclass

import polars as pl

from posbias.core.schema import CLICK, POSITION, SESSION

FEWEST_ROWS_OF_A_ROBOT = 4
"""Shorter pages may be clicked in full by a person."""


@dataclass(frozen=True)
class PageFacts:
    """Facts of a sample of whole pages, or of all."""

    pages: int  # how many were looked at
    rows: int  # impressions on them
    starting_late: int  # pages whose first position is not 1
    with_gaps: int  # pages that lack a position between their first and their last one
    long: int  # pages of at least `FEWEST_ROWS_OF_A_ROBOT` rows
    clicked_in_full: int  # those of them on which every row is clicked
    without_click: int  # pages without a click
    longest: int  # rows of the longest page


def page_facts(impressions: pl.LazyFrame) -> PageFacts:
    """Facts of the pages of canonical impressions with their sessions."""
    per_page = impressions.group_by(SESSION).agg(
        pl.len().cast(pl.Int64).alias("rows"),
        pl.col(CLICK).cast(pl.Int64).sum().alias("clicks"),
        pl.col(POSITION).min().alias("first"),
        pl.col(POSITION).max().alias("last"),
        pl.col(POSITION).n_unique().alias("places"),
    )
    long = pl.col("rows") >= FEWEST_ROWS_OF_A_ROBOT
    counts = {
        "pages": pl.len(),
        "rows": pl.col("rows").sum(),
        "starting_late": (pl.col("first") > 1).sum(),
        "with_gaps": (pl.col("last") - pl.col("first") + 1 > pl.col("places")).sum(),
        "long": long.sum(),
        "clicked_in_full": (long & (pl.col("clicks") == pl.col("rows"))).sum(),
        "without_click": (pl.col("clicks") == 0).sum(),
        "longest": pl.col("rows").max().fill_null(0),
    }
    found = per_page.select(count.cast(pl.Int64).alias(name) for name, count in counts.items())
    return PageFacts(**found.collect(engine="streaming").row(0, named=True))
