"""The counts of one part of a log by sorting one number per impression: what the plan counts, several times faster.

Where all keys are whole numbers (or dates and times, or true and false), those of an impression and its click make one
number with digits in mixed radix,

    number = ((key_1 n_2 + key_2) n_3 + ... + key_m) 2 + click,    0 <= key_i < n_i

each key taken as its distance from the smallest in its column, times in the steps that they are apart. Sorting these
numbers sorts the rows by their keys, and equal rows are runs.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import Integers
from posbias.core.counts.plan import StatisticsPlan
from posbias.core.schema import CLICK, CLICKS, IMPRESSIONS

_LARGEST = 2**63 - 1


@dataclass(frozen=True)
class _Digit:
    """A key column as one digit.

    Attributes:
        column: its values, as whole numbers.
        dtype: the type that they had.
        smallest: the least of them, which is the digit 0.
        step: what the others are multiples of from there on.
        radix: n, the largest digit and 1.
    """

    column: pl.Series
    dtype: pl.DataType
    smallest: int
    step: int
    radix: int

    @classmethod
    def of(cls, column: pl.Series) -> "_Digit | None":
        """The digit of a column; None where it holds something else than whole numbers, or nulls."""
        dtype = column.dtype
        if not (dtype.is_integer() or isinstance(dtype, pl.Date | pl.Datetime | pl.Boolean)) or column.null_count():
            return None
        whole = column.cast(pl.Int8) if isinstance(dtype, pl.Boolean) else column.to_physical()
        low, high = whole.min(), whole.max()
        if not isinstance(low, int) or not isinstance(high, int) or max(-low, high) > _LARGEST:
            return None
        step = 1
        if isinstance(dtype, pl.Datetime):  # to the microsecond, but far apart
            step = max(int(np.gcd.reduce(whole.unique().to_numpy() - low)), 1)
        return cls(whole, dtype, low, step, (high - low) // step + 1)

    def values(self, digit: Integers) -> pl.Series:
        """What digits stand for."""
        return pl.Series(self.column.name, digit * self.step + self.smallest).cast(self.dtype)


def count_packed(in_cells: pl.DataFrame, plan: StatisticsPlan) -> pl.DataFrame | None:
    """Statistics of impressions whose cells are known, sorted by the plan's keys; None where they cannot be packed.

    Args:
        in_cells: the plan's keys and `click`, as from the plan's `with_cells`.
        plan: what is counted.

    Returns:
        The keys, `impressions` and `clicks`, as the plan's `count` has them.
    """
    if plan.weighted or plan.summed or not in_cells.height:
        return None
    digits = [digit for name in plan.keys if (digit := _Digit.of(in_cells[name])) is not None]
    if len(digits) < len(plan.keys) or not _fit(digits):
        return None
    packed, scale = in_cells[CLICK].cast(pl.Int64), 2
    for digit in reversed(digits):
        packed = packed + ((digit.column.cast(pl.Int64) - digit.smallest) // digit.step) * scale
        scale *= digit.radix
    runs = packed.sort().rle().struct.unnest()
    number, length = runs["value"].to_numpy(), runs["len"].to_numpy().astype(np.int64)
    first = np.flatnonzero(np.diff(number >> 1, prepend=-1))
    rest, columns = number[first] >> 1, list[pl.Series]()
    for digit in reversed(digits):
        rest, of_column = np.divmod(rest, digit.radix)
        columns.append(digit.values(of_column))
    return pl.DataFrame(columns[::-1]).with_columns(
        pl.Series(IMPRESSIONS, np.add.reduceat(length, first)),
        pl.Series(CLICKS, np.add.reduceat(length * (number & 1), first)),
    )


def _fit(digits: list[_Digit]) -> bool:
    size = 2
    for digit in digits:
        size *= digit.radix
    return size <= _LARGEST
