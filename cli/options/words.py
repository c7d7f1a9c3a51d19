"""Options as the words of a command line that say them, and words of a command line as options."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import Field, fields, replace
from pathlib import Path
from typing import Any, TypeVar, cast, get_args, get_type_hints

_Group = TypeVar("_Group", bound=Any)


def words_of(values: Mapping[str, object]) -> list[str]:
    """The words that say what options are set to, by flag."""
    said: list[str] = []
    for flag, value in values.items():
        if isinstance(value, bool):
            said.append(flag)
        else:
            said += [word for single in several(value) for word in _option(flag, single)]
    return said


def values_of(*groups: object) -> dict[str, object]:
    """What options are set to, by flag, where that is not their default."""
    values = {flag: (getattr(group, entry.name), entry.default) for group in groups for flag, entry in _flags(group)}
    return {flag: value for flag, (value, default) in values.items() if value != default}


def several(value: object) -> Sequence[object]:
    """The values of an option, which may have but one."""
    return cast("list[object]", value) if isinstance(value, list) else [value]


def with_words(group: _Group, words: Sequence[str]) -> _Group:
    """Options as if these words had been said as well; those of other groups are passed over.

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


def _as_type(hint: Any, value: str) -> object:  # noqa: ANN401 - likewise
    parts = {hint, *get_args(hint)}
    return next((kind(value) for kind in (int, float, Path) if kind in parts), value)
