"""Training rows as Parquet and CSV: for scikit-learn, PyTorch, Hugging Face datasets, and whatever reads columns."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl
import polars.selectors as cs

from posbias.core.schema import DOC
from posbias.core.training.layouts.preferences import LOSER, WINNER
from posbias.core.training.replicates import weight_columns
from posbias.io.formats.format import ROWS, TrainingFormat, feature_names, table_part, write_script
from posbias.io.layouts.training_set import TrainingPart, TrainingSet
from posbias.io.results.plain_text import as_text_columns
from posbias.io.results.tables import sink_table, write_in_one_file


class PlainFormat(TrainingFormat):
    """A format of tables that are named as it is: `rows`, of the rows or of the preferences.

    The rows of preferences, with their features, are `documents`.
    """

    needs_features = False

    @abstractmethod
    def write_preferences(self, preferences: pl.LazyFrame, path: Path) -> None:
        """Write the preferences of a part."""

    @abstractmethod
    def write_rows(self, chunks: Iterator[pl.DataFrame], features: Sequence[str], path: Path) -> None:
        """Write the rows of a part."""

    def write(self, training_set: TrainingSet, part: TrainingPart, folder: Path) -> None:
        """Write one file, and for preferences a second one where there are features."""
        rows = table_part(folder, ROWS, part, self.name)
        chunks = (chunk.drop(training_set.layout.left_out) for chunk in part.rows)
        features = feature_names(training_set)
        if part.preferences is None:
            self.write_rows(chunks, features, rows)
            return
        weights = weight_columns(part.preferences.collect_schema())
        ids = (name for name in training_set.ids if name != DOC)
        self.write_preferences(part.preferences.select(*ids, WINNER, LOSER, *weights), rows)
        if features:
            self.write_rows(chunks, features, table_part(folder, "documents", part, self.name))

    def finish(self, training_set: TrainingSet, folder: Path) -> None:
        """Write the features and the script, which reads either format."""
        write_script(training_set, folder, "tables")


class ParquetFormat(PlainFormat):
    """`rows/part-00000.parquet`, ..."""

    name = "parquet"

    def write_preferences(self, preferences: pl.LazyFrame, path: Path) -> None:
        """Write all of them."""
        sink_table(preferences, path)

    def write_rows(self, chunks: Iterator[pl.DataFrame], features: Sequence[str], path: Path) -> None:
        """Write chunk after chunk."""
        del features
        for _ in write_in_one_file(chunks, path):
            pass


class CsvFormat(PlainFormat):
    """`rows/part-00000.csv`, ..., with a header. Trainers need ids and texts to the letter, formulas too."""

    name = "csv"

    def write_preferences(self, preferences: pl.LazyFrame, path: Path) -> None:
        """Write all of them."""
        as_text_columns(preferences).sink_csv(path)

    def write_rows(self, chunks: Iterator[pl.DataFrame], features: Sequence[str], path: Path) -> None:
        """Write chunk after chunk, true and false as 1 and 0."""
        with path.open("wb") as file:
            for number, chunk in enumerate(chunks):
                rows = chunk.with_columns((cs.by_name(features) & cs.boolean()).cast(pl.Int8))
                as_text_columns(rows.lazy()).collect().write_csv(file, include_header=number == 0)
