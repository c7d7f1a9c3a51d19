"""Values from outside and counts, as they stand in sentences: no secrets, and nothing that a terminal acts on."""

from enum import IntEnum
from typing import Self

from posbias.core.credentials import masked
from posbias.core.escapes import escaped, escaped_lines


def shown(text: str) -> str:
    """A name, a value or a sentence on one line, without secrets and with unseen characters as escapes."""
    return escaped(masked(text))


def shown_lines(text: str) -> str:
    """A message whose line breaks are its own, without secrets and with unseen characters as escapes."""
    return escaped_lines(masked(text))


def counted(number: float, plural: str) -> str:
    """A count with its noun, e.g. `1,204 clicks`, `1 query`."""
    count = f"{number:,.0f}"
    if count != "1":
        return f"{count} {plural}"
    return f"1 {plural.removesuffix('ies')}y" if plural.endswith("ies") else f"1 {plural.removesuffix('s')}"


def population(whom: str = "queries like these") -> str:
    """Whom intervals and standard errors are about: what another log of these may give."""
    return f"95 % intervals and standard errors are for {whom}, not for this log alone."


class Coded(IntEnum):
    """A code for what becomes of a row or a record, in words as they stand in manifests and messages."""

    words: str

    def __new__(cls, number: int, words: str) -> Self:
        """A number with its words."""
        member = int.__new__(cls, number)
        member._value_ = number
        member.words = words
        return member
