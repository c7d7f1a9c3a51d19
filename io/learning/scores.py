"""`scores.parquet`: the score of each document, and its attractiveness where the model says it."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import Floats
from posbias.core.errors import LogFormatError, SchemaError
from posbias.core.learners.links import sigmoid
from posbias.core.learners.models import FactorModel
from posbias.io.learning.model_files import StoredModel
from posbias.io.learning.new_documents import NewDocuments
from posbias.io.progress import Stage
from posbias.io.results.tables import write_in_one_file

SCORES = "scores.parquet"
SCORE, ATTRACTIVENESS = "score", "attractiveness"


def with_scores(rows: pl.DataFrame, scores: Floats, *, is_probability: bool) -> pl.DataFrame:
    """Rows with `score`, and `attractiveness`: 1 / (1 + exp(-score)), null where scores are no logits."""
    attractiveness = sigmoid(scores) if is_probability else np.full(len(scores), np.nan)
    return rows.with_columns(
        pl.Series(SCORE, scores, pl.Float64), pl.Series(ATTRACTIVENESS, attractiveness, pl.Float64, nan_to_null=True)
    )


def score_rows(documents: NewDocuments, stored: StoredModel, memory: int) -> Iterator[pl.DataFrame]:
    """Score documents, some at a time.

    Raises:
        LogFormatError: the numbers of the model are so large that a score is not finite.
    """
    for rows, features in documents.chunks(memory):
        if not rows.height:
            continue
        model = stored.model
        with np.errstate(over="ignore", invalid="ignore"):
            if isinstance(model, FactorModel):
                scores = model.scores(*stored.ids.numbers(rows)) if stored.ids is not None else np.zeros(rows.height)
            else:
                scores = model.scores(features)
        if not np.isfinite(scores).all():
            raise LogFormatError("--model: its numbers are so large that a score is not finite. Train again.")
        yield with_scores(rows, scores, is_probability=stored.section.is_probability)


def write_scores(parts: Iterable[pl.DataFrame], folder: Path, stage: Stage) -> int:
    """Write `scores.parquet`; return its number of rows.

    Raises:
        SchemaError: there are none.
    """
    n_rows = 0

    def counted() -> Iterator[pl.DataFrame]:
        nonlocal n_rows
        for part in parts:
            n_rows += part.height
            yield part

    for _ in write_in_one_file(counted(), folder / SCORES):
        stage.advance()
    if not n_rows:
        raise SchemaError("there is no row to score.")
    return n_rows
