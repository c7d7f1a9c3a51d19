"""Where a result is written: in a directory on disk, or below a prefix of an object store.

Outputs in an object store: whole with their manifest, or without one, and then nobody reads them.

An object store has no rename. So a result is written on disk first, and uploaded when it is done:

1. a marker says that an upload is under way, whose it is, and which objects belong to it or to the result that it
   replaces, so that a later run may replace those, and nothing else, without being forced to;
2. the manifest of an old result goes, and with it the old result, as far as any reader is concerned;
3. the new objects are put, and what is left of the old ones is removed;
4. if the marker is still that of this upload, the new manifest is put, last, in one step, and the marker goes.

A reader that finds a manifest finds the result that it describes. A run that is stopped between 2 and 4 leaves no
result. What neither a manifest nor a marker of posbias lists is never replaced or removed.
"""

import os
import secrets
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from posbias.core.errors import ObjectStoreError, OutputError, OutputExistsError
from posbias.io.places.locations import Location, ObjectUrl
from posbias.io.places.object_stores import delete, list_objects, read_object, upload
from posbias.io.places.ownership import owned_directory, system_temporary
from posbias.io.places.temporary import temporary_files
from posbias.io.results.manifest import FILE_NAME, listed_by
from posbias.io.results.outputs_on_disk import OnWait, Target, atomic_directory, resolved
from posbias.io.results.renames import begin_upload, committing, end_upload

_MARKER = "_posbias_unfinished"
_FORMAT = "posbias.upload/1"


class _Upload(msgspec.Struct, frozen=True):
    """The content of a marker."""

    format: str = _FORMAT  # of the marker
    # what a person who finds it must know
    about: str = "posbias is uploading a result, or was stopped while it did. Without manifest.json nothing is whole."
    token: str = msgspec.field(default_factory=lambda: secrets.token_hex(16))  # random, of this upload alone
    files: tuple[str, ...] = ()  # the objects that belong to it, by name below the prefix


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
        force: whether an older result that stands there is replaced.
        inputs: objects and prefixes that are read; a target that holds one of them is refused.
        temporary: where the directory is made.

    Raises:
        OutputExistsError: something is there, and `force` is not given.
        OutputError: the target must not be replaced, or there is no space for the directory.
        ObjectStoreError: the store cannot be reached, or does not let us write or delete.
    """
    _check_writable(target, check_prefix(target, force=force, inputs=inputs))
    with owned_directory(temporary) as work:
        with temporary_files(work):
            yield work
        _upload_tree(work, target, check_prefix(target, force=force, inputs=inputs))


def check_prefix(target: ObjectUrl, *, force: bool, inputs: tuple[ObjectUrl, ...]) -> set[ObjectUrl]:
    """The objects at a target, which may be replaced.

    Raises:
        OutputExistsError: something is there, and `force` is not given.
        OutputError: it must not be replaced.
        ObjectStoreError: the store cannot be reached.
    """
    if not target.key:
        raise OutputError(f"{target}: is a whole bucket. Name a prefix in it, such as {target}result.")
    there = {entry.url for entry in list_objects(target)}
    if not there:
        return there
    left_over = target / _MARKER in there and target / FILE_NAME not in there
    if not force and not left_over:
        raise OutputExistsError(f"{target}: already exists. Choose another name, or replace it with --force.")
    held = [url for url in inputs if url.is_relative_to(target)]
    if held:
        raise OutputError(f"{target}: holds {held[0]}, which would be deleted. Choose another prefix.")
    foreign = sorted(there - _of_posbias(target, there))
    if foreign:
        more = f" and {len(foreign) - 1:,} more" if len(foreign) > 1 else ""
        raise OutputError(
            f"{target}: {foreign[0]}{more} is not part of a result of posbias, as far as a manifest.json there says, "
            "and would be deleted. Move it away, or choose another prefix."
        )
    return there


def _of_posbias(target: ObjectUrl, there: set[ObjectUrl]) -> set[ObjectUrl]:
    """The objects that a manifest or a marker of posbias below the prefix lists, and these themselves."""
    listed: set[ObjectUrl] = set()
    manifest, marker = target / FILE_NAME, target / _MARKER
    if manifest in there and (described := listed_by(read_object(manifest))) is not None:
        listed |= {manifest, *_below(target, described.files)}
    if marker in there and (of_upload := _read_marker(marker)) is not None:
        listed |= {marker, *_below(target, of_upload.files)}
    return listed


def _below(target: ObjectUrl, names: Iterable[str]) -> set[ObjectUrl]:
    return {target / name for name in names}


def _read_marker(marker: ObjectUrl) -> _Upload | None:
    try:
        upload_of_marker = msgspec.json.decode(read_object(marker), type=_Upload)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return upload_of_marker if upload_of_marker.format == _FORMAT else None


def _check_writable(target: ObjectUrl, there: set[ObjectUrl]) -> None:
    """Check before the work begins, not after it, that objects can be put and deleted there."""
    marker = target / _MARKER
    if marker not in there:
        upload(msgspec.json.encode(_Upload()), marker)
        delete([marker])


def _upload_tree(work: Path, target: ObjectUrl, old: set[ObjectUrl]) -> None:
    marker, manifest = target / _MARKER, target / FILE_NAME
    files = {target / path.relative_to(work).as_posix(): path for path in sorted(work.rglob("*")) if path.is_file()}
    last = files.pop(manifest)
    names = sorted(str(url.path.relative_to(target.path)) for url in old | files.keys())
    ours = _Upload(files=tuple(names))
    begin_upload(str(target))
    try:
        upload(msgspec.json.encode(ours), marker)
        delete([manifest])
        for url, path in files.items():
            upload(path, url)
        delete(old - files.keys() - {marker, manifest})
        if _read_marker(marker) != ours:
            raise OutputError(f"{target}: another run is writing it. Run this one again when it has finished.")
        with committing():
            upload(last, manifest)
    except ObjectStoreError as error:
        raise ObjectStoreError(f"{error} The result is not whole, and has no manifest.") from error
    finally:
        end_upload()
    with suppress(ObjectStoreError):  # beside a manifest the marker says nothing
        delete([marker])


def check_output(target: Location, *, force: bool, protected: Sequence[Location]) -> bool:
    """Whether a result stands at a target; nothing is written to find out.

    Args:
        target: where a result would stand.
        force: whether an older result there is to be replaced.
        protected: what is read; a target that holds some of it is refused.

    Raises:
        OutputExistsError: the target is there, and `force` is not given.
        OutputError: the target must not be replaced, or is no directory.
        ObjectStoreError: the object store cannot be reached.
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
        ObjectStoreError: the object store cannot be reached.
    """
    if isinstance(target, ObjectUrl):
        urls = tuple(url for url in protected if isinstance(url, ObjectUrl))
        with uploaded_directory(target, force=force, inputs=urls, temporary=temporary or system_temporary()) as work:
            yield work
    else:
        paths = [path for path in protected if isinstance(path, Path)]
        with atomic_directory(target, force=force, protected=paths, on_wait=on_wait) as work:
            yield work
