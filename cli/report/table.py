"""Printed tables, drawn on a terminal of any width, or written as Markdown.

Where it does not fit, headings are folded, then columns that a reader needs last are left out, then the others stand
in several tables below each other. No number is ever cut.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import polars as pl
from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table

from posbias.cli.console import line
from posbias.core.errors import shown
from posbias.io.fits.verdicts import label_in_words
from posbias.io.jobs.tables import MOST_ROWS, Column, PrintedTable, more

_UNBOUNDED, _FOLDED = 1 << 16, 16
_MARKDOWN = re.compile(r"[\\`*_\[\]<>|~&]|^[-+#=]")


@dataclass(frozen=True)
class _Drawn:
    table: PrintedTable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw it within a width."""
        tables, absent = _laid_out(self.table.columns, options.max_width, console)
        for table in tables:
            width = max(options.max_width, _width(table, console))
            yield from console.render(table, options.update(max_width=width))
        if self.table.more:
            yield line(self.table.more)
        if absent:
            yield line(f"no room here for: {', '.join(column.name for column in absent)}")


def renderable_table(table: PrintedTable) -> RenderableType:
    """A table as Rich prints it."""
    return _Drawn(table)


def markdown_table(table: PrintedTable) -> str:
    """A table in Markdown, with all columns."""
    named = " | ".join(markdown_text(column.name) for column in table.columns)
    rules = " | ".join("---" if column.text else "---:" for column in table.columns)
    rows = zip(*(column.cells for column in table.columns), strict=True)
    body = [f"| {' | '.join(map(markdown_text, row))} |" for row in rows]
    more = ["", markdown_text(table.more)] if table.more else []
    return "\n".join([f"| {named} |", f"| {rules} |", *body, *more])


def markdown_text(text: str) -> str:
    """Text of which Markdown makes nothing else; an id may be anything."""
    return _MARKDOWN.sub(r"\\\g<0>", shown(text).strip())


def _laid_out(columns: Sequence[Column], width: int, console: Console) -> tuple[list[Table], list[Column]]:
    """The tables that fit into a width, and the columns that are left out."""
    whole = _table(columns, folded=False)
    if _width(whole, console) <= width:
        return [whole], []
    kept: list[Column] = []
    for most in sorted({column.spare for column in columns}, reverse=True):
        kept = [column for column in columns if column.spare <= most]
        table = _table(kept, folded=True)
        if _width(table, console) <= width:
            return [table], _absent(columns, kept)
    labels, others = ([column for column in kept if column.label is label] for label in (True, False))
    groups = _groups(labels, others, width, console)
    return [_table(group, folded=True) for group in groups], _absent(columns, kept)


def _absent(columns: Sequence[Column], kept: Sequence[Column]) -> list[Column]:
    return [column for column in columns if column not in kept]


def _groups(
    labels: Sequence[Column], others: Sequence[Column], width: int, console: Console
) -> Iterator[Sequence[Column]]:
    """The columns in groups that fit, each after the labels."""
    group: list[Column] = []
    starts = [number for number, column in enumerate(others) if not number or not column.beside]
    for start, end in zip(starts, [*starts[1:], len(others)], strict=True):
        if group and _width(_table([*labels, *group, *others[start:end]], folded=True), console) > width:
            yield [*labels, *group]
            group = []
        group += others[start:end]
    yield [*labels, *group]


def _table(columns: Sequence[Column], *, folded: bool) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for column in columns:
        heading = (folded and column.folded) or column.heading
        folds = column.text or column.label
        table.add_column(heading, justify="left" if column.text else "right", overflow="fold", no_wrap=not folds)
    for row in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*map(line, row))
    return table


def _width(table: Table, console: Console) -> int:
    """The columns of a terminal that a table takes at least: words fold at 16, numbers nowhere."""
    wide = console.options.update(max_width=_UNBOUNDED)
    width = Measurement.get(console, wide, table).maximum
    for column in table.columns:
        if not column.no_wrap:
            longest = max((Measurement.get(console, wide, cell).maximum for cell in column.cells), default=0)
            heading = Measurement.get(console, wide, column.header).maximum
            width -= max(longest, heading) - min(max(longest, heading), max(heading, _FOLDED))
    return width


_NARROWEST, _TICK = 10, 12
_ROOM = 1.25
"""How much further than the largest propensity the axis goes; intervals may be far wider."""


@dataclass(frozen=True)
class Curve:
    """A curve to draw.

    Attributes:
        headings: the columns that make up a cell.
        cells: the values of these columns, cell by cell.
        propensities: None where not known.
        intervals: the ends of their intervals.
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
