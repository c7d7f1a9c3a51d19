"""What pages showed, as arrays: the rows in which clicks are counted, and what a click in each of them weighs."""

from dataclasses import dataclass

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import Flags, Floats, Integers
from posbias.core.counts.plan import StatisticsPlan
from posbias.core.log.pages import in_page_order
from posbias.core.schema import CLICK, CLICKS, DOC, IMPRESSIONS, POSITION, QUERY, SESSION, WEIGHT

PAGES, PAGE, AT, CELL = "posbias_pages", "posbias_page", "posbias_at", "posbias_cell"
_NO_CELL = -1
_NUMBER = "posbias_number"


@dataclass(frozen=True)
class CellWeights:
    """The cells of a log, and theta there as weights take it."""

    cells: pl.DataFrame  # the cell columns, K rows
    propensity: Floats  # theta, shape (K,), NaN where a cell has none
    min_propensity: float  # tau

    @property
    def weight(self) -> Floats:
        """1 / max(theta, tau), shape (K,), 0 where a cell has no propensity."""
        return np.nan_to_num(1.0 / np.maximum(self.propensity, self.min_propensity))

    @property
    def moves(self) -> Flags:
        """Whether w follows theta, which it does not where it is clipped, shape (K,)."""
        return np.nan_to_num(self.propensity) >= self.min_propensity


@dataclass(frozen=True)
class Shown:
    """Rows of pages: an impression each, or, for candidates of queries, all of a document in one cell and place."""

    queries: pl.DataFrame  # `query` and `PAGES`, the number of its pages (or the sum of their weights), Q rows
    documents: pl.DataFrame  # `query` and `doc` of each pair, J rows
    query: Integers  # row of `queries`, shape (N,)
    document: Integers  # row of `documents`, shape (N,)
    page: Integers  # the number of the page, ascending, shape (N,); empty where rows are no impressions
    place: Integers  # the place that the document had, from 1, shape (N,)
    cell: Integers  # the number of the cell, shape (N,); -1 where the table lacks it
    impressions: Floats  # how many the row stands for, shape (N,)
    clicks: Floats  # on them, shape (N,)
    n_pages: int  # whatever they weigh

    @property
    def pages(self) -> Floats:
        """Pages of each query, shape (Q,)."""
        return self.queries[PAGES].to_numpy()


def rows_of_pages(impressions: pl.DataFrame, plan: StatisticsPlan, weights: CellWeights) -> pl.DataFrame:
    """Impressions of whole pages by page and position, numbered.

    What lies further down than the fit has counted is left out, so that it is no candidate either.

    Returns:
        `query`, `doc`, `PAGE` (ascending), `AT` (its place there, from 1), `position`, `CELL`, `impressions` (1, or the
        weight of the row) and `clicks`.
    """
    shown = impressions.with_columns(pl.col(POSITION).alias(AT))
    cells = weights.cells.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias(CELL))
    in_cells = plan.with_cells_in_memory(shown).join(cells, on=list(plan.cell_columns), how="left", nulls_equal=True)
    own = pl.col(WEIGHT).cast(pl.Float64) if plan.weighted else pl.lit(1.0)
    page, row = pl.col(SESSION).rle_id().cast(pl.Int64), pl.int_range(pl.len(), dtype=pl.Int64)
    return (
        in_page_order(in_cells.with_columns(pl.col(AT).alias(POSITION)))
        .with_columns(page.alias(PAGE), row.alias(AT))
        .select(
            *(QUERY, DOC, PAGE, pl.col(POSITION).cast(pl.Int64), pl.col(CELL).fill_null(_NO_CELL)),
            (pl.col(AT) - pl.col(AT).min().over(PAGE) + 1).alias(AT),
            own.alias(IMPRESSIONS),
            (own * pl.col(CLICK)).alias(CLICKS),
        )
    )


def pages_by_query(rows: pl.DataFrame) -> pl.DataFrame:
    """`query`, `PAGES` (the sum of their mean weights) and their number, of `rows_of_pages`."""
    pages = rows.group_by(QUERY, PAGE, maintain_order=True).agg(pl.col(IMPRESSIONS).mean())
    return pages.group_by(QUERY, maintain_order=True).agg(
        pl.col(IMPRESSIONS).sum().alias(PAGES), pl.len().cast(pl.Int64).alias(PAGE)
    )


def counted_rows(rows: pl.DataFrame) -> pl.DataFrame:
    """Pages, or what is counted of them already, added up.

    Returns:
        `query`, `doc`, `position`, `CELL`, `impressions`, `clicks`, in an order that sums can rely on.
    """
    keys = (QUERY, DOC, POSITION, CELL)
    return rows.group_by(keys, maintain_order=True).agg(pl.col(IMPRESSIONS, CLICKS).sum())


def shown_of(rows: pl.DataFrame, by_query: pl.DataFrame) -> Shown:
    """Rows as arrays.

    Args:
        rows: of `rows_of_pages`, or of `counted_rows`.
        by_query: their `pages_by_query`.
    """
    queries = by_query.sort(QUERY)
    documents = rows.select(QUERY, DOC).unique(maintain_order=True)

    def numbers(keys: pl.DataFrame) -> Integers:
        """The row of the keys that each row has."""
        known = keys.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias(_NUMBER))
        return rows.join(known, on=keys.columns, how="left", nulls_equal=True, maintain_order="left")[
            _NUMBER
        ].to_numpy()

    of_pages = PAGE in rows.columns
    return Shown(
        queries=queries.select(QUERY, PAGES),
        documents=documents,
        query=numbers(queries.select(QUERY)),
        document=numbers(documents),
        page=rows[PAGE].to_numpy() if of_pages else np.empty(0, np.int64),
        place=rows[AT if of_pages else POSITION].to_numpy(),
        cell=rows[CELL].to_numpy(),
        impressions=rows[IMPRESSIONS].to_numpy(),
        clicks=rows[CLICKS].to_numpy(),
        n_pages=int(queries[PAGE].sum()),
    )
