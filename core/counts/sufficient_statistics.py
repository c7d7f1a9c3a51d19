"""Sufficient statistics of a log: the tables of counts that every estimator works on.

Statistics come in parts, each holding whole queries. A part is compressed by itself, then the parts are merged, so
that memory grows with the signatures and not with the log.

Signatures are merged a range of keys at a time: those of each part are sorted by a key that depends on their content
only, so that equal ones meet in the same range. Parts may lie outside memory: what is held at a time is the result and
one range of each part for each thread.
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
"""The name of the column of numbers."""

_MOST_PLACES = 1 << 20
_LARGEST = 2**63 - 1
_ENOUGH_IMPRESSIONS, _ENOUGH_QUERIES = 2_000_000, 1_000  # for tests of times, which need not see all of a large log
_PLACE = "posbias_place"
_AFTER = "posbias_after"


def numbered_cells(statistics: pl.DataFrame, plan: StatisticsPlan) -> tuple[pl.DataFrame, pl.Series]:
    """The cells that occur, sorted by curve and position, and for each row the number of its cell, shape (R,)."""
    keys = statistics.select(plan.cell_columns)
    places = _places(keys)
    if places is None:
        cells = keys.unique().sort(*plan.cell_order)
        return cells, key_numbers(cells, statistics, plan.cell_columns)
    place, n_places = places
    row = np.full(n_places, -1)
    row[place] = np.arange(len(place))  # one of each cell
    occupied = np.flatnonzero(row >= 0)
    cells = keys[row[occupied]].with_columns(pl.Series(_PLACE, occupied)).sort(*plan.cell_order)
    number = np.empty(n_places, np.uint32)
    number[cells[_PLACE].to_numpy()] = np.arange(cells.height)
    return cells.drop(_PLACE), pl.Series(CELL, number[place])


def key_numbers(keys: pl.DataFrame, rows: pl.DataFrame, columns: Sequence[str]) -> pl.Series:
    """For each row the number of its key, such as its cell, among given ones, shape (R,); null where it is not one."""
    numbered = keys.with_row_index(CELL)
    return rows.select(columns).join(numbered, on=columns, how="left", maintain_order="left", nulls_equal=True)[CELL]


def context_numbers(cells: pl.DataFrame, context: Sequence[str]) -> Integers:
    """The number of each cell's context, from 0 in the order of the cells, which are sorted by it, shape (K,)."""
    return counting_plan.run_numbers(cells, context) if context else np.zeros(cells.height, np.int64)


def dense_row_ranks(rows: pl.DataFrame) -> Integers:
    """The number of each row among the different ones, from 0 in their order."""
    return rows.select(pl.struct(pl.all()).rank("dense") - 1).to_series().to_numpy().astype(np.int64)


def _places(keys: pl.DataFrame) -> tuple[Integers, int] | None:
    """A place for each row, equal for equal keys, and how many places there are; None where that takes too many."""
    keys = keys.with_columns(pl.selectors.boolean().cast(pl.UInt8))
    if not keys.height or any(not key.dtype.is_integer() or key.null_count() for key in keys):
        return None
    lows, highs = keys.min().row(0), keys.max().row(0)
    sizes = [high - low + 1 for low, high in zip(lows, highs, strict=True)]
    if prod(sizes) > _MOST_PLACES or max(highs) > _LARGEST:
        return None
    place = np.zeros(keys.height, np.int64)
    for key, low, size in zip(keys, lows, sizes, strict=True):
        place *= size
        place += (key.cast(pl.Int64) - low).to_numpy()
    return place, prod(sizes)


_UNITS_AT_ONCE = 1 << 18  # of all parts together, about
_FEWEST_UNITS = 1 << 13  # of a range
_UNITS_OF_A_PART = 64  # of a range, about: each is read by itself, so that ranges are few where parts are many


class PartOfStrata(Protocol):
    """The compressed counts of one kind of unit in one part of a log, in memory or elsewhere, sorted by their keys."""

    @property
    def keys(self) -> Hashes:
        """The keys, ascending, shape (J,)."""
        ...

    @property
    def member_signature(self) -> Numbers:
        """The signature of each unit with a click and at least two cells, shape (N,)."""
        ...

    @property
    def member_query(self) -> Numbers:
        """The query of that unit, ascending, shape (N,)."""
        ...

    def read(self, first: int, last: int) -> CountTable:
        """The signatures first .. last - 1."""
        ...


def merge(
    parts: Sequence[PartOfStrata], new_cell: Sequence[Integers], cell_code: Hashes
) -> tuple[CountTable, list[Numbers]]:
    """Merge the signatures of parts of different pairs.

    Args:
        parts: sorted by keys that were made with the same codes of the cells.
        new_cell: for each part, the number among all K cells of each of its own, ascending.
        cell_code: the code of each cell, shape (K,).

    Returns:
        The signatures of all of them, sorted by their keys, and for each part the number of each of its signatures.
    """
    if len(parts) == 1:
        table = parts[0].read(0, len(parts[0].keys))
        return replace(table, n_cells=len(cell_code), cell=new_cell[0][table.cell]), [np.arange(table.n_units)]
    keys = [part.keys for part in parts]
    length = max(_UNITS_AT_ONCE // n_threads(), _FEWEST_UNITS, _UNITS_OF_A_PART * len(parts))
    n_ranges = 1 + sum(map(len, keys)) // length
    inner = np.array([(number << 64) // n_ranges for number in range(1, n_ranges)], np.uint64)
    # Where each range of keys begins in each part, and where the last one ends.
    borders = [np.array([0, *np.searchsorted(of_part, inner), len(of_part)]) for of_part in keys]
    numbers: list[Numbers] = [np.empty(border[-1], np.int32) for border in borders]
    merged: list[CountTable] = []
    n_merged = 0

    def of_range(step: int) -> tuple[CountTable, Integers, list[tuple[int, int]]]:
        spans = [(int(border[step]), int(border[step + 1])) for border in borders]
        tables = [part.read(*span) for part, span in zip(parts, spans, strict=True)]
        read = [
            replace(table, n_cells=len(cell_code), cell=cells[table.cell])
            for table, cells in zip(tables, new_cell, strict=True)
        ]
        return *compress(concatenate(read), cell_code), spans

    for signatures, number, spans in thread_map(of_range, range(len(borders[0]) - 1)):
        ends = np.cumsum([last - first for first, last in spans])[:-1]
        for of_part, (first, last), merged_number in zip(numbers, spans, np.split(number, ends), strict=True):
            of_part[first:last] = merged_number + n_merged
        merged.append(signatures)
        n_merged += signatures.n_units
    return concatenate(merged), numbers


SIGNATURE = "signature"
_QUERY_NUMBER = "posbias_query"
_LARGEST_INT32 = 2**31 - 1
_ROUNDING = 1e-9  # of sums of weights
_Made = TypeVar("_Made", PartOfStrata, "OrderSums", pl.DataFrame, Floats, tuple[pl.DataFrame, CountTable])

PartMapper = Callable[[Callable[[pl.DataFrame], _Made], int | None], Iterable[_Made]]
"""Calls a function, which can travel, with the statistics of each of so many first parts, all of them where that is
None, and returns the results in their order."""


@dataclass(frozen=True)
class CompressedStrata:
    """A `PartOfStrata` in memory."""

    signatures: CountTable
    keys: Hashes
    member_signature: Numbers
    member_query: Numbers

    def read(self, first: int, last: int) -> CountTable:
        """The signatures first .. last - 1."""
        return self.signatures.read(first, last)


@dataclass(frozen=True)
class PartStatistics:
    """The compressed statistics of one part. Cells and queries are numbered within the part."""

    cells: pl.DataFrame  # the cell columns, sorted; a cell's number is its row
    # The pair's columns, `impressions`, `clicks`, `signature` (row of the pairs' signatures), sorted by pair
    pairs: pl.DataFrame
    by_unit: Mapping[tuple[str, ...], PartOfStrata]  # the counts by what makes a unit (the plan's `units`)
    n_queries: int  # number of queries
    n_pairs: int  # number of (query, doc) pairs
    # Where documents stand among randomised rows, if such rows are known and carry no weights
    placements: Placements | None = None
    arms: pl.DataFrame | None = None  # the arms, where there are some: their column, `impressions` and `clicks`


@dataclass(frozen=True)
class Strata:
    """Counts per (stratum, cell), compressed. A stratum is what shares one attractiveness: a pair, or a part of one."""

    signatures: CountTable  # equal strata once, with their number as multiplicity; those that link cells first
    # The signature of each stratum with a click and at least two cells, and as its cluster its query, numbered,
    # ascending
    members: Members


@dataclass(frozen=True)
class SufficientStatistics:
    """The statistics of all parts together. Cells and queries are numbered over the whole log."""

    plan: StatisticsPlan  # what was counted
    cells: pl.DataFrame  # the cell columns, sorted by context and position; a cell's number is its row
    by_unit: Mapping[tuple[str, ...], Strata]  # the counts by what makes a unit (the plan's `units`)
    # For each part, the row of `pair_signatures` by the part's own signature number
    signature_of_part: tuple[Numbers, ...]
    n_queries: int  # number of queries
    n_pairs: int  # number of (query, doc) pairs
    # Where documents stand among randomised rows, if such rows are known and carry no weights
    placements: Placements | None = None
    queries_of_part: tuple[int, ...] = ()  # number of queries of each part
    # Sums rows in their order, where no times of day are kept; see `row_order`
    compute_row_order: Callable[[], RowOrder | None] = lambda: None
    # The arms in ascending order, where there are some: their column, `impressions` and `clicks`; null for no arm
    arms: pl.DataFrame | None = None
    # Goes over the statistics of the parts again, for periods, clusters, arms and randomised rows
    part_mapper: PartMapper[PartOfStrata] | PartMapper[OrderSums] | None = None
    _made: dict[tuple[str, ...], Strata] = field(default_factory=dict[tuple[str, ...], Strata], compare=False)

    @property
    def n_cells(self) -> int:
        """Number of cells K."""
        return self.cells.height

    @property
    def pair_signatures(self) -> CountTable:
        """Counts per pair and cell, compressed: for attractiveness and weights."""
        return self.by_unit[self.plan.pair_columns].signatures

    def strata(self, period: Length = "none", *, halved: bool = False, n_parts: int | None = None) -> Strata:
        """The counts that theta is estimated from: of pairs, of pairs by period, or by half of it.

        Args:
            period: the length of the periods.
            halved: whether each is halved.
            n_parts: how many of the first parts are counted; all by default.
        """
        unit = self.plan.stratum_columns(period, halved=halved)
        compressed = partial(_compressed_unit, plan=self.plan, unit=unit)
        if n_parts is not None and n_parts < len(self.queries_of_part):
            return self._strata(compressed, self.cells, n_parts)
        if unit in self.by_unit:
            return self.by_unit[unit]
        if unit not in self._made:
            self._made[unit] = self._strata(compressed, self.cells)
        return self._made[unit]

    @cached_property
    def parts_for_tests(self) -> int:
        """How many of the first parts, each a sample of the queries, say enough for tests of times."""
        n_queries = np.cumsum(self.queries_of_part)
        share = min(_ENOUGH_IMPRESSIONS / max(float(self.cell_totals[0].sum()), 1), 1)
        enough = int(np.searchsorted(n_queries, min(_ENOUGH_QUERIES, self.n_queries))) + 1
        return max(ceil(len(n_queries) * share), enough)

    @cached_property
    def by_day(self) -> pl.DataFrame | None:
        """Counts by day and position (see `odd_days`) of the parts for tests; None without days, or with weights."""
        if self.part_mapper is None or not self.plan.period or self.plan.weighted:
            return None
        return merge_day_counts(list(self.map_parts(_count_by_day, self.parts_for_tests)))

    def _strata(
        self, compressed: Callable[..., PartOfStrata], cells: pl.DataFrame, n_parts: int | None = None
    ) -> Strata:
        """The counts that a function compresses of each of the first parts, in given cells."""
        parts = list(self.map_parts(partial(compressed, cells=cells), n_parts))
        same = [np.arange(cells.height)] * len(parts)
        return _merged_unit(parts, same, cells, self.plan, self.queries_of_part[: len(parts)])[0]

    def before_and_after(self, day: str, period: Length = "none") -> tuple[Strata, Strata]:
        """The counts of the days before a day, and of it and those after it, each as `strata` gives those of all.

        They are those of the parts for tests.
        """
        cells = self.cells.join(pl.DataFrame({_AFTER: [False, True]}), how="cross")
        plan = replace(self.plan, context=(*self.plan.context, _AFTER))
        begun = (pl.col(PERIOD).cast(pl.Date) >= pl.lit(day).str.to_date()).alias(_AFTER)
        compressed = partial(_compressed_unit, plan=plan, unit=plan.stratum_columns(period), added=begun)
        both = self._strata(compressed, cells, self.parts_for_tests)
        number = np.arange(cells.height)
        tables = (both.signatures.only_cells(number % 2 == after) for after in range(2))
        before, after = (Strata(table.merge_cells(number // 2, self.n_cells), both.members) for table in tables)
        return before, after

    def by_arm(self, period: Length = "none") -> Strata:
        """The counts of `strata` in cells of each arm, one arm after the other; rows without an arm are left out.

        Raises:
            ValueError: there are no arms.
        """
        if self.arms is None:
            raise ValueError("the statistics keep no arms apart")
        cells = self.arms.select(self.plan.arms).drop_nulls().join(self.cells, how="cross")
        unit = self.plan.stratum_columns(period)
        return self._strata(partial(_compressed_unit, plan=self.plan, unit=unit, apart=self.plan.arms), cells)

    def order(self, period: Length, n_parts: int | None = None) -> OrderSums:
        """Whether, within strata of that period, clicks come before better positions, by query of the first parts."""
        unit = self.plan.stratum_columns(period)
        return add_orders(list(self.map_parts(partial(_order_of_unit, plan=self.plan, unit=unit), n_parts)))

    @cached_property
    def row_order(self) -> RowOrder | None:
        """What the order of the rows says, within days where these are kept."""
        return self.compute_row_order()

    def map_parts(self, work: Callable[[pl.DataFrame], _Made], n_parts: int | None = None) -> Iterable[_Made]:
        """Yield the results of a function (one that can be pickled) for the statistics of the first parts, or all."""
        if self.part_mapper is None:
            raise ValueError("the statistics of the parts were not kept")
        return self.part_mapper(work, n_parts)  # pyright: ignore[reportArgumentType, reportReturnType] - one function for both

    @property
    def randomized(self) -> Strata:
        """The counts of randomised rows by query and experiment."""
        return self.by_unit[self.plan.randomized_columns]

    @property
    def position_of_cell(self) -> Integers:
        """The position of each cell, shape (K,)."""
        return self.cells[POSITION].to_numpy().astype(np.int64)

    @property
    def context_of_cell(self) -> Integers:
        """The number of each cell's context, from 0 in the order of the cells, shape (K,); all 0 without contexts."""
        return context_numbers(self.cells, self.plan.context)

    @property
    def curve_of_cell(self) -> Integers:
        """The number of each cell's curve over positions, from 0 in the order of the cells, shape (K,)."""
        return context_numbers(self.cells, (*self.plan.context, *self.further_cell_columns))

    @property
    def further_cell_columns(self) -> tuple[str, ...]:
        """The further columns of a cell; without the last one where that is the position itself."""
        names, last = self.plan.cell, self.plan.cell[-1:]
        sizes = {self.cells.select(of).n_unique() for of in ([POSITION], last, [POSITION, *last]) if last}
        return names[:-1] if len(sizes) == 1 else names

    @property
    def axes(self) -> tuple[str, ...]:
        """The columns whose values make up a cell of one context: the position, and its further columns.

        Positions that follow from several other columns, as that of a row and a column of a grid, are no axis.
        """
        names, cells = self.further_cell_columns, self.cells
        follows = len(names) > 1 and cells.select(names).n_unique() == cells.select(POSITION, *names).n_unique()
        return names if follows else (POSITION, *names)

    @property
    def axes_of_cell(self) -> Integers:
        """The number of each cell's value on each axis, shape (K, A)."""
        return np.stack([dense_row_ranks(self.cells.select(name)) for name in self.axes], axis=1)

    @cached_property
    def cell_totals(self) -> tuple[Floats, Floats]:
        """Impressions and clicks per cell, each of shape (K,)."""

        def of_block(table: CountTable) -> tuple[Floats, Floats]:
            copies = table.spread(table.multiplicity)
            return table.sum_by_cell(copies * table.impressions), table.sum_by_cell(copies * table.clicks)

        impressions, clicks = self.pair_signatures.sum_blocks(of_block)
        return impressions, clicks

    def counts_by_cell(self) -> pl.DataFrame:
        """The cell columns, `impressions` and `clicks` (both Float64), sorted as the cells are."""
        impressions, clicks = self.cell_totals
        return self.cells.with_columns(pl.Series(IMPRESSIONS, impressions), pl.Series(CLICKS, clicks))


def compress_part(statistics: pl.DataFrame, plan: StatisticsPlan) -> PartStatistics:
    """Compress the statistics of whole queries: the plan's keys, by which they are sorted, `impressions`, `clicks`."""
    cells, number = numbered_cells(statistics, plan)
    rows = _with_numbers(statistics, number)
    codes = _codes(cells)
    pairs, by_unit = pl.DataFrame(), dict[tuple[str, ...], PartOfStrata]()
    for unit in plan.units:
        of_unit = _added_up(rows, unit, plan)
        table = to_count_table(of_unit, unit, cells.height)
        by_unit[unit], signature = _compressed(of_unit, table, codes)
        first = table.start[:-1]
        if unit == plan.pair_columns:
            pairs = of_unit.select(*unit)[first].with_columns(pl.Series(SIGNATURE, signature))
            for at, name in enumerate((IMPRESSIONS, CLICKS), start=len(unit)):
                counts = of_unit[name].to_numpy()
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
    """The arms in ascending order, with their `impressions` and `clicks`; None where a plan has none."""
    if not plan.arms:
        return None
    rows = pl.concat([part.select(*plan.arms, IMPRESSIONS, CLICKS) for part in counts])
    return rows.group_by(plan.arms).agg(pl.col(IMPRESSIONS, CLICKS).sum()).sort(plan.arms)


def _compressed(of_unit: pl.DataFrame, table: CountTable, codes: Hashes) -> tuple[CompressedStrata, Integers]:
    """The compressed counts of one kind of unit, and the signature of each unit."""
    signatures, signature, keys = compress_with_keys(table, codes)
    linking = np.flatnonzero(signatures.links[signature])
    query = of_unit[_QUERY_NUMBER].to_numpy()[table.start[:-1][linking]]
    strata = CompressedStrata(
        signatures=signatures,
        keys=keys,
        member_signature=signature[linking].astype(np.int32),
        member_query=query.astype(np.int32),
    )
    return strata, signature


def _compressed_unit(
    statistics: pl.DataFrame,
    plan: StatisticsPlan,
    cells: pl.DataFrame,
    unit: tuple[str, ...],
    apart: tuple[str, ...] = (),
    added: pl.Expr | None = None,
) -> PartOfStrata:
    """The compressed counts of one kind of unit in one part, cells numbered as over all parts.

    Args:
        statistics: of the part.
        plan: what was counted.
        cells: those of all parts, also by the columns that are kept `apart`.
        unit: the columns that tell units apart.
        apart: further columns of the cells; rows that lack one are left out.
        added: a column that the statistics do not have.
    """
    statistics = statistics if added is None else statistics.with_columns(added)
    number = key_numbers(cells, statistics, replace(plan, context=(*plan.context, *apart)).cell_columns)
    rows = _with_numbers(statistics, number)  # queries are numbered as without what is left out
    rows = _added_up(rows.drop_nulls(CELL) if apart else rows, unit, plan)
    return _compressed(rows, to_count_table(rows, unit, cells.height), _codes(cells))[0]


def _count_by_day(statistics: pl.DataFrame) -> pl.DataFrame:
    return count_by_day(statistics.lazy(), pl.col(PERIOD).cast(pl.Date)).collect()


def _order_of_unit(statistics: pl.DataFrame, plan: StatisticsPlan, unit: tuple[str, ...]) -> OrderSums:
    if plan.auxiliary_columns:  # clusters and arms are for errors by cluster and the test of arms alone
        plan = replace(plan, clusters=(), arms=())
        statistics = statistics.group_by(*plan.keys).agg(pl.col(IMPRESSIONS, CLICKS).sum()).sort(*plan.keys)
    rows = with_periods(statistics, unit)
    rows = rows if plan.is_sorted_by(unit) else rows.sort(*unit, PERIOD, *plan.model.cell_columns)
    return order_of_strata(rows, unit)


def count_units(
    statistics: pl.DataFrame, plan: StatisticsPlan, cells: pl.DataFrame, unit: Sequence[str]
) -> tuple[pl.DataFrame, CountTable]:
    """The counts of one kind of unit, not compressed.

    Args:
        statistics: of whole queries (the plan's keys, `impressions`, `clicks`), sorted by the keys.
        plan: what was counted.
        cells: the cell columns; a cell's number is its row.
        unit: the columns that tell units apart, one of the plan's `units`.

    Returns:
        The unit's columns, one row per unit, and the table with the units in that order.
    """
    rows = _added_up(_with_numbers(statistics, key_numbers(cells, statistics, plan.cell_columns)), unit, plan)
    table = to_count_table(rows, unit, cells.height)
    return rows.select(*unit)[table.start[:-1]], table


def count_randomized(
    statistics: pl.DataFrame, plan: StatisticsPlan, cells: pl.DataFrame
) -> tuple[pl.DataFrame, CountTable]:
    """The counts of the rows that were placed at random, by query and document; see `count_units`."""
    return count_units(statistics.filter(pl.col(RANDOMIZED) > 0), plan, cells, PAIR)


def merge_parts(
    parts: Sequence[PartStatistics],
    plan: StatisticsPlan,
    part_mapper: PartMapper[PartOfStrata] | PartMapper[OrderSums] | None = None,
) -> SufficientStatistics:
    """Number cells and queries over all parts, and merge equal signatures.

    Args:
        parts: the compressed parts.
        plan: what was counted.
        part_mapper: goes over the statistics of the same parts again, in their order; without it nothing is parted by
            period.
    """
    cells = pl.concat([part.cells for part in parts]).unique().sort(*plan.cell_order)
    new_cell = [key_numbers(cells, part.cells, plan.cell_columns).to_numpy().astype(np.int64) for part in parts]
    by_unit = dict[tuple[str, ...], Strata]()
    signature_of_part = list[Numbers]()
    placements = [part.placements for part in parts if part.placements is not None]
    n_queries = tuple(part.n_queries for part in parts)
    for unit in plan.units:
        by_unit[unit], new = _merged_unit([part.by_unit[unit] for part in parts], new_cell, cells, plan, n_queries)
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


def _merged_unit(
    members: Sequence[PartOfStrata],
    new_cell: Sequence[Integers],
    cells: pl.DataFrame,
    plan: StatisticsPlan,
    n_queries: Sequence[int],
) -> tuple[Strata, list[Numbers]]:
    """One kind of unit over all parts, and the row of its signatures by each part's own."""
    first_query = np.cumsum([0, *n_queries])
    number_of_query = np.int32 if first_query[-1] <= _LARGEST_INT32 else np.int64
    signatures, new = merge(members, new_cell, _codes(cells))
    constant = [name for name in plan.cell if cells[name].n_unique() == 1]
    if constant:  # a column of one value changes nothing, not even the order of sums
        signatures, number = compress(signatures, _codes(cells.drop(constant)))
        new = [number[of_part] for of_part in new]
    queries = [
        part.member_query.astype(number_of_query) + first
        for part, first in zip(members, first_query[:-1].tolist(), strict=True)
    ]
    numbered_signatures = [number[part.member_signature] for part, number in zip(members, new, strict=True)]
    return Strata(signatures, Members(np.concatenate(numbered_signatures), np.concatenate(queries))), new


def _with_numbers(statistics: pl.DataFrame, cell: pl.Series) -> pl.DataFrame:
    """Statistics with the numbers of their cells and queries."""
    return statistics.with_columns(cell, pl.col(QUERY).rle_id().alias(_QUERY_NUMBER))


def _added_up(rows: pl.DataFrame, unit: Sequence[str], plan: StatisticsPlan) -> pl.DataFrame:
    """The rows of one kind of unit, sorted by unit and cell: those of its finer parts are added up."""
    rows = with_periods(rows, tuple(unit))
    if HALF in unit:
        pair = [name for name in unit if name != HALF]
        rows = rows if plan.is_sorted_by(pair) else rows.sort(*pair, PERIOD)
        of_row = counting_plan.run_numbers(rows, pair)
        first = np.flatnonzero(np.diff(of_row, prepend=-1))
        if len(first):  # units without a click compare nothing
            rows = rows.filter((np.add.reduceat(rows[CLICKS].to_numpy(), first) > 0)[of_row])
        of_row = counting_plan.run_numbers(rows, pair)
        later = _in_later_half(of_row, counting_plan.run_numbers(rows, [*pair, PERIOD]), rows[IMPRESSIONS].to_numpy())
        return _summed(rows.with_columns(pl.Series(HALF, later)), 2 * of_row + later)
    if RANDOMIZED in unit:
        rows = rows.filter(pl.col(RANDOMIZED) > 0)
    elif {*unit, *plan.cell_columns} == set(plan.keys):
        return rows
    if plan.is_sorted_by(unit):
        return _summed(rows, counting_plan.run_numbers(rows, unit))
    counts = pl.col(IMPRESSIONS, CLICKS).sum()
    return rows.group_by(*unit, CELL).agg(counts, pl.col(_QUERY_NUMBER).first()).sort(*unit, CELL)


def _in_later_half(unit: Integers, moment: Integers, impressions: Floats | Integers) -> Flags:
    """Whether the middle of each row's moment lies in the later half of its unit, all of shape (R,), sorted by them.

    What was counted together stays together, in the half where its middle lies.
    """
    if not len(unit):
        return np.zeros(0, np.bool_)
    first = np.flatnonzero(np.diff(moment, prepend=-1))
    of_moment, shown = unit[first], np.add.reduceat(impressions, first)
    start = np.flatnonzero(np.diff(of_moment, prepend=-1))
    up_to = np.cumsum(shown)
    before = (up_to - shown)[start][of_moment]
    whole = np.add.reduceat(shown, start)[of_moment]
    return (2 * (up_to - before) - shown > whole * (1 + _ROUNDING))[moment]


def _summed(rows: pl.DataFrame, unit_of_row: Integers) -> pl.DataFrame:
    """One row per unit and cell, sorted by them, of rows that are sorted by unit, its number given for each."""
    cell = rows[CELL].to_numpy().astype(np.int64)
    key = unit_of_row * (int(cell.max(initial=0)) + 1) + cell
    order = np.argsort(key, kind="stable")
    first = np.flatnonzero(np.diff(key[order], prepend=-1))
    kept = rows[order[first]]
    if not len(first):
        return kept
    sums = {name: np.add.reduceat(rows[name].to_numpy()[order], first) for name in (IMPRESSIONS, CLICKS)}
    return kept.with_columns(pl.Series(name, values) for name, values in sums.items())


def to_count_table(rows: pl.DataFrame, unit: Sequence[str], n_cells: int) -> CountTable:
    """Rows sorted by unit and cell as a table of counts."""
    unit_of_row = rows.select(pl.struct(*unit).rle_id()).to_series().to_numpy()
    first = np.flatnonzero(np.diff(unit_of_row, prepend=-1))
    impressions = rows[IMPRESSIONS].to_numpy().astype(np.float64)
    return CountTable(
        n_cells=n_cells,
        start=np.append(first, rows.height).astype(np.int64),
        cell=rows[CELL].to_numpy().astype(np.int64),
        impressions=impressions,
        # Sums of weights are rounded: clicks must not exceed impressions by it.
        clicks=np.minimum(rows[CLICKS].to_numpy().astype(np.float64), impressions),
        multiplicity=np.ones(len(first)),
    )


def _codes(cells: pl.DataFrame) -> Hashes:
    """A number for each cell that depends on what the cell is, not on which others there are, shape (K,)."""
    digests = [blake2b(repr(cell).encode(), digest_size=8).digest() for cell in cells.iter_rows()]
    return np.frombuffer(b"".join(digests), np.uint64)
