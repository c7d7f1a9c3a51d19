"""The local engine: Polars, on one machine, in bounded memory.

A log that fits is read once into memory. A larger one is split by query into buckets, in temporary files, and every
plan runs on several buckets at a time. A bucket holds whole queries, and so whole pages.
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
from posbias.io.engines.engine import (
    ROWS,
    SAMPLED_ROWS,
    Engine,
    FrameParts,
    Item,
    KeepSessions,
    MakeFrame,
    Output,
    ReadLog,
    bytes_per_row,
    fewest_parts,
    judge_pages,
    judge_rows,
    page_faults,
    room_for_parts,
    rows_by_reason,
    without_clicks,
)
from posbias.io.log.click_log import Log, good_rows
from posbias.io.log.scan import reading
from posbias.io.places.ownership import remove_tree
from posbias.io.places.temporary import check_room, keep, temporary_files
from posbias.io.progress import RowCounter, count_rows
from posbias.io.results.tables import write_in_one_file

LEAST_BYTES_PER_ROW = 4
"""Least size of rows on disk, as seen of integer ids."""

_BUCKET = "posbias_bucket"
_SEEN_ROWS = 1 << 16  # at either end of the log
_CLICKS = 1 << 8  # the number of a faulty row is its fault, this many times, and its click


@dataclass(frozen=True)
class Buckets:
    """Rows on disk, partitioned by the hash of a key; as columns, or packed into one 64-bit number and the session.

    Those of a bucket whose session is known lie apart from the others.
    """

    folder: Path
    number: int  # of buckets that hold whole queries; faulty rows are in another one, the last
    fields: BitFields | None = None  # what the numbers say, where rows are numbers

    def write(self, frames: Iterable[pl.LazyFrame], key: str = QUERY) -> None:
        """Write frames one after the other, split by bucket.

        Args:
            frames: the rows. Where they are marked in `rejected`, the faulty ones go apart.
            key: the column whose values lie in one bucket each.
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
                columns = [packed.alias(NUMBER), *(pl.col(name) for name in schema if name == SESSION)]
            known = pl.col(SESSION).is_not_null().cast(pl.Int64) if SESSION in schema else 0
            split = frame.select(*columns, (2 * bucket + known).alias(_BUCKET))
            files = pl.PartitionBy(self.folder / f"{number:05d}", key=_BUCKET, include_key=False)
            if self.fields is None:
                split.sink_parquet(files, compression="lz4", statistics=False, mkdir=True)
            else:  # numbers are no shorter in Parquet, which takes half as long again
                split.sink_ipc(files, mkdir=True)

    @property
    def all_fit(self) -> bool:
        """Whether every accepted row was packed: the bit fields were chosen from both ends of the log only."""
        return not self._files(self.number + 1)

    @property
    def held(self) -> list[int]:
        """Numbers of the buckets that hold accepted rows."""
        return [number for number in range(self.number) if self._files(number)]

    @property
    def frames(self) -> list[pl.LazyFrame]:
        """Accepted rows of each bucket of `held`."""
        return [self._good(number) for number in self.held]

    @property
    def with_session(self) -> list[pl.LazyFrame]:
        """Accepted rows whose session was retained, of each bucket of `held`."""
        return [self._good(number, only=(1,)).filter(pl.col(SESSION).is_not_null()) for number in self.held]

    @property
    def faulty(self) -> pl.LazyFrame:
        """Rejected rows: `session`, `rejected` and `click`. There must be at least one."""
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

        The files hold dictionaries of texts, so that only these are sorted, not the texts of all rows.
        """
        parquet: Any = import_module("pyarrow.parquet")  # only here: importing it takes time
        rows, different = self._scan(number).select(columns), dict[str, pl.Series]()
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
            rank, different[name] = dense_ranks(pl.concat(pl.Series(name, block.dictionary) for block in blocks))
            first = [0, *accumulate(len(block.dictionary) for block in blocks[:-1])]
            of_rows: list[Any] = [
                rank[start:].take(block.indices.to_numpy()) for start, block in zip(first, blocks, strict=True)
            ]
            ranks[name] = pl.Series(name, np.concatenate(of_rows))
        others = rows.drop(ranks).collect(engine="streaming")
        return pl.DataFrame([*others, *ranks.values()]).select(columns), different

    def count_rows(self) -> pl.DataFrame:
        """Return the `row_counts` of all buckets."""
        good = [frame.select(_counts(frame)).collect(engine="streaming") for frame in self.frames]
        names = (ROWS, IMPRESSIONS, CLICKS)
        counts = pl.concat(good).sum() if good else pl.DataFrame(schema=dict.fromkeys(names, pl.Int64))
        counts = counts.select(pl.lit(0, pl.UInt8).alias(REJECTED), *names)
        if self._files(self.number):
            counts = pl.concat([counts, row_counts(self.faulty).collect(engine="streaming")])
        return counts

    def _good(self, number: int, only: Sequence[int] = (0, 1)) -> pl.LazyFrame:
        rows = self._scan(number, only)
        if self.fields is None:
            return rows.drop(REJECTED, strict=False)
        return rows.select(pl.exclude(NUMBER), *self.fields.values)

    def _scan(self, number: int, only: Sequence[int] = (0, 1)) -> pl.LazyFrame:
        scan = pl.scan_parquet if self.fields is None else pl.scan_ipc
        return scan(self._files(number, only) or self._files(number), hive_partitioning=False, glob=False)

    def _files(self, number: int, only: Sequence[int] = (0, 1)) -> list[Path]:
        """List the files of a bucket: rows without a session (0), with a session (1)."""
        groups = (self.folder.glob(f"*/{_BUCKET}={2 * number + known}/*") for known in only)
        return [file for group in groups for file in sorted(group)]


def bucket_of(key: str, n_buckets: int) -> pl.Expr:
    """Return the bucket of each row: the hash of `key` modulo the number of buckets."""
    return (pl.col(key).hash() % n_buckets).cast(pl.Int64, wrap_numerical=True)


def row_counts(impressions: pl.LazyFrame) -> pl.LazyFrame:
    """Count rows, impressions and clicks by `rejected`, the code of a fault, 0 for accepted rows."""
    return impressions.group_by(REJECTED).agg(_counts(impressions)).sort(REJECTED)


def _counts(impressions: pl.LazyFrame) -> list[pl.Expr]:
    """Expressions for the number of rows, of impressions (a row may stand for several) and of clicks."""
    shown = pl.col(IMPRESSIONS).sum() if IMPRESSIONS in impressions.collect_schema() else pl.len()
    counts = {ROWS: pl.len(), IMPRESSIONS: shown, CLICKS: pl.col(CLICK).cast(pl.Int64).sum()}
    return [count.cast(pl.Int64).alias(name) for name, count in counts.items()]


def fields_of(log: Log) -> BitFields | None:
    """Choose the bit fields that pack a row into 64 bits; None if a row does not fit.

    That shows in the first rows, and in the last ones where a file has an end to read. It takes ids that are whole
    numbers, not too large (no 64-bit hashes), and no weights.
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
    return bit_fields(seen, growing=(QUERY, DOC), known={CLICK: 1})


_MOST_ROWS_AT_ONCE = 1 << 21  # worked on together: they and their copies take 200 to 500 MB


@contextmanager
def pieces_of(rows: pl.LazyFrame, column: str, scratch: Path) -> Generator[list[pl.LazyFrame]]:
    """Split rows into pieces that fit into memory, kept on disk inside this context; one piece if all rows fit.

    Args:
        rows: of a bucket, at least one.
        column: each of its values lies in one piece.
        scratch: a directory of ours.
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


_MOST_NUMBERS_AT_ONCE = 1 << 23  # rows of a bucket that are counted together


@dataclass(frozen=True)
class Bucketed(ReadLog):
    """A log after reading by the local engine: one frame in memory, or buckets on disk."""

    scratch: Path  # a directory for temporary files
    frames: tuple[pl.LazyFrame, ...]  # canonical impressions; a query lies wholly in one bucket
    # As a rule the pages of one bucket
    some_pages: pl.LazyFrame | None = None  # pyright: ignore[reportIncompatibleMethodOverride]
    # The rows of the first buckets, in which the order of the log is kept
    in_order: Sequence[pl.LazyFrame] = ()  # pyright: ignore[reportIncompatibleMethodOverride]
    untouched: Buckets | None = None  # the buckets on disk, where the frames hold all their rows
    at_once: int = 1  # buckets that are worked on

    @property
    def buckets(self) -> FrameParts:
        """Accepted impressions by bucket."""
        return self._parts([lambda frame=frame: frame for frame in self.frames])

    def statistics(self, plan: StatisticsPlan) -> FrameParts:
        """Sufficient statistics of each bucket, sorted by the plan's keys."""
        if self.untouched is None or (self.untouched.fields is not None and plan.needs_pages):
            return self._parts([partial(count_part, frame, plan, self.scratch) for frame in self.frames])
        columns = self.frames[0].collect_schema().names()
        count = partial(count_bucket, self.untouched, plan=plan, columns=columns, scratch=self.scratch)
        return self._parts([partial(count, number) for number in self.untouched.held])

    def _parts(self, makes: Sequence[MakeFrame]) -> FrameParts:
        n_parts = len(makes)
        return FrameParts(
            lambda items, work: thread_map(work, items, self.at_once), lambda: makes, n_parts, in_memory=n_parts == 1
        )


def count_part(impressions: pl.LazyFrame, plan: StatisticsPlan, scratch: Path) -> pl.DataFrame:
    """Count impressions in memory; the statistics are sorted by the plan's keys.

    A bucket that a frequent query makes large is counted piece by piece: pages stay whole where the model needs them.

    Args:
        impressions: of the bucket.
        plan: what is counted.
        scratch: a directory for temporary files.
    """
    with pieces_of(impressions, SESSION if plan.needs_pages else DOC, scratch) as pieces:
        counted = (_counted_at_once(piece, plan) for piece in pieces)
        return merge_pieces(counted, lambda counts: add_up_part(pl.concat(counts).lazy(), plan))


def count_bucket(
    buckets: Buckets, number: int, plan: StatisticsPlan, columns: Sequence[str], scratch: Path
) -> pl.DataFrame:
    """Count a bucket on integers: packed rows, or dictionary codes of its texts."""
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
    """Sort counts of distinct keys by key; the stable sort is fast on the sorted runs of which they consist."""
    return counts.collect(engine="streaming").sort(plan.keys, maintain_order=True)


def _counted_at_once(impressions: pl.LazyFrame, plan: StatisticsPlan) -> pl.DataFrame:
    in_cells = plan.with_cells_in_memory(impressions.collect(engine="streaming"))
    if plan.weighted:
        return count_weights(in_cells.lazy(), plan.keys)
    counted = count_packed(in_cells, plan)
    if counted is None:
        return plan.count_in_cells(nw.from_native(in_cells.lazy())).to_native().sort(plan.keys).collect()
    return counted


def judge(shares: Iterable[pl.LazyFrame]) -> tuple[pl.DataFrame, PageEnds]:
    """Return the `session`, `rows`, `clicks` and `rejected` of faulty pages, and the last positions of the valid pages.

    Args:
        shares: the `pages` of a log, which are collected share by share.
    """
    faulty, ends = list[pl.DataFrame](), list[pl.DataFrame]()
    for share in shares:
        judged = share.collect(engine="streaming")
        clicks = pl.col(PAGE_CLICKS).alias(CLICKS)
        faulty.append(judged.filter(pl.col(REJECTED) > 0).select(SESSION, ROWS, clicks, REJECTED))
        ends.append(count_page_ends(judged.lazy()).collect())
    return pl.concat(faulty), sum_page_ends(ends)


def _is_checked(log: Log, n_buckets: int) -> pl.Expr:
    """Whether a row belongs to the sample of pages that is validated."""
    one_in = max(n_buckets, log.estimated_rows // SAMPLED_ROWS)
    return pl.col(SESSION).is_not_null() & (pl.col(SESSION).hash() % one_in == 0)


def _is_kept(log: Log, n_buckets: int) -> pl.Expr:
    """Whether the session of a row is retained: in the first buckets, and in a sample of all sessions."""
    kept = pl.col(SESSION).hash() % max(1, log.estimated_rows // SAMPLED_ROWS) == 0
    if not log.page_rules.several_queries:
        kept |= bucket_of(QUERY, n_buckets) < _first_buckets(log, n_buckets)
    return pl.col(SESSION).is_not_null() & kept


def _first_buckets(log: Log, n_buckets: int) -> int:
    """Return how many of the first buckets hold `SAMPLED_ROWS` rows together."""
    return -(-n_buckets * SAMPLED_ROWS // max(log.estimated_rows, SAMPLED_ROWS))


def each_doc_once(impressions: pl.LazyFrame, plan: StatisticsPlan) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return impressions with each document once a page, and the `row_counts` of the repeats."""
    marked = mark_repeats(impressions, clicks_above_matter=plan.needs_pages, cell=plan.cell).collect()
    repeats = row_counts(marked.lazy()).filter(pl.col(REJECTED) > 0).collect()
    return good_rows(marked.lazy()).collect(), repeats


def _without_pages(impressions: pl.LazyFrame, faulty: pl.DataFrame) -> pl.LazyFrame:
    """Remove the rows of faulty pages."""
    return impressions.join(faulty.lazy().select(SESSION), on=SESSION, how="anti")


_ROWS_THAT_STAY_IN_CACHE, _MANY_BUCKETS = 1 << 20, 64  # smaller buckets are faster, up to a point
_SHARE_AT_WORK = 0.4  # of what a plan holds at its peak: what a bucket takes that is one of several
_BYTES_OF_USUAL_PART = 440_000_000
_FIRST_ROWS, _FIRST_WIDTHS = 1 << 18, 1_000  # that are looked at before all are read
_BYTES_OF_NUMBER, _BYTES_OF_VIEW = 8, 16  # in memory
_ROWS_ON_THE_WAY = 8_000_000  # into buckets at once, besides a row group for each thread
_COPIES_OF_SLICE = 2  # of its rows, while Polars streams a slice
_FEW_QUERIES = 100  # too few for errors clustered by query to be judged by


@dataclass(frozen=True)
class LocalEngine(Engine):
    """Read, count and merge with Polars on one machine."""

    in_this_process = True

    def read(
        self, log: Log, plan: StatisticsPlan, *, keep_sessions: KeepSessions, on_rows: RowCounter | None = None
    ) -> Bucketed:
        """Read the log once, reject what breaks the contract, and split a log that does not fit into memory."""
        with reading([*log.sources, *log.click_sources]):
            schema = log.impressions.collect_schema()
            texts = [name for name, dtype in schema.items() if isinstance(dtype, pl.String)]
            # The bytes of a row, and of the longest of the texts that are ids, by the first rows.
            first = log.impressions.head(_FIRST_WIDTHS).select(pl.col(texts).str.len_bytes().mean()) if texts else None
            bytes_of = {} if first is None else first.collect(engine="streaming").fill_null(0).row(0, named=True)
            of_texts = sum(_BYTES_OF_VIEW + int(width) for width in bytes_of.values())
            text_bytes = max(int(bytes_of.get(name, 0)) for name in (SESSION, QUERY, DOC))
            n_buckets = self._buckets_for(log.estimated_rows, schema, text_bytes)
            if n_buckets == 1:
                return self._read_into_memory(log, plan, on_rows)
            row_bytes = _BYTES_OF_NUMBER * (len(schema) - len(texts)) + of_texts
            row = row_bytes, bytes_per_row(schema, text_bytes)
            return self._split(log, plan, n_buckets, row, on_rows, keep_sessions=keep_sessions)

    def add_up(self, statistics: Sequence[pl.LazyFrame], plan: StatisticsPlan, *, distinct: bool = False) -> FrameParts:
        """Merge statistics, e.g. of several days, in parts of whole queries, sorted by the plan's keys."""
        make = sort_part if distinct else add_up_part

        def parts() -> Iterator[MakeFrame]:
            together = pl.concat(statistics)
            rows = together.select(pl.len()).collect().item()
            n_buckets = self._buckets_for(rows, together.collect_schema())
            frames = [together]
            if n_buckets > 1:
                buckets = Buckets(self.scratch / f"statistics-{secrets.token_hex(16)}", n_buckets)
                with temporary_files(self.scratch):
                    buckets.write([together])
                frames = buckets.frames
            yield from (partial(make, frame, plan) for frame in frames)

        return FrameParts(self.each, parts, None, in_memory=False)

    def each(self, items: Iterable[Item], work: Callable[[Item], Output]) -> Iterator[Output]:
        """Yield `work(item)` in the order of the items, in several threads."""
        return thread_map(work, items, self._at_once)

    def write_table(self, items: Iterable[Item], rows: Callable[[Item], pl.DataFrame], path: Path) -> Iterator[None]:
        """Write the frames `rows(item)` into one Parquet file."""
        return write_in_one_file(thread_map(rows, items, self._at_once), path)

    @property
    def _at_once(self) -> int:
        """Number of parts processed at once if their size is unknown."""
        return self._at_once_of(_BYTES_OF_USUAL_PART)

    def _at_once_of(self, part: int) -> int:
        """Return the number of parts processed at once: the number of threads, as far as memory allows.

        Args:
            part: what a plan holds at its peak for one of them, in bytes; parts are cut so that memory holds that.
        """
        room = room_for_parts(self.memory)
        return max(1, min(n_threads(), int(room / (_SHARE_AT_WORK * max(min(part, room), 1)))))

    def _buckets_for(self, rows: int, schema: pl.Schema, text_bytes: int = 0) -> int:
        fewest = fewest_parts(rows, schema, self.memory, text_bytes)
        return max(fewest, min(rows // _ROWS_THAT_STAY_IN_CACHE, _MANY_BUCKETS))

    def _read_into_memory(self, log: Log, plan: StatisticsPlan, on_rows: RowCounter | None) -> Bucketed:
        rows = count_rows(log.impressions, on_rows).collect(engine="streaming")
        rejected, totals = judge_rows(log, row_counts(rows.lazy()).collect(), self.on_bad_rows)
        good = good_rows(rows.lazy()).collect() if rejected else rows.drop(REJECTED)
        repeats = dict[str, int]()
        if log.docs_once:
            good, left_out = each_doc_once(good.lazy(), plan)
            repeats, totals = rows_by_reason(left_out), without_clicks(totals, left_out)
        if log.has_sessions:
            lost = rows.lazy().filter(pl.col(REJECTED) > 0) if plan.needs_pages and rejected else None
            shown = pages_in_memory(good, log.page_rules).lazy()
            faulty, ends = judge([shown])
            faulty = self._left_out(log, shown, faulty, lost, good.height, rejected)
            totals = without_clicks(replace(totals, page_ends=ends), faulty)
            good = _without_pages(good.lazy(), faulty).collect() if faulty.height else good
        some_pages = good.lazy() if log.has_sessions else None
        became = log, plan, rows.height, rejected | repeats, totals, log.joined_clicks()
        return Bucketed(*became, self.scratch, (good.lazy(),), some_pages, (good.lazy(),))

    def _split(
        self,
        log: Log,
        plan: StatisticsPlan,
        n_buckets: int,
        row: tuple[int, int],
        on_rows: RowCounter | None,
        *,
        keep_sessions: KeepSessions,
    ) -> Bucketed:
        """Split a log into buckets by query, and validate its pages.

        Args:
            log: the log.
            plan: as of `read`.
            n_buckets: how many there are.
            row: the bytes of a row, and what a plan holds at its peak for it.
            on_rows: called with rows as they are read.
            keep_sessions: as of `read`.
        """
        repeats = Counter[str]()
        all_pages = keep_sessions is True or log.docs_once or self.check_pages == "all"
        if log.has_sessions and not all_pages:
            all_pages = self._has_faulty_pages(log, n_buckets)
        looked_at = None
        if log.has_sessions and not (all_pages or keep_sessions):
            looked_at = _is_kept(log, n_buckets) | _is_checked(log, n_buckets)
        buckets = self._written(log, n_buckets, row[0], looked_at, on_rows)
        counts = buckets.count_rows()
        read = int(counts[ROWS].sum())
        rejected, totals = judge_rows(log, counts, self.on_bad_rows)
        frames = buckets.frames
        if log.docs_once:
            for number, bucket in enumerate(frames):
                once, left_out = each_doc_once(bucket, plan)
                frames[number] = keep(once, self.scratch, f"once-{number:05d}").scan()
                repeats.update(rows_by_reason(left_out))
                totals = without_clicks(totals, left_out)
        first = [bucket < _first_buckets(log, n_buckets) for bucket in buckets.held]
        in_order, some_pages = frames, None
        intact = bool(frames) and not log.docs_once
        if log.has_sessions and frames:
            looked_at = frames if all_pages else buckets.with_session
            shown = self._pages(log, looked_at, n_buckets, all_pages=all_pages)
            parts = [shown]
            if all_pages:  # a page may lie in several buckets
                n_shares = fewest_parts(shown.select(pl.len()).collect().item(), shown.collect_schema(), self.memory)
                in_share = pl.col(SESSION).hash() % n_shares
                parts = [merge_pages(shown.filter(in_share == share)) for share in range(n_shares)]
            faulty, ends = judge(parts)
            lost = buckets.faulty if plan.needs_pages and rejected else None
            faulty = self._left_out(log, shown, faulty, lost, read, rejected)
            totals = without_clicks(replace(totals, page_ends=ends), faulty)
            intact = intact and not faulty.height
            if faulty.height:
                frames, looked_at = (
                    [_without_pages(frame, faulty) for frame in group] for group in (frames, looked_at)
                )
            kept = pl.col(SESSION).is_not_null() if all_pages else _is_kept(log, n_buckets)
            in_order = [frame.filter(kept) for frame in looked_at]
            in_order = in_order if log.page_rules.several_queries else _of_enough_queries(in_order, first)
            some_pages = pl.concat(in_order)
        else:
            in_order = _of_enough_queries(in_order, first)
        if log.has_sessions and not (keep_sessions or log.docs_once):
            frames = [frame.drop(SESSION) for frame in frames]
        some = self._at_once_of(log.estimated_rows // n_buckets * row[1])
        became = log, plan, read, rejected | repeats, totals, log.joined_clicks()
        untouched = buckets if intact else None
        return Bucketed(*became, self.scratch, tuple(frames), some_pages, tuple(in_order), untouched, some)

    def _written(
        self, log: Log, n_buckets: int, row_bytes: int, looked_at: pl.Expr | None, on_rows: RowCounter | None
    ) -> Buckets:
        """Write the rows of a log into buckets, packed where they fit; sessions outside `looked_at` become null."""
        # Slices, where too many rows would be in memory while Polars streams them into buckets.
        room = room_for_parts(self.memory) // row_bytes
        on_the_way = _ROWS_ON_THE_WAY + n_threads() * log.longest_row_group
        sliceable = log.is_parquet and not log.click_sources and log.raw is None
        sliced = sliceable and room < log.estimated_rows and room < on_the_way
        rows = log.slices(room // _COPIES_OF_SLICE) if sliced else [log.impressions]
        buckets = Buckets(self.scratch / "impressions", n_buckets, fields_of(log))
        check_room(self.scratch, log.estimated_rows * LEAST_BYTES_PER_ROW)
        with temporary_files(self.scratch):
            if looked_at is not None:
                rows = [frame.with_columns(pl.when(looked_at).then(SESSION).alias(SESSION)) for frame in rows]
            buckets.write(count_rows(frame, on_rows) for frame in rows)
            if not buckets.all_fit:
                remove_tree(buckets.folder)
                buckets = replace(buckets, fields=None)
                buckets.write(rows)
        return buckets

    def _left_out(
        self,
        log: Log,
        shown: pl.LazyFrame,
        faulty: pl.DataFrame,
        lost: pl.LazyFrame | None,
        rows: int,
        rejected: dict[str, int],
    ) -> pl.DataFrame:
        """Return faulty pages and pages that lost a rejected row, and add their rows to `rejected`."""
        rejected |= judge_pages(log, page_faults(faulty), faulty, rows, self.on_bad_rows)
        if lost is None:
            return faulty
        lossy = shown.join(lost.select(SESSION).unique(), on=SESSION, how="semi")
        others = _without_pages(lossy, faulty)
        code = pl.lit(int(PageRejection.FAULTY_ROW), pl.UInt8).alias(REJECTED)
        sums = pl.col(ROWS).sum(), pl.col(PAGE_CLICKS).sum().alias(CLICKS)
        affected = others.group_by(SESSION).agg(*sums).with_columns(code).collect()
        rejected |= rows_by_reason(page_faults(affected))
        return pl.concat([faulty, affected])

    def _has_faulty_pages(self, log: Log, n_buckets: int) -> bool:
        """Whether a sample of pages holds faulty ones, so that all pages must be validated.

        Raises:
            SchemaError: the first ones cannot be results pages, and are not to be left out: the log need not be read.
        """
        stops = self.on_bad_rows == "error"
        if stops and not judge([pages(good_rows(log.impressions.head(_FIRST_ROWS)), log.page_rules)])[0].height:
            return False
        faulty, _ = judge([pages(good_rows(log.impressions).filter(_is_checked(log, n_buckets)), log.page_rules)])
        if stops:
            judge_pages(log, page_faults(faulty), faulty, log.estimated_rows, self.on_bad_rows)
        return stops or bool(faulty.height)

    def _pages(self, log: Log, frames: Sequence[pl.LazyFrame], n_buckets: int, *, all_pages: bool) -> pl.LazyFrame:
        """Return the `pages` of buckets, on disk; of the validated sample unless `all_pages`."""
        if not all_pages:
            return pages(pl.concat(frames).filter(_is_checked(log, n_buckets)), log.page_rules)
        if log.page_rules.several_queries:  # buckets do not hold whole pages
            together, session = pl.concat(frames), pl.col(SESSION).hash()
            frames = [together.filter(session % n_buckets == share) for share in range(n_buckets)]

        def keep_pages(numbered: tuple[int, pl.LazyFrame]) -> pl.LazyFrame:
            (number, bucket), kept = numbered, list[pl.LazyFrame]()
            with pieces_of(bucket, SESSION, self.scratch) as pieces:
                for at, piece in enumerate(pieces):
                    in_order = pages_in_memory(piece.collect(engine="streaming"), log.page_rules)
                    kept.append(keep(in_order, self.scratch, f"pages-{number:05d}-{at:05d}", quickly=True).scan())
            return pl.concat(kept)

        return pl.concat(thread_map(keep_pages, enumerate(frames), self._at_once))


def _of_enough_queries(frames: Sequence[pl.LazyFrame], first: Sequence[bool]) -> Sequence[pl.LazyFrame]:
    """Return the frames of the first buckets, or all frames if those hold fewer than `_FEW_QUERIES` queries."""
    some = [*compress(frames, first)]
    queries = (frame.select(pl.col(QUERY).n_unique()).collect(engine="streaming").item() for frame in some)
    return some if sum(queries) >= _FEW_QUERIES else frames
