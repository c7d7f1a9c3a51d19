"""posbias.toml: options for all commands, or in a section for a single command.

    model = "ubm"
    session = ["visit", "query_time"]

    [weight]
    min-propensity = 0.02

Precedence: flag > POSBIAS_* environment > posbias.toml > default.
"""

import difflib
import json
import os
import re
import tomllib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import date, datetime, time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer
from typer.core import TyperGroup, TyperOption

from posbias.cli.options.groups import SETTINGS
from posbias.core.errors import UsageError, mask_secrets, printable
from posbias.io.places.locations import ObjectUrl, read_text

if TYPE_CHECKING:
    from posbias.io.log.lists import Finding

DEFAULT_FILE = "posbias.toml"
COMMAND_SPECIFIC = (
    ("score", "model"),
    ("train", "for_engine"),
    ("export", "engine"),
    ("export", "features"),
    ("show", "format"),
    ("predict", "by"),
)
"""Commands and options whose name has another meaning in other commands: set only in the section of the command."""

NOT_SETTABLE = frozenset({"force", "help_all", "print_config", "dry_run", "write_config"})
"""Options for a single run, by parameter name: neither a file nor a variable sets them."""


def why_not_settable(name: str) -> str | None:
    """Return why a file or a variable cannot set a parameter of `NOT_SETTABLE`; None for other parameters."""
    flag = f"--{name.replace('_', '-')}"
    return f"{flag} is no setting: it is given on the command line, each time" if name in NOT_SETTABLE else None


CONFIG = "config"
_DAY = "date"
_MAX_SHOWN = 60  # characters of a refused value


def settable_options(command: Any) -> dict[str, TyperOption]:  # noqa: ANN401 - of Typer
    """Return the options that a file can set, by their long names without the dashes."""
    options = [each for each in command.params if isinstance(each, TyperOption) and each.name not in NOT_SETTABLE]
    return {flag[2:]: option for option in options for flag in option.opts if flag.startswith("--")}


def origin_of(invocation: typer.Context, option: TyperOption) -> tuple[str, str]:
    """Return the origin of a value (flag, environment, file or default), and the name of the variable or file."""
    source = invocation.get_parameter_source(option.name)
    match "" if source is None else source.name:
        case "COMMANDLINE":
            return "flag", ""
        case "ENVIRONMENT":
            return "environment", str(option.envvar)
        case "DEFAULT_MAP":
            return "file", str(invocation.params.get(CONFIG) or DEFAULT_FILE)
        case _:
            return "default", ""


def load_defaults(context: typer.Context, file: Path | None) -> Path | None:
    """Set the options of the configuration file as defaults of a command; return the file as named by --config.

    Raises:
        BadParameter: the file cannot be read, or sets an unknown option or an invalid value.
    """
    parent = context.parent
    if parent is None or not isinstance(parent.command, TyperGroup) or context.info_name is None:
        return file
    if file is not None or os.path.lexists(DEFAULT_FILE):
        options = {name: settable_options(command) for name, command in parent.command.commands.items()}
        path = file or Path(DEFAULT_FILE)
        try:
            values = _defaults_for(context.info_name, options, path)
            context.default_map = values | dict(context.default_map or {})
        except UsageError as error:
            raise typer.BadParameter(str(error)) from error
    return file


def _defaults_for(command: str, options: Mapping[str, Mapping[str, TyperOption]], file: Path) -> dict[str, object]:
    """Return the values that a configuration file sets for a command, by parameter name.

    Raises:
        UsageError: the file is missing or damaged, sets an unknown option, or has a value of a wrong type.
    """
    try:
        content: dict[str, Any] = tomllib.loads(read_text(file))
    except OSError as error:
        raise UsageError(f"--config {file}: cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise UsageError(f"{file}: is not valid TOML: {error}.") from error
    except RecursionError as error:
        raise UsageError(f"{file}: cannot be read: its values are too deeply nested.") from error
    known = set[str]().union(*options.values())
    # `sql` is both a command, with a section, and an option of other commands.
    shared = {
        key: value
        for key, value in content.items()
        if key not in options or (key in known and not isinstance(value, dict))
    }
    _check_known(f"{file}: ", shared, known)
    for name in options:
        section: object = {} if name in shared else content.setdefault(name, {})
        if not isinstance(section, dict):
            raise UsageError(f"{file}: {name}: is a command, not an option. Put its options in a section [{name}].")
        _check_known(f"{file}: [{name}] ", cast("dict[str, object]", section), options[name])
    values: dict[str, object] = {}
    own: dict[str, object] = {} if command in shared else content[command]
    for where, section in ((f"{file}: ", shared), (f"{file}: [{command}] ", own)):
        for key, value in section.items():
            name = key.replace("_", "-")
            if name in options[command] and not (section is shared and (command, name) in COMMAND_SPECIFIC):
                option = options[command][name]
                values[option.name] = checked_values(f"{where}{key}", value, option)
    return values


def _check_known(where: str, section: Mapping[str, object], known: Collection[str]) -> None:
    """Raise UsageError for a key that is no option, cannot be set, or occurs twice."""
    options = Counter(key.replace("_", "-") for key in section)
    for key in section:
        option = key.replace("_", "-")
        if option == CONFIG:
            raise UsageError(f"{where}{key}: a configuration file cannot name another one. Leave it out.")
        if reason := why_not_settable(option.replace("-", "_")):
            raise UsageError(f"{where}{key}: {reason}. Leave it out.")
        if option not in known:
            close = difflib.get_close_matches(option, sorted(known), n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise UsageError(f"{where}{key}: no such option.{hint}")
        if options[option] > 1:
            raise UsageError(f"{where}{key}: is set twice, once with a dash and once with an underscore. Set it once.")


def checked_values(where: str, value: object, option: TyperOption) -> object:
    """Return the value of an option as text or bool, or a list where the option takes several.

    Args:
        where: how messages name the option.
        value: as parsed from TOML, or as a Python caller gave it.
        option: its declaration.

    Raises:
        UsageError: the value is empty, or of a type that the option does not take.
    """
    if is_settings_table(option.name, value):
        settings = cast("dict[str, object]", value).items()
        value = [f"{name}={str(each).lower() if isinstance(each, bool) else each}" for name, each in settings]
    if not option.multiple:
        return _single(where, value, option)
    values = as_list(value)
    if not values:
        raise UsageError(f"{where}: the list is empty. Give it a value, or leave it out.")
    return [_single(where, entry, option) for entry in values]


def is_settings_table(option: str | None, value: object) -> bool:
    """Whether a value is a mapping for an option NAME=VALUE, as in TOML or Python."""
    return option in SETTINGS and isinstance(value, Mapping)


def as_list(value: object) -> Sequence[object]:
    """Wrap a single value in a list."""
    return cast("list[object]", value) if isinstance(value, list) else [value]


def _single(where: str, value: object, option: TyperOption) -> object:
    if isinstance(value, str) and not value.strip():
        raise UsageError(f"{where}: is empty. Give it a value, or leave it out.")
    if isinstance(value, date) and not isinstance(value, datetime) and option.name == _DAY:
        return value.isoformat()
    if isinstance(value, bool) is not option.is_flag or not isinstance(value, str | int | float):
        expected = "true or false" if option.is_flag else "a string or a number"
        expected += ", or a list of them" if option.multiple else ""
        kind = next((name for kind, name in _KINDS if isinstance(value, kind)), type(value).__name__)
        # Secrets are masked before the text is cut: a URL is recognised by its @.
        text = str(value).lower() if isinstance(value, bool) else mask_secrets(str(value))
        shown = text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
        raise UsageError(f"{where}: takes {expected}, not {kind} ({shown}).")
    return value if option.is_flag else str(value)


_KINDS: tuple[tuple[type, str], ...] = (
    *((bool, "true or false"), (str, "a string"), (list, "a list"), (dict, "a table")),
    *((datetime, "a time"), (date, "a date"), (time, "a time"), (int, "a number"), (float, "a number")),
)


# --- options as a file sets them ---

_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,17})")


def _setting_line(name: str, value: object) -> str:
    """Return `name = value` in TOML, whose basic strings are those of JSON, except that DEL is escaped."""
    if isinstance(value, bool):
        return f"{name} = {str(value).lower()}"
    texts = [
        text if _INTEGER.fullmatch(text) else json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
        for text in map(str, as_list(value))
    ]
    return f"{name} = {texts[0]}" if len(texts) == 1 else f"{name} = [{', '.join(texts)}]"


def settings_text(
    logs: Sequence[str], values: Mapping[str, object], findings: "Sequence[Finding]", advice: Sequence[str]
) -> str:
    """Return the text of the file that `check --write-config` writes.

    Args:
        logs: as named by the user.
        values: of options, by flag.
        findings: of the recognition, with the options that declare them.
        advice: sentences on how to improve an estimate.
    """
    lines: list[str] = []
    done: set[str] = set()

    def comment(sentence: str) -> None:
        lines.extend(f"# {printable(part)}" for part in sentence.splitlines())

    def settings(flags: Collection[str]) -> None:
        lines.extend(_setting_line(flag.removeprefix("--"), values[flag]) for flag in flags)

    comment(f"What is recognised in {' '.join(logs)}. `posbias run LOGS -o DIR` in this directory reads logs like it.")
    comment("A flag on the command line goes before what stands here.")
    for finding in findings:
        lines.append("")
        comment(f"{finding.text}{'' if finding.certain else ' (a guess: see whether it is right)'}")
        flags = dict.fromkeys(word.partition("=")[0] for word in finding.options if word.startswith("--"))
        settings([flag for flag in flags if flag in values and flag not in done])
        done.update(flags)
    others = [flag for flag in values if flag not in done]
    if others:
        lines.append("")
        comment("As given on the command line")
        settings(others)
    if advice:
        lines.append("")
        comment("What would help an estimate:")
        for sentence in advice:
            comment(sentence)
    return "\n".join(lines) + "\n"


def configuration_text(invocation: typer.Context) -> str:
    """Return the options of a command as a section of posbias.toml, for --print-config.

    Each option has a comment with its origin (flag, environment, file or default); unset options are commented out.
    """
    lines, origins = list[str](), list[str]()
    for name, option in settable_options(invocation.command).items():
        value: Any = invocation.params.get(option.name or "")
        if isinstance(value, Path | ObjectUrl):
            value = str(value)
        elif isinstance(value, list | tuple):
            value = list(value) or None  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        line = name if value is None else printable(_setting_line(name, value))
        lines.append(f"# {line}" if value is None or name == CONFIG else line)
        origin = filter(None, origin_of(invocation, option))
        origins.append("not set" if value is None else printable(": ".join(origin)))
    width = max(map(len, lines), default=0)
    commented = [f"{line:{width}}  # {origin}" for line, origin in zip(lines, origins, strict=True)]
    return "\n".join([f"[{invocation.info_name or ''}]", *commented]) + "\n"
