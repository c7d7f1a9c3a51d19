"""Where a result is written: in a directory on disk, or below a prefix of an object store."""

import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from posbias.io.atomic import atomic_directory
from posbias.io.object_urls import Location, ObjectUrl
from posbias.io.uploads import uploaded_directory


@contextmanager
def output_directory(
    target: Location, *, force: bool, inputs: Sequence[Location], temporary: Path | None
) -> Generator[Path]:
    """A directory to write into, which becomes `target` when the block ends without an error.

    Args:
        target: where the result will stand.
        force: whether an existing target is replaced.
        inputs: what is read; a target that holds some of it is refused.
        temporary: where temporary files go, None for the system's place.

    Raises:
        OutputExistsError: the target is there, and `force` is not given.
        OutputError: the target cannot be written, or must not be replaced.
        ObjectStoreError: the object store cannot be asked.
    """
    if isinstance(target, ObjectUrl):
        urls = tuple(url for url in inputs if isinstance(url, ObjectUrl))
        place = temporary or Path(tempfile.gettempdir())
        with uploaded_directory(target, force=force, inputs=urls, temporary=place) as work:
            yield work
    else:
        paths = tuple(path for path in inputs if isinstance(path, Path))
        with atomic_directory(target, force=force, inputs=paths) as work:
            yield work
