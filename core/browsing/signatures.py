"""Exact compression for EM: units with equal rows follow the same path, and are kept once, with their multiplicity.

Where a click depends on nothing but its unit, its position and, in some models, the last click above it, all that EM
knows of a unit is the multiset {(cell, n, c)} of its impressions and clicks: its *signature*. What all units share adds
up over units, so that a signature counts as often as it occurs; what each unit has of its own is found once for all of
them.

Source: as of `posbias.core.arrays.compression`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import polars as pl

from posbias.core.arrays.compression import compress
from posbias.core.arrays.count_table import CountTable, concatenate
from posbias.core.browsing.batch import Flags, Floats, Integers, PageBatch
from posbias.core.browsing.frames import UNIT, small_batches
from posbias.core.browsing.uncertain import Certain, uncertain_rows
from posbias.core.schema import CLICKS, IMPRESSIONS, POSITION, PREVIOUS_CLICK, WEIGHT

_ENTRIES_AT_ONCE = 1 << 20
"""Of signatures that are compared with each other, about: they are in memory meanwhile, some 100 bytes each."""

Keep = Callable[[pl.DataFrame, int], Iterable[PageBatch]]
"""Puts rows aside, under a number, where memory is short, and gives them back for each pass."""


@dataclass(frozen=True)
class Signatures:
    """Pages of one impression each, whose units are signatures."""

    rows: Sequence[Iterable[PageBatch]]  # batches of them, in groups; `weight` is that of one unit of the signature
    of_unit: Integers  # shape (J + 1,), the signature of each unit, from 0; S of units without any row, as the last one
    n_units: int  # S, the number of signatures
    n_positions: int  # K, the largest position

    def __iter__(self) -> Iterator[PageBatch]:
        """The batches, always in the same order."""
        return (batch for group in self.rows for batch in group)

    @cached_property
    def multiplicity(self) -> Floats:
        """How many units have each signature, shape (S + 1,)."""
        return np.bincount(self.of_unit, minlength=self.n_units + 1).astype(np.float64)

    def without(self, left_out: Flags) -> "Signatures":
        """The signatures of a log without the pages of some units, shape (J + 1,), which are left without any row.

        Those of one signature still have one in common, 2 S in all, so that EM may begin from values that they had.
        """
        of_unit = np.where(left_out | (self.of_unit == self.n_units), self.n_units, 0) + self.of_unit
        return replace(self, of_unit=of_unit, n_units=2 * self.n_units)

    def uncertain(self, certain: Certain) -> "Signatures":
        """The same without the rows that say the same whatever the parameters."""
        return replace(self, rows=tuple(_without_certain(group, certain) for group in self.rows))

    def of_one_unit_each(self, values: Floats) -> Floats:
        """Values by unit as values by signature, shape (S + 1,), where they are equal within each."""
        unit = np.full(self.n_units + 1, len(values) - 1)
        unit[self.of_unit] = np.arange(len(values))  # the last one: S gets the unit that was never seen
        return values[unit]


def _without_certain(rows: Iterable[PageBatch], certain: Certain) -> Iterable[PageBatch]:
    return tuple(uncertain_rows(rows, certain)) if isinstance(rows, tuple) else _Uncertain(rows, certain)


@dataclass(frozen=True)
class _Uncertain:
    """Rows that were put aside, without some."""

    rows: Iterable[PageBatch]
    certain: Certain

    def __iter__(self) -> Iterator[PageBatch]:
        return uncertain_rows(self.rows, self.certain)


def find_signatures(
    parts: Iterable[Iterable[PageBatch]], columns: Sequence[str], n_units: int, n_positions: int, keep: Keep
) -> Signatures:
    """The signatures of the units of a log, those of equal rows once, as far as they are in memory at the same time.

    Args:
        parts: pages, part by part; all pages of a unit are in one of them.
        columns: what a click depends on beside its unit: `position`, and `previous_click` where it matters.
        n_units: J.
        n_positions: K.
        keep: puts signatures aside that are too many to be held.
    """
    found = _Found(columns, n_units, n_positions)
    for batches in parts:
        found.add(count_rows(batches, columns))
        if found.n_entries > _ENTRIES_AT_ONCE:
            found.put_aside(keep)
    found.put_aside(lambda rows, _: tuple(small_batches(rows)))
    return found.signatures


class _Found:
    """What was found in some parts: groups of signatures that were put aside, and one that others may still equal."""

    def __init__(self, columns: Sequence[str], n_units: int, n_positions: int) -> None:
        self._columns, self._n_positions = columns, n_positions
        self._of_unit = np.full(n_units + 1, -1)
        self._rows: list[Iterable[PageBatch]] = []
        self._put_aside = 0
        self._begin()

    def _begin(self) -> None:
        no_number, no_sum = np.empty(0, np.int64), np.empty(0)
        self._units = self._signature = no_number
        self._table = CountTable(self._n_cells, np.zeros(1, np.int64), no_number, no_sum, no_sum, no_sum)

    @property
    def n_entries(self) -> int:
        """Of the signatures that others may still equal."""
        return self._table.n_entries

    def add(self, counts: pl.DataFrame) -> None:
        """Add the rows of a part, as from `count_rows`."""
        units, table = self._table_of(counts)
        numbers = np.concatenate([self._signature, self._table.n_units + np.arange(table.n_units)])
        tables = [self._table, table]
        del table, self._table  # large: no array need be held twice
        self._table, signature = compress(concatenate(tables))
        self._units, self._signature = np.concatenate([self._units, units]), signature[numbers]

    def put_aside(self, keep: Keep) -> None:
        """Let no others be compared with these."""
        self._of_unit[self._units] = self._put_aside + self._signature
        self._rows.append(keep(self._rows_of(self._table), len(self._rows)))
        self._put_aside += self._table.n_units
        self._begin()

    @property
    def signatures(self) -> Signatures:
        """All that were put aside."""
        of_unit = np.where(self._of_unit < 0, self._put_aside, self._of_unit)
        return Signatures(tuple(self._rows), of_unit, self._put_aside, self._n_positions)

    @property
    def _n_above(self) -> int:
        """How many last clicks above are told apart."""
        return self._n_positions + 1 if PREVIOUS_CLICK in self._columns else 1

    @property
    def _n_cells(self) -> int:
        return (self._n_positions + 1) * self._n_above

    def _table_of(self, counts: pl.DataFrame) -> tuple[Integers, CountTable]:
        """The units, and their counts."""
        unit, cell = counts[UNIT].to_numpy(), counts[POSITION].to_numpy() * self._n_above
        if PREVIOUS_CLICK in self._columns:
            cell += counts[PREVIOUS_CLICK].to_numpy()
        first = np.flatnonzero(np.diff(unit, prepend=-1))
        impressions, clicks = counts[IMPRESSIONS].to_numpy(), counts[CLICKS].to_numpy()
        start = np.append(first, len(unit))
        return unit[first], CountTable(self._n_cells, start, cell, impressions, clicks, np.ones(len(first)))

    def _rows_of(self, table: CountTable) -> pl.DataFrame:
        """Pages as of `pages_in_numberings`: of each entry one without a click and one with, where there are any."""
        position, above = np.divmod(table.cell, self._n_above)
        unit = self._put_aside + table.unit_of_entry
        place = {"position 0": np.repeat(position, 2)}
        if PREVIOUS_CLICK in self._columns:
            place[PREVIOUS_CLICK] = np.repeat(above, 2)
        shown = 2 * np.repeat(unit, 2) + np.tile([0, 1], len(unit))
        weight = np.column_stack([table.impressions - table.clicks, table.clicks]).ravel()
        return pl.DataFrame({"shown 0": shown, **place, WEIGHT: weight}).filter(pl.col(WEIGHT) > 0)


def count_rows(batches: Iterable[PageBatch], columns: Sequence[str]) -> pl.DataFrame:
    """What is shown where, with `impressions` and `clicks`, or sums of their weights, sorted by UNIT and the columns.

    Args:
        batches: pages.
        columns: `position`, and `previous_click` where rows are told apart by it.
    """
    keys = (UNIT, *columns)
    frames: list[pl.DataFrame] = []
    for batch in batches:
        shown, weight = batch.shown, batch.row_weight
        of_rows = {
            UNIT: batch.unit[shown],
            POSITION: batch.position[shown],
            **({PREVIOUS_CLICK: batch.previous_click[shown]} if PREVIOUS_CLICK in columns else {}),
            IMPRESSIONS: weight[shown],
            CLICKS: (weight * batch.click)[shown],
        }
        frames.append(pl.DataFrame(of_rows).group_by(keys, maintain_order=True).sum())
    return pl.concat(frames).group_by(keys, maintain_order=True).sum().sort(keys)
