"""Frames of other libraries: their columns as Polars has them, and further columns in the same kind of frame."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import narwhals as nw
import polars as pl

from posbias.core.errors import SchemaError, UsageError

FRAME = "the frame"
"""What messages and the manifest call it."""

FrameT = TypeVar("FrameT")

_FAULTS = (TypeError, ValueError, ArithmeticError, LookupError, NotImplementedError, pl.exceptions.PolarsError)
"""What libraries raise over columns that they cannot convert; pyarrow's errors are of these kinds, too."""


@dataclass(frozen=True)
class Frame:
    """A frame that was handed in.

    Attributes:
        rows: it, in memory.
        lazy: whether it was lazy, and is to be given back like that.
    """

    rows: nw.DataFrame[Any]
    lazy: bool

    @classmethod
    def of(cls, given: object) -> "Frame":
        """A Polars frame (lazy ones are collected), a pandas frame or an Arrow table.

        Raises:
            UsageError: it is none of them.
            SchemaError: a lazy frame cannot be collected, or a column is there twice.
        """
        lazy = isinstance(given, pl.LazyFrame)
        if type(given) in {nw.DataFrame, nw.LazyFrame}:
            raise _not_taken(given)
        try:
            rows = given.collect() if isinstance(given, pl.LazyFrame) else given
        except pl.exceptions.PolarsError as error:
            raise SchemaError(f"{FRAME}: cannot be collected: {error}") from error
        try:
            return cls(nw.from_native(rows, eager_only=True), lazy)
        except TypeError:
            raise _not_taken(given) from None
        except ValueError as error:
            raise SchemaError(f"{FRAME}: cannot be read: {error}") from error

    @property
    def columns(self) -> list[str]:
        """The names of its columns; those that are no text play no role."""
        names: list[object] = list(self.rows.columns)
        return [name for name in names if isinstance(name, str)]

    def select(self, names: Sequence[str]) -> pl.DataFrame:
        """Some of its columns.

        Raises:
            SchemaError: a column holds what no column of a log can.
        """
        try:
            return self.rows.select(*names).to_polars()
        except _FAULTS as error:
            raise SchemaError(f"{FRAME}: columns {', '.join(map(repr, names))} cannot be read: {error}") from error

    def with_columns(self, columns: Sequence[pl.Series]) -> Any:  # noqa: ANN401 - whatever was handed in
        """The same kind of frame with further columns of numbers, its rows and their index as they are."""
        own = [
            nw.new_series(one.name, one.to_list(), nw.Float64(), backend=self.rows.implementation) for one in columns
        ]
        wider = self.rows.with_columns(*own).to_native()
        return wider.lazy() if self.lazy else wider


def _not_taken(given: object) -> UsageError:
    kind = f"{type(given).__module__}.{type(given).__qualname__}"
    return UsageError(f"{FRAME}: is {kind}. Give a Polars or pandas frame, or an Arrow table.")
