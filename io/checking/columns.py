"""Columns that play no role yet, and say something all the same: who looked at a page, and when."""

import polars as pl

from posbias.core.check.remarks import Client
from posbias.core.column_names import CLIENTS, TIMES, plain
from posbias.io.log.log import Log
from posbias.io.log.scan import reading, scan_sources, schema_of

_ROWS, _FEWEST = 1_000_000, 1000
_FEW_CLIENTS = 20  # fewer are kinds of clients


def largest_client(log: Log) -> Client | None:
    """The client with the most of the first rows; None where no column is called like one."""
    if log.raw is not None:
        return None
    column = next((name for name in _free(log) if plain(name) in CLIENTS), None)
    if column is None:
        return None
    with reading(log.sources):
        sizes = (
            scan_sources(log.sources).select(column).head(_ROWS).group_by(column).len().collect(engine="streaming")
        ).filter(pl.col(column).is_not_null())
    rows = int(sizes["len"].sum())
    if rows < _FEWEST or sizes.height < _FEW_CLIENTS:
        return None
    return Client(column, float(sizes["len"].max() or 0) / rows, rows)  # pyright: ignore[reportArgumentType]


def unused_time(log: Log) -> str | None:
    """A column that seems to hold times, and is not used."""
    if log.raw is not None or log.roles.timestamp is not None or log.request.rules.day is not None:
        return None
    return next((name for name in _free(log) if plain(name) in TIMES), None)


def _free(log: Log) -> list[str]:
    """Columns of plain values that play no role."""
    schema, played = schema_of(log.sources[0]), {*log.roles.columns()}
    return [name for name in schema if name not in played and not schema[name].is_nested()]
