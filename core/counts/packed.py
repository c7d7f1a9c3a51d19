"""The counts of one part of a log by sorting one number per impression: what the plan counts, several times faster.

Those of an impression and its click make one number with digits in mixed radix,

    number = ((key_1 n_2 + key_2) n_3 + ... + key_m) 2 + click,    0 <= key_i < n_i

where a whole number is its distance from the smallest in its column, a time its distance from the earliest in the
steps that they are apart, and a text its number among the different ones in their order, as are whole numbers that lie
too far apart (64-bit hashes). Sorting these numbers sorts the rows by their keys, and equal rows are runs. Where a log
was split, its rows may be numbers already (`posbias.core.arrays.packing`).

Counts that come piece by piece as one table, without keeping all pieces until the end.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod

import narwhals as nw
import numpy as np
import polars as pl

from posbias.core.arrays.count_table import Integers, first_of_runs, sum_rows
from posbias.core.arrays.packing import NUMBER, BitFields, ranks_of
from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.schema import CLICK, CLICKS, IMPRESSIONS


def running_total(
    pieces: Iterable[pl.DataFrame], add_up: Callable[[Sequence[pl.DataFrame]], pl.DataFrame]
) -> pl.DataFrame:
    """The total of all pieces by `add_up`, which is given a few at a time, of which the first is the total so far.

    Pieces wait until they hold more rows than that total: it is copied a logarithmic number of times, and never more
    than twice its rows and a piece wait.

    Args:
        pieces: one at least.
        add_up: adds the counts of equal keys.
    """
    totals = list[pl.DataFrame]()
    for piece in pieces:
        totals.append(piece)
        if sum(waiting.height for waiting in totals[1:]) > totals[0].height:
            totals = [add_up(totals)]
    return totals[0] if len(totals) == 1 else add_up(totals)


_LARGEST = 2**63 - 1
_VALUE = "value"


@dataclass(frozen=True)
class _Digit:
    """A key column as one digit."""

    digit: Callable[[], Integers]  # of each row, shape (N,), from 0
    radix: int  # n, the largest digit and 1
    values: Callable[[Integers], pl.Series]  # what digits stand for
    ranked: bool  # whether the digit is the number of a value among the different ones, not a distance


def _digit_of(column: pl.Series) -> _Digit | None:
    """The digit of a column; None where it holds something else than numbers and text, or nulls."""
    dtype = column.dtype
    if column.null_count():
        return None
    if isinstance(dtype, pl.String):
        rank, different = ranks_of(column)
        return _Digit(lambda: rank, len(different), different.gather, ranked=True)
    if not (dtype.is_integer() or isinstance(dtype, pl.Date | pl.Datetime | pl.Boolean)):
        return None
    whole = column.cast(pl.Int8) if isinstance(dtype, pl.Boolean) else column.to_physical()
    low, high = whole.min(), whole.max()
    if not isinstance(low, int) or not isinstance(high, int):
        return None
    if max(-low, high) > _LARGEST:
        return _rank_of(column)
    step = 1
    if isinstance(dtype, pl.Datetime):  # to the microsecond, but far apart
        step = max(int(np.gcd.reduce(whole.unique().to_numpy() - low)), 1)

    def distance() -> Integers:
        """Whole numbers, dates and times, true and false, by their distance from the smallest, in steps."""
        from_low = whole.cast(pl.Int64) - low
        return (from_low if step == 1 else from_low // step).to_numpy()

    def values(digit: Integers) -> pl.Series:
        return pl.Series(column.name, digit * step + low).cast(dtype)

    return _Digit(distance, (high - low) // step + 1, values, ranked=False)


def _rank_of(column: pl.Series) -> _Digit:
    """Whole numbers by their number among the different ones."""
    different = column.unique().sort()
    numbered = pl.DataFrame({_VALUE: different}).with_row_index(NUMBER)
    joined = pl.DataFrame({_VALUE: column}).join(numbered, on=_VALUE, how="left", maintain_order="left")
    rank = joined[NUMBER].to_numpy().astype(np.int64)
    return _Digit(lambda: rank, len(different), different.gather, ranked=True)


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
    digits = _digits(in_cells.select(plan.keys))
    if digits is None:
        return None
    packed, scale = in_cells[CLICK].to_numpy().astype(np.int64), 2
    for digit in reversed(digits):
        packed += digit.digit() * scale
        scale *= digit.radix
    counted = count_equal(pl.Series(packed))
    rest, columns = counted[NUMBER].to_numpy() >> 1, list[pl.Series]()
    for digit in reversed(digits):
        rest, of_column = np.divmod(rest, digit.radix)
        columns.append(digit.values(of_column))
    return pl.DataFrame([*columns[::-1], counted[IMPRESSIONS], counted[CLICKS]])


def count_numbers(pieces: Iterable[pl.Series], fields: BitFields, plan: StatisticsPlan) -> pl.DataFrame:
    """Statistics of impressions that are numbers already, sorted by the plan's keys.

    Args:
        pieces: numbers of impressions, in any order; `click` is the lowest bit. Memory holds one piece, and the counts.
        fields: what the bits say.
        plan: what is counted: its cells do not depend on other impressions, and it adds up no weights.
    """
    counted = running_total((count_equal(numbers) for numbers in pieces), _add_up)
    keys = [field for field in fields.fields if field.name != CLICK]
    rows = counted.select(*(field.value for field in keys), IMPRESSIONS, pl.col(CLICKS).alias(CLICK))
    in_cells = plan.with_cells_in_memory(rows)
    if plan.keys == tuple(field.name for field in keys) and not plan.position_bins:
        return in_cells.rename({CLICK: CLICKS})
    summed = replace(plan, summed=True).count_in_cells(nw.from_native(in_cells.lazy()))
    return summed.to_native().sort(plan.keys).collect()


def _add_up(counts: Sequence[pl.DataFrame]) -> pl.DataFrame:
    return pl.concat(counts).group_by(NUMBER).sum().sort(NUMBER)


def count_equal(numbers: pl.Series) -> pl.DataFrame:
    """Numbers that are equal but for their lowest bit, as one: ascending, with how many they are and how often it is 1.

    Returns:
        `number`, its lowest bit 0, `impressions` and `clicks` (Int64).
    """
    ascending = numbers.sort(multithreaded=False).to_numpy()  # several of these run at once
    without_click = ascending >> 1
    first = first_of_runs(without_click)
    start = np.append(first, len(ascending))
    return pl.DataFrame(
        {
            NUMBER: without_click.take(first) << 1,
            IMPRESSIONS: np.diff(start),
            CLICKS: sum_rows(ascending & 1, start).astype(np.int64),
        }
    )


def _digits(keys: pl.DataFrame) -> list[_Digit] | None:
    """The digits of the keys; None where they do not make one number."""
    digits = [digit for column in keys if (digit := _digit_of(column)) is not None]
    if len(digits) < keys.width:
        return None
    widest_first = sorted(range(len(digits)), key=lambda number: -digits[number].radix)
    for number in widest_first:  # their numbers among the different ones take fewer digits
        if _fit(digits):
            break
        if not digits[number].ranked:
            digits[number] = _rank_of(keys.to_series(number))
    return digits if _fit(digits) else None


def _fit(digits: Sequence[_Digit]) -> bool:
    return 2 * prod(digit.radix for digit in digits) <= _LARGEST
