"""Exact compression of the statistics: equal pairs are kept once, with a multiplicity."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class CountTable:
    """Counts per (unit, cell), in compressed sparse rows: a unit is a pair, a stratum or a signature.

    Unit j owns the entries `start[j]:start[j + 1]`, sorted by cell, each cell at most once.

    Attributes:
        n_cells: number of cells K; `cell` lies in 0 .. K - 1.
        start: shape (J + 1,).
        cell: shape (R,).
        impressions: shape (R,), n > 0, in impressions (fractional when weighted).
        clicks: shape (R,), 0 <= c <= n.
        multiplicity: shape (J,), how many equal pairs a unit stands for (1 before compression).
    """

    n_cells: int
    start: Integers
    cell: Integers
    impressions: Floats
    clicks: Floats
    multiplicity: Floats

    @property
    def n_units(self) -> int:
        """Number of units J."""
        return len(self.start) - 1
