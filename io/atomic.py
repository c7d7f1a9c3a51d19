"""Outputs appear whole or not at all.

A result is written in a directory beside the target, synced, and moved into place in one step. A kill at any moment
leaves the old result or the new one; what else it leaves, the next run removes.
"""

import ctypes
import errno
import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import polars as pl

from posbias.core.errors import OutputError, OutputExistsError
from posbias.io.owned import NO_SPACE, is_disk_full, owned_directory, remove_tree

_AT_FDCWD = -100
_RENAME_NOREPLACE, _RENAME_EXCHANGE = 1, 2
_NOT_OFFERED = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)

commit_lock = threading.Lock()
"""Held while a result moves into place; who ends the process on a signal takes it first."""

_committed = threading.Event()


def is_committed() -> bool:
    """Whether this process has put a result into place, so that ending it must not claim that nothing was written."""
    return _committed.is_set()


@contextmanager
def committing() -> Generator[None]:
    """The step that puts a result into place: no signal ends the process within it, nor says "nothing" after it."""
    with commit_lock:
        yield
        _committed.set()


@contextmanager
def atomic_directory(target: Path, *, force: bool, inputs: tuple[Path, ...] = ()) -> Generator[Path]:
    """A directory to write into, which becomes `target` when the block ends without an error.

    Parents of the target that do not exist are made at the end.

    Args:
        target: where the result will stand.
        force: whether an existing target is replaced.
        inputs: files that are read; a target that holds one of them is refused.

    Raises:
        OutputExistsError: the target is there, and `force` is not given.
        OutputError: the target cannot be written, or must not be replaced.
    """
    target = _resolved(target)
    aside = target.parent / f".{target.name}.posbias.old"
    _undo_rename_aside(target, aside)
    _check_target(target, force=force, inputs=inputs)
    beside = next(folder for folder in target.parents if folder.exists())
    with owned_directory(beside, f".{target.name}.posbias-") as work:
        try:
            yield work
            _sync_tree(work)
        except OSError as error:
            why = NO_SPACE if is_disk_full(work, error) else error.strerror or error
            raise OutputError(f"cannot write {target}: {why}. Nothing was written.") from error
        except pl.exceptions.PolarsError as error:
            if is_disk_full(work, error):
                raise OutputError(f"cannot write {target}: {NO_SPACE}. Nothing was written.") from error
            raise
        with committing():
            _move_into_place(work, target, aside, force=force)


def _resolved(target: Path) -> Path:
    """The target by its full name. Of a symbolic link, what it points to is replaced, and the link stays."""
    try:
        resolved = target.resolve()
        resolved.exists()
        str(resolved).encode()
    except (OSError, RuntimeError, UnicodeEncodeError) as error:
        raise OutputError(f"{str(target)!a}: cannot be the name of a directory: {error}.") from error
    return resolved


def _check_target(target: Path, *, force: bool, inputs: tuple[Path, ...]) -> None:
    if not target.exists():
        return
    if not target.is_dir():
        raise OutputExistsError(f"{target}: is a file; the output is a directory. Choose another name.")
    if not force:
        raise OutputExistsError(f"{target}: already exists. Choose another name, or replace it with --force.")
    held = [path for path in (Path.cwd(), Path.home(), *inputs) if path.resolve().is_relative_to(target.resolve())]
    if held:
        raise OutputError(f"{target}: holds {held[0]}, which --force would delete. Choose another directory.")
    if not os.access(target, os.W_OK | os.X_OK):
        raise OutputError(f"{target}: is read-only, so --force does not replace it.")


def _sync_tree(root: Path) -> None:
    for folder, _, names in os.walk(root):
        own = [name for name in names if (Path(folder) / name).stat().st_nlink == 1]  # others were synced elsewhere
        for name in [*own, "."]:
            handle = os.open(Path(folder) / name, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


def _move_into_place(work: Path, target: Path, aside: Path, *, force: bool) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if not force or not target.exists():
            _rename_new(work, target)
        elif not _exchange(work, target):
            target.rename(aside)
            work.rename(target)
            aside.rename(work)  # it goes with the work directory
    except FileExistsError as error:
        raise OutputExistsError(f"{target}: already exists: it has appeared meanwhile, and stays.") from error
    except OSError as error:
        raise OutputError(f"cannot write {target}: {error.strerror}. The new result was not put in place.") from error
    _sync_directory(target.parent)


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _rename_new(work: Path, target: Path) -> None:
    """Rename to a name that is not taken: a plain rename would replace an empty directory without a word."""
    if _rename(work, target, _RENAME_NOREPLACE):
        return
    if target.exists():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    work.rename(target)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two directories in one step; False where the system does not offer it."""
    return _rename(one, other, _RENAME_EXCHANGE)


def _rename(one: Path, other: Path, how: int) -> bool:
    """Rename with the kernel's help; False where the system does not offer it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        return False
    failed = libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), how)
    if not failed:
        return True
    code = ctypes.get_errno()
    if code in _NOT_OFFERED:
        return False
    raise OSError(code, os.strerror(code))


def _undo_rename_aside(target: Path, aside: Path) -> None:
    """Where a run was killed between its renames: bring the old result back, or remove it if the new one stands."""
    if not aside.is_dir():
        return
    if target.exists():
        remove_tree(aside)
    else:
        aside.rename(target)
