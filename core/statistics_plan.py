"""The sufficient statistics as one plan: impressions in, counts per (query, document) and examination cell out.

    n_je = number of impressions of pair j in cell e        c_je = number of clicks among them

They add up over files, days and machines. Written once with narwhals: an engine runs it on its own frames.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import narwhals as nw
from narwhals.typing import IntoLazyFrameT

from posbias.core.models import FactorisedModel
from posbias.core.schema import CLICK, CLICKS, IMPRESSIONS, PAIR, PERIOD, POSITION, PREVIOUS_CLICK, WEIGHT


@dataclass(frozen=True)
class StatisticsPlan:
    """What is counted, and by which keys.

    Attributes:
        model: says how an impression maps to a cell.
        max_position: impressions further down are left out; None keeps all.
        position_bins: first position of each bin, ascending, starting at 1; empty for no bins.
        period: whether the statistics keep the `period` column apart.
        strata: further columns that the statistics keep apart.
        weighted: whether impressions carry a `weight` (> 0) instead of counting one each.
    """

    model: FactorisedModel
    max_position: int | None = None
    position_bins: tuple[int, ...] = ()
    period: bool = False
    strata: tuple[str, ...] = ()
    weighted: bool = False

    @property
    def strata_columns(self) -> tuple[str, ...]:
        """The columns that, with the pair, make a stratum."""
        return ((PERIOD,) if self.period else ()) + self.strata

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that identify one row of the statistics: the pair, its stratum, the cell."""
        return (*PAIR, *self.strata_columns, *self.model.cell_columns)

    def count(self, impressions: nw.LazyFrame[IntoLazyFrameT]) -> nw.LazyFrame[IntoLazyFrameT]:
        """Statistics of impressions that keep the contract (session, query, doc, position, click, ...).

        Returns:
            One row per key: the keys, `impressions` and `clicks` (Int64, or Float64 when weighted).
        """
        return self._counted(self.with_cells(impressions), self.keys)

    def count_cells(self, impressions: nw.LazyFrame[IntoLazyFrameT]) -> nw.LazyFrame[IntoLazyFrameT]:
        """Impressions and clicks per cell only, whatever the pair."""
        return self._counted(self.with_cells(impressions), self.model.cell_columns)

    def with_cells(self, impressions: nw.LazyFrame[IntoLazyFrameT]) -> nw.LazyFrame[IntoLazyFrameT]:
        """Each impression with the columns of its cell, positions binned; those too far down are left out."""
        frame = self.model.with_cells(impressions)
        if self.max_position is not None:
            frame = frame.filter(nw.col(POSITION) <= self.max_position)
        if self.position_bins:
            binned = [column for column in self.model.cell_columns if column in (POSITION, PREVIOUS_CLICK)]
            frame = frame.with_columns(_binned(column, self.position_bins) for column in binned)
        return frame

    def _counted(self, frame: nw.LazyFrame[IntoLazyFrameT], keys: Sequence[str]) -> nw.LazyFrame[IntoLazyFrameT]:
        if not self.weighted:
            impressions, clicks = nw.len().cast(nw.Int64), nw.col(CLICK).cast(nw.Int64).sum()
            return frame.group_by(*keys).agg(impressions.alias(IMPRESSIONS), clicks.alias(CLICKS))
        weight = nw.col(WEIGHT).cast(nw.Float64)
        weighted = frame.with_columns(weight.alias(IMPRESSIONS), (weight * nw.col(CLICK)).alias(CLICKS))
        return weighted.group_by(*keys).agg(nw.col(IMPRESSIONS).sum(), nw.col(CLICKS).sum())

    def add_up(self, statistics: nw.LazyFrame[IntoLazyFrameT]) -> nw.LazyFrame[IntoLazyFrameT]:
        """Merge statistics: counts of equal keys add up."""
        return statistics.group_by(*self.keys).agg(nw.col(IMPRESSIONS).sum(), nw.col(CLICKS).sum())


def _binned(column: str, first_positions: Sequence[int]) -> nw.Expr:
    """The first position of the bin that holds a position; 0 (no previous click) stays 0.

    E.g.: bins 1, 3, 5: [0, 1, 2, 3, 4, 5, 9] -> [0, 1, 1, 3, 3, 5, 5].
    """
    binned = nw.lit(0)
    for first in first_positions:
        binned = nw.when(nw.col(column) >= first).then(nw.lit(first)).otherwise(binned)
    return binned.cast(nw.Int32).alias(column)
