"""Columns of training rows, as trainers read them, and what is written beside for those who read their files."""

import json
from collections.abc import Iterator
from itertools import tee
from pathlib import Path

import polars as pl
import polars.selectors as cs

from posbias.core.escapes import escaped_json
from posbias.io.layouts.training_set import TrainingPart, TrainingSet
from posbias.io.results.tables import write_in_one_file

ROWS = "rows"
"""The folder of the rows as a table, which holds nothing but its parts."""
FEATURES = "features.json"
"""The features in their order, each with its categories, whose places are the numbers in the files, or null."""


def feature_names(training_set: TrainingSet) -> list[str]:
    """The features in their order."""
    return [feature.name for feature in training_set.features]


def features_as_numbers(training_set: TrainingSet, chunk: pl.DataFrame) -> pl.DataFrame:
    """The features of a chunk: texts as their place among the categories, booleans as 0 and 1."""
    return chunk.select(
        pl.col(feature.name)
        if feature.categories is None
        else pl.col(feature.name).cast(pl.Enum(feature.categories), strict=False).to_physical()
        for feature in training_set.features
    ).with_columns(cs.boolean().cast(pl.Int8))


def write_features(training_set: TrainingSet, folder: Path) -> None:
    """Write `features.json`, if there are features."""
    if training_set.features:
        features = [{"name": feature.name, "categories": feature.categories} for feature in training_set.features]
        text = escaped_json(json.dumps(features, ensure_ascii=False, indent=1))
        (folder / FEATURES).write_text(text + "\n", encoding="utf-8")


def table_part(folder: Path, table: str, part: TrainingPart, suffix: str) -> Path:
    """The file of a part in the folder of a table, which is made where it is not there."""
    (folder / table).mkdir(exist_ok=True)
    return folder / table / f"part-{part.number:05d}.{suffix}"


def with_rows_beside(training_set: TrainingSet, part: TrainingPart, folder: Path) -> Iterator[pl.DataFrame]:
    """The chunks of a part. Meanwhile the table `rows` takes what trainers' files have no place for.

    These are all columns but the features, ids as they came, row by row as in the trainer's file.
    """
    names = feature_names(training_set)
    chunks, again = tee(part.rows)
    writing = write_in_one_file((chunk.drop(names) for chunk in again), table_part(folder, ROWS, part, "parquet"))
    for chunk, _ in zip(chunks, writing, strict=True):
        yield chunk


def libsvm_lines(training_set: TrainingSet, chunk: pl.DataFrame, *start: pl.Series, first: int) -> pl.Series:
    """Lines `label qid:1 0:0.5 2:1`, as XGBoost and RankLib read them. Missing values are left out.

    Args:
        training_set: what the chunk is of.
        chunk: the rows.
        start: what stands before the features, the label first.
        first: the number of the first feature.
    """
    features = features_as_numbers(training_set, chunk).with_columns(cs.float().fill_nan(None))
    values = [pl.concat_str(pl.lit(f"{k}:"), name) for k, name in enumerate(features.columns, first)]
    return features.select(line=pl.concat_str(*start, *values, separator=" ", ignore_nulls=True))["line"]
