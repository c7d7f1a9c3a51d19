"""Exact compression of the statistics: equal pairs are kept once, with a multiplicity.

Pairs with the same multiset {(e, n, c)}, the *signature*, follow the same path in every algorithm that reads a
count table, so that one copy and the number of copies say everything.
"""

from dataclasses import dataclass

import numpy as np

from posbias.core.arrays import count_table
from posbias.core.arrays.count_table import CountTable, Hashes, Integers, Numbers
from posbias.core.arrays.linalg import Sparse, occurrences

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


def compress(table: CountTable, cell_code: Hashes | None = None) -> tuple[CountTable, Integers]:
    """Keep equal units once.

    Exact: a 64-bit hash proposes which units are equal, every entry is then compared with its proposed
    representative's, and units that differ are proposed again among themselves. Counts are compared as numbers, so
    fractional counts work. The signatures are sorted by `signature_keys`: their order depends on their content only.

    Args:
        table: counts per unit.
        cell_code: shape (K,), a number for each cell that does not depend on which other cells there are, where
            signatures are merged with those of tables with other cells; by default the cell's own number.

    Returns:
        The signatures, with the multiplicities of their units added up, and the signature of each unit, shape (J,).
    """
    signatures, signature, _ = compress_with_keys(table, cell_code)
    return signatures, signature


def compress_with_keys(table: CountTable, cell_code: Hashes | None = None) -> tuple[CountTable, Integers, Hashes]:
    """`compress`, and the `signature_keys` of the signatures, ascending."""
    keys = signature_keys(table, cell_code)
    representative = _representatives(table, keys)
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
    """The number by which signatures are sorted, shape (J,): a hash of the entries, units that link cells first."""
    return (_unit_hashes(table, cell_code) & ~_TOP_BIT) | np.where(table.links, np.uint64(0), _TOP_BIT)


def _unit_hashes(table: CountTable, cell_code: Hashes | None) -> Hashes:
    """Hash of each unit's entries, shape (J,).

    Where weighted counts have last bits, which another processor rounds otherwise, these only decide the low bits: the
    order of the signatures, and so which of them stand for all in a sample, does not depend on them.
    """
    code = np.arange(table.n_cells, dtype=np.uint64) if cell_code is None else cell_code
    bits = table.impressions.view(np.uint64), table.clicks.view(np.uint64)
    hashes = _hash_entries(table, code, *bits)
    if any((of_counts & _LAST_BITS).any() for of_counts in bits):
        rounded = ((of_counts + (_LAST_BITS >> _ONE)) & ~_LAST_BITS for of_counts in bits)
        hashes = (_hash_entries(table, code, *rounded) & ~_LAST_BITS) | (hashes & _LAST_BITS)
    return hashes


def _hash_entries(table: CountTable, code: Hashes, impressions: Hashes, clicks: Hashes) -> Hashes:
    """The sum of each unit's mixed (cell, n, c), shape (J,)."""
    mixed = (code * GOLDEN).take(table.cell)
    mixed ^= impressions * _MIX_1
    _fold(mixed, _MIX_2)
    mixed += clicks * GOLDEN
    _fold(mixed, _MIX_1)
    return count_table.sum_rows(mixed, table.start)


def _fold(values: Hashes, multiplier: np.uint64) -> None:
    """Let high bits reach the low ones and back, in place: counts differ in the high bits of a float only."""
    values ^= values >> _HALF
    values *= multiplier
    values ^= values >> _HALF


def _representatives(table: CountTable, hashes: Hashes) -> Integers:
    """The first unit that equals each unit, shape (J,)."""
    representative = first_with_same(hashes)
    doubtful = _differing(table, representative)
    while len(doubtful):
        among = first_with_same(hashes[doubtful])
        representative[doubtful] = doubtful[among]
        doubtful = doubtful[_differing(table.take(doubtful), among)]
    return representative


def first_with_same(hashes: Hashes) -> Integers:
    """Index of the first element with the same value, e.g. [7, 5, 7, 5] -> [0, 1, 0, 1], shape (N,).

    A table of at least N places takes one value in each. Those whose place another one has taken are looked at
    again by themselves, with another order of places.
    """
    first = _first_in_place(hashes, GOLDEN)
    others, multiplier = np.flatnonzero(hashes.take(first) != hashes), int(GOLDEN)
    while len(others):
        multiplier = multiplier * int(_MIX_1) % 2**64
        among = hashes[others]
        of_others = _first_in_place(among, np.uint64(multiplier))
        first[others] = others[of_others]
        others = others[among[of_others] != among]
    return first


def _first_in_place(hashes: Hashes, multiplier: np.uint64) -> Integers:
    """Index of the first element that has the same place in a table."""
    place_bits = max(len(hashes).bit_length(), 1)
    place = (hashes * multiplier) >> np.uint64(64 - place_bits)
    table = np.empty(1 << place_bits, np.uint32 if len(hashes) <= _LARGEST_OF_32_BITS else np.int64)
    table[place[::-1]] = np.arange(len(hashes) - 1, -1, -1, dtype=table.dtype)  # the last that is written stays
    return table[place].astype(np.int64)


def _differing(table: CountTable, representative: Integers) -> Integers:
    """The units whose entries are not exactly their representative's."""
    length = table.entries_of_unit
    differs = length != length.take(representative)
    apart = np.where(differs, 0, table.start.take(representative) - table.start[:-1])
    theirs = np.arange(table.n_entries) + np.repeat(apart, length)
    unequal = table.cell != table.cell.take(theirs)
    unequal |= table.impressions != table.impressions.take(theirs)
    unequal |= table.clicks != table.clicks.take(theirs)
    if unequal.any():
        differs |= count_table.reduce_rows(np.logical_or, unequal, table.start, empty=False)
    return np.flatnonzero(differs)


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

    def occurrences(self, n_units: int) -> tuple[Integers, Sparse]:
        """The clusters, ascending, shape (G,), and how many members of each unit each of them holds, shape (G, J)."""
        clusters, row = np.unique(self.cluster, return_inverse=True)
        unit = self.unit.astype(np.int64, copy=False)
        return clusters.astype(np.int64, copy=False), occurrences(row, unit, (len(clusters), n_units))
