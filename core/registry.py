"""Plug-ins: models, estimators, layouts and training formats, each one file that is found because it lies in its room.

A plug-in is a class below the base class of its room, with a `name`. Nothing else lists it: the command line, its help
and what goes with what are made from the attributes of the classes. Names are read from the text of the files, and only
what is used is imported: so `name` and `rank` are literals, in double quotes.
"""

from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from importlib import import_module
from typing import ClassVar, Generic, TypeVar

from posbias.core.declarations import LAST_RANK, Declaration, declared_plugins
from posbias.core.errors import UsageError


@dataclass(frozen=True)
class Plugin(ABC):
    """What all plug-ins have. One holds nothing of its own: two of one class are equal, wherever they were made.

    Attributes:
        name: on the command line.
        rank: its place in help; those of one rank stand in the order of their names.
    """

    name: ClassVar[str]
    rank: ClassVar[int] = LAST_RANK


P = TypeVar("P", bound=Plugin)


def unknown_name(flag: str, name: str, known: Sequence[str]) -> UsageError:
    """The error that an option takes no such name, with those that it takes and the nearest of them."""
    close = get_close_matches(name, known, n=1)
    hint = f" Did you mean {close[0]}?" if close else ""
    return UsageError(f"{flag} {name}: unknown name; choose from {', '.join(known)}.{hint}")


@dataclass(frozen=True)
class Room(Generic[P]):
    """The plug-ins of a package.

    Attributes:
        package: in whose files they are.
        folders: where these lie: the package's `__path__`.
        bases: the classes that they are made from, each from one of them.
        flag: the option that names one.
    """

    package: str
    folders: Sequence[str]
    bases: tuple[type[P], ...]
    flag: str

    @cached_property
    def declared(self) -> dict[str, Declaration]:
        """What they say of themselves, by name, in the order of help; none is loaded.

        Raises:
            TypeError: two have one name.
        """
        return self._declared()

    def _declared(self, mentions: str = "") -> dict[str, Declaration]:
        return declared_plugins(self.package, [base.__name__ for base in self.bases], self.folders, mentions)

    @cached_property
    def plugins(self) -> dict[str, P]:
        """All of them by name, in the order of help: all their files are loaded."""
        return {name: self._made(declared) for name, declared in self.declared.items()}

    @property
    def names(self) -> list[str]:
        """Their names, in the order of help; none is loaded."""
        return list(self.declared)

    def get(self, name: str) -> P:
        """The plug-in of that name; no other is loaded.

        Raises:
            UsageError: there is none.
        """
        declared = self._declared(f'"{name}"').get(name)
        if declared is None:
            raise unknown_name(self.flag, name, self.names)
        return self._made(declared)

    @staticmethod
    def _made(declared: Declaration) -> P:
        """The plug-in of a class, whose file is loaded."""
        return getattr(import_module(declared.module), declared.kind)()
