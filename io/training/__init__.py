"""Training formats: each takes a weighted layout and writes the files of one kind of trainer.

A format is one file that declares its name and writer, and registers itself here.
"""

from pathlib import Path
from typing import Protocol

import polars as pl

from posbias.core.registry import choose
from posbias.io.training.csv_files import CsvFormat
from posbias.io.training.parquet_files import ParquetFormat

__all__ = ["TrainingFormat", "format_names", "get_format"]


class TrainingFormat(Protocol):
    """Writes the rows of a layout, part by part."""

    @property
    def name(self) -> str:
        """The name on the command line."""
        ...

    def write(self, rows: pl.LazyFrame, folder: Path, part: int) -> None:
        """Write one part, without holding it in memory where the rows can stream."""
        ...


_FORMATS: dict[str, TrainingFormat] = {form.name: form for form in (ParquetFormat(), CsvFormat())}


def format_names() -> list[str]:
    """The registered formats."""
    return list(_FORMATS)


def get_format(name: str) -> TrainingFormat:
    """The format of that name.

    Raises:
        UsageError: there is none.
    """
    return choose("--format", name, _FORMATS)
