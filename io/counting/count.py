"""From logs or stores to sufficient statistics: read, check, count, compress."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from msgspec import UNSET, structs
from numpy.typing import NDArray

from posbias.core.arrays.count_table import CountTable, Hashes, Numbers
from posbias.core.check import LogFacts, add_facts, log_facts
from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.counts.order import RowOrder, order_of_rows
from posbias.core.counts.sufficient_statistics import (
    PartOfStrata,
    PartStatistics,
    SufficientStatistics,
    compress_part,
    merge_parts,
)
from posbias.core.errors import SchemaError, printable
from posbias.core.fit.arms import MOST_ARMS
from posbias.core.log.pages import check_totals
from posbias.core.schema import CLICK, CLICKS, IMPRESSIONS, PERIOD, POSITION, SESSION
from posbias.io import clock
from posbias.io.counting.warehouse import check_export, with_row_counts
from posbias.io.engines.engine import ROWS_IN_ORDER, Engine, KeepSessions, Output, Parts, ReadLog, sample_rows, sums_by
from posbias.io.forms.form import convert
from posbias.io.log.click_log import Log
from posbias.io.log.clicks import JoinedClicks, Rows
from posbias.io.log.faults import check_no_ranks, check_no_sums, check_slots
from posbias.io.log.rejections import advice_on_most, check_dropped
from posbias.io.log.scan import TEXT_SEPARATORS, resolve_quotes
from posbias.io.log.times import Days, look_odd, with_times
from posbias.io.places.temporary import KeptFrame, keep, temporary_files, whole_file
from posbias.io.progress import Progress
from posbias.io.stores.metadata import Decay, PageTotals, Segment, StatisticsMetadata, total_order
from posbias.io.stores.store import Statistics, checked, merge_metadata

_OF_CELLS = ("cell", "impressions", "clicks")
_COUNTS, _MEMBERS = ("start", *_OF_CELLS, "multiplicity"), ("keys", "member_signature", "member_query")


@dataclass(frozen=True)
class StoredStrata:
    """A `PartOfStrata` on disk: its arrays in one file."""

    path: Path
    arrays: Mapping[str, tuple[int, str, int]]  # offset in bytes, NumPy type, and length
    n_cells: int  # K of the part

    @property
    def keys(self) -> Hashes:
        """Keys of the signatures, ascending, shape (J,)."""
        return self._read("keys")

    @property
    def member_signature(self) -> Numbers:
        """Signature of each unit with a click and at least two cells, shape (N,)."""
        return self._read("member_signature")

    @property
    def member_query(self) -> Numbers:
        """Query of each of these units, ascending, shape (N,)."""
        return self._read("member_query")

    def read(self, first: int, last: int) -> CountTable:
        """Read the signatures first .. last - 1."""
        start = self._read("start", first, last + 1)
        cell, impressions, clicks = (self._read(name, int(start[0]), int(start[-1])) for name in _OF_CELLS)
        return CountTable(
            self.n_cells, start - start[0], cell, impressions, clicks, self._read("multiplicity", first, last)
        )

    def _read(self, name: str, first: int = 0, last: int | None = None) -> NDArray[Any]:
        """Read the elements first .. last - 1 of an array, to its end by default."""
        offset, dtype, length = self.arrays[name]
        count = (length if last is None else last) - first
        return np.fromfile(self.path, dtype, count, offset=offset + first * np.dtype(dtype).itemsize)


def store_part(part: PartStatistics, number: int, folder: Path) -> PartStatistics:
    """Write the arrays of part `number` to files of a scratch directory, one for each kind of unit.

    Raises:
        OutputError: the disk is full.
    """
    by_unit: dict[tuple[str, ...], PartOfStrata] = {}
    for kind, (unit, strata) in enumerate(part.by_unit.items()):
        path = folder / f"signatures-{number:05d}-{kind}"
        table = strata.read(0, len(strata.keys))
        arrays: dict[str, NDArray[Any]] = {name: getattr(table, name) for name in _COUNTS}
        arrays |= {name: getattr(strata, name) for name in _MEMBERS}
        layout = dict[str, tuple[int, str, int]]()
        with temporary_files(folder), whole_file(path) as unfinished, unfinished.open("wb") as file:
            for name, array in arrays.items():
                layout[name] = file.tell(), array.dtype.str, len(array)
                array.tofile(file)
        by_unit[unit] = StoredStrata(path, layout, table.n_cells)
    return replace(part, by_unit=by_unit)


@dataclass(frozen=True)
class PartsWithFacts:
    """Statistics in parts, and their facts, which `map` collects."""

    parts: Parts
    facts_by_part: list[LogFacts] = field(default_factory=list[LogFacts])

    @property
    def number(self) -> int | None:
        """Upper bound on the number of parts; None if unknown."""
        return self.parts.number

    @property
    def in_memory(self) -> bool:
        """Whether all rows are one part in the memory of this process."""
        return self.parts.in_memory

    def map(self, work: Callable[[int, pl.LazyFrame], Output]) -> Iterator[Output]:
        """Yield `work(number, statistics)` for each part."""
        self.facts_by_part.clear()
        for facts, output in self.parts.map(partial(_facts_and_output, work=work)):
            self.facts_by_part.extend([facts] if facts else [])
            yield output

    @property
    def facts(self) -> LogFacts | None:
        """Facts of all parts that `map` has yielded; None if these are empty."""
        return add_facts(self.facts_by_part) if self.facts_by_part else None


def _facts_and_output(
    number: int, statistics: pl.LazyFrame, work: Callable[[int, pl.LazyFrame], Output]
) -> tuple[LogFacts | None, Output]:
    frame = statistics.collect()
    return log_facts(frame) if frame.height else None, work(number, frame.lazy())


@dataclass(frozen=True)
class PairsOfPart:
    """Pairs of one part, and their signatures in the merged statistics."""

    number: int  # of the part, from 0
    kept: KeptFrame  # `query`, `doc`, ..., `impressions`, `clicks`, `signature` (of the part), sorted by pair
    signature: Numbers  # row of the merged `pair_signatures` for each signature of the part


@dataclass(frozen=True)
class CountedLog:
    """Compressed statistics of a log, or of several stores."""

    plan: StatisticsPlan  # keys of the counts
    sources: dict[str, str]  # path by digest
    rows: Rows  # numbers of rows read, used and rejected
    statistics: SufficientStatistics  # the compressed counts
    pairs: tuple[KeptFrame, ...]  # pairs of each part, in memory if there is one part, else on disk
    read: ReadLog | None = None  # None for stores and for the values of a column
    decay: Decay | None = None  # by which older days weigh less
    days: Days | None = None  # None if days are not counted separately
    notes: tuple[str, ...] = ()  # remarks on how the log was read
    # Counts by position of a log that is counted by bins of positions, to test the bins
    unbinned: SufficientStatistics | None = None
    clicks: JoinedClicks | None = None  # outcomes of clicks that were logged in a table of their own
    facts: LogFacts | None = None  # facts of a log's counts by position

    @property
    def in_memory(self) -> bool:
        """Whether all pairs are in memory."""
        return all(pairs.in_memory for pairs in self.pairs)

    @property
    def parts(self) -> Iterator[PairsOfPart]:
        """Pairs by part."""
        numbered = zip(self.pairs, self.statistics.signature_of_part, strict=True)
        return (PairsOfPart(number, *both) for number, both in enumerate(numbered))


def check_estimable(read: ReadLog) -> None:
    """Check that the accepted rows allow an estimate.

    Raises:
        SchemaError: no row is accepted, too many are rejected, clicks match no impressions, or results without a click
            were not logged.
    """
    first, rows, log = read.log.request.inputs[0], read.rows, read.log
    if rows.read == 0:
        raise SchemaError(f"{first}: the log holds no rows.")
    if rows.used == 0:
        reasons = ", ".join(f"{count:,} x {why}" for why, count in rows.rejected.items())
        raise SchemaError(f"{first}: every row was rejected ({reasons}).", *advice_on_most(rows.rejected, rows.read))
    check_dropped(first, rows.rejected, rows.read, log.request.max_bad_rows)
    if read.clicks is not None:
        read.clicks.check(first)
    advice = ""
    if log.click_sources:
        advice = (
            f"Each row of {log.click_sources[0].path} counts as a click where that table has no click column "
            "that is recognised. If it lists everything that was shown, keep only its clicks."
        )
    check_totals(first, read.totals, advice)


def read_log(
    log: Log,
    plan: StatisticsPlan,
    engine: Engine,
    progress: Progress,
    *,
    keep_sessions: KeepSessions = False,
    estimable: bool = True,
) -> ReadLog:
    """Read a log; with `estimable`, check that it allows an estimate and count its rows by day.

    Raises:
        SchemaError: rows or pages break the contract; or, with `estimable`, `check_estimable` raises it or the column
            of arms has too many values.
        LogFormatError: a file cannot be read, or was changed meanwhile.
    """
    notes, has_raw_lines = list[str](), log.raw is not None and log.raw.reads_lines
    if not has_raw_lines and any(source.format in TEXT_SEPARATORS for source in (*log.sources, *log.click_sources)):
        with progress.stage("looking for quotes"):
            sources, notes = resolve_quotes(log.sources, engine.each)
            click_sources, click_notes = resolve_quotes(log.click_sources, engine.each)
        log, notes = replace(log, sources=sources, click_sources=click_sources), notes + click_notes
    check_no_sums(log)
    check_no_ranks(log)
    check_slots(log)
    named, digests, reader, export = log, log.digests, log.raw, log.request.export
    if export is not None:
        check_export(export, engine.on_bad_rows)
    account, clicks = None, None
    if reader is not None:
        with progress.stage(f"reading {reader.title}"):
            log, account, clicks = convert(log, reader, engine)
    log = with_times(log) if log.request.detect_timestamp else log
    size = sum(source.bytes for source in log.sources)
    rows, estimated = log.estimated_rows, not log.rows_are_known
    with progress.stage("reading", rows, unit="rows", size=size, estimated=estimated) as stage:
        read = engine.read(
            log,
            replace(plan, period=log.rules.period),
            keep_sessions=keep_sessions or plan.needs_pages,
            on_rows=stage.advance if progress.is_watched else None,
        )
    named.check_unchanged()
    if export is not None:
        read = with_row_counts(read, export)
    used = read.rows_read - sum(read.rejected.values())
    clicks = read.clicks if clicks is None else clicks
    rows = Rows(read.rows_read, used, read.rejected, UNSET if clicks is None else clicks.counts)
    if reader is not None and account is not None:
        raw_counts = {"ubi": account} if reader.name == "ubi" else {"raw": {reader.name: account}}
        rows = structs.replace(rows, **raw_counts)
    sources = (*named.sources, *named.click_sources)
    links = dict.fromkeys(source.link for source in sources if source.link is not None)
    followed = [f"{link}: this link was followed, to {link.resolve()}." for link in links]
    if log.request.detect_timestamp and (time := log.roles.timestamp) is not None:
        notes.append(f"times: read from column {printable(time)!r} (--timestamp none leaves them out)")
    read = replace(read, sources=digests, rows=rows, notes=(*followed, *notes), clicks=clicks)
    if not estimable:
        return read
    check_estimable(read)
    if plan.arms:
        (arm,) = plan.arms
        number = sums_by(read.pieces, [pl.col(arm)])[arm].drop_nulls().len()
        if number > MOST_ARMS:
            raise SchemaError(
                f"{log.request.inputs[0]}: column {arm!r} (--arm) has {number:,} values, and "
                f"experiments have {MOST_ARMS} arms at most. If they are users or sessions, name the column of their "
                "arms."
            )
    if not read.plan.period:
        return read
    by_day = sums_by(read.pieces, [pl.col(PERIOD).cast(pl.Date)], rows=pl.len().cast(pl.Int64))
    unit = read.log.rules.time_unit
    return replace(read, days=Days(dict(by_day.iter_rows()), clock.today(), None if unit is None else unit.words))


def order_of_log(read: ReadLog, plan: StatisticsPlan, only: pl.Expr | None = None) -> RowOrder | None:
    """Sum the evidence of feedback in the order of rows; None if the order is unknown or no rows compare.

    Args:
        read: the log.
        plan: keys of the counts.
        only: condition on the rows; by default all rows.
    """
    rows = [frame if only is None else frame.filter(only) for frame in read.in_order]
    return order_of_rows([frame.lazy() for frame in sample_rows(rows, ROWS_IN_ORDER)], plan) if rows else None


def order_within(read: ReadLog, plan: StatisticsPlan, only: pl.Expr | None = None) -> RowOrder | None:
    """Return `order_of_log`, or None if statistics hold times of day, which are stronger evidence."""
    return order_of_log(read, plan, only) if plan.period in {None, "day"} else None


def count_log(read: ReadLog, engine: Engine, progress: Progress, factor: float | None = None) -> CountedLog:
    """Count a log and compress the counts; with a `factor`, older days weigh less.

    Raises:
        SchemaError: nothing was counted.
    """
    decay = None if factor is None or read.days is None else Decay(factor, read.days.newest)
    plan = read.plan
    statistics, pairs, facts = _count_and_compress(read, plan, engine, progress, decay)
    statistics = replace(statistics, compute_row_order=partial(order_within, read, plan))
    unbinned = None
    if plan.position_bins:
        by_position, folder = replace(plan, position_bins=()), engine.scratch / "by-position"
        folder.mkdir(mode=0o700)
        unbinned, _, facts = _count_and_compress(read, by_position, engine, progress, decay, folder)
    return CountedLog(
        plan,
        read.sources,
        read.rows,
        statistics,
        pairs,
        read,
        decay,
        read.days,
        read.notes,
        unbinned,
        read.clicks,
        facts,
    )


def _count_and_compress(
    read: ReadLog,
    plan: StatisticsPlan,
    engine: Engine,
    progress: Progress,
    decay: Decay | None,
    folder: Path | None = None,
) -> tuple[SufficientStatistics, tuple[KeptFrame, ...], LogFacts | None]:
    """Return the compressed statistics, the pairs of each part, and the facts of a log.

    A log in several parts is counted without times first. Its counts by time are larger, and most tests need those of a
    few parts only: these are counted on demand.
    """
    parts = PartsWithFacts(read.statistics(plan))
    needs_period = plan.auxiliary_columns or plan.randomized or decay is not None
    if parts.in_memory or needs_period or not plan.period or not engine.in_this_process:
        return *compress_parts(parts, plan, engine, progress, decay, folder), parts.facts
    timeless, stored = replace(plan, period=None), list[KeptFrame]()
    parts = PartsWithFacts(read.statistics(timeless))
    statistics, pairs = compress_parts(parts, timeless, engine, progress, folder=folder)

    def map_parts(work: Callable[[pl.DataFrame], Output], n_parts: int | None) -> Iterator[Output]:
        number = len(pairs) if n_parts is None else n_parts
        if len(stored) < number:
            store = partial(_store_rows, folder=folder or engine.scratch, name=f"times-{number:05d}")
            frames = read.statistics(plan).map(store)
            stored[:] = islice((frame for frame in frames if frame is not None), number)
        return engine.each(stored[:number], partial(_load_and_apply, work=work))

    return replace(statistics, plan=plan, part_mapper=map_parts), pairs, parts.facts


def _store_rows(number: int, statistics: pl.LazyFrame, folder: Path, name: str) -> KeptFrame | None:
    """Write the statistics of a part to disk; None if it is empty."""
    frame = statistics.collect()
    return keep(frame, folder, f"{name}-{number:05d}") if frame.height else None


def read_statistics(
    statistics: Sequence[Statistics], engine: Engine, progress: Progress, factor: float | None = None
) -> CountedLog:
    """Merge statistics and compress the counts; with a `factor`, older days weigh less.

    Raises:
        StatisticsError: the statistics do not match, are damaged, or were replaced meanwhile.
    """
    with checked(statistics, engine.each):
        days = days_of_statistics(statistics)
        metadata = merge_metadata(statistics, factor, None if days is None else days.newest)
        plan = metadata.plan if metadata.decay is None else replace(metadata.plan, weighted=True)
        compressed, pairs = compress_parts(merged_parts(statistics, metadata, engine), plan, engine, progress)
        segments = [segment for entry in statistics for segment in entry.segments]
        compressed = replace(compressed, compute_row_order=partial(total_order, segments))
    return CountedLog(
        metadata.plan, metadata.sources, metadata.rows, compressed, pairs, decay=metadata.decay, days=days
    )


def days_of_statistics(statistics: Sequence[Statistics]) -> Days | None:
    """Return the days of stores; their impressions are 0 unless the days look odd. None without days."""
    named = (date.fromisoformat(day) for entry in statistics for day in entry.days)
    today, days = clock.today(), dict.fromkeys(named, 0.0)
    if not days:
        return None
    if look_odd(days, today):
        for frame in (
            frame
            for entry in statistics
            for segment in entry.segments
            for frame in entry.scan(segment, entry.metadata.plan)
        ):
            by_day = frame.group_by(pl.col(PERIOD).cast(pl.Date)).agg(pl.col(IMPRESSIONS).sum())
            for day, impressions in by_day.collect(engine="streaming").iter_rows():
                days[day] += impressions
    return Days(days, today)


def totals_of_pages(read: ReadLog, plan: StatisticsPlan) -> PageTotals | None:
    """Sum clicks by page; None without pages or with weighted impressions."""
    if read.page_sample is None or plan.weighted:
        return None
    within = pl.lit(True) if plan.max_position is None else pl.col(POSITION) <= plan.max_position
    clicks = (pl.col(CLICK).cast(pl.Int64) * within).sum().alias(CLICKS)
    by_page = (
        read.page_sample.group_by(SESSION)
        .agg(clicks)
        .select(
            pages=pl.len(),
            clicks=pl.col(CLICKS).sum(),
            squared_clicks=(pl.col(CLICKS) ** 2).sum(),
            clicked=(pl.col(CLICKS) > 0).sum(),
        )
    )
    return PageTotals(*map(int, by_page.collect(engine="streaming").row(0)))


def merged_parts(statistics: Sequence[Statistics], metadata: StatisticsMetadata, engine: Engine) -> Parts:
    """Merge stores in parts of whole queries, with decayed weights if the metadata have a decay."""
    segments = [segment for entry in statistics for segment in entry.segments]
    frames = [
        frame if metadata.decay is None else metadata.decay.weigh(frame, entry.metadata.decay)
        for entry in statistics
        for segment in entry.segments
        for frame in entry.scan(segment, metadata.plan)
    ]
    if len(segments) == 1:
        return engine.parts_of(frames)
    return engine.add_up(frames, metadata.plan, distinct=have_distinct_keys(statistics, metadata.plan))


def have_distinct_keys(statistics: Sequence[Statistics], plan: StatisticsPlan) -> bool:
    """Whether no two rows can have equal keys: stores have the plan's period, and share no day."""
    segments = [segment for entry in statistics for segment in entry.segments]
    same = all(entry.metadata.plan.period == plan.period for entry in statistics)
    return plan.period is not None and same and have_distinct_days(segments)


def have_distinct_days(segments: Sequence[Segment]) -> bool:
    """Whether no two segments share a day."""
    days = [day for segment in segments for day in segment.days]
    return len(set(days)) == len(days)


def compress_parts(
    statistics: Parts,
    plan: StatisticsPlan,
    engine: Engine,
    progress: Progress,
    decay: Decay | None = None,
    folder: Path | None = None,
) -> tuple[SufficientStatistics, tuple[KeptFrame, ...]]:
    """Compress parts to merged statistics and the pairs of each part; with a decay, counts become sums of weights.

    Raises:
        SchemaError: nothing was counted.
    """
    plan = plan if decay is None else replace(plan, weighted=True)
    scratch = None if statistics.in_memory else folder or engine.scratch
    compressed = list[tuple[PartStatistics, KeptFrame, KeptFrame | None]]()
    with progress.stage("counting", statistics.number) as stage:
        for part in statistics.map(partial(_compress_and_store, plan=plan, decay=decay, folder=scratch)):
            stage.advance()
            if part is not None:
                compressed.append(part)
    if not compressed:
        raise SchemaError(f"no impression is left within --max-position {plan.max_position}.")
    stored = [rows for _, _, rows in compressed if rows is not None]

    def map_parts(work: Callable[[pl.DataFrame], Output], n_parts: int | None) -> Iterator[Output]:
        if all(rows.in_memory for rows in stored):
            return (work(rows.load()) for rows in stored[:n_parts])
        return engine.each(stored[:n_parts], partial(_load_and_apply, work=work))

    merged = merge_parts([part for part, _, _ in compressed], plan, map_parts)
    return merged, tuple(pairs for _, pairs, _ in compressed)


def _compress_and_store(
    number: int, statistics: pl.LazyFrame, plan: StatisticsPlan, decay: Decay | None, folder: Path | None
) -> tuple[PartStatistics, KeptFrame, KeptFrame | None] | None:
    """Compress one part: the part without pairs, its pairs, and its rows if later tests need them; None if empty.

    Args:
        number: number of the part.
        statistics: counts of the part.
        plan: keys of the counts.
        decay: decay to apply to the counts.
        folder: directory for the results; None keeps them in memory.
    """
    frame = (statistics if decay is None else decay.weigh(statistics)).collect()
    if not frame.height:
        return None
    part = compress_part(frame, plan)
    pairs = keep(part.pairs, folder, f"pairs-{number:05d}", quickly=True)
    has_later_tests = plan.period or plan.auxiliary_columns or plan.randomized
    rows = keep(frame, folder, f"rows-{number:05d}") if has_later_tests else None
    part = replace(part, pairs=part.pairs.clear())
    return part if folder is None else store_part(part, number, folder), pairs, rows


def _load_and_apply(rows: KeptFrame, work: Callable[[pl.DataFrame], Output]) -> Output:
    return work(rows.load())


MOST_VALUES = 10_000
"""Most values of a column to fit each separately: a column of more values names pages or users, not markets."""


@dataclass(frozen=True)
class ValueOfColumn:
    """A value of a column, and the counts of its rows."""

    value: object  # None for empty cells
    impressions: float  # number of impressions, or the sum of their weights
    clicks: float  # number of clicks, or the sum of their weights
    count: Callable[[], CountedLog]  # count the rows with this value; `rows` of the result are those of the whole log


def count_by_value(
    log: Log, plan: StatisticsPlan, column: str, engine: Engine, progress: Progress, factor: float | None = None
) -> tuple[ReadLog, LogFacts | None, list[ValueOfColumn]]:
    """Read a log once and count it separately for each value of a column.

    Args:
        log: the log, opened with `column` as a stratum.
        plan: keys of the counts of each value, without `column`.
        column: column of the log.
        engine: engine that reads and counts.
        progress: progress display.
        factor: weight of a day relative to the next day; by default all days weigh the same.

    Returns:
        The log, the facts of its counts, and its values in ascending order, the empty one last.

    Raises:
        SchemaError: the log breaks the contract, or the column has too many values, or NaN or an infinite one.
    """
    read = read_log(log, replace(plan, strata=(column, *plan.strata)), engine, progress)
    statistics = PartsWithFacts(read.statistics(read.plan))
    folder = engine.scratch / "by-value"
    folder.mkdir(mode=0o700)
    plan = replace(read.plan, strata=tuple(name for name in read.plan.strata if name != column))
    split = partial(_split_by_value, column=column, columns=plan.columns, folder=folder)
    parts = defaultdict[object, list[_CountsOfValue]](list)
    with progress.stage(f"counting by {column}", statistics.number) as stage:
        for counts_by_value in statistics.map(split):
            stage.advance()
            for value, counts in counts_by_value:
                # NaN is equal to no other NaN: it is no key.
                if isinstance(value, float) and not isfinite(value):
                    raise SchemaError(
                        f"column {column!r} holds {value}, which names no part of a log. Leave it empty in these rows, "
                        "or take them out."
                    )
                parts[value].append(counts)
    if len(parts) > MOST_VALUES:
        raise SchemaError(
            f"column {column!r} has {len(parts):,} values, and each would be a result of its own; {MOST_VALUES:,} are "
            "the most. Name a column of markets, devices or the like."
        )

    def count(number: int, value: object) -> CountedLog:
        own = folder / f"value-{number:05d}"
        own.mkdir(mode=0o700)
        decay = None if factor is None or read.days is None else Decay(factor, read.days.newest)
        rows = engine.parts_of([stored.scan() for stored, _, _ in parts[value]])
        counted, pairs = compress_parts(rows, plan, engine, progress, decay, own)
        only = pl.col(column).eq_missing(pl.lit(value, read.log.schema[column]))
        counted = replace(counted, compute_row_order=partial(order_within, read, plan, only))
        source = read.sources, read.rows
        return CountedLog(plan, *source, counted, pairs, decay=decay, days=read.days, clicks=read.clicks)

    values = list[ValueOfColumn]()
    for number, value in enumerate(sorted(parts, key=lambda value: (value is None, "" if value is None else value))):
        impressions, clicks = sum(shown for _, shown, _ in parts[value]), sum(clicked for _, _, clicked in parts[value])
        values.append(ValueOfColumn(value, impressions, clicks, partial(count, number, value)))
    return read, statistics.facts, values


_CountsOfValue = tuple[KeptFrame, float, float]
"""Statistics of one part and value, and their sums of impressions and clicks."""


def _split_by_value(
    number: int, statistics: pl.LazyFrame, column: str, columns: tuple[str, ...], folder: Path
) -> list[tuple[object, _CountsOfValue]]:
    """Split the statistics of a part by value and write each to disk."""
    by_value = statistics.collect().partition_by(column, as_dict=True, maintain_order=True)
    return [
        (
            value,
            (
                keep(rows.select(columns), folder, f"part-{number:05d}-{place:05d}"),
                float(rows[IMPRESSIONS].sum()),
                float(rows[CLICKS].sum()),
            ),
        )
        for place, ((value,), rows) in enumerate(by_value.items())
    ]
