"""What rankings are called: as said (`NAME=FILE`), else by their file, or by its directory."""

import re
from collections.abc import Sequence
from pathlib import PurePath

from posbias.core.errors import UsageError

LOGGED = "logged"
"""The log's own ranking: the order in which its pages show documents."""

_SAID = re.compile(r"([^/=]+)=(.+)")
_GENERIC = frozenset(("scores", "score", "predictions", "run", "ranking", "part-00000"))
"""Names of files that say nothing of the ranking."""


def split_name(said: str) -> tuple[str | None, str]:
    """The name that is said, if there is one, and the file: `old=scores.csv` -> old, scores.csv."""
    match = _SAID.fullmatch(said)
    return (None, said) if match is None else (match[1], match[2])


def name_of(file: str) -> str:
    """The name of a file without its ending, or of its directory where that says more."""
    path = PurePath(file)
    stem = path.name.removesuffix(".gz").removesuffix(".zst")
    stem = PurePath(stem).stem
    return path.parent.name if stem.lower() in _GENERIC and path.parent.name else stem


def check_names(names: Sequence[str], said: Sequence[str]) -> None:
    """Each ranking has a name of its own.

    Args:
        names: of the rankings.
        said: the options that they come from.

    Raises:
        UsageError: two have one name, or one has that of the log's own.
    """
    for number, name in enumerate(names):
        if name == LOGGED:
            raise UsageError(f"{said[number]}: {LOGGED!r} is the log's own ranking. Say another name: NAME=FILE.")
        if name in names[:number]:
            raise UsageError(f"{said[number]}: another ranking is called {name!r}. Say another name: NAME=FILE.")
