"""Features as the numbers that models see: text as its place among the categories, what is missing as nan."""

from collections.abc import Sequence

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import Floats
from posbias.core.errors import SchemaError
from posbias.io.layouts.training_set import Feature


def encoded(rows: pl.DataFrame, features: Sequence[Feature]) -> Floats:
    """The features of rows, shape (n, F). A text that is no category counts as missing."""
    if not features:
        return np.zeros((rows.height, 0))
    columns = rows.select(_as_number(feature).alias(f"f{number}") for number, feature in enumerate(features))
    return np.ascontiguousarray(columns.to_numpy(), np.float64)


def _as_number(feature: Feature) -> pl.Expr:
    column = pl.col(feature.name)
    if feature.categories is not None:
        column = column.cast(pl.String).cast(pl.Enum(feature.categories), strict=False).to_physical()
    return column.cast(pl.Float64).fill_null(np.nan)


def check_numbers(rows: pl.DataFrame, numbers: pl.DataFrame, features: Sequence[Feature], where: str) -> None:
    """See that text that should be a number is one.

    Args:
        rows: features as they stand in a file.
        numbers: the same, read as numbers.
        features: which they are.
        where: what is being read, for the message.

    Raises:
        SchemaError: a feature that was numbers in training holds a text that is none.
    """
    for feature in features:
        if feature.categories is not None or rows.schema[feature.name] != pl.String:
            continue
        lost = rows.filter(numbers[feature.name].is_null() & (pl.col(feature.name).str.strip_chars() != ""))
        if lost.height:
            raise SchemaError(
                f"{where}: the feature {feature.name!r} holds {lost[feature.name][0]!r}, and was numbers in training. "
                "Write a number, or leave it empty where it is missing."
            )
