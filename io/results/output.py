"""Where a result is written: in a directory on disk, or below a prefix of an object store."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from posbias.io.places.locations import Location, ObjectUrl
from posbias.io.results.atomic import OnWait, atomic_directory
from posbias.io.results.uploads import uploaded_directory
from posbias.io.temporary.directories import system_temporary


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
