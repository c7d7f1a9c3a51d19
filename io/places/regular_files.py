"""Small files that are read whole."""

import errno
import os
import stat
from pathlib import Path


def read_regular(path: Path) -> bytes:
    """The content of a file.

    Raises:
        OSError: it is not there, cannot be read, or is no regular file: to open a FIFO would wait for ever.
    """
    with open(path, "rb", opener=_open_at_once) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "Not a regular file", str(path))
        return file.read()


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)
