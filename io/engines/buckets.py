"""Buckets: the rows of a log in temporary files, split by query, so that each can be worked on by itself.

Rows split into one file for each bucket: blocks of rows are sorted by bucket, and each piece goes to its file.

Several threads sort blocks. They are written in the order in which they are read, so that files do not depend on that.
"""

import resource
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

from posbias.core.arrays.count_table import Integers, first_of_runs
from posbias.core.arrays.packing import NUMBER, BitFields, bit_fields, ranks_of
from posbias.core.arrays.threads import at_once
from posbias.core.errors import LogFormatError
from posbias.core.log.impressions import REJECTED
from posbias.core.schema import CLICK, CLICKS, DOC, IMPRESSIONS, PERIOD, POSITION, QUERY, RANDOMIZED, SESSION
from posbias.io.engines.engine import ROWS
from posbias.io.log.click_log import Log, good_rows

BUCKET = "posbias_bucket"
"""The column that says in which bucket a row lies (UInt16)."""

MOST_ROWS_OF_BLOCK = 1 << 20
"""More would not be faster."""

_MOST_BUCKETS = 1 << 16
_LEAST_LENGTH_OF_RUNS = 3  # rows that stand together, on average, from which on that is used
_OTHER_FILES = 256  # that a process has open: logs, results, libraries


@dataclass(frozen=True)
class BucketFiles:
    """A file of Arrow IPC for each bucket that has rows, in a directory of ours."""

    folder: Path
    number: int  # of buckets
    columns: Mapping[str, int]  # what files hold, with the first bucket whose file holds it

    def write(
        self, frames: Iterable[pl.LazyFrame], block: int, blocks_at_once: int, tally: Callable[[pl.DataFrame], int]
    ) -> tuple[Integers, int]:
        """Split rows, one frame after the other.

        Args:
            frames: the rows, with BUCKET.
            block: how many are sorted together.
            blocks_at_once: how many blocks are.
            tally: a count over the rows of a block.

        Returns:
            How many rows each bucket has, shape (B,), and what all tallies add up to.
        """
        arrow, ipc = import_module("pyarrow"), import_module("pyarrow.ipc")  # only here: importing them takes time
        self.folder.mkdir(parents=True)
        batches = chain.from_iterable(
            frame.collect_batches(chunk_size=block, lazy=True, engine="streaming") for frame in frames
        )
        height, tallied = np.zeros(self.number, np.int64), 0
        sort = partial(_sorted_by_bucket, columns=self.columns, number=self.number, tally=tally)
        with ExitStack() as files:
            writers = dict[int, Any]()
            for in_order, of_block, of_tally in at_once(sort, batches, blocks_at_once):
                starts = (np.cumsum(of_block) - of_block).tolist()
                for bucket in np.flatnonzero(of_block).tolist():
                    start, rows = starts[bucket], int(of_block[bucket])
                    held = {name: of.slice(start - at, rows) for name, (of, at) in in_order.items() if start >= at}
                    batch = arrow.record_batch(held)
                    if bucket not in writers:  # not compressed: bits of ids are not much shorter then
                        writers[bucket] = files.enter_context(ipc.new_file(str(self.path(bucket)), batch.schema))
                    writers[bucket].write_batch(batch)
                height += of_block
                tallied += of_tally
        return height, tallied

    def path(self, bucket: int) -> Path:
        """The file of a bucket; it is there if the bucket has rows."""
        return self.folder / f"{bucket:05d}.arrow"

    def pieces(self, column: str, buckets: Iterable[int], most: int) -> Iterator[pl.Series]:
        """A column of some buckets together, so many rows at once at most, not copied."""
        arrow: Any = import_module("pyarrow")  # only here: importing it takes time
        piece, rows = list[Any](), 0
        for values in chain.from_iterable(self._arrays(column, bucket) for bucket in buckets):
            first = 0
            while first < len(values):
                piece.append(values.slice(first, most - rows))
                first += len(piece[-1])
                rows += len(piece[-1])
                if rows == most:
                    yield pl.Series(arrow.chunked_array(piece))
                    piece, rows = [], 0
        if piece:
            yield pl.Series(arrow.chunked_array(piece))

    def _arrays(self, column: str, bucket: int) -> Iterator[Any]:
        """A column of a bucket, block by block."""
        arrow, ipc = import_module("pyarrow"), import_module("pyarrow.ipc")  # only here: importing them takes time
        only_this = ipc.IpcReadOptions(included_fields=[list(self.columns).index(column)])
        with arrow.memory_map(str(self.path(bucket))) as file:
            blocks = ipc.open_file(file, options=only_this)
            for number in range(blocks.num_record_batches):
                yield blocks.get_batch(number).column(0)


def can_be_open(number: int) -> bool:
    """Whether so many files can be open at once; by the limit of the system."""
    needed = number + _OTHER_FILES
    least, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if least < needed and (most == resource.RLIM_INFINITY or needed <= most):
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, most))
        least = needed
    return number <= _MOST_BUCKETS and (needed <= least or least == resource.RLIM_INFINITY)


def _sorted_by_bucket(
    rows: pl.DataFrame, columns: Mapping[str, int], number: int, tally: Callable[[pl.DataFrame], int]
) -> tuple[dict[str, tuple[Any, int]], Integers, int]:
    """Arrow arrays of rows by bucket, each with its first row; the rows in each bucket, shape (B,); the tally."""
    rows = rows.rechunk()
    order, height = _order_by_bucket(rows[BUCKET].to_numpy(), number)
    first = {name: int(height[:of].sum()) for name, of in columns.items()}
    oldest = pl.CompatLevel.oldest()
    as_arrow = {
        name: cast("Any", rows[name].gather(order[at:]).to_arrow(compat_level=oldest)) for name, at in first.items()
    }
    return {name: (values, first[name]) for name, values in as_arrow.items()}, height, tally(rows)


def _order_by_bucket(bucket: NDArray[np.uint16], number: int) -> tuple[pl.Series, Integers]:
    """The rows of a block in the order of their buckets, as they came within each, and how many each has.

    Rows of one bucket that stand together, as those of a page do, are sorted as one.
    """
    first = first_of_runs(bucket)
    if len(first) * _LEAST_LENGTH_OF_RUNS > len(bucket):
        return pl.Series(_sorted_stably(bucket)), np.bincount(bucket, minlength=number)
    length, of_run = np.diff(first, append=len(bucket)), bucket[first]
    order = _sorted_stably(of_run)
    first, length = first[order].astype(np.uint32), length[order]
    before = (np.cumsum(length) - length).astype(np.uint32)
    rows = np.repeat(first - before, length) + np.arange(len(bucket), dtype=np.uint32)  # modulo 2^32
    height = np.bincount(of_run[order], weights=length, minlength=number).astype(np.int64)
    return pl.Series(rows), height


def _sorted_stably(bucket: NDArray[np.uint16]) -> Integers:
    return np.argsort(bucket, kind="stable")  # of 16 bits: a radix sort


LEAST_BYTES_PER_ROW = 4
"""Least size of rows on disk, as seen of integer ids."""


@dataclass(frozen=True)
class Buckets:
    """Rows on disk, in a directory of ours."""

    folder: Path
    number: int  # of buckets that hold whole queries; faulty rows are in another one, the last

    def write(self, frames: Iterable[pl.LazyFrame], *, judged: bool = True, key: str = QUERY) -> None:
        """Split rows, one frame after the other.

        Args:
            frames: the rows.
            judged: whether they are marked in `rejected`, and the faulty ones go apart.
            key: the column whose values lie in one bucket each.
        """
        bucket = bucket_of(key, self.number)
        if judged:
            bucket = pl.when(pl.col(REJECTED) == 0).then(bucket).otherwise(self.number)
        for number, frame in enumerate(frames):
            _bucket_sink(frame, bucket, self.folder / f"{number:05d}").collect(engine="streaming")

    @property
    def held(self) -> list[int]:
        """The buckets that hold rows."""
        return [number for number in range(self.number) if self.holds(number)]

    @property
    def frames(self) -> list[pl.LazyFrame]:
        """The buckets that hold rows, in the order of their number."""
        return [self.frame(number) for number in self.held]

    @property
    def with_session(self) -> list[pl.LazyFrame]:
        """Of these, the rows whose session is known."""
        return [frame.filter(pl.col(SESSION).is_not_null()) for frame in self.frames]

    @property
    def faulty(self) -> pl.LazyFrame:
        """The rows that break the contract; there are some."""
        return self.frame(self.number)

    def holds(self, number: int) -> bool:
        """Whether a bucket holds rows."""
        return bool(self._files(number))

    def frame(self, number: int) -> pl.LazyFrame:
        """The rows of a bucket."""
        return pl.scan_parquet(self._files(number), hive_partitioning=False, glob=False)

    def in_ranks(self, number: int, columns: Sequence[str]) -> tuple[pl.DataFrame, dict[str, pl.Series]]:
        """The rows of a bucket, each text by its number among the different ones in their order, and these by column.

        The files hold dictionaries of texts, so that only these are sorted, not the texts of all rows.
        """
        parquet: Any = import_module("pyarrow.parquet")  # only here: importing it takes time
        rows, different = self.frame(number).select(columns), dict[str, pl.Series]()
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
            rank, different[name] = ranks_of(pl.concat(pl.Series(name, block.dictionary) for block in blocks))
            first = [0, *accumulate(len(block.dictionary) for block in blocks[:-1])]
            indices = [cast("Integers", block.indices.to_numpy()) for block in blocks]
            of_rows = [rank[start:].take(index) for start, index in zip(first, indices, strict=True)]
            ranks[name] = pl.Series(name, np.concatenate(of_rows))
        others = rows.drop(ranks).collect(engine="streaming")
        return pl.DataFrame([*others, *ranks.values()]).select(columns), different

    def count_rows(self) -> pl.DataFrame:
        """The `row_counts` of what was written."""
        good = [frame.select(_counts(frame)).collect(engine="streaming") for frame in self.frames]
        names = (ROWS, IMPRESSIONS, CLICKS)
        counts = pl.concat(good).sum() if good else pl.DataFrame(schema=dict.fromkeys(names, pl.Int64))
        counts = counts.select(pl.lit(0, pl.UInt8).alias(REJECTED), *names)
        if self.holds(self.number):
            counts = pl.concat([counts, row_counts(self.faulty).collect(engine="streaming")])
        return counts

    def _files(self, number: int) -> list[Path]:
        return sorted(self.folder.glob(f"*/{BUCKET}={number}/*.parquet"))


def only_sessions(frames: Iterable[pl.LazyFrame], looked_at: pl.Expr | None) -> Iterator[pl.LazyFrame]:
    """Rows without the sessions of pages that are not looked at; as they are where all of them are (None)."""
    if looked_at is None:
        return iter(frames)
    return (frame.with_columns(pl.when(looked_at).then(SESSION).alias(SESSION)) for frame in frames)


def bucket_of(key: str, n_buckets: int) -> pl.Expr:
    """The number of the bucket of a row; a column says which rows lie together."""
    return (pl.col(key).hash() % n_buckets).cast(pl.Int64, wrap_numerical=True)


def row_counts(impressions: pl.LazyFrame) -> pl.LazyFrame:
    """Rows, impressions and clicks by what is wrong with the rows; 0 for nothing."""
    return impressions.group_by(REJECTED).agg(_counts(impressions)).sort(REJECTED)


def _counts(impressions: pl.LazyFrame) -> list[pl.Expr]:
    """Rows, the impressions that they stand for, and the clicks on these."""
    shown = pl.col(IMPRESSIONS).sum() if IMPRESSIONS in impressions.collect_schema() else pl.len()
    counts = {ROWS: pl.len(), IMPRESSIONS: shown, CLICKS: pl.col(CLICK).cast(pl.Int64).sum()}
    return [count.cast(pl.Int64).alias(name) for name, count in counts.items()]


def _bucket_sink(frame: pl.LazyFrame, bucket: pl.Expr, folder: Path) -> pl.LazyFrame:
    return frame.with_columns(bucket.alias(BUCKET)).sink_parquet(
        pl.PartitionBy(folder, key=BUCKET, include_key=False),
        compression="lz4",
        statistics=False,
        mkdir=True,
        lazy=True,
    )


_SEEN_ROWS = 1 << 16  # at either end of the log
_SHORT_SESSIONS = 1 << 28  # a sixteenth of what 32 bits hold
_LARGEST_OF_32_BITS = 2**32 - 1


@dataclass(frozen=True)
class PackedBuckets:
    """Rows on disk, in a directory of ours: their session, and all that they hold besides as one number.

    Rows that do not fit the bits lie in buckets of columns, and so do faulty ones. Those whose session is known lie
    apart from the others of their bucket, which are as many files further on.
    """

    folder: Path
    number: int  # B, of buckets that hold whole queries; faulty rows are in another one, the last
    fields: BitFields  # what the numbers say
    schema: pl.Schema  # the columns of rows, as the log has them
    short_session: pl.DataType | None  # the type in which sessions take fewer bytes, where there is one
    at_once: int  # blocks of rows that are sorted
    _height: dict[int, int] = field(default_factory=dict[int, int])  # of the files that there are
    _clicks: list[int] = field(default_factory=list[int])

    def write(self, frames: Iterable[pl.LazyFrame], again: Iterable[pl.LazyFrame], looked_at: pl.Expr | None) -> None:
        """Split rows, one frame after the other.

        Args:
            frames: the rows, marked in `rejected`.
            again: the same rows, which are read where some do not fit.
            looked_at: whether a row's session is known and its page looked at, so that it is kept; None where all are.

        Raises:
            LogFormatError: the log changed meanwhile.
        """
        fits = (pl.col(REJECTED) == 0) & self.fields.fit
        bucket, session = _short_number(bucket_of(QUERY, self.number)), list[pl.Expr]()
        if SESSION in self.schema:
            known = pl.col(SESSION).is_not_null() if looked_at is None else looked_at
            if self.short_session is None:
                session = [pl.col(SESSION)]
            else:
                session = [pl.col(SESSION).cast(self.short_session, wrap_numerical=True)]
                fits &= pl.col(SESSION).is_between(0, _LARGEST_OF_32_BITS) | ~known
            bucket = pl.when(known).then(bucket + _short_number(self.number + 1)).otherwise(bucket)
        bucket = pl.when(fits).then(bucket).otherwise(_short_number(self.number))
        number = self.fields.number.fill_null(0)  # what is here of rows that do not fit means nothing
        packed = (frame.select(number, *session, bucket.alias(BUCKET)) for frame in frames)
        height, clicks = self._split.write(packed, MOST_ROWS_OF_BLOCK, self.at_once, self._count_clicks)
        self._clicks.append(clicks)
        self._height.update({file: int(height[file]) for file in np.flatnonzero(height).tolist()})
        others = self._height.pop(self.number, 0)
        if others:
            self._others.write(frame.filter(~fits) for frame in only_sessions(again, looked_at))
            second_time = int(self._others.count_rows()[ROWS].sum())
            if second_time != others:
                raise LogFormatError(
                    f"{others:,} rows of the log were read twice, and were {second_time:,} the second time: it was "
                    "changed meanwhile. Run the command again."
                )

    @property
    def frames(self) -> list[pl.LazyFrame]:
        """The buckets that hold rows, in the order of their number."""
        return [self._frame(number, self._files_of(number)) for number in self.held]

    @property
    def with_session(self) -> list[pl.LazyFrame]:
        """Of these, the rows whose session is known."""
        known = pl.col(SESSION).is_not_null()
        files = ([file for file in self._files_of(number) if file > self.number] for number in self.held)
        return [
            self._frame(number, of_bucket).filter(known) for number, of_bucket in zip(self.held, files, strict=True)
        ]

    @property
    def all_packed(self) -> bool:
        """Whether all good rows are numbers."""
        return not any(self._others.holds(number) for number in range(self.number))

    def numbers(self, number: int, most: int) -> Iterator[pl.Series]:
        """The numbers of a bucket, so many at once at most."""
        return self._split.pieces(NUMBER, self._files_of(number), most)

    @property
    def faulty(self) -> pl.LazyFrame:
        """The rows that break the contract; there are some."""
        return self._others.faulty

    def holds(self, number: int) -> bool:
        """Whether a bucket holds rows."""
        return bool(self._files_of(number)) or self._others.holds(number)

    def count_rows(self) -> pl.DataFrame:
        """The `row_counts` of what was written."""
        counts = self._others.count_rows()
        if self._height:
            rows = sum(self._height.values())
            packed = {REJECTED: 0, ROWS: rows, IMPRESSIONS: rows, CLICKS: sum(self._clicks)}
            counts = pl.concat([counts, pl.DataFrame([packed], schema=counts.schema)])
        return counts.group_by(REJECTED).sum().sort(REJECTED)

    @property
    def _split(self) -> BucketFiles:
        session = {SESSION: self.number + 1} if SESSION in self.schema else {}
        columns = {NUMBER: 0} | session
        return BucketFiles(self.folder / "packed", _files_for(self.number), columns)

    @property
    def _others(self) -> Buckets:
        return Buckets(self.folder / "others", self.number)

    @property
    def held(self) -> list[int]:
        """The buckets that hold rows."""
        return [number for number in range(self.number) if self.holds(number)]

    def _count_clicks(self, rows: pl.DataFrame) -> int:
        """The clicks of rows that fit: the lowest bits of their numbers."""
        clicked = rows[NUMBER].to_numpy() & 1
        misfits = rows[BUCKET].to_numpy() == self.number
        return int(clicked.sum()) - int(clicked[misfits].sum())

    def _files_of(self, number: int) -> list[int]:
        """The files of a bucket that hold rows."""
        return [file for file in (number, number + self.number + 1) if file in self._height]

    def _scan(self, file: int) -> pl.LazyFrame:
        return pl.scan_ipc(self._split.path(file), hive_partitioning=False, glob=False)

    def _frame(self, number: int, files: Iterable[int]) -> pl.LazyFrame:
        """The rows of a bucket that are in some files, and those that are no numbers."""
        frames = [self._rows(file) for file in files]
        if self._others.holds(number):
            frames.append(self._others.frame(number).select(self.schema.names()))
        return pl.concat(frames) if frames else pl.LazyFrame(schema=self.schema)

    def _rows(self, file: int) -> pl.LazyFrame:
        """The rows of a file."""
        columns = self.fields.values
        if SESSION in self.schema:
            session = pl.col(SESSION) if file > self.number else pl.lit(None)
            columns.append(session.cast(self.schema[SESSION]).alias(SESSION))
        return self._scan(file).select(columns).select(self.schema.names())


def _short_number(number: pl.Expr | int) -> pl.Expr:
    """The number of a bucket, in 16 bits."""
    return (pl.lit(number) if isinstance(number, int) else number).cast(pl.UInt16, wrap_numerical=True)


def _files_for(number: int) -> int:
    """How many files buckets may take: one each for rows with and without a session, and one for what does not fit."""
    return 2 * number + 1


def packed_buckets(log: Log, folder: Path, number: int, at_once: int) -> PackedBuckets | None:
    """Buckets for the rows of a log; None where they cannot be numbers, or too many files would be open.

    The former shows in the first rows, and in the last ones where a file has an end to read. It takes ids that are
    whole numbers, not too large (no 64-bit hashes), and no weights.

    Args:
        log: the rows.
        folder: a directory of ours.
        number: of buckets.
        at_once: how many blocks of rows are sorted at once.
    """
    rows = log.impressions
    schema = rows.drop(REJECTED).collect_schema()
    if log.click_sources or log.raw is not None or IMPRESSIONS in schema or not can_be_open(_files_for(number)):
        return None
    first = (QUERY, DOC, *log.roles.context, PERIOD)
    last = (RANDOMIZED, POSITION, CLICK)
    between = [name for name in schema if name not in {SESSION, *first, *last}]
    names = [name for name in dict.fromkeys((*first, *between, *last)) if name in schema]
    if not all(schema[name].is_integer() or schema[name].is_temporal() or schema[name] == pl.Boolean for name in names):
        return None
    session = [SESSION] if SESSION in schema else []
    ends = [rows.head(_SEEN_ROWS), *([rows.tail(_SEEN_ROWS)] if log.rows_are_known else [])]
    seen = pl.concat(good_rows(end).select(*names, *session).collect(engine="streaming") for end in ends)
    fields = bit_fields(seen.select(names), growing=(QUERY, DOC), known={CLICK: 1})
    if fields is None:
        return None
    short = _short(seen[SESSION]) if session else None
    return PackedBuckets(folder, number, fields, schema, short, at_once)


def _short(sessions: pl.Series) -> pl.DataType | None:
    """A type of half the width, with room for sixteen times the largest."""
    if not sessions.dtype.is_integer():
        return None
    least, most = sessions.min(), sessions.max()
    if not isinstance(least, int) or not isinstance(most, int):
        return None
    return pl.UInt32() if least >= 0 and most < _SHORT_SESSIONS else None
