"""Manifests of results: written as the last file of a result, and validated when it is opened.

A manifest contains no time of day: the same input and options give the same bytes. A manifest that is read is
untrusted: it may have any content and size. A checksum of its content detects later changes.
"""

import json
import os
import re
from collections.abc import Collection, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from stat import S_ISDIR
from typing import Any, TypeVar, cast

import msgspec

from posbias.core.errors import LogFormatError, OutputError, PosbiasError, escape_unseen_in_json, mask_secrets_in_values
from posbias.io.places import locations
from posbias.io.places.locations import FileState, Location
from posbias.io.places.object_stores import is_current, on_disk

FILE_NAME = "manifest.json"
_DIGESTED = re.compile(r"(.*/)?(?!part-[0-9]+\.)[^/]+\.(parquet|npz|py|md|json)|[^/]+\.(txt|parquet/.*)")
"""Files with a digest: tables, models and programs; not rows of training files, nor parts of statistics, whose own
metadata has their checksums."""

LARGEST = 64 << 20
"""Bytes of the largest manifest, enough for about half a million log files."""

_UNMASKED = ("counted", "key_types")  # sections that later commands parse
_CHECKSUM = "checksum"
_LIBRARIES = ("polars", "numpy", "scipy", "narwhals", "pyarrow")

_REMEDY = "Make the result again, or copy it again."
_NAME_ONE = "Name a directory that a command of posbias wrote with -o."

_Type = TypeVar("_Type")


class FileListing(msgspec.Struct, frozen=True):
    """The fields of a manifest about its files."""

    command: str  # that made the result
    versions: dict[str, str]  # of posbias and libraries
    files: dict[str, int]  # sizes by name
    digests: dict[str, str] = {}  # XXH3-128 of files that match `_DIGESTED`, by name; earlier versions have fewer

    def __post_init__(self) -> None:
        """Raise ValueError for a name that leads out of the result."""
        for name in (*self.files, *self.digests):
            locations.check_inside(name)


@dataclass(frozen=True)
class Manifest:
    """A parsed manifest, not yet validated."""

    path: Path  # its file
    state: FileState  # inode, size and modification time of the file when it was read
    content: dict[str, Any]  # the JSON object

    def typed(self, as_type: type[_Type], error: type[PosbiasError] = LogFormatError, remedy: str = _REMEDY) -> _Type:
        """Convert the content to a struct.

        Args:
            as_type: the struct.
            error: the class to raise if the content does not fit the struct or its checksum.
            remedy: the advice in that error.
        """
        try:
            fields = msgspec.convert(self.content, as_type)
            unchanged = is_unchanged(self.content)
        except (msgspec.ValidationError, RecursionError) as fault:
            raise error(f"{self.path}: is damaged: {fault}. {remedy}") from fault
        if not unchanged:
            raise error(f"{self.path}: was changed after it was written: its checksum does not match. {remedy}")
        return fields


def write_manifest(folder: Path, content: dict[str, Any]) -> dict[str, Any]:
    """Write the manifest of a finished result, with its files and the versions of software; return the content.

    Passwords and keys are masked, except in `_UNMASKED` sections.

    Args:
        folder: with all other files of the result.
        content: its sections, as plain data or structs.

    Raises:
        OutputError: the manifest would be larger than `LARGEST`.
    """
    plain: dict[str, Any] = msgspec.to_builtins(content)
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    files.pop(FILE_NAME, None)
    manifest = {
        **{name: value if name in _UNMASKED else mask_secrets_in_values(value) for name, value in plain.items()},
        "files": {name: path.stat().st_size for name, path in files.items()},
        "digests": {name: file_checksum(path) for name, path in files.items() if _DIGESTED.fullmatch(name)},
        "versions": versions(),
    }
    manifest[_CHECKSUM] = checksum_of_content(json.loads(json.dumps(manifest)))
    text = json_text(manifest).encode()
    if len(text) > LARGEST:
        raise OutputError(
            f"{FILE_NAME}: would have {len(text):,} bytes, and one above {LARGEST:,} is not read. Are there so many "
            "log files? Join small ones, and collect them in groups."
        )
    (folder / FILE_NAME).write_bytes(text)
    return manifest


@cache
def versions() -> dict[str, str]:
    """Return the versions of posbias and of libraries that its numbers depend on."""
    return {name: version(name) for name in ("posbias", *_LIBRARIES)}


def file_checksum(path: Path) -> str:
    """Return the XXH3-128 checksum of a plain file.

    Raises:
        OSError: the file cannot be read.
    """
    with locations.open_plain(path) as file:
        return locations.checksum(locations.chunks_of(file))


def json_text(content: object) -> str:
    """Return indented JSON, with invisible characters escaped and other letters as they are."""
    return escape_unseen_in_json(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)) + "\n"


def open_manifest(folder: Path) -> Manifest | None:
    """Parse the manifest in a directory; None if there is no such file.

    Raises:
        LogFormatError: the file cannot be read, is too large, or holds no JSON object.
    """
    path = folder / FILE_NAME
    try:
        with locations.open_plain(path) as file:
            state = locations.state_of(file)
            text = b"" if state.bytes > LARGEST else file.read(state.bytes)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LogFormatError(f"{path}: cannot be read: {error.strerror}.") from error
    if state.bytes > LARGEST:
        raise LogFormatError(
            f"{path}: cannot be read: it has {state.bytes:,} bytes, and a manifest has {LARGEST:,} at most."
        )
    try:
        content: object = msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:
        raise LogFormatError(f"{path}: is damaged: {error}.") from error
    if not isinstance(content, dict):
        raise LogFormatError(f"{path}: is damaged: it holds no JSON object.")
    return Manifest(path, state, cast("dict[str, Any]", content))


def is_unchanged(content: dict[str, Any]) -> bool:
    """Whether the content of a manifest has its checksum."""
    return content.get(_CHECKSUM) == checksum_of_content(content)


def checksum_of_content(content: dict[str, Any]) -> str:
    """Return the checksum of a manifest's content without its checksum; independent of order and white space."""
    rest = {name: value for name, value in content.items() if name != _CHECKSUM}
    return locations.checksum([json.dumps(rest, sort_keys=True).encode()])


def read_listing(folder: Path) -> FileListing | None:
    """Return the file listing of the result in a directory; None if it has no valid manifest of posbias."""
    try:
        manifest = open_manifest(folder)
    except LogFormatError:
        return None
    return None if manifest is None else parse_listing(manifest.content)


def parse_listing(manifest: bytes | dict[str, Any]) -> FileListing | None:
    """Return the file listing in the bytes or the content of a manifest; None if it is no valid manifest of posbias."""
    try:
        content = msgspec.json.decode(manifest) if isinstance(manifest, bytes) else manifest
        listing = msgspec.convert(content, FileListing)
    except (ValueError, RecursionError):
        return None
    return listing if "posbias" in listing.versions and is_unchanged(content) else None


def foreign_files(folder: Path, listing: FileListing) -> list[Path]:
    """Return files of a directory that are not in the listing, or have changed; links are not followed."""
    folders = {parent for name in listing.files for parent in PurePosixPath(name).parents}
    foreign: list[Path] = []
    for at, below, names in os.walk(folder):
        inside = PurePosixPath(Path(at).relative_to(folder).as_posix())
        for name in sorted(below):
            if inside / name not in folders or (Path(at) / name).is_symlink():
                foreign.append(Path(at) / name)
                below.remove(name)
        for file in sorted(names):
            name, path = str(inside / file), Path(at) / file
            if name == FILE_NAME:
                continue
            try:
                matches = locations.state_of(path).bytes == listing.files.get(name) and (
                    name not in listing.digests or file_checksum(path) == listing.digests[name]
                )
            except OSError:
                matches = False
            foreign += [] if matches else [path]
    return foreign


@dataclass(frozen=True)
class StoredResult(Manifest):
    """The validated manifest of a result whose files are complete and unchanged."""

    folder: Path  # with its files
    command: str  # that made it
    files: Collection[str]  # names


@contextmanager
def open_stored(place: Location, names: Collection[str] = ()) -> Generator[StoredResult]:
    """Open a result for reading; from an object store, a copy on disk.

    Sizes of existing files are compared with the manifest, and digests of files to be read; results of earlier versions
    have no digests.

    Args:
        place: the directory, or the prefix.
        names: files to be read beside the manifest, if they exist; the name of a directory stands for its files.

    Raises:
        LogFormatError: there is no result, it is damaged, or it was replaced while the block ran.
    """
    if isinstance(place, Path):
        if not locations.is_text(place):
            raise LogFormatError(f"{str(place)!a}: the name is not UTF-8, so that it cannot be read. Rename it.")
        try:
            kind = None if S_ISDIR(place.stat().st_mode) else "is a file"
        except (FileNotFoundError, NotADirectoryError):
            kind = "is not there"
        except (OSError, ValueError) as error:
            raise LogFormatError(f"{place}: cannot be read: {error}.") from error
        if kind is not None:
            raise LogFormatError(f"{place}: {kind}. {_NAME_ONE}")
    with on_disk(place, {FILE_NAME, *names}) as folder:
        manifest = open_manifest(folder)
        if manifest is None:
            raise LogFormatError(f"{folder}: holds no {FILE_NAME}, so it is no result of posbias. {_NAME_ONE}")
        versions = manifest.content.get("versions")
        if not isinstance(versions, dict) or "posbias" not in versions:
            raise LogFormatError(f"{manifest.path}: was not written by posbias. {_NAME_ONE}")
        listing = manifest.typed(FileListing)
        _check_files(folder, listing, names)
        yield StoredResult(manifest.path, manifest.state, manifest.content, folder, listing.command, listing.files)
        if locations.plain_file(manifest.path) != manifest.state or not is_current(place):
            raise LogFormatError(f"{folder}: was replaced while it was read. Run the command again.")


def check_table_digest(path: Path) -> None:
    """Check a table against its digest, if a manifest beside it lists the table.

    Raises:
        LogFormatError: the table is damaged, or was changed.
    """
    try:
        manifest = open_manifest(path.parent)
        listing = None if manifest is None else manifest.typed(FileListing)
    except LogFormatError:
        return  # a manifest of another program
    if listing is not None and path.name in listing.digests:
        _check_files(path.parent, listing, (path.name,))


def _check_files(folder: Path, listing: FileListing, names: Collection[str]) -> None:
    """Raise LogFormatError for a file of another size than listed, and for a missing or changed file among `names`."""
    foreign = set(names) - {name.partition("/")[0] for name in listing.files} - {FILE_NAME}
    for name in sorted(foreign):
        if os.path.lexists(folder / name):
            raise LogFormatError(f"{folder / name}: is not part of the result, as its manifest lists it. Remove it.")
    for name, size in listing.files.items():
        path, is_read = folder / name, name.partition("/")[0] in names
        if not (is_read or os.path.lexists(path)):
            continue
        try:
            bytes_there = locations.state_of(path).bytes
            digest = file_checksum(path) if is_read and bytes_there == size and name in listing.digests else None
        except OSError as error:
            raise LogFormatError(
                f"{folder}: is damaged: {name} cannot be read ({error.strerror}). {_REMEDY}"
            ) from error
        if bytes_there != size:
            raise LogFormatError(f"{folder}: is damaged: {name} has {bytes_there:,} bytes, and had {size:,}. {_REMEDY}")
        if digest is not None and digest != listing.digests[name]:
            raise LogFormatError(f"{path}: is damaged: its bytes are not those that were written. {_REMEDY}")
