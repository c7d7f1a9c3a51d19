"""The local engine: Polars, on one machine, in bounded memory.

A small log is read once into memory. A larger one is split by query into buckets, in temporary files, of which several
are processed at a time. A bucket holds whole queries, and so, as a rule, whole pages.
"""

import secrets
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from itertools import accumulate, compress
from pathlib import Path
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl

from posbias.core.arrays.packing import NUMBER, BitFields, bit_fields, dense_ranks
from posbias.core.arrays.threads import n_threads, thread_map
from posbias.core.counts.counting_plan import (
    StatisticsPlan,
    add_up_weights,
    count_numbers,
    count_packed,
    count_weights,
    merge_pieces,
)
from posbias.core.log.impressions import REJECTED
from posbias.core.log.pages import (
    PAGE_CLICKS,
    PageEnds,
    PageRejection,
    count_page_ends,
    mark_repeats,
    merge_pages,
    pages,
    pages_in_memory,
    sum_page_ends,
)
from posbias.core.schema import CLICK, CLICKS, DOC, IMPRESSIONS, PERIOD, POSITION, QUERY, RANDOMIZED, SESSION
from posbias.io.engines import engine
from posbias.io.engines.engine import FrameParts, Item, KeepSessions, MakeFrame, Output
from posbias.io.log.click_log import Log, good_rows
from posbias.io.log.scan import reading
from posbias.io.places.ownership import remove_tree
from posbias.io.places.temporary import check_room, keep, temporary_files
from posbias.io.progress import RowCounter, report_rows
from posbias.io.results.tables import write_in_one_file

LEAST_BYTES_PER_ROW = 4
"""Least size of a row on disk, measured with integer ids."""

_BUCKET = "posbias_bucket"
_SEEN_ROWS = 1 << 16  # rows at either end of the log from which bit fields are chosen
_CLICKS = 1 << 8  # a rejected row is packed as this number times its code, plus its click


@dataclass(frozen=True)
class Buckets:
    """Rows on disk, split by the hash of a key: as columns, or packed into one 64-bit number and the session.

    Bucket `number` holds rejected rows, bucket `number + 1` accepted rows that could not be packed. Rows with a session
    and rows without one are in separate files.
    """

    folder: Path
    number: int  # number of buckets of accepted rows
    fields: BitFields | None = None  # bit fields of packed rows; None if rows are columns

    def write(self, frames: Iterable[pl.LazyFrame], key: str = QUERY) -> None:
        """Write frames one after the other, split by bucket.

        Args:
            frames: the rows; those with a code in `rejected`, if there is such a column, go to their own bucket.
            key: the column whose equal values go to one bucket.
        """
        for number, frame in enumerate(frames):
            schema, bucket, good = frame.collect_schema(), bucket_of(key, self.number), pl.col(REJECTED) == 0
            if REJECTED in schema:
                bucket = pl.when(good).then(bucket).otherwise(self.number)
            columns = [pl.all()]
            if self.fields is not None:
                bucket = pl.when(good & ~self.fields.fit).then(self.number + 1).otherwise(bucket)
                fault = pl.col(REJECTED).cast(pl.UInt64) * _CLICKS + pl.col(CLICK).cast(pl.UInt8, wrap_numerical=True)
                packed = pl.when(good).then(self.fields.number).otherwise(fault).fill_null(0)
                apart = [name for name in schema if name in {SESSION, PERIOD} and name not in self.fields.names]
                columns = [packed.alias(NUMBER), *map(pl.col, apart)]
            has_session = pl.col(SESSION).is_not_null().cast(pl.Int64) if SESSION in schema else 0
            split = frame.select(*columns, (2 * bucket + has_session).alias(_BUCKET))
            files = pl.PartitionBy(self.folder / f"{number:05d}", key=_BUCKET, include_key=False)
            if self.fields is None:
                split.sink_parquet(files, compression="lz4", statistics=False, mkdir=True)
            else:  # Parquet would take 1.5 times as long, and make numbers no shorter
                split.sink_ipc(files, mkdir=True)

    @property
    def all_fit(self) -> bool:
        """Whether every accepted row could be packed: the bit fields were chosen from both ends of the log only."""
        return not self._files(self.number + 1)

    @property
    def occupied(self) -> list[int]:
        """Numbers of the buckets that hold accepted rows."""
        return [number for number in range(self.number) if self._files(number)]

    @property
    def frames(self) -> list[pl.LazyFrame]:
        """Accepted rows of each occupied bucket."""
        return [self._accepted(number) for number in self.occupied]

    @property
    def with_session(self) -> list[pl.LazyFrame]:
        """Accepted rows with a session, of each occupied bucket."""
        return [self._accepted(number, only=(1,)).filter(pl.col(SESSION).is_not_null()) for number in self.occupied]

    @property
    def faulty(self) -> pl.LazyFrame:
        """Rejected rows: `session`, `rejected` and `click` at least. There must be at least one row."""
        rows = self._scan(self.number)
        if self.fields is None:
            return rows
        fault, click = pl.col(NUMBER) // _CLICKS, (pl.col(NUMBER) % _CLICKS).cast(pl.Int8, wrap_numerical=True)
        return rows.with_columns(fault.cast(pl.UInt8).alias(REJECTED), click.alias(CLICK))

    def numbers(self, number: int, most: int) -> Iterator[pl.Series]:
        """Yield the packed rows of a bucket, `most` at a time."""
        batches = self._scan(number).select(NUMBER).collect_batches(chunk_size=most, engine="streaming")
        return (batch.to_series() for batch in batches)

    def dictionary_encoded(self, number: int, columns: Sequence[str]) -> tuple[pl.DataFrame, dict[str, pl.Series]]:
        """Return a bucket with text columns as integer codes, and the sorted distinct texts of each column.

        Parquet files hold dictionaries of texts: only these are sorted, not the texts of all rows. Columns with nulls
        are returned as texts.
        """
        parquet: Any = import_module("pyarrow.parquet")  # imported here, as importing it takes time
        rows, distinct = self._scan(number).select(columns), dict[str, pl.Series]()
        texts = [name for name, dtype in rows.collect_schema().items() if isinstance(dtype, pl.String)]
        with ExitStack() as open_files:
            files = [
                open_files.enter_context(parquet.ParquetFile(file, read_dictionary=texts))
                for file in self._files(number)
            ]
            tables = [file.read(texts, use_threads=False) for file in files]
        ranks = dict[str, pl.Series]()
        for name in texts:
            blocks = [block for table in tables for block in table.column(name).chunks]
            if any(block.null_count for block in blocks):
                continue
            rank, distinct[name] = dense_ranks(pl.concat(pl.Series(name, block.dictionary) for block in blocks))
            first = [0, *accumulate(len(block.dictionary) for block in blocks[:-1])]
            codes: list[Any] = [
                rank[start:].take(pl.Series(block.indices).to_numpy())
                for start, block in zip(first, blocks, strict=True)
            ]
            ranks[name] = pl.Series(name, np.concatenate(codes))
        others = rows.drop(ranks).collect(engine="streaming")
        return pl.DataFrame([*others, *ranks.values()]).select(columns), distinct

    def count_rows(self) -> pl.DataFrame:
        """Return the `row_counts` of all buckets."""
        good = [frame.select(_counts(frame)).collect(engine="streaming") for frame in self.frames]
        names = (engine.ROWS, IMPRESSIONS, CLICKS)
        counts = pl.concat(good).sum() if good else pl.DataFrame(schema=dict.fromkeys(names, pl.Int64))
        counts = counts.select(pl.lit(0, pl.UInt8).alias(REJECTED), *names)
        if self._files(self.number):
            counts = pl.concat([counts, row_counts(self.faulty).collect(engine="streaming")])
        return counts

    def _accepted(self, number: int, only: Sequence[int] = (0, 1)) -> pl.LazyFrame:
        rows = self._scan(number, only)
        if self.fields is None:
            return rows.drop(REJECTED, strict=False)
        return rows.select(pl.exclude(NUMBER), *self.fields.values)

    def _scan(self, number: int, only: Sequence[int] = (0, 1)) -> pl.LazyFrame:
        scan = pl.scan_parquet if self.fields is None else pl.scan_ipc
        return scan(self._files(number, only) or self._files(number), hive_partitioning=False, glob=False)

    def _files(self, number: int, only: Sequence[int] = (0, 1)) -> list[Path]:
        """List the files of a bucket; `only` has 0 for rows without a session, 1 for rows with a session."""
        groups = (self.folder.glob(f"*/{_BUCKET}={2 * number + has_session}/*") for has_session in only)
        return [file for group in groups for file in sorted(group)]


def bucket_of(key: str, n_buckets: int) -> pl.Expr:
    """Return the bucket of each row: the hash of `key` modulo the number of buckets."""
    return (pl.col(key).hash() % n_buckets).cast(pl.Int64, wrap_numerical=True)


def row_counts(impressions: pl.LazyFrame) -> pl.LazyFrame:
    """Count rows, impressions and clicks by `rejected`: the code of a fault, or 0 for accepted rows."""
    return impressions.group_by(REJECTED).agg(_counts(impressions)).sort(REJECTED)


def _counts(impressions: pl.LazyFrame) -> list[pl.Expr]:
    """Expressions for the number of rows, of impressions (a row may stand for several) and of clicks."""
    shown = pl.col(IMPRESSIONS).sum() if IMPRESSIONS in impressions.collect_schema() else pl.len()
    counts = {engine.ROWS: pl.len(), IMPRESSIONS: shown, CLICKS: pl.col(CLICK).cast(pl.Int64).sum()}
    return [count.cast(pl.Int64).alias(name) for name, count in counts.items()]


def choose_bit_fields(log: Log) -> BitFields | None:
    """Choose bit fields that pack a row into 64 bits, by the first and, if possible, last rows; None if it cannot fit.

    A row can be packed if all columns are integers, times or booleans, not too large (no 64-bit hashes). A period that
    does not fit is left out: it stays a column of its own, as most rows are counted without it.
    """
    rows = log.impressions
    schema = rows.drop(REJECTED, SESSION, strict=False).collect_schema()
    if log.click_sources or log.raw is not None or IMPRESSIONS in schema:
        return None
    first, last = (QUERY, DOC, *log.roles.context, PERIOD), (RANDOMIZED, POSITION, CLICK)
    between = [name for name in schema if name not in {*first, *last}]
    names = [name for name in dict.fromkeys((*first, *between, *last)) if name in schema]
    if not all(schema[name].is_integer() or schema[name].is_temporal() or schema[name] == pl.Boolean for name in names):
        return None
    ends = [rows.head(_SEEN_ROWS), *([rows.tail(_SEEN_ROWS)] if log.rows_are_known else [])]
    seen = pl.concat(good_rows(end).select(names).collect(engine="streaming") for end in ends)
    fields = bit_fields(seen, growing=(QUERY, DOC), known={CLICK: 1})
    if fields is None and PERIOD in names:
        fields = bit_fields(seen.drop(PERIOD), growing=(QUERY, DOC), known={CLICK: 1})
    return fields


_MOST_ROWS_AT_ONCE = 1 << 21  # rows of a piece: they and their copies take 200 to 500 MB


@contextmanager
def split_into_pieces(rows: pl.LazyFrame, column: str, scratch: Path) -> Generator[list[pl.LazyFrame]]:
    """Split rows into pieces that fit into memory, on disk inside this context; one piece if all rows fit.

    Args:
        rows: rows of a bucket, at least one.
        column: the column whose equal values go to one piece.
        scratch: a directory for temporary files.
    """
    number = -(-rows.select(pl.len()).collect().item() // _MOST_ROWS_AT_ONCE)
    if number <= 1:
        yield [rows]
        return
    pieces = Buckets(scratch / f"pieces-{secrets.token_hex(16)}", number)
    try:
        with temporary_files(scratch):
            pieces.write([rows], column)
        yield pieces.frames
    finally:
        remove_tree(pieces.folder)


_MOST_NUMBERS_AT_ONCE = 1 << 23  # packed rows of a bucket that are counted together


@dataclass(frozen=True)
class LocalReadLog(engine.ReadLog):
    """A log after reading by the local engine: one frame in memory, or buckets on disk."""

    scratch: Path  # directory for temporary files
    frames: tuple[pl.LazyFrame, ...]  # canonical impressions, each query in one frame
    page_sample: pl.LazyFrame | None = None  # pyright: ignore[reportIncompatibleMethodOverride]
    in_order: Sequence[pl.LazyFrame] = ()  # pyright: ignore[reportIncompatibleMethodOverride]
    stored: Buckets | None = None  # buckets on disk whose accepted rows are exactly those of `frames`
    n_parallel: int = 1  # number of buckets processed at once

    @property
    def buckets(self) -> FrameParts:
        """Accepted impressions by bucket."""
        return self._parts([lambda frame=frame: frame for frame in self.frames])

    def statistics(self, plan: StatisticsPlan) -> FrameParts:
        """Sufficient statistics of each bucket, sorted by the plan's keys."""
        fields = None if self.stored is None else self.stored.fields
        unpacked = fields is not None and (plan.needs_pages or (plan.period and PERIOD not in fields.names))
        if self.stored is None or unpacked:
            return self._parts([partial(count_part, frame, plan, self.scratch) for frame in self.frames])
        columns = self.frames[0].collect_schema().names()
        count = partial(count_bucket, self.stored, plan=plan, columns=columns, scratch=self.scratch)
        return self._parts([partial(count, number) for number in self.stored.occupied])

    def _parts(self, makers: Sequence[MakeFrame]) -> FrameParts:
        n_parts = len(makers)
        return FrameParts(
            lambda items, work: thread_map(work, items, self.n_parallel),
            lambda: makers,
            n_parts,
            in_memory=n_parts == 1,
        )


def count_part(impressions: pl.LazyFrame, plan: StatisticsPlan, scratch: Path) -> pl.DataFrame:
    """Count the impressions of a bucket; the statistics are sorted by the plan's keys.

    A large bucket is counted in pieces: of whole pages if the plan needs them, else of whole documents.

    Args:
        impressions: canonical impressions.
        plan: keys of the counts.
        scratch: directory for temporary files.
    """
    with split_into_pieces(impressions, SESSION if plan.needs_pages else DOC, scratch) as pieces:
        counted = (_count_piece(piece, plan) for piece in pieces)
        return merge_pieces(counted, lambda counts: add_up_part(pl.concat(counts).lazy(), plan))


def count_bucket(
    buckets: Buckets, number: int, plan: StatisticsPlan, columns: Sequence[str], scratch: Path
) -> pl.DataFrame:
    """Count a bucket by integers: by packed rows, or by the dictionary codes of texts."""
    if buckets.fields is not None:
        return count_numbers(buckets.numbers(number, _MOST_NUMBERS_AT_ONCE), buckets.fields, plan)
    rows, texts = buckets.dictionary_encoded(number, columns)
    counted = count_part(rows.lazy(), plan, scratch)
    return counted.with_columns(texts[name].gather(counted[name]) for name in plan.keys if name in texts)


def add_up_part(counts: pl.LazyFrame, plan: StatisticsPlan) -> pl.DataFrame:
    """Add up the counts of equal keys, sorted by key."""
    if counts.collect_schema()[IMPRESSIONS].is_float():
        return add_up_weights(counts.collect(engine="streaming"), plan.keys)
    return plan.add_up(nw.from_native(counts)).to_native().sort(plan.keys).collect(engine="streaming")


def sort_part(counts: pl.LazyFrame, plan: StatisticsPlan) -> pl.DataFrame:
    """Sort counts of distinct keys by key; the stable sort is fast, as counts consist of sorted runs."""
    return counts.collect(engine="streaming").sort(plan.keys, maintain_order=True)


def _count_piece(impressions: pl.LazyFrame, plan: StatisticsPlan) -> pl.DataFrame:
    in_cells = plan.with_cells_in_memory(impressions.collect(engine="streaming"))
    if plan.weighted:
        return count_weights(in_cells.lazy(), plan.keys)
    counted = count_packed(in_cells, plan)
    if counted is None:
        return plan.count_in_cells(nw.from_native(in_cells.lazy())).to_native().sort(plan.keys).collect()
    return counted


def collect_pages(shares: Iterable[pl.LazyFrame]) -> tuple[pl.DataFrame, PageEnds]:
    """Return `session`, `rows`, `clicks` and `rejected` of faulty pages, and the ends of valid pages.

    Args:
        shares: the `pages` of a log, collected frame by frame.
    """
    faulty, ends = list[pl.DataFrame](), list[pl.DataFrame]()
    for share in shares:
        collected = share.collect(engine="streaming")
        clicks = pl.col(PAGE_CLICKS).alias(CLICKS)
        faulty.append(collected.filter(pl.col(REJECTED) > 0).select(SESSION, engine.ROWS, clicks, REJECTED))
        ends.append(count_page_ends(collected.lazy()).collect())
    return pl.concat(faulty), sum_page_ends(ends)


def _in_page_sample(log: Log, n_buckets: int) -> pl.Expr:
    """Condition that a row belongs to the sample of pages to check."""
    one_in = max(n_buckets, log.estimated_rows // engine.SAMPLED_ROWS)
    return pl.col(SESSION).is_not_null() & (pl.col(SESSION).hash() % one_in == 0)


def _retains_session(log: Log, n_buckets: int) -> pl.Expr:
    """Condition that the session of a row is retained: in the first buckets, and in a sample of all sessions."""
    retained = pl.col(SESSION).hash() % max(1, log.estimated_rows // engine.SAMPLED_ROWS) == 0
    if not log.page_rules.several_queries:
        retained |= bucket_of(QUERY, n_buckets) < _n_first_buckets(log, n_buckets)
    return pl.col(SESSION).is_not_null() & retained


def _n_first_buckets(log: Log, n_buckets: int) -> int:
    """Return the number of buckets that hold about `SAMPLED_ROWS` rows together."""
    return -(-n_buckets * engine.SAMPLED_ROWS // max(log.estimated_rows, engine.SAMPLED_ROWS))


def remove_repeats(impressions: pl.LazyFrame, plan: StatisticsPlan) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return impressions with each document once per page, and the `row_counts` of the removed rows."""
    marked = mark_repeats(impressions, clicks_above_matter=plan.needs_pages, cell=plan.cell).collect()
    repeats = row_counts(marked.lazy()).filter(pl.col(REJECTED) > 0).collect()
    return good_rows(marked.lazy()).collect(), repeats


def _without_pages(impressions: pl.LazyFrame, faulty: pl.DataFrame) -> pl.LazyFrame:
    """Remove the rows of faulty pages."""
    return impressions.join(faulty.lazy().select(SESSION), on=SESSION, how="anti")


_ROWS_THAT_STAY_IN_CACHE, _MANY_BUCKETS = 1 << 20, 64  # smaller buckets are faster, up to a point
_SHARE_AT_WORK = 0.4  # mean memory of a bucket, relative to its peak, if several are processed at once
_BYTES_OF_USUAL_PART = 440_000_000
_FIRST_ROWS, _FIRST_WIDTHS = 1 << 18, 1_000  # first rows to check pages, and to measure the lengths of texts
_BYTES_OF_NUMBER, _BYTES_OF_VIEW = 8, 16  # in memory
_ROWS_ON_THE_WAY = 8_000_000  # rows that Polars holds while it writes buckets, besides a row group for each thread
_COPIES_OF_SLICE = 2  # copies of a slice that Polars holds
_FEW_QUERIES = 100  # too few queries for standard errors clustered by query


@dataclass(frozen=True)
class LocalEngine(engine.Engine):
    """Read, count and merge with Polars on one machine."""

    in_this_process = True

    def read(
        self, log: Log, plan: StatisticsPlan, *, keep_sessions: KeepSessions, on_rows: RowCounter | None = None
    ) -> LocalReadLog:
        """Read the log once, reject rows and pages that break the contract, and split a large log into buckets."""
        with reading([*log.sources, *log.click_sources]):
            schema = log.impressions.collect_schema()
            texts = [name for name, dtype in schema.items() if isinstance(dtype, pl.String)]
            lengths: dict[str, float] = {}  # mean length of each text column in the first rows
            if texts:
                first = log.impressions.head(_FIRST_WIDTHS).select(pl.col(texts).str.len_bytes().mean())
                lengths = first.collect(engine="streaming").fill_null(0).row(0, named=True)
            text_bytes = max(int(lengths.get(name, 0)) for name in (SESSION, QUERY, DOC))
            n_buckets = self._buckets_for(log.estimated_rows, schema, text_bytes)
            if n_buckets == 1:
                return self._read_into_memory(log, plan, on_rows)
            row_bytes = _BYTES_OF_NUMBER * (len(schema) - len(texts))
            row_bytes += sum(_BYTES_OF_VIEW + int(length) for length in lengths.values())
            sizes = row_bytes, engine.bytes_per_row(schema, text_bytes)
            return self._split(log, plan, n_buckets, sizes, on_rows, keep_sessions=keep_sessions)

    def add_up(self, statistics: Sequence[pl.LazyFrame], plan: StatisticsPlan, *, distinct: bool = False) -> FrameParts:
        """Merge statistics, e.g. of several days, in parts of whole queries, sorted by the plan's keys."""
        make = sort_part if distinct else add_up_part

        def makers() -> Iterator[MakeFrame]:
            merged = pl.concat(statistics)
            rows = merged.select(pl.len()).collect().item()
            n_buckets = self._buckets_for(rows, merged.collect_schema())
            frames = [merged]
            if n_buckets > 1:
                buckets = Buckets(self.scratch / f"statistics-{secrets.token_hex(16)}", n_buckets)
                with temporary_files(self.scratch):
                    buckets.write([merged])
                frames = buckets.frames
            yield from (partial(make, frame, plan) for frame in frames)

        return FrameParts(self.each, makers, None, in_memory=False)

    def each(self, items: Iterable[Item], work: Callable[[Item], Output]) -> Iterator[Output]:
        """Yield `work(item)` in the order of the items, in several threads."""
        return thread_map(work, items, self._n_parallel())

    def write_table(self, items: Iterable[Item], rows: Callable[[Item], pl.DataFrame], path: Path) -> Iterator[None]:
        """Write the frames `rows(item)` into one Parquet file."""
        return write_in_one_file(thread_map(rows, items, self._n_parallel()), path)

    def _n_parallel(self, part_bytes: int = _BYTES_OF_USUAL_PART) -> int:
        """Return the number of parts to process at once: the number of threads, as far as memory allows.

        Args:
            part_bytes: peak memory of one part.
        """
        room = engine.room_for_parts(self.memory)
        return max(1, min(n_threads(), int(room / (_SHARE_AT_WORK * max(min(part_bytes, room), 1)))))

    def _buckets_for(self, rows: int, schema: pl.Schema, text_bytes: int = 0) -> int:
        fewest = engine.fewest_parts(rows, schema, self.memory, text_bytes)
        return max(fewest, min(rows // _ROWS_THAT_STAY_IN_CACHE, _MANY_BUCKETS))

    def _read_into_memory(self, log: Log, plan: StatisticsPlan, on_rows: RowCounter | None) -> LocalReadLog:
        rows = report_rows(log.impressions, on_rows).collect(engine="streaming")
        rejected, totals = engine.check_rows(log, row_counts(rows.lazy()).collect(), self.on_bad_rows)
        good = good_rows(rows.lazy()).collect() if rejected else rows.drop(REJECTED)
        repeats = dict[str, int]()
        if log.docs_once:
            good, left_out = remove_repeats(good.lazy(), plan)
            repeats, totals = engine.rows_by_reason(left_out), engine.add_lost_clicks(totals, left_out)
        if log.has_sessions:
            lost = rows.lazy().filter(pl.col(REJECTED) > 0) if plan.needs_pages and rejected else None
            all_pages = pages_in_memory(good, log.page_rules).lazy()
            faulty, ends = collect_pages([all_pages])
            faulty = self._reject_pages(log, all_pages, faulty, lost, good.height, rejected)
            totals = engine.add_lost_clicks(replace(totals, page_ends=ends), faulty)
            good = _without_pages(good.lazy(), faulty).collect() if faulty.height else good
        page_sample = good.lazy() if log.has_sessions else None
        outcome = log, plan, rows.height, rejected | repeats, totals, log.joined_clicks()
        return LocalReadLog(*outcome, self.scratch, (good.lazy(),), page_sample, (good.lazy(),))

    def _split(
        self,
        log: Log,
        plan: StatisticsPlan,
        n_buckets: int,
        sizes: tuple[int, int],
        on_rows: RowCounter | None,
        *,
        keep_sessions: KeepSessions,
    ) -> LocalReadLog:
        """Split a log into `n_buckets` buckets by query, and check its pages; for other arguments see `read`.

        `sizes` are the memory of a row, and the peak memory of counting per row, in bytes.
        """
        repeats = Counter[str]()
        all_pages = keep_sessions is True or log.docs_once or self.check_pages == "all"
        if log.has_sessions and not all_pages:
            all_pages = self._has_faulty_pages(log, n_buckets)
        with_session = None
        if log.has_sessions and not (all_pages or keep_sessions):
            with_session = _retains_session(log, n_buckets) | _in_page_sample(log, n_buckets)
        buckets = self._write_buckets(log, n_buckets, sizes[0], with_session, on_rows)
        counts = buckets.count_rows()
        read = int(counts[engine.ROWS].sum())
        rejected, totals = engine.check_rows(log, counts, self.on_bad_rows)
        frames = buckets.frames
        if log.docs_once:
            for number, bucket in enumerate(frames):
                once, left_out = remove_repeats(bucket, plan)
                frames[number] = keep(once, self.scratch, f"once-{number:05d}").scan()
                repeats.update(engine.rows_by_reason(left_out))
                totals = engine.add_lost_clicks(totals, left_out)
        is_first = [bucket < _n_first_buckets(log, n_buckets) for bucket in buckets.occupied]
        in_order, page_sample = frames, None
        intact = bool(frames) and not log.docs_once
        if log.has_sessions and frames:
            checked = frames if all_pages else buckets.with_session
            found = self._pages(log, checked, n_buckets, all_pages=all_pages)
            shares = [found]
            if all_pages:  # a page may lie in several buckets
                n_shares = engine.fewest_parts(
                    found.select(pl.len()).collect().item(), found.collect_schema(), self.memory
                )
                share_of_page = pl.col(SESSION).hash() % n_shares
                shares = [merge_pages(found.filter(share_of_page == share)) for share in range(n_shares)]
            faulty, ends = collect_pages(shares)
            lost = buckets.faulty if plan.needs_pages and rejected else None
            faulty = self._reject_pages(log, found, faulty, lost, read, rejected)
            totals = engine.add_lost_clicks(replace(totals, page_ends=ends), faulty)
            intact = intact and not faulty.height
            if faulty.height:
                frames = [_without_pages(frame, faulty) for frame in frames]
                checked = [_without_pages(frame, faulty) for frame in checked]
            retained = pl.col(SESSION).is_not_null() if all_pages else _retains_session(log, n_buckets)
            in_order = [frame.filter(retained) for frame in checked]
            in_order = in_order if log.page_rules.several_queries else _first_if_enough_queries(in_order, is_first)
            page_sample = pl.concat(in_order)
        else:
            in_order = _first_if_enough_queries(in_order, is_first)
        if log.has_sessions and not (keep_sessions or log.docs_once):
            frames = [frame.drop(SESSION) for frame in frames]
        n_parallel = self._n_parallel(log.estimated_rows // n_buckets * sizes[1])
        outcome = log, plan, read, rejected | repeats, totals, log.joined_clicks()
        stored = buckets if intact else None
        return LocalReadLog(*outcome, self.scratch, tuple(frames), page_sample, tuple(in_order), stored, n_parallel)

    def _write_buckets(
        self, log: Log, n_buckets: int, row_bytes: int, with_session: pl.Expr | None, on_rows: RowCounter | None
    ) -> Buckets:
        """Write the rows of a log into buckets, packed if all fit; sessions become null except `with_session`."""
        # The log is read in slices if Polars would hold too many rows while it streams them into buckets.
        room = engine.room_for_parts(self.memory) // row_bytes
        on_the_way = _ROWS_ON_THE_WAY + n_threads() * log.longest_row_group
        sliceable = log.is_parquet and not log.click_sources and log.raw is None
        sliced = sliceable and room < log.estimated_rows and room < on_the_way
        rows = log.slices(room // _COPIES_OF_SLICE) if sliced else [log.impressions]
        buckets = Buckets(self.scratch / "impressions", n_buckets, choose_bit_fields(log))
        check_room(self.scratch, log.estimated_rows * LEAST_BYTES_PER_ROW)
        with temporary_files(self.scratch):
            if with_session is not None:
                rows = [frame.with_columns(pl.when(with_session).then(SESSION).alias(SESSION)) for frame in rows]
            buckets.write(report_rows(frame, on_rows) for frame in rows)
            if not buckets.all_fit:
                remove_tree(buckets.folder)
                buckets = replace(buckets, fields=None)
                buckets.write(rows)
        return buckets

    def _reject_pages(
        self,
        log: Log,
        all_pages: pl.LazyFrame,
        faulty: pl.DataFrame,
        lost: pl.LazyFrame | None,
        rows: int,
        rejected: dict[str, int],
    ) -> pl.DataFrame:
        """Return faulty pages and pages of `all_pages` with a row in `lost`, and add their rows to `rejected`.

        Raises:
            SchemaError: faulty pages stop the run.
        """
        rejected |= engine.check_pages(log, engine.page_faults(faulty), faulty, rows, self.on_bad_rows)
        if lost is None:
            return faulty
        lossy = all_pages.join(lost.select(SESSION).unique(), on=SESSION, how="semi")
        others = _without_pages(lossy, faulty)
        code = pl.lit(int(PageRejection.FAULTY_ROW), pl.UInt8).alias(REJECTED)
        sums = pl.col(engine.ROWS).sum(), pl.col(PAGE_CLICKS).sum().alias(CLICKS)
        affected = others.group_by(SESSION).agg(*sums).with_columns(code).collect()
        rejected |= engine.rows_by_reason(engine.page_faults(affected))
        return pl.concat([faulty, affected])

    def _has_faulty_pages(self, log: Log, n_buckets: int) -> bool:
        """Return whether a sample of pages has faulty pages, so that all pages must be checked.

        If faulty pages stop the run, the sample is read only if the first pages of the log have faults.

        Raises:
            SchemaError: the sample has faulty pages, and they stop the run.
        """
        stops = self.on_bad_rows == "error"
        if stops and not collect_pages([pages(good_rows(log.impressions.head(_FIRST_ROWS)), log.page_rules)])[0].height:
            return False
        sample = good_rows(log.impressions).filter(_in_page_sample(log, n_buckets))
        faulty, _ = collect_pages([pages(sample, log.page_rules)])
        if stops:
            engine.check_pages(log, engine.page_faults(faulty), faulty, log.estimated_rows, self.on_bad_rows)
        return stops or bool(faulty.height)

    def _pages(self, log: Log, frames: Sequence[pl.LazyFrame], n_buckets: int, *, all_pages: bool) -> pl.LazyFrame:
        """Return the `pages` of buckets: of all pages, stored on disk, or of the sample of pages."""
        if not all_pages:
            return pages(pl.concat(frames).filter(_in_page_sample(log, n_buckets)), log.page_rules)
        if log.page_rules.several_queries:  # buckets do not hold whole pages
            whole, session = pl.concat(frames), pl.col(SESSION).hash()
            frames = [whole.filter(session % n_buckets == share) for share in range(n_buckets)]

        def store_pages(numbered: tuple[int, pl.LazyFrame]) -> pl.LazyFrame:
            (number, bucket), stored = numbered, list[pl.LazyFrame]()
            with split_into_pieces(bucket, SESSION, self.scratch) as pieces:
                for at, piece in enumerate(pieces):
                    in_memory = pages_in_memory(piece.collect(engine="streaming"), log.page_rules)
                    stored.append(keep(in_memory, self.scratch, f"pages-{number:05d}-{at:05d}", quickly=True).scan())
            return pl.concat(stored)

        return pl.concat(thread_map(store_pages, enumerate(frames), self._n_parallel()))


def _first_if_enough_queries(frames: Sequence[pl.LazyFrame], is_first: Sequence[bool]) -> Sequence[pl.LazyFrame]:
    """Return the frames of the first buckets, or all frames if these hold fewer than `_FEW_QUERIES` queries."""
    first = [*compress(frames, is_first)]
    queries = (frame.select(pl.col(QUERY).n_unique()).collect(engine="streaming").item() for frame in first)
    return first if sum(queries) >= _FEW_QUERIES else frames
