"""What a page consists of. All text here is plain: it becomes HTML, and is escaped, in `page` alone."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, TypeAlias

import polars as pl

Spec: TypeAlias = dict[str, Any]
"""A chart as Vega-Lite says it, without colours of its own."""

MOST_ROWS = 600
"""Rows of a table on the page."""


@dataclass(frozen=True)
class Points:
    """Sentences, one below the other; those that warn look like it."""

    sentences: tuple[str, ...]
    warn: bool = False


@dataclass(frozen=True)
class Table:
    """A table of texts: the first rows, up to `MOST_ROWS`, and how many there are in all."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    rows_in_all: int


@dataclass(frozen=True)
class Figure:
    """A chart, in words and as a table for who cannot see it.

    Attributes:
        name: what kind of chart it is.
        title: what it shows.
        description: what can be seen on it.
        spec: how it is drawn.
        table: the numbers.
    """

    name: str
    title: str
    description: str
    spec: Spec
    table: Table


@dataclass(frozen=True)
class Listing:
    """A long text, to be unfolded."""

    title: str
    text: str


Block: TypeAlias = str | Points | Table | Figure | Listing


@dataclass(frozen=True)
class Section:
    """A part of the page under a heading.

    Attributes:
        name: what it is about, in one word.
        title: its heading.
        blocks: what stands there, in order.
    """

    name: str
    title: str
    blocks: tuple[Block, ...]


def table_of(caption: str, frame: pl.DataFrame, **columns: str) -> Table:
    """A table of some columns of a frame, by their headings."""
    rows = frame.head(MOST_ROWS).select(list(columns)).iter_rows()
    return Table(caption, tuple(columns.values()), tuple(tuple(map(in_words, row)) for row in rows), frame.height)


def table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """A table of values."""
    texts = tuple(tuple(map(in_words, row)) for row in rows)
    return Table(caption, tuple(columns), texts[:MOST_ROWS], len(texts))


def in_words(value: object) -> str:
    """A value of a table: numbers with three or four digits, whole ones in full, a dash for none."""
    if value is None or value == "":
        return "-"
    if isinstance(value, float):
        if not isfinite(value):
            return "-"
        if abs(value) >= 1000:  # noqa: PLR2004
            return f"{value:,.0f}"
        return f"{value:.3f}" if abs(value) >= 0.01 or not value else f"{value:.3g}"  # noqa: PLR2004
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)
