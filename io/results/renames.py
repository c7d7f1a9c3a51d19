"""Atomic renames without accidental replacement, and the state of outputs for signal handling."""

import ctypes
import errno
import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from posbias.core.errors import escape_unseen

commit_lock = threading.Lock()
"""Held while a result is moved into place; the signal handler acquires it before it ends the process."""

committed = threading.Event()
"""Set once this process has put a result into place: the message of a signal then must not deny the result."""

_uploads: list[str] = []


@contextmanager
def committing() -> Generator[None]:
    """Hold off signals while the block puts a result into place, and set `committed` after it."""
    with commit_lock:
        yield
        committed.set()


@contextmanager
def uploading(target: str) -> Generator[None]:
    """Register the target of an upload while the block runs."""
    _uploads.append(target)
    try:
        yield
    finally:
        _uploads.clear()


def unfinished_upload() -> str | None:
    """Return the printable target of the upload under way; None without."""
    return escape_unseen(_uploads[0]) if _uploads else None


_AT_FDCWD = -100
_RENAME_NOREPLACE, _RENAME_EXCHANGE = 1, 2
_UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)


def rename_new(work: Path, target: Path) -> None:
    """Rename to a free name; a plain rename would silently replace an empty directory.

    Raises:
        FileExistsError: the target exists.
        OSError: the rename fails.
    """
    if _rename(work, target, _RENAME_NOREPLACE):
        return
    if target.exists():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    work.rename(target)


def exchange(first: Path, second: Path) -> bool:
    """Swap two directories in one step; return False where the system does not support it."""
    return _rename(first, second, _RENAME_EXCHANGE)


def _rename(source: Path, target: Path, how: int) -> bool:
    """Call renameat2(2); return False where the system does not support it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        return False
    failed = libc.renameat2(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), how)
    if not failed:
        return True
    code = ctypes.get_errno()
    if code in _UNSUPPORTED:
        return False
    raise OSError(code, os.strerror(code))


def identity(target: Path) -> tuple[int, int] | None:
    """Return (device, inode) of a directory, or None if it does not exist."""
    try:
        status = target.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
