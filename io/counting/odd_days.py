"""Days beside others: those of a log that was counted, and those that are merged with a store; files, and pages.

Click rates by day come from the statistics that are there anyway, part by part. Of a store only the days are read that
are nearest to a new one, so that adding a day costs no more as the store grows.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

import polars as pl

from posbias.core.counts.odd_days import DAY, DayLook, add_by_day, count_by_day, count_positions, look_at_days, nearest
from posbias.core.log.pages import ShiftedPages, count_spans, shifted_pages
from posbias.core.schema import PERIOD, SESSION
from posbias.io.engines.engine import Engine, ReadLog
from posbias.io.log.log import Log
from posbias.io.log.scan import reading
from posbias.io.stores.checks import Each, Expected
from posbias.io.stores.segments import Part, Segment, scan_part
from posbias.io.stores.store import Statistics, checked

_ENOUGH_ROWS = 1 << 20
"""Rows of statistics of one counting whose queries stand for all of them."""

_FIRST_ROWS = 100_000
"""Rows of a text file that say where its positions start: to read all of it again would take too long."""

_WHOLE_FILE = 1 << 62
"""Rows of a slice of a file."""

_MOST_ROWS_OF_PAGES, _SEED_OF_PAGES = 1 << 18, 2


def look_at_days_of_log(segment: Segment, engine: Engine) -> list[DayLook]:
    """Compare each day of a log that was just counted with the others; nothing is read where there is but one."""
    if len(segment.days) < 2:  # noqa: PLR2004 - one alone has nothing to be compared with
        return []
    return look_at_days(_counts_by_day(_some_parts(segment), None, engine), segment.days, ())


def look_at_merged_days(statistics: Sequence[Statistics], store: Statistics | None, engine: Engine) -> list[DayLook]:
    """Compare the days of statistics that are merged.

    Args:
        statistics: what is merged; where one of them keeps no days, each is compared as a whole.
        store: the one of them that the others are added to, whose days are what is usual; None for each day with all
            others.
        engine: reads.

    Raises:
        StatisticsError: they were replaced meanwhile.
    """
    with checked(statistics, _checked_before, engine.each):
        by_day = all(entry.metadata.plan.period for entry in statistics)
        others = [entry for entry in statistics if entry is not store]
        judged = sorted({name for entry in others for name in _names(entry, by_day=by_day)})
        kept = () if store is None else _names(store, by_day=by_day)
        known = [name for name in kept if name not in judged]
        counts = [_counts_of(entry, judged, engine, by_day=by_day) for entry in others]
        if store is not None:
            wanted = {other for day in judged for other in nearest(day, known)}
            counts.append(_counts_of(store, wanted, engine, by_day=by_day))
            if not known:
                return []
        return look_at_days(add_by_day(counts), judged, known)


def _names(statistics: Statistics, *, by_day: bool) -> tuple[str, ...]:
    """What is compared: the days of statistics, or they themselves."""
    return tuple(statistics.days) if by_day else (str(statistics.path),)


def _counts_of(statistics: Statistics, wanted: Iterable[str], engine: Engine, *, by_day: bool) -> pl.DataFrame:
    """The counts of some names."""
    own = _names(statistics, by_day=by_day)
    names = set(own) & set(wanted)
    segments = [entry for entry in statistics.segments if not by_day or names.intersection(entry.days)]
    parts = [part for segment in segments if names for part in _some_parts(segment)]
    return _counts_by_day(parts, None if by_day else own[0], engine).filter(pl.col(DAY).is_in(list(names)))


def look_at_files(log: Log, engine: Engine) -> list[DayLook]:
    """The files of a log whose positions start elsewhere than those of the other files.

    Only that: files of countries or devices may differ in all else.
    """
    if len(log.sources) < 2 or log.nesting is not None or log.raw is not None or log.raw_sources:  # noqa: PLR2004
        return []
    names = [str(source.path) for source in log.sources]
    frames = [
        count_positions(frame if source.format == "parquet" else frame.head(_FIRST_ROWS), name)
        for source, frame, name in zip(log.sources, log.from_anywhere.slices(_WHOLE_FILE), names, strict=True)
    ]
    with reading(log.sources):
        counts = add_by_day(list(engine.parts_of(frames).map(_collected)))
    return [look for look in look_at_days(counts, names, ()) if look.starts_elsewhere]


def look_at_pages(read: ReadLog) -> ShiftedPages | None:
    """Pages of a log that count their positions from another base than most; None where there are none, or no pages."""
    pages = read.some_pages
    if pages is None:
        return None
    rows = pages.select(pl.len()).collect(engine="streaming").item()
    one_in = max(1, rows // _MOST_ROWS_OF_PAGES)
    some = pages if one_in == 1 else pages.filter(pl.col(SESSION).hash(_SEED_OF_PAGES) % one_in == 0)
    return shifted_pages(count_spans(some).collect(engine="streaming"))


def _checked_before(_: Sequence[Expected], __: Each) -> None:
    """Merging has checked them."""


def _some_parts(segment: Segment) -> tuple[Part, ...]:
    """The parts of a segment; of a large one as many as say enough: each holds all there is of some queries."""
    rows_of_part = max(int(segment.totals["rows"]) // max(len(segment.parts), 1), 1)
    return segment.parts[: -(-_ENOUGH_ROWS // rows_of_part)]


def _counts_by_day(parts: Sequence[Part], name: str | None, engine: Engine) -> pl.DataFrame:
    """The counts of parts, by their days or under one name."""
    from_anywhere = [replace(part, path=part.path.absolute()) for part in parts]
    return add_by_day(list(engine.each(from_anywhere, partial(count_part, name=name))))


def count_part(part: Part, name: str | None) -> pl.DataFrame:
    """The counts of one part, by its days or under one name."""
    day = pl.col(PERIOD).cast(pl.Date) if name is None else pl.lit(name)
    return count_by_day(scan_part(part), day).collect(engine="streaming")


def _collected(_: int, counts: pl.LazyFrame) -> pl.DataFrame:
    return counts.collect(engine="streaming")
