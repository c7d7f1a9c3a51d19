"""LibSVM lines: `label qid:1 0:0.5 2:1`, as XGBoost and RankLib read them. Missing values are left out."""

import polars as pl
import polars.selectors as cs

from posbias.io.formats.columns import features_as_numbers
from posbias.io.layouts.training_set import TrainingSet


def libsvm_lines(training_set: TrainingSet, chunk: pl.DataFrame, *start: pl.Series, first: int) -> pl.Series:
    """The lines of a chunk.

    Args:
        training_set: what the chunk is of.
        chunk: the rows.
        start: what stands before the features, the label first.
        first: the number of the first feature.
    """
    features = features_as_numbers(training_set, chunk).with_columns(cs.float().fill_nan(None))
    values = [pl.concat_str(pl.lit(f"{k}:"), name) for k, name in enumerate(features.columns, first)]
    return features.select(line=pl.concat_str(*start, *values, separator=" ", ignore_nulls=True))["line"]
