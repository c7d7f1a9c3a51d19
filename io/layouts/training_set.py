"""What trainer formats are given: the rows of a layout, part by part, and what is known of all of them."""

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from posbias.core.training.layouts import Layout


@dataclass(frozen=True)
class Feature:
    """A column that a model learns from.

    Attributes:
        name: the column.
        categories: its values in ascending order, where it holds text; None for numbers.
    """

    name: str
    categories: tuple[str, ...] | None = None


@dataclass(frozen=True)
class TrainingSet:
    """What all rows have in common.

    Attributes:
        layout: the layout.
        ids: the columns that say what a row is: `query`, `doc`, and with pages `session` and `position`.
        features: the columns to learn from, the last ones of a row.
        search_index: the index of a search engine that the documents are in, if it was named.
    """

    layout: Layout
    ids: tuple[str, ...]
    features: tuple[Feature, ...]
    search_index: str | None = None


@dataclass(frozen=True)
class TrainingPart:
    """Some of the rows, in their order. Parts may be written in any order, by several processes.

    Attributes:
        number: the part's number, from 0.
        rows: chunks of rows: `group`, the ids, the label, `weight` and more by layout, then the features. A chunk holds
            whole groups; groups stand in the order of their numbers.
        preferences: where these have weights: `group`, [`session`], `query`, `winner`, `loser`, `winner_row`,
            `loser_row`, `weight`, by group.
    """

    number: int
    rows: Iterator[pl.DataFrame]
    preferences: pl.LazyFrame | None = None
