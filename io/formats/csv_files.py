"""Training rows as CSV, with a header. Trainers need ids and texts to the letter: a spreadsheet may see formulas."""

from collections.abc import Iterator
from pathlib import Path

import polars as pl
import polars.selectors as cs

from posbias.io.formats.columns import feature_names
from posbias.io.formats.plain_tables import PlainFormat, plain_rows
from posbias.io.layouts.training_set import TrainingSet
from posbias.io.results.plain_text import as_text_columns


class CsvFormat(PlainFormat):
    """`rows/part-00000.csv`, ...; of pairs, the rows with their features are `documents/part-00000.csv`, ..."""

    name = "csv"
    rank = 1

    def write_preferences(self, preferences: pl.LazyFrame, path: Path) -> None:
        """Write all of them."""
        as_text_columns(preferences).sink_csv(path)

    def write_rows(self, training_set: TrainingSet, chunks: Iterator[pl.DataFrame], path: Path) -> None:
        """Write chunk after chunk, true and false as 1 and 0."""
        features = feature_names(training_set)
        with path.open("wb") as file:
            for number, chunk in enumerate(chunks):
                numbered = chunk.with_columns((cs.by_name(features) & cs.boolean()).cast(pl.Int8))
                rows = as_text_columns(plain_rows(training_set, numbered).lazy()).collect()
                rows.write_csv(file, include_header=number == 0)
