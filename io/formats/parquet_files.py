"""Training rows as Parquet: scikit-learn, PyTorch, Hugging Face datasets, and whatever reads columns."""

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from posbias.io.formats.plain_tables import PlainFormat, plain_rows
from posbias.io.layouts.training_set import TrainingSet
from posbias.io.results.tables import sink_table, write_in_one_file


class ParquetFormat(PlainFormat):
    """`rows/part-00000.parquet`, ...; of pairs, the rows with their features are `documents/part-00000.parquet`, ..."""

    name = "parquet"
    rank = 0

    def write_preferences(self, preferences: pl.LazyFrame, path: Path) -> None:
        """Write all of them."""
        sink_table(preferences, path)

    def write_rows(self, training_set: TrainingSet, chunks: Iterator[pl.DataFrame], path: Path) -> None:
        """Write chunk after chunk."""
        for _ in write_in_one_file((plain_rows(training_set, chunk) for chunk in chunks), path):
            pass
