"""From a URL, which may be a pattern, to the objects behind it."""

import fnmatch
import glob
from collections.abc import Sequence
from pathlib import PurePosixPath

from posbias.io.places.locations import ObjectUrl
from posbias.io.places.object_stores import StoredObject, find_object, list_objects


def named_objects(url: ObjectUrl) -> dict[ObjectUrl, list[StoredObject]]:
    """What a URL names, in a stable order: an object with itself, or prefixes with all that is below them.

    A pattern is read as one of file names: `*` stops at a slash, `**` does not, and neither takes hidden names.

    Raises:
        ObjectStoreError: the store cannot be asked.
    """
    found = find_object(url)
    if found is not None:
        return {url: [found]}
    if not glob.has_magic(url.key):
        below = list_objects(url)
        return {url: below} if below else {}
    named: dict[ObjectUrl, list[StoredObject]] = {}
    for entry in list_objects(_before_the_pattern(url)):
        match = _match(entry.url, url.path.parts)
        if match is not None:
            named.setdefault(match, []).append(entry)
    return named


def _before_the_pattern(url: ObjectUrl) -> ObjectUrl:
    plain: list[str] = []
    for part in url.path.parts:
        if glob.has_magic(part):
            break
        plain.append(part)
    return ObjectUrl(url.scheme, url.bucket, "/".join(plain))


def _match(url: ObjectUrl, pattern: Sequence[str]) -> ObjectUrl | None:
    """The object, if it fits the pattern; else the shortest prefix of it that does."""
    parts = url.path.parts
    for candidate in (parts, *(parts[:length] for length in range(1, len(parts)))):
        if _fits(candidate, pattern):
            return ObjectUrl(url.scheme, url.bucket, str(PurePosixPath(*candidate)))
    return None


def _fits(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        shown = parts[:1] and not parts[0].startswith(".")
        return _fits(parts, pattern[1:]) or bool(shown and _fits(parts[1:], pattern))
    if not parts or (parts[0].startswith(".") and not pattern[0].startswith(".")):
        return False
    return fnmatch.fnmatchcase(parts[0], pattern[0]) and _fits(parts[1:], pattern[1:])
