"""Pages of a log as matrices, part by part, to fit and to evaluate click models.

A unit has parameters of its own, such as a pair's attractiveness. Units are numbered over parts in order, and sorted
within a part. Pages that do not fit into memory are on disk, and read in each pass.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from posbias.core.counts.counting_plan import add_up_weights
from posbias.core.counts.sufficient_statistics import SIGNATURE
from posbias.core.errors import SchemaError
from posbias.core.models.page_matrices import (
    UNIT,
    Certain,
    PageBatch,
    Signatures,
    distinct_pages,
    find_signatures,
    small_batches,
    uncertain_pages,
)
from posbias.core.schema import CLICK, CLICKS, IMPRESSIONS, PAIR, PERIOD, POSITION, PREVIOUS_CLICK, SESSION, WEIGHT
from posbias.core.training.weights import is_in_validation
from posbias.io.counting.count import CountedLog
from posbias.io.engines.engine import Parts
from posbias.io.places.temporary import KeptFrame, keep

_SHOWN, _POSITION = "shown 0", "position 0"  # columns of the top result, as in `distinct_pages`

PageFilter = Callable[[pl.LazyFrame], pl.LazyFrame]
"""Select impressions of a part: those of some pages, or the top of each page."""


@dataclass(frozen=True)
class Units:
    """Numbered units.

    Attributes:
        columns: key of a unit.
        parts: unique keys of each part, sorted; a unit is in one part only.
        first: number of the first unit of each part.
        number: number of units, J.
    """

    columns: tuple[str, ...]
    parts: tuple[KeptFrame, ...]
    first: tuple[int, ...]
    number: int

    def scan(self) -> pl.LazyFrame:
        """Scan the keys and numbers (UNIT, Int64) of all units."""
        return pl.concat(self.scan_part(part) for part in range(len(self.parts)))

    def scan_part(self, part: int) -> pl.LazyFrame:
        """Scan the keys and numbers of the units of a part."""
        return self.parts[part].scan().with_row_index(UNIT).with_columns(pl.col(UNIT).cast(pl.Int64) + self.first[part])


@dataclass(frozen=True)
class LogPages:
    """Pages of a log; iteration yields batches, in the same order every time.

    Attributes:
        parts: unique pages of each part, grouped by length; see `distinct_pages`.
        n_units: J.
        n_positions: largest position, K.
        n_impressions: impressions of all pages.
        n_sessions: number of pages.
    """

    parts: tuple[tuple[KeptFrame, ...], ...]
    n_units: int
    n_positions: int
    n_impressions: int
    n_sessions: int
    _signatures: dict[tuple[str, ...], Signatures] = field(
        default_factory=dict[tuple[str, ...], Signatures], init=False, repr=False, compare=False
    )

    _uncertain: "dict[Certain, LogPages]" = field(
        default_factory=dict["Certain", "LogPages"], init=False, repr=False, compare=False
    )

    def __iter__(self) -> Iterator[PageBatch]:
        """Yield the batches of all parts."""
        return (batch for frames in self.parts for batch in _Batches(frames))

    def signatures(self, columns: Sequence[str]) -> Signatures:
        """Signatures of units with equal rows, cached; see `posbias.core.models.page_matrices`."""
        signatures = self._signatures.get(tuple(columns))
        if signatures is None:
            parts = (_Batches(frames) for frames in self.parts if frames)
            keep = partial(self._keep, columns=columns)
            signatures = find_signatures(parts, columns, self.n_units, self.n_positions, keep)
            self._signatures[tuple(columns)] = signatures
        return signatures

    def uncertain(self, certain: Certain) -> "LogPages":
        """Pages without certain impressions; cached for the latest `certain`."""
        uncertain = self._uncertain.get(certain)
        if uncertain is None:
            self._uncertain.clear()
            parts = list[tuple[KeptFrame, ...]]()
            for frames in self.parts:
                rest = enumerate(uncertain_pages(_Batches(frames), certain))
                parts.append(tuple(_keep_beside(frames[0], pages, f"uncertain-{at:04d}") for at, pages in rest))
            self._uncertain[certain] = uncertain = replace(self, parts=tuple(parts))
        return uncertain

    def _keep(self, rows: pl.DataFrame, number: int, columns: Sequence[str]) -> Iterable[PageBatch]:
        """Store rows of signatures beside the pages."""
        beside = next(frame for frames in self.parts for frame in frames)
        return _Batches((_keep_beside(beside, rows, f"{'-'.join(columns)}-{number:05d}"),))


def _keep_beside(frame: KeptFrame, rows: pl.DataFrame, name: str) -> KeptFrame:
    """Store rows as a frame is stored: in memory, or on disk in the same directory."""
    place = frame.place
    return KeptFrame(rows) if isinstance(place, pl.DataFrame) else keep(rows, place.parent, f"{place.stem}-{name}")


@dataclass(frozen=True)
class _Batches:
    """Batches of pages, read anew in each iteration."""

    frames: Sequence[KeptFrame]

    def __iter__(self) -> Iterator[PageBatch]:
        return (batch for frame in self.frames for batch in small_batches(frame.load()))


def number_units(parts: Parts, columns: Sequence[str], page_filter: PageFilter, folder: Path | None) -> Units:
    """Number the units of a log.

    Args:
        parts: canonical impressions.
        columns: key of a unit.
        page_filter: selects impressions.
        folder: directory for frames on disk; None retains them in memory.
    """
    kept = list(parts.map(partial(_units_of, columns=tuple(columns), page_filter=page_filter, folder=folder)))
    first, number = list[int](), 0
    for _, size in kept:
        first.append(number)
        number += size
    return Units(tuple(columns), tuple(frame for frame, _ in kept), tuple(first), number)


def _units_of(
    part: int, impressions: pl.LazyFrame, columns: tuple[str, ...], page_filter: PageFilter, folder: Path | None
) -> tuple[KeptFrame, int]:
    units = page_filter(impressions).select(columns).unique().sort(columns).collect(engine="streaming")
    return keep(units, folder, f"units-{len(columns)}-{part:05d}"), units.height


_PagesOfPart = tuple[list[tuple[KeptFrame, ...]], int, int, int]
"""Frames by numbering, the largest position, and the numbers of impressions and sessions."""


def numbered_pages(
    parts: Parts,
    units: Sequence[Units],
    page_filter: PageFilter,
    folder: Path | None,
    name: str,
    *,
    same_parts: bool = True,
    by_first_unit: bool = True,
) -> list[LogPages]:
    """Read the pages of a log in several numberings of units, in equal order; unknown units have number J.

    Args:
        parts: canonical impressions.
        units: numberings.
        page_filter: selects impressions.
        folder: directory for frames on disk; None retains them in memory.
        name: prefix of file names.
        same_parts: whether units were numbered in the same parts.
        by_first_unit: sort pages by their first unit, for fast look-ups.
    """
    work = partial(_pages_of_part, units=tuple(units), page_filter=page_filter, folder=folder, name=name)
    work = partial(work, same_parts=same_parts, by_first_unit=by_first_unit)
    parts_of_pages = list(parts.map(work))
    n_positions = max((deepest for _, deepest, _, _ in parts_of_pages), default=1)
    totals = n_positions, sum(rows for _, _, rows, _ in parts_of_pages), sum(number for *_, number in parts_of_pages)
    return [
        LogPages(tuple(frames[at] for frames, *_ in parts_of_pages), numbering.number, *totals)
        for at, numbering in enumerate(units)
    ]


def _pages_of_part(
    part: int,
    impressions: pl.LazyFrame,
    units: tuple[Units, ...],
    page_filter: PageFilter,
    folder: Path | None,
    name: str,
    *,
    same_parts: bool,
    by_first_unit: bool,
) -> _PagesOfPart:
    rows = page_filter(impressions)
    kept = [SESSION, POSITION, CLICK, *([WEIGHT] if WEIGHT in rows.collect_schema() else [])]
    columns = [f"{UNIT} {number}" for number in range(len(units))]  # one per numbering
    numbered = rows.select(*dict.fromkeys([*(key for numbering in units for key in numbering.columns), *kept]))
    for column, numbering in zip(columns, units, strict=True):
        ids = (numbering.scan_part(part) if same_parts else numbering.scan()).rename({UNIT: column})
        numbered = numbered.join(ids, on=list(numbering.columns), how="left", nulls_equal=True)
        numbered = numbered.with_columns(pl.col(column).fill_null(numbering.number))
    table = numbered.select(*kept, *columns).collect(engine="streaming")
    if not table.height:
        return [() for _ in units], 1, 0, 0
    frames: list[list[KeptFrame]] = [[] for _ in units]
    for place, pages in enumerate(distinct_pages(table, columns)):
        for number, frame in enumerate(pages):
            ordered = frame.sort(_SHOWN, maintain_order=True) if by_first_unit else frame
            frames[number].append(keep(ordered, folder, f"{name}-{number}-{part:05d}-{place:04d}"))
    deepest = int(table.select(pl.max(POSITION)).item())
    return [*map(tuple, frames)], deepest, table.height, int(table[SESSION].n_unique())


def rows_of_counts(counted: CountedLog, folder: Path) -> list[KeptFrame]:
    """Write counts as rows, part by part: `query`, `doc`, the cell columns, `impressions`, `clicks`.

    Args:
        counted: statistics. Counts of a pair in several contexts are separate rows, to be added up.
        folder: directory for the frames.
    """
    table, cells = counted.statistics.pair_signatures, counted.statistics.cells.select(counted.plan.model.cell_columns)
    kept = list[KeptFrame]()
    for part in counted.parts:
        pairs = part.kept.load()
        counts = table.take(part.signature[pairs[SIGNATURE].to_numpy()].astype(np.int64))
        rows = pairs.select(PAIR)[counts.unit_of_entry].hstack(cells[counts.cell])
        rows = rows.with_columns(pl.Series(IMPRESSIONS, counts.impressions), pl.Series(CLICKS, counts.clicks))
        kept.append(keep(rows, folder, f"rows-{part.number:05d}"))
    return kept


def counts_as_pages(parts: Parts, units: Units, columns: Sequence[str], folder: Path | None) -> LogPages:
    """Read counts as pages of one impression each, weighted by their number.

    Args:
        parts: counts as from `rows_of_counts`, in the parts in which units were numbered.
        units: numbered units.
        columns: cell columns of the model: `position`, and `previous_click` if it matters.
        folder: directory for frames on disk; None retains them in memory.
    """
    frames = list(parts.map(partial(_single_result_pages, units=units, columns=tuple(columns), folder=folder)))
    sums = [frame.scan().select(pl.max(_POSITION), pl.sum(WEIGHT)).collect().row(0) for frame in frames]
    return LogPages(
        parts=tuple((frame,) for frame in frames),
        n_units=units.number,
        n_positions=max((deepest for deepest, _ in sums if deepest is not None), default=1),
        n_impressions=round(sum(impressions for _, impressions in sums)),
        n_sessions=0,
    )


def _single_result_pages(
    part: int, statistics: pl.LazyFrame, units: Units, columns: tuple[str, ...], folder: Path | None
) -> KeptFrame:
    """Two rows per count: clicked and unclicked impressions, each weighted by its number; none of weight 0."""
    above = pl.col(PREVIOUS_CLICK) if PREVIOUS_CLICK in columns else pl.lit(0).alias(PREVIOUS_CLICK)
    keys = (UNIT, POSITION, PREVIOUS_CLICK)
    counts = (
        statistics.join(units.scan_part(part), on=list(units.columns), how="left", nulls_equal=True)
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


_N = "posbias_sessions"


def all_pages(impressions: pl.LazyFrame) -> pl.LazyFrame:
    """Select all impressions."""
    return impressions


def up_to_position(impressions: pl.LazyFrame, deepest: int) -> pl.LazyFrame:
    """Select the impressions of each page down to a position."""
    return impressions.filter(pl.col(POSITION) <= deepest)


def by_session(impressions: pl.LazyFrame, share: float, *, held_out: bool) -> pl.LazyFrame:
    """Select a held-out share of sessions by a hash of their ids, stable across machines; or the other sessions."""
    sessions = impressions.select(SESSION).unique().collect(engine="streaming")
    chosen = sessions.filter(is_in_validation(sessions[SESSION], share)).lazy()
    how = "semi" if held_out else "anti"
    return impressions.join(chosen, on=SESSION, how=how, nulls_equal=True, maintain_order="left")


def by_time(impressions: pl.LazyFrame, start: Any, *, held_out: bool) -> pl.LazyFrame:  # noqa: ANN401 - as `last_share`
    """Select sessions from a period on, or the earlier ones, by the time of their first impression."""
    time = pl.col(PERIOD).min().over(SESSION)
    return impressions.filter(time >= start if held_out else time < start)


def last_share(parts: Parts, share: float) -> Any:  # noqa: ANN401 - a date, or a time of day
    """Period from which on about the last `share` of sessions begins.

    Raises:
        SchemaError: there is only one period.
    """
    counts = pl.concat(parts.map(_sessions_by_period)).group_by(PERIOD).sum().sort(PERIOD, descending=True)
    if counts.height < 2:  # noqa: PLR2004 - one to learn from, one to be judged by
        raise SchemaError("--split time: all sessions have one time. Use --split session, or --test FILE.")
    upto = (counts[_N].cum_sum() / counts[_N].sum()).to_list()
    starts: list[Any] = counts[PERIOD].to_list()
    enough = next(number for number, reached in enumerate(upto) if reached >= share)
    return starts[min(enough, counts.height - 2)]


def _sessions_by_period(_: int, impressions: pl.LazyFrame) -> pl.DataFrame:
    first = impressions.group_by(SESSION).agg(pl.col(PERIOD).min())
    return first.group_by(PERIOD).agg(pl.len().alias(_N)).collect(engine="streaming")
