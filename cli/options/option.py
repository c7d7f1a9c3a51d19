"""How an option is declared: help, name of its value, default; flag and environment variable follow from its name."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from glob import glob
from itertools import pairwise
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, TypeVar, cast, dataclass_transform, get_args, get_type_hints

import typer

from posbias.core.choices import (
    CLICK_MODELS,
    ESTIMATORS,
    FORMATS,
    FORMS,
    FREE,
    LARGEST_ERROR,
    LEARNERS,
    METHODS_OF_ROWS,
    MODELS,
    BetaPrior,
    LayoutOptions,
    LearningOptions,
    range_of,
    settings_in,
)
from posbias.core.errors import UsageError
from posbias.io.places.locations import Location, ObjectUrl, location
from posbias.io.ranking_names import split_name
from posbias.io.sources import NAMES as SOURCES

SETTINGS: Mapping[str, type] = {"layout_options": LayoutOptions, "learner_options": LearningOptions}
"""Options NAME=VALUE, by parameter name, and the dataclass whose fields they set."""

_PACKED = (".gz", ".zst", ".bz2")
_PLAIN = re.compile(r"[\w.-]+")  # a shell would act on other characters of a name


def one_of(names: Iterable[str]) -> Callable[[str], list[str]]:
    """Names that begin so."""
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]


def several_of(names: Iterable[str]) -> Callable[[str], list[str]]:
    """As `one_of`, for a list with commas."""

    def complete(incomplete: str) -> list[str]:
        done, comma, last = incomplete.rpartition(",")
        rest = [name for name in names if name.startswith(last) and name not in done.split(",")]
        return [f"{done}{comma}{name}" for name in rest]

    return complete


def columns_of_the_log(option: str) -> Callable[[typer.Context, str], list[str]]:
    """The columns of the log on the line or, for options about it, of its table of clicks.

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


T = TypeVar("T")

REQUIRED: Any = ...
"""Default of an option that must be given."""


def option(help_text: str, metavar: str | None = None, **settings: Any) -> Any:  # noqa: ANN401 - the value of a field
    """Declare an option as the value of a field or, in a command, in the annotation of a parameter.

    Without `default`, a switch is off, and another option None. `section` of the help is that of the class,
    `environment=False` means that no variable sets it, and `complete` gives the values that a shell offers; other
    settings are those of Typer.
    """
    return {"help": help_text, "metavar": metavar, **settings}


def argument(metavar: str, help_text: str, parser: Callable[[str], Any] | None = None) -> Any:  # noqa: ANN401 - of Typer
    """Declare what is given without a flag: names of files, unless it is read otherwise. It is never empty."""

    def read(text: str) -> Any:  # noqa: ANN401 - whatever the parser makes of it
        if not text.strip():
            raise typer.BadParameter("it is empty. Is a shell variable unset?")
        return (parser or read_name)(text)

    return typer.Argument(metavar=metavar, help=help_text, parser=read)


@dataclass_transform(frozen_default=True)
def options(section: str, **from_here: str) -> Callable[[type[T]], type[T]]:
    """Make a frozen dataclass of a class whose attributes are options, shown in a section of the help.

    Further sections begin at the attributes that they are given for.
    """

    def decorate(group: type[T]) -> type[T]:
        within = section
        for name, kind in group.__annotations__.items():
            within = from_here.get(name, within)
            settings = {"section": within, "default": False if kind is bool else None, **getattr(group, name)}
            default = settings.pop("default")
            setattr(group, name, field(default=MISSING if default is REQUIRED else default, metadata=settings))
        return dataclass(frozen=True)(group)

    return decorate


def annotated(name: str, kind: Any, settings: Any) -> Any:  # noqa: ANN401 - a type, for Typer
    """The type of a parameter as Typer reads it: a `Location` as text, as Typer knows no unions, and NAME=VALUE too.

    --position-base is also POSBIAS_POSITION_BASE, unless no variable is to set it.
    """
    if ObjectUrl in get_args(kind):
        kind = str | None if NoneType in get_args(kind) else str
    if not isinstance(settings, Mapping):
        return Annotated[kind, settings]
    if name in SETTINGS:
        kind = list[str] | None
    rest: dict[str, Any] = {**settings}
    rest.pop("default", None)
    metavar, flag = rest.pop("metavar"), rest.pop("flag", f"--{name.replace('_', '-')}")
    flags = [flag, *([rest.pop("short")] if "short" in rest else [])]
    envvar = f"POSBIAS_{name.upper()}" if rest.pop("environment", True) else None
    complete = rest.pop("complete", columns_of_the_log(name) if (metavar or "").startswith("COLUMN") else None)
    section = rest.pop("section", None)
    rest |= {"envvar": envvar, "show_envvar": False, "rich_help_panel": section, "autocompletion": complete}
    return Annotated[kind, typer.Option(*flags, metavar=metavar, **rest)]


def is_table(option: str | None, value: object) -> bool:
    """Whether a value is a table of settings, as a file of options and Python write them."""
    return option in SETTINGS and isinstance(value, Mapping)


def setting_texts(values: Mapping[str, object]) -> list[str]:
    """Settings as they stand on the command line."""
    return [f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in values.items()]


def settings_table(option: str) -> Iterator[tuple[str, str, str]]:
    """Name, default and range, and help of each setting of an option, for help and reference."""
    hints = get_type_hints(SETTINGS[option])
    for name, entry in settings_in(SETTINGS[option]).items():
        default = "" if entry.default is None else f"default: {str(entry.default).removesuffix('.0').lower()}; "
        yield name, f"{default}{range_of(entry, hints[name])}", entry.metadata["help"]


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
    """A parser of a place that must be on disk; `instead` says why, and what to do where it is an object store."""

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


METHODS = (*ESTIMATORS, *METHODS_OF_ROWS)


def filled(text: str) -> str:
    """A help text with the names in it."""
    return re.sub(r"\{(\w+)\}", lambda match: IN_WORDS[match[1]], text)


IN_WORDS: Mapping[str, str] = {
    "cell_models": ", ".join(MODELS),
    "page_models": ", ".join(name for name in CLICK_MODELS if name not in MODELS),
    "other_methods": ", ".join(METHODS[1:]),
    "other_learners": ", ".join([*LEARNERS][1:]),
    "shapes": f"{FREE}, monotone (never rising), power (position^-eta), smooth (near a power, for thin logs)",
    "layouts": "document (pointwise, judgments), click (clicked-group), page (session), or preference (pairs)",
    "formats": ", ".join(FORMATS),
    "sources": ", ".join((*FORMS, *SOURCES)),
    "methods_of_rows": " or ".join(METHODS_OF_ROWS),
    "largest_error": str(LARGEST_ERROR),
}
"""Texts of the placeholders in help texts, by name."""


MODEL_HELP = (
    "The click model. Examination depends on the position (pbm, the default), also on the last click above (ubm). "
    "With a propensity by cell: {cell_models}. For fit, run and simulate, also {page_models}."
)
MODEL = option(MODEL_HELP, "NAME", complete=one_of(CLICK_MODELS))
QUERY = option("The query. Repeat for several columns.", "COLUMN", section="Columns of the log")
DOC = option("The document. Repeat for several columns.", "COLUMN", section="Columns of the log")
MOST_THREADS = 1024  # to start more takes minutes
CHECK_PAGES = option("Check a sample of a large log's pages, or all of them.", section="Reading")
MEMORY = option("Target for peak memory.", "SIZE", default="2GiB", section="Reading")
THREADS = option("Threads to work with; all cores by default.", "N", min=1, max=MOST_THREADS, section="Reading")
FEATURES = option(
    "Table of features by query and document, or by document. Repeatable.", "FILE", parser=read_name, section="Features"
)
FEATURE = option("Log column to use as a feature. Repeatable.", "COLUMN", section="Features")
MISSING_FEATURES = option(
    "Rows without features: stop, drop them, or leave the values empty.", default="error", section="Features"
)
VALIDATION = option("Share to hold out for validation, by a hash of the id.", "X", default=0.0, section="Weighting")
PROPENSITY = option(
    "smooth: use the smooth curve where the standard error exceeds {largest_error}. fitted: never.",
    default="smooth",
    section="Weighting",
)
PROPENSITIES = option(
    "Directory written by `posbias fit` or `run`; or a table of position and propensity, or power:ETA.",
    "DIR|FILE",
    parser=read_name,
)
MIN_PROPENSITY = option("Clip propensities at this minimum.", "X", default=0.01, section="Weighting")
RANKER_SCORE = option(
    "Column of the log or of --features with the score that the ranker ordered the page by.", "COLUMN"
)
CSV = option("Also write the tables as CSV, for spreadsheets.", section="Output")


_Group = TypeVar("_Group", bound=Any)


def words_of(values: Mapping[str, object]) -> list[str]:
    """Options by flag as words of a command line."""
    words: list[str] = []
    for flag, value in values.items():
        if isinstance(value, bool):
            words.append(flag)
        else:
            words += [word for single in several(value) for word in _option(flag, single)]
    return words


def values_of(*groups: object) -> dict[str, object]:
    """Values of options by flag, where they are not the default."""
    values = {flag: (getattr(group, entry.name), entry.default) for group in groups for flag, entry in _flags(group)}
    return {flag: value for flag, (value, default) in values.items() if value != default}


def several(value: object) -> Sequence[object]:
    """The values of an option, which may have but one."""
    return cast("list[object]", value) if isinstance(value, list) else [value]


def with_words(group: _Group, words: Sequence[str]) -> _Group:
    """Options as if these words stood on the command line, too; those of other groups are passed over.

    An option with several values gets one more, but for those that it had by `words` alone.
    """
    flags = dict(_flags(group))
    hints = get_type_hints(type(group))
    changed: dict[str, Any] = {}
    for flag, value in _pairs(words):
        if flag not in flags:
            continue
        name = flags[flag].name
        if _is_list(hints[name]):
            changed[name] = [*changed.get(name, []), value]
        else:
            changed[name] = True if value is None else _as_type(hints[name], value)
    return replace(group, **changed)


def _pairs(words: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Flags with their values; None for a switch."""
    at = 0
    while at < len(words):
        flag, equals, value = words[at].partition("=")
        at += 1
        if not equals and at < len(words) and not words[at].startswith("--"):
            equals, value, at = "=", words[at], at + 1
        yield flag, value if equals else None


def _flags(group: object) -> Iterator[tuple[str, Field[Any]]]:
    """The flag of each option of a group."""
    for entry in fields(group):  # type: ignore[arg-type]
        yield f"--{entry.name.replace('_', '-')}", entry


def _option(flag: str, value: object) -> tuple[str, ...]:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return (f"{flag}={text}",) if text.startswith("-") else (flag, text)


def _is_list(hint: Any) -> bool:  # noqa: ANN401 - any type of an option
    return any(str(part).startswith("list") for part in (hint, *get_args(hint)))


def _as_type(hint: Any, value: str) -> object:  # noqa: ANN401 - any type of an option
    parts = {hint, *get_args(hint)}
    return next((kind(value) for kind in (int, float, Path) if kind in parts), value)


_UNITS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
}
LARGEST_POSITION = 2**31 - 1
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


def parse_prior(flag: str, text: str) -> BetaPrior:
    """Read `0.5:2`, mean and strength.

    Raises:
        UsageError: not a prior; the option is named.
    """
    try:
        return BetaPrior.parse(text)
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
    if not ascending or bins[-1] > LARGEST_POSITION:
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
