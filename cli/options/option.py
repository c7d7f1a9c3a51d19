"""Options as data: what options.toml says of each, and their values as text, as words and as numbers."""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import Field, fields, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar, cast, get_args, get_type_hints

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
from posbias.io.sources import NAMES as SOURCES

ROWS = ("auto", "flat", "nested")
"""Forms of a log whose rows are read as they are."""

SETTINGS: Mapping[str, type] = {"layout_options": LayoutOptions, "learner_options": LearningOptions}
"""Options NAME=VALUE, by parameter name, and the dataclass whose fields they set."""

_TABLES = tomllib.loads(Path(__file__).with_name("options.toml").read_text(encoding="utf-8"))

NAMED_RULES: Mapping[str, list[Any]] = _TABLES.pop("rules")
"""Lists of rules that several options share."""

_OF_COMMANDS: Mapping[str, Mapping[str, Any]] = _TABLES.pop("commands")

OPTIONS: Mapping[str, Mapping[str, Any]] = {
    name: {"section": section, **entry} for section, entries in _TABLES.items() for name, entry in entries.items()
}
"""Options by parameter name."""


@cache
def declaration(command: str, name: str) -> Mapping[str, Any]:
    """What options.toml says of a parameter of a command."""
    entry = _OF_COMMANDS.get(command, {}).get(name) or OPTIONS[name]
    return {**entry, **entry.get("in", {}).get(command, {})}


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
    if not ascending or bins[-1] > OPTIONS["max_position"]["max"]:
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
