"""Texts as numbers: equal texts, equal numbers, so that a column is sorted and grouped as numbers are.

Exact: Polars' categories hash a text to find it, and compare it with what they found.
"""

from typing import cast

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import Integers


def ranks_of(texts: pl.Series) -> tuple[Integers, pl.Series]:
    """The number of each text among the different ones in their order, shape (N,), and these.

    e.g. ["b", "a", "b"] -> [1, 0, 1], ["a", "b"]
    """
    categories = _categories(texts)
    different = categories.unique().cast(pl.String).sort()
    number = _physical(different.cast(categories.dtype))
    rank = np.empty(int(number.max(initial=-1)) + 1, np.int64)
    rank[number] = np.arange(len(number))
    return rank[_physical(categories)], different


def _categories(texts: pl.Series) -> pl.Series:
    """The texts as categories of their own, which are forgotten with them."""
    return texts.cast(pl.Categorical(pl.Categories.random(texts.name)))


def _physical(categories: pl.Series) -> Integers:
    return cast("Integers", categories.to_physical().to_numpy().astype(np.int64))
