"""LightGBM: tab-separated rows, with weights and group sizes in files beside them that it finds by their names.

LightGBM also finds `train.tsv.position`, and then lambdarank corrects position bias itself, on top of the weights.
So the positions are written under another name.
"""

from collections.abc import Sequence
from typing import BinaryIO

import polars as pl

from posbias.core.errors import SchemaError
from posbias.core.schema import POSITION
from posbias.core.training.layouts import GROUP, Layout
from posbias.core.training.layouts.judgments import GRADE
from posbias.io.formats.format import TextFormat, check_no_preferences, features_as_numbers, write_lines
from posbias.io.layouts.training_set import TrainingSet

_MOST_ROWS_OF_A_GROUP = 10_000  # LightGBM 4.7: "Number of rows 10001 exceeds upper limit of 10000 for a query"


class LightGBMFormat(TextFormat):
    """`train.tsv`, `train.tsv.weight`, `train.tsv.query`, and `positions.txt` where pages are ranked as shown."""

    name = "lightgbm"

    def check(self, layout: Layout) -> None:
        """LightGBM reads weights of rows and of groups only."""
        check_no_preferences(self, layout, "LightGBM")

    def files(self, training_set: TrainingSet) -> list[str]:
        """The files that pieces make."""
        layout = training_set.layout
        there = {"weight": layout.weighted is not None, "query": layout.ranked}
        files = ["train.tsv", *(f"train.tsv.{name}" for name, is_there in there.items() if is_there)]
        return [*files, "positions.txt"] if POSITION in training_set.ids else files

    def write_chunk(self, training_set: TrainingSet, chunk: pl.DataFrame, pieces: Sequence[BinaryIO]) -> None:
        """Append what of a chunk goes into each file."""
        layout = training_set.layout
        label = chunk.select(posbias_label=GRADE if layout.graded else layout.label)  # rankers take whole numbers
        columns = [label.hstack(features_as_numbers(training_set, chunk))]
        if layout.weighted is not None:
            columns.append(chunk.select("weight"))
        if layout.ranked:
            columns.append(_group_sizes(training_set, chunk).to_frame())
        if POSITION in training_set.ids:
            columns.append(chunk.select(POSITION))
        for of_file, piece in zip(columns, pieces, strict=True):
            write_lines(of_file, piece, null="nan")  # an empty field may hide how many columns there are


def _group_sizes(training_set: TrainingSet, chunk: pl.DataFrame) -> pl.Series:
    """The number of rows of each group of a chunk, in order.

    Raises:
        SchemaError: a group has more rows than LightGBM takes.
    """
    sizes = chunk[GROUP].rle().struct.field("len")
    largest = sizes.arg_max()
    if largest is None or sizes[largest] <= _MOST_ROWS_OF_A_GROUP:
        return sizes
    query = chunk["query"][int(sizes.head(largest).sum())]
    advice = "Write --layout pointwise, which has no groups, or --format catboost."
    if training_set.layout.shows_impressions:
        advice = "Keep pages apart (--group session), or write --format catboost."
    raise SchemaError(
        f"query {query!r} has a group of {sizes[largest]:,} rows, and LightGBM ranks at most {_MOST_ROWS_OF_A_GROUP:,} "
        f"together (--layout {training_set.layout.name}). {advice}"
    )
