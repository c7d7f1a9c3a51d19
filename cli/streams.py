"""stdout and stderr may be closed or full, or nobody may read them any more: no result and no exit code hangs on that.

What is printed never fails, neither here nor when Python flushes its streams at the end. Whoever has to know asks
afterwards whether all of it got through.
"""

import errno
import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

import ctypes

_STDIN, _STDOUT, _STDERR = range(3)


class _PatientFile(io.FileIO):
    """A file that takes all that it is given, and remembers why some of it could not be written."""

    lost: OSError | None = None

    def write(self, data: "ReadableBuffer", /) -> int:
        """Write, or let it be."""
        length = memoryview(data).nbytes
        try:
            written = super().write(data)
        except OSError as error:
            self.lost = self.lost or error
            return length
        if written is None:  # a pipe that is full, and does not wait
            self.lost = self.lost or BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return length if written is None else written


def install() -> None:
    """Let this process write to stdout and stderr as described above.

    A closed stream is given a place on which nothing can be written: else the next file that is opened would take its
    number, and what is printed would go there.
    """
    while (place := os.open(os.devnull, os.O_RDONLY)) <= _STDERR:
        pass
    os.close(place)
    sys.stdout, sys.stderr = _patient(sys.stdout, _STDOUT), _patient(sys.stderr, _STDERR)


def _patient(usual: TextIO | None, number: int) -> TextIO:
    encoding = "utf-8" if usual is None else usual.encoding
    at_once = number == _STDERR or os.isatty(number)
    file = io.BufferedWriter(_PatientFile(number, "w", closefd=False))
    return io.TextIOWrapper(file, encoding, errors="backslashreplace", line_buffering=at_once)


def why_lost(stream: TextIO) -> str | None:
    """Why some of what was printed on a stream did not get through; None if all did, or the reader had enough."""
    stream.flush()
    file = getattr(getattr(stream, "buffer", None), "raw", None)
    if not isinstance(file, _PatientFile) or file.lost is None or file.lost.errno == errno.EPIPE:
        return None  # `| head` closes the pipe once it has enough
    return "it is closed" if file.lost.errno == errno.EBADF else os.strerror(file.lost.errno or errno.EIO)


_POLARS, _KEPT_FOR = "_RJEM_MALLOC_CONF", "dirty_decay_ms:1000,muzzy_decay_ms:1000"  # jemalloc
_OF_GLIBC = {  # parameters of mallopt(3)
    -1: 128 << 20,  # M_TRIM_THRESHOLD: bytes that stay, free, at the end of the heap
    -3: 32 << 20,  # M_MMAP_THRESHOLD: bytes of an array from which on it goes back to the system at once
    -8: 2,  # M_ARENA_MAX: heaps, each of which keeps what is free in it
}


def keep_freed_memory() -> None:
    """Keep what is freed for a while. NumPy and Polars are loaded afterwards; other allocators stay as they are."""
    os.environ.setdefault(_POLARS, _KEPT_FOR)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter, value in _OF_GLIBC.items():
            mallopt(parameter, value)
