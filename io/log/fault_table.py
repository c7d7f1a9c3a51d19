"""Which faults of the table (`faults.toml`, whose head says how to add one) the profile of a log shows."""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import msgspec

from posbias.io.results.conclusions import FAULTS, STOP, Reason, Severity, in_words

Quantity = float | str | None
"""A number, a truth, or a text; None where it is not known."""

Profile = Mapping[str, Quantity]
"""Quantities of a log by name."""

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class LogFault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of the table; its head says what the fields are."""

    severity: Severity
    when: tuple[str, ...]
    sentence: str
    advice: str = ""
    meaning: str = ""
    stop: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    figures: Mapping[str, str] = {}
    details: str = ""


TABLE: Sequence[tuple[str, LogFault]] = [(code, msgspec.convert(entry, LogFault)) for code, entry in FAULTS]
"""Codes and entries, in the order in which they are stated."""


def fault_in_words(fault: LogFault, profile: Profile) -> str:
    """The sentence of a fault, and its advice, with the quantities of a log."""
    return in_words([fault.sentence, fault.advice], profile)


def faults_in(profile: Profile, stated: Iterable[str] = ()) -> list[Reason]:
    """The faults that a profile shows; each code once, and none that is `stated` already."""
    reasons = dict[str, Reason]()
    for code, fault in TABLE:
        if not {code, *fault.unless}.isdisjoint((*stated, *reasons)) or not _hold(fault.when, profile):
            continue
        severity: Severity = STOP if fault.stop and _hold(fault.stop, profile) else fault.severity
        figures = {name: profile[quantity] for name, quantity in fault.figures.items()}
        details = in_words([fault.details], profile)
        reasons[code] = Reason(code, severity, fault_in_words(fault, profile), figures, details)
    return [*reasons.values()]


def _hold(conditions: Iterable[str], profile: Profile) -> bool:
    """Whether all conditions hold; one on a quantity that is not known does not."""
    return all(_holds(*condition.split(), profile=profile) for condition in conditions)


def _holds(name: str, sign: str = "", limit: str = "", *, profile: Profile) -> bool:
    value = profile.get(name)
    if not sign or value is None:
        return bool(value)
    return _COMPARE[sign](value, profile[limit] if limit in profile else float(Fraction(limit)))
