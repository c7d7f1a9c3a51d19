"""Rows of whole numbers as one number of 64 bits each, in which every column has bits of its own.

    number = sum over columns of (value / step - low) 2^shift,    0 <= value / step - low < 2^bits

for whole numbers, true and false, dates (days since 1970) and times (in quarters of an hour, which is their step).
Numbers compare as rows do, column by column, so that sorting them sorts the rows, and equal rows are equal numbers.

Texts as numbers: equal texts, equal numbers, so that a column is sorted and grouped as numbers are.

Exact: a hash proposes which texts are equal, and each text is compared with the first one of its hash. Where two
differ, Polars ranks them, which is slower.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np
import polars as pl

from posbias.core.arrays.compression import first_with_same
from posbias.core.arrays.count_table import Integers

NUMBER = "number"
"""The column that holds the numbers."""

_TEXT = "text"
_WORD_BITS = 64
_SPARE_BITS = 2  # where there is room: a column may hold four times the largest value that was seen
_QUARTER_HOUR = 15 * 60 * 1_000_000  # in microseconds


@dataclass(frozen=True)
class BitField:
    """The bits of one column."""

    name: str  # the column
    dtype: pl.DataType  # its type
    low: int  # the least value that it may hold, in steps
    bits: int  # how many it takes, 63 at most
    shift: int = 0  # how many are below them

    @property
    def fits(self) -> pl.Expr:
        """Whether a value has its place in the bits; null for null."""
        fits = self._steps_above_low < _unsigned(2**self.bits)
        return fits if self._step == 1 else fits & (self._whole % self._step == 0)

    @property
    def shifted(self) -> pl.Expr:
        """The bits in their place, of values that fit."""
        return self._steps_above_low * _unsigned(2**self.shift) if self.shift else self._steps_above_low

    @property
    def value(self) -> pl.Expr:
        """The value that the bits of a number say."""
        bits = pl.col(NUMBER)
        if self.shift:
            bits = bits // pl.lit(2**self.shift, pl.UInt64)
        if self.shift + self.bits < _WORD_BITS:
            bits = bits & pl.lit(2**self.bits - 1, pl.UInt64)
        whole = bits.cast(pl.Int64) if isinstance(self.dtype, pl.Datetime) or self.low or self._step > 1 else bits
        if self._step > 1:
            whole *= self._step
        if self.low:
            whole += self.low * self._step
        if isinstance(self.dtype, pl.Date):
            whole = whole.cast(pl.Int32)
        return whole.cast(self.dtype).alias(self.name)

    @property
    def _step(self) -> int:
        return _QUARTER_HOUR if isinstance(self.dtype, pl.Datetime) else 1

    @property
    def _steps_above_low(self) -> pl.Expr:
        """How many steps a value is above the least one, modulo 2^64: that is large for one below it."""
        steps = self._whole if self._step == 1 else self._whole // self._step
        steps = steps.cast(pl.UInt64, wrap_numerical=True)
        return steps + _unsigned(-self.low) if self.low else steps

    @property
    def _whole(self) -> pl.Expr:
        """A value as a whole number of 64 bits; null where they do not hold it."""
        column = pl.col(self.name)
        if isinstance(self.dtype, pl.Date | pl.Datetime):
            return column.to_physical()
        wide = isinstance(self.dtype, pl.Int128 | pl.UInt128)
        return column.cast(pl.Int64, strict=False) if wide else column


@dataclass(frozen=True)
class BitFields:
    """The bits of all columns."""

    fields: tuple[BitField, ...]  # one for each, the most significant first

    @property
    def names(self) -> tuple[str, ...]:
        """The columns, the most significant first."""
        return tuple(field.name for field in self.fields)

    @property
    def fit(self) -> pl.Expr:
        """Whether a row can be a number; never null."""
        return pl.all_horizontal(field.fits for field in self.fields).fill_null(value=False)

    @property
    def number(self) -> pl.Expr:
        """The number of a row that fits."""
        return reduce(add, (field.shifted for field in self.fields)).alias(NUMBER)

    @property
    def values(self) -> list[pl.Expr]:
        """The columns of rows, from their numbers."""
        return [field.value for field in self.fields]


def _unsigned(number: int) -> pl.Expr:
    return pl.lit(number % 2**_WORD_BITS, pl.UInt64)


def bit_fields(seen: pl.DataFrame, growing: Sequence[str], known: Mapping[str, int]) -> BitFields | None:
    """Bits for rows of which some were seen.

    Args:
        seen: some of the rows, the columns in the order of their bits, the most significant first.
        growing: columns that may hold far larger values; they share the bits that are left.
        known: columns whose values are known to take so many bits.

    Returns:
        None where a column holds something else than whole numbers, dates and times, or they take too many bits.
    """
    fields = list[BitField]()
    for column in seen:
        bits = known.get(column.name)
        field = _field(column) if bits is None else BitField(column.name, column.dtype, 0, bits)
        if field is None:
            return None
        fields.append(field)
    left = _WORD_BITS - sum(field.bits for field in fields)
    if left < 0 or not fields or max(field.bits for field in fields) == _WORD_BITS:
        return None
    spare = min(_SPARE_BITS, left // len(fields))
    shared = (left - spare * len(fields)) // max(len(growing), 1)
    placed, shift = list[BitField](), 0
    for field in reversed(fields):
        more = 0 if field.name in known else spare + (shared if field.name in growing else 0)
        bits = min(field.bits + more, _WORD_BITS - 1)
        low = -(2 ** (bits - 1)) if field.low else 0
        placed.append(BitField(field.name, field.dtype, low, bits, shift))
        shift += bits
    return BitFields(tuple(reversed(placed)))


def _field(column: pl.Series) -> BitField | None:
    """The bits of a column by itself; None where it holds something else, or nothing."""
    dtype = column.dtype
    if isinstance(dtype, pl.Boolean):
        return BitField(column.name, dtype, 0, 1)
    is_time = isinstance(dtype, pl.Datetime) and dtype.time_unit == "us"
    if not (dtype.is_integer() or isinstance(dtype, pl.Date) or is_time):
        return None
    whole = column.to_physical()
    least, most = whole.min(), whole.max()
    if not isinstance(least, int) or not isinstance(most, int):
        return None
    step = _QUARTER_HOUR if is_time else 1
    if step > 1 and (whole % step != 0).any():
        return None
    least, most = least // step, most // step
    if least >= 0:
        return BitField(column.name, dtype, 0, most.bit_length())
    bits = max((-least - 1).bit_length(), max(most, 0).bit_length())
    return BitField(column.name, dtype, -(2**bits), bits + 1)


_LEAST_LENGTH_OF_RUNS = 3  # equal texts that stand together, on average, from which on that is used


def ranks_of(texts: pl.Series) -> tuple[Integers, pl.Series]:
    """The number of each text among the different ones in their order, shape (N,), and these.

    e.g. ["b", "a", "b"] -> [1, 0, 1], ["a", "b"]

    Args:
        texts: no nulls.
    """
    changes = (texts[1:] != texts[:-1]).arg_true().cast(pl.Int64)  # of 32 bits or 64, as Polars is built
    first = np.concatenate([np.zeros(min(len(texts), 1), np.int64), changes + 1])
    if len(first) * _LEAST_LENGTH_OF_RUNS > len(texts):
        return _ranks(texts)
    rank, different = _ranks(texts.gather(first))
    return np.repeat(rank, np.diff(first, append=len(texts))), different


def _ranks(texts: pl.Series) -> tuple[Integers, pl.Series]:
    first = first_with_same(texts.hash().to_numpy())
    if not (texts == texts.gather(first)).all():
        return (texts.rank("dense").to_numpy() - 1).astype(np.int64), texts.unique().sort()
    chosen = np.flatnonzero(first == np.arange(len(texts)))
    distinct = pl.DataFrame({_TEXT: texts.gather(chosen), NUMBER: chosen})
    ordered = distinct.sort(_TEXT, multithreaded=False)  # several of these run at once
    rank = np.empty(len(texts), np.int64)
    rank[ordered[NUMBER].to_numpy()] = np.arange(len(chosen))
    return rank.take(first), ordered[_TEXT].alias(texts.name)
