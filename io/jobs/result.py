"""What a job makes: files in a folder, sections of the manifest, and what is printed, as data that a console draws."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from posbias.io.places.locations import Location, ObjectUrl
from posbias.io.progress import Progress
from posbias.io.results.manifest import write_manifest

DONE, WITH_DOUBTS, CHANGED = 0, 1, 3
PRINTED = "printed"
"""The section of the manifest that holds what was printed."""

MOST_ROWS = 30
"""Rows of a table that are printed."""


class Column(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A column of a table that is printed."""

    heading: str
    cells: tuple[str, ...]
    folded: str = ""  # the heading where there is little room; the same if empty
    spare: int = 0  # 0 if it is always shown; else, columns with larger numbers are left out first
    label: bool = False  # whether it says what a row is about: it begins each of several tables
    text: bool = False  # whether it holds words, on the left and perhaps folded, and not numbers
    beside: bool = False  # whether it is always beside the column before it

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
"""What is printed: a sentence, or a table."""


def more(number: int, where: str) -> str:
    """What is said below a table of the first rows of so many."""
    return f"... and {number - MOST_ROWS:,} more {where}" if number > MOST_ROWS else ""


def first(cells: Iterable[str]) -> tuple[str, ...]:
    """The first cells, as many as are printed."""
    return tuple(islice(cells, MOST_ROWS))


@dataclass
class Result:
    """What a job writes and says."""

    folder: Path  # where to write; it becomes the output directory when all is done
    progress: Progress
    content: dict[str, Any] = field(default_factory=dict[str, Any])  # sections of the manifest
    printed: list[Printed] = field(default_factory=list[Printed])
    hints: list[str] = field(default_factory=list[str])  # printed last, and not kept: they hold for this moment only
    curve: tuple[pl.DataFrame, tuple[str, ...]] | None = None  # propensities and their cell columns, to be drawn
    warnings: list[str] = field(default_factory=list[str])
    exit_code: int = DONE


def write_description(
    result: Result, command: str, inputs: Sequence[str | Location], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Write the manifest of a result, its last file, and return it."""
    content = {"command": command, "inputs": [*map(str, inputs)], "options": dict(options), **result.content}
    return write_manifest(result.folder, {**content, "warnings": result.warnings, PRINTED: result.printed})


def is_same(path: Location, target: Location) -> bool:
    """Whether two names stand for one thing that is there."""
    if isinstance(path, ObjectUrl) or isinstance(target, ObjectUrl):
        return path == target
    try:
        return path.samefile(target)
    except (OSError, ValueError):  # there is no such target yet, or there cannot be one
        return False
