"""Where a result is written: in a directory on disk, or below a prefix of an object store."""

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from posbias.core.errors import OutputError
from posbias.io.places.locations import Location, ObjectUrl
from posbias.io.results.atomic import OnWait, atomic_directory
from posbias.io.results.target import Target, resolved
from posbias.io.results.uploads import check_prefix, uploaded_directory
from posbias.io.temporary.directories import system_temporary


def check_output(target: Location, *, force: bool, protected: Sequence[Location]) -> bool:
    """Whether a result stands at a target; nothing is written to find out.

    Args:
        target: where a result would stand.
        force: whether an older result there is to be replaced.
        protected: what is read; a target that holds some of it is refused.

    Raises:
        OutputExistsError: the target is there, and `force` is not given.
        OutputError: the target must not be replaced, or is no directory.
        ObjectStoreError: the object store cannot be asked.
    """
    if isinstance(target, ObjectUrl):
        urls = tuple(url for url in protected if isinstance(url, ObjectUrl))
        return bool(check_prefix(target, force=force, inputs=urls))
    paths = tuple(path for path in protected if isinstance(path, Path))
    place = Target(target, resolved(target), force, paths)
    place.check()
    if not os.access(place.beside, os.W_OK | os.X_OK):
        raise OutputError(f"cannot write {target}: {place.beside} is read-only.")
    return place.path.exists()


@contextmanager
def output_directory(
    target: Location,
    *,
    force: bool,
    protected: Sequence[Location],
    temporary: Path | None,
    on_wait: OnWait | None = None,
) -> Generator[Path]:
    """A directory to write into, which becomes `target` when the block ends without an error.

    Args:
        target: where the result will stand.
        force: whether an older result there is replaced.
        protected: what is read, or written meanwhile; a target that holds some of it is refused.
        temporary: where temporary files go, None for the system's place.
        on_wait: called when another process writes the directory, to wait until that has ended; None is an error then.
            In an object store it is always one.

    Raises:
        OutputExistsError: the target is there, and `force` is not given.
        OutputError: the target cannot be written, or must not be replaced.
        ObjectStoreError: the object store cannot be asked.
    """
    if isinstance(target, ObjectUrl):
        urls = tuple(url for url in protected if isinstance(url, ObjectUrl))
        with uploaded_directory(target, force=force, inputs=urls, temporary=temporary or system_temporary()) as work:
            yield work
    else:
        paths = [path for path in protected if isinstance(path, Path)]
        with atomic_directory(target, force=force, protected=paths, on_wait=on_wait) as work:
            yield work
