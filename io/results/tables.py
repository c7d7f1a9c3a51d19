"""Tables of results: written as Parquet and as CSV safe for spreadsheets, read with validation."""

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
    """Convert structs (keys of several columns) to JSON, for CSV.

    Raises:
        UsageError: a column is of a type that CSV cannot hold, such as a list.
    """
    columns: list[pl.Expr] = []
    for name, dtype in rows.collect_schema().items():
        if isinstance(dtype, pl.Binary | pl.List | pl.Array | pl.Duration | pl.Object):
            raise UsageError(f"column {name!r} holds {dtype}, which CSV cannot hold. Write Parquet instead.")
        columns.append(pl.col(name).struct.json_encode() if isinstance(dtype, pl.Struct) else pl.col(name))
    return rows.select(columns)


# Signs that begin a formula, also full-width; spreadsheets skip control characters and blanks before them.
_SIGNS = "[=+\\-@\uff1d\uff0b\uff0d\uff20]"
_FORMULA = rf"^([\x00-\x20]*{_SIGNS}|[\t\r\n])"
_FORMULA_INSIDE = rf"([;\t\r\n]\x20*)({_SIGNS})"  # a cell begins here for other separators than the comma


def as_spreadsheet_columns(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Convert as `as_text_columns`, and put an apostrophe before text that a spreadsheet would read as a formula.

    That is text that begins with `=`, `+`, `-`, `@`, a tab or a line break, or has such a sign after a semicolon, a tab
    or a line break. Numbers are unchanged; names of columns are treated like text.

    Raises:
        UsageError: a column is of a type that CSV cannot hold, such as a list.
    """
    texts = pl.col(pl.String).str.replace_all(_FORMULA_INSIDE, "${1}'${2}").str.replace(_FORMULA, "'${1}")
    columns = as_text_columns(rows).with_columns((cs.categorical() | cs.enum()).cast(pl.String)).with_columns(texts)
    names = columns.collect_schema().names()  # the header is a row of cells, too
    return columns.rename({name: re.sub(_FORMULA, r"'\1", re.sub(_FORMULA_INSIDE, r"\1'\2", name)) for name in names})


PROPENSITIES = "propensities"
ATTRACTIVENESS = "attractiveness"
THETA_COVARIANCE = "theta_covariance"
FIT_FILES = (MANIFEST, f"{PROPENSITIES}.parquet", f"{THETA_COVARIANCE}.parquet")
"""Files of a fit read by later commands."""

# Ids seldom repeat and posterior means are floats: a dictionary costs time and saves nothing.
_STORAGE: dict[str, Any] = {"compression": "zstd", "compression_level": 1, "use_dictionary": False}
_ROW_GROUP = 1 << 18  # rows
_POLL = 0.5  # seconds between checks whether writing has failed


def write_small_table(table: pl.DataFrame, folder: Path, name: str, *, csv: bool) -> None:
    """Write a table in memory as Parquet, and with `csv` also as CSV for spreadsheets."""
    table.write_parquet(folder / f"{name}.parquet")
    if csv:
        as_spreadsheet_columns(table.lazy()).sink_csv(folder / f"{name}.csv")


def write_in_one_file(parts: Iterable[pl.DataFrame], path: Path) -> Iterator[None]:
    """Write the parts of a table into one Parquet file in a thread, whose columns are encoded on all threads.

    Yields:
        None, after each part is queued; nothing is written without parts.
    """
    remaining = iter(parts)
    first = next(remaining, None)
    if first is None:
        return
    queue = Queue[pl.DataFrame | None](maxsize=1)

    def queued(*_: object) -> Iterator[pl.DataFrame]:
        while (part := queue.get()) is not None:
            yield part

    def put(part: pl.DataFrame | None) -> None:
        """Queue a part, None as the end, once the previous part is taken; raise the error of the writer."""
        while not writing.done():
            with suppress(Full):
                queue.put(part, timeout=_POLL)
                return
        writing.result()

    with ThreadPoolExecutor(max_workers=1) as thread:
        writing = thread.submit(sink_table, register_io_source(queued, schema=first.schema), path)
        try:
            for part in chain([first], remaining):
                put(part)
                yield
        finally:
            put(None)
        writing.result()


def sink_table(rows: pl.LazyFrame, path: Path) -> None:
    """Write rows into one Parquet file with row groups of a fixed size, independent of the number of threads."""
    rows.sink_parquet(path, compression="zstd", compression_level=1, row_group_size=_ROW_GROUP)


def write_part(part: pl.DataFrame, folder: Path, number: int) -> None:
    """Write a numbered part of a table stored as a directory of Parquet files."""
    parquet: Any = import_module("pyarrow.parquet")
    parquet.write_table(part.to_arrow(), folder / f"part-{number:05d}.parquet", **_STORAGE)


def write_attractiveness_csv(folder: Path) -> None:
    """Write `attractiveness.csv`, for spreadsheets, beside `attractiveness.parquet`."""
    table = pl.scan_parquet(folder / f"{ATTRACTIVENESS}.parquet", glob=False, hive_partitioning=False)
    as_spreadsheet_columns(table).sink_csv(folder / f"{ATTRACTIVENESS}.csv")


def read_propensities(folder: Path, cells: Sequence[str]) -> pl.DataFrame:
    """Read and validate the propensity table of a result: `propensity` and `examination`, null if not identified.

    Args:
        folder: of the result.
        cells: the columns that make up a cell, the position among them.

    Raises:
        LogFormatError: the table is missing or damaged, or its values are not those of a fit.
    """
    path = folder / f"{PROPENSITIES}.parquet"
    if not is_text(path):
        raise LogFormatError(f"{str(folder)!a}: the name is not UTF-8, so that it cannot be read. Rename it.")
    if not path.is_file():
        raise LogFormatError(f"{folder}: holds no {path.name}. Name the directory that `posbias fit` or `run` wrote.")
    return check_propensities(read_table(path), cells, where=str(path))


def read_covariance(folder: Path, cells: Sequence[str]) -> pl.DataFrame | None:
    """Read the covariance of log examination of a result; None if the result has none.

    Raises:
        LogFormatError: the table is damaged, or is no covariance of these cells.
    """
    path = folder / f"{THETA_COVARIANCE}.parquet"
    return check_covariance(read_table(path), cells, where=str(path)) if path.is_file() else None


def read_table(path: Path) -> pl.DataFrame:
    """Read a Parquet file of a result.

    Raises:
        LogFormatError: the file cannot be read as Parquet.
    """
    with parquet_errors(path):
        return pl.read_parquet(path, glob=False, hive_partitioning=False)


@contextmanager
def parquet_errors(path: Path) -> Generator[None]:
    """Convert errors of Polars or PyArrow about a file into LogFormatError."""
    try:
        yield
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError) as error:
        raise LogFormatError(f"{path}: cannot be read as Parquet: {str(error).splitlines()[0]}.") from error
