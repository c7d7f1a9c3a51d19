"""Propensities and attractiveness on disk."""

import re
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib import import_module
from itertools import chain
from pathlib import Path
from queue import Full, Queue
from typing import Any

import polars as pl
import polars.selectors as cs
from polars.io.plugins import register_io_source

from posbias.core.errors import LogFormatError, UsageError
from posbias.core.fit.propensities import check_covariance, check_propensities
from posbias.io.places.locations import is_text
from posbias.io.results.manifest import FILE_NAME as MANIFEST


def as_text_columns(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Write keys of several columns as JSON; everything else CSV holds as it is.

    Raises:
        UsageError: a column holds what text cannot hold.
    """
    columns: list[pl.Expr] = []
    for name, dtype in rows.collect_schema().items():
        if isinstance(dtype, pl.Binary | pl.List | pl.Array | pl.Duration | pl.Object):
            raise UsageError(f"column {name!r} holds {dtype}, which CSV cannot hold. Write Parquet instead.")
        columns.append(pl.col(name).struct.json_encode() if isinstance(dtype, pl.Struct) else pl.col(name))
    return rows.select(columns)


# What makes a formula of a cell, in wide letters too, and white space that spreadsheets skip before it.
_SIGNS = "[=+\\-@\uff1d\uff0b\uff0d\uff20]"
_FORMULA = rf"^([\x00-\x20]*{_SIGNS}|[\t\r\n])"
_FORMULA_INSIDE = rf"([;\t\r\n]\x20*)({_SIGNS})"  # where a cell begins if not the comma separates them


def as_spreadsheet_columns(rows: pl.LazyFrame) -> pl.LazyFrame:
    """The same as `as_text_columns`, for people: an apostrophe keeps text from being read as a formula.

    Only text has one, and only where it begins with `=`, `+`, `-`, `@`, a tab or a line break, or has a semicolon, a
    tab or a line break before such a sign. Numbers stay as they are.

    Raises:
        UsageError: a column holds what text cannot hold.
    """
    texts = pl.col(pl.String).str.replace_all(_FORMULA_INSIDE, "${1}'${2}").str.replace(_FORMULA, "'${1}")
    columns = as_text_columns(rows).with_columns((cs.categorical() | cs.enum()).cast(pl.String)).with_columns(texts)
    names = columns.collect_schema().names()  # the header is a row of cells, too
    return columns.rename({name: re.sub(_FORMULA, r"'\1", re.sub(_FORMULA_INSIDE, r"\1'\2", name)) for name in names})


PROPENSITIES = "propensities"
ATTRACTIVENESS = "attractiveness"
THETA_COVARIANCE = "theta_covariance"
FILES_OF_A_FIT = (MANIFEST, f"{PROPENSITIES}.parquet", f"{THETA_COVARIANCE}.parquet")
"""Files of a fit that later commands read."""

# Ids seldom repeat and posterior means are floats: a dictionary costs time and saves nothing.
_STORAGE: dict[str, Any] = {"compression": "zstd", "compression_level": 1, "use_dictionary": False}
_ROW_GROUP = 1 << 18  # rows
_PATIENCE = 0.5  # seconds until it is looked whether writing has failed


def write_small_table(table: pl.DataFrame, folder: Path, name: str, *, csv: bool) -> None:
    """Write a table that fits into memory as Parquet, and as CSV for people if requested."""
    table.write_parquet(folder / f"{name}.parquet")
    if csv:
        as_spreadsheet_columns(table.lazy()).sink_csv(folder / f"{name}.csv")


def write_in_one_file(parts: Iterable[pl.DataFrame], path: Path) -> Iterator[None]:
    """Write the parts of a table into one Parquet file, step by step, while its columns are encoded on all threads."""
    todo = iter(parts)
    first = next(todo, None)
    if first is None:
        return
    waiting = Queue[pl.DataFrame | None](maxsize=1)

    def come(*_: object) -> Iterator[pl.DataFrame]:
        while (part := waiting.get()) is not None:
            yield part

    def hand_over(part: pl.DataFrame | None) -> None:
        """Wait until the part before is taken; raise what has stopped the writing."""
        while not writing.done():
            with suppress(Full):
                waiting.put(part, timeout=_PATIENCE)
                return
        writing.result()

    with ThreadPoolExecutor(max_workers=1) as thread:
        writing = thread.submit(sink_table, register_io_source(come, schema=first.schema), path)
        try:
            for part in chain([first], todo):
                hand_over(part)
                yield
        finally:
            hand_over(None)
        writing.result()


def sink_table(rows: pl.LazyFrame, path: Path) -> None:
    """Write rows into one Parquet file, whose row groups do not depend on the number of threads."""
    rows.sink_parquet(path, compression="zstd", compression_level=1, row_group_size=_ROW_GROUP)


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
    with reading_parquet(path):
        return pl.read_parquet(path, glob=False, hive_partitioning=False)


@contextmanager
def reading_parquet(path: Path) -> Generator[None]:
    """Raise LogFormatError where a file of a result cannot be read, by Polars or by PyArrow."""
    try:
        yield
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError) as error:
        raise LogFormatError(f"{path}: cannot be read as Parquet: {str(error).splitlines()[0]}.") from error
