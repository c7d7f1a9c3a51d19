"""Training rows as Parquet: scikit-learn, PyTorch, Hugging Face datasets, and whatever reads columns."""

from pathlib import Path

from posbias.io.formats.columns import write_features
from posbias.io.formats.format import TrainingFormat
from posbias.io.formats.plain_tables import plain_load_script, plain_rows, preference_columns
from posbias.io.layouts.training_set import TrainingPart, TrainingSet
from posbias.io.results.tables import write_in_one_file


class ParquetFormat(TrainingFormat):
    """`part-00000.parquet`, ...; of pairs, the rows with their features are `documents-00000.parquet`, ..."""

    name = "parquet"
    rank = 0
    needs_features = False

    def write(self, training_set: TrainingSet, part: TrainingPart, folder: Path) -> None:
        """Write one file, and for pairs a second one where there are features."""
        rows = "part"
        if part.preferences is not None:
            part.preferences.select(preference_columns(training_set)).sink_parquet(
                folder / f"part-{part.number:05d}.parquet"
            )
            rows = "documents"
        if training_set.features or part.preferences is None:
            chunks = (plain_rows(training_set, chunk) for chunk in part.rows)
            for _ in write_in_one_file(chunks, folder / f"{rows}-{part.number:05d}.parquet"):
                pass

    def finish(self, training_set: TrainingSet, folder: Path) -> None:
        """Write the features and the script."""
        write_features(training_set, folder)
        (folder / "load.py").write_text(plain_load_script(training_set, "parquet"), encoding="utf-8")
