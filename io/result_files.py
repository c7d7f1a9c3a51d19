"""Which files a result of posbias holds, as its manifest lists them: nothing else is ever replaced or removed."""

import os
import stat
from pathlib import Path, PurePosixPath

import msgspec

from posbias.io.manifest import FILE_NAME

_LARGEST_MANIFEST = 1 << 28  # bytes


class _Manifest(msgspec.Struct):
    """What of a manifest says that it is one of ours, and what belongs to it."""

    command: str
    versions: dict[str, str]
    files: dict[str, int]


def listed_files(manifest: bytes) -> dict[str, int] | None:
    """The files that a manifest lists; None if it is none of posbias."""
    try:
        found = msgspec.json.decode(manifest, type=_Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return found.files if "posbias" in found.versions else None


def listed_in(folder: Path) -> dict[str, int] | None:
    """The files that the manifest of a directory lists; None if it holds no manifest of posbias."""
    content = _read_plain(folder / FILE_NAME)
    return None if content is None else listed_files(content)


def foreign_in(folder: Path, listed: dict[str, int]) -> list[Path]:
    """What in a directory is not part of the result there, or has been changed since; links are not followed."""
    folders = {parent for name in listed for parent in PurePosixPath(name).parents}
    foreign: list[Path] = []
    for at, below, names in os.walk(folder):
        inside = PurePosixPath(Path(at).relative_to(folder).as_posix())
        for name in sorted(below):
            if inside / name not in folders or (Path(at) / name).is_symlink():
                foreign.append(Path(at) / name)
                below.remove(name)
        foreign += [
            Path(at) / name
            for name in sorted(names)
            if str(inside / name) != FILE_NAME and _plain_size(Path(at) / name) != listed.get(str(inside / name))
        ]
    return foreign


def _plain_size(path: Path) -> int:
    """The size of a file; -1 for anything else."""
    try:
        status = path.lstat()
    except OSError:
        return -1
    return status.st_size if stat.S_ISREG(status.st_mode) else -1


def _read_plain(path: Path) -> bytes | None:
    """A file's content; None where there is no plain file of a size that a manifest may have."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return None
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST_MANIFEST:
            return None
        return file.read()
