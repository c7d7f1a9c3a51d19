"""The sufficient statistics as one plan: impressions in, counts per (query, document) and examination cell out.

    n_je = number of impressions of pair j in cell e        c_je = number of clicks among them

They add up over files, days and machines. Written once with narwhals: an engine runs it on its own frames.

Sums of weights that do not depend on the order of rows, so that the same log gives the same bytes.

Floating-point sums do, and rows come as threads read them: the weights of a key are added from the smallest up.

In memory, sorting one number per impression counts what the plan counts, several times faster. The keys of an
impression and its click make one number (`posbias.core.arrays.packing`), where a whole number is its distance from the
smallest in its column, a time its distance from the earliest in the steps that they are apart, and a text its number
among the different ones in their order, as are whole numbers that lie too far apart (64-bit hashes). Sorting these
numbers sorts the rows by their keys, and equal rows are runs. Where a log was split, its rows may be numbers already.
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
    HALF,
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
    """The counts to make, and their keys."""

    model: FactorisedModel  # says how an impression maps to a cell
    max_position: int | None = None  # impressions further down are left out; None keeps all
    position_bins: tuple[int, ...] = ()  # first position of each bin, ascending, starting at 1; empty for no bins
    # Columns with which theta differs (a cell is then a context and a position), and gamma too
    context: tuple[str, ...] = ()
    # Columns with which theta alone differs: a cell is the position with their values
    cell: tuple[str, ...] = ()
    # How finely the statistics keep time apart, in the column `period`; None for not at all
    period: Resolution | None = None
    strata: tuple[str, ...] = ()  # further columns that the statistics keep apart: gamma may differ by them
    clusters: tuple[str, ...] = ()  # columns that the statistics keep apart for standard errors alone
    arms: tuple[str, ...] = ()  # the column of experiment arms, which they keep apart for the test of arms alone
    # Descriptions of randomised rows, which the statistics keep apart by number
    randomized: tuple[RandomizedRows, ...] = ()
    weighted: bool = False  # whether impressions carry a `weight` (> 0) instead of counting one each
    # Whether the rows that are counted add up impressions and clicks already. Their counts are those of the
    # impressions themselves, so that statistics do not know it.
    summed: bool = False

    @property
    def needs_pages(self) -> bool:
        """Whether cells depend on the other rows of a page, and are not known yet."""
        return self.model.needs_session and not self.summed

    @property
    def cell_columns(self) -> tuple[str, ...]:
        """The columns that make up a cell, the position first."""
        return (*self.model.cell_columns, *self.cell, *self.context)

    @property
    def cell_order(self) -> tuple[str, ...]:
        """The same columns in the order by which cells are sorted: curve by curve, then by position."""
        return (*self.curve, *self.model.cell_columns)

    @property
    def curve(self) -> tuple[str, ...]:
        """The columns that tell curves over positions apart: the context, and the cell's beside the position."""
        return (*self.context, *self.cell)

    @property
    def pair_columns(self) -> tuple[str, ...]:
        """Key of what shares one attractiveness: the query, the document and, where there are contexts, the context."""
        return (*PAIR, *self.context)

    @property
    def lengths(self) -> tuple[Length, ...]:
        """The periods into which the statistics can be parted, the coarsest first."""
        return {None: LENGTHS[:1], "day": LENGTHS[:3], "hour": LENGTHS, "quarter": LENGTHS}[self.period]

    def stratum_columns(self, period: Length = "none", *, halved: bool = False) -> tuple[str, ...]:
        """Key of what shares one attractiveness in a fit of theta: the pair, its period, its strata; or half of it."""
        half = (HALF,) if halved else ()
        by_time = () if period == "none" else (PERIOD,) if period == self.period else (f"posbias_{period}",)
        return (*self.pair_columns, *by_time, *self.strata, *half)

    @property
    def randomized_columns(self) -> tuple[str, ...]:
        """Key of what shares one mean attractiveness where placement is random: query, context, experiment."""
        return (QUERY, *self.context, RANDOMIZED)

    @property
    def units(self) -> tuple[tuple[str, ...], ...]:
        """The columns of every kind of unit that each estimate needs, the pair's first; those of periods are extra."""
        kinds = [self.pair_columns, self.stratum_columns()]
        if self.randomized:
            kinds.append(self.randomized_columns)
        return tuple(dict.fromkeys(kinds))

    @property
    def auxiliary_columns(self) -> tuple[str, ...]:
        """The columns that the statistics keep apart, and by which attractiveness does not differ."""
        return (*self.clusters, *self.arms)

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that identify one row of the statistics: the pair, its finest stratum, the cell."""
        period, experiment = (PERIOD,) if self.period else (), (RANDOMIZED,) if self.randomized else ()
        stratum = (*self.pair_columns, *period, *self.strata)
        return (*stratum, *self.auxiliary_columns, *experiment, *self.cell, *self.model.cell_columns)

    def is_sorted_by(self, unit: Sequence[str]) -> bool:
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
        return self._selected(impressions if self.summed else self.model.with_cells(impressions))

    def with_cells_in_memory(self, impressions: pl.DataFrame) -> pl.DataFrame:
        """The same for impressions in memory, whose rows may change their order."""
        in_cells = impressions if self.summed else self.model.with_cells_in_memory(impressions)
        return self._selected(nw.from_native(in_cells.lazy())).to_native().collect()

    def _selected(self, frame: nw.LazyFrame[IntoLazyFrameT]) -> nw.LazyFrame[IntoLazyFrameT]:
        """Rows with their cells: those within reach, positions binned."""
        if self.max_position is not None:
            frame = frame.filter(nw.col(POSITION) <= self.max_position)
        if self.position_bins:
            frame = frame.with_columns(_binned(column, self.position_bins) for column in self.model.cell_columns)
        return frame

    def bin_cells(self, cells: pl.DataFrame) -> pl.DataFrame:
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


_SUMS = ("documents", "excess", "excess_squared", "lowest_variance", "highest_variance", "together", "pairs")


@dataclass(frozen=True)
class Placements:
    """The sums over the queries of a log, or of a part of it that holds whole queries: those of parts add up."""

    # One row per experiment (`randomized`, its number from 1): `queries` and `documents` that were shown there more
    # than once; `excess`, the sum of w_d; `excess_squared`, that of the squares of the queries' sums;
    # `lowest_variance` and `highest_variance` of `excess`; `together`, the sum of z z' over the `pairs` of rows of one
    # document
    sums: pl.DataFrame
    shown: pl.DataFrame  # `randomized` and `position`, once each

    def __add__(self, other: "Placements") -> "Placements":
        sums = pl.concat([self.sums, other.sums]).group_by(RANDOMIZED, maintain_order=True).sum().sort(RANDOMIZED)
        return Placements(sums, pl.concat([self.shown, other.shown]).unique().sort(RANDOMIZED, POSITION))


def sum_placements(statistics: pl.DataFrame, plan: StatisticsPlan) -> Placements:
    """The sums over whole queries.

    Args:
        statistics: the plan's keys and `impressions`, which are whole numbers.
        plan: what was counted; some rows are randomised.
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
    """The score z of each position of a query and experiment, and how many `positions` there are, if several."""
    n, position = pl.col("n"), pl.col(POSITION).cast(pl.Float64)
    shown = at_position.group_by(*within, POSITION, maintain_order=True).agg(n.sum())
    mean = (n * position).sum().over(within) / n.sum().over(within)
    centered = shown.with_columns(away=position - mean, positions=pl.len().over(within)).filter(pl.col("positions") > 1)
    away = pl.col("away")
    spread = ((n * away**2).sum().over(within) / n.sum().over(within)).sqrt()
    return centered.select(*within, POSITION, "positions", z=away / spread)


def run_numbers(rows: pl.DataFrame, columns: Sequence[str]) -> Integers:
    """The number of the run of equal values that each row lies in."""
    return rows.select(pl.struct(columns).rle_id()).to_series().to_numpy().astype(np.int64)


def merge_pieces(
    pieces: Iterable[pl.DataFrame], add_up: Callable[[Sequence[pl.DataFrame]], pl.DataFrame]
) -> pl.DataFrame:
    """The total of all pieces by `add_up`, which is given a few at a time, of which the first is the total so far.

    Pieces wait until they hold more rows than that total: it is copied a logarithmic number of times, and never more
    than twice its rows and a piece wait.

    Args:
        pieces: one at least.
        add_up: adds the counts of equal keys.
    """
    totals = list[pl.DataFrame]()
    for piece in pieces:
        totals.append(piece)
        if sum(waiting.height for waiting in totals[1:]) > totals[0].height:
            totals = [add_up(totals)]
    return totals[0] if len(totals) == 1 else add_up(totals)


def count_packed(in_cells: pl.DataFrame, plan: StatisticsPlan) -> pl.DataFrame | None:
    """Statistics of impressions whose cells are known, sorted by the plan's keys; None where they cannot be packed.

    Args:
        in_cells: the plan's keys and `click`, as from the plan's `with_cells`.
        plan: what is counted.

    Returns:
        The keys, `impressions` and `clicks`, as the plan's `count` has them.
    """
    keys, different = in_cells.select(plan.keys), dict[str, pl.Series]()
    plain = all(
        not key.null_count()
        and (key.dtype.is_integer() or isinstance(key.dtype, pl.String | pl.Date | pl.Datetime | pl.Boolean))
        for key in keys
    )
    if plan.weighted or plan.summed or not keys.height or not plain:
        return None

    def fewer_bits(column: pl.Series) -> BitField:
        """The numbers of a column's values among the different ones take its place."""
        rank, different[column.name] = dense_ranks(column)
        keys.replace_column(keys.get_column_index(column.name), pl.Series(column.name, rank))
        return exact_field(keys[column.name])

    fields = [fewer_bits(key) if isinstance(key.dtype, pl.String) else exact_field(key) for key in keys]
    for number in sorted(range(len(fields)), key=lambda number: -fields[number].bits):
        if sum(field.bits for field in fields) >= WORD_BITS and fields[number].name not in different:
            fields[number] = fewer_bits(keys.to_series(number))
    if sum(field.bits for field in fields) >= WORD_BITS:
        return None
    packed = stack_fields([*fields, BitField(CLICK, in_cells[CLICK].dtype, 0, 1)])
    counted = count_equal(keys.with_columns(in_cells[CLICK]).select(packed.number).to_series().to_numpy())
    counted = counted.select(*packed.values[:-1], IMPRESSIONS, CLICKS)
    return counted.with_columns(values.gather(counted[name]) for name, values in different.items())


def count_numbers(pieces: Iterable[pl.Series], fields: BitFields, plan: StatisticsPlan) -> pl.DataFrame:
    """Statistics of impressions that are numbers already, sorted by the plan's keys.

    Args:
        pieces: numbers of impressions, in any order; `click` is the lowest bit. Memory holds one piece, and the counts.
        fields: what the bits say.
        plan: what is counted: its cells do not depend on other impressions, and it adds up no weights.
    """
    keys = [field for field in fields.fields if field.name in {*plan.keys, POSITION}]
    kept = np.uint64(1 + sum((2**field.bits - 1) << field.shift for field in keys))  # what is not counted by is cleared
    counted = merge_pieces(
        (count_equal(numbers.to_numpy() & kept) for numbers in pieces),
        lambda counts: pl.concat(counts).group_by(NUMBER).sum().sort(NUMBER),
    )
    rows = counted.select(*(field.value for field in keys), IMPRESSIONS, pl.col(CLICKS).alias(CLICK))
    in_cells = plan.with_cells_in_memory(rows)
    if plan.keys == tuple(field.name for field in keys) and not plan.position_bins:
        return in_cells.rename({CLICK: CLICKS})
    summed = replace(plan, summed=True).count_in_cells(nw.from_native(in_cells.lazy()))
    return summed.to_native().sort(plan.keys).collect()


def count_equal(numbers: Integers | Hashes) -> pl.DataFrame:
    """Numbers that are equal but for their lowest bit, as one: ascending, with how many they are and how often it is 1.

    Returns:
        `number`, its lowest bit 0, `impressions` and `clicks` (Int64).
    """
    ascending = np.sort(numbers)
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
