"""The cells of statistics, and the number of each row's own."""

from math import prod

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import Integers
from posbias.core.counts.plan import StatisticsPlan

CELL = "posbias_cell"
"""The name of the column of numbers."""

_MOST_PLACES = 1 << 20
_LARGEST = 2**63 - 1
_PLACE = "posbias_place"


def numbered_cells(statistics: pl.DataFrame, plan: StatisticsPlan) -> tuple[pl.DataFrame, pl.Series]:
    """The cells that occur, sorted by context and position, and for each row the number of its cell, shape (R,)."""
    keys = statistics.select(plan.cell_columns)
    places = _places(keys)
    if places is None:
        cells = keys.unique().sort(*plan.cell_order)
        return cells, numbers_in(cells, statistics, plan)
    place, n_places = places
    row = np.full(n_places, -1)
    row[place] = np.arange(len(place))  # one of each cell
    found = np.flatnonzero(row >= 0)
    cells = keys[row[found]].with_columns(pl.Series(_PLACE, found)).sort(*plan.cell_order)
    number = np.empty(n_places, np.uint32)
    number[cells[_PLACE].to_numpy()] = np.arange(cells.height)
    return cells.drop(_PLACE), pl.Series(CELL, number[place])


def numbers_in(cells: pl.DataFrame, statistics: pl.DataFrame, plan: StatisticsPlan) -> pl.Series:
    """For each row of statistics the number of its cell among given ones, shape (R,)."""
    numbered = cells.with_row_index(CELL)
    keys = statistics.select(plan.cell_columns)
    return keys.join(numbered, on=plan.cell_columns, how="left", maintain_order="left", nulls_equal=True)[CELL]


def _places(keys: pl.DataFrame) -> tuple[Integers, int] | None:
    """A place for each row, equal for equal keys, and how many places there are; None where that takes too many."""
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
