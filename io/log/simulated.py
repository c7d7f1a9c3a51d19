"""Simulated logs on disk, with their truth, and the labels that they may be made from."""

from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import polars as pl

from posbias.core.errors import SchemaError
from posbias.core.schema import ALIASES, DOC, QUERY
from posbias.io.log.fingerprints import digests
from posbias.io.log.scan import reading, scan_sources
from posbias.io.log.sources import LOG_OF_SIMULATION, find_sources

TRUTH = "truth.parquet"
PARAMETERS_TRUTH = "parameters_truth.parquet"
ATTRACTIVENESS_TRUTH = "attractiveness_truth.parquet"

_LABEL = "label"
_LABEL_NAMES = (_LABEL, "grade", "relevance")
_STORAGE: dict[str, Any] = {"compression": "zstd", "compression_level": 1}


def write_log(blocks: Iterable[pl.DataFrame], folder: Path) -> None:
    """Write `log.parquet` block by block, one row group each."""
    parquet: Any = import_module("pyarrow.parquet")  # only here: importing it takes time, and it has no types
    writer: Any = None
    try:
        for block in blocks:
            table = cast("Any", block.to_arrow())
            writer = writer or parquet.ParquetWriter(folder / LOG_OF_SIMULATION, table.schema, **_STORAGE)
            writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()


def write_truth(
    propensities: pl.DataFrame, parameters: pl.DataFrame, attractiveness: pl.DataFrame, folder: Path
) -> None:
    """Write `truth.parquet`, by cell, `parameters_truth.parquet` and `attractiveness_truth.parquet`, by pair.

    A table without columns says that the model has nothing of the kind, and is not written.
    """
    tables = {TRUTH: propensities, PARAMETERS_TRUTH: parameters, ATTRACTIVENESS_TRUTH: attractiveness}
    for name, table in tables.items():
        if table.columns:
            table.write_parquet(folder / name)


def read_labels(name: str) -> tuple[pl.DataFrame, dict[str, str]]:
    """Read graded labels: query, doc, label, and whatever numeric columns there are, as features.

    Text that holds numbers throughout, as all columns of CSV may, counts as numeric.

    Returns:
        The table, and path by digest of its files.

    Raises:
        LogFormatError: the file is missing or cannot be read.
        SchemaError: it lacks one of the three columns.
    """
    sources = find_sources([name], "Name a table of query, doc and label.")
    with reading(sources):
        raw = scan_sources(sources).collect()
    roles = {
        _column(role, known, raw.columns, name): role
        for role, known in ((QUERY, ALIASES[QUERY]), (DOC, ALIASES[DOC]), (_LABEL, _LABEL_NAMES))
    }
    keys = [column for column, role in roles.items() if role != _LABEL]
    others = [_as_numbers(raw[column]) for column in raw.columns if column not in keys]
    return raw.select(keys).with_columns(others).rename(roles), digests(sources, holds_rows=lambda _: True)


def _column(role: str, known: tuple[str, ...], columns: list[str], where: str) -> str:
    found = [column for column in columns if column.lower() in known]
    if len(found) == 1:
        return found[0]
    shown = ", ".join(columns[:20]) + (", ..." if len(columns) > 20 else "")  # noqa: PLR2004 - a line's worth
    if found:
        raise SchemaError(f"{where}: {len(found)} columns could be the {role}: {', '.join(found)}. Keep one of them.")
    raise SchemaError(
        f"{where}: no column is named {' or '.join(known)}. Rename the {role} column. There are: {shown}."
    )


def _as_numbers(values: pl.Series) -> pl.Series:
    if values.dtype != pl.String:
        return values
    numbers = values.cast(pl.Float64, strict=False)
    return numbers if numbers.null_count() == values.null_count() else values
