"""The conclusion of a command: a verdict, reasons for and against it, and the next command; and what a manifest says.

Every command ends with one; it is printed first, and stands first in the manifest and in `--json`. Where the verdict is
"do not use" the exit code is 1, or 3 where a condition of `compare` is met, too.
"""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from math import isfinite
from string import Formatter
from typing import Any, Literal

import msgspec

from posbias.core.errors import plural

Severity = Literal["good", "note", "caution", "stop"]
"""How much a reason weighs: it speaks for the result, is worth a line, calls for care, or forbids to use the result."""

Verdict = Literal["good", "with care", "do not use"]

GOOD, NOTE, CAUTION, STOP = "good", "note", "caution", "stop"

Figures = Mapping[str, float | str | None]
"""Numbers of a sentence by name; null for what is no number."""


_Entry = dict[str, Any]


def _entries(package: str, name: str) -> list[tuple[str, _Entry]]:
    """Codes and entries of a table, in its order; a code has one entry, or a list of them."""
    text = files(package).joinpath(name).read_text(encoding="utf-8")
    table = msgspec.convert(tomllib.loads(text), dict[str, _Entry | list[_Entry]])
    return [(code, entry) for code, of in table.items() for entry in (of if isinstance(of, list) else [of])]


_ENTRIES = dict(_entries("posbias.io.results", "reasons.toml"))
FAULTS = _entries("posbias.io.log", "faults.toml")
"""Codes of faults of a log, and their entries, in the order in which they are stated."""

_EXPLAINED: dict[str, list[str]] = {code: entry["explains"] for code, entry in FAULTS if "explains" in entry}

_EVERY = [*FAULTS, *_ENTRIES.items()]
CODES: dict[str, str] = {code: entry["meaning"] for code, entry in _EVERY if "meaning" in entry}
"""What each code means, in few words that go on a sentence."""

STOPS = frozenset(code for code, entry in _EVERY if entry.get("severity") == STOP or "stop" in entry)
"""The codes that may be reasons not to use a result; what others say makes the verdict "with care" at most."""

CONDITIONS: dict[str, str] = {code: entry["condition"] for code, entry in _ENTRIES.items() if "condition" in entry}
"""What a result rests on although nothing shows it, by the code of the reason that says so."""

_MOST_NAMED = 2  # reasons that the conclusion names


class Reason(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One thing that speaks for or against a result, or is worth knowing.

    Raises:
        ValueError: the code is not in `CODES`, or says stop and is not in `STOPS`.
    """

    code: str
    severity: Severity
    sentence: str  # what it means, the number, what to do
    figures: Figures = {}
    details: str = ""  # the test, its p-value, and names: printed under --details alone

    def __post_init__(self) -> None:
        """Refuse a code that is not documented, and numbers that JSON does not know."""
        if self.code not in (STOPS if self.severity == STOP else CODES):
            raise ValueError(f"{self.code!r} is not in CODES, or may not be a stop")
        known = {name: value for name, value in self.figures.items() if not isinstance(value, float) or isfinite(value)}
        msgspec.structs.force_setattr(self, "figures", dict.fromkeys(self.figures) | known)


class _Words(Formatter):
    """Formats as `str.format` does; `{n:queries}` is a number with its noun, `{n:is|are}` "is" for 1 and for true."""

    def format_field(self, value: Any, format_spec: str) -> str:  # noqa: ANN401 - any value
        """A field in words."""
        if "|" in format_spec:
            return format_spec.split("|")[0 if value == 1 else 1]
        is_noun = format_spec.isalpha() and len(format_spec) > len("d")
        return plural(value, format_spec) if is_noun else super().format_field(value, format_spec)


def _entry(name: str) -> dict[str, Any]:
    """The entry of a code, or of one of its cases: `code.case`."""
    code, _, case = name.partition(".")
    return _ENTRIES[code] | (_ENTRIES[code][case] if case else {})


def in_words(texts: Iterable[str], values: Mapping[str, object]) -> str:
    """Texts of a table, with values."""
    return " ".join(filter(None, [_Words().vformat(text, (), values) for text in texts]))


def sentence(name: str, /, **values: object) -> str:
    """The sentence, more, and the advice of an entry of `reasons.toml`, with values."""
    return in_words([_entry(name).get(part, "") for part in ("sentence", "more", "advice")], values)


def reason(
    name: str,
    figures: Figures | None = None,
    details: str = "",
    /,
    *,
    severity: Severity | None = None,
    **values: object,
) -> Reason:
    """A reason in the words of `reasons.toml`.

    Args:
        name: its code, or `code.case`.
        figures: the numbers that the manifest has beside the sentence, which may name them.
        details: the test, its p-value, and names.
        severity: how much it weighs, where that is not the entry's severity.
        values: what else the sentence names.
    """
    figures = figures or {}
    weight: Severity = severity or _entry(name)["severity"]
    return Reason(name.partition(".")[0], weight, sentence(name, **{**figures, **values}), figures, details)


class Conclusion(msgspec.Struct, frozen=True):
    """What a reader must know first: the first sections of a manifest."""

    verdict: Verdict | Literal[""] = ""  # "" of earlier versions
    conclusion: str = ""  # a sentence, first what it rests on although nothing shows it: "if ..."
    next: str | None = None  # the command to type next
    reasons: tuple[Reason, ...] = ()


def conclude(headline: str, reasons: Sequence[Reason], following: str | None) -> Conclusion:
    """Draw a conclusion; the verdict is as bad as the worst of the reasons.

    Args:
        headline: the result in one sentence, without its full stop.
        reasons: what speaks for and against it.
        following: the next command.
    """
    meanings: list[str] = []  # the first reasons of each severity in few words each
    for severity in (STOP, CAUTION):
        of_severity = dict.fromkeys(reason.code for reason in reasons if reason.severity == severity)
        codes = [code for code in of_severity if code not in CONDITIONS]  # which stand before the result
        more = f" ({len(codes) - _MOST_NAMED} more below)" if len(codes) > _MOST_NAMED else ""
        meanings.append(", and ".join(CODES[code] for code in codes[:_MOST_NAMED]) + more)
    stops, cautions = meanings
    careful = any(reason.severity == CAUTION for reason in reasons)
    verdict: Verdict = "do not use" if stops else "with care" if careful else "good"
    sentence = f"{headline}; but {cautions}" if cautions else headline
    rests_on = [CONDITIONS[reason.code] for reason in reasons if reason.code in CONDITIONS]
    sentence = stops or ": ".join([*dict.fromkeys(rests_on), sentence])
    return Conclusion(verdict, f"{sentence}.", following, tuple(reasons))


def condition_of(conclusion: str) -> str | None:
    """What a conclusion rests on although nothing shows it, by its code."""
    return next((code for code, condition in CONDITIONS.items() if conclusion.startswith(condition)), None)


def explained_by(faults: Iterable[Reason]) -> set[str]:
    """Codes of reasons of a fit that follow from faults of its log; a caution explains no reason that stops."""
    return {code for fault in faults if fault.severity == STOP for code in _EXPLAINED.get(fault.code, ())}


def is_refused(reasons: Iterable[Reason]) -> bool:
    """Whether the verdict is "do not use"."""
    return any(reason.severity == STOP for reason in reasons)


def warnings_in(reasons: Iterable[Reason]) -> list[str]:
    """The sentences that speak against a result."""
    return [reason.sentence for reason in reasons if reason.severity in {CAUTION, STOP}]


def sections_of(conclusion: Conclusion) -> dict[str, Any]:
    """The first sections of a manifest, and what `--json` prints first."""
    return msgspec.to_builtins(conclusion)


# --- the sections that each command writes as it ends, and that whoever shows the result reads again ---


class Column(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A column of a table that is printed."""

    heading: str
    cells: tuple[str, ...]
    folded: str = ""  # the heading where there is little room; the same if empty
    spare: int = 0  # 0 if it is always shown; else, columns with larger numbers are left out first
    label: bool = False  # whether it says what a row is about: it begins each of several tables
    text: bool = False  # whether it holds words, on the left and perhaps folded, and not numbers
    beside: bool = False  # whether it is always beside the column before it
    detail: bool = False  # whether it is shown under --details alone

    @property
    def name(self) -> str:
        """The heading on one line."""
        return " ".join((self.folded or self.heading).replace("-\n", "").split())


class PrintedTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A table that is printed."""

    columns: tuple[Column, ...]
    more: str = ""  # what stands below it, where it is not all that there is

    def __post_init__(self) -> None:
        """Find columns of different lengths."""
        if len({len(column.cells) for column in self.columns}) != 1:
            raise ValueError("the columns of a table differ in length")


Printed = str | PrintedTable
"""A printed sentence, or table."""


class ResultManifest(Conclusion, msgspec.Struct, frozen=True, kw_only=True):
    """The sections of every result; those of earlier versions lack some."""

    command: str
    inputs: tuple[str, ...] = ()
    options: dict[str, Any] = {}
    warnings: tuple[str, ...] = ()
    printed: tuple[Printed, ...] = ()
    facts: tuple[str, ...] = ()
    weights_by_position: list[dict[str, Any]] = []
