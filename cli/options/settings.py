"""What every option of a command is set to, and by what."""

from pathlib import Path
from typing import Any, NamedTuple

import typer

from posbias.cli.options.config import ITSELF, settable, source_of
from posbias.io.places.locations import ObjectUrl

UNSET = "not set"


class Setting(NamedTuple):
    """An option as it is set."""

    name: str  # without its dashes
    value: object  # None where it has none
    origin: str  # flag, environment, file or default
    in_files: bool  # whether a file can set it


def settings_of(invocation: typer.Context) -> list[Setting]:
    """Every option of a command, in the order of its help."""
    settings: list[Setting] = []
    for name, option in settable(invocation.command).items():
        value: Any = invocation.params.get(option.name or "")
        if isinstance(value, Path | ObjectUrl):
            value = str(value)
        elif isinstance(value, list | tuple):
            value = list(value) or None  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        origin = UNSET if value is None else ": ".join(filter(None, source_of(invocation, option)))
        settings.append(Setting(name, value, origin, name != ITSELF))
    return settings
