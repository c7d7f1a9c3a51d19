"""Rows of whole numbers as one number of 64 bits each, in which every column has bits of its own.

    number = sum over columns of (value - low) / step 2^shift,    0 <= (value - low) / step < 2^bits

for whole numbers, true and false, dates (days since 1970) and times (in steps in which they are apart).
Numbers compare as rows do, column by column, so that sorting them sorts the rows, and equal rows are equal numbers.

Texts as numbers: equal texts, equal numbers, so that a column is sorted and grouped as numbers are.

Exact: a hash proposes which texts are equal, and each text is compared with the first one of its hash. Where two
differ, Polars ranks them, which is slower.
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
"""The column that holds the numbers."""

_TEXT = "text"
WORD_BITS = 64
_SPARE_BITS = 2  # where there is room: a column may hold four times the largest value that was seen
_QUARTER_HOUR = 15 * 60 * 1_000_000  # in microseconds


@dataclass(frozen=True)
class BitField:
    """The bits of one column."""

    name: str  # the column
    dtype: pl.DataType  # its type
    low: int  # the least value that it may hold
    bits: int  # how many it takes, 63 at most
    step: int = 1  # between values
    shift: int = 0  # how many bits are below them

    @property
    def fits(self) -> pl.Expr:
        """Whether a value has its place in the bits; null for null."""
        fits = self._steps_above_low < _unsigned(2**self.bits)
        if self.step == 1:
            return fits
        return fits & (self._as_integer >= self.low) & ((self._as_integer - self.low) % self.step == 0)

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
        """How many steps a value is above the least one; without steps, that is large for one below it, modulo 2^64."""
        steps = self._as_integer.cast(pl.UInt64, wrap_numerical=True)
        steps = steps + _unsigned(-self.low) if self.low else steps
        return steps if self.step == 1 else steps // _unsigned(self.step)

    @property
    def _as_integer(self) -> pl.Expr:
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
    return pl.lit(number % 2**WORD_BITS, pl.UInt64)


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
    """Fields one above the other, the first one the most significant."""
    above = accumulate((field.bits for field in reversed(fields)), initial=0)
    placed = [replace(field, shift=shift) for field, shift in zip(reversed(fields), above, strict=False)]
    return BitFields(tuple(reversed(placed)))


def exact_field(column: pl.Series) -> BitField:
    """The fewest bits for the values of a column, which are whole numbers, times, true or false; 64 are too many."""
    whole = column.cast(pl.Int8) if isinstance(column.dtype, pl.Boolean) else column.to_physical()
    low, high = cast("tuple[int, int]", (whole.min(), whole.max()))
    if max(-low, high) >= 2 ** (WORD_BITS - 1):
        return BitField(column.name, column.dtype, low, WORD_BITS)
    step = 1
    if isinstance(column.dtype, pl.Datetime):  # to the microsecond, but far apart
        step = max(int(np.gcd.reduce(whole.unique().to_numpy() - low)), 1)
    return BitField(column.name, column.dtype, low, ((high - low) // step).bit_length(), step)


def _roomy_field(column: pl.Series) -> BitField | None:
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
    if dtype.is_temporal():  # as far from what was seen on both sides as that is long
        span = most - least
        return BitField(column.name, dtype, (least - span) * step, (3 * span).bit_length(), step)
    if least >= 0:
        return BitField(column.name, dtype, 0, most.bit_length(), step)
    bits = max((-least - 1).bit_length(), max(most, 0).bit_length())
    return BitField(column.name, dtype, -(2**bits) * step, bits + 1, step)


_LEAST_LENGTH_OF_RUNS = 3  # equal texts that stand together, on average, from which on that is used


def dense_ranks(texts: pl.Series) -> tuple[Integers, pl.Series]:
    """The number of each text or number among the different ones in their order, shape (N,), and these.

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
