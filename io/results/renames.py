"""Renames that never replace what they should not, and directories that are safely on disk."""

import ctypes
import errno
import os
from pathlib import Path

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
    """What tells a directory from another one that takes its name; None where there is none."""
    try:
        status = target.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def sync_tree(root: Path) -> None:
    """Have a directory and all in it written to the disk."""
    for folder, _, names in os.walk(root):
        own = [name for name in names if (Path(folder) / name).stat().st_nlink == 1]  # others were synced elsewhere
        for name in [*own, "."]:
            handle = os.open(Path(folder) / name, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


def sync_directory(path: Path) -> None:
    """Have the names in a directory written to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
