"""Compressed parts on disk, until they are merged."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from io import BufferedReader, BufferedWriter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posbias.core.arrays.count_table import CountTable, Hashes, Numbers
from posbias.core.counts.sufficient_statistics import PartOfStrata, PartStatistics
from posbias.io.temporary.files import temporary_files, whole_file

_COUNTS = tuple(entry.name for entry in fields(CountTable) if entry.name != "n_cells")
_MEMBERS = ("keys", "member_signature", "member_query")


@dataclass(frozen=True)
class StoredStrata:
    """A `PartOfStrata` on disk: its arrays, one after the other, in one file."""

    path: Path
    arrays: Mapping[str, tuple[int, str, int]]  # offset of the first byte, NumPy's name of the type, and length
    n_cells: int  # K of the part

    @property
    def keys(self) -> Hashes:
        """The keys, ascending, shape (J,)."""
        return self._whole("keys")

    @property
    def member_signature(self) -> Numbers:
        """The signature of each unit with a click and at least two cells, shape (N,)."""
        return self._whole("member_signature")

    @property
    def member_query(self) -> Numbers:
        """The query of that unit, ascending, shape (N,)."""
        return self._whole("member_query")

    def read(self, first: int, last: int) -> CountTable:
        """The signatures first .. last - 1."""
        with self.path.open("rb") as file:
            start = self._read(file, "start", first, last + 1)
            entries = int(start[0]), int(start[-1])
            return CountTable(
                n_cells=self.n_cells,
                start=start - start[0],
                cell=self._read(file, "cell", *entries),
                impressions=self._read(file, "impressions", *entries),
                clicks=self._read(file, "clicks", *entries),
                multiplicity=self._read(file, "multiplicity", first, last),
            )

    def _whole(self, name: str) -> NDArray[Any]:
        with self.path.open("rb") as file:
            return self._read(file, name, 0, self.arrays[name][2])

    def _read(self, file: BufferedReader, name: str, first: int, last: int) -> NDArray[Any]:
        """The elements first .. last - 1 of an array."""
        offset, dtype, _ = self.arrays[name]
        array: NDArray[Any] = np.empty(last - first, dtype)
        file.seek(offset + first * array.itemsize)
        file.readinto(array.data)
        return array


def store_part(part: PartStatistics, number: int, folder: Path) -> PartStatistics:
    """Write the arrays of a part, the one of that number, to files in a directory of ours.

    Raises:
        OutputError: the disk is full.
    """
    by_unit: dict[tuple[str, ...], PartOfStrata] = {}
    for kind, (unit, strata) in enumerate(part.by_unit.items()):
        path = folder / f"signatures-{number:05d}-{kind}"
        table = strata.read(0, len(strata.keys))
        of_counts = {field: getattr(table, field) for field in _COUNTS}
        of_members = {field: getattr(strata, field) for field in _MEMBERS}
        with temporary_files(folder), whole_file(path) as unfinished, unfinished.open("wb") as file:
            arrays = {field: _store(array, file) for field, array in (of_counts | of_members).items()}
        by_unit[unit] = StoredStrata(path, arrays, table.n_cells)
    return replace(part, by_unit=by_unit)


def _store(array: NDArray[Any], file: BufferedWriter) -> tuple[int, str, int]:
    offset = file.tell()
    array.tofile(file)
    return offset, array.dtype.str, len(array)
