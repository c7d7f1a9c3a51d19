"""Code that runs in Spark's Python workers: collect Polars frames and process parts.

Only this and what it imports must be installed where the workers run: posbias, in the same version as on the driver.

The tasks are made on the driver: each takes the driver's token with it.

How Polars columns travel through Spark, which has fewer types and pickier names, and come back as they were.

Unsigned integers, times and categories travel as what Spark has with the same equality; a key needs nothing else.

What travels between this process and its Spark workers beside rows: objects, and errors.

Spark hands on nothing of a worker's error but a text, in which tracebacks quote the log. So what posbias has to say
stands behind a mark that no log can know, because the token in it is drawn at random by this process and sent to the
workers with their work; and it consists of the name of an error from a fixed list and a text, in JSON.

Objects travel in binary columns of Spark frames, as Spark itself carries functions: pickled. What does not bear the
signature of that token is never unpickled.
"""

import base64
import builtins
import hmac
import json
import pickle
import re
import secrets
from collections.abc import Callable, Generator, ItemsView, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import Any, cast

import polars as pl

from posbias.core import errors
from posbias.core.errors import EngineError, PosbiasError, SchemaError
from posbias.io.engines.engine import Item

_DIGEST, _DIGEST_BYTES = "sha256", 32
_LONGEST_TEXT = 1 << 16  # of an error, in characters: ids that it quotes may be of any length
_OTHER = ""


def _of(module: ModuleType, *roots: type[BaseException]) -> dict[type[BaseException], str]:
    """Map the error classes of a module below `roots` to the names under which they are serialised."""
    kinds = (kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, roots))
    return {kind: f"{module.__name__}.{kind.__name__}" for kind in kinds}


_NAMES = {
    **_of(errors, PosbiasError),
    **_of(pl.exceptions, pl.exceptions.PolarsError, pl.exceptions.PanicException),
    **_of(builtins, OSError),
}
_KINDS = {name: kind for kind, name in _NAMES.items()}


@dataclass(frozen=True)
class Wire:
    """Serialise objects between driver and workers, authenticated by a shared token."""

    token: str = field(repr=False)  # not even a traceback shows it

    @contextmanager
    def sending_errors(self) -> Generator[None]:
        """Serialise an exception into the text of the error that Spark passes to the driver."""
        try:
            yield
        except (Exception, pl.exceptions.PanicException) as error:
            described = json.dumps(_described(error)).encode()
            raise RuntimeError(f"{self._mark}{base64.b64encode(described).decode()}:") from error

    def error_in(self, text: str) -> BaseException | None:
        """Return the exception of a worker that is serialised in a Spark error; None if there is none."""
        match = re.search(f"{re.escape(self._mark)}([A-Za-z0-9+/=]+):", text)
        if match is None:
            return None
        sent = json.loads(base64.b64decode(match[1]))
        kind = _KINDS.get(sent["error"])
        return EngineError(f"a Spark worker broke down: {sent['lines'][0]}") if kind is None else kind(*sent["lines"])

    def to_bytes(self, value: object) -> bytes:
        """Serialise an object."""
        pickled = pickle.dumps(value)
        return self._signature(pickled) + pickled

    def from_bytes(self, data: bytes | bytearray) -> Any:  # noqa: ANN401
        """Restore a serialised object.

        Raises:
            EngineError: these bytes are not of this process or its workers.
        """
        signature, pickled = data[:_DIGEST_BYTES], memoryview(data)[_DIGEST_BYTES:]
        if not hmac.compare_digest(signature, self._signature(pickled)):
            raise EngineError("Spark returned data that no worker of this run sent. Run the command again.")
        return pickle.loads(pickled)  # noqa: S301 - signed by this process or its workers

    @property
    def _mark(self) -> str:
        return f"posbias-error:{self.token}:"

    def _signature(self, pickled: bytes | memoryview) -> bytes:
        return hmac.digest(self.token.encode(), pickled, _DIGEST)


def _described(error: BaseException) -> dict[str, object]:
    kind = next((known for known in type(error).__mro__ if known in _NAMES), None)
    lines = [line[:_LONGEST_TEXT] for line in (error.lines if isinstance(error, PosbiasError) else [str(error)])]
    if kind is None:
        return {"error": _OTHER, "lines": [f"{type(error).__name__}: {lines[0]}"]}
    return {"error": _NAMES[kind], "lines": lines}


WIRE = Wire(secrets.token_hex(16))
"""The wire of this process. Workers get it with their work: what they would import is one of their own."""


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
_PLAIN_NAME = re.compile(r"[a-z0-9_]+")  # Spark may not tell capitals from small letters


def spark_name(name: str) -> str:
    """Return the name of a column in Spark, where a dot separates a path: unchanged, or its letters as numbers."""
    return name if _PLAIN_NAME.fullmatch(name) else f"posbias_{name.encode().hex()}"


def spark_schema(schema: pl.Schema) -> str:
    """Return the Spark schema of a Polars schema.

    Raises:
        SchemaError: a column holds what does not travel.
    """
    return ", ".join(f"`{spark_name(name)}` {_spark_type(name, dtype)}" for name, dtype in schema.items())


def packed(frame: pl.LazyFrame, schema: pl.Schema) -> pl.LazyFrame:
    """Prepare a frame for serialisation."""
    return frame.select(_packed(pl.col(name), dtype).alias(spark_name(name)) for name, dtype in schema.items())


def unpacked(frame: pl.DataFrame, schema: pl.Schema) -> pl.DataFrame:
    """Restore a serialised frame with its names and types."""
    return frame.select(_unpacked(pl.col(spark_name(name)), dtype).alias(name) for name, dtype in schema.items())


def _held_as(dtype: pl.DataType) -> pl.DataType:
    """Return the Polars type in which Spark returns a column."""
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
"""Spark's schema of what `on_part` and `on_items` yield."""

_BATCH_ROWS = 1 << 17

Batches = Iterator[Any]
"""pyarrow.RecordBatch, which has no types."""


def _task(rows_of: Callable[[Batches], Iterable[pl.DataFrame]]) -> Callable[[Batches], Batches]:
    """Return a task for `mapInArrow`: it maps the batches of a partition to rows and sends errors to the driver."""
    wire = WIRE

    def task(batches: Batches) -> Batches:
        with wire.sending_errors():
            for rows in rows_of(batches):
                yield from cast("Any", rows.to_arrow(compat_level=pl.CompatLevel.oldest())).to_batches()

    return task


def _on_numbers(
    items: Sequence[Item], rows_of: Callable[[int, Item], Iterable[pl.DataFrame]]
) -> Callable[[Batches], Batches]:
    """Return a task whose batches hold the numbers of items in one column."""
    wire, packed_items = WIRE, [WIRE.to_bytes(item) for item in items]

    def of_numbers(batches: Batches) -> Iterator[pl.DataFrame]:
        for batch in batches:
            numbers: list[int] = batch.column(0).to_pylist()
            for number in numbers:
                yield from rows_of(number, wire.from_bytes(packed_items[number]))

    return _task(of_numbers)


def collect_frames(frames: Sequence[pl.LazyFrame]) -> Callable[[Batches], Batches]:
    """Return a task that collects lazy frames by number."""
    return _on_numbers(frames, lambda _, frame: frame.collect_batches(chunk_size=_BATCH_ROWS, engine="streaming"))


def on_items(work: Callable[[Item], object], items: Sequence[Item]) -> Callable[[Batches], Batches]:
    """Return a task that yields the number of each item and `work(item)`."""
    wire = WIRE
    return _on_numbers(items, lambda number, item: [_result(number, wire.to_bytes(work(item)))])


def on_part(
    work: Callable[[int, pl.LazyFrame], object], schema: pl.Schema, order: Sequence[str]
) -> Callable[[Batches], Batches]:
    """Return a task that yields the number of a partition and `work(number, rows)`.

    The rows are sorted by the columns of `order`, if there are any.

    Partitions without rows are left out, but for the first, so that there is always a part.
    """
    wire = WIRE

    def of_part(batches: Batches) -> Iterator[pl.DataFrame]:
        number = import_module("pyspark").TaskContext.get().partitionId()
        rows = from_batches(batches, schema)
        rows = rows.sort(order) if order else rows
        if rows.height or number == 0:
            yield _result(number, wire.to_bytes(work(number, rows.lazy())))

    return _task(of_part)


def on_rows(work: Callable[[pl.LazyFrame], pl.LazyFrame], schema: pl.Schema) -> Callable[[Batches], Batches]:
    """Return a task that maps the rows of a partition to rows; `work` returns types that Spark can hold."""
    return _task(lambda batches: [work(from_batches(batches, schema).lazy()).collect(engine="streaming")])


def _result(number: int, result: bytes) -> pl.DataFrame:
    return pl.DataFrame({"number": [number], "result": [result]}, {"number": pl.Int32, "result": pl.Binary})


def from_batches(batches: Iterable[Any], schema: pl.Schema) -> pl.DataFrame:
    """Restore rows from Arrow batches with their names and types."""
    to_polars = cast("Callable[[object], pl.DataFrame]", pl.from_arrow)  # pyright: ignore[reportUnknownMemberType]
    frames = [to_polars(batch) for batch in batches]
    frames = [frame for frame in frames if frame.height]
    if not frames:
        return pl.DataFrame(schema=schema)
    return unpacked(pl.concat(frames), schema)
