"""How an option is declared: its flag, its environment variable, its help, and how a place is read from its text."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from posbias.core.errors import UsageError
from posbias.io.places.locations import Location, location
from posbias.io.rankings.names import split_name


def option(flag: str, help_text: str, panel: str | None = None, *, short: str | None = None, **settings: Any) -> Any:  # noqa: ANN401
    """An option with its environment variable: --position-base is also POSBIAS_POSITION_BASE."""
    environment = "POSBIAS_" + flag.partition("/")[0].removeprefix("--").replace("-", "_").upper()
    names = (flag,) if short is None else (flag, short)
    return typer.Option(
        *names, help=help_text, envvar=environment, show_envvar=False, rich_help_panel=panel, **settings
    )


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
    """What reads a place that must be on disk.

    Args:
        instead: why, and what to do where it is an object store.
    """

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
