"""The Spark engine: the plans and steps of the local engine on many machines.

Polars reads the files, in Spark's Python workers, just as it does on one machine. Spark counts, and brings together
what belongs together. What is done to a part, Polars does again, in the worker that holds it. Only small things come
back to this process: signatures, which are fitted here, and counts.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import narwhals as nw
import polars as pl

from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.errors import EngineError
from posbias.core.log.impressions import REJECTED
from posbias.core.log.pages import (
    LAST_CLICKED,
    PAGE_CLICKS,
    PAGE_ENDS,
    PageEnds,
    PageRejection,
    count_page_ends,
    mark_repeats,
    pages,
    sum_page_ends,
)
from posbias.core.schema import CLICK, CLICKS, DOC, IMPRESSIONS, QUERY, SESSION
from posbias.io.engines.engine import (
    PAGES,
    ROWS,
    ROWS_IN_ORDER,
    SAMPLED_ROWS,
    Engine,
    Item,
    KeepSessions,
    Output,
    ReadLog,
    collected,
    fewest_parts,
    judge_pages,
    judge_rows,
    rows_by_reason,
    sample_rows,
    without_clicks,
)
from posbias.io.engines.spark_session import Session, cores_of, shuffle_into, spark_errors
from posbias.io.engines.spark_worker import (
    RESULT,
    WIRE,
    collect_frames,
    from_batches,
    on_items,
    on_part,
    on_rows,
    packed,
    spark_name,
    spark_schema,
)
from posbias.io.log.click_log import Log, good_rows
from posbias.io.log.clicks import JOINED_CLICK, MOST_COMPARED
from posbias.io.log.scan import reading
from posbias.io.places.temporary import remove_unfinished, whole_files
from posbias.io.progress import RowCounter
from posbias.io.results.tables import write_part

SparkFrame = Any
"""pyspark.sql.DataFrame, which is not there unless the extra is installed."""


def _mapped(
    frame: SparkFrame, schema: pl.Schema, work: Callable[[pl.LazyFrame], pl.LazyFrame], to: pl.Schema
) -> SparkFrame:
    """Apply a function on lazy frames to each partition."""
    return frame.mapInArrow(on_rows(lambda rows: packed(work(rows), to), schema), spark_schema(to))


def _here(frame: SparkFrame, schema: pl.Schema) -> pl.DataFrame:
    """Collect a Spark frame into this process."""
    return from_batches(frame.toArrow().to_batches(), schema)


def _results(frame: SparkFrame) -> Iterator[Any]:
    """Yield the results of workers in the order of parts or items."""
    with spark_errors():
        results = frame.collect()
    for row in sorted(results):
        yield WIRE.from_bytes(row.result)


def _one_in(rows: SparkFrame, column: str, number: int) -> SparkFrame:
    """Sample rows: those of one in `one_in` values of a column, by hash."""
    functions: Any = import_module("pyspark.sql.functions")
    return rows.filter(functions.pmod(functions.xxhash64(column), functions.lit(number)) == 0) if number > 1 else rows


def _sums_by_reason(rows: SparkFrame, summed: dict[str, str]) -> pl.DataFrame:
    """Aggregate by `rejected`: for each output name the sum of a column, or with `*` the number of rows."""
    by_reason = rows.groupBy(REJECTED).agg({name: "count" if name == "*" else "sum" for name in summed.values()})
    columns = REJECTED, *("count(1)" if name == "*" else f"sum({name})" for name in summed.values())
    counts = [[row[name] for name in columns] for row in by_reason.collect()]
    return pl.DataFrame(counts, dict.fromkeys((REJECTED, *summed), pl.Int64), orient="row").sort(REJECTED)


_PAGE_SUMS = pl.Schema({**dict.fromkeys((REJECTED, PAGES, ROWS, CLICKS), pl.Int64()), **PAGE_ENDS})


def _sums_of_pages(judged: pl.LazyFrame) -> pl.LazyFrame:
    """Aggregate pages to `_PAGE_SUMS`: counts by `rejected`; rows without `rejected` say where valid pages end."""
    sums = pl.len().cast(pl.Int64).alias(PAGES), pl.col(ROWS).sum(), pl.col(PAGE_CLICKS).sum().alias(CLICKS)
    by_fault = judged.group_by(pl.col(REJECTED).cast(pl.Int64)).agg(*sums)
    return pl.concat([by_fault, count_page_ends(judged)], how="diagonal").select(_PAGE_SUMS.names())


_FEWEST_PARTS = 2
_SLICES_PER_CORE = 2  # of a log, so that no core waits long for another
_SHORTEST, _LONGEST = 1 << 16, 1 << 22  # rows of a slice
_MANY_TASKS = 4096
_CLICK_KEYS = [SESSION, DOC]


@dataclass(frozen=True)
class SparkParts:
    """Parts that are the partitions of a Spark frame."""

    frame: SparkFrame  # the rows, as they travel
    schema: pl.Schema  # their names and types in Polars
    number: int | None  # of partitions, if that is known
    in_memory: bool = False  # never in this process
    order: tuple[str, ...] = ()  # the columns by which the rows of a part are sorted; none for no order

    def map(self, work: Callable[[int, pl.LazyFrame], Output]) -> Iterator[Output]:
        """Yield `work(number, rows)` for each part that holds rows."""
        with spark_errors():
            results = self.frame.mapInArrow(on_part(work, self.schema, self.order), RESULT)
        yield from _results(results)


@dataclass(frozen=True)
class ReadBySpark(ReadLog):
    """A log after reading by Spark."""

    good: SparkParts  # canonical impressions, as they were read, or by session: a query may lie in several parts
    n_parts: int  # that hold whole queries
    engine: "SparkEngine"

    @property
    def pieces(self) -> SparkParts:
        """Accepted impressions, as read or by session; a query may lie in several parts."""
        return self.good

    @cached_property
    def buckets(self) -> SparkParts:  # pyright: ignore[reportIncompatibleMethodOverride] - made once
        """Accepted impressions by query: the shuffle is made once."""
        with spark_errors():
            by_query = _by_query(self.pieces.frame, self.pieces.schema, self.n_parts)
            return replace(by_query, frame=self.engine.keep(by_query.frame))

    @property
    def some_pages(self) -> pl.LazyFrame | None:
        """Pages of a sample of queries, collected here; of a sample of sessions if few queries hold most rows."""
        if not self.log.has_sessions:
            return None
        rows, schema, frame = self.rows_read - sum(self.rejected.values()), self.pieces.schema, self.pieces.frame
        with spark_errors():
            split = self.log.page_rules.several_queries
            sampled = _one_in(frame, SESSION if split else QUERY, -(-rows // SAMPLED_ROWS))
            if rows > SAMPLED_ROWS and not SAMPLED_ROWS // 4 <= sampled.count() <= 2 * SAMPLED_ROWS:
                sampled = _one_in(frame, SESSION, -(-rows // SAMPLED_ROWS))
            return _here(sampled, schema).lazy()

    @cached_property
    def in_order(self) -> Sequence[pl.LazyFrame]:  # pyright: ignore[reportIncompatibleMethodOverride] - made once
        """Rows in file order, read again; empty for tables and for clicks in their own files: no order is known."""
        if self.log.click_sources or self.log.request.tables is not None:
            return ()
        slices = self.engine.slices_of(self.log)
        some = partial(sample_rows, most=-(-ROWS_IN_ORDER // len(slices)))
        return [pl.concat(chain.from_iterable(self.engine.each([[good_rows(one)] for one in slices], some))).lazy()]

    def statistics(self, plan: StatisticsPlan) -> SparkParts:
        """Sufficient statistics, counted by Spark.

        Each piece is counted before queries are brought together, so that a query with most rows of a log keeps every
        core busy, and no worker holds more of it than its counts.
        """
        empty = plan.count(nw.from_native(pl.LazyFrame(schema=self.pieces.schema)))
        with spark_errors():
            counted = _with_spark_names(plan).count(nw.from_native(self.pieces.frame)).to_native()
            return _by_query(counted, empty.to_native().collect_schema(), self.n_parts, plan.keys)


@dataclass(frozen=True)
class SparkEngine(Engine):
    """Read, count and merge with Spark; `memory` is the target of one Python worker."""

    session: Session = field(kw_only=True)
    kept: list[SparkFrame] = field(default_factory=list[SparkFrame])  # a Spark session may outlive the command

    in_this_process = False

    def keep(self, frame: SparkFrame) -> SparkFrame:
        """Persist a frame that is used several times."""
        self.kept.append(frame.persist())
        return frame

    def let_go(self, frame: SparkFrame) -> None:
        """Unpersist a frame; errors of a broken Spark session are ignored."""
        self.kept.remove(frame)
        with suppress(EngineError), spark_errors():
            frame.unpersist()

    def close(self) -> None:
        """Unpersist all frames."""
        for frame in reversed(self.kept.copy()):
            self.let_go(frame)

    def read(
        self, log: Log, plan: StatisticsPlan, *, keep_sessions: KeepSessions, on_rows: RowCounter | None = None
    ) -> ReadBySpark:
        """Read the log once and reject rows and pages that break the contract."""
        del on_rows  # the workers read
        with reading([*log.sources, *log.click_sources]), spark_errors():
            return self._read(log, plan, keep_sessions=keep_sessions)

    def add_up(self, statistics: Sequence[pl.LazyFrame], plan: StatisticsPlan, *, distinct: bool = False) -> SparkParts:
        """Merge statistics, e.g. of several days, in parts of whole queries; `distinct` is ignored."""
        del distinct
        schema = statistics[0].collect_schema()
        empty = plan.add_up(nw.from_native(pl.LazyFrame(schema=schema)))
        rows = sum(frame.select(pl.len()).collect().item() for frame in statistics)
        n_parts = self._parts_for(rows, schema)
        with spark_errors():
            shuffle_into(self.session, n_parts)
            added = _with_spark_names(plan).add_up(nw.from_native(self._frame_of(statistics, schema))).to_native()
            return _by_query(added, empty.to_native().collect_schema(), n_parts, plan.keys)

    def each(self, items: Iterable[Item], work: Callable[[Item], Output]) -> Iterator[Output]:
        """Yield `work(item)` for each item, each in a task of its own."""
        listed = list(items)
        with spark_errors():
            results = self._numbers(len(listed)).mapInArrow(on_items(work, listed), RESULT) if listed else None
        return iter(()) if results is None else _results(results)

    def write_table(self, items: Iterable[Item], rows: Callable[[Item], pl.DataFrame], path: Path) -> Iterator[None]:
        """Write the frame `rows(item)` of each item as one Parquet file of a directory."""
        path.mkdir()
        yield from self.each(list(enumerate(items)), partial(_write_rows, rows=rows, folder=path))
        remove_unfinished(path)

    @cached_property
    def _cores(self) -> int:
        return cores_of(self.session)

    def _numbers(self, count: int) -> SparkFrame:
        """Return a Spark frame of the numbers 0 .. count - 1, one per partition up to `_MANY_TASKS`."""
        return self.session.range(0, count, 1, min(count, _MANY_TASKS))

    def _parts_for(self, rows: int, schema: pl.Schema) -> int:
        return max(_FEWEST_PARTS, self._cores, fewest_parts(rows, schema, self.memory))

    def _frame_of(self, frames: Sequence[pl.LazyFrame], schema: pl.Schema) -> SparkFrame:
        """Let workers collect lazy frames of one schema into one Spark frame."""
        task = collect_frames([packed(frame, schema) for frame in frames])
        return self._numbers(len(frames)).mapInArrow(task, spark_schema(schema))

    def slices_of(self, log: Log) -> list[pl.LazyFrame]:
        """Split a log into slices in log order, with absolute paths; clicks in files of their own are not joined."""
        n_rows = log.estimated_rows // (_SLICES_PER_CORE * self._cores)
        return log.with_absolute_paths.slices(min(max(n_rows, _SHORTEST), _LONGEST))

    def _read(self, log: Log, plan: StatisticsPlan, *, keep_sessions: KeepSessions) -> ReadBySpark:
        schema, rows = log.impressions.collect_schema(), log.estimated_rows
        n_parts = self._parts_for(rows, schema)
        shuffle_into(self.session, n_parts)
        slices = self.slices_of(log)
        shown = self._frame_of(slices, schema)
        clicks = None
        if log.click_sources:  # impressions of which none is clicked, and the clicks, which one task reads
            keys = pl.Schema({name: schema[name] for name in _CLICK_KEYS})
            clicks = self.keep(self._frame_of([log.with_absolute_paths.clicked_keys], keys))
            functions: Any = import_module("pyspark.sql.functions")
            marked = clicks.withColumn(JOINED_CLICK, functions.lit(1).cast("tinyint"))
            click = functions.coalesce(functions.col(JOINED_CLICK), functions.col(CLICK)).alias(CLICK)
            columns = [click if name == CLICK else functions.col(f"`{spark_name(name)}`") for name in schema]
            shown = shown.join(marked, on=_CLICK_KEYS, how="left").select(*columns)
        every_page = log.has_sessions and (keep_sessions is True or log.docs_once or self.check_pages == "all")
        if every_page or len(slices) < n_parts:
            shown = shown.repartition(n_parts, SESSION if log.has_sessions else DOC)
        shown = self.keep(shown)
        summed = {ROWS: "*", IMPRESSIONS: IMPRESSIONS if IMPRESSIONS in schema else "*", CLICKS: CLICK}
        counts = _sums_by_reason(shown, summed)
        read = int(counts[ROWS].sum())
        rejected, totals = judge_rows(log, counts, self.on_bad_rows)
        listed = list(self.each(log.with_absolute_paths.listed_clicks, collected))
        joined = log.joined_clicks(partial(self._among, shown, schema), listed)
        if clicks is not None:
            self.let_go(clicks)
        good = shown.filter(f"{REJECTED} = 0").drop(REJECTED)
        schema = pl.Schema({name: dtype for name, dtype in schema.items() if name != REJECTED})
        repeats = dict[str, int]()
        if log.docs_once:
            once = partial(mark_repeats, clicks_above_matter=plan.needs_pages, cell=plan.cell)
            marked = self.keep(_mapped(good, schema, once, pl.Schema({**schema, REJECTED: pl.UInt8()})))
            left_out = _sums_by_reason(marked.filter(f"{REJECTED} > 0"), {ROWS: "*", CLICKS: CLICK})
            repeats, totals = rows_by_reason(left_out), without_clicks(totals, left_out)
            good = marked.filter(f"{REJECTED} = 0").drop(REJECTED)
        if log.has_sessions:
            lost = shown.filter(f"{REJECTED} > 0") if plan.needs_pages and rejected else None
            one_in = 1 if every_page else max(1, read // SAMPLED_ROWS)
            bad, faults, ends = self._bad_pages(log, good, schema, n_parts, lost, read, one_in)
            totals = without_clicks(replace(totals, page_ends=ends), faults)
            rejected |= rows_by_reason(faults)
            good = good.join(bad, on=SESSION, how="left_anti") if faults.height else good
        pieces = SparkParts(good, schema, None)
        return ReadBySpark(log, plan, read, rejected | repeats, totals, joined, pieces, n_parts, self)

    def _among(
        self, shown: SparkFrame, schema: pl.Schema, some: pl.DataFrame | None, columns: Sequence[str]
    ) -> pl.DataFrame:
        """Return columns of impressions; the contract is that of `ImpressionLookup`."""
        rows = shown
        if some is not None:
            rows = rows.join(self._frame_of([some.lazy()], some.schema), on=some.columns, how="left_semi")
        rows = rows.select(*columns).limit(MOST_COMPARED) if some is None else rows.select(*columns).distinct()
        return _here(rows, pl.Schema({name: schema[name] for name in columns}))

    def _bad_pages(
        self,
        log: Log,
        good: SparkFrame,
        schema: pl.Schema,
        n_parts: int,
        lost: SparkFrame | None,
        rows: int,
        one_in: int,
    ) -> tuple[SparkFrame, pl.DataFrame, PageEnds]:
        """Return faulty sessions among one in `one_in`, their counts by reason, and the last positions of valid pages.

        Where some of a sample are faulty and not all is at an end, all sessions are looked at.
        """
        counts = dict.fromkeys((ROWS, PAGE_CLICKS, LAST_CLICKED), pl.Int64())
        of_pages = pl.Schema({SESSION: schema[SESSION], **counts, REJECTED: pl.UInt8()})
        whole = _one_in(good, SESSION, one_in).repartition(n_parts, SESSION)
        judged = self.keep(_mapped(whole, schema, partial(pages, rules=log.page_rules), of_pages))
        faulty = judged.filter(f"{REJECTED} > 0")
        sums = _here(_mapped(judged, of_pages, _sums_of_pages, _PAGE_SUMS), _PAGE_SUMS)
        of_faults = sums.filter(pl.col(REJECTED) > 0).group_by(REJECTED)
        faults = of_faults.agg(pl.col(PAGES, ROWS, CLICKS).sum()).sort(REJECTED)
        if faults.height and one_in > 1 and self.on_bad_rows == "drop":
            self.let_go(judged)
            return self._bad_pages(log, good, schema, n_parts, lost, rows, one_in=1)
        if faults.height:
            judge_pages(log, faults, _here(faulty.dropDuplicates([REJECTED]), of_pages), rows, self.on_bad_rows)
        ends = sum_page_ends([sums.filter(pl.col(REJECTED).is_null()).select(PAGE_ENDS.names())])
        if lost is not None:  # the pages that lost a row, other than the faulty ones, with their good rows
            functions: Any = import_module("pyspark.sql.functions")
            lossy = judged.filter(f"{REJECTED} = 0").join(lost.select(SESSION), on=SESSION, how="left_semi")
            of_lost = lossy.withColumn(REJECTED, functions.lit(int(PageRejection.FAULTY_ROW)).cast("smallint"))
            of_reason = _sums_by_reason(of_lost, {PAGES: "*", ROWS: ROWS, CLICKS: PAGE_CLICKS})
            faulty, faults = faulty.union(of_lost), pl.concat([faults, of_reason])
        if not faults.height:
            self.let_go(judged)
        return faulty.select(SESSION), faults, ends


def _write_rows(item: tuple[int, Item], rows: Callable[[Item], pl.DataFrame], folder: Path) -> None:
    number, of_part = item
    with whole_files(folder) as unfinished:
        write_part(rows(of_part), unfinished, number)


def _by_query(frame: SparkFrame, schema: pl.Schema, n_parts: int, order: tuple[str, ...] = ()) -> SparkParts:
    """Repartition by query. Spark moves nothing if the frame already is."""
    return SparkParts(frame.repartition(n_parts, QUERY), schema, n_parts, order=order)


def _with_spark_names(plan: StatisticsPlan) -> StatisticsPlan:
    """Rename the columns of a plan to their names in Spark."""
    kinds = ("cell", "context", "strata", "clusters", "arms")
    return replace(plan, **{kind: tuple(map(spark_name, getattr(plan, kind))) for kind in kinds})
