"""What a command wrote, as tests look at it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from posbias.io.results.manifest import read_manifest


@dataclass(frozen=True)
class Output:
    """What a command wrote."""

    folder: Path

    @property
    def propensities(self) -> pl.DataFrame:
        """The table of cells."""
        return pl.read_parquet(self.folder / "propensities.parquet")

    @property
    def attractiveness(self) -> pl.DataFrame:
        """The table of pairs."""
        return pl.read_parquet(self.folder / "attractiveness.parquet")

    @property
    def training(self) -> pl.DataFrame:
        """The training rows, part after part."""
        return pl.concat(
            pl.read_parquet(part) for part in sorted((self.folder / "training" / "rows").glob("*.parquet"))
        )

    @property
    def manifest(self) -> dict[str, Any]:
        """The manifest."""
        return read_manifest(self.folder, "any command").content


Posbias = Callable[..., Output]
"""Runs a command with these arguments."""
