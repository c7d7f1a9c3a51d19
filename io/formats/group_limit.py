"""Groups that a trainer would refuse."""

import polars as pl

from posbias.core.errors import SchemaError
from posbias.core.training.layouts import GROUP
from posbias.io.layouts.training_set import TrainingSet


def group_sizes(chunk: pl.DataFrame) -> pl.Series:
    """The number of rows of each group of a chunk, in order."""
    return chunk[GROUP].rle().struct.field("len")


def check_group_sizes(training_set: TrainingSet, chunk: pl.DataFrame, form: str, most: int) -> None:
    """See that no group has more rows than the trainer takes.

    Raises:
        SchemaError: one has.
    """
    sizes = group_sizes(chunk)
    largest = sizes.arg_max()
    if largest is None or sizes[largest] <= most:
        return
    query = chunk["query"][int(sizes.head(largest).sum())]
    advice = "Write --layout pointwise, which has no groups, or --format catboost."
    if training_set.layout.shows_impressions:
        advice = "Keep pages apart (--group session), or write --format catboost."
    raise SchemaError(
        f"query {query!r} has a group of {sizes[largest]:,} rows, and --format {form} ranks at most {most:,} together "
        f"(--layout {training_set.layout.name}). {advice}"
    )
