"""Temporary directories that belong to a running process, and the removal of those whose owner has died.

Each is locked (flock) by its owner for as long as that lives; the lock goes with the process, even by SIGKILL.
So a later run can tell an abandoned directory from one in use, and a signal handler knows what to remove.
"""

import fcntl
import os
import secrets
import shutil
import socket
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import polars as pl

from posbias.core.errors import OutputError

NO_SPACE = "No space left on device"
"""How Linux, and Polars after it, name a full disk."""

SHARED = "The logs, the output and --temp-dir must lie where all machines of the cluster find them under one name."
"""What a cluster takes."""

_NEXT_TO_NOTHING = 1 << 20  # bytes
_UNFINISHED = ".posbias-part-"

_alive: dict[Path, int | None] = {}  # the lock of each, None until it is taken


@contextmanager
def owned_directory(parent: Path, prefix: str) -> Generator[Path]:
    """A new directory `parent/prefix<random>`, removed at the end with all that is in it.

    Abandoned directories of the same prefix are removed first.

    Raises:
        OutputError: the directory cannot be made.
    """
    remove_abandoned(parent, prefix)
    path = _create(parent, prefix)
    try:
        yield path
    finally:
        _release(path)


def _create(parent: Path, prefix: str) -> Path:
    while True:
        path = parent / f"{prefix}{secrets.token_hex(6)}"
        _alive[path] = None  # before it is there, so that a signal handler never misses it
        try:
            path.mkdir()
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            del _alive[path]
            if isinstance(error, FileNotFoundError) and parent.is_dir():
                continue  # another run took it for abandoned before it was opened
            raise OutputError(f"cannot write in {parent}: {error.strerror}.") from error
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.is_dir():  # else another run took it for abandoned before the lock was taken
            _alive[path] = lock
            return path
        del _alive[path]
        os.close(lock)


def _release(path: Path) -> None:
    remove_tree(path)
    lock = _alive.pop(path, None)
    if lock is not None:
        os.close(lock)


def remove_abandoned(parent: Path, prefix: str) -> None:
    """Remove the directories `parent/prefix*` whose owner no longer lives."""
    if not parent.is_dir():
        return
    for path in parent.iterdir():
        if path.name.startswith(prefix) and path not in _alive and _is_abandoned(path):
            remove_tree(path)


def _is_abandoned(path: Path) -> bool:
    try:
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(lock)
    return True


def remove_tree(path: Path) -> None:
    """Remove a directory, also while another thread still writes into it."""
    for _ in range(20):
        shutil.rmtree(path, ignore_errors=True)
        if not path.exists():
            return


def owned_by_this_process() -> list[Path]:
    """The directories that this process owns: for a signal handler that is about to end it."""
    return list(_alive)


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
            f"{folder.parent}: {NO_SPACE} for temporary files: about {needed / 1e6:,.0f} MB are needed, "
            f"{free / 1e6:,.0f} MB are free. Name a larger place with --temp-dir."
        )


@contextmanager
def whole_files(folder: Path) -> Generator[Path]:
    """A directory to write files into, which move to `folder` when the block ends without an error.

    So a file is there whole or not at all, and work that is done twice, by a cluster that gave up on one of its
    machines, does no harm.
    """
    if not folder.is_dir():
        raise OutputError(f"{folder}: {socket.gethostname()} sees no such directory. {SHARED}")
    unfinished = folder / f"{_UNFINISHED}{secrets.token_hex(6)}"
    unfinished.mkdir()
    try:
        yield unfinished
        for file in unfinished.iterdir():
            file.replace(folder / file.name)
    finally:
        remove_tree(unfinished)


def remove_unfinished(folder: Path) -> None:
    """Remove what work that was given up has left of its files."""
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
            f"{folder.parent}: {NO_SPACE} for temporary files. Name a larger place with --temp-dir."
        ) from error
