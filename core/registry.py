"""Plug-ins: models, estimators, layouts and training formats, each one file that is found because it lies in its room.

A plug-in is a class below the base class of its room, with a `name`. Nothing else lists it: the command line, its help
and what goes with what are made from the attributes of the classes. Only files of the room's own folder are imported.
"""

import pkgutil
from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from inspect import isabstract
from typing import ClassVar, Generic, TypeVar

from posbias.core.errors import UsageError


@dataclass(frozen=True)
class Plugin(ABC):
    """What all plug-ins have. One holds nothing of its own: two of one class are equal, wherever they were made.

    Attributes:
        name: on the command line.
        rank: its place in help; those of one rank stand in the order of their names.
    """

    name: ClassVar[str]
    rank: ClassVar[int] = 100


P = TypeVar("P", bound=Plugin)


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
    def plugins(self) -> dict[str, P]:
        """All of them by name, in the order of help.

        Raises:
            TypeError: two have one name.
        """
        modules = [f"{self.package}.{module.name}" for module in pkgutil.iter_modules(self.folders)]
        for module in modules:
            import_module(module)
        below = [kind for base in self.bases for kind in _below(base)]
        found = [kind for kind in below if kind.__module__ in modules and _is_whole(kind)]
        found.sort(key=lambda kind: (kind.rank, kind.name))
        by_name = {kind.name: kind() for kind in found}
        if len(by_name) < len(found):
            raise TypeError(f"{self.package}: two of {', '.join(kind.name for kind in found)} have one name.")
        return by_name

    @property
    def names(self) -> list[str]:
        """Their names, in the order of help."""
        return list(self.plugins)

    def get(self, name: str) -> P:
        """The plug-in of that name.

        Raises:
            UsageError: there is none.
        """
        if name not in self.plugins:
            raise UsageError(f"{self.flag} {name}: unknown name; choose from {', '.join(self.plugins)}.")
        return self.plugins[name]


def _is_whole(kind: type[Plugin]) -> bool:
    """Whether a class is a plug-in itself: one without a name is what others are made from."""
    return hasattr(kind, "name") and not isabstract(kind)


def _below(base: type[P]) -> list[type[P]]:
    """The classes below a class, at any depth, each once."""
    below = [deeper for kind in base.__subclasses__() for deeper in (kind, *_below(kind))]
    return list(dict.fromkeys(below))
