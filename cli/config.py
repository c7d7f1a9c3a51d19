"""posbias.toml: options for every command, or for one.

    model = "ubm"
    session = ["visit", "query_time"]

    [weight]
    min-propensity = 0.02

Precedence: flag > POSBIAS_* environment > posbias.toml > default.
"""

import difflib
import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import typer
from typer.core import TyperGroup, TyperOption

from posbias.core.errors import UsageError
from posbias.io.regular_files import read_regular

DEFAULT_FILE = "posbias.toml"


def load_defaults(context: typer.Context, file: Path | None) -> Path | None:
    """Put the options of the configuration file under those of the command line and the environment."""
    parent = context.parent
    if parent is None or not isinstance(parent.command, TyperGroup) or context.info_name is None:
        return file
    parameters = {name: _parameter_by_option(command.params) for name, command in parent.command.commands.items()}
    lists = {parameter.name for parameter in context.command.params if getattr(parameter, "multiple", False)}
    try:
        defaults = defaults_for(context.info_name, parameters, file)
        context.default_map = {
            name: [value] if name in lists and isinstance(value, str) else value for name, value in defaults.items()
        }
    except UsageError as error:
        raise typer.BadParameter(str(error)) from error
    return file


def defaults_for(command: str, parameters: Mapping[str, Mapping[str, str]], file: Path | None) -> dict[str, Any]:
    """The defaults that a configuration file sets for a command, by parameter name.

    Args:
        command: the command that runs.
        parameters: the parameter behind each option of each command, to tell a typing error from an option of another.
        file: the file that was named, or None for `posbias.toml` in the current directory, if it is there.

    Raises:
        UsageError: the file is missing or damaged, or it sets an option that does not exist.
    """
    if file is None:
        file = Path(DEFAULT_FILE)
        if not os.path.lexists(file):
            return {}
    content = _read(file)
    shared = {key: value for key, value in content.items() if key not in parameters}
    _check_known(file, shared, set[str]().union(*parameters.values()))
    for name, known in parameters.items():
        own = content.get(name, {})
        if not isinstance(own, dict):
            raise UsageError(f"{file}: {name}: is a command; write its options below a line [{name}].")
        _check_known(file, cast("dict[str, Any]", own), set(known), where=f"[{name}] ")
    chosen = {_option(key): value for key, value in {**shared, **content.get(command, {})}.items()}
    known = parameters[command]
    return {known[option]: value for option, value in chosen.items() if option in known}


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_regular(file).decode())
    except OSError as error:
        raise UsageError(f"--config {file}: cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise UsageError(f"{file}: is not valid TOML: {error}.") from error
    except RecursionError as error:
        raise UsageError(f"{file}: cannot be read: its values are nested too deeply.") from error


def _option(key: str) -> str:
    return key.replace("_", "-")


def _parameter_by_option(parameters: Iterable[object]) -> dict[str, str]:
    """The parameter's name by its long option, without the dashes."""
    options = [parameter for parameter in parameters if isinstance(parameter, TyperOption)]
    return {opt[2:]: parameter.name or "" for parameter in options for opt in parameter.opts if opt.startswith("--")}


def _check_known(file: Path, keys: Iterable[str], known: set[str], where: str = "") -> None:
    for key in keys:
        if _option(key) not in known:
            close = difflib.get_close_matches(_option(key), sorted(known), n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise UsageError(f"{file}: {where}{key}: there is no such option.{hint}")
