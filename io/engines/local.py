"""The local engine: Polars, on one machine, in bounded memory.

A log that fits is read once into memory. A larger one is split into buckets on disk, and every plan runs bucket by
bucket. A bucket holds whole queries; where pages must lie together (UBM, the session layout) it holds whole sessions,
and their counts are then added up by query.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import narwhals as nw
import polars as pl

from posbias.core.errors import SchemaError
from posbias.core.impressions import REJECTED, faulty_pages
from posbias.core.schema import DOC, QUERY, SESSION
from posbias.core.statistics_plan import StatisticsPlan
from posbias.io.logs import Log, good_rows
from posbias.io.owned import temporary_files
from posbias.io.rejects import describe_page_faults, describe_row_faults, reason
from posbias.io.scan import reading

OnBadRows = Literal["error", "drop"]
CheckPages = Literal["sample", "all"]

# What a plan holds at its peak, per row: measured on group-by, sort and window over integer ids, rounded up.
_BYTES_PER_ROW, _BYTES_PER_KEY_BYTE = 220, 3
_TEXT_BYTES, _NUMBER_BYTES = 40, 8
_PROCESS_BYTES = 300 << 20  # the interpreter, its libraries and their thread buffers

_SAMPLED_ROWS = 1 << 20  # of a large log whose pages are checked in a sample: enough to see a visit for sure
_ROWS_THAT_STAY_IN_CACHE, _MANY_BUCKETS = 1 << 20, 64  # smaller buckets are faster, up to a point
_MOSTLY = 0.5
_BUCKET = "posbias_bucket"


@dataclass(frozen=True)
class Bucketed:
    """A log as it was read: its good rows, in one bucket or several, and what became of the others.

    Attributes:
        buckets: canonical impressions; those without rows are left out.
        key: what lies wholly in one bucket, `query` or `session`.
        n_buckets: into how many the log was split.
        rows_read: rows in the log.
        rejected: number of rows per reason.
    """

    buckets: tuple[pl.LazyFrame, ...]
    key: str
    n_buckets: int
    rows_read: int
    rejected: dict[str, int]

    @property
    def rows_used(self) -> int:
        """Rows that keep the contract."""
        return self.rows_read - sum(self.rejected.values())


@dataclass(frozen=True)
class LocalEngine:
    """Runs plans on Polars.

    Attributes:
        memory: target for the peak resident memory of the process, in bytes.
        scratch: a directory for temporary files.
        on_bad_rows: whether rows that break the contract stop the run or are left out.
        check_pages: whether pages are checked in a sample, where the log has several buckets, or all.
    """

    memory: int
    scratch: Path
    on_bad_rows: OnBadRows = "error"
    check_pages: CheckPages = "sample"

    def read(self, log: Log, *, keep_sessions: bool) -> Bucketed:
        """Read the log once, reject what breaks the contract, split what does not fit into memory.

        Args:
            log: an opened log.
            keep_sessions: whether pages must lie together.

        Raises:
            SchemaError: rows or pages break the contract (`on_bad_rows` is "error"), or no row is left.
            LogFormatError: a file cannot be read.
        """
        with reading([*log.sources, *log.click_sources]):
            n_buckets = self._buckets_for(log.estimated_rows, log.impressions.collect_schema())
            if n_buckets == 1:
                read = self._read_into_memory(log)
            elif keep_sessions:
                read = self._split_by_session(log, n_buckets)
            else:
                read = self._split_by_query(log, n_buckets)
        if read.rows_read == 0:
            raise SchemaError(f"{log.request.inputs[0]}: the log holds no rows.")
        if read.rows_used == 0:
            raise SchemaError(f"{log.request.inputs[0]}: no row keeps the contract ({_listed(read.rejected)}).")
        return read

    def statistics(self, read: Bucketed, plan: StatisticsPlan) -> Iterator[pl.DataFrame]:
        """The statistics of the log, in parts that hold whole queries, their rows in no order."""
        counted = (
            plan.count(nw.from_native(bucket)).to_native().collect(engine="streaming") for bucket in read.buckets
        )
        if read.key == QUERY or read.n_buckets == 1:
            yield from counted
            return
        paths: list[Path] = []
        for statistics in counted:
            paths.append(self.scratch / f"statistics-{len(paths):05d}.parquet")
            with temporary_files(self.scratch):
                statistics.write_parquet(paths[-1], compression="lz4", statistics=False)
        yield from self._add_up(pl.scan_parquet(paths, glob=False), plan, read.n_buckets)

    def add_up(self, statistics: pl.LazyFrame, plan: StatisticsPlan, rows: int) -> Iterator[pl.DataFrame]:
        """Merge statistics (several days), in parts that hold whole queries."""
        yield from self._add_up(statistics, plan, self._buckets_for(rows, statistics.collect_schema()))

    def _add_up(self, statistics: pl.LazyFrame, plan: StatisticsPlan, n_buckets: int) -> Iterator[pl.DataFrame]:
        frames = (statistics,)
        if n_buckets > 1:
            folder = self.scratch / "statistics"
            with temporary_files(self.scratch):
                _bucket_sink(statistics, QUERY, n_buckets, folder).collect(engine="streaming")
            frames = _bucket_frames(folder, n_buckets)
        for frame in frames:
            yield plan.add_up(nw.from_native(frame)).to_native().collect(engine="streaming")

    def _buckets_for(self, rows: int, schema: pl.Schema) -> int:
        keys = [schema[name] for name in (SESSION, QUERY, DOC) if name in schema]
        width = sum(_NUMBER_BYTES if dtype.is_numeric() else _TEXT_BYTES for dtype in keys)
        needed = rows * (_BYTES_PER_ROW + _BYTES_PER_KEY_BYTE * width)
        available = max(self.memory - _PROCESS_BYTES, self.memory // 8)
        return max(1, -(-needed // available), min(rows // _ROWS_THAT_STAY_IN_CACHE, _MANY_BUCKETS))

    def _read_into_memory(self, log: Log) -> Bucketed:
        rows = log.impressions.collect(engine="streaming")
        rejected = self._judge_rows(log, _row_faults(rows.lazy()).collect(), rows.height)
        good = good_rows(rows.lazy()).collect() if rejected else rows.drop(REJECTED)
        faulty = faulty_pages(good.lazy()).collect(engine="streaming") if log.has_sessions else None
        kept, pages = self._without_faulty(log, good.lazy(), faulty, good.height)
        return Bucketed((kept.collect().lazy(),), QUERY, 1, rows.height, rejected | pages)

    def _split_by_query(self, log: Log, n_buckets: int) -> Bucketed:
        """Pages lie across the buckets, so they are checked beforehand, where there are sessions at all."""
        impressions, pages = good_rows(log.impressions), dict[str, int]()
        if log.has_sessions:
            faulty = self._faulty_pages(impressions, log.estimated_rows, n_buckets)
            impressions, pages = self._without_faulty(log, impressions, faulty, log.estimated_rows)
            impressions = impressions.drop(SESSION)
        buckets, faults = self._sink(log, impressions, QUERY, n_buckets)
        read = int(faults["rows"].sum())
        return Bucketed(buckets, QUERY, n_buckets, read, self._judge_rows(log, faults, read) | pages)

    def _split_by_session(self, log: Log, n_buckets: int) -> Bucketed:
        """A bucket holds whole pages, and each is checked."""
        buckets, faults = self._sink(log, good_rows(log.impressions), SESSION, n_buckets)
        read = int(faults["rows"].sum())
        rejected = self._judge_rows(log, faults, read)
        buckets, pages = self._check_buckets(log, buckets, read)
        return Bucketed(buckets, SESSION, n_buckets, read, rejected | pages)

    def _faulty_pages(self, impressions: pl.LazyFrame, rows: int, n_buckets: int) -> pl.DataFrame:
        """The faulty pages of a sample of the sessions; of all, if all are checked or the faulty ones left out."""
        session = pl.col(SESSION).hash()

        def found(share: int, of: int) -> pl.DataFrame:
            return faulty_pages(impressions.filter(session % of == share)).collect(engine="streaming")

        if self.check_pages == "sample":
            sample = found(0, max(n_buckets, rows // _SAMPLED_ROWS))
            if self.on_bad_rows == "error" or not sample.height:
                return sample
        return pl.concat([found(share, n_buckets) for share in range(n_buckets)])

    def _sink(
        self, log: Log, impressions: pl.LazyFrame, key: str, n_buckets: int
    ) -> tuple[tuple[pl.LazyFrame, ...], pl.DataFrame]:
        """Write the buckets and count the faulty rows, both in one reading."""
        folder = self.scratch / "impressions"
        sink = _bucket_sink(impressions, key, n_buckets, folder)
        with temporary_files(self.scratch):
            _, faults = pl.collect_all([sink, _row_faults(log.impressions)], engine="streaming")
        return _bucket_frames(folder, n_buckets), faults

    def _check_buckets(
        self, log: Log, buckets: tuple[pl.LazyFrame, ...], read: int
    ) -> tuple[tuple[pl.LazyFrame, ...], dict[str, int]]:
        """Check every page, bucket by bucket, where the sessions are at hand."""
        checked: list[pl.LazyFrame] = []
        pages: dict[str, int] = {}
        for bucket in buckets:
            faulty = faulty_pages(bucket).collect(engine="streaming")
            good, found = self._without_faulty(log, bucket, faulty, read)
            checked.append(good)
            pages = {key: pages.get(key, 0) + found.get(key, 0) for key in {**pages, **found}}
        return tuple(checked), pages

    def _judge_rows(self, log: Log, faults: pl.DataFrame, read: int) -> dict[str, int]:
        counts = {int(code): int(rows) for code, rows in faults.select(REJECTED, "rows").iter_rows() if code}
        if counts and self.on_bad_rows == "error":
            raise SchemaError(describe_row_faults(log, counts, read))
        return {reason(code): counts[code] for code in sorted(counts)}

    def _without_faulty(
        self, log: Log, good: pl.LazyFrame, faulty: pl.DataFrame | None, rows: int
    ) -> tuple[pl.LazyFrame, dict[str, int]]:
        if faulty is None or not faulty.height:
            return good, {}
        if self.on_bad_rows == "error" or faulty["rows"].sum() > _MOSTLY * rows:
            raise SchemaError(describe_page_faults(log, faulty))
        counts = faulty.group_by(REJECTED).agg(pl.col("rows").sum()).sort(REJECTED)
        pages = {reason(code): int(rows) for code, rows in counts.iter_rows()}
        return good.join(faulty.lazy().select(SESSION), on=SESSION, how="anti"), pages


def _row_faults(impressions: pl.LazyFrame) -> pl.LazyFrame:
    return impressions.group_by(REJECTED).agg(rows=pl.len().cast(pl.Int64)).sort(REJECTED)


def _bucket_sink(frame: pl.LazyFrame, key: str, n_buckets: int, folder: Path) -> pl.LazyFrame:
    bucketed = frame.with_columns((pl.col(key).hash() % n_buckets).cast(pl.Int64).alias(_BUCKET))
    return bucketed.sink_parquet(
        pl.PartitionBy(folder, key=_BUCKET, include_key=False),
        compression="lz4",
        statistics=False,
        mkdir=True,
        lazy=True,
    )


def _bucket_frames(folder: Path, n_buckets: int) -> tuple[pl.LazyFrame, ...]:
    """The buckets that hold rows, in the order of their number."""
    folders = [folder / f"{_BUCKET}={number}" for number in range(n_buckets)]
    return tuple(
        pl.scan_parquet(sorted(path.glob("*.parquet")), hive_partitioning=False, glob=False)
        for path in folders
        if path.is_dir()
    )


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{rows:,} x {why}" for why, rows in counts.items())
