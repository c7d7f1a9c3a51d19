"""Columns that CSV can hold."""

import polars as pl

from posbias.core.errors import UsageError


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
