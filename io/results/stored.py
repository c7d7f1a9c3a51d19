"""A result that stands somewhere: whether it is one, and whether it is whole. Every command opens results here."""

import os
from collections.abc import Collection, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISDIR
from typing import Any, TypeVar

from posbias.core.errors import LogFormatError
from posbias.io.places.file_names import is_text
from posbias.io.places.local_copies import is_current, on_disk
from posbias.io.places.locations import Location
from posbias.io.places.plain_files import is_still, state_of
from posbias.io.results.manifest import FILE_NAME, Described, Manifest, digest_of, open_manifest

_REMEDY = "Make the result again, or copy it again."

_Fields = TypeVar("_Fields")


@dataclass(frozen=True)
class StoredResult:
    """A result, whole and unchanged."""

    folder: Path  # where its files are
    command: str  # what made it
    files: Collection[str]  # their names
    manifest: Manifest  # what is said of it

    @property
    def content(self) -> dict[str, Any]:
        """What the manifest holds."""
        return self.manifest.content

    def typed(self, as_type: type[_Fields]) -> _Fields:
        """The same, as fields of known types.

        Raises:
            LogFormatError: it holds something else.
        """
        return self.manifest.typed(as_type, LogFormatError, _REMEDY)


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
        check_directory(place)
    with on_disk(place, {FILE_NAME, *names}) as folder:
        manifest = open_manifest(folder)
        if manifest is None:
            raise LogFormatError(f"{folder}: holds no {FILE_NAME}, so it is no result of posbias. {_NAME_ONE}")
        versions = manifest.content.get("versions")
        if not isinstance(versions, dict) or "posbias" not in versions:
            raise LogFormatError(f"{manifest.path}: was not written by posbias. {_NAME_ONE}")
        described = manifest.typed(Described, LogFormatError, _REMEDY)
        _check_files(folder, described, names)
        yield StoredResult(folder, described.command, described.files, manifest)
        if not (is_still(manifest.path, manifest.state) and is_current(place)):
            raise LogFormatError(f"{folder}: was replaced while it was read. Run the command again.")


def check_file(path: Path) -> None:
    """See that a table that is named by itself has its bytes, where the manifest beside it is of the result it is in.

    Raises:
        LogFormatError: it has others.
    """
    try:
        manifest = open_manifest(path.parent)
        described = None if manifest is None else manifest.typed(Described, LogFormatError, _REMEDY)
    except LogFormatError:
        return  # of another program
    if described is not None and path.name in described.digests:
        _check_files(path.parent, described, (path.name,))


_NAME_ONE = "Name a directory that a command of posbias wrote with -o."


def check_directory(path: Path) -> None:
    """See that there is a directory.

    Raises:
        LogFormatError: there is none.
    """
    if not is_text(path):
        raise LogFormatError(f"{str(path)!a}: the name is not UTF-8, so that it cannot be read. Rename it.")
    try:
        kind = None if S_ISDIR(path.stat().st_mode) else "is a file"
    except (FileNotFoundError, NotADirectoryError):
        kind = "is not there"
    except (OSError, ValueError) as error:
        raise LogFormatError(f"{path}: cannot be read: {error}.") from error
    if kind is not None:
        raise LogFormatError(f"{path}: {kind}. {_NAME_ONE}")


def _check_files(folder: Path, described: Described, names: Collection[str]) -> None:
    """See that the files that are there have their sizes, and those that are read are there with their bytes."""
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
