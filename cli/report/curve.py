"""Propensities as a curve in a terminal: a line for each cell, with its interval."""

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl
from rich.console import Console, ConsoleOptions, RenderResult

from posbias.cli.console import line
from posbias.core.wording import shown
from posbias.io.fits.cells_in_words import label_in_words
from posbias.io.jobs.result import MOST_ROWS, more

_NARROWEST, _TICK = 10, 12
_ROOM = 1.25
"""How much further than the largest propensity the axis goes; intervals may be far wider."""


@dataclass(frozen=True)
class Curve:
    """What is drawn.

    Attributes:
        headings: the columns that make up a cell.
        cells: the values of these columns, cell by cell.
        propensities: None where not known.
        intervals: their ends, likewise.
    """

    headings: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    propensities: tuple[float | None, ...]
    intervals: tuple[tuple[float | None, float | None], ...]

    @classmethod
    def of(cls, table: pl.DataFrame, cells: Sequence[str]) -> "Curve":
        """The curve of a propensity table."""
        rows = table.to_dicts()
        return cls(
            tuple(shown(name).replace("_", " ") for name in cells),
            tuple(tuple(label_in_words(row[name]) for name in cells) for row in rows),
            tuple(row["propensity"] for row in rows),
            tuple((row["ci_low"], row["ci_high"]) for row in rows),
        )

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw it within a width."""
        signs = "||-o>" if options.ascii_only else "├┤─●→"
        labels = self.cells[:MOST_ROWS]
        widths = [max(len(row[number]) for row in [self.headings, *labels]) for number in range(len(self.headings))]
        room = max(options.max_width - sum(widths) - 2 * len(widths), _NARROWEST)
        end = _ROOM * max([value for value in self.propensities[:MOST_ROWS] if value is not None], default=1.0)
        yield line("  ".join([*_padded(self.headings, widths), _ticks(end, room)]).rstrip())
        drawn = zip(labels, self.propensities, self.intervals, strict=False)
        for label, propensity, interval in drawn:
            mark = _mark(propensity, interval, signs, end, room)
            yield line("  ".join([*_padded(label, widths), mark]).rstrip())
        rest = more(len(self.cells), "cells")
        if rest:
            yield line(rest)


def _at(value: float, end: float, room: int) -> int:
    """The column of a value on an axis from 0 to `end`; the last one for those beyond."""
    return min(max(round(value / end * (room - 1)), 0), room - 1)


def _ticks(end: float, room: int) -> str:
    """The numbers along the axis, where there is room; their distance is 1, 2 or 5 times a power of ten."""
    steps = (factor * 10.0**power for power in range(-31, 32) for factor in (1, 2, 5))
    step = next(step for step in steps if end / step <= max(room / _TICK, 1))
    text = ""
    for number in range(int(end / step + 1e-9) + 1):
        text = f"{text:<{_at(number * step, end, room)}}{number * step:.10g}"
    return text if len(text) <= room else text[:room].rpartition(" ")[0]


def _mark(
    propensity: float | None, interval: tuple[float | None, float | None], signs: str, end: float, room: int
) -> str:
    """A propensity and its interval; below a limit where nothing else is known."""
    low, high = interval
    if propensity is None and high is None:
        return "not identified"
    left_sign, right_sign, between, point, beyond = signs
    drawn = [" "] * room
    if high is not None:
        left, right = _at(low or 0.0, end, room), _at(high, end, room)
        drawn[left : right + 1] = [between] * (right + 1 - left)
        if left < right:
            drawn[left] = between if low is None else left_sign
            drawn[right] = beyond if high > end else right_sign
    if propensity is not None:
        drawn[_at(propensity, end, room)] = point
    return "".join(drawn)


def _padded(texts: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [text.rjust(width) for text, width in zip(texts, widths, strict=True)]
