"""Options: what options.toml says of each, as parameters of Typer, as words of a command line, and as numbers."""

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

from posbias.cli.options.config import load_defaults, several
from posbias.cli.options.groups import SETTINGS
from posbias.core import choices
from posbias.core.errors import LogFormatError, UsageError
from posbias.io.places.locations import Location, ObjectUrl, location
from posbias.io.ranking_names import split_name
from posbias.io.sources import NAMES as SOURCES

ROWS = ("auto", "flat", "nested")
"""Forms of a log whose rows are read as they are."""

METHODS = (*choices.ESTIMATORS, *choices.METHODS_OF_ROWS)


class Declared(NamedTuple):
    """The content of options.toml."""

    options: Mapping[str, Mapping[str, Any]]  # by parameter name
    of_commands: Mapping[str, Mapping[str, Any]]  # parameters that mean something else in a command, by the command
    rules: Mapping[str, list[Any]]  # lists of rules that several options share


@cache
def declared() -> Declared:
    """Read options.toml, which takes some 10 ms: not for the help of the application itself."""
    tables = tomllib.loads(Path(__file__).with_name("options.toml").read_text(encoding="utf-8"))
    rules, of_commands = tables.pop("rules"), tables.pop("commands")
    sections = tables.items()
    options = {name: {"section": section, **entry} for section, of in sections for name, entry in of.items()}
    return Declared(options, of_commands, rules)


@cache
def declaration(command: str, name: str) -> Mapping[str, Any]:
    """What options.toml says of a parameter of a command."""
    entry = declared().of_commands.get(command, {}).get(name) or declared().options[name]
    return {**entry, **entry.get("in", {}).get(command, {})}


def settings_table(option: str) -> Iterator[tuple[str, str, str]]:
    """Name, default and range, and help of each setting of an option, for help and reference."""
    hints = get_type_hints(SETTINGS[option])
    for name, entry in choices.settings_of(SETTINGS[option]).items():
        default = "" if entry.default is None else f"default: {str(entry.default).removesuffix('.0').lower()}; "
        yield name, f"{default}{choices.range_of(entry, hints[name])}", entry.metadata["help"]


IN_WORDS: Mapping[str, str] = {
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
"""Texts of the placeholders in help texts, by name."""


def filled(text: str) -> str:
    """A help text with the names in it."""
    return re.sub(r"\{(\w+)\}", lambda match: IN_WORDS[match[1]], text)


# --- as words of a command line ---

_Group = TypeVar("_Group", bound=Any)


def _flags(group: object) -> Iterator[tuple[str, Field[Any]]]:
    """The flag of each option of a group."""
    for entry in fields(group):  # type: ignore[arg-type]
        yield f"--{entry.name.replace('_', '-')}", entry


def words_of(values: Mapping[str, object]) -> list[str]:
    """Options by flag as words of a command line."""
    words: list[str] = []
    for flag, value in values.items():
        for single in () if isinstance(value, bool) else several(value):
            text = f"{single:g}" if isinstance(single, float) else str(single)
            words += [f"{flag}={text}"] if text.startswith("-") else [flag, text]
        words += [flag] if isinstance(value, bool) else []
    return words


def values_of(*groups: object) -> dict[str, object]:
    """Values of options by flag, where they are not the default."""
    values = {flag: (getattr(group, entry.name), entry.default) for group in groups for flag, entry in _flags(group)}
    return {flag: value for flag, (value, default) in values.items() if value != default}


def plain_options(*groups: object, **others: object) -> dict[str, object]:
    """Options as plain values, under the names of the command line; those that are not set are left out."""
    values = {name: value for group in groups for name, value in vars(group).items()} | others
    return {
        name.replace("_", "-"): str(value) if isinstance(value, Path | ObjectUrl) else value
        for name, value in values.items()
        if value is not None
    }


_hints = cache(get_type_hints)


def with_words(group: _Group, words: Sequence[str]) -> _Group:
    """Options as if these words stood on the command line, too; those of other groups are passed over.

    An option with several values gets one more, but for those that it had by `words` alone.
    """
    flags, hints = dict(_flags(group)), _hints(type(group))
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
        else:  # a switch has no value
            kind = next((kind for kind in (int, float, Path) if kind in kinds), str)
            changed[name] = kind(value) if equals else True
    return replace(group, **changed)


# --- as numbers ---

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_MEMORY = 256 << 20, 1 << 50  # bytes, from and to
_FEWEST_BINS = 2


def parse_reference(text: str | None) -> tuple[int, ...]:
    """Read `1`, or with UBM `1,0`.

    Raises:
        UsageError: not whole numbers.
    """
    try:
        return tuple(int(number) for number in text.split(",")) if text else ()
    except ValueError:
        raise UsageError(f"--reference {text}: give a position such as 1; with --model ubm also 1,0.") from None


def parse_prior(flag: str, text: str) -> choices.BetaPrior:
    """Read `0.5:2`, mean and strength.

    Raises:
        UsageError: not a prior; the option is named.
    """
    try:
        return choices.BetaPrior.parse(text)
    except UsageError as error:
        raise UsageError(f"{flag} {text}: {error}") from error


def parse_bins(text: str | None) -> tuple[int, ...]:
    """Read `1,2,3,5,10`.

    Raises:
        UsageError: not ascending positions that start at 1.
    """
    if text is None:
        return ()
    try:
        bins = tuple(int(number) for number in text.split(","))
    except ValueError:
        bins = tuple[int, ...]()
    ascending = len(bins) >= _FEWEST_BINS and bins[0] == 1 and all(a < b for a, b in pairwise(bins))
    if not ascending or bins[-1] > declared().options["max_position"]["max"]:
        raise UsageError(
            f"--position-bins {text}: give the first position of each bin, ascending from 1, e.g. 1,2,3,5,10,20."
        )
    return bins


def parse_memory(text: str) -> int:
    """Read `2GiB`, `500M`, `1073741824` as bytes.

    Raises:
        UsageError: not a size, or too small to work with.
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
_PLAIN = re.compile(r"[\w.-]+")  # a shell would act on other characters of a name


def _one_of(names: Iterable[str]) -> Callable[[str], list[str]]:
    """Complete a name."""
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]


def _several_models(incomplete: str) -> list[str]:
    """Complete the last of several names with commas."""
    done, comma, last = incomplete.rpartition(",")
    rest = [name for name in (*choices.CLICK_MODELS, "all") if name.startswith(last) and name not in done.split(",")]
    return [f"{done}{comma}{name}" for name in rest]


COMPLETERS: Mapping[str, Callable[[str], list[str]]] = {
    "models": _one_of(choices.CLICK_MODELS),
    "several_models": _several_models,
    "methods": _one_of(METHODS),
    "shapes": _one_of((choices.FREE, *choices.SHAPES)),
    "forms": _one_of((*ROWS, *choices.FORMS, *SOURCES)),
    "learners": _one_of(choices.LEARNERS),
    "layouts": _one_of(choices.LAYOUTS),
    "formats": _one_of(choices.FORMATS),
    **{name: _one_of([f"{setting}=" for setting in choices.settings_of(kind)]) for name, kind in SETTINGS.items()},
}
"""What a shell offers, by the names that options.toml gives it."""


def _columns_of_the_log(option: str) -> Callable[[typer.Context, str], list[str]]:
    """Complete a column of the log on the line or, for options about it, of its table of clicks.

    No more than a schema is read, and that of no file in an object store, that would have to be unpacked, or is no
    plain file.
    """

    def complete(invocation: typer.Context, incomplete: str) -> list[str]:
        from posbias.io.log.scan import schema_of  # noqa: PLC0415 - only where a column is to be completed
        from posbias.io.log.sources import find_sources  # noqa: PLC0415 - only where a column is to be completed

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
    """Return the place that an option names.

    Raises:
        BadParameter: it is a URL of no object store.
    """
    try:
        return location(text)
    except UsageError as error:
        raise typer.BadParameter(str(error)) from error


def _read_name(text: str) -> str:
    """Return the name of files, which may be a pattern: of an object store its URL, of a disk as it was typed.

    Raises:
        BadParameter: it is a URL of no object store.
    """
    place = _read_place(text)
    return text if isinstance(place, Path) else str(place)


def _read_ranking(text: str) -> str:
    """Return the name of a file, or NAME=FILE.

    Raises:
        BadParameter: the file is a URL of no object store.
    """
    name, file = split_name(text)
    return _read_name(file) if name is None else f"{name}={_read_name(file)}"


def _on_disk(instead: str) -> Callable[[str], Location | None]:
    """A reader of a path; `instead` says why it cannot be in an object store, and what to do."""

    def read(text: str) -> Location | None:
        place = _read_place(text) if text else None  # an empty value is refused later, with those of other options
        if isinstance(place, ObjectUrl):
            raise typer.BadParameter(f"{place}: {instead}")
        return place

    return read


READS_PLAINLY = typer.__version__.startswith("0.29.")
"""Whether Typer is of a version whose private field for readers is known; another one reads all values itself."""


class _Plain:
    """Typer's reader of values, but for texts and defaults: these need no pydantic, whose import takes 0.1 s."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:  # noqa: ANN401 - types of Typer's own
        """Return a value as Typer's own reader does.

        Raises:
            BadParameter: it cannot be what it should.
        """
        kind, reader = param.type_descriptor.annotation, param.type_descriptor.parameter_info.parser
        several = param.multiple or param.nargs == -1
        if value is None:
            return () if several else None
        texts = value if several else [value]
        are_texts = type(texts) in (list, tuple) and all(isinstance(text, str) for text in texts)
        if are_texts and (reader or kind in (str, list[str])):
            values = [(reader or str)(text) for text in texts]
            return values if several else values[0]
        if value is param.default and (type(value) is kind or not isinstance(kind, type)):
            return value
        param._runtime_param = None  # noqa: SLF001 - Typer makes its own then
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)


def read_plainly(parameters: list[Any]) -> list[Any]:
    """Let parameters read texts and defaults without pydantic, by a private field of Typer: of versions with it."""
    for parameter in parameters if READS_PLAINLY else ():
        parameter._runtime_param = parameter._runtime_param or _Plain()  # noqa: SLF001 - see above
    return parameters


READERS: Mapping[str, Callable[[str], Any]] = {"name": _read_name, "ranking": _read_ranking, "text": str}
"""Readers of values, by the names that options.toml gives them."""


def parameter_of(command: str, name: str, kind: Any) -> Any:  # noqa: ANN401 - a type, for Typer
    """Annotate the type of a parameter for Typer; places are texts, as Typer knows no unions, and so is NAME=VALUE.

    --position-base is also POSBIAS_POSITION_BASE, unless no variable is to set it.
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
        complete = _columns_of_the_log(name)
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
    """A reader of an argument, by default of the name of files; it is never empty."""

    def read(text: str) -> Any:  # noqa: ANN401 - whatever the reader makes of it
        if not text.strip():
            raise typer.BadParameter("it is empty. Is a shell variable unset?")
        return (reader or _read_name)(text)

    return read


_NO_PLAIN_NAME = re.compile(r"[*?\[]|://|^-?$")  # a pattern, a URL, standard input, nothing


def check_are_there(names: Iterable[str]) -> None:
    """Check that plain names of files and directories are such.

    Raises:
        LogFormatError: one is not there.
    """
    for name in names:
        if _NO_PLAIN_NAME.search(name):
            continue
        try:
            Path.cwd()
        except OSError:
            continue  # that the working directory is gone is reported later
        try:
            os.lstat(name)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise LogFormatError(f"{name}: no such file or directory.") from error
        except (OSError, ValueError):
            continue  # reported when it is opened


_WHOLE = "posbias.whole_help"


def _show_all(invocation: typer.Context, wanted: bool) -> None:  # noqa: FBT001 - as Typer calls it
    """Print the help with all options, and end."""
    if wanted and not invocation.resilient_parsing:
        invocation.meta[_WHOLE] = True
        typer.echo(invocation.get_help())
        raise typer.Exit


_CALLBACKS: Mapping[str, Callable[..., Any]] = {"config": load_defaults, "help_all": _show_all}
"""Options that act before the others are read."""


def write_parameters(invocation: Any, parameters: Iterable[Any], formatter: Any) -> None:  # noqa: ANN401 - of Typer
    """Write arguments and options: in sections where all are shown, else the first ones."""
    whole = bool(invocation.meta.get(_WHOLE))
    sections: dict[str, list[tuple[str, str]]] = {}
    for parameter in parameters:
        name, text = parameter.get_help_record(invocation)
        if not isinstance(parameter, TyperOption):
            name, section = parameter.metavar, "Arguments"
        elif whole:
            section = filled(parameter.rich_help_panel or "Options")
        elif parameter.required or declared().options.get(str(parameter.name), {"first": True}).get("first"):
            section = "Options"
        else:
            continue
        sections.setdefault(section, []).append((name, filled(text)))
        if whole and parameter.name in SETTINGS:
            sections[f"{parameter.opts[0]} NAME=VALUE"] = [
                (name, f"{about}  [{values}]") for name, values, about in settings_table(parameter.name)
            ]
    for section, rows in sections.items():
        with formatter.section(section):
            formatter.write_dl(rows)
