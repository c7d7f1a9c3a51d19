"""Propensities and attractiveness on disk.

A plan of what to show next on disk: `widths.parquet`, `swaps.parquet` and `documents.parquet`.
"""

import re
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib import import_module
from itertools import chain
from pathlib import Path
from queue import Full, Queue
from typing import Any

import numpy as np
import polars as pl
import polars.selectors as cs
from polars.io.plugins import register_io_source

from posbias.core.errors import LogFormatError, UsageError
from posbias.core.exploration import Plan
from posbias.core.fit.propensities import FittedTheta, check_covariance, check_propensities
from posbias.core.schema import POSITION
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
    return columns.rename(_named_as_text(columns.collect_schema().names()))


def _named_as_text(names: list[str]) -> dict[str, str]:
    """The header is a row of cells, too."""
    return {name: re.sub(_FORMULA, r"'\1", re.sub(_FORMULA_INSIDE, r"\1'\2", name)) for name in names}


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
    with reading_parquet(path):
        return pl.read_parquet(path, glob=False, hive_partitioning=False)


@contextmanager
def reading_parquet(path: Path) -> Generator[None]:
    """Raise LogFormatError where a file of a result cannot be read, by Polars or by PyArrow."""
    try:
        yield
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError) as error:
        raise LogFormatError(f"{path}: cannot be read as Parquet: {str(error).splitlines()[0]}.") from error


WIDTHS, SWAPS, DOCUMENTS = "widths.parquet", "swaps.parquet", "documents.parquet"
OTHER_POSITION, PAGES = "other_position", "pages"


def widths_table(cells: pl.DataFrame, plan: Plan) -> pl.DataFrame:
    """One row per cell: the interval of log propensity now, and after the further pages. What has none is infinite."""
    best = plan.alone[plan.best]
    columns = {
        "std_error": plan.now.std_error,
        "width": plan.now.width,
        "width_without_swaps": plan.unswapped.width,
        "width_with_best_swap": best.width,
        "width_with_plan": plan.planned.width,
    }
    return cells.with_columns(pl.Series(name, np.asarray(values, np.float64)) for name, values in columns.items())


def swaps_table(plan: Plan) -> pl.DataFrame:
    """One row per swap, the best first: what becomes of the intervals if it has all pages, and its part in the plan."""
    pages = pages_of(plan)
    rows = [
        {
            POSITION: swap[0],
            OTHER_POSITION: swap[1],
            PAGES: plan.pages,
            "largest_width": plan.now.largest,
            "largest_width_after": outcome.largest,
            "without_interval": int(np.isinf(plan.now.width).sum()),
            "without_interval_after": outcome.badness[0],
            "std_error_after": outcome.std_error.tolist(),
            "planned_pages": pages.get(swap, 0),
        }
        for swap, outcome in plan.alone.items()
    ]
    whole = {POSITION: pl.Int32, OTHER_POSITION: pl.Int32}
    return pl.DataFrame(rows, schema_overrides=whole)


def pages_of(plan: Plan) -> dict[tuple[int, int], int]:
    """How many pages each swap of the plan has: whole ones, all together N."""
    ends = np.rint(np.cumsum(list(plan.shares.values())) * plan.pages).astype(np.int64)
    return dict(zip(plan.shares, np.diff(ends, prepend=0).tolist(), strict=True))


def write_plan(cells: pl.DataFrame, plan: Plan, folder: Path) -> None:
    """Write what is to be swapped."""
    widths_table(cells, plan).write_parquet(folder / WIDTHS)
    swaps_table(plan).write_parquet(folder / SWAPS)


def write_documents(parts: Iterable[pl.DataFrame], folder: Path) -> Iterator[None]:
    """Write the documents that are worth showing, part by part."""
    yield from write_in_one_file(parts, folder / DOCUMENTS)
