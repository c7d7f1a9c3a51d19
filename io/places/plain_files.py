"""Files that posbias reads because it wrote them: plain ones, known again, and never through a symbolic link.

A FIFO of the same name would block, a device could do anything, and a link may lead to a file of somebody else.
"""

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

import xxhash

_AT_ONCE = 1 << 18  # bytes; they stay in the processor's cache
_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
}


@dataclass(frozen=True)
class FileState:
    """Which file stands under a name: what differs once another one takes its place, or its content is written anew."""

    device: int  # the file
    inode: int
    bytes: int  # its size
    modified: int  # when it was last written, in nanoseconds


def state_of(path: Path) -> FileState:
    """The plain file of that name.

    Raises:
        OSError: there is none.
    """
    return _state(path.lstat())


def state_of_open(file: FileIO) -> FileState:
    """The plain file that was opened."""
    return _state(os.fstat(file.fileno()))


def is_plain(path: Path) -> bool:
    """Whether the name stands for a plain file."""
    try:
        state_of(path)
    except OSError:
        return False
    return True


def is_still(path: Path, state: FileState) -> bool:
    """Whether the name stands for the same file, unchanged."""
    try:
        return state_of(path) == state
    except OSError:
        return False


def open_plain(path: Path) -> FileIO:
    """Open a plain file to read it; whatever else has the name is not touched.

    Raises:
        OSError: there is none, or it cannot be opened.
    """
    state_of(path)  # before it is opened: a device may do something then
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    file = FileIO(handle)
    try:
        state_of_open(file)  # again: another may have taken its place
    except OSError:
        file.close()
        raise
    return file


def _state(status: os.stat_result) -> FileState:
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "a device")
        raise OSError(errno.EINVAL, f"it is {kind}, not a plain file")
    return FileState(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def chunks_of(file: FileIO) -> Iterator[memoryview]:
    """The bytes of a file from where it stands, little by little; a chunk is good until the next one is asked for."""
    room = memoryview(bytearray(_AT_ONCE))
    while n_read := file.readinto(room):
        yield room[:n_read]


def checksum(chunks: Iterable[bytes | memoryview]) -> str:
    """XXH3-128 of bytes, in hexadecimal digits: it finds damage, not malice."""
    found = xxhash.xxh3_128()
    for chunk in chunks:
        found.update(chunk)
    return found.hexdigest()
