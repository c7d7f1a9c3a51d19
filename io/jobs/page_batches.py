"""The pages of a log, part by part, as matrices: to learn a click model from, and to judge one by.

Units, what has a parameter of its own in a model, are numbered over all parts in the order of these, those of a part in
their own order. The pages of a log that does not fit into memory lie on disk, and are read for each pass over them.
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
    find_signatures,
    pages_in_numberings,
    small_batches,
    uncertain_pages,
)
from posbias.core.schema import CLICK, CLICKS, IMPRESSIONS, PAIR, PERIOD, POSITION, PREVIOUS_CLICK, SESSION, WEIGHT
from posbias.core.training.weights import is_in_validation
from posbias.io.counting.count import CountedLog
from posbias.io.engines.engine import Parts
from posbias.io.places.temporary import KeptFrame, keep

OfPages = Callable[[pl.LazyFrame], pl.LazyFrame]
"""Which impressions of a part to take: those of whole pages."""


@dataclass(frozen=True)
class Units:
    """The units that have parameters of their own.

    Attributes:
        columns: what tells units apart.
        parts: these columns, sorted, of each part; a unit is in one part only.
        first: the number of the first unit of each part.
        number: J.
    """

    columns: tuple[str, ...]
    parts: tuple[KeptFrame, ...]
    first: tuple[int, ...]
    number: int

    def scan(self) -> pl.LazyFrame:
        """All units with their numbers."""
        return pl.concat(self.of_part(part) for part in range(len(self.parts)))

    def of_part(self, part: int) -> pl.LazyFrame:
        """The units of a part with their numbers."""
        return self.parts[part].scan().with_row_index(UNIT).with_columns(pl.col(UNIT).cast(pl.Int64) + self.first[part])


@dataclass(frozen=True)
class LogPages:
    """Pages, batch by batch.

    Attributes:
        parts: different pages of each part, those of one length together; see `pages_in_numberings`.
        n_units: J.
        n_positions: K.
        n_impressions: on all pages.
        n_sessions: pages.
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
        """The batches, always in the same order."""
        return (batch for frames in self.parts for batch in _Batches(frames))

    def signatures(self, columns: Sequence[str]) -> Signatures:
        """Units with equal rows once; see `posbias.core.models.page_matrices`. Made once."""
        signatures = self._signatures.get(tuple(columns))
        if signatures is None:
            parts = (_Batches(frames) for frames in self.parts if frames)
            keep = partial(self._keep, columns=columns)
            signatures = find_signatures(parts, columns, self.n_units, self.n_positions, keep)
            self._signatures[tuple(columns)] = signatures
        return signatures

    def uncertain(self, certain: Certain) -> "LogPages":
        """The pages without the impressions that say the same whatever the parameters. Only the last ones are kept."""
        uncertain = self._uncertain.get(certain)
        if uncertain is None:
            self._uncertain.clear()
            parts = list[tuple[KeptFrame, ...]]()
            for frames in self.parts:
                left = enumerate(uncertain_pages(_Batches(frames), certain))
                parts.append(tuple(_keep_beside(frames[0], pages, f"uncertain-{at:04d}") for at, pages in left))
            self._uncertain[certain] = uncertain = replace(self, parts=tuple(parts))
        return uncertain

    def _keep(self, rows: pl.DataFrame, number: int, columns: Sequence[str]) -> Iterable[PageBatch]:
        """Put the rows of signatures where the pages are."""
        beside = next(frame for frames in self.parts for frame in frames)
        return _Batches((_keep_beside(beside, rows, f"{'-'.join(columns)}-{number:05d}"),))


def _keep_beside(frame: KeptFrame, rows: pl.DataFrame, name: str) -> KeptFrame:
    """Keep rows where a frame is, under a name of its own."""
    place = frame.place
    return KeptFrame(rows) if isinstance(place, pl.DataFrame) else keep(rows, place.parent, f"{place.stem}-{name}")


@dataclass(frozen=True)
class _Batches:
    """Pages, read again for each pass."""

    frames: Sequence[KeptFrame]

    def __iter__(self) -> Iterator[PageBatch]:
        return (batch for frame in self.frames for batch in small_batches(frame.load()))


def number_units(parts: Parts, columns: Sequence[str], of_pages: OfPages, folder: Path | None) -> Units:
    """Number what the pages of a log show.

    Args:
        parts: canonical impressions.
        columns: what tells units apart.
        of_pages: which impressions.
        folder: a directory of ours for what does not stay in memory; None keeps all there.
    """
    kept = list(parts.map(partial(_units_of, columns=tuple(columns), of_pages=of_pages, folder=folder)))
    first, number = list[int](), 0
    for _, size in kept:
        first.append(number)
        number += size
    return Units(tuple(columns), tuple(frame for frame, _ in kept), tuple(first), number)


def _units_of(
    part: int, impressions: pl.LazyFrame, columns: tuple[str, ...], of_pages: OfPages, folder: Path | None
) -> tuple[KeptFrame, int]:
    units = of_pages(impressions).select(columns).unique().sort(columns).collect(engine="streaming")
    return keep(units, folder, f"units-{len(columns)}-{part:05d}"), units.height


_PagesOfPart = tuple[list[tuple[KeptFrame, ...]], int, int, int]
"""The frames of each numbering, the largest position, and how many impressions and sessions there are."""


def numbered_pages(
    parts: Parts,
    units: Sequence[Units],
    of_pages: OfPages,
    folder: Path | None,
    name: str,
    *,
    same_parts: bool = True,
    by_first_unit: bool = True,
) -> list[LogPages]:
    """The pages of a log in several numberings, the same in each, in the same order; J for what has no number.

    Args:
        parts: canonical impressions.
        units: the numberings.
        of_pages: which impressions.
        folder: a directory of ours for what does not stay in memory; None keeps all there.
        name: of the files there.
        same_parts: whether these are the parts in which the units were numbered.
        by_first_unit: whether pages stand in the order of the first unit of each, so that what passes over them look up
            lies close together: that is for speed alone.
    """
    work = partial(_pages_of_part, units=tuple(units), of_pages=of_pages, folder=folder, name=name)
    work = partial(work, same_parts=same_parts, by_first_unit=by_first_unit)
    parts_of_pages = list(parts.map(work))
    n_positions = max((deepest for _, deepest, _, _ in parts_of_pages), default=1)
    n_impressions = sum(rows for _, _, rows, _ in parts_of_pages)
    n_sessions = sum(sessions for _, _, _, sessions in parts_of_pages)
    return [
        LogPages(tuple(of[0][number] for of in parts_of_pages), one.number, n_positions, n_impressions, n_sessions)
        for number, one in enumerate(units)
    ]


def _pages_of_part(
    part: int,
    impressions: pl.LazyFrame,
    units: tuple[Units, ...],
    of_pages: OfPages,
    folder: Path | None,
    name: str,
    *,
    same_parts: bool,
    by_first_unit: bool,
) -> _PagesOfPart:
    rows = of_pages(impressions)
    kept = [SESSION, POSITION, CLICK, *([WEIGHT] if WEIGHT in rows.collect_schema() else [])]
    columns = [f"{UNIT} {number}" for number in range(len(units))]  # of the numberings
    numbered = rows.select(*dict.fromkeys([*(column for one in units for column in one.columns), *kept]))
    for column, one in zip(columns, units, strict=True):
        ids = (one.of_part(part) if same_parts else one.scan()).rename({UNIT: column})
        numbered = numbered.join(ids, on=list(one.columns), how="left", nulls_equal=True)
        numbered = numbered.with_columns(pl.col(column).fill_null(one.number))
    table = numbered.select(*kept, *columns).collect(engine="streaming")
    if not table.height:
        return [() for _ in units], 1, 0, 0
    frames: list[list[KeptFrame]] = [[] for _ in units]
    for place, pages in enumerate(pages_in_numberings(table, columns)):
        for number, of_numbering in enumerate(pages):
            in_order = of_numbering.sort("shown 0", maintain_order=True) if by_first_unit else of_numbering
            frames[number].append(keep(in_order, folder, f"{name}-{number}-{part:05d}-{place:04d}"))
    deepest = int(table.select(pl.max(POSITION)).item())
    return [tuple(of_numbering) for of_numbering in frames], deepest, table.height, int(table[SESSION].n_unique())


_SHOWN, _POSITION = "shown 0", "position 0"


def rows_of_counts(counted: CountedLog, folder: Path) -> list[KeptFrame]:
    """The counts of statistics, part by part: `query`, `doc`, the cell columns, `impressions`, `clicks`.

    Args:
        counted: statistics. Rows of one document, such as those of its contexts, add up.
        folder: a directory of ours.
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


def bring_counts(parts: Parts, units: Units, columns: Sequence[str], folder: Path | None) -> LogPages:
    """Counts with the numbers of their units, each impression a page of its own.

    Args:
        parts: counts, as from `rows_of_counts`, the same parts in which the units were numbered.
        units: the numbers.
        columns: those beside the pair's that are looked at.
        folder: a directory of ours for what does not stay in memory; None keeps all there.
    """
    frames = list(parts.map(partial(_rows_alone_of, units=units, columns=tuple(columns), folder=folder)))
    sums = [frame.scan().select(pl.max(_POSITION), pl.sum(WEIGHT)).collect().row(0) for frame in frames]
    return LogPages(
        parts=tuple((frame,) for frame in frames),
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


_N = "posbias_sessions"


def all_pages(impressions: pl.LazyFrame) -> pl.LazyFrame:
    """All impressions."""
    return impressions


def up_to_position(impressions: pl.LazyFrame, deepest: int) -> pl.LazyFrame:
    """The impressions of each page down to a position."""
    return impressions.filter(pl.col(POSITION) <= deepest)


def by_session(impressions: pl.LazyFrame, share: float, *, held_out: bool) -> pl.LazyFrame:
    """The share of sessions that is held out, by a hash of the id that is the same on every machine; or the others."""
    sessions = impressions.select(SESSION).unique().collect(engine="streaming")
    chosen = sessions.filter(is_in_validation(sessions[SESSION], share)).lazy()
    how = "semi" if held_out else "anti"
    return impressions.join(chosen, on=SESSION, how=how, nulls_equal=True, maintain_order="left")


def by_time(impressions: pl.LazyFrame, start: Any, *, held_out: bool) -> pl.LazyFrame:  # noqa: ANN401 - as `last_share`
    """The sessions from a period on, which are held out, or the others; a session has its first impression's time."""
    time = pl.col(PERIOD).min().over(SESSION)
    return impressions.filter(time >= start if held_out else time < start)


def last_share(parts: Parts, share: float) -> Any:  # noqa: ANN401 - a date, or a time of day
    """The start of the period with which about the last share of the sessions begins.

    Raises:
        SchemaError: there is but one period.
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
