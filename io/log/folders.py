"""The files below directories and behind patterns, also through symbolic links, none of them left out in silence."""

import glob
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from os import scandir
from pathlib import Path

from posbias.core.errors import LogFormatError
from posbias.io.places.plain_files import is_plain, open_plain
from posbias.io.results.manifest import FILE_NAME, LARGEST

_OURS = b'"posbias": "'

IsLog = Callable[[Path], bool]
"""Tells by its name whether a file is a log."""


@dataclass(frozen=True)
class FoundFile:
    """A file, and the first link to a directory through which it was found, if there is one."""

    path: Path
    link: Path | None = None


@dataclass(frozen=True)
class _Place:
    """A directory that is being read, with the identities of itself and of those above it."""

    path: Path
    link: Path | None
    above: tuple[tuple[int, int], ...]


def files_below(folder: Path, is_log: IsLog) -> list[FoundFile]:
    """The logs in a directory and in those below it, also through symbolic links, in the order of their names.

    What is hidden (`.` or `_` first) is left out, and so are results of posbias in directories below.

    Raises:
        LogFormatError: a link leads nowhere, or back to where it is, or what is named like a log is no file.
        OSError: a directory cannot be listed.
    """
    return list(_below(_Place(folder, None, ()), is_log))


def _below(place: _Place, is_log: IsLog) -> Iterator[FoundFile]:
    status = place.path.stat()
    identity = (status.st_dev, status.st_ino)
    if identity in place.above:
        raise LogFormatError(
            f"{place.path}: this link leads back to a directory that contains it. Remove the "
            "link, or name the directories to read."
        )
    with scandir(place.path) as entries:
        names = sorted(entry.name for entry in entries)
    if place.above and FILE_NAME in names and manifest_of_result(place.path / FILE_NAME) is not None:
        return
    for path in (place.path / name for name in names if not name.startswith((".", "_"))):
        if path.is_dir():
            link = place.link or (path if path.is_symlink() else None)
            yield from _below(_Place(path, link, (*place.above, identity)), is_log)
        elif path.is_file():
            if is_log(path):
                yield FoundFile(path, place.link)
        else:
            _check_other(path, is_log)


def _check_other(path: Path, is_log: IsLog) -> None:
    """What is neither a file nor a directory may lie there as long as it is not called like one that would be read.

    Raises:
        LogFormatError: it is.
    """
    if path.is_symlink() and (is_log(path) or not path.suffix):
        raise LogFormatError(f"{path}: this link is broken, so rows may be missing. Fix it, or remove it.")
    if is_log(path):
        raise LogFormatError(
            f"{path}: is neither a file nor a directory, but is called like a log. Name files that can be read more "
            "than once, or move it away."
        )


def manifest_of_result(manifest: Path) -> bytes | None:
    """A manifest, if it is that of a result of posbias, which is no log. A FIFO of that name is not opened."""
    file = manifest.resolve()
    if not is_plain(file):
        return None
    with open_plain(file) as opened:
        text = opened.read(LARGEST)
    return text if is_result_text(text) else None


def is_result_text(manifest: bytes) -> bool:
    """Whether what a manifest says is said by posbias."""
    return _OURS in manifest


def check_listable(pattern: str) -> None:
    """See that a pattern leaves out no directory because it cannot be listed.

    Raises:
        OSError: one cannot.
    """
    parts = Path(pattern).parts
    for number, part in enumerate(parts):
        if not glob.has_magic(part):
            continue
        upto = parts[: number + 1] if part == "**" else parts[:number]
        for folder in glob.glob(str(Path(*upto, "")), recursive=True):  # noqa: PTH207 - takes absolute patterns
            if Path(folder).is_dir():
                scandir(folder).close()


def link_on_the_way(path: Path, pattern: str) -> Path | None:
    """The first directory on the way to a match of a pattern, from where the pattern begins, that is a link."""
    parts = Path(pattern).parts
    fixed = next(number for number, part in enumerate(parts) if glob.has_magic(part))
    on_the_way = [*reversed(path.parents), path]
    named = [place for place in on_the_way if len(place.parts) > fixed]
    return next((place for place in named if place.is_symlink() and place.is_dir()), None)
