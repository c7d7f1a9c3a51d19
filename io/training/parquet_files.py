"""Training rows as Parquet: scikit-learn, PyTorch, Hugging Face datasets, and whatever reads columns."""

from dataclasses import dataclass
from pathlib import Path

import polars as pl


@dataclass(frozen=True)
class ParquetFormat:
    """`part-00000.parquet`, ..."""

    name: str = "parquet"

    def write(self, rows: pl.LazyFrame, folder: Path, part: int) -> None:
        """Stream the rows into one file."""
        rows.sink_parquet(folder / f"part-{part:05d}.parquet")
