"""A frame between two steps: in memory, or, where the log is too large for that, in a temporary file of ours."""

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from posbias.io.temporary.files import temporary_files, whole_files


@dataclass(frozen=True)
class KeptFrame:
    """A frame that is kept. It may travel to another process, which sees the file.

    Attributes:
        place: the frame itself, or the Parquet file that holds it.
    """

    place: pl.DataFrame | Path

    @property
    def in_memory(self) -> bool:
        """Whether it is in the memory of this process."""
        return isinstance(self.place, pl.DataFrame)

    def scan(self) -> pl.LazyFrame:
        """Its rows, in their order, for what needs only some of them."""
        return self.place.lazy() if isinstance(self.place, pl.DataFrame) else pl.scan_parquet(self.place, glob=False)

    def load(self) -> pl.DataFrame:
        """All of it."""
        return self.place if isinstance(self.place, pl.DataFrame) else self.scan().collect()


def keep(frame: pl.DataFrame, folder: Path | None, name: str) -> KeptFrame:
    """Keep a frame in memory, or under a name in a directory of ours. The file is there whole or not at all.

    Raises:
        OutputError: the disk is full.
    """
    if folder is None:
        return KeptFrame(frame)
    with temporary_files(folder), whole_files(folder) as unfinished:
        frame.write_parquet(unfinished / f"{name}.parquet", compression="lz4", statistics=False)
    return KeptFrame(folder / f"{name}.parquet")
