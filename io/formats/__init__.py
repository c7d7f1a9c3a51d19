"""Training formats: each writes the rows of a layout as the files of one kind of trainer, and a script that trains it.

A format is one file that declares its name and what it carries, and is registered here.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from posbias.core.errors import UsageError
from posbias.core.registry import choose
from posbias.core.training.layouts import LayoutName
from posbias.io.formats.catboost_files import CatBoostFormat
from posbias.io.formats.csv_files import CsvFormat
from posbias.io.formats.lightgbm_csv import LightGBMCsvFormat
from posbias.io.formats.lightgbm_files import LightGBMFormat
from posbias.io.formats.parquet_files import ParquetFormat
from posbias.io.formats.ranklib_files import RankLibFormat
from posbias.io.formats.xgboost_files import XGBoostFormat
from posbias.io.layouts.training_set import TrainingPart, TrainingSet

__all__ = ["TrainingFormat", "check_format", "format_names", "get_format"]


class TrainingFormat(Protocol):
    """Writes a training set: `write` once per part, in any order and in any process, then `finish` once."""

    @property
    def name(self) -> str:
        """The name on the command line."""
        ...

    @property
    def layouts(self) -> tuple[LayoutName, ...]:
        """The layouts that it can carry."""
        ...

    @property
    def needs_features(self) -> bool:
        """Whether the trainer has nothing to load where there is no feature."""
        ...

    @property
    def instead(self) -> Mapping[LayoutName, str]:
        """Of each layout that it cannot carry: why, and what to use instead."""
        ...

    def write(self, training_set: TrainingSet, part: TrainingPart, folder: Path) -> None:
        """Write one part, chunk by chunk.

        Raises:
            UsageError: a column holds what the format cannot hold.
            SchemaError: the trainer would refuse these rows.
        """
        ...

    def finish(self, training_set: TrainingSet, folder: Path) -> None:
        """Join what the parts wrote, and write `load.py`."""
        ...


_FORMATS: dict[str, TrainingFormat] = {
    form.name: form
    for form in (
        ParquetFormat(),
        CsvFormat(),
        LightGBMFormat(),
        LightGBMCsvFormat(),
        XGBoostFormat(),
        CatBoostFormat(),
        RankLibFormat(),
    )
}


def format_names() -> list[str]:
    """The registered formats."""
    return list(_FORMATS)


def get_format(name: str) -> TrainingFormat:
    """The format of that name.

    Raises:
        UsageError: there is none.
    """
    return choose("--format", name, _FORMATS)


def check_format(name: str, layout: LayoutName, *, has_features: bool) -> None:
    """See that a format can carry a layout.

    Raises:
        UsageError: there is no such format, it cannot carry the layout, or it needs features and there are none.
    """
    form = get_format(name)
    if layout not in form.layouts:
        raise UsageError(f"--format {name} cannot carry --layout {layout}: {form.instead[layout]}")
    if form.needs_features and not has_features:
        raise UsageError(
            f"--format {name} writes what a model learns from, and there are no features: name a table of them with "
            "--features FILE. Ids, labels and weights alone are written by --format parquet or csv."
        )
