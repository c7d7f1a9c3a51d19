"""What Spark's Python workers do: collect Polars frames that were sent to them, and work on parts.

Only this and what it imports must be installed where the workers run: posbias, in the same version as on the driver.

The tasks are made on the driver: each takes the driver's token with it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from typing import Any, cast

import polars as pl

from posbias.io.engines.engine import Found, Item
from posbias.io.engines.spark_types import unpacked
from posbias.io.engines.wire import WIRE

RESULT = "number int, result binary"
"""Spark's schema of what `on_part` yields."""

_BATCH_ROWS = 1 << 17

Batches = Iterator[Any]
"""pyarrow.RecordBatch, which has no types."""


def collect_frames() -> Callable[[Batches], Batches]:
    """The task that collects lazy frames, which travel in the one column of the batches, of what they hold the rows."""
    wire = WIRE

    def task(batches: Batches) -> Batches:
        with wire.sending_errors():
            for batch in batches:
                for received in batch.column(0).to_pylist():
                    frame: pl.LazyFrame = wire.from_bytes(received)
                    for rows in frame.collect_batches(chunk_size=_BATCH_ROWS, engine="streaming"):
                        yield from _to_batches(rows)

    return task


def on_part(
    work: Callable[[int, pl.LazyFrame], object], schema: pl.Schema, order: Sequence[str]
) -> Callable[[Batches], Batches]:
    """The task that calls `work` with the number of a partition and its rows, and yields that number and the result.

    The rows are sorted by the columns of `order`, if there are any.

    Partitions without rows are left out, but for the first, so that there is always a part.
    """
    wire = WIRE

    def task(batches: Batches) -> Batches:
        with wire.sending_errors():
            number = import_module("pyspark").TaskContext.get().partitionId()
            rows = from_batches(batches, schema)
            rows = rows.sort(order) if order else rows
            if rows.height or number == 0:
                result = pl.DataFrame({"number": [number], "result": [wire.to_bytes(work(number, rows.lazy()))]})
                yield from _to_batches(result.cast({"number": pl.Int32}))

    return task


def on_rows(work: Callable[[pl.LazyFrame], pl.LazyFrame], schema: pl.Schema) -> Callable[[Batches], Batches]:
    """The task that makes other rows of those of a partition; `work` sees to it that they can travel."""
    wire = WIRE

    def task(batches: Batches) -> Batches:
        with wire.sending_errors():
            yield from _to_batches(work(from_batches(batches, schema).lazy()).collect(engine="streaming"))

    return task


def work_on(work: Callable[[Item], Found]) -> Callable[[Item], Found]:
    """The task that calls `work` with one item."""
    wire = WIRE

    def task(item: Item) -> Found:
        with wire.sending_errors():
            return work(item)

    return task


def from_batches(batches: Iterable[Any], schema: pl.Schema) -> pl.DataFrame:
    """The rows that have travelled, under the names and types that they had."""
    to_polars = cast("Callable[[object], pl.DataFrame]", pl.from_arrow)  # pyright: ignore[reportUnknownMemberType]
    frames = [to_polars(batch) for batch in batches]
    frames = [frame for frame in frames if frame.height]
    if not frames:
        return pl.DataFrame(schema=schema)
    return unpacked(pl.concat(frames), schema)


def _to_batches(rows: pl.DataFrame) -> Iterator[Any]:
    table = cast("Any", rows.to_arrow(compat_level=pl.CompatLevel.oldest()))
    return iter(table.to_batches())
