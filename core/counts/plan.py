"""The sufficient statistics as one plan: impressions in, counts per (query, document) and examination cell out.

    n_je = number of impressions of pair j in cell e        c_je = number of clicks among them

They add up over files, days and machines. Written once with narwhals: an engine runs it on its own frames.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import narwhals as nw
import polars as pl
from narwhals.typing import IntoLazyFrameT

from posbias.core.models import FactorisedModel
from posbias.core.periods import COARSER, HALF, Length, Resolution, column_of, lengths_of
from posbias.core.randomization import RandomizedRows
from posbias.core.schema import CLICK, CLICKS, IMPRESSIONS, PAIR, PERIOD, POSITION, QUERY, RANDOMIZED, WEIGHT


@dataclass(frozen=True)
class StatisticsPlan:
    """What is counted, and by which keys."""

    model: FactorisedModel  # says how an impression maps to a cell
    max_position: int | None = None  # impressions further down are left out; None keeps all
    position_bins: tuple[int, ...] = ()  # first position of each bin, ascending, starting at 1; empty for no bins
    # Columns with which theta differs (a cell is then a context and a position), and gamma too
    context: tuple[str, ...] = ()
    # How finely the statistics keep time apart, in the column `period`; None for not at all
    period: Resolution | None = None
    strata: tuple[str, ...] = ()  # further columns that the statistics keep apart: gamma may differ by them
    clusters: tuple[str, ...] = ()  # columns that the statistics keep apart for standard errors alone
    # Descriptions of randomised rows, which the statistics keep apart by number
    randomized: tuple[RandomizedRows, ...] = ()
    weighted: bool = False  # whether impressions carry a `weight` (> 0) instead of counting one each
    # Whether the rows that are counted add up impressions and clicks already. Their counts are those of the
    # impressions themselves, so that statistics do not know it.
    summed: bool = False

    @property
    def cell_columns(self) -> tuple[str, ...]:
        """The columns that make up a cell, the position first."""
        return (*self.model.cell_columns, *self.context)

    @property
    def cell_order(self) -> tuple[str, ...]:
        """The same columns in the order by which cells are sorted: context by context, then by position."""
        return (*self.context, *self.model.cell_columns)

    @property
    def pair_columns(self) -> tuple[str, ...]:
        """What shares one attractiveness: the query, the document and, where there are contexts, the context."""
        return (*PAIR, *self.context)

    @property
    def lengths(self) -> tuple[Length, ...]:
        """The periods into which the statistics can be parted, the coarsest first."""
        return lengths_of(self.period)

    def stratum_columns(self, period: Length = "none", *, halved: bool = False) -> tuple[str, ...]:
        """What shares one attractiveness when theta is estimated: the pair, its period, its strata; or half of it."""
        half = (HALF,) if halved else ()
        return (*self.pair_columns, *column_of(period, self.period), *self.strata, *half)

    @property
    def randomized_columns(self) -> tuple[str, ...]:
        """What shares one mean attractiveness where documents are placed at random: query, context, experiment."""
        return (QUERY, *self.context, RANDOMIZED)

    @property
    def units(self) -> tuple[tuple[str, ...], ...]:
        """The columns of every kind of unit that each estimate needs, the pair's first; those of periods are extra."""
        kinds = [self.pair_columns, self.stratum_columns()]
        if self.randomized:
            kinds.append(self.randomized_columns)
        return tuple(dict.fromkeys(kinds))

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that identify one row of the statistics: the pair, its finest stratum, the cell."""
        marked = (RANDOMIZED,) if self.randomized else ()
        period = (PERIOD,) if self.period else ()
        return (*self.pair_columns, *period, *self.strata, *self.clusters, *marked, *self.model.cell_columns)

    def keeps_order(self, unit: Sequence[str]) -> bool:
        """Whether statistics that are sorted by the keys are sorted by a kind of unit, too, and within it by time."""
        pair = len(self.pair_columns)
        if tuple(unit[:pair]) != self.pair_columns:
            return False
        exact = tuple(PERIOD if name in COARSER else name for name in unit)
        at_once = len(unit) == pair + 1 or not any(name in COARSER for name in unit)
        return at_once and exact == self.keys[: len(unit)]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the statistics as they are written."""
        rest = tuple(name for name in self.keys if name not in (*PAIR, *self.cell_columns))
        return (*PAIR, *self.cell_columns, *rest, IMPRESSIONS, CLICKS)

    def count(self, impressions: nw.LazyFrame[IntoLazyFrameT]) -> nw.LazyFrame[IntoLazyFrameT]:
        """Statistics of impressions that keep the contract (session, query, doc, position, click, ...).

        Returns:
            One row per key: the keys, `impressions` and `clicks` (Int64, or Float64 when weighted).
        """
        return self.count_in_cells(self.with_cells(impressions))

    def count_in_cells(
        self, frame: nw.LazyFrame[IntoLazyFrameT], keys: Sequence[str] = ()
    ) -> nw.LazyFrame[IntoLazyFrameT]:
        """Statistics of impressions that `with_cells` has seen, by the keys, or by others."""
        keys = keys or self.keys
        if self.summed:
            return frame.group_by(*keys).agg(nw.col(IMPRESSIONS).sum(), nw.col(CLICK).sum().alias(CLICKS))
        if not self.weighted:
            impressions, clicks = nw.len().cast(nw.Int64), nw.col(CLICK).cast(nw.Int64).sum()
            return frame.group_by(*keys).agg(impressions.alias(IMPRESSIONS), clicks.alias(CLICKS))
        weight = nw.col(WEIGHT).cast(nw.Float64)
        weighted = frame.with_columns(weight.alias(IMPRESSIONS), (weight * nw.col(CLICK)).alias(CLICKS))
        return weighted.group_by(*keys).agg(nw.col(IMPRESSIONS).sum(), nw.col(CLICKS).sum())

    def with_cells(self, impressions: nw.LazyFrame[IntoLazyFrameT]) -> nw.LazyFrame[IntoLazyFrameT]:
        """Each impression with the columns of its cell, positions binned; those too far down are left out."""
        return self._selected(self.model.with_cells(impressions))

    def with_cells_in_memory(self, impressions: pl.DataFrame) -> pl.DataFrame:
        """The same for impressions in memory, whose rows may change their order."""
        in_cells = self.model.with_cells_in_memory(impressions)
        return self._selected(nw.from_native(in_cells.lazy())).to_native().collect()

    def _selected(self, frame: nw.LazyFrame[IntoLazyFrameT]) -> nw.LazyFrame[IntoLazyFrameT]:
        """Rows with their cells: those within reach, positions binned."""
        if self.max_position is not None:
            frame = frame.filter(nw.col(POSITION) <= self.max_position)
        if self.position_bins:
            frame = frame.with_columns(_binned(column, self.position_bins) for column in self.model.cell_columns)
        return frame

    def in_bins(self, cells: pl.DataFrame) -> pl.DataFrame:
        """Cells by position as cells by bin, row by row."""
        binned = nw.from_native(cells).with_columns(
            _binned(name, self.position_bins) for name in self.model.cell_columns
        )
        return binned.to_native()

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
