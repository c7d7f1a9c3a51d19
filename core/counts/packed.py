"""The counts of one part of a log by sorting one number per impression: what the plan counts, several times faster.

Those of an impression and its click make one number (`posbias.core.arrays.packing`), where a whole number is its
distance from the smallest in its column, a time its distance from the earliest in the steps that they are apart, and a
text its number among the different ones in their order, as are whole numbers that lie too far apart (64-bit hashes).
Sorting these numbers sorts the rows by their keys, and equal rows are runs. Where a log was split, its rows may be
numbers already.

Counts that come piece by piece as one table, without keeping all pieces until the end.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import narwhals as nw
import numpy as np
import polars as pl

from posbias.core.arrays.count_table import first_of_runs, sum_rows
from posbias.core.arrays.packing import NUMBER, WORD_BITS, BitField, BitFields, exact_field, in_place, ranks_of
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


def count_packed(in_cells: pl.DataFrame, plan: StatisticsPlan) -> pl.DataFrame | None:
    """Statistics of impressions whose cells are known, sorted by the plan's keys; None where they cannot be packed.

    Args:
        in_cells: the plan's keys and `click`, as from the plan's `with_cells`.
        plan: what is counted.

    Returns:
        The keys, `impressions` and `clicks`, as the plan's `count` has them.
    """
    keys, different = in_cells.select(plan.keys), dict[str, pl.Series]()
    if plan.weighted or plan.summed or not keys.height or not all(map(_can_be_packed, keys)):
        return None

    def fewer_bits(column: pl.Series) -> BitField:
        """The numbers of a column's values among the different ones take its place."""
        rank, different[column.name] = ranks_of(column)
        keys.replace_column(keys.get_column_index(column.name), pl.Series(column.name, rank))
        return exact_field(keys[column.name])

    fields = [fewer_bits(key) if isinstance(key.dtype, pl.String) else exact_field(key) for key in keys]
    for number in sorted(range(len(fields)), key=lambda number: -fields[number].bits):
        if sum(field.bits for field in fields) >= WORD_BITS and fields[number].name not in different:
            fields[number] = fewer_bits(keys.to_series(number))
    if sum(field.bits for field in fields) >= WORD_BITS:
        return None
    packed = in_place([*fields, BitField(CLICK, in_cells[CLICK].dtype, 0, 1)])
    counted = count_equal(keys.with_columns(in_cells[CLICK]).select(packed.number).to_series())
    counted = counted.select(*packed.values[:-1], IMPRESSIONS, CLICKS)
    return counted.with_columns(values.gather(counted[name]) for name, values in different.items())


def _can_be_packed(key: pl.Series) -> bool:
    dtype = key.dtype
    packed = dtype.is_integer() or isinstance(dtype, pl.String | pl.Date | pl.Datetime | pl.Boolean)
    return packed and not key.null_count()


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
