"""Plug-ins: models, estimators, layouts and training formats, each a class in one file, named in a table of `choices`.

The command line, its help and what goes with what are made from the tables and from the attributes of the classes; only
what is used is imported.
"""

from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from importlib import import_module
from typing import ClassVar, Generic, TypeVar

from posbias.core.errors import UsageError


@dataclass(frozen=True)
class Plugin(ABC):
    """What all plug-ins have. One holds nothing of its own: two of one class are equal, wherever they were made."""

    name: ClassVar[str]  # on the command line


P = TypeVar("P", bound=Plugin)


def unknown_name(flag: str, name: str, known: Sequence[str]) -> UsageError:
    """The error that an option takes no such name, with those that it takes and the nearest of them."""
    close = get_close_matches(name, known, n=1)
    hint = f" Did you mean {close[0]}?" if close else ""
    return UsageError(f"{flag} {name}: unknown name; choose from {', '.join(known)}.{hint}")


@dataclass(frozen=True)
class Room(Generic[P]):
    """The plug-ins of a kind."""

    paths: Mapping[str, str]  # module:class of each, by name
    flag: str  # the option that names one

    @property
    def names(self) -> list[str]:
        """Their names, in the order of help; none is loaded."""
        return list(self.paths)

    @cached_property
    def plugins(self) -> dict[str, P]:
        """All of them by name, in the order of help: all their files are loaded."""
        return {name: self.get(name) for name in self.paths}

    def get(self, name: str) -> P:
        """The plug-in of that name; no other is loaded.

        Raises:
            UsageError: there is none.
        """
        if name not in self.paths:
            raise unknown_name(self.flag, name, self.names)
        module, _, kind = self.paths[name].partition(":")
        return getattr(import_module(module), kind)()
