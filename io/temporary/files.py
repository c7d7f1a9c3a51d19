"""Files in a temporary directory of ours: each there whole or not at all, and a clear error where the disk is full."""

import secrets
import shutil
import socket
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import polars as pl

from posbias.core.errors import OutputError
from posbias.io.temporary.directories import remove_tree
from posbias.io.temporary.owner import is_name_of_ours

NO_SPACE = "No space left on device"
"""How Linux, and Polars after it, name a full disk."""

SHARED = "The logs, the output and --temp-dir must lie where all machines of the cluster find them under one name."
"""What a cluster takes."""

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
    unfinished = _unfinished(folder)
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
    unfinished = _unfinished(place.parent)
    try:
        yield unfinished
        unfinished.replace(place)
    finally:
        unfinished.unlink(missing_ok=True)


def _unfinished(folder: Path) -> Path:
    """A name in a directory of ours that nothing has."""
    if not folder.is_dir():
        raise OutputError(f"{folder}: {socket.gethostname()} sees no such directory. {SHARED}")
    return folder / f"{_UNFINISHED}{secrets.token_hex(16)}"


def remove_unfinished(folder: Path) -> None:
    """Remove what work that was given up has left of its files, in a directory of ours."""
    for path in folder.glob(f"{_UNFINISHED}*"):
        if path.is_dir():
            remove_tree(path)
        else:
            path.unlink(missing_ok=True)


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
