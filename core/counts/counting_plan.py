"""Count impressions and clicks per (query, document) pair and examination cell: the sufficient statistics of a log.

    n_je = number of impressions of pair j in cell e        c_je = number of clicks among these impressions

The counts of two parts of a log add up to those of the whole log. `StatisticsPlan` defines them once, in narwhals, for
Polars and Spark frames alike.

Weighted impressions: rows arrive in the order in which threads read them, and a floating-point sum depends on its
order. The weights of each key are therefore added in ascending order, so that the same log gives the same bytes.

`count_packed` makes the same counts several times faster in memory. It packs the keys of an impression and its click
into one 64-bit number (`posbias.core.arrays.packing`): integers and times as their distance from the column's minimum,
texts and widely spread integers (64-bit hashes) as their dense rank. Sorting these numbers sorts the rows by their
keys, and equal rows form runs. `count_numbers` starts from rows that were packed when the log was split.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import narwhals as nw
import numpy as np
import polars as pl
from narwhals.typing import IntoLazyFrameT

from posbias.core.arrays.count_table import Hashes, Integers, first_of_runs, sum_rows
from posbias.core.arrays.packing import NUMBER, WORD_BITS, BitField, BitFields, dense_ranks, exact_field, stack_fields
from posbias.core.choices import RandomizedRows
from posbias.core.models import FactorisedModel
from posbias.core.schema import (
    CLICK,
    CLICKS,
    COARSER,
    DOC,
    IMPRESSIONS,
    LENGTHS,
    PAIR,
    PERIOD,
    POSITION,
    QUERY,
    RANDOMIZED,
    WEIGHT,
    Length,
    Resolution,
)


@dataclass(frozen=True)
class StatisticsPlan:
    """The keys by which impressions and clicks are counted."""

    model: FactorisedModel  # maps an impression to its cell
    max_position: int | None = None  # impressions below this position are dropped; None drops none
    position_bins: tuple[int, ...] = ()  # first position of each bin, ascending, starting at 1; empty for no bins
    # Columns by which theta and gamma both differ: a cell is then a (context, position)
    context: tuple[str, ...] = ()
    # Columns by which theta alone differs: a cell is then a (position, values of these columns)
    cell: tuple[str, ...] = ()
    period: Resolution | None = None  # resolution of the key column `period`; None: time is no key
    strata: tuple[str, ...] = ()  # further key columns by which gamma may differ
    clusters: tuple[str, ...] = ()  # key columns used only for clustered standard errors
    arms: tuple[str, ...] = ()  # the key column of experiment arms, used only for the test of arms
    # Descriptions of randomised rows; the key column `randomized` is the number of the first that fits, from 1
    randomized: tuple[RandomizedRows, ...] = ()
    weighted: bool = False  # whether each impression counts as its `weight` (> 0) instead of 1
    # Whether each row of the log is already a sum of impressions and clicks. Not stored with statistics: the counts
    # are the same.
    summed: bool = False

    @property
    def needs_pages(self) -> bool:
        """Whether the cell of an impression depends on the other rows of its page."""
        return self.model.needs_session and not self.summed

    @property
    def cell_columns(self) -> tuple[str, ...]:
        """Key columns of a cell, the position first."""
        return (*self.model.cell_columns, *self.cell, *self.context)

    @property
    def cell_order(self) -> tuple[str, ...]:
        """`cell_columns` in the sort order of cells: by curve, then by position."""
        return (*self.curve, *self.model.cell_columns)

    @property
    def curve(self) -> tuple[str, ...]:
        """Key columns of a curve of theta over positions: the context and the cell's columns other than position."""
        return (*self.context, *self.cell)

    @property
    def pair_columns(self) -> tuple[str, ...]:
        """Key columns of a pair, which has one attractiveness: query, document and context."""
        return (*PAIR, *self.context)

    @property
    def lengths(self) -> tuple[Length, ...]:
        """Period lengths that the statistics can be grouped into, the coarsest first."""
        return {None: LENGTHS[:1], "day": LENGTHS[:3], "hour": LENGTHS, "quarter": LENGTHS}[self.period]

    def stratum_columns(self, period: Length = "none", half: str | None = None) -> tuple[str, ...]:
        """Key columns of a stratum, which has one attractiveness in a fit of theta: pair, period, strata[, half]."""
        halves = () if half is None else (half,)
        by_time = () if period == "none" else (PERIOD,) if period == self.period else (f"posbias_{period}",)
        return (*self.pair_columns, *by_time, *self.strata, *halves)

    @property
    def randomized_columns(self) -> tuple[str, ...]:
        """Key columns of the units of `--method randomized`, which share a mean attractiveness."""
        return (QUERY, *self.context, RANDOMIZED)

    @property
    def units(self) -> tuple[tuple[str, ...], ...]:
        """Key columns of each kind of unit that is always compressed, the pair's first; periods are made on demand."""
        kinds = [self.pair_columns, self.stratum_columns()]
        if self.randomized:
            kinds.append(self.randomized_columns)
        return tuple(dict.fromkeys(kinds))

    @property
    def auxiliary_columns(self) -> tuple[str, ...]:
        """Key columns by which attractiveness does not differ: clusters and arms."""
        return (*self.clusters, *self.arms)

    @property
    def keys(self) -> tuple[str, ...]:
        """Key columns of one row of the statistics: pair, period, strata, auxiliary columns, experiment, cell."""
        period, experiment = (PERIOD,) if self.period else (), (RANDOMIZED,) if self.randomized else ()
        stratum = (*self.pair_columns, *period, *self.strata)
        return (*stratum, *self.auxiliary_columns, *experiment, *self.cell, *self.model.cell_columns)

    def is_sorted_by(self, unit: Sequence[str]) -> bool:
        """Whether statistics sorted by `keys` are also sorted by these columns of a unit, and within a unit by time."""
        pair = len(self.pair_columns)
        if tuple(unit[:pair]) != self.pair_columns:
            return False
        finest = tuple(PERIOD if name in COARSER else name for name in unit)
        period_is_last = len(unit) == pair + 1 or not any(name in COARSER for name in unit)
        return period_is_last and finest == self.keys[: len(unit)]

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the statistics in the order in which they are written."""
        rest = tuple(name for name in self.keys if name not in (*PAIR, *self.cell_columns))
        return (*PAIR, *self.cell_columns, *rest, IMPRESSIONS, CLICKS)

    def count(self, impressions: nw.LazyFrame[IntoLazyFrameT]) -> nw.LazyFrame[IntoLazyFrameT]:
        """Count canonical impressions (`session`, `query`, `doc`, `position`, `click`, ...) by `keys`.

        Returns:
            One row per key: the keys, `impressions` and `clicks` (Int64, or Float64 when weighted).
        """
        return self.count_in_cells(self.with_cells(impressions))

    def count_in_cells(
        self, frame: nw.LazyFrame[IntoLazyFrameT], keys: Sequence[str] = ()
    ) -> nw.LazyFrame[IntoLazyFrameT]:
        """Count impressions with their cells, as from `with_cells`, by the given key columns (default: `keys`)."""
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
        """Add the columns of each impression's cell, bin positions and drop those beyond `max_position`."""
        return self._cut_and_bin(impressions if self.summed else self.model.with_cells(impressions))

    def with_cells_in_memory(self, impressions: pl.DataFrame) -> pl.DataFrame:
        """Do the same as `with_cells` in memory; the order of rows may change."""
        in_cells = impressions if self.summed else self.model.with_cells_in_memory(impressions)
        return self._cut_and_bin(nw.from_native(in_cells.lazy())).to_native().collect()

    def _cut_and_bin(self, frame: nw.LazyFrame[IntoLazyFrameT]) -> nw.LazyFrame[IntoLazyFrameT]:
        """Drop positions beyond `max_position` and replace positions by the first of their bin."""
        if self.max_position is not None:
            frame = frame.filter(nw.col(POSITION) <= self.max_position)
        if self.position_bins:
            frame = frame.with_columns(_bin_start(column, self.position_bins) for column in self.model.cell_columns)
        return frame

    def bin_cells(self, cells: pl.DataFrame) -> pl.DataFrame:
        """Replace the positions of cells by the first position of their bin; rows keep their order."""
        binned = nw.from_native(cells).with_columns(
            _bin_start(name, self.position_bins) for name in self.model.cell_columns
        )
        return binned.to_native()

    def add_up(self, statistics: nw.LazyFrame[IntoLazyFrameT]) -> nw.LazyFrame[IntoLazyFrameT]:
        """Sum the counts of rows with equal keys."""
        return statistics.group_by(*self.keys).agg(nw.col(IMPRESSIONS).sum(), nw.col(CLICKS).sum())


def _bin_start(column: str, first_positions: Sequence[int]) -> nw.Expr:
    """Return the first position of each position's bin; 0 (no previous click) stays 0.

    E.g.: bins 1, 3, 5: [0, 1, 2, 3, 4, 5, 9] -> [0, 1, 1, 3, 3, 5, 5].
    """
    binned = nw.lit(0)
    for first in first_positions:
        binned = nw.when(nw.col(column) >= first).then(nw.lit(first)).otherwise(binned)
    return binned.cast(nw.Int32).alias(column)


def count_cells(impressions: pl.LazyFrame, plan: StatisticsPlan) -> pl.DataFrame:
    """Count impressions and clicks (or sum their weights) per cell over all pairs.

    Args:
        impressions: canonical impressions.
        plan: defines the cells.

    Returns:
        The cell columns, `impressions` and `clicks`, rows in any order.
    """
    in_cells = plan.with_cells(nw.from_native(impressions))
    if plan.weighted:
        return count_weights(in_cells.to_native(), plan.cell_columns)
    return plan.count_in_cells(in_cells, plan.cell_columns).to_native().collect(engine="streaming")


def count_weights(in_cells: pl.LazyFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Sum the weights of impressions by key, independently of the order of rows.

    Args:
        in_cells: the keys, `weight` and `click` of impressions.
        keys: key columns.

    Returns:
        The keys, ascending, `impressions` (sum of weights) and `clicks` (sum of the weights of clicked impressions).
    """
    weight = pl.col(WEIGHT).cast(pl.Float64)
    rows = in_cells.select(*keys, weight.alias(IMPRESSIONS), (weight * pl.col(CLICK)).alias(CLICKS))
    return add_up_weights(rows.collect(engine="streaming"), keys)


def add_up_weights(counts: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Sum weighted counts by key, each key's from the smallest up; sorted by key.

    Args:
        counts: the keys, `impressions` and `clicks`; keys may repeat.
        keys: key columns.
    """
    rows = counts.select(*keys, IMPRESSIONS, CLICKS).sort(*keys, IMPRESSIONS, CLICKS)
    return rows.group_by(*keys, maintain_order=True).agg(pl.col(IMPRESSIONS, CLICKS).sum())


_SUMS = ("documents", "excess", "excess_squared", "lowest_variance", "highest_variance", "together", "pairs")


@dataclass(frozen=True)
class Placements:
    """Sums for `PlacementTest` over the queries of a log or of one part; the sums of parts add up."""

    # One row per experiment (`randomized`, its number from 1): the numbers of `queries` and `documents` with several
    # impressions there; `excess`, the sum of w_d over documents; `excess_squared`, the sum over queries of the squared
    # sum of w_d; `lowest_variance` and `highest_variance` of `excess`; `together`, the sum of z z' over the `pairs` of
    # impressions of one document
    sums: pl.DataFrame
    shown: pl.DataFrame  # each (`randomized`, `position`) that occurs, once

    def __add__(self, other: "Placements") -> "Placements":
        sums = pl.concat([self.sums, other.sums]).group_by(RANDOMIZED, maintain_order=True).sum().sort(RANDOMIZED)
        return Placements(sums, pl.concat([self.shown, other.shown]).unique().sort(RANDOMIZED, POSITION))


def sum_placements(statistics: pl.DataFrame, plan: StatisticsPlan) -> Placements:
    """Sum the placement scores of randomised impressions over whole queries.

        z = (position - mean) / standard deviation, over the impressions of a query in one experiment
        w_d = sum of z z' over the ordered pairs of impressions of document d, divided by its impressions n_d

    Args:
        statistics: the plan's keys and `impressions` (whole numbers), of whole queries.
        plan: defines the keys; it describes randomised rows.
    """
    rows = statistics.filter(pl.col(RANDOMIZED) > 0)
    within = [QUERY, *plan.context, RANDOMIZED]
    impressions = pl.col(IMPRESSIONS).cast(pl.Float64)
    at_position = rows.group_by(*within, DOC, POSITION, maintain_order=True).agg(impressions.sum().alias("n"))
    scored = at_position.join(
        _scores(at_position, within), on=[*within, POSITION], nulls_equal=True, maintain_order="left"
    )
    of_document = (
        scored.group_by(*within, DOC, maintain_order=True)
        .agg(
            n=pl.col("n").sum(),
            score=(pl.col("n") * pl.col("z")).sum(),
            squares=(pl.col("n") * pl.col("z") ** 2).sum(),
            positions=pl.col("positions").first(),
        )
        .filter(pl.col("n") > 1)
    )
    together = pl.col("score") ** 2 - pl.col("squares")
    variance = 2 * (pl.col("n") - 1) / pl.col("n")
    of_query = of_document.group_by(*within, maintain_order=True).agg(
        documents=pl.len().cast(pl.Int64),
        excess=(together / pl.col("n")).sum(),
        lowest_variance=variance.sum(),
        highest_variance=(variance * pl.col("positions") / (pl.col("positions") - 1)).sum(),
        together=together.sum(),
        pairs=(pl.col("n") * (pl.col("n") - 1)).sum(),
    )
    sums = of_query.with_columns(excess_squared=pl.col("excess") ** 2).group_by(RANDOMIZED, maintain_order=True)
    return Placements(
        sums.agg(pl.len().cast(pl.Int64).alias("queries"), pl.col(_SUMS).sum()).sort(RANDOMIZED),
        rows.select(RANDOMIZED, POSITION).unique().sort(RANDOMIZED, POSITION),
    )


def _scores(at_position: pl.DataFrame, within: list[str]) -> pl.DataFrame:
    """Return the score `z` of each position of a query and experiment, and the number of `positions`, if above 1."""
    n, position = pl.col("n"), pl.col(POSITION).cast(pl.Float64)
    shown = at_position.group_by(*within, POSITION, maintain_order=True).agg(n.sum())
    mean = (n * position).sum().over(within) / n.sum().over(within)
    centered = shown.with_columns(away=position - mean, positions=pl.len().over(within)).filter(pl.col("positions") > 1)
    away = pl.col("away")  # from the mean position
    spread = ((n * away**2).sum().over(within) / n.sum().over(within)).sqrt()
    return centered.select(*within, POSITION, "positions", z=away / spread)


def run_numbers(rows: pl.DataFrame, columns: Sequence[str]) -> Integers:
    """Number the runs of rows with equal values in these columns from 0, and return each row's number, shape (R,)."""
    return rows.select(pl.struct(columns).rle_id()).to_series().to_numpy().astype(np.int64)


def merge_pieces(
    pieces: Iterable[pl.DataFrame], add_up: Callable[[Sequence[pl.DataFrame]], pl.DataFrame]
) -> pl.DataFrame:
    """Merge the counts of many pieces in little memory.

    Pieces are collected until together they have more rows than the total so far, and are then merged into it. The
    total is thus copied a logarithmic number of times, and memory holds at most twice its rows and one piece.

    Args:
        pieces: at least one.
        add_up: sums the counts of equal keys over several frames, the first of which is the total so far.
    """
    totals = list[pl.DataFrame]()
    for piece in pieces:
        totals.append(piece)
        if sum(pending.height for pending in totals[1:]) > totals[0].height:
            totals = [add_up(totals)]
    return totals[0] if len(totals) == 1 else add_up(totals)


def count_packed(in_cells: pl.DataFrame, plan: StatisticsPlan) -> pl.DataFrame | None:
    """Count impressions by the plan's keys, packed into 64-bit numbers; see the top of this module.

    Args:
        in_cells: the plan's keys and `click`, as from the plan's `with_cells`.
        plan: defines the keys.

    Returns:
        The keys, ascending, `impressions` and `clicks`, as from `StatisticsPlan.count`; None if a key has nulls or a
        type that cannot be packed, if 63 bits do not hold the keys, or if rows are weighted or are sums.
    """
    keys, distinct_values = in_cells.select(plan.keys), dict[str, pl.Series]()
    packable = all(
        not key.null_count()
        and (key.dtype.is_integer() or isinstance(key.dtype, pl.String | pl.Date | pl.Datetime | pl.Boolean))
        for key in keys
    )
    if plan.weighted or plan.summed or not keys.height or not packable:
        return None

    def replace_by_ranks(column: pl.Series) -> BitField:
        """Replace a column of `keys` by the dense ranks of its values, and return their bits."""
        rank, distinct_values[column.name] = dense_ranks(column)
        keys.replace_column(keys.get_column_index(column.name), pl.Series(column.name, rank))
        return exact_field(keys[column.name])

    fields = [replace_by_ranks(key) if isinstance(key.dtype, pl.String) else exact_field(key) for key in keys]
    for number in sorted(range(len(fields)), key=lambda number: -fields[number].bits):
        if sum(field.bits for field in fields) >= WORD_BITS and fields[number].name not in distinct_values:
            fields[number] = replace_by_ranks(keys.to_series(number))
    if sum(field.bits for field in fields) >= WORD_BITS:
        return None
    packed = stack_fields([*fields, BitField(CLICK, in_cells[CLICK].dtype, 0, 1)])
    counted = count_equal(keys.with_columns(in_cells[CLICK]).select(packed.number).to_series().to_numpy())
    counted = counted.select(*packed.values[:-1], IMPRESSIONS, CLICKS)
    return counted.with_columns(values.gather(counted[name]) for name, values in distinct_values.items())


def count_numbers(pieces: Iterable[pl.Series], fields: BitFields, plan: StatisticsPlan) -> pl.DataFrame:
    """Count impressions that are packed into numbers already; sorted by the plan's keys.

    Args:
        pieces: packed impressions in any order, `click` in the lowest bit. Memory holds one piece and the counts.
        fields: the bits of each column.
        plan: defines the keys. Its cells do not depend on other impressions of a page, and it is not `weighted`.
    """
    keys = [field for field in fields.fields if field.name in {*plan.keys, POSITION}]
    mask = np.uint64(1 + sum((2**field.bits - 1) << field.shift for field in keys))  # clears columns that are no key
    counted = merge_pieces(
        (count_equal(numbers.to_numpy() & mask) for numbers in pieces),
        lambda counts: pl.concat(counts).group_by(NUMBER).sum().sort(NUMBER),
    )
    rows = counted.select(*(field.value for field in keys), IMPRESSIONS, pl.col(CLICKS).alias(CLICK))
    in_cells = plan.with_cells_in_memory(rows)
    if plan.keys == tuple(field.name for field in keys) and not plan.position_bins:
        return in_cells.rename({CLICK: CLICKS})
    summed = replace(plan, summed=True).count_in_cells(nw.from_native(in_cells.lazy()))
    return summed.to_native().sort(plan.keys).collect()


def count_equal(numbers: Integers | Hashes) -> pl.DataFrame:
    """Count equal numbers, the lowest bit of which is the click.

    Returns:
        `number` (ascending, each once, its lowest bit 0), `impressions` and `clicks` (Int64).
    """
    ascending = pl.Series(numbers).sort(multithreaded=False).to_numpy()  # np.sort takes 4 times as long on AMD's Zen 4
    without_click = ascending >> 1
    first = first_of_runs(without_click)
    start = np.append(first, len(ascending))
    return pl.DataFrame(
        {
            NUMBER: without_click.take(first) << 1,
            IMPRESSIONS: np.diff(start),
            CLICKS: sum_rows(ascending & 1, start).astype(np.int64),
        }
    )
