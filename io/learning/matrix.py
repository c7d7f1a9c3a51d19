"""Rows of features that need not be in memory: a file of floats, row by row, of which any rows can be read."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from posbias.core.arrays.count_table import Floats, Integers
from posbias.core.learners.boosting import Rows
from posbias.io.temporary.files import temporary_files

_BYTES = 8


@dataclass(frozen=True)
class RowsOnDisk:
    """A matrix of floats in a file.

    Attributes:
        path: the file: rows one after the other, each of F floats of 8 bytes.
        n_rows: number of rows.
        n_columns: number of columns F.
    """

    path: Path
    n_rows: int
    n_columns: int

    def __len__(self) -> int:
        """Number of rows."""
        return self.n_rows

    def __getitem__(self, wanted: slice | Integers) -> Floats:
        """Some rows, shape (n, F)."""
        if isinstance(wanted, slice):
            start, stop, _ = wanted.indices(self.n_rows)
            return self._read(start, max(stop - start, 0))
        return np.concatenate([self._read(int(row), 1) for row in wanted]) if len(wanted) else self._read(0, 0)

    def _read(self, first: int, number: int) -> Floats:
        values = np.fromfile(self.path, np.float64, number * self.n_columns, offset=first * self.n_columns * _BYTES)
        return values.reshape(number, self.n_columns)


class MatrixWriter:
    """Takes rows, a chunk at a time, into memory or into a file."""

    def __init__(self, path: Path | None, n_columns: int) -> None:
        """Begin without a row.

        Args:
            path: the file, in a temporary directory of ours; None keeps rows in memory.
            n_columns: number of columns.
        """
        self._path, self._n_columns, self._n_rows = path, n_columns, 0
        self._chunks: list[Floats] = []

    def write(self, rows: Floats) -> None:
        """Add rows of shape (n, F).

        Raises:
            OutputError: the disk is full.
        """
        self._n_rows += len(rows)
        if self._path is None:
            self._chunks.append(rows)
            return
        with temporary_files(self._path.parent), self._path.open("ab") as file:
            rows.tofile(file)

    def rows(self) -> Rows:
        """All of them."""
        if self._path is not None:
            return RowsOnDisk(self._path, self._n_rows, self._n_columns)
        return np.concatenate(self._chunks) if self._chunks else np.zeros((0, self._n_columns))
