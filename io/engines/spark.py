"""The Spark engine: the local engine's steps on many machines.

Polars reads the files in Spark's Python workers, as on one machine. Spark counts and shuffles. Polars processes each
part in the worker that holds it. Only counts and signatures, which are fitted here, return to this process.
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
from posbias.io.engines import engine
from posbias.io.engines.engine import Item, KeepSessions, Output
from posbias.io.engines.spark_session import Session, cores_of, shuffle_into, spark_errors
from posbias.io.engines.spark_worker import (
    RESULT,
    WIRE,
    collection_task,
    from_batches,
    item_task,
    part_task,
    row_task,
    spark_name,
    spark_schema,
    to_spark,
)
from posbias.io.log.click_log import Log, good_rows
from posbias.io.log.clicks import JOINED_CLICK, MOST_COMPARED
from posbias.io.log.scan import reading
from posbias.io.places.temporary import remove_unfinished, whole_files
from posbias.io.progress import RowCounter
from posbias.io.results.tables import write_part

SparkFrame = Any
"""pyspark.sql.DataFrame; PySpark is an optional dependency."""


def _map_partitions(
    frame: SparkFrame, schema: pl.Schema, work: Callable[[pl.LazyFrame], pl.LazyFrame], to: pl.Schema
) -> SparkFrame:
    """Apply a function of lazy frames, from `schema` to the schema `to`, to each partition."""
    return frame.mapInArrow(row_task(lambda rows: to_spark(work(rows), to), schema), spark_schema(to))


def _collect(frame: SparkFrame, schema: pl.Schema) -> pl.DataFrame:
    """Collect a Spark frame into this process."""
    return from_batches(frame.toArrow().to_batches(), schema)


def _results(frame: SparkFrame) -> Iterator[Any]:
    """Yield the results of workers in the order of parts or items."""
    with spark_errors():
        results = frame.collect()
    for row in sorted(results):
        yield WIRE.from_bytes(row.result)


def _sample(rows: SparkFrame, column: str, number: int) -> SparkFrame:
    """Sample the rows of one in `number` values of a column, by hash."""
    functions: Any = import_module("pyspark.sql.functions")
    return rows.filter(functions.pmod(functions.xxhash64(column), functions.lit(number)) == 0) if number > 1 else rows


def _sums_by_reason(rows: SparkFrame, summed: dict[str, str]) -> pl.DataFrame:
    """Aggregate by `rejected`: for each output name the sum of a column, or with `*` the number of rows."""
    by_reason = rows.groupBy(REJECTED).agg({name: "count" if name == "*" else "sum" for name in summed.values()})
    columns = REJECTED, *("count(1)" if name == "*" else f"sum({name})" for name in summed.values())
    counts = [[row[name] for name in columns] for row in by_reason.collect()]
    return pl.DataFrame(counts, dict.fromkeys((REJECTED, *summed), pl.Int64), orient="row").sort(REJECTED)


_PAGE_SUMS = pl.Schema({**dict.fromkeys((REJECTED, engine.PAGES, engine.ROWS, CLICKS), pl.Int64()), **PAGE_ENDS})


def _sum_pages(checked: pl.LazyFrame) -> pl.LazyFrame:
    """Sum `pages` to rows of `_PAGE_SUMS`: counts by `rejected`, and a row without `rejected` with the page ends."""
    sums = (
        pl.len().cast(pl.Int64).alias(engine.PAGES),
        pl.col(engine.ROWS).sum(),
        pl.col(PAGE_CLICKS).sum().alias(CLICKS),
    )
    by_fault = checked.group_by(pl.col(REJECTED).cast(pl.Int64)).agg(*sums)
    return pl.concat([by_fault, count_page_ends(checked)], how="diagonal").select(_PAGE_SUMS.names())


_FEWEST_PARTS = 2
_SLICES_PER_CORE = 2  # slices of a log per core, so that no core waits long for another
_SHORTEST, _LONGEST = 1 << 16, 1 << 22  # fewest and most rows of a slice
_MANY_TASKS = 4096
_CLICK_KEYS = [SESSION, DOC]


@dataclass(frozen=True)
class SparkParts:
    """Partitions of a Spark frame as parts."""

    frame: SparkFrame  # rows with the names and types of Spark
    schema: pl.Schema  # names and types of the rows in Polars
    number: int | None  # number of partitions, if it is known
    in_memory: bool = False
    order: tuple[str, ...] = ()  # columns by which the rows of a part are sorted; empty for any order

    def map(self, work: Callable[[int, pl.LazyFrame], Output]) -> Iterator[Output]:
        """Yield `work(number, rows)` for each partition with rows, and for the first one."""
        with spark_errors():
            results = self.frame.mapInArrow(part_task(work, self.schema, self.order), RESULT)
        yield from _results(results)


@dataclass(frozen=True)
class SparkReadLog(engine.ReadLog):
    """A log after reading by Spark."""

    good: SparkParts  # accepted impressions, as read or by session: a query may lie in several parts
    n_parts: int  # number of parts of whole queries
    engine: "SparkEngine"

    @property
    def pieces(self) -> SparkParts:
        """Accepted impressions, as read or by session; a query may lie in several parts."""
        return self.good

    @cached_property
    def buckets(self) -> SparkParts:  # pyright: ignore[reportIncompatibleMethodOverride] - made once
        """Accepted impressions by query, shuffled once."""
        with spark_errors():
            by_query = _by_query(self.good.frame, self.good.schema, self.n_parts)
            return replace(by_query, frame=self.engine.persist(by_query.frame))

    @property
    def page_sample(self) -> pl.LazyFrame | None:
        """Pages of a sample of queries, collected here; of a sample of sessions if few queries hold most rows."""
        if not self.log.has_sessions:
            return None
        rows, frame = self.rows_read - sum(self.rejected.values()), self.good.frame
        one_in = -(-rows // engine.SAMPLED_ROWS)
        with spark_errors():
            sample = _sample(frame, SESSION if self.log.page_rules.several_queries else QUERY, one_in)
            if rows > engine.SAMPLED_ROWS and not engine.SAMPLED_ROWS // 4 <= sample.count() <= 2 * engine.SAMPLED_ROWS:
                sample = _sample(frame, SESSION, one_in)
            return _collect(sample, self.good.schema).lazy()

    @cached_property
    def in_order(self) -> Sequence[pl.LazyFrame]:  # pyright: ignore[reportIncompatibleMethodOverride] - made once
        """Rows in file order, read again; empty for tables and for clicks in their own files: no order is known."""
        if self.log.click_sources or self.log.request.tables is not None:
            return ()
        slices = self.engine.slices_of(self.log)
        sample = partial(engine.sample_rows, most=-(-engine.ROWS_IN_ORDER // len(slices)))
        samples = self.engine.each([[good_rows(rows)] for rows in slices], sample)
        return [pl.concat(chain.from_iterable(samples)).lazy()]

    def statistics(self, plan: StatisticsPlan) -> SparkParts:
        """Sufficient statistics, counted by Spark.

        Each partition is counted before the shuffle by query: a query with most rows of a log then keeps all cores
        busy, and no worker holds more than its counts.
        """
        empty = plan.count(nw.from_native(pl.LazyFrame(schema=self.good.schema)))
        with spark_errors():
            counted = _with_spark_names(plan).count(nw.from_native(self.good.frame)).to_native()
            return _by_query(counted, empty.to_native().collect_schema(), self.n_parts, plan.keys)


@dataclass(frozen=True)
class SparkEngine(engine.Engine):
    """Read, count and merge with Spark; `memory` is the target of one Python worker."""

    session: Session = field(kw_only=True)
    # To be unpersisted at the end of the command, as a Spark session may outlive it
    persisted: list[SparkFrame] = field(default_factory=list[SparkFrame])

    in_this_process = False

    def persist(self, frame: SparkFrame) -> SparkFrame:
        """Persist a frame that is used several times."""
        self.persisted.append(frame.persist())
        return frame

    def unpersist(self, frame: SparkFrame) -> None:
        """Unpersist a frame; errors of a broken Spark session are ignored."""
        self.persisted.remove(frame)
        with suppress(EngineError), spark_errors():
            frame.unpersist()

    def close(self) -> None:
        """Unpersist all frames."""
        for frame in reversed(self.persisted.copy()):
            self.unpersist(frame)

    def read(
        self, log: Log, plan: StatisticsPlan, *, keep_sessions: KeepSessions, on_rows: RowCounter | None = None
    ) -> SparkReadLog:
        """Read the log once and reject rows and pages that break the contract."""
        del on_rows
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
            results = self._numbers(len(listed)).mapInArrow(item_task(work, listed), RESULT) if listed else None
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
        return max(_FEWEST_PARTS, self._cores, engine.fewest_parts(rows, schema, self.memory))

    def _frame_of(self, frames: Sequence[pl.LazyFrame], schema: pl.Schema) -> SparkFrame:
        """Return a Spark frame of lazy frames of one schema, which workers collect."""
        task = collection_task([to_spark(frame, schema) for frame in frames])
        return self._numbers(len(frames)).mapInArrow(task, spark_schema(schema))

    def slices_of(self, log: Log) -> list[pl.LazyFrame]:
        """Split a log into slices in log order, with absolute paths; clicks in files of their own are not joined."""
        n_rows = log.estimated_rows // (_SLICES_PER_CORE * self._cores)
        return log.with_absolute_paths.slices(min(max(n_rows, _SHORTEST), _LONGEST))

    def _read(self, log: Log, plan: StatisticsPlan, *, keep_sessions: KeepSessions) -> SparkReadLog:
        schema, rows = log.impressions.collect_schema(), log.estimated_rows
        n_parts = self._parts_for(rows, schema)
        shuffle_into(self.session, n_parts)
        slices = self.slices_of(log)
        shown = self._frame_of(slices, schema)
        clicks = None
        if log.click_sources:  # impressions without clicks, and clicks, which one task reads
            keys = pl.Schema({name: schema[name] for name in _CLICK_KEYS})
            clicks = self.persist(self._frame_of([log.with_absolute_paths.clicked_keys], keys))
            functions: Any = import_module("pyspark.sql.functions")
            marked = clicks.withColumn(JOINED_CLICK, functions.lit(1).cast("tinyint"))
            click = functions.coalesce(functions.col(JOINED_CLICK), functions.col(CLICK)).alias(CLICK)
            columns = [click if name == CLICK else functions.col(f"`{spark_name(name)}`") for name in schema]
            shown = shown.join(marked, on=_CLICK_KEYS, how="left").select(*columns)
        all_pages = log.has_sessions and (keep_sessions is True or log.docs_once or self.check_pages == "all")
        if all_pages or len(slices) < n_parts:
            shown = shown.repartition(n_parts, SESSION if log.has_sessions else DOC)
        shown = self.persist(shown)
        summed = {engine.ROWS: "*", IMPRESSIONS: IMPRESSIONS if IMPRESSIONS in schema else "*", CLICKS: CLICK}
        counts = _sums_by_reason(shown, summed)
        read = int(counts[engine.ROWS].sum())
        rejected, totals = engine.check_rows(log, counts, self.on_bad_rows)
        listed = list(self.each(log.with_absolute_paths.listed_clicks, engine.collected))
        joined = log.joined_clicks(partial(self._impressions, shown, schema), listed)
        if clicks is not None:
            self.unpersist(clicks)
        good = shown.filter(f"{REJECTED} = 0").drop(REJECTED)
        schema = pl.Schema({name: dtype for name, dtype in schema.items() if name != REJECTED})
        repeats = dict[str, int]()
        if log.docs_once:
            once = partial(mark_repeats, clicks_above_matter=plan.needs_pages, cell=plan.cell)
            marked = self.persist(_map_partitions(good, schema, once, pl.Schema({**schema, REJECTED: pl.UInt8()})))
            left_out = _sums_by_reason(marked.filter(f"{REJECTED} > 0"), {engine.ROWS: "*", CLICKS: CLICK})
            repeats, totals = engine.rows_by_reason(left_out), engine.add_lost_clicks(totals, left_out)
            good = marked.filter(f"{REJECTED} = 0").drop(REJECTED)
        if log.has_sessions:
            lost = shown.filter(f"{REJECTED} > 0") if plan.needs_pages and rejected else None
            one_in = 1 if all_pages else max(1, read // engine.SAMPLED_ROWS)
            faulty, faults, ends = self._check_pages(log, good, schema, n_parts, lost, read, one_in)
            totals = engine.add_lost_clicks(replace(totals, page_ends=ends), faults)
            rejected |= engine.rows_by_reason(faults)
            good = good.join(faulty, on=SESSION, how="left_anti") if faults.height else good
        pieces = SparkParts(good, schema, None)
        return SparkReadLog(log, plan, read, rejected | repeats, totals, joined, pieces, n_parts, self)

    def _impressions(
        self, shown: SparkFrame, schema: pl.Schema, keys: pl.DataFrame | None, columns: Sequence[str]
    ) -> pl.DataFrame:
        """Return columns of impressions, as `Shown` specifies."""
        if keys is None:
            rows = shown.select(*columns).limit(MOST_COMPARED)
        else:
            matching = shown.join(self._frame_of([keys.lazy()], keys.schema), on=keys.columns, how="left_semi")
            rows = matching.select(*columns).distinct()
        return _collect(rows, pl.Schema({name: schema[name] for name in columns}))

    def _check_pages(
        self,
        log: Log,
        good: SparkFrame,
        schema: pl.Schema,
        n_parts: int,
        lost: SparkFrame | None,
        rows: int,
        one_in: int,
    ) -> tuple[SparkFrame, pl.DataFrame, PageEnds]:
        """Check a sample of one in `one_in` sessions; all of them if it has faulty ones and these do not stop the run.

        Returns:
            The sessions of faulty pages, their counts by reason, and the ends of valid pages.

        Raises:
            SchemaError: faulty pages stop the run.
        """
        counts = dict.fromkeys((engine.ROWS, PAGE_CLICKS, LAST_CLICKED), pl.Int64())
        page_schema = pl.Schema({SESSION: schema[SESSION], **counts, REJECTED: pl.UInt8()})
        whole = _sample(good, SESSION, one_in).repartition(n_parts, SESSION)
        checked = self.persist(_map_partitions(whole, schema, partial(pages, rules=log.page_rules), page_schema))
        faulty = checked.filter(f"{REJECTED} > 0")
        sums = _collect(_map_partitions(checked, page_schema, _sum_pages, _PAGE_SUMS), _PAGE_SUMS)
        by_fault = sums.filter(pl.col(REJECTED) > 0).group_by(REJECTED)
        faults = by_fault.agg(pl.col(engine.PAGES, engine.ROWS, CLICKS).sum()).sort(REJECTED)
        if faults.height and one_in > 1 and self.on_bad_rows == "drop":
            self.unpersist(checked)
            return self._check_pages(log, good, schema, n_parts, lost, rows, one_in=1)
        if faults.height:
            examples = _collect(faulty.dropDuplicates([REJECTED]), page_schema)
            engine.check_pages(log, faults, examples, rows, self.on_bad_rows)
        ends = sum_page_ends([sums.filter(pl.col(REJECTED).is_null()).select(PAGE_ENDS.names())])
        if lost is not None:  # valid pages that lost a row are faulty, too
            functions: Any = import_module("pyspark.sql.functions")
            lossy = checked.filter(f"{REJECTED} = 0").join(lost.select(SESSION), on=SESSION, how="left_semi")
            lossy = lossy.withColumn(REJECTED, functions.lit(int(PageRejection.FAULTY_ROW)).cast("smallint"))
            losses = _sums_by_reason(lossy, {engine.PAGES: "*", engine.ROWS: engine.ROWS, CLICKS: PAGE_CLICKS})
            faulty, faults = faulty.union(lossy), pl.concat([faults, losses])
        if not faults.height:
            self.unpersist(checked)
        return faulty.select(SESSION), faults, ends


def _write_rows(item: tuple[int, Item], rows: Callable[[Item], pl.DataFrame], folder: Path) -> None:
    number, of_part = item
    with whole_files(folder) as unfinished:
        write_part(rows(of_part), unfinished, number)


def _by_query(frame: SparkFrame, schema: pl.Schema, n_parts: int, order: tuple[str, ...] = ()) -> SparkParts:
    """Partition by query; no shuffle if the frame already is."""
    return SparkParts(frame.repartition(n_parts, QUERY), schema, n_parts, order=order)


def _with_spark_names(plan: StatisticsPlan) -> StatisticsPlan:
    """Return a plan with the names of columns in Spark."""
    kinds = ("cell", "context", "strata", "clusters", "arms")
    return replace(plan, **{kind: tuple(map(spark_name, getattr(plan, kind))) for kind in kinds})
