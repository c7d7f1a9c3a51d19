"""Names of rankings: as an option says (`NAME=FILE`), else by their file, or by its directory."""

import re
from pathlib import PurePath

LOGGED, OWN_ORDER = "logged", "the log's own order"
"""The log's own ranking, the order in which its pages show documents, in tables and in sentences."""

_NAMED = re.compile(r"([^/=]+)=(.+)")
_GENERIC = frozenset(("scores", "score", "predictions", "run", "ranking", "part-00000"))
"""Names of files that say nothing of the ranking."""


def split_name(option: str) -> tuple[str | None, str]:
    """The name that an option gives, if it does, and the file: `old=scores.csv` -> old, scores.csv."""
    match = _NAMED.fullmatch(option)
    return (None, option) if match is None else (match[1], match[2])


def name_of(file: str) -> str:
    """The name of a file without its ending, or of its directory where that says more."""
    path = PurePath(file)
    stem = PurePath(path.name.removesuffix(".gz").removesuffix(".zst")).stem
    return path.parent.name if stem.lower() in _GENERIC and path.parent.name else stem
