"""Tasks of Spark's Python workers, and the exchange of rows, objects and errors with the driver.

Workers need posbias, in the same version as the driver. Tasks are made on the driver, and carry its token.

Rows: Spark has fewer types than Polars, and restricts names of columns. Unsigned integers, times and categories are
converted to Spark types with the same equality, which is all that keys need, and back.

Errors: Spark returns only the text of a worker's error, and tracebacks in it quote the log. Therefore the worker writes
the name of the error, from a fixed list, and its message as JSON behind a mark that no log contains: a token that the
driver draws at random.

Objects: pickled, in binary columns of Spark frames. Only bytes signed with the token are unpickled.
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
_LONGEST_TEXT = 1 << 16  # characters of a message: it may quote ids of any length
_OTHER = ""


def _error_names(module: ModuleType, *roots: type[BaseException]) -> dict[type[BaseException], str]:
    """Map the subclasses of `roots` in a module to the names under which they are serialised."""
    kinds = (kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, roots))
    return {kind: f"{module.__name__}.{kind.__name__}" for kind in kinds}


_NAMES = {
    **_error_names(errors, PosbiasError),
    **_error_names(pl.exceptions, pl.exceptions.PolarsError, pl.exceptions.PanicException),
    **_error_names(builtins, OSError),
}
_KINDS = {name: kind for kind, name in _NAMES.items()}


@dataclass(frozen=True)
class Wire:
    """Serialise objects and errors between driver and workers, authenticated by a shared token."""

    token: str = field(repr=False)  # secret: no repr in a traceback may show it

    @contextmanager
    def sending_errors(self) -> Generator[None]:
        """Serialise an exception into the text of the error that Spark passes to the driver."""
        try:
            yield
        except (Exception, pl.exceptions.PanicException) as error:
            serialised = json.dumps(_name_and_lines(error)).encode()
            raise RuntimeError(f"{self._mark}{base64.b64encode(serialised).decode()}:") from error

    def error_in(self, text: str) -> BaseException | None:
        """Return the worker's exception from the text of a Spark error; None if there is none."""
        match = re.search(f"{re.escape(self._mark)}([A-Za-z0-9+/=]+):", text)
        if match is None:
            return None
        sent = json.loads(base64.b64decode(match[1]))
        kind = _KINDS.get(sent["error"])
        return EngineError(f"a Spark worker broke down: {sent['lines'][0]}") if kind is None else kind(*sent["lines"])

    def to_bytes(self, value: object) -> bytes:
        """Pickle and sign an object."""
        pickled = pickle.dumps(value)
        return self._signature(pickled) + pickled

    def from_bytes(self, data: bytes | bytearray) -> Any:  # noqa: ANN401
        """Unpickle a signed object.

        Raises:
            EngineError: the signature is invalid.
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


def _name_and_lines(error: BaseException) -> dict[str, object]:
    """Return the name of the nearest known error class, and the lines of the message, shortened."""
    kind = next((known for known in type(error).__mro__ if known in _NAMES), None)
    lines = [line[:_LONGEST_TEXT] for line in (error.lines if isinstance(error, PosbiasError) else [str(error)])]
    if kind is None:
        return {"error": _OTHER, "lines": [f"{type(error).__name__}: {lines[0]}"]}
    return {"error": _NAMES[kind], "lines": lines}


WIRE = Wire(secrets.token_hex(16))
"""The wire of this process. Tasks carry it to the workers, whose own `WIRE` has another token."""


_SPARK_TYPES: dict[type[pl.DataType], str] = {
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
_SUBSTITUTES: dict[type[pl.DataType], pl.DataType] = {
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
_PLAIN_NAME = re.compile(r"[a-z0-9_]+")  # Spark may ignore case


def spark_name(name: str) -> str:
    """Return the name of a column in Spark: the name, or its bytes in hexadecimal if Spark may misread it."""
    return name if _PLAIN_NAME.fullmatch(name) else f"posbias_{name.encode().hex()}"


def spark_schema(schema: pl.Schema) -> str:
    """Return the Spark schema of a Polars schema.

    Raises:
        SchemaError: Spark has no type for a column.
    """
    return ", ".join(f"`{spark_name(name)}` {_spark_type(name, dtype)}" for name, dtype in schema.items())


def to_spark(frame: pl.LazyFrame, schema: pl.Schema) -> pl.LazyFrame:
    """Convert a frame to names and types that Spark has."""
    return frame.select(_to_spark(pl.col(name), dtype).alias(spark_name(name)) for name, dtype in schema.items())


def from_spark(frame: pl.DataFrame, schema: pl.Schema) -> pl.DataFrame:
    """Invert `to_spark`: restore the names and types of `schema`."""
    return frame.select(_from_spark(pl.col(spark_name(name)), dtype).alias(name) for name, dtype in schema.items())


def _substitute(dtype: pl.DataType) -> pl.DataType:
    """Return the Polars type of a column in Spark."""
    return _SUBSTITUTES.get(type(dtype), dtype)


def _spark_type(name: str, dtype: pl.DataType) -> str:
    if isinstance(dtype, pl.Struct):
        inner = (f"`{spark_name(field)}`: {_spark_type(name, inside)}" for field, inside in _fields(dtype))
        return f"struct<{', '.join(inner)}>"
    if isinstance(dtype, pl.Decimal):
        return f"decimal({dtype.precision or 38}, {dtype.scale})"
    spark_type = _SPARK_TYPES.get(type(_substitute(dtype)))
    if spark_type is None:
        raise SchemaError(
            f"column {name!r} holds {dtype}, which --engine spark does not take. Write it as text or as numbers."
        )
    return spark_type


def _to_spark(column: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    if isinstance(dtype, pl.Struct):
        fields = (
            _to_spark(column.struct.field(field), inside).alias(spark_name(field)) for field, inside in _fields(dtype)
        )
        return pl.when(column.is_not_null()).then(pl.struct(*fields))
    if isinstance(dtype, pl.UInt64):
        return column.reinterpret(signed=True)
    if isinstance(dtype, pl.Date | pl.Datetime | pl.Time | pl.Duration):
        return column.to_physical()
    return column.cast(_substitute(dtype))


def _from_spark(column: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    if isinstance(dtype, pl.Struct):
        fields = (
            _from_spark(column.struct.field(spark_name(field)), inside).alias(field) for field, inside in _fields(dtype)
        )
        return pl.when(column.is_not_null()).then(pl.struct(*fields))
    if isinstance(dtype, pl.UInt64):
        return column.reinterpret(signed=False)
    if isinstance(dtype, pl.Null):
        return pl.lit(None)
    return column.cast(_substitute(dtype)).cast(dtype)


def _fields(dtype: pl.Struct) -> ItemsView[str, pl.DataType]:
    return pl.Schema(dtype.to_schema()).items()


RESULT = "number int, result binary"
"""Spark schema of the results of `item_task` and `part_task`."""

_BATCH_ROWS = 1 << 17

Batches = Iterator[Any]
"""Iterator of pyarrow.RecordBatch, which has no type stubs."""


def _task(rows_of: Callable[[Batches], Iterable[pl.DataFrame]]) -> Callable[[Batches], Batches]:
    """Return a task for `mapInArrow` that yields the frames of `rows_of(batches)`, and sends errors to the driver."""
    wire = WIRE

    def task(batches: Batches) -> Batches:
        with wire.sending_errors():
            for rows in rows_of(batches):
                yield from cast("Any", rows.to_arrow(compat_level=pl.CompatLevel.oldest())).to_batches()

    return task


def _numbered_task(
    items: Sequence[Item], rows_of: Callable[[int, Item], Iterable[pl.DataFrame]]
) -> Callable[[Batches], Batches]:
    """Return a task that yields the frames of `rows_of(number, item)` for each number of an item in its batches."""
    wire, pickled = WIRE, [WIRE.to_bytes(item) for item in items]

    def rows_of_numbers(batches: Batches) -> Iterator[pl.DataFrame]:
        for batch in batches:
            numbers: list[int] = batch.column(0).to_pylist()
            for number in numbers:
                yield from rows_of(number, wire.from_bytes(pickled[number]))

    return _task(rows_of_numbers)


def collection_task(frames: Sequence[pl.LazyFrame]) -> Callable[[Batches], Batches]:
    """Return a task that collects lazy frames by number."""
    return _numbered_task(frames, lambda _, frame: frame.collect_batches(chunk_size=_BATCH_ROWS, engine="streaming"))


def item_task(work: Callable[[Item], object], items: Sequence[Item]) -> Callable[[Batches], Batches]:
    """Return a task that yields the number of each item and `work(item)`."""
    wire = WIRE
    return _numbered_task(items, lambda number, item: [_result(number, wire.to_bytes(work(item)))])


def part_task(
    work: Callable[[int, pl.LazyFrame], object], schema: pl.Schema, order: Sequence[str]
) -> Callable[[Batches], Batches]:
    """Return a task that yields the number of a partition and `work(number, rows)`, with rows sorted by `order`.

    Partitions without rows yield nothing, except the first, so that there is always a part.
    """
    wire = WIRE

    def rows_of_part(batches: Batches) -> Iterator[pl.DataFrame]:
        number = import_module("pyspark").TaskContext.get().partitionId()
        rows = from_batches(batches, schema)
        rows = rows.sort(order) if order else rows
        if rows.height or number == 0:
            yield _result(number, wire.to_bytes(work(number, rows.lazy())))

    return _task(rows_of_part)


def row_task(work: Callable[[pl.LazyFrame], pl.LazyFrame], schema: pl.Schema) -> Callable[[Batches], Batches]:
    """Return a task that yields `work(rows)`, of types that Spark has, for the rows of a partition."""
    return _task(lambda batches: [work(from_batches(batches, schema).lazy()).collect(engine="streaming")])


def _result(number: int, result: bytes) -> pl.DataFrame:
    return pl.DataFrame({"number": [number], "result": [result]}, {"number": pl.Int32, "result": pl.Binary})


def from_batches(batches: Iterable[Any], schema: pl.Schema) -> pl.DataFrame:
    """Convert Arrow batches of Spark to rows with the names and types of `schema`."""
    to_polars = cast("Callable[[object], pl.DataFrame]", pl.from_arrow)  # pyright: ignore[reportUnknownMemberType]
    frames = [to_polars(batch) for batch in batches]
    frames = [frame for frame in frames if frame.height]
    if not frames:
        return pl.DataFrame(schema=schema)
    return from_spark(pl.concat(frames), schema)
