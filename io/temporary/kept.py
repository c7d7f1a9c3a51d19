"""A frame between two steps: in memory, or, where the log is too large for that, in a temporary file of ours."""

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from posbias.io.temporary.files import temporary_files, whole_files

_ARROW = ".arrow"


@dataclass(frozen=True)
class KeptFrame:
    """A frame that is kept. It may travel to another process, which sees the file.

    Attributes:
        place: the frame itself, or the file of Parquet or Arrow IPC that holds it.
    """

    place: pl.DataFrame | Path

    @property
    def in_memory(self) -> bool:
        """Whether it is in the memory of this process."""
        return isinstance(self.place, pl.DataFrame)

    def scan(self) -> pl.LazyFrame:
        """Its rows, in their order, for what needs only some of them."""
        if isinstance(self.place, pl.DataFrame):
            return self.place.lazy()
        scan = pl.scan_ipc if self.place.suffix == _ARROW else pl.scan_parquet
        return scan(self.place, glob=False)

    def load(self) -> pl.DataFrame:
        """All of it."""
        return self.place if isinstance(self.place, pl.DataFrame) else self.scan().collect()


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
    file = f"{name}{_ARROW}" if quickly else f"{name}.parquet"
    with temporary_files(folder), whole_files(folder) as unfinished:
        if quickly:
            frame.write_ipc(unfinished / file)
        else:
            frame.write_parquet(unfinished / file, compression="lz4", statistics=False)
    return KeptFrame(folder / file)
