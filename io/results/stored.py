"""A result that stands somewhere: whether it is one, and whether it is whole."""

from collections.abc import Collection, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from posbias.core.errors import LogFormatError
from posbias.io.places.file_names import is_text
from posbias.io.places.local_copies import is_current, on_disk
from posbias.io.places.locations import Location
from posbias.io.places.plain_files import is_still, state_of
from posbias.io.results.manifest import FILE_NAME, Manifest, open_manifest

_REMEDY = "Copy the result again, or make it again."

_Type = TypeVar("_Type")


class _Described(msgspec.Struct, frozen=True):
    """What every manifest says."""

    command: str
    files: dict[str, int]


@dataclass(frozen=True)
class StoredResult:
    """A result, whole and unchanged.

    Attributes:
        folder: where its files are.
        command: what made it.
        files: their names.
        manifest: what is said of it.
    """

    folder: Path
    command: str
    files: Collection[str]
    manifest: Manifest

    @property
    def content(self) -> dict[str, Any]:
        """What the manifest holds."""
        return self.manifest.content

    def typed(self, as_type: type[_Type]) -> _Type:
        """The same, as fields of known types.

        Raises:
            LogFormatError: it holds something else.
        """
        return self.manifest.typed(as_type, LogFormatError, _REMEDY)


@contextmanager
def open_stored(place: Location, names: Collection[str]) -> Generator[StoredResult]:
    """A result of posbias; of one in an object store, a copy.

    Args:
        place: the directory, or the prefix.
        names: the files that are read beside the manifest, where they are there.

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
        said = manifest.typed(_Described, LogFormatError, _REMEDY)
        _check_whole(folder, said.files if isinstance(place, Path) else _of(said.files, names))
        yield StoredResult(folder, said.command, said.files, manifest)
        if not (is_still(manifest.path, manifest.state) and is_current(place)):
            raise LogFormatError(f"{folder}: was replaced while it was read. Run the command again.")


_NAME_ONE = "Name a directory that a command of posbias wrote with -o."


def check_directory(path: Path) -> None:
    """See that there is a directory.

    Raises:
        LogFormatError: there is none.
    """
    if not is_text(path):
        raise LogFormatError(f"{str(path)!a}: the name is not UTF-8, so that it cannot be read. Rename it.")
    try:
        kind = "is not there" if not path.exists() else "is a file" if not path.is_dir() else None
    except (OSError, ValueError) as error:
        raise LogFormatError(f"{path}: cannot be read: {error}.") from error
    if kind is not None:
        raise LogFormatError(f"{path}: {kind}. {_NAME_ONE}")


def _of(files: dict[str, int], names: Collection[str]) -> dict[str, int]:
    return {name: size for name, size in files.items() if name in names}


def _check_whole(folder: Path, files: dict[str, int]) -> None:
    """See that the files are there, as large as they were."""
    for name, size in files.items():
        try:
            found = state_of(folder / name).bytes
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise LogFormatError(f"{folder}: is damaged: {name} cannot be read ({why}). {_REMEDY}") from error
        if found != size:
            raise LogFormatError(f"{folder}: is damaged: {name} has {found:,} bytes, and had {size:,}. {_REMEDY}")
