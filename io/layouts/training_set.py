"""What trainer formats are given: the rows of a layout, part by part, and what is known of all of them."""

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from posbias.core.training.layouts import Layout


@dataclass(frozen=True)
class Feature:
    """A column that a model learns from."""

    name: str  # the column
    categories: tuple[str, ...] | None = None  # its values in ascending order, where it holds text; None for numbers


@dataclass(frozen=True)
class TrainingSet:
    """What all rows have in common."""

    layout: Layout
    ids: tuple[str, ...]  # the columns that say what a row is: `query`, `doc`, and with pages `session` and `position`
    features: tuple[Feature, ...]  # the columns to learn from, the last ones of a row
    search_index: str | None = None  # the index of a search engine that the documents are in, if it was named


@dataclass(frozen=True)
class TrainingPart:
    """Some of the rows, in their order. Parts may be written in any order, by several processes."""

    number: int  # the part's number, from 0
    # chunks of rows: `group`, the ids, the label, `weight` and more by layout, then the features. A chunk holds whole
    # groups; groups stand in the order of their numbers.
    rows: Iterator[pl.DataFrame]
    # where these have weights: `group`, [`session`], `query`, `winner`, `loser`, `winner_row`, `loser_row`, `weight`,
    # by group
    preferences: pl.LazyFrame | None = None
