"""What of this process's result already stands: whoever ends the process on a signal asks here, and needs no more."""

import threading
from collections.abc import Generator
from contextlib import contextmanager

from posbias.core.escapes import escaped

commit_lock = threading.Lock()
"""Held while a result moves into place; who ends the process on a signal takes it first."""

_committed = threading.Event()
_uploads: list[str] = []


def is_committed() -> bool:
    """Whether this process has put a result into place, so that ending it must not claim that nothing was written."""
    return _committed.is_set()


@contextmanager
def committing() -> Generator[None]:
    """The step that puts a result into place: no signal ends the process within it, nor says "nothing" after it."""
    with commit_lock:
        yield
        _committed.set()


def begin_upload(target: str) -> None:
    """Note that an upload has begun, and where to."""
    _uploads.append(target)


def end_upload() -> None:
    """Note that the upload is whole, or removed."""
    _uploads.clear()


def unfinished_upload() -> str | None:
    """Where this process has begun an upload and not ended it, as it can be printed."""
    return escaped(_uploads[0]) if _uploads else None
