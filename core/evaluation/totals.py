"""What rankings gain over a whole log: the sums over queries, and the moments that errors by query need."""

from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import Floats
from posbias.core.evaluation.query_sums import N_PAGES, SUM_WEIGHT, Asked, Missing, QuerySums, count_top

_ALL_BUT = 1e-9  # of the pages: a query that has more has them all


@dataclass(frozen=True)
class Totals:
    """Sums over some queries g, those of the whole log at last; z_g are the P sums of a query.

    Attributes:
        sums: sum of z_g, shape (P,).
        moments: sum of z_g z_g' / (1 - share of the pages)^2, shape (P, P): what leaving queries out would change.
        pages_squared: sum of the squares of the pages of queries.
        weight_squared: sum of the squares of the weights of their clicks.
        n_queries: number of queries.
        moves: of `QuerySums`, shape (R, M, K).
        weight_moves: of `QuerySums`, shape (K,).
        squares: of `QuerySums`, shape (R, M).
        missing: what rankings lack.
        impressions: of all rows.
        clipped: clicks whose weight is clipped.
        unweighted: clicks in cells without a propensity.
        n_pages: number of pages.
    """

    sums: Floats
    moments: Floats
    pages_squared: float
    weight_squared: float
    n_queries: int
    moves: Floats
    weight_moves: Floats
    squares: Floats
    missing: Missing
    impressions: float
    clipped: float
    unweighted: float
    n_pages: int

    @classmethod
    def of(cls, found: QuerySums, lists: pl.DataFrame, asked: Asked, pages: float) -> "Totals":
        """Those of some whole queries.

        Args:
            found: their sums.
            lists: of these queries, perhaps of others.
            asked: what is asked.
            pages: of the whole log.
        """
        others = 1.0 - found.sums[:, N_PAGES] / pages
        left_out = found.sums / np.where(others > _ALL_BUT, others, np.inf)[:, None]
        top, never = count_top(found, lists, asked)
        return cls(
            sums=found.sums.sum(axis=0),
            moments=left_out.T @ left_out,
            pages_squared=float(np.sum(found.sums[:, N_PAGES] ** 2)),
            weight_squared=float(np.sum(found.sums[:, SUM_WEIGHT] ** 2)),
            n_queries=len(found.sums),
            moves=found.moves,
            weight_moves=found.weight_moves,
            squares=found.squares,
            missing=replace(found.missing, top=top, never_shown=never),
            impressions=found.impressions,
            clipped=found.clipped,
            unweighted=found.unweighted,
            n_pages=found.n_pages,
        )

    def __add__(self, other: "Totals") -> "Totals":
        """Those of both, which share no query."""
        return Totals(
            sums=self.sums + other.sums,
            moments=self.moments + other.moments,
            pages_squared=self.pages_squared + other.pages_squared,
            weight_squared=self.weight_squared + other.weight_squared,
            n_queries=self.n_queries + other.n_queries,
            moves=self.moves + other.moves,
            weight_moves=self.weight_moves + other.weight_moves,
            squares=self.squares + other.squares,
            missing=self.missing + other.missing,
            impressions=self.impressions + other.impressions,
            clipped=self.clipped + other.clipped,
            unweighted=self.unweighted + other.unweighted,
            n_pages=self.n_pages + other.n_pages,
        )
