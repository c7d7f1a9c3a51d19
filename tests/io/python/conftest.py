"""What tests of the functions share: a log with devices, and a place for temporary files that stays empty."""

import gc
import tempfile
from collections.abc import Generator
from pathlib import Path

import polars as pl
import pytest


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Fail a test that leaves something among the temporary files."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    yield
    if any(place.iterdir()):
        gc.collect()  # the frame of a test may lie in a cycle
    assert [path.name for path in place.iterdir()] == []


@pytest.fixture(scope="session")
def impressions(log: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of a log in any order, with the device of each page and how many impressions a row stands for."""
    return log.with_columns(
        device=pl.when(pl.col("session") % 2 == 0).then(pl.lit("phone")).otherwise(pl.lit("desk")),
        stands_for=1 + pl.col("session") % 3,
    ).sample(fraction=1, shuffle=True, seed=3)


@pytest.fixture
def path(impressions: pl.DataFrame, tmp_path: Path) -> Path:
    """Return the same rows as a file."""
    impressions.write_parquet(tmp_path / "log.parquet")
    return tmp_path / "log.parquet"
