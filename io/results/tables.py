"""Propensities and attractiveness on disk."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from itertools import chain
from pathlib import Path
from queue import Full, Queue
from typing import Any

import polars as pl
from polars.io.plugins import register_io_source

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
_ROW_GROUP = 1 << 18  # rows
_PATIENCE = 0.5  # seconds until it is looked whether writing has failed


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
    """Write the parts of a table into one Parquet file, step by step, while its columns are encoded on all threads."""
    todo = iter(parts)
    first = next(todo, None)
    if first is None:
        return
    waiting = Queue[pl.DataFrame | None](maxsize=1)
    with ThreadPoolExecutor(max_workers=1) as thread:
        writing = thread.submit(_sink, waiting, first.schema, path)
        try:
            for part in chain([first], todo):
                _hand_over(part, waiting, writing)
                yield
        finally:
            _hand_over(None, waiting, writing)
        writing.result()


def _sink(waiting: "Queue[pl.DataFrame | None]", schema: pl.Schema, path: Path) -> None:
    """Write what comes, until it is None."""

    def parts(*_: object) -> Iterator[pl.DataFrame]:
        while (part := waiting.get()) is not None:
            yield part

    sink_table(register_io_source(parts, schema=schema), path)


def sink_table(rows: pl.LazyFrame, path: Path) -> None:
    """Write rows into one Parquet file, whose row groups do not depend on the number of threads."""
    rows.sink_parquet(path, compression="zstd", compression_level=1, row_group_size=_ROW_GROUP)


def _hand_over(part: pl.DataFrame | None, waiting: "Queue[pl.DataFrame | None]", writing: "Future[None]") -> None:
    """Wait until the one before is taken; raise what has stopped the writing."""
    while not writing.done():
        with suppress(Full):
            waiting.put(part, timeout=_PATIENCE)
            return
    writing.result()


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
