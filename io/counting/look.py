"""A look at a log before it is counted: samples of its pages, and days that differ.

Click rates by day come from the statistics that are there anyway, part by part. Of a store only the days are read that
are nearest to a new one, so that adding a day costs no more as the store grows.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from pathlib import Path

import narwhals as nw
import polars as pl

from posbias.core.check import (
    LogDetails,
    LogFacts,
    Movement,
    Outlook,
    PageFacts,
    PartDetails,
    add_details,
    details_of,
    movement,
    outlook,
    page_facts,
)
from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.counts.odd_days import (
    DayLook,
    LackingDays,
    add_by_day,
    count_by_day,
    count_positions,
    days_lacking_clicks,
    look_at_days,
    nearest,
)
from posbias.core.counts.sufficient_statistics import PartStatistics, SufficientStatistics, compress_part, merge_parts
from posbias.core.models import get_model
from posbias.core.schema import PERIOD
from posbias.io.counting.count import Reading, store_part
from posbias.io.counting.profile import PAGES_OF_CHECK, WithFacts, sample_of_pages
from posbias.io.engines.engine import Engine
from posbias.io.log.click_log import Log
from posbias.io.log.scan import reading
from posbias.io.progress import Progress
from posbias.io.stores.metadata import Part, Segment
from posbias.io.stores.segments import scan_part
from posbias.io.stores.store import Statistics, checked

_ENOUGH_ROWS = 1 << 20
"""Rows of statistics of one counting whose queries stand for all of them."""

_FIRST_ROWS = 100_000
"""Rows of a text file that say where its positions start: to read all of it again would take too long."""

_WHOLE_FILE = 1 << 62
"""Rows of a slice of a file."""

DaysSeen = tuple[list[DayLook], LackingDays | None]
"""How days look beside others, and where clicks of days were lost, among all that were looked at."""


def look_at_days_of_log(segment: Segment, engine: Engine) -> DaysSeen:
    """Compare each day of a log that was just counted with the others; nothing is read where there is but one."""
    if len(segment.days) < 2:  # noqa: PLR2004 - one alone has nothing to be compared with
        return [], None
    counts = _counts_by_day(_some_parts(segment), segment.days, engine)
    return look_at_days(counts, segment.days, ()), days_lacking_clicks(counts)


def look_at_merged_days(statistics: Sequence[Statistics], store: Statistics | None, engine: Engine) -> DaysSeen:
    """Compare the days of statistics that are merged.

    Args:
        statistics: what is merged; where one of them keeps no days, each is compared as a whole.
        store: the one of them that the others are added to, whose days are what is usual; None for each day with all
            others.
        engine: reads.

    Raises:
        StatisticsError: they were replaced meanwhile.
    """
    with checked(statistics, None, engine.each):  # merging has looked at the parts
        by_day = all(entry.metadata.plan.period for entry in statistics)
        others = [entry for entry in statistics if entry is not store]
        judged = sorted({name for entry in others for name in _names(entry, by_day=by_day)})
        kept = () if store is None else _names(store, by_day=by_day)
        known = [name for name in kept if name not in judged]
        counts = [_counts_of(entry, judged, engine, by_day=by_day) for entry in others]
        if store is not None:
            compared = {other for day in judged for other in nearest(day, known)}
            counts.append(_counts_of(store, compared, engine, by_day=by_day))
            if not known:
                return [], None
        together = add_by_day(counts)
        return look_at_days(together, judged, known), days_lacking_clicks(together if by_day else None)


def _names(statistics: Statistics, *, by_day: bool) -> tuple[str, ...]:
    """Names of what is compared: the days of statistics, or statistics as a whole."""
    return tuple(statistics.days) if by_day else (str(statistics.path),)


def _counts_of(statistics: Statistics, compared: Iterable[str], engine: Engine, *, by_day: bool) -> pl.DataFrame:
    """The counts of those of its names that are compared."""
    own = _names(statistics, by_day=by_day)
    names = set(own) & set(compared)
    parts = [part for of in statistics.segments if names & set(of.days if by_day else own) for part in _some_parts(of)]
    return _counts_by_day(parts, names if by_day else own[0], engine)


def look_at_files(log: Log, engine: Engine) -> list[DayLook]:
    """The files of a log whose positions start elsewhere than those of the other files.

    Only that: files of countries or devices may differ in all else.
    """
    if len(log.sources) < 2 or log.nesting is not None or log.raw is not None or log.raw_sources or log.request.export:  # noqa: PLR2004
        return []
    names = [str(source.path) for source in log.sources]
    frames = [
        count_positions(frame if source.format == "parquet" else frame.head(_FIRST_ROWS), name)
        for source, frame, name in zip(log.sources, log.from_anywhere.slices(_WHOLE_FILE), names, strict=True)
    ]
    with reading(log.sources):
        counts = add_by_day(list(engine.parts_of(frames).map(_collected)))
    return [look for look in look_at_days(counts, names, ()) if look.starts_elsewhere]


def _some_parts(segment: Segment) -> tuple[Part, ...]:
    """The parts of a segment; of large countings as many as say enough: each holds all there is of some queries."""
    rows_of_part = max(int(segment.totals["rows"]) // (max(len(segment.parts), 1) * len(segment.countings)), 1)
    return segment.parts[: -(-_ENOUGH_ROWS // rows_of_part)]


def _counts_by_day(parts: Sequence[Part], name: str | Collection[str], engine: Engine) -> pl.DataFrame:
    """The counts of parts on some days, by day, or of all their rows under one name."""
    from_anywhere = [part.at(part.path.absolute()) for part in parts]
    return add_by_day(list(engine.each(from_anywhere, partial(count_part, name=name))))


def count_part(part: Part, name: str | Collection[str]) -> pl.DataFrame:
    """The counts of one part on some days, by day, or of all its rows under one name."""
    if isinstance(name, str):
        return count_by_day(scan_part(part), pl.lit(name)).collect(engine="streaming")
    on_days = scan_part(part).filter(pl.col(PERIOD).cast(pl.Date).is_in(list(map(date.fromisoformat, name))))
    return count_by_day(on_days, pl.col(PERIOD).cast(pl.Date)).collect(engine="streaming")


def _collected(_: int, counts: pl.LazyFrame) -> pl.DataFrame:
    return counts.collect(engine="streaming")


PBM, UBM = "pbm", "ubm"

MOST_PARTS = 16
"""Parts whose pairs are looked at: those of a larger log are a sample, as parts hold queries by their hash."""


@dataclass(frozen=True)
class Look:
    """Facts of a log, and the estimates to expect."""

    facts: LogFacts  # of its counts
    details: LogDetails  # of them
    moved: Movement  # how documents move between positions; an estimate where not all queries were looked at
    pages: PageFacts | None  # facts of its pages; None where it has no sessions
    all_pages: int | None  # how many there are; an estimate where not all were looked at
    outlooks: tuple[Outlook, ...]  # what each model can say, the position-based one first
    why_not: dict[str, str]  # why a model is not among them
    lost: LackingDays | None = None  # where clicks of days were lost, by those queries that were looked at


def look_at(unjudged: Reading, plan: StatisticsPlan, engine: Engine, progress: Progress) -> Look | None:
    """Look at a log that was read; None where it holds no row that counts.

    Args:
        unjudged: the log.
        plan: what is counted, by the position-based model.
        engine: where that is done.
        progress: where stages are reported.
    """
    if not unjudged.rows.used:
        return None
    counted = _counted(unjudged, plan, engine, progress)
    if counted is None:
        return None
    facts, details, statistics, expected = counted
    outlooks, why_not = [expected], _why_no_ubm(plan, unjudged.log)
    with progress.stage("looking at pages"):
        pages = sample_of_pages(unjudged.read, PAGES_OF_CHECK, of_queries=True)
        if pages is not None and not why_not:
            outlooks.append(_of_pages(pages, replace(plan, model=get_model(UBM)), facts.queries, engine.memory))
        of_pages = None if pages is None else page_facts(pages)
    return Look(
        facts=facts,
        details=details,
        moved=movement(statistics.pair_signatures).in_all(expected.share),
        pages=of_pages,
        all_pages=None if of_pages is None else round(of_pages.pages * unjudged.rows.used / max(of_pages.rows, 1)),
        outlooks=tuple(outlooks),
        why_not={UBM: why_not} if why_not else {},
        lost=days_lacking_clicks(statistics.by_day),
    )


def _of_part(
    number: int, statistics: pl.LazyFrame, plan: StatisticsPlan, kept_in: Path | None, most: int | None
) -> tuple[PartDetails, PartStatistics | None] | None:
    """The details of a part, and its counts, where it is one of the first `most`; None where it is empty."""
    frame = statistics.collect()
    if not frame.height:
        return None
    if most is not None and number >= most:
        return details_of(frame), None
    part = compress_part(frame, plan).without_pairs()
    return details_of(frame), part if kept_in is None else store_part(part, number, kept_in)


def _counted(
    unjudged: Reading, plan: StatisticsPlan, engine: Engine, progress: Progress
) -> tuple[LogFacts, LogDetails, SufficientStatistics, Outlook] | None:
    """Facts and details of the counts, and the estimate to expect; None where nothing is left to count.

    A sample that cannot be compared says nothing of the whole: then all of it is looked at.
    """
    for most in (MOST_PARTS, None):
        read = WithFacts(unjudged.read.statistics(plan))
        work = partial(_of_part, plan=plan, kept_in=None if read.in_memory else engine.scratch, most=most)
        parts = list[tuple[PartDetails, PartStatistics | None]]()
        with progress.stage("counting", read.number) as stage:
            for of_part in read.map(work):
                stage.advance()
                parts += [] if of_part is None else [of_part]
        facts = read.facts
        if facts is None:
            return None
        sample = [counts for _, counts in parts if counts is not None]
        if sample:
            statistics = merge_parts(sample, plan)
            expected = outlook(statistics, engine.memory, statistics.n_queries / facts.queries)
            if expected.carries or len(sample) == len(parts):
                return facts, add_details([details for details, _ in parts]), statistics, expected
    return None


def _why_no_ubm(plan: StatisticsPlan, log: Log) -> str:
    reasons = {
        "it needs whole pages, and the log has no session column": not log.has_sessions,
        "it compares the documents of a page, and without queries each is compared with itself": (
            log.page_rules.several_queries
        ),
        "it takes no --context": bool(plan.context),
        "it takes no --duplicate-docs keep": log.page_rules.docs_repeat,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _of_pages(pages: pl.DataFrame, plan: StatisticsPlan, n_queries: int, memory: int) -> Outlook:
    """The estimate to expect of a model that needs whole pages, from some of them."""
    in_cells = plan.with_cells_in_memory(pages)
    rows = plan.count_in_cells(nw.from_native(in_cells.lazy())).to_native().sort(plan.keys).collect()
    statistics: SufficientStatistics = merge_parts([compress_part(rows, plan)], plan)
    return outlook(statistics, memory, share=min(1.0, statistics.n_queries / n_queries))
