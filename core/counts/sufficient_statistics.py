"""Compressed sufficient statistics of a log: the tables of counts (n_je, c_je) from which every estimator works.

A log is counted in parts of whole queries. Each part is compressed, so that units with equal counts are stored once
(a signature, see `posbias.core.arrays.count_table`), and then the parts are merged: memory grows with the number of
signatures, not with the log.

The signatures of each part are sorted by a hash of their content, so that equal signatures have equal keys. `merge`
reads one range of keys of all parts at a time; parts may lie on disk. Memory holds the merged table and, for each
thread, one range of every part.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, reduce
from hashlib import blake2b
from math import ceil, prod
from operator import add
from typing import Protocol, TypeVar

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import (
    CountTable,
    Flags,
    Floats,
    Hashes,
    Integers,
    Members,
    Numbers,
    compress,
    compress_with_keys,
    concatenate,
    sum_rows,
)
from posbias.core.arrays.threads import n_threads, thread_map
from posbias.core.counts import counting_plan
from posbias.core.counts.counting_plan import Placements, StatisticsPlan
from posbias.core.counts.odd_days import count_by_day, merge_day_counts
from posbias.core.counts.order import OrderSums, RowOrder, add_orders, order_of_strata
from posbias.core.schema import (
    ALTERNATE,
    CLICKS,
    HALF,
    IMPRESSIONS,
    PAIR,
    PERIOD,
    POSITION,
    QUERY,
    RANDOMIZED,
    Length,
    with_periods,
)

CELL = "posbias_cell"
"""The column of cell numbers, 0 .. K - 1."""

_MOST_CODES = 1 << 20
_LARGEST = 2**63 - 1
_ENOUGH_IMPRESSIONS, _ENOUGH_QUERIES = 2_000_000, 1_000  # for tests of times, which need not see all of a large log
_CODE = "posbias_place"
_AFTER = "posbias_after"


def numbered_cells(statistics: pl.DataFrame, plan: StatisticsPlan) -> tuple[pl.DataFrame, pl.Series]:
    """Return the distinct cells, sorted by curve and position, and the number of each row's cell, shape (R,)."""
    keys = statistics.select(plan.cell_columns)
    codes = _mixed_radix_codes(keys)
    if codes is None:
        cells = keys.unique().sort(*plan.cell_order)
        return cells, key_numbers(cells, statistics, plan.cell_columns)
    code, n_codes = codes
    row = np.full(n_codes, -1)
    row[code] = np.arange(len(code))  # one row of each cell
    used = np.flatnonzero(row >= 0)
    cells = keys[row[used]].with_columns(pl.Series(_CODE, used)).sort(*plan.cell_order)
    number = np.empty(n_codes, np.uint32)
    number[cells[_CODE].to_numpy()] = np.arange(cells.height)
    return cells.drop(_CODE), pl.Series(CELL, number[code])


def key_numbers(keys: pl.DataFrame, rows: pl.DataFrame, columns: Sequence[str]) -> pl.Series:
    """Return the row number in `keys` of each row's key (e.g. its cell), shape (R,); null if it is not in `keys`."""
    numbered = keys.with_row_index(CELL)
    return rows.select(columns).join(numbered, on=columns, how="left", maintain_order="left", nulls_equal=True)[CELL]


def context_numbers(cells: pl.DataFrame, context: Sequence[str]) -> Integers:
    """Number the contexts from 0 in the order of the cells, which are sorted by context; one per cell, shape (K,)."""
    return counting_plan.run_numbers(cells, context) if context else np.zeros(cells.height, np.int64)


def dense_row_ranks(rows: pl.DataFrame) -> Integers:
    """Return the dense rank of each row among the distinct rows, from 0, shape (R,)."""
    return rows.select(pl.struct(pl.all()).rank("dense") - 1).to_series().to_numpy().astype(np.int64)


def _mixed_radix_codes(keys: pl.DataFrame) -> tuple[Integers, int] | None:
    """Code each row of integers as one number, e.g. 10 (a - min a) + (b - min b) if b takes 10 values.

    Returns:
        The codes, equal for equal rows, shape (R,), and the number of possible codes; None if that is above 2^20, or
        if a column has nulls or is not of integers or booleans.
    """
    keys = keys.with_columns(pl.selectors.boolean().cast(pl.UInt8))
    if not keys.height or any(not key.dtype.is_integer() or key.null_count() for key in keys):
        return None
    lows, highs = keys.min().row(0), keys.max().row(0)
    sizes = [high - low + 1 for low, high in zip(lows, highs, strict=True)]
    if prod(sizes) > _MOST_CODES or max(highs) > _LARGEST:
        return None
    code = np.zeros(keys.height, np.int64)
    for key, low, size in zip(keys, lows, sizes, strict=True):
        code *= size
        code += (key.cast(pl.Int64) - low).to_numpy()
    return code, prod(sizes)


_UNITS_AT_ONCE = 1 << 18  # approximate number of units in memory, over all threads
_FEWEST_UNITS = 1 << 13  # in a range of keys
_UNITS_OF_A_PART = 64  # approximate units of one part in a range: with many parts, short ranges would mean many reads


class PartOfStrata(Protocol):
    """Compressed counts of one kind of unit in one part of a log, in memory or on disk, sorted by signature key."""

    @property
    def keys(self) -> Hashes:
        """Signature keys (see `signature_keys`), ascending, shape (J,)."""
        ...

    @property
    def member_signature(self) -> Numbers:
        """Signature number of each unit with a click and at least two cells, shape (N,)."""
        ...

    @property
    def member_query(self) -> Numbers:
        """Query number of each of these units, ascending, shape (N,)."""
        ...

    def read(self, first: int, last: int) -> CountTable:
        """Read the signatures first .. last - 1."""
        ...


def merge(
    parts: Sequence[PartOfStrata], new_cell: Sequence[Integers], cell_code: Hashes
) -> tuple[CountTable, list[Numbers]]:
    """Merge equal signatures of several parts, which have no pair in common.

    Args:
        parts: their keys were computed with the same codes of cells.
        new_cell: for each part, the number among all K cells of each of its own cells, ascending.
        cell_code: the code of each cell, shape (K,).

    Returns:
        The distinct signatures, sorted by key, and for each part the new number of each of its signatures.
    """
    if len(parts) == 1:
        table = parts[0].read(0, len(parts[0].keys))
        return replace(table, n_cells=len(cell_code), cell=new_cell[0][table.cell]), [np.arange(table.n_units)]
    keys = [part.keys for part in parts]
    length = max(_UNITS_AT_ONCE // n_threads(), _FEWEST_UNITS, _UNITS_OF_A_PART * len(parts))
    n_ranges = 1 + sum(map(len, keys)) // length
    inner = np.array([(number << 64) // n_ranges for number in range(1, n_ranges)], np.uint64)
    # The first signature of each range of keys in each part, and behind the last range the number of signatures
    borders = [np.array([0, *np.searchsorted(part_keys, inner), len(part_keys)]) for part_keys in keys]
    numbers: list[Numbers] = [np.empty(border[-1], np.int32) for border in borders]
    merged: list[CountTable] = []
    n_merged = 0

    def merge_range(step: int) -> tuple[CountTable, Integers, list[tuple[int, int]]]:
        spans = [(int(border[step]), int(border[step + 1])) for border in borders]
        tables = [part.read(*span) for part, span in zip(parts, spans, strict=True)]
        renumbered = [
            replace(table, n_cells=len(cell_code), cell=cells[table.cell])
            for table, cells in zip(tables, new_cell, strict=True)
        ]
        return *compress(concatenate(renumbered), cell_code), spans

    for signatures, number, spans in thread_map(merge_range, range(len(borders[0]) - 1)):
        ends = np.cumsum([last - first for first, last in spans])[:-1]
        for part_numbers, (first, last), merged_number in zip(numbers, spans, np.split(number, ends), strict=True):
            part_numbers[first:last] = merged_number + n_merged
        merged.append(signatures)
        n_merged += signatures.n_units
    return concatenate(merged), numbers


SIGNATURE = "signature"
_QUERY_NUMBER = "posbias_query"
_LARGEST_INT32 = 2**31 - 1
_ROUNDING = 1e-9  # relative error of sums of weights
_Result = TypeVar("_Result", PartOfStrata, "OrderSums", pl.DataFrame, Floats, tuple[pl.DataFrame, CountTable])

PartMapper = Callable[[Callable[[pl.DataFrame], _Result], int | None], Iterable[_Result]]
"""Applies a function, which can be pickled, to the statistics of each of the first so many parts (None: all parts), and
returns the results in the order of the parts."""


@dataclass(frozen=True)
class CompressedStrata:
    """A `PartOfStrata` in memory."""

    signatures: CountTable
    keys: Hashes
    member_signature: Numbers
    member_query: Numbers

    def read(self, first: int, last: int) -> CountTable:
        """Return the signatures first .. last - 1, without a copy."""
        return self.signatures.read(first, last)


@dataclass(frozen=True)
class PartStatistics:
    """Compressed statistics of one part of a log. Cells and queries are numbered within the part."""

    cells: pl.DataFrame  # the cell columns, sorted; a cell's number is its row
    # The pair's columns, `impressions`, `clicks`, `signature` (row of the pairs' signatures), sorted by pair
    pairs: pl.DataFrame
    by_unit: Mapping[tuple[str, ...], PartOfStrata]  # counts of each kind of unit, by its key columns (`plan.units`)
    n_queries: int
    n_pairs: int  # number of (query, doc) pairs
    placements: Placements | None = None  # of randomised rows; None without any, or with weights
    arms: pl.DataFrame | None = None  # the arm column, `impressions` and `clicks`; None without arms


@dataclass(frozen=True)
class Strata:
    """Compressed counts per (stratum, cell). A stratum is a pair, or the part of a pair within a period and strata."""

    # Strata with equal counts once, with their number as multiplicity; strata with a click and several cells first
    signatures: CountTable
    # For each stratum with a click and at least two cells, its signature and, as its cluster, its query number;
    # ascending by query
    members: Members


@dataclass(frozen=True)
class SufficientStatistics:
    """Statistics of a whole log. Cells and queries are numbered over all parts."""

    plan: StatisticsPlan
    cells: pl.DataFrame  # the cell columns, sorted by curve and position; a cell's number is its row
    by_unit: Mapping[tuple[str, ...], Strata]  # counts of each kind of unit, by its key columns (`plan.units`)
    # For each part, the row in `pair_signatures` of each signature of the part
    signature_of_part: tuple[Numbers, ...]
    n_queries: int
    n_pairs: int  # number of (query, doc) pairs
    placements: Placements | None = None  # of randomised rows; None without any, or with weights
    queries_of_part: tuple[int, ...] = ()  # number of queries of each part
    compute_row_order: Callable[[], RowOrder | None] = lambda: None  # for `row_order`
    # The arm column (ascending, null for rows of no arm), `impressions` and `clicks`; None without arms
    arms: pl.DataFrame | None = None
    # Reads the uncompressed statistics of the parts again: for periods, clusters, arms and randomised rows
    part_mapper: PartMapper[PartOfStrata] | PartMapper[OrderSums] | None = None
    _cache: dict[tuple[str, ...], Strata] = field(default_factory=dict[tuple[str, ...], Strata], compare=False)

    @property
    def n_cells(self) -> int:
        """Number of cells K."""
        return self.cells.height

    @property
    def pair_signatures(self) -> CountTable:
        """Compressed counts per pair and cell: for attractiveness and weights."""
        return self.by_unit[self.plan.pair_columns].signatures

    def strata(self, period: Length = "none", half: str | None = None, *, n_parts: int | None = None) -> Strata:
        """Return the counts per stratum from which theta is estimated.

        Args:
            period: the length of the periods that split a pair; `none` does not split it.
            half: how each stratum is split into two, by `HALF` or `ALTERNATE`.
            n_parts: count only the first so many parts; all by default.
        """
        unit = self.plan.stratum_columns(period, half)
        compress_unit = partial(_compress_part_unit, plan=self.plan, unit=unit)
        if n_parts is not None and n_parts < len(self.queries_of_part):
            return self._strata(compress_unit, self.cells, n_parts)
        if unit in self.by_unit:
            return self.by_unit[unit]
        if unit not in self._cache:
            self._cache[unit] = self._strata(compress_unit, self.cells)
        return self._cache[unit]

    @cached_property
    def parts_for_tests(self) -> int:
        """Number of first parts (each a sample of the queries) that suffice for tests of times."""
        n_queries = np.cumsum(self.queries_of_part)
        share = min(_ENOUGH_IMPRESSIONS / max(float(self.cell_totals[0].sum()), 1), 1)
        enough = int(np.searchsorted(n_queries, min(_ENOUGH_QUERIES, self.n_queries))) + 1
        return max(ceil(len(n_queries) * share), enough)

    @cached_property
    def by_day(self) -> pl.DataFrame | None:
        """Counts by day and position (see `odd_days`) of `parts_for_tests`; None without days, or with weights."""
        if self.part_mapper is None or not self.plan.period or self.plan.weighted:
            return None
        return merge_day_counts(list(self.map_parts(_count_by_day, self.parts_for_tests)))

    def _strata(
        self, compress_unit: Callable[..., PartOfStrata], cells: pl.DataFrame, n_parts: int | None = None
    ) -> Strata:
        """Compress each of the first parts with a function, which numbers cells by `cells`, and merge the results."""
        parts = list(self.map_parts(partial(compress_unit, cells=cells), n_parts))
        same = [np.arange(cells.height)] * len(parts)
        return _merge_unit(parts, same, cells, self.plan, self.queries_of_part[: len(parts)])[0]

    def before_and_after(self, day: str, period: Length = "none") -> tuple[Strata, Strata]:
        """Return the `strata` of the days before a day, and those from that day on, both of `parts_for_tests`."""
        cells = self.cells.join(pl.DataFrame({_AFTER: [False, True]}), how="cross")
        plan = replace(self.plan, context=(*self.plan.context, _AFTER))
        is_after = (pl.col(PERIOD).cast(pl.Date) >= pl.lit(day).str.to_date()).alias(_AFTER)
        compress_unit = partial(
            _compress_part_unit, plan=plan, unit=plan.stratum_columns(period), extra_column=is_after
        )
        both = self._strata(compress_unit, cells, self.parts_for_tests)
        number = np.arange(cells.height)
        tables = (both.signatures.only_cells(number % 2 == after) for after in range(2))
        before, after = (Strata(table.merge_cells(number // 2, self.n_cells), both.members) for table in tables)
        return before, after

    def by_arm(self, period: Length = "none") -> Strata:
        """Return the `strata` with a cell for each (arm, cell), the cells of one arm after those of another.

        Rows without an arm are dropped.

        Raises:
            ValueError: there are no arms.
        """
        if self.arms is None:
            raise ValueError("the statistics keep no arms apart")
        cells = self.arms.select(self.plan.arms).drop_nulls().join(self.cells, how="cross")
        unit = self.plan.stratum_columns(period)
        return self._strata(partial(_compress_part_unit, plan=self.plan, unit=unit, cell_prefix=self.plan.arms), cells)

    def order(self, period: Length, n_parts: int | None = None) -> OrderSums:
        """Return the sums by query that test, within strata of that period, whether clicks precede better positions."""
        unit = self.plan.stratum_columns(period)
        return add_orders(list(self.map_parts(partial(_order_sums, plan=self.plan, unit=unit), n_parts)))

    @cached_property
    def row_order(self) -> RowOrder | None:
        """The same sums from the order of the rows of the log, within days if there are days; None if unavailable."""
        return self.compute_row_order()

    def map_parts(self, work: Callable[[pl.DataFrame], _Result], n_parts: int | None = None) -> Iterable[_Result]:
        """Apply a function, which can be pickled, to the statistics of each of the first parts (default: all)."""
        if self.part_mapper is None:
            raise ValueError("the statistics of the parts were not kept")
        return self.part_mapper(work, n_parts)  # pyright: ignore[reportArgumentType, reportReturnType] - one function for both

    @property
    def randomized(self) -> Strata:
        """Counts of randomised rows per query, context and experiment."""
        return self.by_unit[self.plan.randomized_columns]

    @property
    def position_of_cell(self) -> Integers:
        """The position of each cell, shape (K,)."""
        return self.cells[POSITION].to_numpy().astype(np.int64)

    @property
    def context_of_cell(self) -> Integers:
        """Context number of each cell, from 0 in the order of the cells, shape (K,); all 0 without contexts."""
        return context_numbers(self.cells, self.plan.context)

    @property
    def curve_of_cell(self) -> Integers:
        """Number of each cell's curve over positions, from 0 in the order of the cells, shape (K,)."""
        return context_numbers(self.cells, (*self.plan.context, *self.further_cell_columns))

    @property
    def further_cell_columns(self) -> tuple[str, ...]:
        """Cell columns other than the position; without the last if it maps one to one to the position."""
        names, last = self.plan.cell, self.plan.cell[-1:]
        sizes = {self.cells.select(key).n_unique() for key in ([POSITION], last, [POSITION, *last]) if last}
        return names[:-1] if len(sizes) == 1 else names

    @property
    def axes(self) -> tuple[str, ...]:
        """Columns whose values identify a cell within its context: the position and the further columns.

        Without the position if the further columns determine it, as the row and the column of a grid do.
        """
        names, cells = self.further_cell_columns, self.cells
        determined = len(names) > 1 and cells.select(names).n_unique() == cells.select(POSITION, *names).n_unique()
        return names if determined else (POSITION, *names)

    @property
    def axes_of_cell(self) -> Integers:
        """Number of each cell's value on each of the `axes`, shape (K, A)."""
        return np.stack([dense_row_ranks(self.cells.select(name)) for name in self.axes], axis=1)

    @cached_property
    def cell_totals(self) -> tuple[Floats, Floats]:
        """Impressions and clicks per cell, each of shape (K,)."""

        def block_totals(table: CountTable) -> tuple[Floats, Floats]:
            copies = table.spread(table.multiplicity)
            return table.sum_by_cell(copies * table.impressions), table.sum_by_cell(copies * table.clicks)

        impressions, clicks = self.pair_signatures.sum_blocks(block_totals)
        return impressions, clicks

    def counts_by_cell(self) -> pl.DataFrame:
        """Return the cell columns with `impressions` and `clicks` (both Float64), a row per cell in their order."""
        impressions, clicks = self.cell_totals
        return self.cells.with_columns(pl.Series(IMPRESSIONS, impressions), pl.Series(CLICKS, clicks))


def compress_part(statistics: pl.DataFrame, plan: StatisticsPlan) -> PartStatistics:
    """Compress the statistics of one part.

    Args:
        statistics: the plan's keys, by which rows are sorted, `impressions` and `clicks`, of whole queries.
        plan: defines the keys.
    """
    cells, number = numbered_cells(statistics, plan)
    rows = _number_cells_and_queries(statistics, number)
    codes = _cell_codes(cells)
    pairs, by_unit = pl.DataFrame(), dict[tuple[str, ...], PartOfStrata]()
    for unit in plan.units:
        unit_rows = _sum_by_unit(rows, unit, plan)
        table = to_count_table(unit_rows, unit, cells.height)
        by_unit[unit], signature = _compress_unit(unit_rows, table, codes)
        first = table.start[:-1]
        if unit == plan.pair_columns:
            pairs = unit_rows.select(*unit)[first].with_columns(pl.Series(SIGNATURE, signature))
            for at, name in enumerate((IMPRESSIONS, CLICKS), start=len(unit)):
                counts = unit_rows[name].to_numpy()
                whole = not np.issubdtype(counts.dtype, np.floating)
                sums = (
                    sum_rows(counts.astype(np.int64, copy=False), table.start)
                    if whole
                    else np.add.reduceat(counts, first)
                )
                pairs.insert_column(at, pl.Series(name, sums))
    return PartStatistics(
        cells=cells,
        pairs=pairs,
        by_unit=by_unit,
        n_queries=int(rows[_QUERY_NUMBER][-1]) + 1,
        n_pairs=pairs.select(pl.struct(*PAIR).rle_id().last()).item() + 1,
        placements=counting_plan.sum_placements(statistics, plan) if plan.randomized and not plan.weighted else None,
        arms=_add_up_arms([statistics], plan),
    )


def _add_up_arms(counts: Sequence[pl.DataFrame], plan: StatisticsPlan) -> pl.DataFrame | None:
    """Sum `impressions` and `clicks` by arm, ascending; None if the plan has no arms."""
    if not plan.arms:
        return None
    rows = pl.concat([part.select(*plan.arms, IMPRESSIONS, CLICKS) for part in counts])
    return rows.group_by(plan.arms).agg(pl.col(IMPRESSIONS, CLICKS).sum()).sort(plan.arms)


def _compress_unit(rows: pl.DataFrame, table: CountTable, codes: Hashes) -> tuple[CompressedStrata, Integers]:
    """Compress the table of one kind of unit (`rows` as from `_sum_by_unit`); return it and each unit's signature."""
    signatures, signature, keys = compress_with_keys(table, codes)
    linking = np.flatnonzero(signatures.links[signature])
    query = rows[_QUERY_NUMBER].to_numpy()[table.start[:-1][linking]]
    strata = CompressedStrata(
        signatures=signatures,
        keys=keys,
        member_signature=signature[linking].astype(np.int32),
        member_query=query.astype(np.int32),
    )
    return strata, signature


def _compress_part_unit(
    statistics: pl.DataFrame,
    plan: StatisticsPlan,
    cells: pl.DataFrame,
    unit: tuple[str, ...],
    cell_prefix: tuple[str, ...] = (),
    extra_column: pl.Expr | None = None,
) -> PartOfStrata:
    """Compress the counts of one kind of unit in one part.

    Args:
        statistics: the plan's keys, `impressions` and `clicks` of the part.
        plan: defines the keys.
        cells: the cells of all parts, by their columns and `cell_prefix`; a cell's number is its row.
        unit: key columns of a unit.
        cell_prefix: further key columns of a cell (the arm); rows where one of them is null are dropped.
        extra_column: a column to add to the statistics first.
    """
    statistics = statistics if extra_column is None else statistics.with_columns(extra_column)
    number = key_numbers(cells, statistics, replace(plan, context=(*plan.context, *cell_prefix)).cell_columns)
    rows = _number_cells_and_queries(statistics, number)  # before rows are dropped, so that queries keep their numbers
    rows = _sum_by_unit(rows.drop_nulls(CELL) if cell_prefix else rows, unit, plan)
    return _compress_unit(rows, to_count_table(rows, unit, cells.height), _cell_codes(cells))[0]


def _count_by_day(statistics: pl.DataFrame) -> pl.DataFrame:
    return count_by_day(statistics.lazy(), pl.col(PERIOD).cast(pl.Date)).collect()


def _order_sums(statistics: pl.DataFrame, plan: StatisticsPlan, unit: tuple[str, ...]) -> OrderSums:
    if plan.auxiliary_columns:  # clusters and arms are for errors by cluster and the test of arms alone
        plan = replace(plan, clusters=(), arms=())
        statistics = statistics.group_by(*plan.keys).agg(pl.col(IMPRESSIONS, CLICKS).sum()).sort(*plan.keys)
    rows = with_periods(statistics, unit)
    rows = rows if plan.is_sorted_by(unit) else rows.sort(*unit, PERIOD, *plan.model.cell_columns)
    return order_of_strata(rows, unit)


def count_units(
    statistics: pl.DataFrame, plan: StatisticsPlan, cells: pl.DataFrame, unit: Sequence[str]
) -> tuple[pl.DataFrame, CountTable]:
    """Count one kind of unit without compression.

    Args:
        statistics: the plan's keys, by which rows are sorted, `impressions` and `clicks`, of whole queries.
        plan: defines the keys.
        cells: the cell columns; a cell's number is its row.
        unit: key columns of a unit, one of the plan's `units`.

    Returns:
        The unit's columns, one row per unit, and the table with the units in that order.
    """
    number = key_numbers(cells, statistics, plan.cell_columns)
    rows = _sum_by_unit(_number_cells_and_queries(statistics, number), unit, plan)
    table = to_count_table(rows, unit, cells.height)
    return rows.select(*unit)[table.start[:-1]], table


def count_randomized(
    statistics: pl.DataFrame, plan: StatisticsPlan, cells: pl.DataFrame
) -> tuple[pl.DataFrame, CountTable]:
    """Count randomised rows by pair without compression; see `count_units`."""
    return count_units(statistics.filter(pl.col(RANDOMIZED) > 0), plan, cells, PAIR)


def merge_parts(
    parts: Sequence[PartStatistics],
    plan: StatisticsPlan,
    part_mapper: PartMapper[PartOfStrata] | PartMapper[OrderSums] | None = None,
) -> SufficientStatistics:
    """Merge the compressed parts of a log: number cells and queries over all parts, and merge equal signatures.

    Args:
        parts: the compressed parts.
        plan: defines the keys.
        part_mapper: reads the statistics of the same parts again, in the same order; without it there are no strata by
            period.
    """
    cells = pl.concat([part.cells for part in parts]).unique().sort(*plan.cell_order)
    new_cell = [key_numbers(cells, part.cells, plan.cell_columns).to_numpy().astype(np.int64) for part in parts]
    by_unit = dict[tuple[str, ...], Strata]()
    signature_of_part = list[Numbers]()
    placements = [part.placements for part in parts if part.placements is not None]
    n_queries = tuple(part.n_queries for part in parts)
    for unit in plan.units:
        by_unit[unit], new = _merge_unit([part.by_unit[unit] for part in parts], new_cell, cells, plan, n_queries)
        if unit == plan.pair_columns:
            signature_of_part = new
    return SufficientStatistics(
        plan=plan,
        cells=cells,
        by_unit=by_unit,
        signature_of_part=tuple(signature_of_part),
        n_queries=sum(n_queries),
        n_pairs=sum(part.n_pairs for part in parts),
        placements=reduce(add, placements) if placements else None,
        queries_of_part=n_queries,
        arms=_add_up_arms([part.arms for part in parts if part.arms is not None], plan),
        part_mapper=part_mapper,
    )


def _merge_unit(
    parts: Sequence[PartOfStrata],
    new_cell: Sequence[Integers],
    cells: pl.DataFrame,
    plan: StatisticsPlan,
    n_queries: Sequence[int],
) -> tuple[Strata, list[Numbers]]:
    """Merge one kind of unit over all parts; return it and, for each part, the new number of each of its signatures."""
    first_query = np.cumsum([0, *n_queries])
    query_type = np.int32 if first_query[-1] <= _LARGEST_INT32 else np.int64
    signatures, new = merge(parts, new_cell, _cell_codes(cells))
    constant = [name for name in plan.cell if cells[name].n_unique() == 1]
    if constant:  # sort the signatures as without the column, so that sums over them have the same last bits
        signatures, number = compress(signatures, _cell_codes(cells.drop(constant)))
        new = [number[merged_number] for merged_number in new]
    queries = [
        part.member_query.astype(query_type) + first
        for part, first in zip(parts, first_query[:-1].tolist(), strict=True)
    ]
    member_signatures = [number[part.member_signature] for part, number in zip(parts, new, strict=True)]
    return Strata(signatures, Members(np.concatenate(member_signatures), np.concatenate(queries))), new


def _number_cells_and_queries(statistics: pl.DataFrame, cell: pl.Series) -> pl.DataFrame:
    """Add the column of cell numbers, and number the queries from 0 in the order of the rows."""
    return statistics.with_columns(cell, pl.col(QUERY).rle_id().alias(_QUERY_NUMBER))


def _sum_by_unit(rows: pl.DataFrame, unit: Sequence[str], plan: StatisticsPlan) -> pl.DataFrame:
    """Sum `impressions` and `clicks` by unit and cell; return one row for each, sorted by unit and cell."""
    rows = with_periods(rows, tuple(unit))
    half = next((name for name in (HALF, ALTERNATE) if name in unit), None)
    if half is not None:
        pair = [name for name in unit if name != half]
        rows = rows if plan.is_sorted_by(pair) else rows.sort(*pair, PERIOD)
        number = counting_plan.run_numbers(rows, pair)
        first = np.flatnonzero(np.diff(number, prepend=-1))
        if len(first):  # units without a click compare nothing
            rows = rows.filter((np.add.reduceat(rows[CLICKS].to_numpy(), first) > 0)[number])
        number = counting_plan.run_numbers(rows, pair)
        moment = counting_plan.run_numbers(rows, [*pair, PERIOD])
        if half == HALF:
            is_second = _is_in_later_half(number, moment, rows[IMPRESSIONS].to_numpy())
        else:
            first = np.flatnonzero(np.diff(number, prepend=-1))
            is_second = (moment - moment[first][number]) % 2 > 0
        return _sum_sorted_units(rows.with_columns(pl.Series(half, is_second)), 2 * number + is_second)
    if RANDOMIZED in unit:
        rows = rows.filter(pl.col(RANDOMIZED) > 0)
    elif {*unit, *plan.cell_columns} == set(plan.keys):
        return rows
    if plan.is_sorted_by(unit):
        return _sum_sorted_units(rows, counting_plan.run_numbers(rows, unit))
    counts = pl.col(IMPRESSIONS, CLICKS).sum()
    return rows.group_by(*unit, CELL).agg(counts, pl.col(_QUERY_NUMBER).first()).sort(*unit, CELL)


def _is_in_later_half(unit: Integers, moment: Integers, impressions: Floats | Integers) -> Flags:
    """Return whether each row lies in the later half of its unit's impressions, shape (R,).

    All rows of a moment (the finest period) go to the half in which the middle of their impressions lies.

    Args:
        unit: the unit number of each row, ascending, shape (R,).
        moment: the number of each row's (unit, period), ascending, shape (R,).
        impressions: shape (R,).
    """
    if not len(unit):
        return np.zeros(0, np.bool_)
    first = np.flatnonzero(np.diff(moment, prepend=-1))
    unit_of_moment, shown = unit[first], np.add.reduceat(impressions, first)
    start = np.flatnonzero(np.diff(unit_of_moment, prepend=-1))
    up_to = np.cumsum(shown)
    before = (up_to - shown)[start][unit_of_moment]
    whole = np.add.reduceat(shown, start)[unit_of_moment]
    return (2 * (up_to - before) - shown > whole * (1 + _ROUNDING))[moment]


def _sum_sorted_units(rows: pl.DataFrame, unit_of_row: Integers) -> pl.DataFrame:
    """Sum rows that are sorted by unit by (unit, cell), where `unit_of_row` numbers the units, shape (R,)."""
    cell = rows[CELL].to_numpy().astype(np.int64)
    key = unit_of_row * (int(cell.max(initial=0)) + 1) + cell
    order = np.argsort(key, kind="stable")
    first = np.flatnonzero(np.diff(key[order], prepend=-1))
    result = rows[order[first]]
    if not len(first):
        return result
    sums = {name: np.add.reduceat(rows[name].to_numpy()[order], first) for name in (IMPRESSIONS, CLICKS)}
    return result.with_columns(pl.Series(name, values) for name, values in sums.items())


def to_count_table(rows: pl.DataFrame, unit: Sequence[str], n_cells: int) -> CountTable:
    """Convert rows sorted by unit and cell (`posbias_cell`, `impressions`, `clicks`) to a table of counts."""
    unit_of_row = rows.select(pl.struct(*unit).rle_id()).to_series().to_numpy()
    first = np.flatnonzero(np.diff(unit_of_row, prepend=-1))
    impressions = rows[IMPRESSIONS].to_numpy().astype(np.float64)
    return CountTable(
        n_cells=n_cells,
        start=np.append(first, rows.height).astype(np.int64),
        cell=rows[CELL].to_numpy().astype(np.int64),
        impressions=impressions,
        # Rounded sums of weights may give slightly more clicks than impressions.
        clicks=np.minimum(rows[CLICKS].to_numpy().astype(np.float64), impressions),
        multiplicity=np.ones(len(first)),
    )


def _cell_codes(cells: pl.DataFrame) -> Hashes:
    """Hash each cell's values, shape (K,): the code of a cell does not depend on which other cells the part has."""
    digests = [blake2b(repr(cell).encode(), digest_size=8).digest() for cell in cells.iter_rows()]
    return np.frombuffer(b"".join(digests), np.uint64)
