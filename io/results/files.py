"""Which files a result of posbias holds, as its manifest lists them: nothing else is ever replaced or removed."""

import os
from pathlib import Path, PurePosixPath

import msgspec

from posbias.core.errors import LogFormatError
from posbias.io.places.plain_files import state_of
from posbias.io.results.manifest import FILE_NAME, Described, is_unchanged, open_manifest


def listed_in(folder: Path) -> dict[str, int] | None:
    """The files that the manifest of a directory lists; None if it holds no manifest of posbias."""
    try:
        manifest = open_manifest(folder)
    except LogFormatError:
        return None
    return None if manifest is None else _listed(manifest.content)


def listed_by(manifest: bytes) -> dict[str, int] | None:
    """The files that a manifest lists; None if it is none of posbias."""
    try:
        return _listed(msgspec.json.decode(manifest))
    except (ValueError, RecursionError):
        return None


def _listed(content: object) -> dict[str, int] | None:
    try:
        found = msgspec.convert(content, Described)
    except (msgspec.ValidationError, RecursionError):
        return None
    return found.files if "posbias" in found.versions and is_unchanged(content) else None


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
        return state_of(path).bytes
    except OSError:
        return -1
