"""Pack the columns of a row into one 64-bit integer, with a bit field for each column, and unpack it.

    number = sum over columns of (value - low) / step 2^shift,    0 <= (value - low) / step < 2^bits

for integers, booleans, dates (days since 1970) and times (in multiples of their common step). Sorting the numbers sorts
the rows column by column, and equal rows have equal numbers.

`dense_ranks` replaces texts by their ranks. It is exact: texts with equal hashes are compared with the first of them,
and if two differ, Polars ranks the column, which is slower.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import accumulate
from operator import add
from typing import cast

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import Integers, first_equal_index

NUMBER = "number"
"""Column of packed numbers."""

_TEXT = "text"
WORD_BITS = 64
_SPARE_BITS = 2  # if there is room, so that a column may hold four times the largest value of the sample
_QUARTER_HOUR = 15 * 60 * 1_000_000  # in microseconds


@dataclass(frozen=True)
class BitField:
    """Bit field of one column."""

    name: str
    dtype: pl.DataType
    low: int  # smallest value
    bits: int  # number of bits, at most 63
    step: int = 1  # distance between values
    shift: int = 0  # number of bits below the field

    @property
    def fits(self) -> pl.Expr:
        """Whether a value can be packed; null for null."""
        fits = self._steps_above_low < _unsigned(2**self.bits)
        if self.step == 1:
            return fits
        return fits & (self._as_integer >= self.low) & ((self._as_integer - self.low) % self.step == 0)

    @property
    def shifted(self) -> pl.Expr:
        """Value shifted to its bits, if it fits."""
        return self._steps_above_low * _unsigned(2**self.shift) if self.shift else self._steps_above_low

    @property
    def value(self) -> pl.Expr:
        """Unpacked value of the column from `number`."""
        bits = pl.col(NUMBER)
        if self.shift:
            bits = bits // pl.lit(2**self.shift, pl.UInt64)
        if self.shift + self.bits < WORD_BITS:
            bits = bits & pl.lit(2**self.bits - 1, pl.UInt64)
        whole = bits.cast(pl.Int64) if isinstance(self.dtype, pl.Datetime) or self.low else bits
        if self.step > 1:
            whole *= self.step
        if self.low:
            whole += self.low
        if isinstance(self.dtype, pl.Date):
            whole = whole.cast(pl.Int32)
        return whole.cast(self.dtype).alias(self.name)

    @property
    def _steps_above_low(self) -> pl.Expr:
        """Number of steps above `low`, modulo 2^64, so that a value below `low` gives a large number if step is 1."""
        steps = self._as_integer.cast(pl.UInt64, wrap_numerical=True)
        steps = steps + _unsigned(-self.low) if self.low else steps
        return steps if self.step == 1 else steps // _unsigned(self.step)

    @property
    def _as_integer(self) -> pl.Expr:
        """Value as a 64-bit integer; null if it does not fit."""
        column = pl.col(self.name)
        if isinstance(self.dtype, pl.Date | pl.Datetime):
            return column.to_physical()
        wide = isinstance(self.dtype, pl.Int128 | pl.UInt128)
        return column.cast(pl.Int64, strict=False) if wide else column


@dataclass(frozen=True)
class BitFields:
    """Bit fields of all columns of a row."""

    fields: tuple[BitField, ...]  # one per column, the most significant first

    @property
    def names(self) -> tuple[str, ...]:
        """Column names, the most significant first."""
        return tuple(field.name for field in self.fields)

    @property
    def fit(self) -> pl.Expr:
        """Whether a row can be packed; never null."""
        return pl.all_horizontal(field.fits for field in self.fields).fill_null(value=False)

    @property
    def number(self) -> pl.Expr:
        """Packed number of a row that fits."""
        return reduce(add, (field.shifted for field in self.fields)).alias(NUMBER)

    @property
    def values(self) -> list[pl.Expr]:
        """Unpacked columns from `number`."""
        return [field.value for field in self.fields]


def _unsigned(number: int) -> pl.Expr:
    return pl.lit(number % 2**WORD_BITS, pl.UInt64)


def bit_fields(seen: pl.DataFrame, growing: Sequence[str], known: Mapping[str, int]) -> BitFields | None:
    """Choose bit fields for rows of which only a sample is known.

    Args:
        seen: the sample, columns in the order of their bits, the most significant first.
        growing: columns that may hold far larger values than the sample; they share the bits that are left.
        known: number of bits of columns for which it is known.

    Returns:
        None if a column holds anything but integers, booleans, dates and times, or if 64 bits do not suffice.
    """
    fields = list[BitField]()
    for column in seen:
        bits = known.get(column.name)
        field = _roomy_field(column) if bits is None else BitField(column.name, column.dtype, 0, bits)
        if field is None:
            return None
        fields.append(field)
    left = WORD_BITS - sum(field.bits for field in fields)
    if left < 0 or not fields or max(field.bits for field in fields) == WORD_BITS:
        return None
    spare = min(_SPARE_BITS, left // len(fields))
    shared = (left - spare * len(fields)) // max(len(growing), 1)
    for number, field in enumerate(fields):
        more = 0 if field.name in known else spare + (shared if field.name in growing else 0)
        bits = min(field.bits + more, WORD_BITS - 1)
        low = -(2 ** (bits - 1)) if field.low and field.dtype.is_integer() else field.low
        fields[number] = replace(field, low=low, bits=bits)
    return stack_fields(fields)


def stack_fields(fields: Sequence[BitField]) -> BitFields:
    """Assign the shifts of the fields, the first the most significant."""
    above = accumulate((field.bits for field in reversed(fields)), initial=0)
    placed = [replace(field, shift=shift) for field, shift in zip(reversed(fields), above, strict=False)]
    return BitFields(tuple(reversed(placed)))


def exact_field(column: pl.Series) -> BitField:
    """Return the smallest bit field for exactly the values of a column; 64 bits if they do not fit into 63."""
    whole = column.cast(pl.Int8) if isinstance(column.dtype, pl.Boolean) else column.to_physical()
    low, high = cast("tuple[int, int]", (whole.min(), whole.max()))
    if max(-low, high) >= 2 ** (WORD_BITS - 1):
        return BitField(column.name, column.dtype, low, WORD_BITS)
    step = 1
    if isinstance(column.dtype, pl.Datetime):  # in microseconds, of which hours or days differ by large multiples
        step = max(int(np.gcd.reduce(whole.unique().to_numpy() - low)), 1)
    return BitField(column.name, column.dtype, low, ((high - low) // step).bit_length(), step)


def _roomy_field(column: pl.Series) -> BitField | None:
    """Return a bit field with room for values beyond those of a sample; None for other types or an empty sample."""
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
    if dtype.is_temporal():  # room for as long a time again before the sample and after it
        span = most - least
        return BitField(column.name, dtype, (least - span) * step, (3 * span).bit_length(), step)
    if least >= 0:
        return BitField(column.name, dtype, 0, most.bit_length(), step)
    bits = max((-least - 1).bit_length(), max(most, 0).bit_length())
    return BitField(column.name, dtype, -(2**bits) * step, bits + 1, step)


_LEAST_LENGTH_OF_RUNS = 3  # mean length of runs of equal texts from which only the first of each run is ranked


def dense_ranks(texts: pl.Series) -> tuple[Integers, pl.Series]:
    """Return the dense rank of each value from 0, shape (N,), and the distinct values, ascending.

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
    first = first_equal_index(texts.hash().to_numpy())
    if not (texts == texts.gather(first)).all():
        return (texts.rank("dense").to_numpy() - 1).astype(np.int64), texts.unique().sort()
    chosen = np.flatnonzero(first == np.arange(len(texts)))
    distinct = pl.DataFrame({_TEXT: texts.gather(chosen), NUMBER: chosen})
    ordered = distinct.sort(_TEXT, multithreaded=False)  # several of these run at once
    rank = np.empty(len(texts), np.int64)
    rank[ordered[NUMBER].to_numpy()] = np.arange(len(chosen))
    return rank.take(first), ordered[_TEXT].alias(texts.name)
