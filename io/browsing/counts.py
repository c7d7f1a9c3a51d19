"""Statistics as pages of one impression each, for click models that need to know no more of a page."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import CountTable
from posbias.core.browsing.batch import PageBatch
from posbias.core.browsing.frames import UNIT
from posbias.core.counts.sufficient_statistics import SIGNATURE
from posbias.core.schema import CLICKS, IMPRESSIONS, PAIR, POSITION, PREVIOUS_CLICK
from posbias.io.browsing.pages import Units
from posbias.io.counting.count import CountedLog, PairsOfPart
from posbias.io.engines.engine import Parts
from posbias.io.temporary.kept import KeptFrame, keep


@dataclass(frozen=True)
class CountedRows:
    """Impressions that are the same, with their numbers, part by part.

    Attributes:
        parts: UNIT, `position`, `previous_click` (0 where statistics lack it), `impressions`, `clicks` of each part.
        n_units: J.
        n_positions: K.
    """

    parts: tuple[KeptFrame, ...]
    n_units: int
    n_positions: int

    def __iter__(self) -> Iterator[PageBatch]:
        """The batches, always in the same order."""
        return (_as_batch(frame.load()) for frame in self.parts)


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


def bring_counts(parts: Parts, units: Units, columns: Sequence[str], folder: Path | None) -> CountedRows:
    """Counts with the numbers of their units.

    Args:
        parts: counts, as from `rows_of_counts`, the same parts in which the units were numbered.
        units: the numbers.
        columns: those beside the pair's that are looked at.
        folder: a directory of ours for what does not stay in memory; None keeps all there.
    """
    found = list(parts.map(partial(_counts_of, units=units, columns=tuple(columns), folder=folder)))
    deepest = [frame.scan().select(pl.max(POSITION)).collect().item() for frame in found]
    return CountedRows(tuple(found), units.number, max((k for k in deepest if k is not None), default=1))


def _counts_of(
    part: int, statistics: pl.LazyFrame, units: Units, columns: tuple[str, ...], folder: Path | None
) -> KeptFrame:
    above = pl.col(PREVIOUS_CLICK) if PREVIOUS_CLICK in columns else pl.lit(0, pl.Int64).alias(PREVIOUS_CLICK)
    keys = (UNIT, POSITION, PREVIOUS_CLICK)
    counts = (
        statistics.join(units.of_part(part), on=list(units.columns), how="left", nulls_equal=True)
        .select(UNIT, pl.col(POSITION).cast(pl.Int64), above.cast(pl.Int64), IMPRESSIONS, CLICKS)
        .group_by(keys)
        .agg(pl.col(IMPRESSIONS, CLICKS).sum().cast(pl.Float64))
        .sort(keys)
    )
    return keep(counts.collect(engine="streaming"), folder, f"counts-{part:05d}")


def _as_batch(counts: pl.DataFrame) -> PageBatch:
    """Two pages a row, one that was clicked and one that was not; those that did not occur are left out."""
    clicks = counts[CLICKS].to_numpy()
    weight = np.concatenate([clicks, counts[IMPRESSIONS].to_numpy() - clicks])
    seen = np.flatnonzero(weight > 0)
    row = seen % max(len(clicks), 1)
    unit, position, above = (counts[name].to_numpy()[row, np.newaxis] for name in (UNIT, POSITION, PREVIOUS_CLICK))
    click = (seen < len(clicks))[:, np.newaxis]
    return PageBatch(unit, position, click, np.ones(click.shape, dtype=np.bool_), weight[seen], above)
