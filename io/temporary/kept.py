"""A frame between two steps: in memory, or, where the log is too large for that, in a temporary file of ours."""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import polars as pl

from posbias.io.temporary.files import temporary_files, whole_file

_ARROW = ".arrow"


@dataclass(frozen=True)
class KeptFrame:
    """A frame that is kept. It may travel to another process, which sees the file."""

    place: pl.DataFrame | Path  # the frame itself, or the file of Parquet or Arrow IPC that holds it

    @property
    def in_memory(self) -> bool:
        """Whether it is in the memory of this process."""
        return isinstance(self.place, pl.DataFrame)

    @property
    def _is_mapped(self) -> bool:
        """Whether it is in a file that is read as it is used."""
        return isinstance(self.place, Path) and self.place.suffix == _ARROW

    def scan(self) -> pl.LazyFrame:
        """Its rows, in their order, for what needs only some of them."""
        if isinstance(self.place, pl.DataFrame):
            return self.place.lazy()
        scan = pl.scan_ipc if self._is_mapped else pl.scan_parquet
        return scan(self.place, glob=False)

    def load(self) -> pl.DataFrame:
        """All of it. Of a file that was kept quickly, what is used is read when it is."""
        if isinstance(self.place, pl.DataFrame):
            return self.place
        return _mapped(self.place) if self._is_mapped else self.scan().collect()

    def slice(self, first: int, number: int) -> pl.DataFrame:
        """So many rows, from the first on."""
        if self.in_memory or self._is_mapped:
            return self.load().slice(first, number)
        return self.scan().slice(first, number).collect(engine="streaming")


def keep(frame: pl.DataFrame, folder: Path | None, name: str, *, quickly: bool = False) -> KeptFrame:
    """Keep a frame in memory, or under a name in a directory of ours. The file is there whole or not at all.

    Args:
        frame: it.
        folder: the directory; None keeps it in memory.
        name: that of its file, without an ending.
        quickly: in a third of the time, where no column is text, and in several times the room.

    Raises:
        OutputError: the disk is full.
    """
    if folder is None:
        return KeptFrame(frame)
    quickly = quickly and all(dtype.is_numeric() for dtype in frame.dtypes)
    place = folder / (f"{name}{_ARROW}" if quickly else f"{name}.parquet")
    with temporary_files(folder), whole_file(place) as unfinished:
        if quickly:
            _write_arrow(frame, unfinished)
        else:
            frame.write_parquet(unfinished, compression="lz4", statistics=False)
    return KeptFrame(place)


def _write_arrow(frame: pl.DataFrame, path: Path) -> None:
    """Write an Arrow IPC file as it is in memory: Polars would hand it to its streaming engine, which takes longer."""
    ipc: Any = import_module("pyarrow.ipc")  # only here: importing it takes time
    table = cast("Any", frame.to_arrow(compat_level=pl.CompatLevel.oldest()))  # pyarrow has no types
    with ipc.new_file(str(path), table.schema) as file:
        file.write_table(table)


def _mapped(path: Path) -> pl.DataFrame:
    """The frame in an Arrow IPC file, not copied."""
    arrow: Any = import_module("pyarrow")  # only here: importing them takes time
    ipc: Any = import_module("pyarrow.ipc")
    with arrow.memory_map(str(path)) as file:
        return pl.DataFrame(ipc.open_file(file).read_all())
