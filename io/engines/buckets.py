"""Buckets: the rows of a log in temporary files, split by query, so that each can be worked on by itself."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from posbias.core.log.impressions import REJECTED
from posbias.core.schema import CLICK, CLICKS, IMPRESSIONS, QUERY, SESSION
from posbias.io.engines.bucket_files import BUCKET
from posbias.io.engines.contract import ROWS

LEAST_BYTES_PER_ROW = 4
"""What rows take on disk, at least: integer ids were seen to."""


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
    def frames(self) -> list[pl.LazyFrame]:
        """The buckets that hold rows, in the order of their number."""
        return [self.frame(number) for number in range(self.number) if self.holds(number)]

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

    def count_rows(self) -> tuple[int, pl.DataFrame]:
        """How many rows were written, and the `row_counts`."""
        good = [frame.select(_counts(frame)).collect(engine="streaming") for frame in self.frames]
        names = (ROWS, IMPRESSIONS, CLICKS)
        counts = pl.concat(good).sum() if good else pl.DataFrame(schema=dict.fromkeys(names, pl.Int64))
        counts = counts.select(pl.lit(0, pl.UInt8).alias(REJECTED), *names)
        if self.holds(self.number):
            counts = pl.concat([counts, row_counts(self.faulty).collect(engine="streaming")])
        return int(counts[ROWS].sum()), counts

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
