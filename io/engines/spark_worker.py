"""What Spark's Python workers do: collect Polars frames that were sent to them, and work on parts.

Only this and what it imports must be installed where the workers run: posbias, in the same version as on the driver.

The tasks are made on the driver: each takes the driver's token with it.

How Polars columns travel through Spark, which has fewer types and pickier names, and come back as they were.

Unsigned integers, times and categories travel as what Spark has with the same equality; nothing else is asked of a key.
"""

import re
from collections.abc import Callable, ItemsView, Iterable, Iterator, Sequence
from importlib import import_module
from typing import Any, cast

import polars as pl

from posbias.core.errors import SchemaError
from posbias.io.engines.engine import Found, Item
from posbias.io.engines.wire import WIRE

_AS_THEY_ARE: dict[type[pl.DataType], str] = {
    pl.Int8: "tinyint",
    pl.Int16: "smallint",
    pl.Int32: "int",
    pl.Int64: "bigint",
    pl.Float32: "float",
    pl.Float64: "double",
    pl.String: "string",
    pl.Boolean: "boolean",
    pl.Binary: "binary",
}
_AS_ANOTHER: dict[type[pl.DataType], pl.DataType] = {
    pl.UInt8: pl.Int16(),
    pl.UInt16: pl.Int32(),
    pl.UInt32: pl.Int64(),
    pl.UInt64: pl.Int64(),
    pl.Date: pl.Int32(),
    pl.Datetime: pl.Int64(),
    pl.Time: pl.Int64(),
    pl.Duration: pl.Int64(),
    pl.Categorical: pl.String(),
    pl.Enum: pl.String(),
    pl.Null: pl.String(),
}
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_]+")


def spark_name(name: str) -> str:
    """A column's name in Spark, which takes a dot for a path: the same, or its letters as numbers."""
    return name if _PLAIN_NAME.fullmatch(name) else f"posbias_{name.encode().hex()}"


def spark_schema(schema: pl.Schema) -> str:
    """The columns of a frame as Spark describes them.

    Raises:
        SchemaError: a column holds what does not travel.
    """
    return ", ".join(f"`{spark_name(name)}` {_spark_type(name, dtype)}" for name, dtype in schema.items())


def packed(frame: pl.LazyFrame, schema: pl.Schema) -> pl.LazyFrame:
    """A frame of that schema, ready to travel."""
    return frame.select(_packed(pl.col(name), dtype).alias(spark_name(name)) for name, dtype in schema.items())


def unpacked(frame: pl.DataFrame, schema: pl.Schema) -> pl.DataFrame:
    """A frame that has travelled, with the names and types that it had."""
    return frame.select(_unpacked(pl.col(spark_name(name)), dtype).alias(name) for name, dtype in schema.items())


def _held_as(dtype: pl.DataType) -> pl.DataType:
    """The type in Polars of what Spark holds."""
    return _AS_ANOTHER.get(type(dtype), dtype)


def _spark_type(name: str, dtype: pl.DataType) -> str:
    if isinstance(dtype, pl.Struct):
        inner = (f"`{spark_name(field)}`: {_spark_type(name, inside)}" for field, inside in _fields(dtype))
        return f"struct<{', '.join(inner)}>"
    if isinstance(dtype, pl.Decimal):
        return f"decimal({dtype.precision or 38}, {dtype.scale})"
    known = _AS_THEY_ARE.get(type(_held_as(dtype)))
    if known is None:
        raise SchemaError(
            f"column {name!r} holds {dtype}, which --engine spark does not take. Write it as text or as numbers."
        )
    return known


def _packed(column: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    if isinstance(dtype, pl.Struct):
        fields = (
            _packed(column.struct.field(field), inside).alias(spark_name(field)) for field, inside in _fields(dtype)
        )
        return pl.when(column.is_not_null()).then(pl.struct(*fields))
    if isinstance(dtype, pl.UInt64):
        return column.reinterpret(signed=True)
    if isinstance(dtype, pl.Date | pl.Datetime | pl.Time | pl.Duration):
        return column.to_physical()
    return column.cast(_held_as(dtype))


def _unpacked(column: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    if isinstance(dtype, pl.Struct):
        fields = (
            _unpacked(column.struct.field(spark_name(field)), inside).alias(field) for field, inside in _fields(dtype)
        )
        return pl.when(column.is_not_null()).then(pl.struct(*fields))
    if isinstance(dtype, pl.UInt64):
        return column.reinterpret(signed=False)
    if isinstance(dtype, pl.Null):
        return pl.lit(None)
    return column.cast(_held_as(dtype)).cast(dtype)


def _fields(dtype: pl.Struct) -> ItemsView[str, pl.DataType]:
    return pl.Schema(dtype.to_schema()).items()


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
