"""The pages of a log, part by part, as matrices: to learn a click model from, and to judge one by.

Units, what has a parameter of its own in a model, are numbered over all parts in the order of these, those of a part in
their own order. The pages of a log that does not fit into memory lie on disk, and are read for each pass over them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import polars as pl

from posbias.core.browsing.batch import PageBatch
from posbias.core.browsing.frames import UNIT, pages_in_numberings, small_batches
from posbias.core.browsing.signatures import Signatures, find_signatures
from posbias.core.browsing.uncertain import Certain, uncertain_pages
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
        """Units with equal rows once; see `posbias.core.browsing.signatures`. Found once."""
        found = self._signatures.get(tuple(columns))
        if found is None:
            parts = (_Batches(frames) for frames in self.parts if frames)
            keep = partial(self._keep, columns=columns)
            found = find_signatures(parts, columns, self.n_units, self.n_positions, keep)
            self._signatures[tuple(columns)] = found
        return found

    def uncertain(self, certain: Certain) -> "LogPages":
        """The pages without the impressions that say the same whatever the parameters. Only the last ones are kept."""
        found = self._uncertain.get(certain)
        if found is None:
            self._uncertain.clear()
            found = replace(self, parts=tuple(_uncertain_of(frames, certain) for frames in self.parts))
            self._uncertain[certain] = found
        return found

    def _keep(self, rows: pl.DataFrame, number: int, columns: Sequence[str]) -> Iterable[PageBatch]:
        """Put the rows of signatures where the pages are."""
        beside = next(frame for frames in self.parts for frame in frames)
        return _Batches((_keep_beside(beside, rows, f"{'-'.join(columns)}-{number:05d}"),))


def _uncertain_of(frames: Sequence[KeptFrame], certain: Certain) -> tuple[KeptFrame, ...]:
    """What is left of the pages of a part."""
    left = uncertain_pages(_Batches(frames), certain)
    return tuple(_keep_beside(frames[0], pages, f"uncertain-{number:04d}") for number, pages in enumerate(left))


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


def pages_to_learn_from(parts: Parts, units: Units, of_pages: OfPages, folder: Path | None, name: str) -> LogPages:
    """The pages of a log with the numbers of their units, in the order of the first unit of each.

    That order is for speed alone: what passes over them look up lies close together.

    Args:
        parts: canonical impressions, the same in which the units were numbered.
        units: the numbers.
        of_pages: which impressions.
        folder: a directory of ours for what does not stay in memory; None keeps all there.
        name: of the files there.
    """
    pages = partial(_pages_of_part, of_pages=of_pages, folder=folder, name=name, same_parts=True, by_first_unit=True)
    return _bring(parts, (units,), pages)[0]


def pages_to_judge_by(
    parts: Parts, units: Sequence[Units], of_pages: OfPages, folder: Path | None, name: str, *, same_parts: bool
) -> list[LogPages]:
    """The pages of a log in several numberings, the same in each, in the same order; J for what has no number.

    Args:
        parts: canonical impressions.
        units: the numberings.
        of_pages: which impressions.
        folder: a directory of ours for what does not stay in memory; None keeps all there.
        name: of the files there.
        same_parts: whether these are the parts in which the units were numbered.
    """
    pages = partial(
        _pages_of_part, of_pages=of_pages, folder=folder, name=name, same_parts=same_parts, by_first_unit=False
    )
    return _bring(parts, tuple(units), pages)


_PagesOfPart = tuple[list[tuple[KeptFrame, ...]], int, int, int]
"""The frames of each numbering, the largest position, and how many impressions and sessions there are."""


def _bring(parts: Parts, units: tuple[Units, ...], work: Callable[..., _PagesOfPart]) -> list[LogPages]:
    found = list(parts.map(partial(work, units=units)))
    n_positions = max((deepest for _, deepest, _, _ in found), default=1)
    n_impressions, n_sessions = sum(rows for _, _, rows, _ in found), sum(sessions for _, _, _, sessions in found)
    return [
        LogPages(tuple(frames[number] for frames, _, _, _ in found), one.number, n_positions, n_impressions, n_sessions)
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
