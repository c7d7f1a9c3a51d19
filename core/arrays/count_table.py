"""Counts per unit and cell, in compressed sparse rows: what every estimator reads.

Equal units are kept once, with a multiplicity: pairs with the same multiset {(e, n, c)}, the *signature*, follow the
same path in every algorithm that reads a count table, so that one copy and the number of copies say everything.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self, TypeVar, cast

import numpy as np
import scipy
from numpy.typing import NDArray

from posbias.core.arrays import count_table
from posbias.core.arrays.threads import thread_map

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Numbers = NDArray[np.signedinteger[Any]]
"""Numbers of things, in as few bytes as there are many of them."""
Flags = NDArray[np.bool_]
Hashes = NDArray[np.uint64]
_Count = TypeVar("_Count", np.float64, np.int64)
_Whole = TypeVar("_Whole", np.int64, np.uint64)
_Number = TypeVar("_Number", np.float64, np.uint64, np.bool_)

_ROUNDING = 1e-9  # what is less than this, relative to what it is left of, is nothing
_BLOCK = 1 << 18  # entries that are worked on at a time: 2 MB of floats, which stay in a cache
_KEPT = 2 * _BLOCK  # entries of a table that keeps which unit owns each


@dataclass(frozen=True)
class CountTable:
    """Counts per (unit, cell), in compressed sparse rows: a unit is a pair, a stratum or a signature.

    Unit j owns the entries `start[j]:start[j + 1]`, sorted by cell, each cell at most once.
    """

    n_cells: int  # number of cells K; `cell` lies in 0 .. K - 1
    start: Integers  # shape (J + 1,)
    cell: Integers  # shape (R,)
    impressions: Floats  # shape (R,), n > 0, in impressions (fractional when weighted)
    clicks: Floats  # shape (R,), 0 <= c <= n
    multiplicity: Floats  # shape (J,), how many equal pairs a unit stands for (1 before compression)

    @property
    def n_units(self) -> int:
        """Number of units J."""
        return len(self.start) - 1

    @property
    def n_entries(self) -> int:
        """Number of entries R."""
        return len(self.cell)

    @cached_property
    def links(self) -> Flags:
        """The units with a click and at least two cells, shape (J,): the only ones that say something about theta."""
        return (self.entries_of_unit > 1) & (sum_rows((self.clicks > 0).astype(np.int64), self.start) > 0)

    @property
    def entries_of_unit(self) -> Integers:
        """Number of entries of each unit, shape (J,)."""
        return np.diff(self.start)

    @property
    def unit_of_entry(self) -> Integers:
        """The unit that owns each entry, shape (R,)."""
        return self._unit_of_entry if self.n_entries <= _KEPT else _row_of_entry(self.start)

    @cached_property
    def _unit_of_entry(self) -> Integers:
        return _row_of_entry(self.start)

    @property
    def entry_keys(self) -> Integers:
        """A number for the unit and cell of each entry, ascending, shape (R,): j K + e."""
        return self.unit_of_entry * self.n_cells + self.cell

    def spread(self, per_unit: Floats) -> Floats:
        """Each unit's value, once per entry: shape (J,) to (R,)."""
        return per_unit.take(self.unit_of_entry)

    def sum_by_unit(self, per_entry: Floats) -> Floats:
        """Sum of each unit's entries, 0 for a unit without any: shape (R,) to (J,)."""
        return reduce_rows(np.add, per_entry, self.start, empty=0.0)

    def max_by_unit(self, per_entry: Floats) -> Floats:
        """Largest of each unit's entries, minus infinity for a unit without any: shape (R,) to (J,)."""
        return reduce_rows(np.maximum, per_entry, self.start, empty=-np.inf)

    def sum_by_cell(self, per_entry: Floats) -> Floats:
        """Sum over each cell's entries as they stand, without multiplicity: shape (R,) to (K,)."""
        return sum_by_number(self.cell, per_entry, self.n_cells)

    def read(self, first: int, last: int) -> "CountTable":
        """The units first .. last - 1, without a copy."""
        entries = slice(int(self.start[first]), int(self.start[last]))
        return CountTable(
            n_cells=self.n_cells,
            start=self.start[first : last + 1] - self.start[first],
            cell=self.cell[entries],
            impressions=self.impressions[entries],
            clicks=self.clicks[entries],
            multiplicity=self.multiplicity[first:last],
        )

    def blocks(self) -> Iterator[tuple[slice, "CountTable"]]:
        """The table in runs of units that a cache holds: which units these are, and their table, without a copy.

        Whatever adds up over units is computed block by block, so that its memory does not grow with the table.
        """
        first = 0
        while first < self.n_units:
            last = int(np.searchsorted(self.start, int(self.start[first]) + _BLOCK, side="right")) - 1
            last = min(max(last, first + 1), self.n_units)
            yield slice(first, last), self.read(first, last)
            first = last

    def sum_blocks(self, of_block: Callable[["CountTable"], tuple[Floats, ...]]) -> list[Floats]:
        """The sums over the blocks of some values by cell, shape (K,) each, of several blocks at once."""
        of_blocks = thread_map(lambda part: of_block(part[1]), self.blocks())
        return [sum(of_value, np.zeros(self.n_cells)) for of_value in zip(*of_blocks, strict=True)]

    def take(self, units: Integers) -> "CountTable":
        """The given units, in the given order; one that is given twice appears twice. The first ones are not copied."""
        if len(units) and units[-1] == len(units) - 1 and np.array_equal(units, np.arange(len(units))):
            return self.read(0, len(units))
        entries, start = self.entry_indices(units)
        return CountTable(
            n_cells=self.n_cells,
            start=start,
            cell=self.cell.take(entries),
            impressions=self.impressions.take(entries),
            clicks=self.clicks.take(entries),
            multiplicity=self.multiplicity.take(units),
        )

    def entry_indices(self, units: Integers) -> tuple[Integers, Integers]:
        """Indices of the given units' entries, unit after unit, and where each unit's begin in that list."""
        first = self.start.take(units)
        length = self.start.take(units + 1) - first
        start = starts(length)
        return np.arange(int(start[-1])) + np.repeat(first - start[:-1], length), start

    def only_cells(self, kept: Flags) -> "CountTable":
        """The table without the entries of other cells; every unit stays, possibly without entries.

        Args:
            kept: shape (K,). Cell numbers do not change.
        """
        return self if kept.all() else self.filter_entries(kept[self.cell])

    def filter_entries(self, kept: Flags) -> "CountTable":
        """The table without the other entries, shape (R,); every unit stays, possibly without entries."""
        counts = {"impressions": self.impressions[kept], "clicks": self.clicks[kept]}
        return replace(self, start=starts(kept)[self.start], cell=self.cell[kept], **counts)

    def merge_cells(self, number_of_cell: Integers, n_cells: int) -> "CountTable":
        """The table with cells of one number added up; units stay.

        Args:
            number_of_cell: shape (K,), in 0 .. n_cells - 1.
            n_cells: of the new table.
        """
        keys, number = np.unique(self.unit_of_entry * n_cells + number_of_cell[self.cell], return_inverse=True)
        return CountTable(
            n_cells=n_cells,
            start=np.searchsorted(keys, np.arange(self.n_units + 1) * n_cells),
            cell=keys % n_cells,
            impressions=sum_by_number(number, self.impressions, len(keys)),
            clicks=sum_by_number(number, self.clicks, len(keys)),
            multiplicity=self.multiplicity,
        )

    def subtract(self, other: "CountTable") -> "CountTable":
        """The table without counts that are part of it: of the same units and cells, no larger than its own.

        e.g. impressions [[3, 2]] less [[3, 1]] -> [[0, 1]], which is one entry
        """
        at = np.searchsorted(self.entry_keys, other.entry_keys)
        impressions, clicks = self.impressions.copy(), self.clicks.copy()
        impressions[at] -= other.impressions
        clicks[at] -= other.clicks
        rest = replace(self, impressions=impressions, clicks=np.clip(clicks, 0.0, impressions))
        return rest.filter_entries(impressions > _ROUNDING * self.impressions)  # sums of weights are rounded


def concatenate(tables: list[CountTable]) -> CountTable:
    """One table after the other, of the same cells. The list is emptied, so that no array need be held twice."""
    n_cells = tables[0].n_cells
    start = starts(np.concatenate([table.entries_of_unit for table in tables]))
    cells = [table.cell for table in tables]
    counts = [[getattr(table, name) for table in tables] for name in ("impressions", "clicks", "multiplicity")]
    tables.clear()
    at_a_time = 1 if start[-1] < _BLOCK else None
    return CountTable(n_cells, start, _concatenate(cells), *thread_map(_concatenate, counts, at_a_time))


def _concatenate(arrays: list[NDArray[_Count]]) -> NDArray[_Count]:
    joined = np.concatenate(arrays)
    arrays.clear()
    return joined


def sum_by_number(number: Integers, values: Floats, length: int) -> Floats:
    """Sum of the values that carry each number 0 .. length - 1, shape (length,)."""
    return np.bincount(number, values, length).astype(np.float64, copy=False)  # of no rows, NumPy gives whole numbers


def starts(lengths: Integers | Flags) -> Integers:
    """Row starts of rows of the given lengths, e.g. [2, 0, 3] -> [0, 2, 2, 5]."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def first_of_runs(values: NDArray[np.integer[Any]]) -> Integers:
    """Index of the first element of each run of equal ones, e.g. [7, 7, 5, 7] -> [0, 2, 3]."""
    is_first = np.ones(len(values), dtype=bool)
    is_first[1:] = values[1:] != values[:-1]
    return np.flatnonzero(is_first)


def _row_of_entry(start: Integers) -> Integers:
    """The row of each entry, e.g. of starts [0, 2, 2, 5] -> [0, 0, 2, 2, 2]: several times faster than to repeat it."""
    n_entries = int(start[-1])
    return np.cumsum(np.bincount(start[1:-1], minlength=n_entries + 1)[:n_entries])


def sum_rows(values: NDArray[_Whole], start: Integers) -> NDArray[_Whole]:
    """Sum of each row of whole numbers of 64 bits, 0 for a row without entries, several times faster than `reduceat`.

    Sums of rows are differences of running totals, which is exact modulo 2^64.
    """
    if not len(values):
        return np.zeros(len(start) - 1, values.dtype)
    up_to = np.cumsum(values, dtype=values.dtype).take(start - 1)  # at 0 this is the last one
    up_to[start == 0] = 0
    return cast("NDArray[_Whole]", up_to[1:] - up_to[:-1])  # NumPy's stub says signed integers


def reduce_rows(operation: np.ufunc, values: NDArray[_Number], start: Integers, empty: float) -> NDArray[_Number]:
    """Reduce each row; `reduceat` alone would return a neighbour's value for a row without entries."""
    filled = start[1:] > start[:-1]
    if filled.all() and len(filled):
        return operation.reduceat(values, start[:-1])
    reduced = np.full(len(start) - 1, empty, dtype=values.dtype)
    if filled.any():
        reduced[filled] = operation.reduceat(values, start[:-1][filled])
    return reduced


GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""An odd multiplier that mixes bits: 2^64 over the golden ratio."""

# Those of splitmix64 (Steele, Lea & Flood 2014).
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_HALF = np.uint64(32)
_LARGEST_OF_32_BITS = 2**32 - 1
_TOP_BIT = np.uint64(1 << 63)
_ONE = np.uint64(1)
_LAST_BITS = np.uint64((1 << 20) - 1)
"""Of a float of 53 bits; whole numbers below 4 billion have none of them."""


def compress(
    table: CountTable, cell_code: Hashes | None = None, beside: Sequence[Floats] = ()
) -> tuple[CountTable, Integers]:
    """Keep equal units once.

    Exact: a 64-bit hash proposes which units are equal, every entry is then compared with its proposed
    representative's, and units that differ are proposed again among themselves. Counts are compared as numbers, so
    fractional counts work. The signatures are sorted by `signature_keys`: their order depends on their content only.

    Args:
        table: counts per unit.
        cell_code: shape (K,), a number for each cell that does not depend on which other cells there are, where
            signatures are merged with those of tables with other cells; by default the cell's own number.
        beside: values of units, shape (J,) each, in which equal units are equal too.

    Returns:
        The signatures, with the multiplicities of their units added up, and the signature of each unit, shape (J,).
    """
    signatures, signature, _ = compress_with_keys(table, cell_code, beside)
    return signatures, signature


def compress_with_keys(
    table: CountTable, cell_code: Hashes | None = None, beside: Sequence[Floats] = ()
) -> tuple[CountTable, Integers, Hashes]:
    """`compress`, and the `signature_keys` of the signatures, mixed with what is beside them, ascending."""
    keys = signature_keys(table, cell_code)
    for values in beside:
        mixed = values.view(np.uint64) * _MIX_1
        _mix_bits(mixed, _MIX_2)
        keys = keys * GOLDEN + mixed
    representative = first_equal_index(keys)  # the first unit that equals each one
    doubtful = _unequal_units(table, representative, beside)
    while len(doubtful):
        among = first_equal_index(keys[doubtful])
        representative[doubtful] = doubtful[among]
        doubtful = doubtful[_unequal_units(table.take(doubtful), among, [values[doubtful] for values in beside])]
    chosen = np.flatnonzero(representative == np.arange(table.n_units))
    chosen = chosen[np.argsort(keys[chosen], kind="stable")]
    rank = np.empty(table.n_units, np.int64)
    rank[chosen] = np.arange(len(chosen))
    signature = rank.take(representative)
    kept = table.take(chosen)
    multiplicity = count_table.sum_by_number(signature, table.multiplicity, len(chosen))
    signatures = CountTable(kept.n_cells, kept.start, kept.cell, kept.impressions, kept.clicks, multiplicity)
    return signatures, signature, keys[chosen]


def signature_keys(table: CountTable, cell_code: Hashes | None = None) -> Hashes:
    """The number by which signatures are sorted, shape (J,): a hash of the entries, units that link cells first.

    Where weighted counts have last bits, which another processor rounds otherwise, these only decide the low bits: the
    order of the signatures, and so which of them stand for all in a sample, does not depend on them.
    """
    code = np.arange(table.n_cells, dtype=np.uint64) if cell_code is None else cell_code
    bits = table.impressions.view(np.uint64), table.clicks.view(np.uint64)
    hashes = _hash_entries(table, code, *bits)
    if any((of_counts & _LAST_BITS).any() for of_counts in bits):
        rounded = ((of_counts + (_LAST_BITS >> _ONE)) & ~_LAST_BITS for of_counts in bits)
        hashes = (_hash_entries(table, code, *rounded) & ~_LAST_BITS) | (hashes & _LAST_BITS)
    return (hashes & ~_TOP_BIT) | np.where(table.links, np.uint64(0), _TOP_BIT)


def _hash_entries(table: CountTable, code: Hashes, impressions: Hashes, clicks: Hashes) -> Hashes:
    """The sum of each unit's mixed (cell, n, c), shape (J,)."""
    mixed = (code * GOLDEN).take(table.cell)
    mixed ^= impressions * _MIX_1
    _mix_bits(mixed, _MIX_2)
    mixed += clicks * GOLDEN
    _mix_bits(mixed, _MIX_1)
    return count_table.sum_rows(mixed, table.start)


def _mix_bits(values: Hashes, multiplier: np.uint64) -> None:
    """Let high bits reach the low ones and back, in place: counts differ in the high bits of a float only."""
    values ^= values >> _HALF
    values *= multiplier
    values ^= values >> _HALF


def first_equal_index(hashes: Hashes) -> Integers:
    """Index of the first element with the same value, e.g. [7, 5, 7, 5] -> [0, 1, 0, 1], shape (N,).

    A table of at least N places takes one value in each. Those whose place another one has taken are looked at
    again by themselves, with another order of places.
    """
    first = _first_in_slot(hashes, GOLDEN)
    others, multiplier = np.flatnonzero(hashes.take(first) != hashes), int(GOLDEN)
    while len(others):
        multiplier = multiplier * int(_MIX_1) % 2**64
        among = hashes[others]
        of_others = _first_in_slot(among, np.uint64(multiplier))
        first[others] = others[of_others]
        others = others[among[of_others] != among]
    return first


def _first_in_slot(hashes: Hashes, multiplier: np.uint64) -> Integers:
    """Index of the first element that has the same place in a table."""
    place_bits = max(len(hashes).bit_length(), 1)
    place = (hashes * multiplier) >> np.uint64(64 - place_bits)
    table = np.empty(1 << place_bits, np.uint32 if len(hashes) <= _LARGEST_OF_32_BITS else np.int64)
    table[place[::-1]] = np.arange(len(hashes) - 1, -1, -1, dtype=table.dtype)  # the last that is written stays
    return table[place].astype(np.int64)


def _unequal_units(table: CountTable, representative: Integers, beside: Sequence[Floats]) -> Integers:
    """The units whose entries, or what is beside them, are not exactly their representative's."""
    length = table.entries_of_unit
    differs = length != length.take(representative)
    for values in beside:
        differs |= values != values.take(representative)
    apart = np.where(differs, 0, table.start.take(representative) - table.start[:-1])
    theirs = np.arange(table.n_entries) + np.repeat(apart, length)
    unequal = table.cell != table.cell.take(theirs)
    unequal |= table.impressions != table.impressions.take(theirs)
    unequal |= table.clicks != table.clicks.take(theirs)
    if unequal.any():
        differs |= count_table.reduce_rows(np.logical_or, unequal, table.start, empty=False)
    return np.flatnonzero(differs)


@dataclass(frozen=True)
class Sums:
    """Sums of which some parts add up to those of the whole: numbers and arrays add up, and flags are joined by or."""

    def __add__(self, other: Self) -> Self:
        """The sums of both parts."""
        return replace(self, **{name: value + getattr(other, name) for name, value in vars(self).items()})


@dataclass(frozen=True)
class Members:
    """The members of units, each in a cluster: of equal pairs or strata a table keeps one unit, and all are members."""

    unit: Numbers  # shape (N,), the unit (signature) of each member, in 0 .. J - 1
    cluster: Numbers  # shape (N,), what it shares its errors with, as a rule its query; any whole numbers

    def among(self, units: Integers) -> "Members":
        """The members of the given units, shape (U,), which are numbered 0 .. U - 1 in that order."""
        number = np.full(max(int(self.unit.max(initial=-1)), int(units.max(initial=-1))) + 1, -1)
        number[units] = np.arange(len(units))
        unit = number[self.unit]
        return Members(unit[unit >= 0], self.cluster[unit >= 0])

    def by_cluster(self) -> "Members":
        """The members sorted by cluster, with the clusters numbered from 0."""
        _, cluster = np.unique(self.cluster, return_inverse=True)
        order = np.argsort(cluster, kind="stable")
        return Members(self.unit[order], cluster[order])

    def occurrences(self, n_units: int) -> tuple[Integers, Any]:
        """The clusters, ascending, shape (G,), and how many members of each unit each of them holds, shape (G, J)."""
        clusters, row = np.unique(self.cluster, return_inverse=True)
        entries = np.ones(len(row)), (row, self.unit.astype(np.int64, copy=False))
        by_cluster = scipy.sparse.coo_array(entries, shape=(len(clusters), n_units)).tocsr()
        return clusters.astype(np.int64, copy=False), by_cluster
