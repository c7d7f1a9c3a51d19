"""posbias.toml: options for every command, or for one.

    model = "ubm"
    session = ["visit", "query_time"]

    [weight]
    min-propensity = 0.02

Precedence: flag > POSBIAS_* environment > posbias.toml > default.
"""

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from posbias.core.errors import UsageError

DEFAULT_FILE = "posbias.toml"


def load_defaults(context: typer.Context, file: Path | None) -> Path | None:
    """Put the options of the configuration file under those of the command line and the environment."""
    parent = context.parent
    if parent is not None and isinstance(parent.command, TyperGroup) and context.info_name is not None:
        try:
            context.default_map = read_defaults(file, context.info_name, parent.command.commands)
        except UsageError as error:
            raise typer.BadParameter(str(error)) from error
    return file


def read_defaults(file: Path | None, name: str, commands: Mapping[str, TyperCommand]) -> dict[str, Any]:
    """The defaults that a configuration file sets for a command, by parameter name.

    Args:
        file: the file that was named, or None for `posbias.toml` in the current directory, if it is there.
        name: the command that runs.
        commands: all commands, to tell a typing error from an option of another command.

    Raises:
        UsageError: the file is missing or damaged, or it sets an option that does not exist.
    """
    if file is None:
        file = Path(DEFAULT_FILE)
        if not file.is_file():
            return {}
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--config {file}: cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise UsageError(f"{file}: is not valid TOML: {error}.") from error
    parameters = {command: _parameter_by_option(commands[command]) for command in commands}
    everywhere = set[str]().union(*parameters.values())
    shared = {key: value for key, value in content.items() if key not in commands}
    _check_known(file, shared, everywhere)
    for command in commands:
        _check_known(file, content.get(command, {}), set(parameters[command]), where=f"[{command}] ")
    chosen = {_option(key): value for key, value in {**shared, **content.get(name, {})}.items()}
    return {parameters[name][key]: value for key, value in chosen.items() if key in parameters[name]}


def _option(key: str) -> str:
    return key.replace("_", "-")


def _parameter_by_option(command: TyperCommand) -> dict[str, str]:
    """The parameter's name by its long option, without the dashes."""
    options = [parameter for parameter in command.params if isinstance(parameter, TyperOption)]
    return {opt[2:]: parameter.name or "" for parameter in options for opt in parameter.opts if opt.startswith("--")}


def _check_known(file: Path, keys: Iterable[str], known: set[str], where: str = "") -> None:
    for key in keys:
        if _option(key) not in known:
            close = difflib.get_close_matches(_option(key), sorted(known), n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise UsageError(f"{file}: {where}{key}: there is no such option.{hint}")
