"""Propensities as a curve in a terminal: a line for each cell, with its interval."""

from collections.abc import Iterable, Sequence
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
        signs = _Signs("|", "|", "-", "o", ">") if options.ascii_only else _Signs("├", "┤", "─", "●", "→")
        labels = self.cells[:MOST_ROWS]
        widths = [max(len(row[number]) for row in [self.headings, *labels]) for number in range(len(self.headings))]
        room = max(options.max_width - sum(widths) - 2 * len(widths), _NARROWEST)
        axis = _Axis(_end(self.propensities[:MOST_ROWS]), room)
        yield line("  ".join([*_padded(self.headings, widths), axis.ticks()]).rstrip())
        drawn = zip(labels, self.propensities, self.intervals, strict=False)
        for label, propensity, interval in drawn:
            mark = axis.mark(propensity, interval, signs)
            yield line("  ".join([*_padded(label, widths), mark]).rstrip())
        rest = more(len(self.cells), "cells")
        if rest:
            yield line(rest)


@dataclass(frozen=True)
class _Signs:
    low: str
    high: str
    between: str
    point: str
    beyond: str


@dataclass(frozen=True)
class _Axis:
    """From 0 to an end, over so many columns of a terminal."""

    end: float
    room: int

    def at(self, value: float) -> int:
        """The column of a value; the last one for those beyond."""
        return min(max(round(value / self.end * (self.room - 1)), 0), self.room - 1)

    def ticks(self) -> str:
        """The numbers along the axis, where there is room."""
        step = next(step for step in _steps() if self.end / step <= max(self.room / _TICK, 1))
        text = ""
        for number in range(int(self.end / step + 1e-9) + 1):
            value = f"{number * step:.10g}"
            text = f"{text:<{self.at(number * step)}}{value}"
        return text if len(text) <= self.room else text[: self.room].rpartition(" ")[0]

    def mark(self, propensity: float | None, interval: tuple[float | None, float | None], signs: _Signs) -> str:
        """A propensity and its interval; below a limit where nothing else is known."""
        low, high = interval
        if propensity is None and high is None:
            return "not identified"
        drawn = [" "] * self.room
        if high is not None:
            left, right = self.at(low or 0.0), self.at(high)
            drawn[left : right + 1] = [signs.between] * (right + 1 - left)
            if left < right:
                drawn[left] = signs.between if low is None else signs.low
                drawn[right] = signs.beyond if high > self.end else signs.high
        if propensity is not None:
            drawn[self.at(propensity)] = signs.point
        return "".join(drawn)


def _end(propensities: Iterable[float | None]) -> float:
    known = [value for value in propensities if value is not None]
    return _ROOM * max(known, default=1.0)


def _steps() -> Iterable[float]:
    """1e-30, 2e-30, 5e-30, 1e-29, ..., the distances of ticks."""
    return (factor * 10.0**power for power in range(-31, 32) for factor in (1, 2, 5))


def _padded(texts: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [text.rjust(width) for text, width in zip(texts, widths, strict=True)]
