"""Plug-ins by name: models, estimators, training formats."""

from collections.abc import Mapping
from typing import TypeVar

from posbias.core.errors import UsageError

_Plugin = TypeVar("_Plugin")


def choose(flag: str, name: str, known: Mapping[str, _Plugin]) -> _Plugin:
    """The plug-in of that name.

    Raises:
        UsageError: there is none.
    """
    if name not in known:
        raise UsageError(f"{flag} {name}: there is no such thing; choose from {', '.join(known)}.")
    return known[name]
