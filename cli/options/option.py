"""How an option is declared: help, name of its value, default; flag and environment variable follow from its name."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, TypeVar, dataclass_transform, get_args

import typer

from posbias.cli.options.complete import columns_of_the_log
from posbias.core.errors import UsageError
from posbias.io.places.locations import Location, ObjectUrl, location
from posbias.io.rankings.names import split_name

T = TypeVar("T")

REQUIRED: Any = ...
"""Default of an option that must be given."""


def option(help_text: str, metavar: str | None = None, **settings: Any) -> Any:  # noqa: ANN401 - the value of a field
    """Declare an option as the value of a field or, in a command, in the annotation of a parameter.

    Without `default`, a switch is off, and another option None. `section` of the help is that of the class,
    `environment=False` means that no variable sets it, and `complete` gives the values that a shell offers; other
    settings are those of Typer.
    """
    return {"help": help_text, "metavar": metavar, **settings}


def argument(metavar: str, help_text: str, parser: Callable[[str], Any] | None = None) -> Any:  # noqa: ANN401 - of Typer
    """Declare what is given without a flag: names of files, unless it is read otherwise."""
    return typer.Argument(metavar=metavar, help=help_text, parser=parser or read_name)


@dataclass_transform(frozen_default=True)
def options(section: str) -> Callable[[type[T]], type[T]]:
    """Make a frozen dataclass of a class whose attributes are options, shown in a section of the help."""

    def decorate(group: type[T]) -> type[T]:
        for name, kind in group.__annotations__.items():
            settings = {"section": section, "default": False if kind is bool else None, **getattr(group, name)}
            default = settings.pop("default")
            setattr(group, name, field(default=MISSING if default is REQUIRED else default, metadata=settings))
        return dataclass(frozen=True)(group)

    return decorate


def annotated(name: str, kind: Any, settings: Any) -> Any:  # noqa: ANN401 - a type, for Typer
    """The type of a parameter as Typer reads it: a `Location` as text, as Typer knows no unions.

    --position-base is also POSBIAS_POSITION_BASE, unless no variable is to set it.
    """
    if ObjectUrl in get_args(kind):
        kind = str | None if NoneType in get_args(kind) else str
    if not isinstance(settings, Mapping):
        return Annotated[kind, settings]
    rest: dict[str, Any] = {**settings}
    rest.pop("default", None)
    metavar, flag = rest.pop("metavar"), rest.pop("flag", f"--{name.replace('_', '-')}")
    flags = [flag, *([rest.pop("short")] if "short" in rest else [])]
    envvar = f"POSBIAS_{name.upper()}" if rest.pop("environment", True) else None
    complete = rest.pop("complete", columns_of_the_log(name) if (metavar or "").startswith("COLUMN") else None)
    section = rest.pop("section", None)
    rest |= {"envvar": envvar, "show_envvar": False, "rich_help_panel": section, "autocompletion": complete}
    return Annotated[kind, typer.Option(*flags, metavar=metavar, **rest)]


def read_place(text: str) -> Location:
    """The place that an option names.

    Raises:
        BadParameter: it is a URL of no object store.
    """
    try:
        return location(text)
    except UsageError as error:
        raise typer.BadParameter(str(error)) from error


def on_disk(instead: str) -> Callable[[str], Location]:
    """What reads a place that must be on disk; `instead` says why, and what to do where it is an object store."""

    def read(text: str) -> Location:
        place = read_place(text)
        if not isinstance(place, Path):
            raise typer.BadParameter(f"{place}: {instead}")
        return place

    return read


def read_name(text: str) -> str:
    """The name of files, which may be a pattern: of an object store its URL, of a disk as it was typed.

    Raises:
        BadParameter: it is a URL of no object store.
    """
    place = read_place(text)
    return text if isinstance(place, Path) else str(place)


def read_ranking(text: str) -> str:
    """The name of a file, or NAME=FILE.

    Raises:
        BadParameter: the file is a URL of no object store.
    """
    name, file = split_name(text)
    return read_name(file) if name is None else f"{name}={read_name(file)}"
