"""The manifest: what a result was made from and how, written last, so that it serves Make as the stamp.

It holds no time of day: the same input and options give the same bytes. What is read is data from outside: it may be
anything, of any size, and edited. A checksum of its own content tells what was changed after it was written.
"""

import errno
import json
import re
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from io import FileIO
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

from posbias.core.credentials import masked_values
from posbias.core.errors import LogFormatError, OutputError, PosbiasError
from posbias.core.escapes import escaped_json
from posbias.io.places.file_names import check_inside
from posbias.io.places.plain_files import FileState, checksum, chunks_of, open_plain, state_of_open

FILE_NAME = "manifest.json"
READ_AGAIN = re.compile(r"(?!part-[0-9]+\.)[^/]+\.(parquet(/.*)?|npz|txt)")
"""Files of a result that commands read again; parts of statistics have their digests beside their names."""

LARGEST = 64 << 20
"""Bytes of the largest manifest, that of about half a million log files; a larger file is none."""

_READ_BACK = ("counted", "key_types")
_CHECKSUM = "checksum"
_LIBRARIES = ("polars", "numpy", "scipy", "narwhals", "pyarrow")

_Type = TypeVar("_Type")


class Described(msgspec.Struct, frozen=True):
    """What every manifest says of its result."""

    command: str  # what made it
    versions: dict[str, str]  # of posbias and of libraries
    files: dict[str, int]  # their sizes by name
    digests: dict[str, str] = {}  # XXH3-128 of those that are read again, by name; none in results of earlier versions

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

    def typed(self, as_type: type[_Type], error: type[PosbiasError], remedy: str) -> _Type:
        """What it holds, as fields of known types.

        Args:
            as_type: the fields.
            error: what is raised where it holds something else, or was changed after it was written.
            remedy: what is to be done then.
        """
        try:
            found = msgspec.convert(self.content, as_type)
            unchanged = is_unchanged(self.content)
        except (msgspec.ValidationError, RecursionError) as fault:
            raise error(f"{self.path}: is damaged: {fault}. {remedy}") from fault
        if not unchanged:
            raise error(f"{self.path}: was changed after it was written: its checksum does not match. {remedy}")
        return found


def write_manifest(folder: Path, content: dict[str, Any]) -> dict[str, Any]:
    """Write sections, plain or typed, the files of a result and the versions that made it as its last file; return it.

    Passwords and keys in it are masked, but for what says what was counted, which is read again to the letter.

    Raises:
        OutputError: it is larger than any that is read.
    """
    plain: dict[str, Any] = msgspec.to_builtins(content)
    manifest = {
        **{name: value if name in _READ_BACK else masked_values(value) for name, value in plain.items()},
        "files": list_files(folder),
        "digests": {name: digest_of(folder / name) for name in list_files(folder) if READ_AGAIN.fullmatch(name)},
        "versions": versions(),
    }
    manifest[_CHECKSUM] = checksum_of_content(json.loads(manifest_text(manifest)))
    text = manifest_text(manifest).encode()
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


def list_files(folder: Path) -> dict[str, int]:
    """The files of a result and their sizes in bytes, by name within it, but for the manifest."""
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {name: path.stat().st_size for name, path in files.items() if name != FILE_NAME}


def digest_of(path: Path) -> str:
    """XXH3-128 of a plain file.

    Raises:
        OSError: it cannot be read.
    """
    with open_plain(path) as file:
        return checksum(chunks_of(file))


def manifest_text(manifest: dict[str, Any]) -> str:
    """A manifest as it stands in its file."""
    return json_text(manifest)


def json_text(content: object) -> str:
    """JSON to read: letters as they are, and unseen characters as escapes."""
    return escaped_json(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)) + "\n"


def open_manifest(folder: Path) -> Manifest | None:
    """The manifest in a directory, whatever it says; None where there is none.

    Raises:
        LogFormatError: what has its name is no manifest.
    """
    path = folder / FILE_NAME
    try:
        with open_plain(path) as file:
            state = state_of_open(file)
            text = _text_of(file, state.bytes)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LogFormatError(f"{path}: cannot be read: {error.strerror}.") from error
    try:
        content: object = msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:
        raise LogFormatError(f"{path}: is damaged: {error}.") from error
    if not isinstance(content, dict):
        raise LogFormatError(f"{path}: is damaged: it holds no JSON object.")
    return Manifest(path, state, cast("dict[str, Any]", content))


def _text_of(file: FileIO, size: int) -> bytes:
    if size > LARGEST:
        raise OSError(errno.EFBIG, f"it has {size:,} bytes, and a manifest has {LARGEST:,} at most")
    return file.read(size)


def is_unchanged(content: object) -> bool:
    """Whether what a manifest holds is what was written."""
    if not isinstance(content, dict):
        return False
    held = cast("dict[str, Any]", content)
    return held.get(_CHECKSUM) == checksum_of_content(held)


def checksum_of_content(content: dict[str, Any]) -> str:
    """The same for the same content, however the file is laid out."""
    rest = {name: value for name, value in content.items() if name != _CHECKSUM}
    return checksum([json.dumps(rest, sort_keys=True).encode()])
