"""Count tables, the input of every estimator: impressions n_je and clicks c_je per unit j and cell e, in sparse rows.

Units (pairs or strata) with the same set {(e, n, c)} are stored once, as a *signature*, with their number as
multiplicity: every algorithm on a count table treats them alike.
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
"""Integers of the smallest type that holds them."""
Flags = NDArray[np.bool_]
Hashes = NDArray[np.uint64]
_Count = TypeVar("_Count", np.float64, np.int64)
_Whole = TypeVar("_Whole", np.int64, np.uint64)
_Number = TypeVar("_Number", np.float64, np.uint64, np.bool_)

_ROUNDING = 1e-9  # a remainder below this share of the original count is rounding
_BLOCK = 1 << 18  # entries of a block: 2 MB of floats, which stay in the cache
_KEPT = 2 * _BLOCK  # tables of at most so many entries cache the unit of each entry


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
    multiplicity: Floats  # shape (J,), number of equal units that a unit represents (1 before compression)

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
        """Whether a unit has a click and at least two cells, shape (J,): only then it has information about theta."""
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
        """Key of each entry's unit and cell, j K + e, ascending, shape (R,)."""
        return self.unit_of_entry * self.n_cells + self.cell

    def spread(self, per_unit: Floats) -> Floats:
        """Repeat each unit's value for each of its entries: shape (J,) to (R,)."""
        return per_unit.take(self.unit_of_entry)

    def sum_by_unit(self, per_entry: Floats) -> Floats:
        """Sum over each unit's entries, 0 for a unit without entries: shape (R,) to (J,)."""
        return reduce_rows(np.add, per_entry, self.start, empty=0.0)

    def max_by_unit(self, per_entry: Floats) -> Floats:
        """Maximise over each unit's entries, minus infinity for a unit without entries: shape (R,) to (J,)."""
        return reduce_rows(np.maximum, per_entry, self.start, empty=-np.inf)

    def sum_by_cell(self, per_entry: Floats) -> Floats:
        """Sum over each cell's entries, without multiplicity: shape (R,) to (K,)."""
        return sum_by_number(self.cell, per_entry, self.n_cells)

    def read(self, first: int, last: int) -> "CountTable":
        """Return the units first .. last - 1, without a copy."""
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
        """Yield consecutive blocks of units that fit into the cache: the slice of units, and their table, not copied.

        Sums over units are computed block by block, so that memory does not grow with the table.
        """
        first = 0
        while first < self.n_units:
            last = int(np.searchsorted(self.start, int(self.start[first]) + _BLOCK, side="right")) - 1
            last = min(max(last, first + 1), self.n_units)
            yield slice(first, last), self.read(first, last)
            first = last

    def sum_blocks(self, work: Callable[["CountTable"], tuple[Floats, ...]]) -> list[Floats]:
        """Sum the results of a function, arrays of shape (K,), over all blocks, several blocks in parallel."""
        results = thread_map(lambda part: work(part[1]), self.blocks())
        return [sum(values, np.zeros(self.n_cells)) for values in zip(*results, strict=True)]

    def take(self, units: Integers) -> "CountTable":
        """Select units by number, in the given order, possibly repeated; units 0 .. n - 1 are not copied."""
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
        """Return the indices of the entries of these units, unit after unit, and the start of each unit among them."""
        first = self.start.take(units)
        length = self.start.take(units + 1) - first
        start = starts(length)
        return np.arange(int(start[-1])) + np.repeat(first - start[:-1], length), start

    def only_cells(self, kept: Flags) -> "CountTable":
        """Drop the entries of other cells; every unit stays, possibly without entries.

        Args:
            kept: shape (K,). Cell numbers do not change.
        """
        return self if kept.all() else self.filter_entries(kept[self.cell])

    def filter_entries(self, kept: Flags) -> "CountTable":
        """Drop entries that are not `kept`, shape (R,); every unit stays, possibly without entries."""
        counts = {"impressions": self.impressions[kept], "clicks": self.clicks[kept]}
        return replace(self, start=starts(kept)[self.start], cell=self.cell[kept], **counts)

    def merge_cells(self, number_of_cell: Integers, n_cells: int) -> "CountTable":
        """Sum the cells that have the same new number; units stay.

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
        """Subtract counts that are part of this table: of the same units and cells, and not larger.

        e.g. impressions [[3, 2]] less [[3, 1]] -> [[0, 1]], which is one entry
        """
        at = np.searchsorted(self.entry_keys, other.entry_keys)
        impressions, clicks = self.impressions.copy(), self.clicks.copy()
        impressions[at] -= other.impressions
        clicks[at] -= other.clicks
        remainder = replace(self, impressions=impressions, clicks=np.clip(clicks, 0.0, impressions))
        return remainder.filter_entries(impressions > _ROUNDING * self.impressions)  # sums of weights are rounded


def concatenate(tables: list[CountTable]) -> CountTable:
    """Concatenate tables of the same cells. The list is emptied, so that memory need not hold any array twice."""
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
    """Sum the values that have each number 0 .. length - 1, shape (length,)."""
    return np.bincount(number, values, length).astype(np.float64, copy=False)  # of no rows, NumPy gives whole numbers


def starts(lengths: Integers | Flags) -> Integers:
    """Return the starts of rows of these lengths, e.g. [2, 0, 3] -> [0, 2, 2, 5]."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def first_of_runs(values: NDArray[np.integer[Any]]) -> Integers:
    """Return the index of the first element of each run of equal values, e.g. [7, 7, 5, 7] -> [0, 2, 3]."""
    is_first = np.ones(len(values), dtype=bool)
    is_first[1:] = values[1:] != values[:-1]
    return np.flatnonzero(is_first)


def _row_of_entry(start: Integers) -> Integers:
    """Return the row of each entry, e.g. starts [0, 2, 2, 5] -> [0, 0, 2, 2, 2]; much faster than `np.repeat`."""
    n_entries = int(start[-1])
    return np.cumsum(np.bincount(start[1:-1], minlength=n_entries + 1)[:n_entries])


def sum_rows(values: NDArray[_Whole], start: Integers) -> NDArray[_Whole]:
    """Sum each row of 64-bit integers, 0 for a row without entries; several times faster than `reduceat`.

    Sums are differences of running totals, which is exact modulo 2^64.
    """
    if not len(values):
        return np.zeros(len(start) - 1, values.dtype)
    up_to = np.cumsum(values, dtype=values.dtype).take(start - 1)  # start 0 takes the last total: corrected below
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
"""Odd multiplier that mixes bits: 2^64 divided by the golden ratio."""

# Multipliers of splitmix64 (Steele, Lea & Flood 2014)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_HALF = np.uint64(32)
_LARGEST_OF_32_BITS = 2**32 - 1
_TOP_BIT = np.uint64(1 << 63)
_ONE = np.uint64(1)
_LAST_BITS = np.uint64((1 << 20) - 1)
"""Low bits of a double; they are 0 for integers below 4 billion."""


def compress(
    table: CountTable, cell_code: Hashes | None = None, beside: Sequence[Floats] = ()
) -> tuple[CountTable, Integers]:
    """Merge units with equal counts into signatures.

    The result is exact: units with equal 64-bit hashes are compared entry by entry with the first of them, and those
    that differ are compared again among themselves. Counts may be fractional. Signatures are sorted by
    `signature_keys`, so that their order depends on their content only.

    Args:
        table: counts per unit.
        cell_code: shape (K,), a code of each cell that does not depend on the other cells of the table, needed if
            signatures are merged with those of other tables; by default the cell number.
        beside: further values of units, shape (J,) each; only units that are equal in these, too, are merged.

    Returns:
        The signatures, with summed multiplicities, and the signature number of each unit, shape (J,).
    """
    signatures, signature, _ = compress_with_keys(table, cell_code, beside)
    return signatures, signature


def compress_with_keys(
    table: CountTable, cell_code: Hashes | None = None, beside: Sequence[Floats] = ()
) -> tuple[CountTable, Integers, Hashes]:
    """Do the same as `compress`; return also the keys of the signatures, mixed with `beside`, ascending."""
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
    """Return the sort key of each signature, shape (J,): a hash of its entries, smaller for units that link cells.

    The last bits of weighted counts, which depend on the processor, affect only the low bits of the hash. The order of
    signatures, and with it the choice of samples, therefore does not depend on the processor.
    """
    code = np.arange(table.n_cells, dtype=np.uint64) if cell_code is None else cell_code
    bits = table.impressions.view(np.uint64), table.clicks.view(np.uint64)
    hashes = _hash_entries(table, code, *bits)
    if any((counts & _LAST_BITS).any() for counts in bits):
        rounded = ((counts + (_LAST_BITS >> _ONE)) & ~_LAST_BITS for counts in bits)
        hashes = (_hash_entries(table, code, *rounded) & ~_LAST_BITS) | (hashes & _LAST_BITS)
    return (hashes & ~_TOP_BIT) | np.where(table.links, np.uint64(0), _TOP_BIT)


def _hash_entries(table: CountTable, code: Hashes, impressions: Hashes, clicks: Hashes) -> Hashes:
    """Sum the hashes of (cell, n, c) over each unit's entries, modulo 2^64, shape (J,)."""
    mixed = (code * GOLDEN).take(table.cell)
    mixed ^= impressions * _MIX_1
    _mix_bits(mixed, _MIX_2)
    mixed += clicks * GOLDEN
    _mix_bits(mixed, _MIX_1)
    return count_table.sum_rows(mixed, table.start)


def _mix_bits(values: Hashes, multiplier: np.uint64) -> None:
    """Mix high bits into low bits and back, in place: the doubles of counts differ in their high bits only."""
    values ^= values >> _HALF
    values *= multiplier
    values ^= values >> _HALF


def first_equal_index(hashes: Hashes) -> Integers:
    """Return the index of the first element equal to each element, e.g. [7, 5, 7, 5] -> [0, 1, 0, 1], shape (N,).

    By a hash table of at least N slots, with one value each; values that collide are hashed again by themselves with
    another multiplier.
    """
    first = _first_in_slot(hashes, GOLDEN)
    others, multiplier = np.flatnonzero(hashes.take(first) != hashes), int(GOLDEN)
    while len(others):
        multiplier = multiplier * int(_MIX_1) % 2**64
        among = hashes[others]
        first_among = _first_in_slot(among, np.uint64(multiplier))
        first[others] = others[first_among]
        others = others[among[first_among] != among]
    return first


def _first_in_slot(hashes: Hashes, multiplier: np.uint64) -> Integers:
    """Return the index of the first element in the same slot of a hash table, for each element, shape (N,)."""
    slot_bits = max(len(hashes).bit_length(), 1)
    slot = (hashes * multiplier) >> np.uint64(64 - slot_bits)
    table = np.empty(1 << slot_bits, np.uint32 if len(hashes) <= _LARGEST_OF_32_BITS else np.int64)
    table[slot[::-1]] = np.arange(len(hashes) - 1, -1, -1, dtype=table.dtype)  # the last write to a slot wins
    return table[slot].astype(np.int64)


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
    """Base of dataclasses whose fields, computed for parts of a log, add up to those of the log; flags are or-ed."""

    def __add__(self, other: Self) -> Self:
        """Add all fields."""
        return replace(self, **{name: value + getattr(other, name) for name, value in vars(self).items()})


@dataclass(frozen=True)
class Members:
    """The N pairs or strata that the units (signatures) of a table represent, each in a cluster."""

    unit: Numbers  # shape (N,), unit of each member, in 0 .. J - 1
    cluster: Numbers  # shape (N,), cluster of correlated errors, usually the query; any integers

    def among(self, units: Integers) -> "Members":
        """Select the members of these units, shape (U,), and renumber the units 0 .. U - 1 in the given order."""
        number = np.full(max(int(self.unit.max(initial=-1)), int(units.max(initial=-1))) + 1, -1)
        number[units] = np.arange(len(units))
        unit = number[self.unit]
        return Members(unit[unit >= 0], self.cluster[unit >= 0])

    def by_cluster(self) -> "Members":
        """Sort the members by cluster, and number the clusters from 0."""
        _, cluster = np.unique(self.cluster, return_inverse=True)
        order = np.argsort(cluster, kind="stable")
        return Members(self.unit[order], cluster[order])

    def occurrences(self, n_units: int) -> tuple[Integers, Any]:
        """Return the clusters, ascending, shape (G,), and the number of members of each unit in each, shape (G, J)."""
        clusters, row = np.unique(self.cluster, return_inverse=True)
        entries = np.ones(len(row)), (row, self.unit.astype(np.int64, copy=False))
        by_cluster = scipy.sparse.coo_array(entries, shape=(len(clusters), n_units)).tocsr()
        return clusters.astype(np.int64, copy=False), by_cluster
