"""Directories of a running process, each with a locked file, and the removal of directories of ended processes.

    posbias-3f0c.../     for its user alone (0700), with a random name
        owner.lock       names the process, which holds its lock (flock) until the directory is removed
        work/            the files

The lock ends with its process. A later run on the same machine then removes the directory, and nothing else. On a file
system without locks a directory is removed by its own process alone.
"""

import errno
import fcntl
import os
import re
import secrets
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from posbias.core.errors import OutputError

LOCK, WORK = "owner.lock", "work"

TRIES = 20
"""Attempts to remove a directory, into which another thread may still write."""

_NAME = re.compile(r"\.?posbias-[0-9a-f]{32}")
_NAME_OF_RESULT = re.compile(r"\.posbias-out-[0-9a-f]{32}")
_OWNER = re.compile(r"process [0-9]+ on (.+)")
_LONGEST_OWNER = 1 << 10  # bytes
_CLAIMS, _BETWEEN_CLAIMS = 5, 0.2  # attempts, and seconds: the owner of a lock may just be removing its directory

_alive: dict[Path, int | None] = {}  # directories of this process with their locks, None before these are taken


def is_temporary_name(name: str) -> bool:
    """Return True for names of temporary directories; other directories may have them, too."""
    return _NAME.fullmatch(name) is not None


@contextmanager
def owned_directory(parent: Path, what: Literal["posbias", ".posbias", ".posbias-out"] = "posbias") -> Generator[Path]:
    """Make a directory for temporary files, yield its folder `work`, and remove it with its content after the block.

    Directories of ended processes in `parent` are removed first, but with `.posbias-out`, that of a result, are left to
    the caller.

    Args:
        parent: the directory above.
        what: prefix of the name.

    Raises:
        OutputError: the directory cannot be made.
    """
    if what != ".posbias-out":
        for abandoned, lock in abandoned_in(parent):
            remove_owned(abandoned, lock)
    path = parent / f"{what}-{secrets.token_hex(16)}"
    _alive[path] = None  # before it exists, so that a signal handler never misses it
    try:
        try:
            # A process that looks for abandoned directories may hold the lock for a moment.
            _alive[path] = _lock(path, fcntl.LOCK_EX)
            (path / WORK).mkdir()
        except OSError as error:
            raise OutputError(f"cannot write in {path.parent}: {error.strerror}.") from error
        yield path / WORK
    finally:
        _release(path)


@contextmanager
def claimed(parent: Path, digest: str, on_wait: Callable[[str], None] | None) -> Generator[None]:
    """Hold the lock of a result during the block, so that one process at a time writes it.

    Args:
        parent: the directory of the result.
        digest: 32 hexadecimal digits for the result.
        on_wait: called with the name of the process that holds the lock, before waiting for it; None raises instead.

    Raises:
        BlockingIOError: another process holds the lock; the error names it.
        OSError: the directory cannot be written.
    """
    path = parent / f".posbias-out-{digest}"
    for _ in range(_CLAIMS):
        with suppress(BlockingIOError):
            _alive[path] = _lock(path)
            break
        time.sleep(_BETWEEN_CLAIMS)
    else:
        owner = ""
        with suppress(OSError):
            owner = (path / LOCK).read_text(encoding="utf-8", errors="replace")[:_LONGEST_OWNER]
        if on_wait is None:
            raise BlockingIOError(owner or "another process")
        on_wait(owner or "another process")
        _alive[path] = _lock(path, fcntl.LOCK_EX)
    try:
        yield
    finally:
        _release(path)


def _lock(path: Path, how: int = fcntl.LOCK_EX | fcntl.LOCK_NB) -> int:
    """Make a directory, unless it exists, and return the handle that holds its lock.

    Args:
        path: the directory.
        how: operation of `flock`; the default does not wait.

    Raises:
        BlockingIOError: another process holds the lock.
        OSError: the directory cannot be made, or belongs to another user.
    """
    while True:
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
        try:
            if not _is_own(path.lstat()):
                raise PermissionError(errno.EPERM, f"{path.name} is not a directory of this user")
            lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except FileNotFoundError:  # removed meanwhile, by its last owner or because it was empty
            continue
        try:
            fcntl.flock(lock, how)
        except BlockingIOError:
            os.close(lock)
            raise
        except OSError:  # a file system without locks: if this process is killed, the directory stays
            pass
        if _is_at(path / LOCK, lock):
            try:
                os.ftruncate(lock, 0)
                os.pwrite(lock, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
            except OSError:  # a full disk: without a name in it, no later run could remove the directory
                remove_owned(path, lock)
                os.close(lock)
                raise
            return lock
        os.close(lock)  # removed between its opening and its locking


def abandoned_in(parent: Path, *, results: bool = False) -> Generator[tuple[Path, int]]:
    """Yield the directories in `parent` whose process has ended on this machine, each with its lock, held meanwhile.

    Args:
        parent: the directory to search. Symbolic links are not followed.
        results: whether to yield directories of results instead of temporary files.
    """
    pattern = _NAME_OF_RESULT if results else _NAME
    try:
        names = sorted(name for name in os.listdir(parent) if pattern.fullmatch(name))  # noqa: PTH208 - names
    except OSError:  # an attempt to write there raises the error
        return
    for path in [parent / name for name in names]:
        try:
            if path in _alive or not _is_own(path.lstat()):
                continue
        except OSError:  # removed meanwhile
            continue
        try:
            # O_NONBLOCK: a FIFO of that name does not block.
            lock = os.open(path / LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            with suppress(OSError):
                path.rmdir()  # only an empty one: its process was killed before it made the lock
            continue
        try:
            if _is_abandoned(lock) and _is_at(path / LOCK, lock):
                yield path, lock
        finally:
            os.close(lock)


def _is_abandoned(lock: int) -> bool:
    """Lock a file, and return True if it was the lock of this user's ended process on this machine."""
    status = os.fstat(lock)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1 or status.st_uid != os.geteuid():
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # it is held, or the file system has no locks
        return False
    owner = _OWNER.fullmatch(os.pread(lock, _LONGEST_OWNER, 0).decode(errors="replace"))
    return owner is not None and owner[1] == socket.gethostname()  # locks of other machines may be invisible


def _is_at(path: Path, handle: int) -> bool:
    """Return True if an open file still has this path."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(handle))
    except OSError:
        return False


def _is_own(status: os.stat_result) -> bool:
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def _release(path: Path) -> None:
    remove_owned(path, _alive[path])
    lock = _alive.pop(path)
    if lock is not None:
        os.close(lock)


def remove_owned(path: Path, lock: int | None) -> None:
    """Remove a directory with its content, last its lock, which the caller must hold."""
    for _ in range(TRIES):
        with suppress(OSError):
            for entry in [entry for entry in path.iterdir() if entry.name != LOCK]:
                if entry.is_dir() and not entry.is_symlink():
                    remove_tree(entry)
                else:
                    entry.unlink()
            if [entry.name for entry in path.iterdir()] == [LOCK] and lock is not None and _is_at(path / LOCK, lock):
                (path / LOCK).unlink()
            path.rmdir()
        if not path.is_dir():
            return


def remove_tree(path: Path) -> None:
    """Remove a directory of this process, into which another thread may still write. Links are not followed."""
    for _ in range(TRIES):
        shutil.rmtree(path, ignore_errors=True)
        if not path.exists():
            return


def owned_by_this_process() -> dict[Path, int | None]:
    """Return the directories of this process with their locks, for a signal handler that ends it."""
    return dict(_alive)


def system_temporary() -> Path:
    """Return the system's directory for temporary files.

    Raises:
        OutputError: no such directory can be written.
    """
    try:
        return Path(tempfile.gettempdir())
    except OSError as error:
        raise OutputError(
            "there is no place for temporary files: TMPDIR names none, and /tmp and /var/tmp cannot be written. Name a "
            "directory with --temp-dir."
        ) from error
