"""A table as it is printed: kept in the manifest, drawn on a terminal of any width, or written as Markdown.

Where it does not fit, headings are folded, then columns that a reader needs last are left out, then the others stand
in several tables below each other. No number is ever cut.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table

from posbias.cli.console import line
from posbias.core.wording import shown

MOST_ROWS = 30

_UNBOUNDED, _FOLDED = 1 << 16, 16
_MARKDOWN = re.compile(r"[\\`*_\[\]<>|~&]|^[-+#=]")


class Column(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A column.

    Attributes:
        heading: its heading, in one or more lines.
        cells: what stands in it, row by row.
        folded: the heading where there is little room; the same if empty.
        spare: 0 if it is always shown; else, columns with larger numbers are left out first.
        label: whether it says what a row is about: it begins each of several tables.
        text: whether it holds words, which are on the left and may be folded, and not numbers.
        beside: whether it is always beside the column before it.
    """

    heading: str
    cells: tuple[str, ...]
    folded: str = ""
    spare: int = 0
    label: bool = False
    text: bool = False
    beside: bool = False

    @property
    def name(self) -> str:
        """The heading on one line."""
        return " ".join((self.folded or self.heading).replace("-\n", "").split())


class PrintedTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A table.

    Attributes:
        columns: all of the same length.
        more: what stands below it, where it is not all that there is.
    """

    columns: tuple[Column, ...]
    more: str = ""

    def __post_init__(self) -> None:
        """Find columns of different lengths."""
        if len({len(column.cells) for column in self.columns}) != 1:
            raise ValueError("the columns of a table differ in length")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw it within a width."""
        tables, absent = _laid_out(self.columns, options.max_width, console)
        for table in tables:
            width = max(options.max_width, _width(table, console))
            yield from console.render(table, options.update(max_width=width))
        below = [self.more] if self.more else []
        if absent:
            below.append(f"no room here for: {', '.join(column.name for column in absent)}")
        yield from map(line, below)

    def markdown(self) -> str:
        """As a table of Markdown, with all columns."""
        named = " | ".join(markdown_text(column.name) for column in self.columns)
        rules = " | ".join("---" if column.text else "---:" for column in self.columns)
        rows = zip(*(column.cells for column in self.columns), strict=True)
        body = [f"| {' | '.join(map(markdown_text, row))} |" for row in rows]
        more = ["", markdown_text(self.more)] if self.more else []
        return "\n".join([f"| {named} |", f"| {rules} |", *body, *more])


Printed = str | PrintedTable
"""What is printed: a sentence, or a table."""


def more(number: int, where: str) -> str:
    """What is said below a table of the first rows of so many."""
    return f"... and {number - MOST_ROWS:,} more {where}" if number > MOST_ROWS else ""


def first(cells: Iterable[str]) -> tuple[str, ...]:
    """The first cells, as many as are printed."""
    return tuple(islice(cells, MOST_ROWS))


def renderable(printed: Printed) -> RenderableType:
    """As Rich prints it."""
    return line(printed) if isinstance(printed, str) else printed


def markdown(printed: Iterable[Printed]) -> str:
    """Sentences as paragraphs, and tables."""
    return "\n\n".join(markdown_text(one) if isinstance(one, str) else one.markdown() for one in printed) + "\n"


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
    found = Measurement.get(console, wide, table).maximum
    for column in table.columns:
        if not column.no_wrap:
            longest = max((Measurement.get(console, wide, cell).maximum for cell in column.cells), default=0)
            heading = Measurement.get(console, wide, column.header).maximum
            found -= max(longest, heading) - min(max(longest, heading), max(heading, _FOLDED))
    return found
