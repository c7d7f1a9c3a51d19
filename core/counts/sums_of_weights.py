"""Sums of weights that do not depend on the order of rows, so that the same log gives the same bytes.

Floating-point sums do, and rows come as threads read them: the weights of a key are added from the smallest up.
"""

from collections.abc import Sequence

import narwhals as nw
import polars as pl

from posbias.core.counts.plan import StatisticsPlan
from posbias.core.schema import CLICK, CLICKS, IMPRESSIONS, WEIGHT


def count_cells(impressions: pl.LazyFrame, plan: StatisticsPlan) -> pl.DataFrame:
    """Impressions and clicks per cell, whatever the pair, or the sums of their weights; in any order.

    Args:
        impressions: canonical ones.
        plan: what is counted.
    """
    in_cells = plan.with_cells(nw.from_native(impressions))
    if plan.weighted:
        return count_weights(in_cells.to_native(), plan.cell_columns)
    return plan.count_in_cells(in_cells, plan.cell_columns).to_native().collect(engine="streaming")


def count_weights(in_cells: pl.LazyFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Sums of weights by key, sorted by it.

    Args:
        in_cells: the keys, `weight` and `click` of impressions.
        keys: the columns of a key.

    Returns:
        The keys, `impressions` (the sum of weights) and `clicks` (that of those that were clicked).
    """
    weight = pl.col(WEIGHT).cast(pl.Float64)
    rows = in_cells.select(*keys, weight.alias(IMPRESSIONS), (weight * pl.col(CLICK)).alias(CLICKS))
    return add_up_weights(rows.collect(engine="streaming"), keys)


def add_up_weights(counts: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Counts of equal keys added up, sorted by them.

    Args:
        counts: the keys, `impressions` and `clicks`; keys may repeat.
        keys: the columns of a key.
    """
    rows = counts.select(*keys, IMPRESSIONS, CLICKS).sort(*keys, IMPRESSIONS, CLICKS)
    return rows.group_by(*keys, maintain_order=True).agg(pl.col(IMPRESSIONS, CLICKS).sum())
