"""The conclusion of a command: a verdict, reasons for and against it, and the next command; and sections of manifests.

It is printed first, and comes first in the manifest and in `--json`. With the verdict "do not use" the exit code is 1,
or 3 if a condition of `compare` is met.
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
"""Weight of a reason: in favour of the result, neutral, calling for care, or ruling out its use."""

Verdict = Literal["good", "with care", "do not use"]

GOOD, NOTE, CAUTION, STOP = "good", "note", "caution", "stop"

Figures = Mapping[str, float | str | None]
"""Numbers and texts of a sentence by name; NaN and infinity are stored as None."""


_Entry = dict[str, Any]


def _entries(package: str, name: str) -> list[tuple[str, _Entry]]:
    """Return pairs of a code and an entry of a TOML table, in its order; a code has one entry or a list of entries."""
    text = files(package).joinpath(name).read_text(encoding="utf-8")
    table = msgspec.convert(tomllib.loads(text), dict[str, _Entry | list[_Entry]])
    return [(code, entry) for code, value in table.items() for entry in (value if isinstance(value, list) else [value])]


_ENTRIES = dict(_entries("posbias.io.results", "reasons.toml"))
FAULTS = _entries("posbias.io.log", "faults.toml")
"""Codes of faults of a log with their entries, in the order in which they are printed."""

_EXPLAINED: dict[str, list[str]] = {code: entry["explains"] for code, entry in FAULTS if "explains" in entry}

_ALL_ENTRIES = [*FAULTS, *_ENTRIES.items()]
CODES: dict[str, str] = {code: entry["meaning"] for code, entry in _ALL_ENTRIES if "meaning" in entry}
"""Short meaning of each code, to continue a sentence."""

STOPS = frozenset(code for code, entry in _ALL_ENTRIES if entry.get("severity") == STOP or "stop" in entry)
"""Codes that may make the verdict "do not use"; with all other codes it is "with care" at worst."""

STOPS_OF_FITS = STOPS - {code for code, _ in FAULTS}
"""Those that are not of the log: as a caution, they still say that numbers may be wrong."""

CONDITIONS: dict[str, str] = {code: entry["condition"] for code, entry in _ENTRIES.items() if "condition" in entry}
"""Untestable assumptions of a result ("if ..."), by the code of their reason."""

_MOST_NAMED = 2  # reasons that the conclusion names


class Reason(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A reason for or against a result, or a note.

    Raises:
        ValueError: the code is not in `CODES`, or the severity is stop and the code not in `STOPS`.
    """

    code: str
    severity: Severity
    sentence: str  # meaning, number, advice
    figures: Figures = {}
    details: str = ""  # the test, its p-value, and names: printed only with --details

    def __post_init__(self) -> None:
        """Validate the code, and replace NaN and infinity, which JSON lacks, by None."""
        if self.code not in (STOPS if self.severity == STOP else CODES):
            raise ValueError(f"{self.code!r} is not in CODES, or may not be a stop")
        finite = {key: value for key, value in self.figures.items() if not isinstance(value, float) or isfinite(value)}
        msgspec.structs.force_setattr(self, "figures", dict.fromkeys(self.figures) | finite)


class _Words(Formatter):
    """`str.format`, with `{n:queries}` for a number with its noun and `{n:is|are}` for "is" if n is 1 or True."""

    def format_field(self, value: Any, format_spec: str) -> str:  # noqa: ANN401 - any value
        """Format a value by a noun, by singular|plural, or as usual."""
        if "|" in format_spec:
            return format_spec.split("|")[0 if value == 1 else 1]
        is_noun = format_spec.isalpha() and len(format_spec) > len("d")
        return plural(value, format_spec) if is_noun else super().format_field(value, format_spec)


def _entry(name: str) -> dict[str, Any]:
    """Return the entry of a code, or of a case of it: `code.case`."""
    code, _, case = name.partition(".")
    return _ENTRIES[code] | (_ENTRIES[code][case] if case else {})


def in_words(texts: Iterable[str], values: Mapping[str, object]) -> str:
    """Format and join the texts of an entry, without empty ones."""
    return " ".join(filter(None, [_Words().vformat(text, (), values) for text in texts]))


def sentence(name: str, /, **values: object) -> str:
    """Return `sentence`, `more` and `advice` of an entry of `reasons.toml`, formatted with values."""
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
    """Return a reason with its sentence from `reasons.toml`.

    Args:
        name: its code, or `code.case`.
        figures: for the manifest and for the sentence.
        details: the test, its p-value, and names.
        severity: in place of the entry's severity.
        values: further values, for the sentence only.
    """
    figures = figures or {}
    weight: Severity = severity or _entry(name)["severity"]
    return Reason(name.partition(".")[0], weight, sentence(name, **{**figures, **values}), figures, details)


class Conclusion(msgspec.Struct, frozen=True):
    """The first sections of a manifest."""

    verdict: Verdict | Literal[""] = ""  # "" of earlier versions
    conclusion: str = ""  # a sentence; begins with the untestable assumptions: "if ..."
    next: str | None = None  # the command to type next
    reasons: tuple[Reason, ...] = ()


def conclude(headline: str, reasons: Sequence[Reason], following: str | None) -> Conclusion:
    """Draw a conclusion; the verdict follows from the worst severity of the reasons.

    Args:
        headline: the result in one sentence, without its full stop.
        reasons: for and against it.
        following: the next command.
    """
    meanings: list[str] = []  # of the first stops, and of the first cautions
    for severity in (STOP, CAUTION):
        distinct = dict.fromkeys(reason.code for reason in reasons if reason.severity == severity)
        codes = [code for code in distinct if code not in CONDITIONS]  # conditions precede the headline
        more = f" ({len(codes) - _MOST_NAMED} more below)" if len(codes) > _MOST_NAMED else ""
        meanings.append(", and ".join(CODES[code] for code in codes[:_MOST_NAMED]) + more)
    stops, cautions = meanings
    careful = any(reason.severity == CAUTION for reason in reasons)
    verdict: Verdict = "do not use" if stops else "with care" if careful else "good"
    sentence = f"{headline}; but {cautions}" if cautions else headline
    conditions = dict.fromkeys(CONDITIONS[reason.code] for reason in reasons if reason.code in CONDITIONS)
    sentence = stops or ": ".join([*conditions, sentence])
    return Conclusion(verdict, f"{sentence}.", following, tuple(reasons))


def condition_code(conclusion: str) -> str | None:
    """Return the code of the untestable assumption with which a conclusion begins; None without."""
    return next((code for code, condition in CONDITIONS.items() if conclusion.startswith(condition)), None)


def explained_codes(faults: Iterable[Reason]) -> set[str]:
    """Return codes of reasons of a fit that follow from faults of its log: only a stop explains other reasons."""
    return {code for fault in faults if fault.severity == STOP for code in _EXPLAINED.get(fault.code, ())}


def has_stops(reasons: Iterable[Reason]) -> bool:
    """Whether the verdict is "do not use"."""
    return any(reason.severity == STOP for reason in reasons)


def warning_sentences(reasons: Iterable[Reason]) -> list[str]:
    """Return the sentences of cautions and stops."""
    return [reason.sentence for reason in reasons if reason.severity in {CAUTION, STOP}]


# --- sections of every manifest, written at the end of a command and read again to show the result ---


class Column(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A column of a printed table."""

    heading: str
    cells: tuple[str, ...]
    folded: str = ""  # a narrower heading; `heading` if empty
    spare: int = 0  # 0: always shown; columns with larger numbers are dropped first
    label: bool = False  # whether it names the rows: the first column of each part of a split table
    text: bool = False  # whether cells are words, aligned left and foldable; else numbers
    beside: bool = False  # whether a split must not separate it from the previous column
    detail: bool = False  # whether it is printed only with --details

    @property
    def name(self) -> str:
        """The heading on one line."""
        return " ".join((self.folded or self.heading).replace("-\n", "").split())


class PrintedTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A printed table."""

    columns: tuple[Column, ...]
    more: str = ""  # a line below the table, about rows that are left out

    def __post_init__(self) -> None:
        """Raise ValueError if columns differ in length."""
        if len({len(column.cells) for column in self.columns}) != 1:
            raise ValueError("the columns of a table differ in length")


Printed = str | PrintedTable
"""A printed sentence, or table."""


class ResultManifest(Conclusion, msgspec.Struct, frozen=True, kw_only=True):
    """The sections of every manifest; manifests of earlier versions lack some."""

    command: str
    inputs: tuple[str, ...] = ()
    options: dict[str, Any] = {}
    warnings: tuple[str, ...] = ()
    printed: tuple[Printed, ...] = ()
    facts: tuple[str, ...] = ()
    weights_by_position: list[dict[str, Any]] = []
