"""From a table of features to the parts of a log."""

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from posbias.core.errors import SchemaError
from posbias.io.features.columns import check_finite, described
from posbias.io.features.table import FeatureTable
from posbias.io.log.scan import reading
from posbias.io.log.sources import Source
from posbias.io.temporary.files import check_room, temporary_files

_HASH, _PART = "posbias_hash", "posbias_part"
_ROWS_OF_BATCH = 50_000
_SHARE_OF_WAITING = 32  # of the memory: rows that wait to be written
_LEAST_BYTES = 1  # on disk, of one value of a feature


def route(table: FeatureTable, keys_of_part: Sequence[pl.LazyFrame], folder: Path, memory: int) -> list[pl.LazyFrame]:
    """The features that each part needs, on disk, in one pass over the table.

    A hash of each key of all parts is held in memory; the features are not.

    Args:
        table: the features.
        keys_of_part: `query` and `doc` of the rows of each part, in any order, any number of times.
        folder: where to put the features: it is made, in the directory of temporary files.
        memory: target for the peak resident memory of the process, in bytes; a share of it holds what is not yet
            written.

    Returns:
        For each part the rows of the table with its keys.

    Raises:
        LogFormatError: the table cannot be read.
        SchemaError: no part has any of the keys, a key stands twice, or a value is infinite.
        OutputError: there is no room.
    """
    if not keys_of_part:
        return []
    parts = route_rows(table.rows, table.keys, table.sources, keys_of_part, folder, memory)
    if not any(folder.iterdir()) and any(keys.head(1).collect().height for keys in keys_of_part):
        raise SchemaError(_nothing_found(table, keys_of_part))
    _check_once(table, parts)
    for part in parts:
        check_finite(part, [feature.name for feature in table.features], table.keys, table.where)
    return parts


def route_rows(
    rows: pl.LazyFrame,
    keys: Sequence[str],
    sources: Sequence[Source],
    keys_of_part: Sequence[pl.LazyFrame],
    folder: Path,
    memory: int,
) -> list[pl.LazyFrame]:
    """The rows with the keys of each part, on disk, in one pass; for the other arguments see `route`.

    Args:
        rows: a table.
        keys: its columns that parts are looked up by.
        sources: the files that it is read from.
        keys_of_part: these columns of each part.
        folder: where to put the rows.
        memory: target for the memory of the process.

    Raises:
        LogFormatError: the table cannot be read.
        OutputError: there is no room.
    """
    wanted = _parts_by_hash(keys, keys_of_part)
    schema = rows.collect_schema()
    in_table = sum(source.bytes for source in sources)
    check_room(folder.parent, min(in_table, wanted.height * (len(schema) - len(keys)) * _LEAST_BYTES))
    routed = rows.with_columns(_hash(keys)).join(wanted.lazy(), on=_HASH, how="inner", build_side="force_right")
    with reading(sources), temporary_files(folder.parent):
        folder.mkdir()
        _write_by_part(routed.drop(_HASH), folder, memory // _SHARE_OF_WAITING)
    return [_part(schema, folder, number) for number in range(len(keys_of_part))]


def _hash(keys: Sequence[str]) -> pl.Expr:
    return pl.struct(keys).hash().alias(_HASH)


def _parts_by_hash(keys: Sequence[str], keys_of_part: Sequence[pl.LazyFrame]) -> pl.DataFrame:
    """Which parts want which keys, each once. Two keys of one hash would share their parts, which does no harm."""
    found = [
        of_part.select(_hash(keys))
        .unique()
        .collect(engine="streaming")
        .with_columns(pl.lit(number, pl.UInt32).alias(_PART))
        for number, of_part in enumerate(keys_of_part)
    ]
    return pl.concat(found)


def _write_by_part(rows: pl.LazyFrame, folder: Path, most_bytes: int) -> None:
    """Write rows to files of their parts, several for each, so many bytes at once.

    Polars' own partitioned sink keeps 100,000 rows and more of each part: all of a table that is wide.
    """
    waiting: list[pl.DataFrame] = []
    bytes_waiting, flushes = 0, 0
    for batch in rows.collect_batches(chunk_size=_ROWS_OF_BATCH, maintain_order=False, lazy=True, engine="streaming"):
        waiting.append(batch)
        bytes_waiting += batch.estimated_size()
        if bytes_waiting >= most_bytes:
            _flush(waiting, folder, flushes)
            waiting, bytes_waiting, flushes = [], 0, flushes + 1
    if waiting:
        _flush(waiting, folder, flushes)


def _flush(waiting: Sequence[pl.DataFrame], folder: Path, flush: int) -> None:
    for (number,), rows in pl.concat(waiting).partition_by(_PART, as_dict=True, include_key=False).items():
        rows.write_parquet(folder / f"{number:05d}-{flush:05d}.parquet", compression="lz4", statistics=False)


def _part(schema: pl.Schema, folder: Path, number: int) -> pl.LazyFrame:
    paths = sorted(folder.glob(f"{number:05d}-*.parquet"))
    if not paths:  # no row has its keys
        return pl.LazyFrame(schema=schema)
    return pl.scan_parquet(paths, hive_partitioning=False, glob=False)


def _nothing_found(table: FeatureTable, keys_of_part: Sequence[pl.LazyFrame]) -> str:
    """That ids do not agree, in words."""
    ours = pl.concat(keys.select(table.keys).head(1) for keys in keys_of_part).head(1).collect()
    with reading(table.sources):
        theirs = table.rows.select(table.keys).head(1).collect()
    if not theirs.height:
        return f"{table.where}: holds no row whose key could be one of the log, e.g. {described(ours, table.keys)}."
    return (
        f"{table.where}: has features for no row of the log. The log holds e.g. {described(ours, table.keys)}, "
        f"the table e.g. {described(theirs, table.keys)}. Write the ids of the table as in the log."
    )


def _check_once(table: FeatureTable, parts: Sequence[pl.LazyFrame]) -> None:
    """No key may stand twice.

    Raises:
        SchemaError: one does.
    """
    keys = table.keys
    twice = [
        part.select(keys).group_by(keys).len().filter(pl.col("len") > 1).collect(engine="streaming") for part in parts
    ]
    found = pl.concat(twice).unique(keys).sort(keys)
    if found.height:
        rows = found["len"][0]
        raise SchemaError(
            f"{table.where}: {found.height:,} keys appear more than once, e.g. {described(found, keys)} in {rows} "
            "rows. Write one row of features for each."
        )
