"""Renames that replace nothing by mistake."""

import ctypes
import errno
import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from posbias.core.errors import escape_unseen

commit_lock = threading.Lock()
"""Held while a result moves into place; who ends the process on a signal takes it first."""

committed = threading.Event()
"""Set once this process has put a result into place, so that ending it must not claim that nothing was written."""

_uploads: list[str] = []


@contextmanager
def committing() -> Generator[None]:
    """The step that puts a result into place: no signal ends the process within it, nor says "nothing" after it."""
    with commit_lock:
        yield
        committed.set()


@contextmanager
def uploading(target: str) -> Generator[None]:
    """Note where to an upload goes, until it is whole, or has failed."""
    _uploads.append(target)
    try:
        yield
    finally:
        _uploads.clear()


def unfinished_upload() -> str | None:
    """Where this process has begun an upload and not ended it, as it can be printed."""
    return escape_unseen(_uploads[0]) if _uploads else None


_AT_FDCWD = -100
_RENAME_NOREPLACE, _RENAME_EXCHANGE = 1, 2
_NOT_OFFERED = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)


def rename_new(work: Path, target: Path) -> None:
    """Rename to a name that is not taken: a plain rename would replace an empty directory without a word."""
    if _rename(work, target, _RENAME_NOREPLACE):
        return
    if target.exists():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    work.rename(target)


def exchange(one: Path, other: Path) -> bool:
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


def identity(target: Path) -> tuple[int, int] | None:
    """The identity of a directory, which another one of its name has not; None where there is none."""
    try:
        status = target.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
