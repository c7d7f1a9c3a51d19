"""Outputs in an object store: whole with their manifest, or without one, and then nobody reads them.

An object store has no rename. So a result is written on disk first, and uploaded when it is done:

1. a marker says that an upload is under way, whose it is, and which objects belong to it or to the result that it
   replaces, so that a later run may replace those, and nothing else, without being forced to;
2. the manifest of an old result goes, and with it the old result, as far as any reader is concerned;
3. the new objects are put, and what is left of the old ones is removed;
4. if the marker is still that of this upload, the new manifest is put, last, in one step, and the marker goes.

A reader that finds a manifest finds the result that it describes. A run that is stopped between 2 and 4 leaves no
result. What neither a manifest nor a marker of posbias lists is never replaced or removed.
"""

import secrets
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from posbias.core.errors import ObjectStoreError, OutputError, OutputExistsError
from posbias.io.places.locations import ObjectUrl
from posbias.io.places.object_stores import delete, list_objects, read_object, upload
from posbias.io.results.files import listed_by
from posbias.io.results.manifest import FILE_NAME
from posbias.io.results.renames import begin_upload, committing, end_upload
from posbias.io.temporary.directories import owned_directory
from posbias.io.temporary.files import temporary_files

_MARKER = "_posbias_unfinished"
_FORMAT = "posbias.upload/1"


class _Upload(msgspec.Struct, frozen=True):
    """What a marker says."""

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
    """What stands at a target now, and may be replaced.

    Raises:
        OutputExistsError: something is there, and `force` is not given.
        OutputError: it must not be replaced.
        ObjectStoreError: the store cannot be reached.
    """
    if not target.key:
        raise OutputError(f"{target}: is a whole bucket. Name a prefix in it, such as {target}result.")
    found = {entry.url for entry in list_objects(target)}
    if not found:
        return found
    left_over = target / _MARKER in found and target / FILE_NAME not in found
    if not force and not left_over:
        raise OutputExistsError(f"{target}: already exists. Choose another name, or replace it with --force.")
    held = [url for url in inputs if url.is_relative_to(target)]
    if held:
        raise OutputError(f"{target}: holds {held[0]}, which would be deleted. Choose another prefix.")
    foreign = sorted(found - _of_posbias(target, found))
    if foreign:
        more = f" and {len(foreign) - 1:,} more" if len(foreign) > 1 else ""
        raise OutputError(
            f"{target}: {foreign[0]}{more} is not part of a result of posbias, as far as a manifest.json there says, "
            "and would be deleted. Move it away, or choose another prefix."
        )
    return found


def _of_posbias(target: ObjectUrl, found: set[ObjectUrl]) -> set[ObjectUrl]:
    """The objects that a manifest or a marker of posbias below the prefix lists, and these themselves."""
    listed: set[ObjectUrl] = set()
    manifest, marker = target / FILE_NAME, target / _MARKER
    if manifest in found and (files := listed_by(read_object(manifest))) is not None:
        listed |= {manifest, *_below(target, files)}
    if marker in found and (of_upload := _read_marker(marker)) is not None:
        listed |= {marker, *_below(target, of_upload.files)}
    return listed


def _below(target: ObjectUrl, names: Iterable[str]) -> set[ObjectUrl]:
    return {target / name for name in names}


def _read_marker(marker: ObjectUrl) -> _Upload | None:
    try:
        found = msgspec.json.decode(read_object(marker), type=_Upload)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return found if found.format == _FORMAT else None


def _check_writable(target: ObjectUrl, found: set[ObjectUrl]) -> None:
    """See before the work begins, not after it, whether objects can be put and deleted there."""
    marker = target / _MARKER
    if marker not in found:
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
