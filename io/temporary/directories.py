"""Temporary directories that belong to a running process, and the removal of those whose owner has died.

    posbias-3f0c.../     for its owner alone (0700), of a name that nobody can guess
        owner.json       whose it is; its lock is held until the directory is gone
        work/            what is written

A later run removes it once its owner is proven dead (see `owner`), a signal handler knows what to remove, and nothing
else is ever removed, whatever it is called.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from posbias.core.errors import OutputError
from posbias.io.temporary.owner import MARKER, Owner, is_name_of_ours, look_at, mark, new_name

WORK, SET_ASIDE = "work", "replaced"
"""In a directory of ours: what is written; and a result that was moved aside to make room for it."""

TRIES = 20
"""How often it is tried to remove what another thread may still write into."""

_A_MOMENT = 0.05  # seconds in which another process gets from a directory to its marker, or back

_alive: dict[Path, int | None] = {}  # the lock of each, None until it is taken
_doubtful: dict[Path, str] = {}


@dataclass(frozen=True)
class OwnedDirectory:
    """A directory of this process."""

    path: Path  # its name

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
