"""Propensities and attractiveness on disk."""

from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import polars as pl

from posbias.core.errors import LogFormatError
from posbias.core.fit.fitted_theta import FittedTheta, check_covariance
from posbias.core.fit.propensities import check_propensities
from posbias.io.places.file_names import is_text
from posbias.io.results.manifest import FILE_NAME as MANIFEST
from posbias.io.results.plain_text import as_spreadsheet_columns

PROPENSITIES = "propensities"
ATTRACTIVENESS = "attractiveness"
THETA_COVARIANCE = "theta_covariance"
FILES_OF_A_FIT = (MANIFEST, f"{PROPENSITIES}.parquet", f"{THETA_COVARIANCE}.parquet")
"""What is read of a fit by those who build on it."""

# Ids seldom repeat and posterior means are floats: a dictionary costs time and saves nothing.
_STORAGE: dict[str, Any] = {"compression": "zstd", "compression_level": 1, "use_dictionary": False}


def write_propensities(table: pl.DataFrame, folder: Path, *, csv: bool) -> None:
    """Write `propensities.parquet`, and `propensities.csv` for people if asked for."""
    write_small_table(table, folder, PROPENSITIES, csv=csv)


def write_small_table(table: pl.DataFrame, folder: Path, name: str, *, csv: bool) -> None:
    """Write a table that fits into memory as Parquet, and as CSV for people if asked for."""
    table.write_parquet(folder / f"{name}.parquet")
    if csv:
        as_spreadsheet_columns(table.lazy()).sink_csv(folder / f"{name}.csv")


def write_covariance(theta: FittedTheta, folder: Path) -> None:
    """Write `theta_covariance.parquet`, where there is a covariance."""
    if theta.covariance is not None:
        theta.covariance.write_parquet(folder / f"{THETA_COVARIANCE}.parquet")


def write_in_one_file(parts: Iterable[pl.DataFrame], path: Path) -> Iterator[None]:
    """Write the parts of a table into one Parquet file, step by step."""
    parquet: Any = import_module("pyarrow.parquet")  # only here: importing it takes time, and it has no types
    writer: Any = None
    try:
        for part in parts:
            table = cast("Any", part.to_arrow())
            writer = writer or parquet.ParquetWriter(path, table.schema, **_STORAGE)
            yield writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()


def write_part(part: pl.DataFrame, folder: Path, number: int) -> None:
    """Write one part of a table that is a directory of Parquet files."""
    parquet: Any = import_module("pyarrow.parquet")
    parquet.write_table(part.to_arrow(), folder / f"part-{number:05d}.parquet", **_STORAGE)


def write_attractiveness_csv(folder: Path) -> None:
    """Write `attractiveness.csv`, for people, beside `attractiveness.parquet`."""
    table = pl.scan_parquet(folder / f"{ATTRACTIVENESS}.parquet", glob=False, hive_partitioning=False)
    as_spreadsheet_columns(table).sink_csv(folder / f"{ATTRACTIVENESS}.csv")


def read_propensities(folder: Path, cells: Sequence[str]) -> pl.DataFrame:
    """The propensity table of a result: its cell columns, `propensity` and `examination`, null where not known.

    Args:
        folder: the result.
        cells: the columns that make up a cell, the position among them.

    Raises:
        LogFormatError: there is none, it is damaged, or it says what no fit says.
    """
    path = folder / f"{PROPENSITIES}.parquet"
    if not is_text(path):
        raise LogFormatError(f"{str(folder)!a}: the name is not UTF-8, so that it cannot be read. Rename it.")
    if not path.is_file():
        raise LogFormatError(f"{folder}: holds no {path.name}. Name the directory that `posbias fit` or `run` wrote.")
    return check_propensities(read_table(path), cells, where=str(path))


def read_covariance(folder: Path, cells: Sequence[str]) -> pl.DataFrame | None:
    """The covariance of log examination of a result; None where it has none.

    Raises:
        LogFormatError: it is damaged, or is none.
    """
    path = folder / f"{THETA_COVARIANCE}.parquet"
    return check_covariance(read_table(path), cells, where=str(path)) if path.is_file() else None


def read_table(path: Path) -> pl.DataFrame:
    """A Parquet file of a result.

    Raises:
        LogFormatError: it is none.
    """
    try:
        return pl.read_parquet(path, glob=False, hive_partitioning=False)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise LogFormatError(f"{path}: cannot be read as Parquet: {str(error).splitlines()[0]}.") from error
