"""Temporary directories that belong to a running process, and the removal of those whose owner has died.

    posbias-3f0c.../     for its owner alone (0700), of a name that nobody can guess
        owner.json       whose it is; its lock is held until the directory is gone
        work/            what is written

A later run removes it once its owner is proven dead (see `owner`), a signal handler knows what to remove, and nothing
else is ever removed, whatever it is called.
"""

import os
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from posbias.core.errors import OutputError
from posbias.io.owner import MARKER, Owner, is_name_of_ours, look_at, mark, new_name

NO_SPACE = "No space left on device"
"""How Linux, and Polars after it, name a full disk."""

SHARED = "The logs, the output and --temp-dir must lie where all machines of the cluster find them under one name."
"""What a cluster takes."""

WORK, SET_ASIDE = "work", "replaced"
"""In a directory of ours: what is written; and a result that was moved aside to make room for it."""

_NEXT_TO_NOTHING = 1 << 20  # bytes
_UNFINISHED = ".posbias-part-"
TRIES = 20
"""How often it is tried to remove what another thread may still write into."""

_A_MOMENT = 0.05  # seconds in which another process gets from a directory to its marker, or back

_alive: dict[Path, int | None] = {}  # the lock of each, None until it is taken
_doubtful: dict[Path, str] = {}


@dataclass(frozen=True)
class OwnedDirectory:
    """A directory of this process.

    Attributes:
        path: its name.
    """

    path: Path

    @property
    def work(self) -> Path:
        """What is written."""
        return self.path / WORK

    @property
    def set_aside(self) -> Path:
        """Where a result goes that is being replaced, on systems that cannot exchange two directories in one step."""
        return self.path / SET_ASIDE


@contextmanager
def owned_directory(parent: Path, *, hidden: bool = False) -> Generator[Path]:
    """A new directory for temporary files below `parent`, removed at the end with all that is in it.

    Raises:
        OutputError: the directory cannot be made.
    """
    remove_abandoned(parent)
    with made_directory(parent, hidden=hidden) as made:
        yield made.work


@contextmanager
def made_directory(parent: Path, *, hidden: bool, target: str = "") -> Generator[OwnedDirectory]:
    """A new directory of ours, removed at the end; nothing else is.

    Args:
        parent: in which it is made.
        hidden: whether its name begins with a dot.
        target: the result that is made in it.

    Raises:
        OutputError: the directory cannot be made.
    """
    made = _make(parent, target, hidden=hidden)
    try:
        yield made
    finally:
        _release(made.path)


def _make(parent: Path, target: str, *, hidden: bool) -> OwnedDirectory:
    path = parent / new_name(hidden=hidden)
    _alive[path] = None  # before it is there, so that a signal handler never misses it
    try:
        path.mkdir(mode=0o700)
        _alive[path] = mark(path, target)
        (path / WORK).mkdir()
    except OSError as error:
        _release(path)
        raise OutputError(f"cannot write in {parent}: {error.strerror}.") from error
    return OwnedDirectory(path)


def _release(path: Path) -> None:
    remove_owned(path)
    lock = _alive.pop(path, None)
    if lock is not None:
        os.close(lock)


def owners_in(parent: Path) -> Generator[tuple[Path, Owner]]:
    """The directories in `parent` that other live processes own."""
    for path in _candidates(parent):
        found = look_at(path)
        if found.lock is not None:
            os.close(found.lock)
        elif found.state == "in use" and found.owner is not None:
            yield path, found.owner


def abandoned_in(parent: Path) -> Generator[tuple[OwnedDirectory, Owner]]:
    """The directories in `parent` whose owner is proven dead, each locked while the caller has it."""
    unclear = list[Path]()
    for path in _candidates(parent):
        found = look_at(path)
        if found.state == "doubtful":
            unclear.append(path)
        elif found.lock is not None and found.owner is not None:
            try:
                yield OwnedDirectory(path), found.owner
            finally:
                os.close(found.lock)
    if unclear:
        time.sleep(_A_MOMENT)  # an owner may have been about to write its marker, or to remove the directory
        _doubtful.update({path: why for path in unclear if (why := _why_doubtful(path))})


def remove_abandoned(parent: Path) -> None:
    """Remove the directories in `parent` whose owner is proven dead, but for those that hold part of a result."""
    for abandoned, owner in abandoned_in(parent):
        if not owner.target:
            remove_owned(abandoned.path)


def _candidates(parent: Path) -> list[Path]:
    try:
        with os.scandir(parent) as entries:
            names = [entry.name for entry in entries if is_name_of_ours(entry.name)]
    except OSError:  # whoever wants to write there will say so
        return []
    return [path for path in (parent / name for name in sorted(names)) if path not in _alive]


def _why_doubtful(path: Path) -> str | None:
    state, owner, lock = look_at(path)
    if lock is not None:
        os.close(lock)
    if state != "doubtful":
        return None
    if owner is None:
        return f"it has the name of a temporary directory of posbias, but no {MARKER} that proves it"
    return f"process {owner.process} on {owner.host} made it, and whether that still runs cannot be seen from here"


def keep(path: Path, why: str) -> None:
    """Note that a directory stays because it cannot be proven that nobody needs it."""
    _doubtful[path] = why


def take_doubtful() -> dict[Path, str]:
    """The directories that have been left alone since the last call, and why."""
    taken = dict(_doubtful)
    _doubtful.clear()
    return taken


def remove_owned(path: Path) -> None:
    """Remove a directory of ours with all that is in it, its marker last; the caller holds its lock."""
    for _ in range(TRIES):  # another thread may still write into it
        for entry in [name for name in _names_in(path) if name != MARKER]:
            _remove(path / entry)
        if _names_in(path) == [MARKER]:
            with suppress(OSError):
                (path / MARKER).unlink()
        with suppress(OSError):
            path.rmdir()
        if not path.is_dir():
            return


def _names_in(path: Path) -> list[str]:
    try:
        return os.listdir(path)  # noqa: PTH208 - names
    except OSError:
        return []


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        remove_tree(path)
    else:
        with suppress(OSError):
            path.unlink()


def remove_tree(path: Path) -> None:
    """Remove what this process has made, also while another thread still writes into it. Links are not followed."""
    for _ in range(TRIES):
        shutil.rmtree(path, ignore_errors=True)
        if not path.exists():
            return


def owned_by_this_process() -> dict[Path, int | None]:
    """The directories that this process owns, and their locks: for a signal handler that is about to end it."""
    return dict(_alive)


def system_temporary() -> Path:
    """The system's place for temporary files.

    Raises:
        OutputError: there is none.
    """
    try:
        return Path(tempfile.gettempdir())
    except OSError as error:
        raise OutputError(
            "there is no place for temporary files: TMPDIR names none, and /tmp and /var/tmp cannot be written. Name a "
            "directory with --temp-dir."
        ) from error


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
        for file in unfinished.iterdir():
            file.replace(folder / file.name)
    finally:
        remove_tree(unfinished)


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
