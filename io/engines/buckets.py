"""Buckets: the rows of a log in temporary files, split by query, so that each can be worked on by itself."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from posbias.core.arrays.packing import NUMBER, BitFields, bit_fields, ranks_of
from posbias.core.log.impressions import REJECTED
from posbias.core.schema import CLICK, CLICKS, DOC, IMPRESSIONS, PERIOD, POSITION, QUERY, RANDOMIZED, SESSION
from posbias.io.engines.engine import ROWS
from posbias.io.log.click_log import Log, good_rows

LEAST_BYTES_PER_ROW = 4
"""Least size of rows on disk, as seen of integer ids."""

_BUCKET = "posbias_bucket"
_SEEN_ROWS = 1 << 16  # at either end of the log
_CLICKS = 1 << 8  # the number of a faulty row is its fault, this many times, and its click


@dataclass(frozen=True)
class Buckets:
    """Rows in files by bucket, in a directory of ours: in columns, or as a number each beside their session.

    Those of a bucket whose session is known lie apart from the others.
    """

    folder: Path
    number: int  # of buckets that hold whole queries; faulty rows are in another one, the last
    fields: BitFields | None = None  # what the numbers say, where rows are numbers

    def write(self, frames: Iterable[pl.LazyFrame], key: str = QUERY) -> None:
        """Split rows, one frame after the other.

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
        """Whether every good row could be a number. They show at the ends of a log alone that they can."""
        return not self._files(self.number + 1)

    @property
    def held(self) -> list[int]:
        """The buckets that hold rows."""
        return [number for number in range(self.number) if self._files(number)]

    @property
    def frames(self) -> list[pl.LazyFrame]:
        """The buckets that hold rows, in the order of their number."""
        return [self._good(self._files(number)) for number in self.held]

    @property
    def with_session(self) -> list[pl.LazyFrame]:
        """Of these, the rows whose session is known."""
        known = pl.col(SESSION).is_not_null()
        return [self._good(self._files(number, only=(1,)) or self._files(number)).filter(known) for number in self.held]

    @property
    def faulty(self) -> pl.LazyFrame:
        """The rows that break the contract, with their session, their fault and their click; there are some."""
        rows = self._scan(self._files(self.number))
        if self.fields is None:
            return rows
        fault, click = pl.col(NUMBER) // _CLICKS, (pl.col(NUMBER) % _CLICKS).cast(pl.Int8, wrap_numerical=True)
        return rows.with_columns(fault.cast(pl.UInt8).alias(REJECTED), click.alias(CLICK))

    def numbers(self, number: int, most: int) -> Iterator[pl.Series]:
        """The numbers of a bucket, so many at once at most."""
        batches = self._scan(self._files(number)).select(NUMBER).collect_batches(chunk_size=most, engine="streaming")
        return (batch.to_series() for batch in batches)

    def in_ranks(self, number: int, columns: Sequence[str]) -> tuple[pl.DataFrame, dict[str, pl.Series]]:
        """The rows of a bucket, each text by its number among the different ones in their order, and these by column.

        The files hold dictionaries of texts, so that only these are sorted, not the texts of all rows.
        """
        parquet: Any = import_module("pyarrow.parquet")  # only here: importing it takes time
        rows, different = self._scan(self._files(number)).select(columns), dict[str, pl.Series]()
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
            of_rows: list[Any] = [
                rank[start:].take(block.indices.to_numpy()) for start, block in zip(first, blocks, strict=True)
            ]
            ranks[name] = pl.Series(name, np.concatenate(of_rows))
        others = rows.drop(ranks).collect(engine="streaming")
        return pl.DataFrame([*others, *ranks.values()]).select(columns), different

    def count_rows(self) -> pl.DataFrame:
        """The `row_counts` of what was written."""
        good = [frame.select(_counts(frame)).collect(engine="streaming") for frame in self.frames]
        names = (ROWS, IMPRESSIONS, CLICKS)
        counts = pl.concat(good).sum() if good else pl.DataFrame(schema=dict.fromkeys(names, pl.Int64))
        counts = counts.select(pl.lit(0, pl.UInt8).alias(REJECTED), *names)
        if self._files(self.number):
            counts = pl.concat([counts, row_counts(self.faulty).collect(engine="streaming")])
        return counts

    def _good(self, files: list[Path]) -> pl.LazyFrame:
        rows = self._scan(files)
        return (
            rows.drop(REJECTED, strict=False)
            if self.fields is None
            else rows.select(pl.exclude(NUMBER), *self.fields.values)
        )

    def _scan(self, files: list[Path]) -> pl.LazyFrame:
        scan = pl.scan_parquet if self.fields is None else pl.scan_ipc
        return scan(files, hive_partitioning=False, glob=False)

    def _files(self, number: int, only: Sequence[int] = (0, 1)) -> list[Path]:
        """The files of a bucket, of rows without a session (0) and with one (1)."""
        groups = (self.folder.glob(f"*/{_BUCKET}={2 * number + known}/*") for known in only)
        return [file for group in groups for file in sorted(group)]


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


def fields_of(log: Log) -> BitFields | None:
    """How the rows of a log are numbers; None where they cannot be.

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
