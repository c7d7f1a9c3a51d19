"""posbias.toml: options for every command, or for one.

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
OF_ITS_OWN = (
    ("score", "model"),
    ("train", "for_engine"),
    ("export", "engine"),
    ("export", "features"),
    ("show", "format"),
    ("predict", "by"),
)
"""Commands and options whose name means something else in other commands: what is set for all is not meant for them."""

TYPED_ONLY = frozenset({"force", "help_all", "print_config", "dry_run", "write_config"})
"""Options for one run, by parameter name: they stand on the command line, and nowhere else."""


def no_setting(name: str) -> str | None:
    """Why an option of `TYPED_ONLY` cannot be set; None for other names."""
    flag = f"--{name.replace('_', '-')}"
    return f"{flag} is no setting: it is given on the command line, each time" if name in TYPED_ONLY else None


ITSELF = "config"
_DAY = "date"
_LONGEST_SHOWN = 60


def settable(command: Any) -> dict[str, TyperOption]:  # noqa: ANN401 - of Typer
    """The options that can be set, by their long names without the dashes."""
    options = [each for each in command.params if isinstance(each, TyperOption) and each.name not in TYPED_ONLY]
    return {flag[2:]: option for option in options for flag in option.opts if flag.startswith("--")}


def source_of(invocation: typer.Context, option: TyperOption) -> tuple[str, str]:
    """The origin of a setting, flag, environment, file or default, and the name of the variable or of the file."""
    source = invocation.get_parameter_source(option.name)
    match "" if source is None else source.name:
        case "COMMANDLINE":
            return "flag", ""
        case "ENVIRONMENT":
            return "environment", str(option.envvar)
        case "DEFAULT_MAP":
            return "file", str(invocation.params.get(ITSELF) or DEFAULT_FILE)
        case _:
            return "default", ""


def load_defaults(context: typer.Context, file: Path | None) -> Path | None:
    """Put the options of the configuration file under those of the command line and the environment."""
    parent = context.parent
    if parent is None or not isinstance(parent.command, TyperGroup) or context.info_name is None:
        return file
    if file is not None or os.path.lexists(DEFAULT_FILE):
        options = {name: settable(command) for name, command in parent.command.commands.items()}
        path = file or Path(DEFAULT_FILE)
        try:
            of_file = _defaults_for(context.info_name, options, path)
            context.default_map = of_file | dict(context.default_map or {})
        except UsageError as error:
            raise typer.BadParameter(str(error)) from error
    return file


def _defaults_for(command: str, options: Mapping[str, Mapping[str, TyperOption]], file: Path) -> dict[str, object]:
    """The defaults that a configuration file sets for a command, by parameter name.

    Raises:
        UsageError: the file is missing or damaged, or it sets an option that does not exist, or to what means nothing.
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
    # `sql` is a command, with a section of its own, and an option of others.
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
            if name in options[command] and not (section is shared and (command, name) in OF_ITS_OWN):
                option = options[command][name]
                values[option.name] = checked_values(f"{where}{key}", value, option)
    return values


def _check_known(where: str, section: Mapping[str, object], known: Collection[str]) -> None:
    """Refuse keys that are no option, or stand there twice."""
    options = Counter(key.replace("_", "-") for key in section)
    for key in section:
        option = key.replace("_", "-")
        if option == ITSELF:
            raise UsageError(f"{where}{key}: a configuration file cannot name another one. Leave it out.")
        if reason := no_setting(option.replace("-", "_")):
            raise UsageError(f"{where}{key}: {reason}. Leave it out.")
        if option not in known:
            close = difflib.get_close_matches(option, sorted(known), n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise UsageError(f"{where}{key}: no such option.{hint}")
        if options[option] > 1:
            raise UsageError(f"{where}{key}: is set twice, once with a dash and once with an underscore. Set it once.")


def checked_values(named: str, value: object, option: TyperOption) -> object:
    """The value of an option, or the list of them where it takes several.

    Raises:
        UsageError: it is empty, or of a type that the option does not take.
    """
    if is_table(option.name, value):
        settings = cast("dict[str, object]", value).items()
        value = [f"{name}={str(of).lower() if isinstance(of, bool) else of}" for name, of in settings]
    if not option.multiple:
        return _single(named, value, option)
    values = several(value)
    if not values:
        raise UsageError(f"{named}: the list is empty. Give it a value, or leave it out.")
    return [_single(named, entry, option) for entry in values]


def is_table(option: str | None, value: object) -> bool:
    """Whether a value is a table of settings, as a file of options and Python write them."""
    return option in SETTINGS and isinstance(value, Mapping)


def several(value: object) -> Sequence[object]:
    """The values of an option, which may have but one."""
    return cast("list[object]", value) if isinstance(value, list) else [value]


def _single(named: str, value: object, option: TyperOption) -> object:
    if isinstance(value, str) and not value.strip():
        raise UsageError(f"{named}: is empty. Give it a value, or leave it out.")
    if isinstance(value, date) and not isinstance(value, datetime) and option.name == _DAY:
        return value.isoformat()
    if isinstance(value, bool) is not option.is_flag or not isinstance(value, str | int | float):
        expected = "true or false" if option.is_flag else "a string or a number"
        expected += ", or a list of them" if option.multiple else ""
        kind = next((name for kind, name in _KINDS if isinstance(value, kind)), type(value).__name__)
        text = str(value).lower() if isinstance(value, bool) else mask_secrets(str(value))  # while a URL has its @
        shown = text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."
        raise UsageError(f"{named}: takes {expected}, not {kind} ({shown}).")
    return value if option.is_flag else str(value)


_KINDS: tuple[tuple[type, str], ...] = (
    *((bool, "true or false"), (str, "a string"), (list, "a list"), (dict, "a table")),
    *((datetime, "a time"), (date, "a date"), (time, "a time"), (int, "a number"), (float, "a number")),
)


# --- options as a file sets them ---

_WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,17})")


def _setting_line(name: str, value: object) -> str:
    """An option in TOML, whose basic strings are those of JSON, but for one letter."""
    if isinstance(value, bool):
        return f"{name} = {str(value).lower()}"
    plain = [str(single) for single in several(value)]
    texts = [
        text if _WHOLE.fullmatch(text) else json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
        for text in plain
    ]
    return f"{name} = {texts[0]}" if len(texts) == 1 else f"{name} = [{', '.join(texts)}]"


def settings_text(
    logs: Sequence[str], values: Mapping[str, object], findings: "Sequence[Finding]", advice: Sequence[str]
) -> str:
    """The file that `check --write-config` writes.

    Args:
        logs: as named by the user.
        values: what options are set to, by flag.
        findings: what was recognised, with the options that declare it.
        advice: what would help.
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
    """The section of a command, which sets the same where it is put into a file; what is not set is named in comments.

    Beside each option stands its origin: flag, environment, file or default.
    """
    lines, origins = list[str](), list[str]()
    for name, option in settable(invocation.command).items():
        value: Any = invocation.params.get(option.name or "")
        if isinstance(value, Path | ObjectUrl):
            value = str(value)
        elif isinstance(value, list | tuple):
            value = list(value) or None  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        line = name if value is None else printable(_setting_line(name, value))
        lines.append(f"# {line}" if value is None or name == ITSELF else line)
        origin = filter(None, source_of(invocation, option))
        origins.append("not set" if value is None else printable(": ".join(origin)))
    width = max(map(len, lines), default=0)
    commented = [f"{line:{width}}  # {origin}" for line, origin in zip(lines, origins, strict=True)]
    return "\n".join([f"[{invocation.info_name or ''}]", *commented]) + "\n"
