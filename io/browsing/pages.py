"""The pages of a log, part by part, as matrices: to learn a click model from, and to judge one by.

Units, what has a parameter of its own in a model, are numbered over all parts in the order of these, those of a part in
their own order. The pages of a log that does not fit into memory lie on disk, and are read for each pass over them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import polars as pl

from posbias.core.browsing.batch import PageBatch
from posbias.core.browsing.frames import UNIT, as_batch, grouped_pages
from posbias.core.schema import CLICK, POSITION, SESSION, WEIGHT
from posbias.io.engines.engine import Parts
from posbias.io.temporary.kept import KeptFrame, keep

OfPages = Callable[[pl.LazyFrame], pl.LazyFrame]
"""Which impressions of a part to take: those of whole pages."""


@dataclass(frozen=True)
class Units:
    """What has parameters of its own.

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
        return pl.concat(self._numbered(part) for part in range(len(self.parts)))

    def of_part(self, part: int) -> pl.LazyFrame:
        """The units of a part with their numbers."""
        return self._numbered(part)

    def _numbered(self, part: int) -> pl.LazyFrame:
        return self.parts[part].scan().with_row_index(UNIT).with_columns(pl.col(UNIT).cast(pl.Int64) + self.first[part])


@dataclass(frozen=True)
class LogPages:
    """Pages, batch by batch.

    Attributes:
        parts: different pages of each part, those of one length together; see `grouped_pages`.
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

    def __iter__(self) -> Iterator[PageBatch]:
        """The batches, always in the same order."""
        return (as_batch(frame.load()) for frames in self.parts for frame in frames)


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


def bring_pages(
    parts: Parts, units: Units, of_pages: OfPages, folder: Path | None, name: str, *, same_parts: bool
) -> LogPages:
    """The pages of a log with the numbers of their units; J for what has none.

    Args:
        parts: canonical impressions.
        units: the numbers.
        of_pages: which impressions.
        folder: a directory of ours for what does not stay in memory; None keeps all there.
        name: of the files there.
        same_parts: whether these are the parts in which the units were numbered.
    """
    work = _Pages(units, of_pages, folder, name, same_parts)
    found = list(parts.map(work))
    return LogPages(
        parts=tuple(pages.frames for pages in found),
        n_units=units.number,
        n_positions=max((pages.n_positions for pages in found), default=1),
        n_impressions=sum(pages.n_impressions for pages in found),
        n_sessions=sum(pages.n_sessions for pages in found),
    )


@dataclass(frozen=True)
class _PagesOfPart:
    frames: tuple[KeptFrame, ...]
    n_positions: int
    n_impressions: int
    n_sessions: int


@dataclass(frozen=True)
class _Pages:
    """The work on a part."""

    units: Units
    of_pages: OfPages
    folder: Path | None
    name: str
    same_parts: bool

    def __call__(self, part: int, impressions: pl.LazyFrame) -> _PagesOfPart:
        """Its pages."""
        columns = list(self.units.columns)
        rows = self.of_pages(impressions)
        kept = [SESSION, POSITION, CLICK, *([WEIGHT] if WEIGHT in rows.collect_schema() else [])]
        numbers = self.units.of_part(part) if self.same_parts else self.units.scan()
        numbered = (
            rows.select(*dict.fromkeys([*columns, *kept]))
            .join(numbers, on=columns, how="left", nulls_equal=True)
            .select(*kept, pl.col(UNIT).fill_null(self.units.number))
            .collect(engine="streaming")
        )
        if not numbered.height:
            return _PagesOfPart((), 1, 0, 0)
        pages = grouped_pages(numbered)
        return _PagesOfPart(
            frames=tuple(
                keep(frame, self.folder, f"{self.name}-{part:05d}-{number:04d}") for number, frame in enumerate(pages)
            ),
            n_positions=int(numbered.select(pl.max(POSITION)).item()),
            n_impressions=numbered.height,
            n_sessions=int(numbered[SESSION].n_unique()),
        )
