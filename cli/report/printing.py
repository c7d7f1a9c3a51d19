"""Printing of results: the conclusion first, then tables, reasons for and against it, facts, and a curve.

Commands and `posbias show` print through here, on a terminal or as Markdown.

Names, ids and messages of libraries are untrusted. All text passes `printable`, which escapes control characters and
masks passwords and keys as `***`; `SafeConsole` escapes once more whatever is rendered.

A table is drawn on a terminal of any width. If it does not fit, headings are folded, then the least important columns
are dropped, then the remaining columns are split into several tables. Numbers are never truncated.
"""

import contextlib
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import polars as pl
import typer
from msgspec import structs
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from posbias.cli.messages import Level, capture_content, is_plain, print_message, write_error
from posbias.core.errors import OutputError, escape_unseen, mask_secrets, mask_secrets_in_values, printable
from posbias.io.fits.verdicts import label_in_words
from posbias.io.jobs.tables import MOST_ROWS, Column, PrintedTable, more
from posbias.io.results.conclusions import CAUTION, STOP, Conclusion, Printed, Reason, Severity, condition_code
from posbias.io.results.manifest import json_text

_WIDTH_IN_A_FILE = 120


def line(text: str, style: str = "", *, whole: bool = False) -> Text:
    """Return a line, or a cell of a table, with control characters escaped; Rich's own `Text` drops some of them.

    Args:
        text: of the line.
        style: its colour, on a terminal.
        whole: whether to print it without line breaks, so that it can be copied or searched.
    """
    return Text(printable(text), style, no_wrap=whole or None, overflow="ignore" if whole else None)


class SafeConsole(Console):
    """A console without markup, emoji and highlighting, which escapes control characters in all text."""

    def __init__(self, *, stderr: bool, width_in_a_file: int = _WIDTH_IN_A_FILE) -> None:
        super().__init__(stderr=stderr, highlight=False, markup=False, emoji=False)
        if not self.is_terminal:
            self.width = width_in_a_file

    def render_str(self, text: str, **settings: Any) -> Text:  # noqa: ANN401 - as Rich has it
        """Render a string, such as a cell of a table, with secrets masked."""
        return super().render_str(escape_unseen(mask_secrets(text), keep="\n"), **settings)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render with text escaped; only Rich's own control codes remain."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(escape_unseen(segment.text, keep="\n"), segment.style)


def print_content(console: Console, content: RenderableType) -> None:
    """Print a table or another renderable on stderr, or drop it if stderr cannot be written."""
    with contextlib.suppress(OSError):
        console.print(content, crop=False)


def print_on_stdout(
    contents: Iterable[RenderableType], as_json: object = None, *, width_in_a_file: int = _WIDTH_IN_A_FILE
) -> None:
    """Print tables and sentences on stdout, or JSON in their place if `as_json` is not None.

    Raises:
        OutputError: stdout cannot be written.
    """
    if capture_content(mask_secrets_in_values(as_json)):
        return
    if as_json is not None:
        typer.echo(json_text(mask_secrets_in_values(as_json)).encode(), nl=False)
    else:
        console = SafeConsole(stderr=False, width_in_a_file=width_in_a_file)
        for content in contents:
            console.print(content, crop=False)
    check_stdout()


def check_stdout() -> None:
    """Raise OutputError if output to stdout was lost."""
    lost = write_error(sys.stdout)
    if lost is not None:
        raise OutputError(f"stdout cannot be written: {lost}.")


# --- conclusions and reasons ---

_MARKS: dict[Severity, tuple[str, str, str]] = {
    "stop": ("✘", "x", "red"),
    "caution": ("!", "!", "yellow"),
    "good": ("✔", "+", "green"),
    "note": ("-", "-", ""),
}
"""Mark, ASCII mark and colour of each severity, in the order in which reasons are printed."""

_VERDICTS: dict[str, tuple[Severity, str]] = {
    "good": ("good", "Good"),
    "with care": ("caution", "With care"),
    "do not use": ("stop", "Do not use"),
}
_LEVELS: dict[Severity, Level] = {"good": "info", "note": "info", "caution": "warning", "stop": "warning"}

Item = Printed | Conclusion | Reason


def in_order(conclusion: Conclusion, printed: Sequence[Printed], facts: Sequence[str], *, details: bool) -> list[Item]:
    """Return the printed items of a result in order; columns marked `detail` only with `details`."""
    tables = [
        each
        if details or isinstance(each, str)
        else structs.replace(each, columns=tuple(column for column in each.columns if not column.detail))
        for each in printed
    ]
    reasons = sorted(conclusion.reasons, key=lambda reason: list(_MARKS).index(reason.severity))
    return [*([conclusion] if conclusion.verdict else []), *tables, *reasons, *facts]


def renderable(item: Item, *, details: bool = False) -> RenderableType:
    """Return an item as a renderable of Rich."""
    if isinstance(item, str):
        return line(item)
    draw = partial(_draw_table, item) if isinstance(item, PrintedTable) else partial(_draw_marked, item, details)
    return Drawing(draw)


def markdown(items: Iterable[Item], *, details: bool) -> str:
    """Return items as paragraphs of Markdown; tables with all columns."""

    def escape(text: str) -> str:
        return _MARKDOWN.sub(r"\\\g<0>", printable(text).strip())

    blocks: list[str] = []
    for item in items:
        if not isinstance(item, PrintedTable):
            blocks += map(escape, _lines(item, details))
            continue
        names = [escape(column.name) for column in item.columns]
        rules = ["---" if column.text else "---:" for column in item.columns]
        cells = zip(*(map(escape, column.cells) for column in item.columns), strict=True)
        rows = [f"| {' | '.join(row)} |" for row in (names, rules, *cells)]
        blocks.append("\n".join([*rows, *(["", escape(item.more)] if item.more else [])]))
    return "\n\n".join(blocks) + "\n"


def print_items(items: Iterable[Item], console: Console, *, details: bool) -> None:
    """Print items on stderr: on a console, or as messages without tables where `is_plain`."""
    for item in items:
        if not is_plain():
            print_content(console, renderable(item, details=details))
        elif not isinstance(item, PrintedTable):
            level = _LEVELS[item.severity] if isinstance(item, Reason) else "info"
            for text in _lines(item, details):
                print_message(text, level=level)


def print_warnings(conclusion: Conclusion, console: Console) -> None:
    """Print the conclusion and its cautions and stops on stderr, if there are any."""
    against = [reason for reason in conclusion.reasons if reason.severity in {CAUTION, STOP}]
    if against:
        conclusion = structs.replace(conclusion, next=None, reasons=tuple(against))
        print_items(in_order(conclusion, (), (), details=False), console, details=False)


def _lines(item: str | Conclusion | Reason, details: bool) -> list[str]:  # noqa: FBT001 - as `renderable` has it
    """Return the lines of an item, without its mark."""
    if isinstance(item, str):
        return [item]
    if isinstance(item, Conclusion):
        label = f"{_VERDICTS[item.verdict][1]}{':' if condition_code(item.conclusion) is None else ','}"
        return [f"{label} {item.conclusion}", *([] if item.next is None else [f"next: {item.next}"])]
    sentences = item.sentence.split("\n") if item.code == "log-not-valid" else [item.sentence]
    return [*sentences, *([item.details] if details and item.details else [])]


@dataclass(frozen=True)
class Drawing:
    """A renderable of Rich, drawn by a function for the width of the console."""

    draw: Callable[[Console, ConsoleOptions], RenderResult]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw for the console's width."""
        return self.draw(console, options)


def _draw_marked(
    item: Conclusion | Reason,
    details: bool,  # noqa: FBT001 - as `renderable` has it
    console: Console,
    options: ConsoleOptions,
) -> RenderResult:
    """Draw a conclusion or a reason behind its mark: wrapped on a terminal, unbroken lines in a file."""
    in_bold = isinstance(item, Conclusion)
    severity = _VERDICTS[item.verdict][0] if isinstance(item, Conclusion) else item.severity
    sign, ascii_sign, colour = _MARKS[severity]
    mark = ascii_sign if options.ascii_only else sign
    for number, text in enumerate(_lines(item, details)):
        if number and in_bold:
            yield line(text, whole=True)
        elif not console.is_terminal:
            yield line(f"{' ' if number else mark} {text}", whole=True)
        else:
            grid = Table.grid(padding=(0, 1, 0, 0))
            grid.add_column(no_wrap=True)
            grid.add_column(overflow="fold")
            style = "dim" if number else "bold" if in_bold else ""
            grid.add_row(line(" ", "") if number else line(mark, colour), line(text, style))
            yield grid


# --- tables ---

_FOLDED = 16
_MARKDOWN = re.compile(r"[\\`*_\[\]<>|~&]|^[-+#=]")


def _draw_table(table: PrintedTable, console: Console, options: ConsoleOptions) -> RenderResult:
    """Draw a table in the width of the console, with fewer columns or as several tables where it does not fit."""
    columns, width = table.columns, options.max_width
    tables, drawn = [_table(columns, folded=False)], list(columns)
    if _width(tables[0]) > width:
        for most in sorted({column.spare for column in columns}, reverse=True):
            drawn = [column for column in columns if column.spare <= most]
            tables = [_table(drawn, folded=True)]
            if _width(tables[0]) <= width:
                break
        else:
            tables = [_table(group, folded=True) for group in _groups(drawn, width)]
    for part in tables:
        yield from console.render(part, options.update(max_width=max(width, _width(part))))
    if table.more:
        yield line(table.more)
    absent = [column.name for column in columns if column not in drawn]
    if absent:
        yield line(f"no room here for: {', '.join(absent)}")


def _groups(columns: Sequence[Column], width: int) -> list[list[Column]]:
    """Split columns into groups whose tables fit into the width, each led by the label columns."""
    labels, others = ([column for column in columns if column.label is label] for label in (True, False))
    groups: list[list[Column]] = []
    group: list[Column] = []
    starts = [number for number, column in enumerate(others) if not number or not column.beside]
    for start, end in zip(starts, [*starts[1:], len(others)], strict=True):
        if group and _width(_table([*labels, *group, *others[start:end]], folded=True)) > width:
            groups.append([*labels, *group])
            group = []
        group += others[start:end]
    return [*groups, [*labels, *group]]


def _table(columns: Sequence[Column], *, folded: bool) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for column in columns:
        heading = (folded and column.folded) or column.heading
        folds = column.text or column.label
        table.add_column(heading, justify="left" if column.text else "right", overflow="fold", no_wrap=not folds)
    for row in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*map(line, row))
    return table


def _width(table: Table) -> int:
    """Return the least width of a table in terminal columns; words may fold at 16, numbers do not.

    Equal to Rich's `Measurement.get` without bounds, which takes a third of the time of printing.
    """
    width = 2 * len(table.columns)  # a space beside each cell and before the first, and dividers
    for column in table.columns:
        heading, *cells = (
            max(map(cell_len, text.splitlines()), default=0)
            for text in (escape_unseen(mask_secrets(str(column.header)), keep="\n"), *map(str, column.cells))
        )
        longest = max([heading, *cells])
        width += longest if column.no_wrap else min(longest, max(heading, _FOLDED))
    return width


# --- curves ---

_MIN_ROOM, _TICK = 10, 12  # columns of the axis, and between its numbers
_HEADROOM = 1.25
"""End of the axis, as a multiple of the largest propensity; an interval may go far beyond."""


def curve(table: pl.DataFrame, cells: Sequence[str]) -> Drawing:
    """Return a drawing of `propensity`, `ci_low` and `ci_high` by cell, one line for each of the first cells.

    Args:
        table: of propensities.
        cells: its columns that make up a cell.
    """
    return Drawing(partial(_draw_curve, table, cells))


def _draw_curve(table: pl.DataFrame, cells: Sequence[str], console: Console, options: ConsoleOptions) -> RenderResult:  # noqa: ARG001 - as Rich calls it
    signs = "||-o>" if options.ascii_only else "├┤─●→"
    rows = table.head(MOST_ROWS).to_dicts()
    labels = [[printable(name).replace("_", " ") for name in cells]]
    labels += [[label_in_words(row[name]) for name in cells] for row in rows]
    widths = [max(map(len, column)) for column in zip(*labels, strict=True)]
    room = max(options.max_width - sum(widths) - 2 * len(widths), _MIN_ROOM)
    end = _HEADROOM * max([row["propensity"] for row in rows if row["propensity"] is not None], default=1.0)
    # The distance of numbers along the axis is 1, 2 or 5 times a power of ten.
    steps = (factor * 10.0**power for power in range(-31, 32) for factor in (1, 2, 5))
    step = next(step for step in steps if end / step <= max(room / _TICK, 1))
    ticks = ""
    for number in range(int(end / step + 1e-9) + 1):
        ticks = f"{ticks:<{_at(number * step, end, room)}}{number * step:.10g}"
    ticks = ticks if len(ticks) <= room else ticks[:room].rpartition(" ")[0]
    marks = (_mark(row["propensity"], row["ci_low"], row["ci_high"], signs, end, room) for row in rows)
    for texts, drawn in zip(labels, [ticks, *marks], strict=True):
        padded = [text.rjust(width) for text, width in zip(texts, widths, strict=True)]
        yield line("  ".join([*padded, drawn]).rstrip())
    rest = more(table.height, "cells")
    if rest:
        yield line(rest)


def _at(value: float, end: float, room: int) -> int:
    """Return the column, from 0 to `room` - 1, of a value on an axis from 0 to `end`; larger values are clipped."""
    return min(max(round(value / end * (room - 1)), 0), room - 1)


def _mark(propensity: float | None, low: float | None, high: float | None, signs: str, end: float, room: int) -> str:
    """Return the line of a propensity with its interval, or of an upper limit alone (`low` and `propensity` None)."""
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
