"""Results and statistics in object stores: copied beside the temporary files, and then read like those on disk.

They are small, and read several times in a command. A copy lives as long as the command.
"""

from collections.abc import Collection, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from posbias.core.errors import OutputError, PosbiasError
from posbias.io.object_stores import download, forget_stores, list_objects
from posbias.io.object_urls import Location, ObjectUrl
from posbias.io.owned import owned_directory, temporary_files
from posbias.io.temporary_place import temporary_place


class _Copies:
    """The copies of one command, in a directory that is made when there is a first one."""

    def __init__(self) -> None:
        self.parent: Path | None = None
        self._places = ExitStack()
        self._folder: Path | None = None
        self._by_url: dict[ObjectUrl, Path] = {}

    def of(self, url: ObjectUrl, names: Collection[str] | None) -> Path:
        """The directory that holds the objects below a prefix, or those of the given names."""
        if url not in self._by_url:
            if self._folder is None:
                parent = self.parent or temporary_place()
                self._folder = self._places.enter_context(owned_directory(parent, "posbias-input-"))
            folder = self._folder / str(len(self._by_url)) / url.name
            folder.mkdir(parents=True)
            with temporary_files(folder):
                _download_all(url, folder, names)
            self._by_url[url] = folder
        return self._by_url[url]

    def remove(self) -> None:
        """Remove all of them."""
        self._places.close()
        self._folder = None
        self._by_url.clear()


_copies = _Copies()


@contextmanager
def copies_below(temporary: Path | None) -> Generator[None]:
    """Copy what stands in object stores at most once in this block, below a directory for temporary files."""
    _copies.parent = temporary
    try:
        yield
    finally:
        _copies.remove()
        forget_stores()


@contextmanager
def on_disk(place: Location, names: Collection[str] | None = None) -> Generator[Path]:
    """A directory as it is, or a copy of it, for as long as the command runs. Errors name what it is a copy of.

    Args:
        place: a directory, or a prefix of an object store.
        names: the files that are needed, None for all.

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


def _download_all(url: ObjectUrl, folder: Path, names: Collection[str] | None) -> None:
    for entry in list_objects(url):
        name = entry.url.path.relative_to(url.path)
        if names is None or str(name) in names:
            path = folder / name
            if not path.resolve().is_relative_to(folder.resolve()):
                raise OutputError(f"{entry.url}: cannot be copied: its name leads out of the directory.")
            path.parent.mkdir(parents=True, exist_ok=True)
            download(entry.url, path)
