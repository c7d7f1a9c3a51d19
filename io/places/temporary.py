"""Files in temporary directories, written atomically; and frames kept in memory or in such files."""

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
from posbias.io.places.ownership import is_temporary_name, remove_tree

NO_SPACE = "No space left on device"
"""The message of Linux and Polars about a full disk."""

SHARED = "The logs, the output and --temp-dir must lie where all machines of the cluster find them under one name."


def shared_place(temporary: Path | None, output: Location) -> Path:
    """Return the directory for temporary files of a cluster: --temp-dir, or the closest one above the output.

    Raises:
        UsageError: the output is in an object store, and --temp-dir is not given.
    """
    if temporary is not None:
        return temporary
    if isinstance(output, ObjectUrl):
        raise UsageError(
            f"--output {output}: with --engine spark the result is made on disk before it is uploaded. "
            "Use --temp-dir to name a directory that all machines of the cluster can see."
        )
    return next(folder for folder in output.absolute().parents if folder.is_dir())


_FULL = 1 << 20  # free bytes, at most
_UNFINISHED = ".posbias-part-"


def is_disk_full(folder: Path, error: Exception) -> bool:
    """Return True if writing failed on a full disk, which Polars does not always report, e.g. for a footer."""
    return NO_SPACE in str(error) or shutil.disk_usage(folder).free < _FULL


def check_room(folder: Path, needed: int) -> None:
    """Raise OutputError if fewer than the needed bytes are free."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OutputError(
            f"{_known_directory(folder)}: {NO_SPACE} for temporary files: about {needed / 1e6:,.0f} MB are needed, "
            f"{free / 1e6:,.0f} MB are free. Name a larger place with --temp-dir."
        )


def _known_directory(folder: Path) -> Path:
    """Return the directory that the user knows: the one above the temporary directory of a folder."""
    return next((path.parent for path in (folder, *folder.parents) if is_temporary_name(path.name)), folder.parent)


@contextmanager
def whole_files(folder: Path) -> Generator[Path]:
    """Yield a directory whose files move to `folder` when the block ends without an error.

    Each file is moved atomically, so a task that a cluster runs twice, as a machine seemed lost, does no harm.

    Raises:
        OutputError: this machine does not see the folder.
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
    """Yield a path to write one file to, which moves to `place` as with `whole_files`."""
    with whole_files(place.parent) as unfinished:
        yield unfinished / place.name


def remove_unfinished(folder: Path) -> None:
    """Remove the unfinished files that abandoned tasks of `whole_files` left in a folder."""
    for path in folder.glob(f"{_UNFINISHED}*"):
        remove_tree(path)


@contextmanager
def temporary_files(folder: Path) -> Generator[None]:
    """Translate errors in the block to OutputError, with the directory, if the disk is full."""
    try:
        yield
    except (OSError, pl.exceptions.PolarsError) as error:
        if not is_disk_full(folder, error):
            raise
        raise OutputError(
            f"{_known_directory(folder)}: {NO_SPACE} for temporary files. Name a larger place with --temp-dir."
        ) from error


_ARROW = ".arrow"


@dataclass(frozen=True)
class KeptFrame:
    """A frame in memory or in a file; pickled between processes that see the file."""

    place: pl.DataFrame | Path  # the frame, or its file of Parquet or Arrow IPC

    @property
    def in_memory(self) -> bool:
        """Whether the frame is in memory."""
        return isinstance(self.place, pl.DataFrame)

    @property
    def _is_mapped(self) -> bool:
        """Whether the frame is in a file of Arrow IPC, which is mapped into memory."""
        return isinstance(self.place, Path) and self.place.suffix == _ARROW

    def scan(self) -> pl.LazyFrame:
        """Scan the rows in their order."""
        if isinstance(self.place, pl.DataFrame):
            return self.place.lazy()
        scan = pl.scan_ipc if self._is_mapped else pl.scan_parquet
        return scan(self.place, glob=False)

    def load(self) -> pl.DataFrame:
        """Return all rows; those of Arrow IPC are read from disk when they are used."""
        if isinstance(self.place, pl.DataFrame):
            return self.place
        if not self._is_mapped:
            return self.scan().collect()
        arrow: Any = import_module("pyarrow")  # only here: importing them takes time
        ipc: Any = import_module("pyarrow.ipc")
        with arrow.memory_map(str(self.place)) as file:  # not copied
            return pl.DataFrame(ipc.open_file(file).read_all())

    def slice(self, first: int, number: int) -> pl.DataFrame:
        """Return `number` rows from row `first`, counted from 0."""
        if self.in_memory or self._is_mapped:
            return self.load().slice(first, number)
        return self.scan().slice(first, number).collect(engine="streaming")


def keep(frame: pl.DataFrame, folder: Path | None, name: str, *, quickly: bool = False) -> KeptFrame:
    """Keep a frame in memory, or write it atomically to a file in a temporary directory.

    Args:
        frame: the frame.
        folder: the directory; None keeps the frame in memory.
        name: name of the file, without an extension.
        quickly: whether to write numeric columns as Arrow IPC, in a third of the time and several times the space.

    Raises:
        OutputError: the disk is full.
    """
    if folder is None:
        return KeptFrame(frame)
    quickly = quickly and all(dtype.is_numeric() for dtype in frame.dtypes)
    place = folder / (f"{name}{_ARROW}" if quickly else f"{name}.parquet")
    with temporary_files(folder), whole_file(place) as unfinished:
        if quickly:  # with pyarrow, as Polars's streaming engine takes longer
            ipc: Any = import_module("pyarrow.ipc")  # only here: importing it takes time
            table = cast("Any", frame.to_arrow(compat_level=pl.CompatLevel.oldest()))  # pyarrow has no types
            with ipc.new_file(str(unfinished), table.schema) as file:
                file.write_table(table)
        else:
            frame.write_parquet(unfinished, compression="lz4", statistics=False)
    return KeptFrame(place)
