"""Results and statistics in object stores: copied beside the temporary files, and then read like those on disk.

They are small, and read several times in a command. A copy lives as long as the command.
"""

import errno
from collections.abc import Collection, Generator, Iterable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from posbias.core.errors import OutputError, PosbiasError
from posbias.io.places.locations import Location, ObjectUrl
from posbias.io.places.object_stores import StoredObject, download, forget_stores, list_objects
from posbias.io.temporary.directories import owned_directory, system_temporary
from posbias.io.temporary.files import temporary_files

_NO_FILE = (errno.ENAMETOOLONG, errno.EEXIST, errno.ENOTDIR, errno.EISDIR)
"""What a disk says of names that only an object store can hold: one of 300 bytes, `a` beside `a/b`."""


@dataclass(frozen=True)
class _Copy:
    """Objects, as they were listed, and where their copies are."""

    names: Collection[str] | None
    objects: list[StoredObject]
    folder: Path


class _Copies:
    """The copies of one command, in a directory that is made when there is a first one."""

    def __init__(self) -> None:
        self.parent: Path | None = None
        self._places = ExitStack()
        self._folder: Path | None = None
        self._number = 0
        self._by_url: dict[ObjectUrl, _Copy] = {}

    def of(self, url: ObjectUrl, names: Collection[str] | None) -> Path:
        """The directory that holds the objects below a prefix, or those of the given names, as they are now."""
        objects = _listed(url, names)
        copy = self._by_url.get(url)
        if copy is None or copy.objects != objects:
            copy = _Copy(names, objects, self.new_folder())
            with temporary_files(copy.folder):
                _download_all(url, objects, copy.folder)
            self._by_url[url] = copy
        return copy.folder

    def is_current(self, url: ObjectUrl) -> bool:
        """Whether the objects are still those that were copied."""
        copy = self._by_url.get(url)
        return copy is None or copy.objects == _listed(url, copy.names)

    def new_folder(self) -> Path:
        """A directory for copies."""
        if self._folder is None:
            self._folder = self._places.enter_context(owned_directory(self.parent or system_temporary()))
        self._number += 1
        folder = self._folder / str(self._number)
        folder.mkdir()
        return folder

    def remove(self) -> None:
        """Remove all of them."""
        self._places.close()
        self._folder = None
        self._by_url.clear()


_copies = _Copies()


@contextmanager
def copies_below(temporary: Path | None) -> Generator[None]:
    """In this block, copies of what stands in object stores lie below a directory for temporary files.

    Each is made once, and again if what it was made of has changed when it is next asked for.
    """
    _copies.parent = temporary
    try:
        yield
    finally:
        _copies.remove()
        forget_stores()


def folder_for_copies() -> Path:
    """A new directory for copies of what cannot be read where it is; it lives as long as the command."""
    return _copies.new_folder().absolute()


@contextmanager
def on_disk(place: Location, names: Collection[str] | None = None) -> Generator[Path]:
    """A directory as it is, or a copy of it, for as long as the command runs. Errors name what it is a copy of.

    Args:
        place: a directory, or a prefix of an object store.
        names: the files that are needed, or the directories with all in them; None for all.

    Raises:
        ObjectStoreError: the store cannot be asked.
        OutputError: there is no space for the copy.
    """
    if isinstance(place, Path):
        yield place
        return
    folder = _copies.of(place, names)
    try:
        yield folder
    except PosbiasError as error:
        raise type(error)(str(error).replace(str(folder), str(place))) from error


def is_current(place: Location) -> bool:
    """Whether what was copied is still what stands there; what stands on disk was not copied.

    Raises:
        ObjectStoreError: the store cannot be asked.
    """
    return isinstance(place, Path) or _copies.is_current(place)


def _listed(url: ObjectUrl, names: Collection[str] | None) -> list[StoredObject]:
    return [entry for entry in list_objects(url) if names is None or _name(entry, url).partition("/")[0] in names]


def _name(entry: StoredObject, url: ObjectUrl) -> str:
    return str(entry.url.path.relative_to(url.path))


def _download_all(url: ObjectUrl, objects: Iterable[StoredObject], folder: Path) -> None:
    for entry in objects:
        path = folder / _name(entry, url)
        if not path.resolve().is_relative_to(folder.resolve()):
            raise OutputError(f"{entry.url}: cannot be copied: its name leads out of the directory.")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            download(entry.url, path)
        except OSError as error:
            if error.errno not in _NO_FILE:
                raise
            raise OutputError(f"{entry.url}: cannot be copied to a file: {error.strerror}. Remove it.") from error
