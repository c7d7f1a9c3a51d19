"""Results on disk: written with a manifest, and opened by it.

It holds no time of day: the same input and options give the same bytes. What is read is data from outside: it may be
anything, of any size, and edited. A checksum of its own content tells what was changed after it was written.
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
from posbias.io.places.locations import (
    FileState,
    Location,
    check_inside,
    checksum,
    chunks_of,
    is_text,
    open_plain,
    plain_file,
    state_of,
)
from posbias.io.places.object_stores import is_current, on_disk

FILE_NAME = "manifest.json"
_DIGESTED = re.compile(r"(.*/)?(?!part-[0-9]+\.)[^/]+\.(parquet|npz|py|md|json)|[^/]+\.(txt|parquet/.*)")
"""Tables, models and programs; not the rows of training files, nor parts of statistics, which say their own."""

LARGEST = 64 << 20
"""Bytes of the largest manifest, that of about half a million log files; a larger file is none."""

_READ_BACK = ("counted", "key_types")
_CHECKSUM = "checksum"
_LIBRARIES = ("polars", "numpy", "scipy", "narwhals", "pyarrow")

_REMEDY = "Make the result again, or copy it again."
_NAME_ONE = "Name a directory that a command of posbias wrote with -o."

_Type = TypeVar("_Type")


class Described(msgspec.Struct, frozen=True):
    """Fields of every manifest."""

    command: str  # what made it
    versions: dict[str, str]  # of posbias and of libraries
    files: dict[str, int]  # their sizes by name
    digests: dict[str, str] = {}  # XXH3-128 of some, by name; of fewer in results of earlier versions

    def __post_init__(self) -> None:
        """Find names that lead out of the result."""
        for name in (*self.files, *self.digests):
            check_inside(name)


@dataclass(frozen=True)
class Manifest:
    """A manifest as it was read."""

    path: Path  # its file
    state: FileState  # which file that was
    content: dict[str, Any]  # what it holds

    def typed(self, as_type: type[_Type], error: type[PosbiasError] = LogFormatError, remedy: str = _REMEDY) -> _Type:
        """The content as fields of known types.

        Args:
            as_type: the fields.
            error: what is raised where it holds something else, or was changed after it was written.
            remedy: what is to be done then.
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
    """Write sections, plain or typed, the files of a result and the versions that made it as its last file; return it.

    Passwords and keys in it are masked, but for what says what was counted, which is read again to the letter.

    Raises:
        OutputError: it is larger than any that is read.
    """
    plain: dict[str, Any] = msgspec.to_builtins(content)
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    files.pop(FILE_NAME, None)
    manifest = {
        **{name: value if name in _READ_BACK else mask_secrets_in_values(value) for name, value in plain.items()},
        "files": {name: path.stat().st_size for name, path in files.items()},
        "digests": {name: digest_of(path) for name, path in files.items() if _DIGESTED.fullmatch(name)},
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
    """The versions of posbias and of what its numbers depend on."""
    return {name: version(name) for name in ("posbias", *_LIBRARIES)}


def digest_of(path: Path) -> str:
    """XXH3-128 of a plain file.

    Raises:
        OSError: it cannot be read.
    """
    with open_plain(path) as file:
        return checksum(chunks_of(file))


def json_text(content: object) -> str:
    """JSON to read, as in the file of a manifest: letters as they are, and unseen characters as escapes."""
    return escape_unseen_in_json(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)) + "\n"


def open_manifest(folder: Path) -> Manifest | None:
    """The manifest in a directory, whatever it says; None where there is none.

    Raises:
        LogFormatError: what has its name is no manifest.
    """
    path = folder / FILE_NAME
    try:
        with open_plain(path) as file:
            state = state_of(file)
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
    """Whether what a manifest holds is what was written."""
    return content.get(_CHECKSUM) == checksum_of_content(content)


def checksum_of_content(content: dict[str, Any]) -> str:
    """The same for the same content, however the file is laid out."""
    rest = {name: value for name, value in content.items() if name != _CHECKSUM}
    return checksum([json.dumps(rest, sort_keys=True).encode()])


def listed_in(folder: Path) -> Described | None:
    """What the manifest of a directory says of its files; None if it holds no manifest of posbias."""
    try:
        manifest = open_manifest(folder)
    except LogFormatError:
        return None
    return None if manifest is None else listed_by(manifest.content)


def listed_by(manifest: bytes | dict[str, Any]) -> Described | None:
    """What a manifest, or its content, says of the files of its result; None if it is none of posbias."""
    try:
        content = msgspec.json.decode(manifest) if isinstance(manifest, bytes) else manifest
        described = msgspec.convert(content, Described)
    except (ValueError, RecursionError):
        return None
    return described if "posbias" in described.versions and is_unchanged(content) else None


def foreign_in(folder: Path, described: Described) -> list[Path]:
    """Files in a directory that are not part of the result there, or have changed since; links are not followed."""
    folders = {parent for name in described.files for parent in PurePosixPath(name).parents}
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
            try:  # a file of the result has its size, and its digest if the manifest has one
                is_own = state_of(path).bytes == described.files.get(name)
                is_own = is_own and (name not in described.digests or digest_of(path) == described.digests[name])
            except OSError:
                is_own = False
            foreign += [] if is_own else [path]
    return foreign


@dataclass(frozen=True)
class StoredResult(Manifest):
    """A result, whole and unchanged."""

    folder: Path  # where its files are
    command: str  # what made it
    files: Collection[str]  # their names


@contextmanager
def open_stored(place: Location, names: Collection[str] = ()) -> Generator[StoredResult]:
    """A result of posbias, for whoever reads it; of one in an object store, a copy.

    What is read has the bytes that were written, by the digests in the manifest. Results of earlier versions have none:
    of their files, only the sizes are compared.

    Args:
        place: the directory, or the prefix.
        names: the files that are read beside the manifest, where they are there; a directory stands for all in it.

    Raises:
        LogFormatError: it is none, is damaged, or was replaced while it was read.
    """
    if isinstance(place, Path):
        if not is_text(place):
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
        described = manifest.typed(Described)
        _check_files(folder, described, names)
        yield StoredResult(manifest.path, manifest.state, manifest.content, folder, described.command, described.files)
        if plain_file(manifest.path) != manifest.state or not is_current(place):
            raise LogFormatError(f"{folder}: was replaced while it was read. Run the command again.")


def check_file(path: Path) -> None:
    """Check that a table that is named by itself is unchanged, where the manifest beside it is of the result it is in.

    Raises:
        LogFormatError: it has others.
    """
    try:
        manifest = open_manifest(path.parent)
        described = None if manifest is None else manifest.typed(Described)
    except LogFormatError:
        return  # of another program
    if described is not None and path.name in described.digests:
        _check_files(path.parent, described, (path.name,))


def _check_files(folder: Path, described: Described, names: Collection[str]) -> None:
    """Check that files have their sizes, and that those to read are there unchanged."""
    foreign = set(names) - {name.partition("/")[0] for name in described.files} - {FILE_NAME}
    for name in sorted(foreign):
        if os.path.lexists(folder / name):
            raise LogFormatError(f"{folder / name}: is not part of the result, as its manifest lists it. Remove it.")
    for name, size in described.files.items():
        path, is_read = folder / name, name.partition("/")[0] in names
        if not (is_read or os.path.lexists(path)):
            continue
        try:
            bytes_there = state_of(path).bytes
            digest = digest_of(path) if is_read and bytes_there == size and name in described.digests else None
        except OSError as error:
            raise LogFormatError(
                f"{folder}: is damaged: {name} cannot be read ({error.strerror}). {_REMEDY}"
            ) from error
        if bytes_there != size:
            raise LogFormatError(f"{folder}: is damaged: {name} has {bytes_there:,} bytes, and had {size:,}. {_REMEDY}")
        if digest is not None and digest != described.digests[name]:
            raise LogFormatError(f"{path}: is damaged: its bytes are not those that were written. {_REMEDY}")
