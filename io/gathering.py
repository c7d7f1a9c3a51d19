"""From logs or statistics to evidence: read, check, count, compress."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from posbias.core.errors import SchemaError
from posbias.core.evidence import Evidence, EvidencePart, compress_part, merge_parts
from posbias.core.schema import PERIOD
from posbias.core.signatures import Numbers
from posbias.core.statistics_plan import StatisticsPlan
from posbias.io.decay import Decay
from posbias.io.engines.local import Bucketed, LocalEngine
from posbias.io.evidence_parts import store_part
from posbias.io.logs import Log
from posbias.io.owned import temporary_files
from posbias.io.progress import Progress
from posbias.io.statistics_metadata import StatisticsMetadata
from posbias.io.statistics_segments import Part, scan_parts
from posbias.io.statistics_store import Statistics, merge_metadata

_Item = TypeVar("_Item")


@dataclass(frozen=True)
class PairsOnDisk:
    """The pairs of one part, kept outside memory between two steps."""

    path: Path

    def load(self) -> pl.DataFrame:
        """Read them back."""
        return pl.read_ipc(self.path)


@dataclass(frozen=True)
class Gathered:
    """A log or several statistics, compressed.

    Attributes:
        plan: what was counted.
        sources: path by digest.
        rows: rows read, used and rejected.
        evidence: the compressed counts.
        pairs: the pairs of each part, in memory if there is one part, else on disk.
        read: the log as it was read, if it was a log.
        decay: how much less older days weigh in the evidence.
    """

    plan: StatisticsPlan
    sources: dict[str, str]
    rows: dict[str, Any]
    evidence: Evidence
    pairs: tuple[pl.DataFrame | PairsOnDisk, ...]
    read: Bucketed | None = None
    decay: Decay | None = None

    def each_part(self) -> Iterator[tuple[pl.DataFrame, Numbers]]:
        """The pairs of each part with the evidence's signature by the part's own."""
        for pairs, signature in zip(self.pairs, self.evidence.signature_of_part, strict=True):
            yield pairs if isinstance(pairs, pl.DataFrame) else pairs.load(), signature


def read_log(
    log: Log, plan: StatisticsPlan, engine: LocalEngine, progress: Progress, *, keep_sessions: bool = False
) -> tuple[Bucketed, dict[str, Any]]:
    """Read and check a log; return it with the counts of its rows for the manifest."""
    size = sum(source.bytes for source in log.sources)
    with progress.stage("reading", log.estimated_rows, unit="rows", size=size) as stage:
        read = engine.read(
            log,
            keep_sessions=keep_sessions or plan.model.needs_session,
            whole_pages=plan.model.needs_session,
            on_rows=stage.advance if progress.is_watched else None,
        )
        rows: dict[str, Any] = {"read": read.rows_read, "used": read.rows_used, "rejected": read.rejected}
        if log.click_sources:
            rows["clicks_without_impression"] = log.orphan_clicks()
    return read, rows


def gather_log(
    log: Log,
    plan: StatisticsPlan,
    engine: LocalEngine,
    progress: Progress,
    *,
    keep_sessions: bool = False,
    factor: float | None = None,
) -> Gathered:
    """Count a log and compress the counts; with a `factor`, older days weigh less (the plan has a period).

    Raises:
        SchemaError: rows or pages break the contract.
    """
    sources = log.digests
    read, rows = read_log(log, plan, engine, progress, keep_sessions=keep_sessions)
    statistics = engine.statistics(read, plan)
    decay = None if factor is None else Decay(factor, _newest_day(read))
    if decay is not None:
        statistics = (decay.weigh(frame.lazy()).collect() for frame in statistics)
    evidence, pairs = _compress(statistics, _weighed(plan, decay), engine.scratch, progress, len(read.buckets))
    return Gathered(plan, sources, rows, evidence, pairs, read, decay)


def gather_statistics(
    statistics: Sequence[Statistics], engine: LocalEngine, progress: Progress, factor: float | None = None
) -> Gathered:
    """Merge statistics and compress the counts; with a `factor`, older days weigh less.

    Raises:
        StatisticsError: they do not go together.
    """
    metadata = merge_metadata(statistics, factor)
    parts, number = merged_parts(statistics, metadata, engine)
    plan = _weighed(metadata.plan, metadata.decay)
    evidence, pairs = _compress(parts, plan, engine.scratch, progress, number)
    return Gathered(metadata.plan, metadata.sources, metadata.rows, evidence, pairs, decay=metadata.decay)


def merged_parts(
    statistics: Sequence[Statistics], metadata: StatisticsMetadata, engine: LocalEngine
) -> tuple[Iterator[pl.DataFrame], int | None]:
    """The statistics added up, in parts of whole queries, and how many parts, if that is known."""
    segments = [segment for entry in statistics for segment in entry.segments]
    if len(segments) == 1:
        parts = [_scan([part], statistics[0], metadata) for part in segments[0].parts]
        return (part.collect() for part in parts), len(parts)
    together = pl.concat([_scan(entry.parts, entry, metadata) for entry in statistics])
    return engine.add_up(together, metadata.plan, sum(int(segment.totals["rows"]) for segment in segments)), None


def _scan(parts: Sequence[Part], held: Statistics, wanted: StatisticsMetadata) -> pl.LazyFrame:
    """Parts of statistics as they are wanted: as they were counted, or decayed (further)."""
    frame = scan_parts(parts)
    return frame if wanted.decay is None else wanted.decay.weigh(frame, held.metadata.decay)


def _newest_day(read: Bucketed) -> date:
    return pl.concat([bucket.select(pl.col(PERIOD).max()) for bucket in read.buckets]).max().collect().item()


def _weighed(plan: StatisticsPlan, decay: Decay | None) -> StatisticsPlan:
    """What the counts are: with decay they are sums of weights."""
    return plan if decay is None else replace(plan, weighted=True)


def ahead(items: Iterator[_Item]) -> Iterator[_Item]:
    """The same items, the next one being made in another thread while this one is used."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        following = thread.submit(lambda: next(items, None))
        while (item := following.result()) is not None:
            following = thread.submit(lambda: next(items, None))
            yield item


def _compress(
    statistics: Iterator[pl.DataFrame],
    plan: StatisticsPlan,
    scratch: Path,
    progress: Progress,
    total: int | None,
) -> tuple[Evidence, tuple[pl.DataFrame | PairsOnDisk, ...]]:
    parts: list[EvidencePart] = []
    pairs: list[pl.DataFrame | PairsOnDisk] = []
    with progress.stage("counting", total) as stage:
        for frame in ahead(statistics):
            stage.advance()
            if not frame.height:
                continue
            part = compress_part(frame, plan)
            if total == 1:
                pairs.append(part.pairs)
                parts.append(part.without_pairs())
                continue
            path = scratch / f"pairs-{len(pairs):05d}.arrow"
            with temporary_files(scratch):
                part.pairs.write_ipc(path)
            pairs.append(PairsOnDisk(path))
            parts.append(store_part(part.without_pairs(), scratch, len(parts)))
    if not parts:
        raise SchemaError(f"no impression is left within --max-position {plan.max_position}.")
    return merge_parts(parts, plan), tuple(pairs)
