"""What every result says of itself: written by each command as it ends, and read again by whoever shows the result."""

from typing import Any

import msgspec
from msgspec import structs

from posbias.io.results.conclusions import Conclusion


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


def without_details(printed: Printed) -> Printed:
    """A table without the columns that only --details shows."""
    if isinstance(printed, str):
        return printed
    return structs.replace(printed, columns=tuple(column for column in printed.columns if not column.detail))
