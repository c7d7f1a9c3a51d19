"""Training rows as CSV, with a header. Trainers need ids and texts to the letter: a spreadsheet may see formulas."""

from pathlib import Path

import polars as pl
import polars.selectors as cs

from posbias.io.formats.columns import feature_names, write_features
from posbias.io.formats.format import TrainingFormat
from posbias.io.formats.plain_tables import plain_load_script, plain_rows, preference_columns
from posbias.io.layouts.training_set import TrainingPart, TrainingSet
from posbias.io.results.plain_text import as_text_columns


class CsvFormat(TrainingFormat):
    """`part-00000.csv`, ...; of pairs, the rows with their features are `documents-00000.csv`, ..."""

    name = "csv"
    rank = 1
    needs_features = False

    def write(self, training_set: TrainingSet, part: TrainingPart, folder: Path) -> None:
        """Write one file, and for pairs a second one where there are features."""
        rows = "part"
        if part.preferences is not None:
            as_text_columns(part.preferences.select(preference_columns(training_set))).sink_csv(
                folder / f"part-{part.number:05d}.csv"
            )
            rows = "documents"
        if training_set.features or part.preferences is None:
            self._write_rows(training_set, part, folder / f"{rows}-{part.number:05d}.csv")

    def _write_rows(self, training_set: TrainingSet, part: TrainingPart, path: Path) -> None:
        features = feature_names(training_set)
        with path.open("wb") as file:
            for number, chunk in enumerate(part.rows):
                numbered = chunk.with_columns((cs.by_name(features) & cs.boolean()).cast(pl.Int8))
                rows = as_text_columns(plain_rows(training_set, numbered).lazy()).collect()
                rows.write_csv(file, include_header=number == 0)

    def finish(self, training_set: TrainingSet, folder: Path) -> None:
        """Write the features and the script."""
        write_features(training_set, folder)
        (folder / "load.py").write_text(plain_load_script(training_set, "csv"), encoding="utf-8")
