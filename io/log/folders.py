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


def files_below(folder: Path, is_log: IsLog) -> list[FoundFile]:
    """The logs in a directory and in those below it, also through symbolic links, in the order of their names.

    What is hidden (`.` or `_` first) is left out, and so are results of posbias in directories below.

    Raises:
        LogFormatError: a link leads nowhere, or back to where it is, or what is named like a log is no file.
        OSError: a directory cannot be listed.
    """
    return list(_below(folder, None, (), is_log))


def _below(folder: Path, link: Path | None, above: tuple[tuple[int, int], ...], is_log: IsLog) -> Iterator[FoundFile]:
    """The logs below a directory, with the link that led to it and the identities of the directories above it."""
    status = folder.stat()
    identity = (status.st_dev, status.st_ino)
    if identity in above:
        raise LogFormatError(
            f"{folder}: this link leads back to a directory that contains it. Remove the link, or name the directories "
            "to read."
        )
    with scandir(folder) as entries:
        names = sorted(entry.name for entry in entries)
    if above and FILE_NAME in names and manifest_of_result(folder / FILE_NAME) is not None:
        return
    for path in (folder / name for name in names if not name.startswith((".", "_"))):
        if path.is_dir():
            yield from _below(path, link or (path if path.is_symlink() else None), (*above, identity), is_log)
        elif path.is_file():
            if is_log(path):
                yield FoundFile(path, link)
        elif path.is_symlink() and (is_log(path) or not path.suffix):
            raise LogFormatError(f"{path}: this link is broken, so rows may be missing. Fix it, or remove it.")
        elif is_log(path):
            raise LogFormatError(
                f"{path}: is neither a file nor a directory, but is called like a log. Name files that can be read "
                "more than once, or move it away."
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
