"""Training rows as Parquet: scikit-learn, PyTorch, Hugging Face datasets, and whatever reads columns."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from posbias.core.training.layouts import LayoutName
from posbias.io.formats.columns import write_features
from posbias.io.formats.plain_tables import PLAIN_LAYOUTS, plain_load_script, plain_rows, preference_columns
from posbias.io.layouts.training_set import TrainingPart, TrainingSet
from posbias.io.results.tables import write_in_one_file


@dataclass(frozen=True)
class ParquetFormat:
    """`part-00000.parquet`, ...; of pairs, the rows with their features are `documents-00000.parquet`, ..."""

    name: str = "parquet"
    layouts: tuple[LayoutName, ...] = PLAIN_LAYOUTS
    needs_features: bool = False
    instead: Mapping[LayoutName, str] = field(default_factory=dict[LayoutName, str])

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
