"""What every option of a command is set to, and by what."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperOption

from posbias.cli.options.config import DEFAULT_FILE, ITSELF, TYPED_ONLY
from posbias.io.places.locations import ObjectUrl

UNSET = "not set"


@dataclass(frozen=True)
class Setting:
    """An option as it is set.

    Attributes:
        name: of the option, without its dashes.
        value: None where it has none.
        origin: flag, environment, file or default.
        in_files: whether a file can set it.
    """

    name: str
    value: object
    origin: str
    in_files: bool


def settings_of(invocation: typer.Context) -> list[Setting]:
    """Every option of a command, in the order of its help."""
    options = [each for each in invocation.command.params if isinstance(each, TyperOption)]
    return [_setting(invocation, option) for option in options if option.name not in TYPED_ONLY]


def _setting(invocation: typer.Context, option: TyperOption) -> Setting:
    value = _plain(invocation.params.get(option.name or ""))
    name = next(flag for flag in option.opts if flag.startswith("--")).removeprefix("--")
    return Setting(name, value, UNSET if value is None else _origin(invocation, option), option.name != ITSELF)


def _plain(value: Any) -> object:  # noqa: ANN401 - of any type of option
    if isinstance(value, Path | ObjectUrl):
        return str(value)
    if isinstance(value, list | tuple):
        return list(value) or None  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return value


def _origin(invocation: typer.Context, option: TyperOption) -> str:
    source = invocation.get_parameter_source(option.name or "")
    match "" if source is None else source.name:
        case "COMMANDLINE":
            return "flag"
        case "ENVIRONMENT":
            return f"environment: {option.envvar}"
        case "DEFAULT_MAP":
            return f"file: {invocation.params.get('config') or DEFAULT_FILE}"
        case _:
            return "default"
