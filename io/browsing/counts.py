"""Statistics as pages of one impression each, for click models that need to know no more of a page."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import CountTable
from posbias.core.browsing.frames import UNIT
from posbias.core.counts.sufficient_statistics import SIGNATURE
from posbias.core.counts.sums_of_weights import add_up_weights
from posbias.core.schema import CLICKS, IMPRESSIONS, PAIR, POSITION, PREVIOUS_CLICK, WEIGHT
from posbias.io.browsing.pages import LogPages, Units
from posbias.io.counting.count import CountedLog, PairsOfPart
from posbias.io.engines.engine import Parts
from posbias.io.temporary.kept import KeptFrame, keep

_SHOWN, _POSITION = "shown 0", "position 0"


def rows_of_counts(counted: CountedLog, folder: Path) -> list[KeptFrame]:
    """What statistics count, part by part: `query`, `doc`, the cell columns, `impressions`, `clicks`.

    Args:
        counted: statistics. Rows of one document, such as those of its contexts, add up.
        folder: a directory of ours.
    """
    table, cells = counted.statistics.pair_signatures, counted.statistics.cells.select(counted.plan.model.cell_columns)
    return [keep(_rows_of(part, table, cells), folder, f"rows-{part.number:05d}") for part in counted.parts]


def _rows_of(part: PairsOfPart, table: CountTable, cells: pl.DataFrame) -> pl.DataFrame:
    pairs = part.kept.load()
    counts = table.take(part.signature[pairs[SIGNATURE].to_numpy()].astype(np.int64))
    return (
        pairs.select(PAIR)[counts.unit_of_entry]
        .hstack(cells[counts.cell])
        .with_columns(pl.Series(IMPRESSIONS, counts.impressions), pl.Series(CLICKS, counts.clicks))
    )


def bring_counts(parts: Parts, units: Units, columns: Sequence[str], folder: Path | None) -> LogPages:
    """Counts with the numbers of their units, each impression a page of its own.

    Args:
        parts: counts, as from `rows_of_counts`, the same parts in which the units were numbered.
        units: the numbers.
        columns: those beside the pair's that are looked at.
        folder: a directory of ours for what does not stay in memory; None keeps all there.
    """
    found = list(parts.map(partial(_rows_alone_of, units=units, columns=tuple(columns), folder=folder)))
    sums = [frame.scan().select(pl.max(_POSITION), pl.sum(WEIGHT)).collect().row(0) for frame in found]
    return LogPages(
        parts=tuple((frame,) for frame in found),
        n_units=units.number,
        n_positions=max((deepest for deepest, _ in sums if deepest is not None), default=1),
        n_impressions=round(sum(impressions for _, impressions in sums)),
        n_sessions=0,
    )


def _rows_alone_of(
    part: int, statistics: pl.LazyFrame, units: Units, columns: tuple[str, ...], folder: Path | None
) -> KeptFrame:
    """Rows as from `rows_alone`: one of those that were clicked and one of the others, where there are any."""
    above = pl.col(PREVIOUS_CLICK) if PREVIOUS_CLICK in columns else pl.lit(0).alias(PREVIOUS_CLICK)
    keys = (UNIT, POSITION, PREVIOUS_CLICK)
    counts = (
        statistics.join(units.of_part(part), on=list(units.columns), how="left", nulls_equal=True)
        .select(UNIT, pl.col(POSITION).cast(pl.Int32), above.cast(pl.Int32), IMPRESSIONS, CLICKS)
        .collect(engine="streaming")
    )
    once = add_up_weights(counts.with_columns(pl.col(IMPRESSIONS, CLICKS).cast(pl.Float64)), keys)
    place = (pl.col(POSITION).alias(_POSITION), PREVIOUS_CLICK)
    rows = pl.concat(
        once.select((2 * pl.col(UNIT) + click).cast(pl.Int64).alias(_SHOWN), *place, weight.alias(WEIGHT))
        for click, weight in ((0, pl.col(IMPRESSIONS) - pl.col(CLICKS)), (1, pl.col(CLICKS)))
    )
    rows = rows.filter(pl.col(WEIGHT) > 0).sort(pl.col(_SHOWN) // 2, _POSITION, PREVIOUS_CLICK, _SHOWN)
    return keep(rows, folder, f"counts-{part:05d}")
