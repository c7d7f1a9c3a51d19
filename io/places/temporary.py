"""Files in a temporary directory of ours, each there whole or not at all, and frames kept in them."""

import secrets
import shutil
import socket
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import polars as pl

from posbias.core.errors import OutputError, UsageError
from posbias.io.places.locations import Location, ObjectUrl
from posbias.io.places.ownership import is_name_of_ours, remove_tree

NO_SPACE = "No space left on device"
"""How Linux, and Polars after it, name a full disk."""

SHARED = "The logs, the output and --temp-dir must lie where all machines of the cluster find them under one name."
"""Size of a cluster of a disk."""


def shared_place(temporary: Path | None, output: Location) -> Path:
    """Where all machines of a cluster find temporary files: they find the output.

    Raises:
        UsageError: the output is in an object store.
    """
    if temporary is not None:
        return temporary
    if isinstance(output, ObjectUrl):
        raise UsageError(
            f"--output {output}: with --engine spark the result is made on disk before it is uploaded. "
            "Use --temp-dir to name a directory that all machines of the cluster can see."
        )
    return next(folder for folder in output.absolute().parents if folder.is_dir())


_NEXT_TO_NOTHING = 1 << 20  # bytes
_UNFINISHED = ".posbias-part-"


def is_disk_full(folder: Path, error: Exception) -> bool:
    """Whether writing failed for want of space. Polars does not always say so, e.g. when a footer no longer fits."""
    return NO_SPACE in str(error) or shutil.disk_usage(folder).free < _NEXT_TO_NOTHING


def check_room(folder: Path, needed: int) -> None:
    """Find a disk that is too small before it is full.

    Raises:
        OutputError: fewer than the needed bytes are free.
    """
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OutputError(
            f"{_named(folder)}: {NO_SPACE} for temporary files: about {needed / 1e6:,.0f} MB are needed, "
            f"{free / 1e6:,.0f} MB are free. Name a larger place with --temp-dir."
        )


def _named(folder: Path) -> Path:
    """The place for temporary files that a directory of ours stands in, as a user knows it."""
    return next((path.parent for path in (folder, *folder.parents) if is_name_of_ours(path.name)), folder.parent)


@contextmanager
def whole_files(folder: Path) -> Generator[Path]:
    """A directory to write files into, which move to `folder` when the block ends without an error.

    So a file is there whole or not at all, and work that is done twice, by a cluster that gave up on one of its
    machines, does no harm. The folder lies in a directory of ours.
    """
    if not folder.is_dir():
        raise OutputError(f"{folder}: {socket.gethostname()} sees no such directory. {SHARED}")
    unfinished = folder / f"{_UNFINISHED}{secrets.token_hex(16)}"
    unfinished.mkdir()
    try:
        yield unfinished
        for file in [path for path in unfinished.rglob("*") if not path.is_dir()]:
            place = folder / file.relative_to(unfinished)
            place.parent.mkdir(exist_ok=True)
            file.replace(place)
    finally:
        remove_tree(unfinished)


@contextmanager
def whole_file(place: Path) -> Generator[Path]:
    """Where to write one file, which moves to its place when the block ends without an error: as `whole_files`."""
    with whole_files(place.parent) as unfinished:
        yield unfinished / place.name


def remove_unfinished(folder: Path) -> None:
    """Remove what work that was given up has left of its files, in a directory of ours."""
    for path in folder.glob(f"{_UNFINISHED}*"):
        remove_tree(path)


@contextmanager
def temporary_files(folder: Path) -> Generator[None]:
    """Say where it is that there is no space, when temporary files are written.

    Raises:
        OutputError: the disk is full.
    """
    try:
        yield
    except (OSError, pl.exceptions.PolarsError) as error:
        if not is_disk_full(folder, error):
            raise
        raise OutputError(
            f"{_named(folder)}: {NO_SPACE} for temporary files. Name a larger place with --temp-dir."
        ) from error


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
        """A scan of its rows, in their order."""
        if isinstance(self.place, pl.DataFrame):
            return self.place.lazy()
        scan = pl.scan_ipc if self._is_mapped else pl.scan_parquet
        return scan(self.place, glob=False)

    def load(self) -> pl.DataFrame:
        """Load all rows. A file that was kept quickly is read when its rows are used."""
        if isinstance(self.place, pl.DataFrame):
            return self.place
        if not self._is_mapped:
            return self.scan().collect()
        arrow: Any = import_module("pyarrow")  # only here: importing them takes time
        ipc: Any = import_module("pyarrow.ipc")
        with arrow.memory_map(str(self.place)) as file:  # not copied
            return pl.DataFrame(ipc.open_file(file).read_all())

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
        if quickly:  # as it is in memory: Polars would hand it to its streaming engine, which takes longer
            ipc: Any = import_module("pyarrow.ipc")  # only here: importing it takes time
            table = cast("Any", frame.to_arrow(compat_level=pl.CompatLevel.oldest()))  # pyarrow has no types
            with ipc.new_file(str(unfinished), table.schema) as file:
                file.write_table(table)
        else:
            frame.write_parquet(unfinished, compression="lz4", statistics=False)
    return KeptFrame(place)
