"""Training rows as CSV, with a header."""

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from posbias.io.plain_text import as_text_columns


@dataclass(frozen=True)
class CsvFormat:
    """`part-00000.csv`, ..."""

    name: str = "csv"

    def write(self, rows: pl.LazyFrame, folder: Path, part: int) -> None:
        """Stream the rows into one file."""
        as_text_columns(rows).sink_csv(folder / f"part-{part:05d}.csv")
