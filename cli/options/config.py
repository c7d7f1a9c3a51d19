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
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time
from pathlib import Path
from typing import Any, cast

import typer
from typer.core import TyperGroup, TyperOption

from posbias.core.credentials import masked
from posbias.core.errors import UsageError
from posbias.io.places.regular_files import read_regular

DEFAULT_FILE = "posbias.toml"
OF_ITS_OWN = (("score", "model"), ("show", "format"))
"""Commands and options whose name means something else in other commands: what is set for all is not meant for them."""

TYPED_ONLY = frozenset({"help_all", "print_config", "dry_run"})
"""Options for one look, by parameter name: they are said on the command line, and nowhere else."""

ITSELF = "config"
_DAY = "date"
_LONGEST_SHOWN = 60


def load_defaults(context: typer.Context, file: Path | None) -> Path | None:
    """Put the options of the configuration file under those of the command line and the environment."""
    parent = context.parent
    if parent is None or not isinstance(parent.command, TyperGroup) or context.info_name is None:
        return file
    options = {name: _by_option(command.params) for name, command in parent.command.commands.items()}
    try:
        context.default_map = defaults_for(context.info_name, options, file)
    except UsageError as error:
        raise typer.BadParameter(str(error)) from error
    return file


def defaults_for(
    command: str, options: Mapping[str, Mapping[str, TyperOption]], file: Path | None
) -> dict[str, object]:
    """The defaults that a configuration file sets for a command, by parameter name.

    Args:
        command: the command that runs.
        options: those of each command by name, to tell a typing error from an option of another command.
        file: the file that was named, or None for `posbias.toml` in the current directory, if it is there.

    Raises:
        UsageError: the file is missing or damaged, or it sets an option that does not exist, or to what means nothing.
    """
    if file is None:
        file = Path(DEFAULT_FILE)
        if not os.path.lexists(file):
            return {}
    content = _read(file)
    shared = _Section(file, "", {key: value for key, value in content.items() if key not in options})
    shared.check_known(set[str]().union(*options.values()))
    own = {name: _own_section(file, name, content.get(name, {})) for name in options}
    for name, section in own.items():
        section.check_known(options[name])
    same = {name: option for name, option in options[command].items() if (command, name) not in OF_ITS_OWN}
    return shared.values(same) | own[command].values(options[command])


def _own_section(file: Path, command: str, content: object) -> "_Section":
    if not isinstance(content, dict):
        raise UsageError(f"{file}: {command}: is a command, not an option. Put its options in a section [{command}].")
    return _Section(file, f"[{command}] ", cast("dict[str, object]", content))


@dataclass(frozen=True)
class _Section:
    """The options of all commands, or of one.

    Attributes:
        file: where they stand.
        where: in which section, for messages.
        content: values by key.
    """

    file: Path
    where: str
    content: Mapping[str, object]

    def check_known(self, known: Collection[str]) -> None:
        """Find keys that are no option, or stand there twice.

        Raises:
            UsageError: there is one.
        """
        options = Counter(map(_option, self.content))
        for key in self.content:
            option = _option(key)
            if option == ITSELF:
                raise UsageError(f"{self._named(key)}: a configuration file cannot name another one. Leave it out.")
            if option not in known:
                close = difflib.get_close_matches(option, sorted(known), n=1)
                hint = f" Did you mean {close[0]!r}?" if close else ""
                raise UsageError(f"{self._named(key)}: no such option.{hint}")
            if options[option] > 1:
                raise UsageError(
                    f"{self._named(key)}: is set twice, once with a dash and once with an underscore. Set it once."
                )

    def values(self, options: Mapping[str, TyperOption]) -> dict[str, object]:
        """What the section says about these options, by parameter name.

        Raises:
            UsageError: a value means nothing.
        """
        return {
            options[_option(key)].name or "": self._value(key, value, options[_option(key)])
            for key, value in self.content.items()
            if _option(key) in options
        }

    def _value(self, key: str, value: object, option: TyperOption) -> object:
        if not option.multiple:
            return self._single(key, value, option)
        several = cast("list[object]", value) if isinstance(value, list) else [value]
        if not several:
            raise UsageError(f"{self._named(key)}: the list is empty. Give it a value, or leave it out.")
        return [self._single(key, entry, option) for entry in several]

    def _single(self, key: str, value: object, option: TyperOption) -> object:
        if isinstance(value, str) and not value.strip():
            raise UsageError(f"{self._named(key)}: is empty. Give it a value, or leave it out.")
        if isinstance(value, date) and not isinstance(value, datetime) and key == _DAY:
            return value.isoformat()
        if isinstance(value, bool) is not option.is_flag or not isinstance(value, str | int | float):
            wanted = "true or false" if option.is_flag else "a string or a number"
            wanted += ", or a list of them" if option.multiple else ""
            raise UsageError(f"{self._named(key)}: takes {wanted}, not {_kind(value)} ({_shown(value)}).")
        return value if option.is_flag else str(value)

    def _named(self, key: str) -> str:
        return f"{self.file}: {self.where}{key}"


_KINDS: tuple[tuple[type, str], ...] = (
    *((bool, "true or false"), (str, "a string"), (list, "a list"), (dict, "a table")),
    *((datetime, "a time"), (date, "a date"), (time, "a time")),
)


def _kind(value: object) -> str:
    return next((name for kind, name in _KINDS if isinstance(value, kind)), "a number")


def _shown(value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else masked(str(value))  # before a password loses its @
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_regular(file).decode())
    except OSError as error:
        raise UsageError(f"--config {file}: cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise UsageError(f"{file}: is not valid TOML: {error}.") from error
    except RecursionError as error:
        raise UsageError(f"{file}: cannot be read: its values are too deeply nested.") from error


def _option(key: str) -> str:
    return key.replace("_", "-")


def _by_option(parameters: Iterable[object]) -> dict[str, TyperOption]:
    """The options that can be set, by their long names without the dashes."""
    options = [each for each in parameters if isinstance(each, TyperOption) and each.name not in TYPED_ONLY]
    return {opt[2:]: option for option in options for opt in option.opts if opt.startswith("--")}
