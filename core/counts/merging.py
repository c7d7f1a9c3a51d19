"""Signatures of the parts of a log, merged into those of the whole, a range of keys at a time.

The signatures of each part are sorted by a key that depends on their content only, so that equal ones meet in the same
range. Parts may lie outside memory: what is held at a time is the result and one range of each part for each thread.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from posbias.core.arrays.compression import compress
from posbias.core.arrays.count_table import CountTable, Hashes, Integers, Numbers, concatenate
from posbias.core.arrays.threads import at_once, n_threads

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
        n_units = len(parts[0].keys)
        return _renumbered(parts[0].read(0, n_units), new_cell[0], len(cell_code)), [np.arange(n_units)]
    borders = _borders(parts)
    numbers: list[Numbers] = [np.empty(border[-1], np.int32) for border in borders]
    merged: list[CountTable] = []
    n_merged = 0

    def of_range(step: int) -> tuple[CountTable, Integers, list[tuple[int, int]]]:
        spans = [(int(border[step]), int(border[step + 1])) for border in borders]
        read = [
            _renumbered(part.read(*span), cells, len(cell_code))
            for part, span, cells in zip(parts, spans, new_cell, strict=True)
        ]
        return *compress(concatenate(read), cell_code), spans

    for signatures, number, spans in at_once(of_range, range(len(borders[0]) - 1)):
        ends = np.cumsum([last - first for first, last in spans])[:-1]
        for of_part, (first, last), found in zip(numbers, spans, np.split(number, ends), strict=True):
            of_part[first:last] = found + n_merged
        merged.append(signatures)
        n_merged += signatures.n_units
    return concatenate(merged), numbers


def _borders(parts: Sequence[PartOfStrata]) -> list[Integers]:
    """Where each range of keys begins in each part, and where the last one ends."""
    keys = [part.keys for part in parts]
    length = max(_UNITS_AT_ONCE // n_threads(), _FEWEST_UNITS, _UNITS_OF_A_PART * len(parts))
    n_ranges = 1 + sum(map(len, keys)) // length
    inner = np.array([(number << 64) // n_ranges for number in range(1, n_ranges)], np.uint64)
    return [np.array([0, *np.searchsorted(of_part, inner), len(of_part)]) for of_part in keys]


def _renumbered(table: CountTable, new_cell: Integers, n_cells: int) -> CountTable:
    return CountTable(n_cells, table.start, new_cell[table.cell], table.impressions, table.clicks, table.multiplicity)
