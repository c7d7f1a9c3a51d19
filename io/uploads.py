"""Outputs in an object store: whole with their manifest, or without one, and then nobody reads them.

An object store has no rename. So a result is written on disk first, and uploaded when it is done:

1. a marker says that an upload is under way, which a later run may replace without being forced to;
2. the manifest of an old result goes, and with it the old result, as far as any reader is concerned;
3. the new objects are put, and what is left of the old ones is removed;
4. the new manifest is put, last, in one step, and the marker goes.

A reader that finds a manifest finds the result that it describes. A run that is stopped between 2 and 4 leaves no
result.
"""

from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from posbias.core.errors import ObjectStoreError, OutputError, OutputExistsError
from posbias.io.atomic import committing
from posbias.io.manifest import FILE_NAME
from posbias.io.object_stores import delete, list_objects, upload
from posbias.io.object_urls import ObjectUrl
from posbias.io.owned import owned_directory, temporary_files

_MARKER = "_posbias_unfinished"
_MARKER_TEXT = (
    b"posbias is uploading a result, or was stopped while it did. Without manifest.json nothing here is whole.\n"
)

_under_way: list[ObjectUrl] = []


def unfinished_upload() -> ObjectUrl | None:
    """Where this process has begun an upload and not ended it."""
    return _under_way[0] if _under_way else None


def is_unfinished(url: ObjectUrl) -> bool:
    """Whether an object marks the place of an upload that has not ended."""
    return url.name == _MARKER


@contextmanager
def uploaded_directory(
    target: ObjectUrl, *, force: bool, inputs: tuple[ObjectUrl, ...], temporary: Path
) -> Generator[Path]:
    """A directory to write into, which is uploaded when the block ends without an error.

    Args:
        target: the prefix below which the result will stand.
        force: whether what stands there is replaced, all of it.
        inputs: objects and prefixes that are read; a target that holds one of them is refused.
        temporary: where the directory is made.

    Raises:
        OutputExistsError: something is there, and `force` is not given.
        OutputError: the target must not be replaced, or there is no space for the directory.
        ObjectStoreError: the store cannot be reached, or does not let us write or delete.
    """
    if not target.key:
        raise OutputError(f"{target}: is a whole bucket. Name a prefix in it, such as {target}result.")
    _check_writable(target, _check_target(target, force=force, inputs=inputs))
    with owned_directory(temporary, "posbias-output-") as work:
        with temporary_files(work):
            yield work
        _upload_tree(work, target, _check_target(target, force=force, inputs=inputs))


def _check_target(target: ObjectUrl, *, force: bool, inputs: tuple[ObjectUrl, ...]) -> set[ObjectUrl]:
    """What stands there now, and may be replaced."""
    found = {entry.url for entry in list_objects(target)}
    held = [url for url in inputs if url.is_relative_to(target)]
    if found and not force and not _is_left_over(found, target):
        raise OutputExistsError(f"{target}: already exists. Choose another name, or replace it with --force.")
    if found and held:
        raise OutputError(f"{target}: holds {held[0]}, which would be deleted. Choose another prefix.")
    return found


def _is_left_over(found: set[ObjectUrl], target: ObjectUrl) -> bool:
    """Whether it is what an upload left that was stopped."""
    return target / _MARKER in found and target / FILE_NAME not in found


def _check_writable(target: ObjectUrl, found: set[ObjectUrl]) -> None:
    """See before the work begins, not after it, whether objects can be put and deleted there."""
    marker = target / _MARKER
    upload(_MARKER_TEXT, marker)
    if marker not in found:
        delete([marker])


def _upload_tree(work: Path, target: ObjectUrl, old: set[ObjectUrl]) -> None:
    marker, manifest = target / _MARKER, target / FILE_NAME
    files = {target / path.relative_to(work).as_posix(): path for path in sorted(work.rglob("*")) if path.is_file()}
    last = files.pop(manifest)
    _under_way.append(target)
    try:
        upload(_MARKER_TEXT, marker)
        delete([manifest])
        for url, path in files.items():
            upload(path, url)
        delete(old - files.keys() - {marker, manifest})
        with committing():
            upload(last, manifest)
    except ObjectStoreError as error:
        raise ObjectStoreError(f"{error} The result is not whole, and has no manifest.") from error
    finally:
        _under_way.clear()
    with suppress(ObjectStoreError):  # beside a manifest the marker says nothing
        delete([marker])
