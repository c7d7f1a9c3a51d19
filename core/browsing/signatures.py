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
        rows = [
            tuple(uncertain_rows(group, certain)) if isinstance(group, tuple) else _Uncertain(group, certain)
            for group in self.rows
        ]
        return replace(self, rows=tuple(rows))

    def of_one_unit_each(self, values: Floats) -> Floats:
        """Values by unit as values by signature, shape (S + 1,), where they are equal within each."""
        unit = np.full(self.n_units + 1, len(values) - 1)
        unit[self.of_unit] = np.arange(len(values))  # the last one: S gets the unit that was never seen
        return values[unit]


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
    n_above = n_positions + 1 if PREVIOUS_CLICK in columns else 1  # last clicks above that are told apart
    n_cells = (n_positions + 1) * n_above
    no_number, no_sum = np.empty(0, np.int64), np.empty(0)
    of_unit, rows, n_aside = np.full(n_units + 1, -1), list[Iterable[PageBatch]](), 0
    empty = CountTable(n_cells, np.zeros(1, np.int64), no_number, no_sum, no_sum, no_sum)
    units, signature, table = no_number, no_number, empty  # of signatures that others may still equal

    def put_aside(keep: Keep) -> None:
        nonlocal n_aside, units, signature, table
        of_unit[units] = n_aside + signature
        rows.append(keep(_rows_of(table, n_aside, n_above, columns), len(rows)))
        n_aside += table.n_units
        units, signature, table = no_number, no_number, empty

    for batches in parts:
        more, counted = _table_of(count_rows(batches, columns), n_cells, n_above)
        numbers = np.concatenate([signature, table.n_units + np.arange(counted.n_units)])
        tables = [table, counted]
        del table, counted  # large: no array need be held twice
        table, found = compress(concatenate(tables))
        units, signature = np.concatenate([units, more]), found[numbers]
        if table.n_entries > _ENTRIES_AT_ONCE:
            put_aside(keep)
    put_aside(lambda last, _: tuple(small_batches(last)))
    return Signatures(tuple(rows), np.where(of_unit < 0, n_aside, of_unit), n_aside, n_positions)


def _table_of(counts: pl.DataFrame, n_cells: int, n_above: int) -> tuple[Integers, CountTable]:
    """The units of rows as from `count_rows`, and their counts."""
    unit, cell = counts[UNIT].to_numpy(), counts[POSITION].to_numpy() * n_above
    if PREVIOUS_CLICK in counts.columns:
        cell += counts[PREVIOUS_CLICK].to_numpy()
    first = np.flatnonzero(np.diff(unit, prepend=-1))
    impressions, clicks = counts[IMPRESSIONS].to_numpy(), counts[CLICKS].to_numpy()
    start = np.append(first, len(unit))
    return unit[first], CountTable(n_cells, start, cell, impressions, clicks, np.ones(len(first)))


def _rows_of(table: CountTable, first_unit: int, n_above: int, columns: Sequence[str]) -> pl.DataFrame:
    """Pages as of `pages_in_numberings`: of each entry one without a click and one with, where there are any."""
    position, above = np.divmod(table.cell, n_above)
    unit = first_unit + table.unit_of_entry
    place = {"position 0": np.repeat(position, 2)}
    if PREVIOUS_CLICK in columns:
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
