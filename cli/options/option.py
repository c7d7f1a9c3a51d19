"""Options: their declarations in options.toml, as parameters of Typer, as words of a command line, as numbers."""

import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import Field, fields, replace
from functools import cache
from glob import glob
from itertools import pairwise
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_type_hints

import typer
from typer.core import TyperOption

from posbias.cli.options.config import as_list, load_defaults
from posbias.cli.options.groups import SETTINGS
from posbias.core import choices
from posbias.core.errors import LogFormatError, UsageError
from posbias.io.places.locations import Location, ObjectUrl, location
from posbias.io.ranking_names import split_name
from posbias.io.sources import NAMES as SOURCES

ROWS = ("auto", "flat", "nested")
"""Forms of a log with one row per impression or per page, as opposed to raw events of a source."""

METHODS = (*choices.ESTIMATORS, *choices.METHODS_OF_ROWS)


class Declarations(NamedTuple):
    """The content of options.toml."""

    options: Mapping[str, Mapping[str, Any]]  # by parameter name
    commands: Mapping[str, Mapping[str, Any]]  # by command: parameters with a meaning of their own in it
    rules: Mapping[str, list[Any]]  # lists of rules shared by several options


@cache
def declarations() -> Declarations:
    """Read options.toml. It takes some 10 ms: the application's own help does without."""
    tables = tomllib.loads(Path(__file__).with_name("options.toml").read_text(encoding="utf-8"))
    rules, commands = tables.pop("rules"), tables.pop("commands")
    sections = tables.items()
    options = {name: {"section": section, **entry} for section, entries in sections for name, entry in entries.items()}
    return Declarations(options, commands, rules)


@cache
def declaration(command: str, name: str) -> Mapping[str, Any]:
    """Return the entry of options.toml for a parameter of a command."""
    entry = declarations().commands.get(command, {}).get(name) or declarations().options[name]
    return {**entry, **entry.get("in", {}).get(command, {})}


def settings_table(option: str) -> Iterator[tuple[str, str, str]]:
    """Yield the name, the default with the range, and the help of each setting of an option NAME=VALUE."""
    hints = get_type_hints(SETTINGS[option])
    for name, entry in choices.settings_of(SETTINGS[option]).items():
        default = "" if entry.default is None else f"default: {str(entry.default).removesuffix('.0').lower()}; "
        yield name, f"{default}{choices.range_of(entry, hints[name])}", entry.metadata["help"]


PLACEHOLDERS: Mapping[str, str] = {
    "cell_models": ", ".join(choices.MODELS),
    "page_models": ", ".join(name for name in choices.CLICK_MODELS if name not in choices.MODELS),
    "other_methods": ", ".join(METHODS[1:]),
    "other_learners": ", ".join([*choices.LEARNERS][1:]),
    "shapes": f"{choices.FREE}, monotone (never rising), power (position^-eta), smooth (near a power, for thin logs)",
    "layouts": "document (pointwise, judgments), click (clicked-group), page (session), or preference (pairs)",
    "formats": ", ".join(choices.FORMATS),
    "sources": ", ".join((*choices.FORMS, *SOURCES)),
    "methods_of_rows": " or ".join(choices.METHODS_OF_ROWS),
    "largest_error": str(choices.LARGEST_ERROR),
}
"""Texts for `{name}` in the help of options.toml."""


def fill_placeholders(text: str) -> str:
    """Replace each `{name}` in a help text by its entry of `PLACEHOLDERS`."""
    return re.sub(r"\{(\w+)\}", lambda match: PLACEHOLDERS[match[1]], text)


# --- as words of a command line ---

_Group = TypeVar("_Group", bound=Any)


def _flags(group: object) -> dict[str, Field[Any]]:
    """Return the field of each option of a group by its flag."""
    return {f"--{entry.name.replace('_', '-')}": entry for entry in fields(group)}  # type: ignore[arg-type]


def command_words(values: Mapping[str, object]) -> list[str]:
    """Return options by flag as words of a command line."""
    words: list[str] = []
    for flag, value in values.items():
        for single in () if isinstance(value, bool) else as_list(value):
            text = f"{single:g}" if isinstance(single, float) else str(single)
            words += [f"{flag}={text}"] if text.startswith("-") else [flag, text]
        words += [flag] if isinstance(value, bool) else []
    return words


def changed_values(*groups: object) -> dict[str, object]:
    """Return the values of options that differ from their defaults, by flag."""
    return {
        flag: getattr(group, entry.name)
        for group in groups
        for flag, entry in _flags(group).items()
        if getattr(group, entry.name) != entry.default
    }


def plain_options(*groups: object, **others: object) -> dict[str, object]:
    """Return options other than None, by their names on the command line; places as text."""
    values = {name: value for group in groups for name, value in vars(group).items()} | others
    return {
        name.replace("_", "-"): str(value) if isinstance(value, Path | ObjectUrl) else value
        for name, value in values.items()
        if value is not None
    }


_hints = cache(get_type_hints)


def with_words(group: _Group, words: Sequence[str]) -> _Group:
    """Set the options of a group that are among words of a command line, and ignore options of other groups.

    An option that takes several values is replaced by the values in `words`.
    """
    flags, hints = _flags(group), _hints(type(group))
    changed: dict[str, Any] = {}
    at = 0
    while at < len(words):
        flag, equals, value = words[at].partition("=")
        at += 1
        if not equals and at < len(words) and not words[at].startswith("--"):
            equals, value, at = "=", words[at], at + 1
        if flag not in flags:
            continue
        name = flags[flag].name
        kinds = {hints[name], *get_args(hints[name])}
        if any(str(kind).startswith("list") for kind in kinds):
            changed[name] = [*changed.get(name, []), value if equals else None]
        else:  # a switch, without `=`, is True
            kind = next((kind for kind in (int, float, Path) if kind in kinds), str)
            changed[name] = kind(value) if equals else True
    return replace(group, **changed)


# --- as numbers ---

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_MEMORY = 256 << 20, 1 << 50  # bytes, least and most
_MIN_BINS = 2


def parse_reference(text: str | None) -> tuple[int, ...]:
    """Parse a reference cell: `1` as (1,), `1,0` of UBM as (1, 0), None as ().

    Raises:
        UsageError: not whole numbers.
    """
    try:
        return tuple(int(number) for number in text.split(",")) if text else ()
    except ValueError:
        raise UsageError(f"--reference {text}: give a position such as 1; with --model ubm also 1,0.") from None


def parse_prior(flag: str, text: str) -> choices.BetaPrior:
    """Parse a Beta prior MEAN:STRENGTH such as `0.5:2`.

    Raises:
        UsageError: not a prior; the message begins with the flag.
    """
    try:
        return choices.BetaPrior.parse(text)
    except UsageError as error:
        raise UsageError(f"{flag} {text}: {error}") from error


def parse_bins(text: str | None) -> tuple[int, ...]:
    """Parse the first positions of bins, such as `1,2,3,5,10`; None is no bins.

    Raises:
        UsageError: fewer than two, not ascending from 1, or beyond the largest --max-position.
    """
    if text is None:
        return ()
    try:
        bins = tuple(int(number) for number in text.split(","))
    except ValueError:
        bins = tuple[int, ...]()
    ascending = len(bins) >= _MIN_BINS and bins[0] == 1 and all(a < b for a, b in pairwise(bins))
    if not ascending or bins[-1] > declarations().options["max_position"]["max"]:
        raise UsageError(
            f"--position-bins {text}: give the first position of each bin, ascending from 1, e.g. 1,2,3,5,10,20."
        )
    return bins


def parse_memory(text: str) -> int:
    """Parse a size such as `2GiB`, `500M` or `1073741824` to bytes.

    Raises:
        UsageError: not a size, below 256 MiB, or above 1024 TiB.
    """
    match = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,15})?)\s*([kmgt]i?)?b?\s*", text.lower())
    if match is None:
        raise UsageError(f"--memory {text}: give a size such as 2GiB or 500MB.")
    size = int(float(match[1]) * _UNITS[match[2] or ""])
    if not _MEMORY[0] <= size <= _MEMORY[1]:
        raise UsageError(f"--memory {text}: give at least 256MiB, and at most 1024TiB.")
    return size


# --- as parameters of Typer ---

_PACKED = (".gz", ".zst", ".bz2")
_PLAIN = re.compile(r"[\w.-]+")  # names without characters special to a shell


def _one_of(names: Iterable[str]) -> Callable[[str], list[str]]:
    """Return a completer of one of the names."""
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]


def _complete_models(incomplete: str) -> list[str]:
    """Complete the last of comma-separated names of click models."""
    done, comma, last = incomplete.rpartition(",")
    rest = [name for name in (*choices.CLICK_MODELS, "all") if name.startswith(last) and name not in done.split(",")]
    return [f"{done}{comma}{name}" for name in rest]


COMPLETERS: Mapping[str, Callable[[str], list[str]]] = {
    "models": _one_of(choices.CLICK_MODELS),
    "several_models": _complete_models,
    "methods": _one_of(METHODS),
    "shapes": _one_of((choices.FREE, *choices.SHAPES)),
    "forms": _one_of((*ROWS, *choices.FORMS, *SOURCES)),
    "learners": _one_of(choices.LEARNERS),
    "layouts": _one_of(choices.LAYOUTS),
    "formats": _one_of(choices.FORMATS),
    **{name: _one_of([f"{setting}=" for setting in choices.settings_of(kind)]) for name, kind in SETTINGS.items()},
}
"""Shell completers, by their names in options.toml."""


def _column_completer(option: str) -> Callable[[typer.Context, str], list[str]]:
    """Return a completer of columns of the log on the line or, for --clicks-* options, of its table of clicks.

    It reads the schema of the first local, uncompressed regular file, and offers nothing without one.
    """

    def complete(invocation: typer.Context, incomplete: str) -> list[str]:
        from posbias.io.log.scan import schema_of  # noqa: PLC0415 - only for completion
        from posbias.io.log.sources import find_sources  # noqa: PLC0415 - only for completion

        given = invocation.params
        inputs = given.get("clicks") if option.startswith("clicks_") else given.get("logs") or given.get("inputs")
        local = [name for name in inputs or () if "://" not in name]
        files = [file for name in local for file in sorted(glob(name)) + sorted(glob(f"{name}/*"))]  # noqa: PTH207
        first = next((file for file in files if os.path.isfile(file) and not file.endswith(_PACKED)), None)  # noqa: PTH113
        with suppress(BaseException):  # also a panic of Rust
            columns = [] if first is None else list(schema_of(find_sources([first])[0]))
            return [name for name in columns if _PLAIN.fullmatch(name) and name.startswith(incomplete)]
        return []

    return complete


def _read_place(text: str) -> Location:
    """Parse a path or an object-store URL.

    Raises:
        BadParameter: a URL that is not of an object store.
    """
    try:
        return location(text)
    except UsageError as error:
        raise typer.BadParameter(str(error)) from error


def _read_name(text: str) -> str:
    """Validate a name or pattern of files: return an object-store URL normalised, a path as typed.

    Raises:
        BadParameter: a URL that is not of an object store.
    """
    place = _read_place(text)
    return text if isinstance(place, Path) else str(place)


def _read_ranking(text: str) -> str:
    """Validate FILE or NAME=FILE.

    Raises:
        BadParameter: the file is a URL that is not of an object store.
    """
    name, file = split_name(text)
    return _read_name(file) if name is None else f"{name}={_read_name(file)}"


def _on_disk(instead: str) -> Callable[[str], Location | None]:
    """Return a reader of a path that refuses an object-store URL, with `instead` as reason and advice."""

    def read(text: str) -> Location | None:
        place = _read_place(text) if text else None  # empty values of all options are refused together, later
        if isinstance(place, ObjectUrl):
            raise typer.BadParameter(f"{place}: {instead}")
        return place

    return read


READS_PLAINLY = typer.__version__.startswith("0.29.")
"""Whether this version of Typer has the private field that `read_plainly` sets; other versions read all values."""


class _PlainReader:
    """Converter of texts and defaults without pydantic, whose import takes 0.1 s; Typer converts all other values."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:  # noqa: ANN401 - types of Typer's own
        """Convert a value as Typer's own reader does.

        Raises:
            BadParameter: the value cannot be converted.
        """
        kind, reader = param.type_descriptor.annotation, param.type_descriptor.parameter_info.parser
        is_list = param.multiple or param.nargs == -1
        if value is None:
            return () if is_list else None
        texts = value if is_list else [value]
        are_texts = type(texts) in (list, tuple) and all(isinstance(text, str) for text in texts)
        if are_texts and (reader or kind in (str, list[str])):
            values = [(reader or str)(text) for text in texts]
            return values if is_list else values[0]
        if value is param.default and (type(value) is kind or not isinstance(kind, type)):
            return value
        param._runtime_param = None  # noqa: SLF001 - Typer then makes its own
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)


def read_plainly(parameters: list[Any]) -> list[Any]:
    """Give parameters a `_PlainReader`, through a private field of Typer where its version has the field."""
    for parameter in parameters if READS_PLAINLY else ():
        parameter._runtime_param = parameter._runtime_param or _PlainReader()  # noqa: SLF001 - see above
    return parameters


READERS: Mapping[str, Callable[[str], Any]] = {"name": _read_name, "ranking": _read_ranking, "text": str}
"""Readers of values, by their names in options.toml."""


def parameter_of(command: str, name: str, kind: Any) -> Any:  # noqa: ANN401 - a type, for Typer
    """Annotate the type of a parameter for Typer; places and NAME=VALUE become text, as Typer takes no unions.

    An option --position-base has the variable POSBIAS_POSITION_BASE, unless its entry has `environment = false`.
    """
    entry = declaration(command, name)
    reader = READERS.get(entry.get("reads", ""))
    if ObjectUrl in get_args(kind) or kind is Location:
        kind, reader = str | None if NoneType in get_args(kind) else str, _read_place
    if "on_disk" in entry:
        reader = _on_disk(entry["on_disk"])
    if "argument" in entry:
        return Annotated[kind, typer.Argument(metavar=entry["argument"], help=entry["help"], parser=_not_empty(reader))]
    kind = list[str] | None if name in SETTINGS else kind
    flags = [entry.get("flag", f"--{name.replace('_', '-')}"), *([entry["short"]] if "short" in entry else [])]
    metavar, complete = entry.get("metavar"), COMPLETERS.get(entry.get("complete", ""))
    if (metavar or "").startswith("COLUMN"):
        complete = _column_completer(name)
    return Annotated[
        kind,
        typer.Option(
            *flags,
            metavar=metavar,
            help=entry["help"],
            min=entry.get("min"),
            max=entry.get("max"),
            parser=reader,
            autocompletion=complete,
            envvar=f"POSBIAS_{name.upper()}" if entry.get("environment", True) else None,
            show_envvar=False,
            rich_help_panel=entry.get("section"),
            callback=_CALLBACKS.get(name),
            is_eager=name in _CALLBACKS,
            expose_value=name != "help_all",
        ),
    ]


def _not_empty(reader: Callable[[str], Any] | None) -> Callable[[str], Any]:
    """Return a reader that refuses a blank argument; the default reader is of names of files."""

    def read(text: str) -> Any:  # noqa: ANN401 - as the reader returns
        if not text.strip():
            raise typer.BadParameter("it is empty. Is a shell variable unset?")
        return (reader or _read_name)(text)

    return read


_NOT_A_PATH = re.compile(r"[*?\[]|://|^-?$")  # a pattern, a URL, standard input, nothing


def check_inputs_exist(names: Iterable[str]) -> None:
    """Check that inputs named by a plain path exist; patterns and URLs are checked when they are opened.

    Raises:
        LogFormatError: no such file or directory.
    """
    for name in names:
        if _NOT_A_PATH.search(name):
            continue
        try:
            Path.cwd()
        except OSError:
            continue  # a deleted working directory is reported later
        try:
            os.lstat(name)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise LogFormatError(f"{name}: no such file or directory.") from error
        except (OSError, ValueError):
            continue  # reported when the file is opened


_LONG_HELP = "posbias.long_help"  # key of a context's `meta`


def _print_long_help(invocation: typer.Context, wanted: bool) -> None:  # noqa: FBT001 - as Typer calls it
    if wanted and not invocation.resilient_parsing:
        invocation.meta[_LONG_HELP] = True
        typer.echo(invocation.get_help())
        raise typer.Exit


_CALLBACKS: Mapping[str, Callable[..., Any]] = {"config": load_defaults, "help_all": _print_long_help}
"""Callbacks of eager options, which Typer processes before all others."""


def write_parameters(invocation: Any, parameters: Iterable[Any], formatter: Any) -> None:  # noqa: ANN401 - of Typer
    """Write the help of arguments and options: all in their sections after --help-all, else the `first` options."""
    whole = bool(invocation.meta.get(_LONG_HELP))
    sections: dict[str, list[tuple[str, str]]] = {}
    for parameter in parameters:
        name, text = parameter.get_help_record(invocation)
        if not isinstance(parameter, TyperOption):
            name, section = parameter.metavar, "Arguments"
        elif whole:
            section = fill_placeholders(parameter.rich_help_panel or "Options")
        elif parameter.required or declarations().options.get(str(parameter.name), {"first": True}).get("first"):
            section = "Options"
        else:
            continue
        sections.setdefault(section, []).append((name, fill_placeholders(text)))
        if whole and parameter.name in SETTINGS:
            sections[f"{parameter.opts[0]} NAME=VALUE"] = [
                (name, f"{about}  [{values}]") for name, values, about in settings_table(parameter.name)
            ]
    for section, rows in sections.items():
        with formatter.section(section):
            formatter.write_dl(rows)
