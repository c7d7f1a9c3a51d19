"""The local engine: Polars, on one machine, in bounded memory.

A log that fits is read once into memory. A larger one is split into buckets on disk, and every plan runs bucket by
bucket. A bucket holds whole queries, and so whole pages.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import narwhals as nw
import polars as pl

from posbias.core.errors import SchemaError
from posbias.core.impressions import REJECTED, PageFault, faulty_over_parts, faulty_pages, pages
from posbias.core.packed_counts import count_packed
from posbias.core.schema import DOC, QUERY, SESSION
from posbias.core.statistics_plan import StatisticsPlan
from posbias.io.logs import Log, good_rows
from posbias.io.owned import check_room, temporary_files
from posbias.io.progress import RowCounter, count_rows
from posbias.io.rejects import describe_page_faults, describe_row_faults, reason
from posbias.io.scan import reading

OnBadRows = Literal["error", "drop"]
CheckPages = Literal["sample", "all"]

# What a plan holds at its peak, per row: measured on group-by, sort and window over integer ids, rounded up.
_BYTES_PER_ROW, _BYTES_PER_KEY_BYTE = 220, 3
_TEXT_BYTES, _NUMBER_BYTES = 40, 8
_TEMPORARY_BYTES_PER_ROW = 4  # of integer ids, compressed; the least that buckets were seen to take
_PROCESS_BYTES = 300 << 20  # the interpreter, its libraries and their thread buffers

_SAMPLED_ROWS = 1 << 20  # of a large log whose pages are checked in a sample: enough to see a visit for sure
_ROWS_THAT_STAY_IN_CACHE, _MANY_BUCKETS = 1 << 20, 64  # smaller buckets are faster, up to a point
_MOSTLY = 0.5
_BUCKET = "posbias_bucket"


@dataclass(frozen=True)
class Bucketed:
    """A log as it was read: its good rows, in one bucket or several, and what became of the others.

    Attributes:
        buckets: canonical impressions; a query lies wholly in one bucket.
        rows_read: rows in the log.
        rejected: number of rows per reason.
    """

    buckets: tuple[pl.LazyFrame, ...]
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

    def read(self, log: Log, *, keep_sessions: bool, whole_pages: bool, on_rows: RowCounter | None = None) -> Bucketed:
        """Read the log once, reject what breaks the contract, split what does not fit into memory.

        Args:
            log: an opened log.
            keep_sessions: whether pages must lie together.
            whole_pages: whether a page that lost a row is of no use (UBM: the lost row may have been clicked).
            on_rows: is told of rows as they are read, where somebody watches.

        Raises:
            SchemaError: rows or pages break the contract (`on_bad_rows` is "error"), or no row is left.
            LogFormatError: a file cannot be read.
        """
        with reading([*log.sources, *log.click_sources]):
            n_buckets = self._buckets_for(log.estimated_rows, log.impressions.collect_schema())
            if n_buckets == 1:
                read = self._read_into_memory(log, on_rows, whole_pages=whole_pages)
            else:
                read = self._split(log, n_buckets, on_rows, keep_sessions=keep_sessions, whole_pages=whole_pages)
        if read.rows_read == 0:
            raise SchemaError(f"{log.request.inputs[0]}: the log holds no rows.")
        if read.rows_used == 0:
            raise SchemaError(f"{log.request.inputs[0]}: no row keeps the contract ({_listed(read.rejected)}).")
        return read

    def statistics(self, read: Bucketed, plan: StatisticsPlan) -> Iterator[pl.DataFrame]:
        """The statistics of each bucket, sorted by the plan's keys."""
        for bucket in read.buckets:
            in_cells = plan.with_cells_in_memory(bucket.collect(engine="streaming"))
            counted = count_packed(in_cells, plan)
            if counted is None:
                counted = plan.count_in_cells(nw.from_native(in_cells.lazy())).to_native().sort(plan.keys).collect()
            yield counted

    def add_up(self, statistics: pl.LazyFrame, plan: StatisticsPlan, rows: int) -> Iterator[pl.DataFrame]:
        """Merge statistics (several days), in parts that hold whole queries, sorted by the plan's keys."""
        n_buckets = self._buckets_for(rows, statistics.collect_schema())
        frames = [statistics]
        if n_buckets > 1:
            folder = self.scratch / "statistics"
            with temporary_files(self.scratch):
                _bucket_sink(statistics, _bucket_of_query(n_buckets), folder).collect(engine="streaming")
            frames = _bucket_frames(folder, n_buckets)
        for frame in frames:
            yield plan.add_up(nw.from_native(frame)).to_native().sort(plan.keys).collect(engine="streaming")

    def _buckets_for(self, rows: int, schema: pl.Schema) -> int:
        return max(self._fewest_buckets(rows, schema), min(rows // _ROWS_THAT_STAY_IN_CACHE, _MANY_BUCKETS))

    def _fewest_buckets(self, rows: int, schema: pl.Schema) -> int:
        keys = [schema[name] for name in (SESSION, QUERY, DOC) if name in schema]
        width = sum(_NUMBER_BYTES if dtype.is_numeric() else _TEXT_BYTES for dtype in keys)
        needed = rows * (_BYTES_PER_ROW + _BYTES_PER_KEY_BYTE * width)
        return max(1, -(-needed // max(self.memory - _PROCESS_BYTES, self.memory // 8)))

    def _read_into_memory(self, log: Log, on_rows: RowCounter | None, *, whole_pages: bool) -> Bucketed:
        rows = count_rows(log.impressions, on_rows).collect(engine="streaming")
        rejected = self._judge_rows(log, _row_faults(rows.lazy()).collect(), rows.height)
        good = good_rows(rows.lazy()).collect() if rejected else rows.drop(REJECTED)
        if log.has_sessions:
            shown = pages(good.lazy()).collect(engine="streaming").lazy()
            faulty = shown.filter(pl.col(REJECTED) > 0).collect()
            rejected |= self._judge_pages(log, faulty, good.height)
            if whole_pages and rejected:
                spoiled = _spoiled(shown, rows.lazy().filter(pl.col(REJECTED) > 0), faulty)
                rejected |= _counts(spoiled)
                faulty = pl.concat([faulty, spoiled])
            good = _without_pages(good.lazy(), faulty).collect() if faulty.height else good
        return Bucketed((good.lazy(),), rows.height, rejected)

    def _split(
        self, log: Log, n_buckets: int, on_rows: RowCounter | None, *, keep_sessions: bool, whole_pages: bool
    ) -> Bucketed:
        """Write the good rows to buckets by query, the others to one of their own."""
        check_room(self.scratch, log.estimated_rows * _TEMPORARY_BYTES_PER_ROW)
        impressions, faulty = log.impressions, None
        if log.has_sessions and not keep_sessions:
            faulty = self._faulty_pages(good_rows(impressions), log.estimated_rows, n_buckets)
            if self.on_bad_rows == "error":
                self._judge_pages(log, faulty, log.estimated_rows)
            impressions = impressions if faulty.height else impressions.drop(SESSION)
        folder = self.scratch / "impressions"
        bucket = pl.when(pl.col(REJECTED) == 0).then(_bucket_of_query(n_buckets)).otherwise(n_buckets)
        with temporary_files(self.scratch):
            _bucket_sink(count_rows(impressions, on_rows), bucket, folder).collect(engine="streaming")
        read, faults = _count_faults(folder, n_buckets)
        rejected = self._judge_rows(log, faults, read)
        buckets = [frame.drop(REJECTED) for frame in _bucket_frames(folder, n_buckets)]
        if keep_sessions and buckets:
            faulty = self._all_faulty_pages(buckets)
        if faulty is not None:
            rejected |= self._judge_pages(log, faulty, read)
            if whole_pages and faults.height:
                shown = pl.scan_parquet(self.scratch / "pages-*.parquet")
                spoiled = _spoiled(shown, _bucket_frame(folder, n_buckets), faulty)
                rejected |= _counts(spoiled)
                faulty = pl.concat([faulty, spoiled])
        if faulty is not None and faulty.height:
            buckets = [_without_pages(frame, faulty) for frame in buckets]
        return Bucketed(tuple(buckets), read, rejected)

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

    def _all_faulty_pages(self, buckets: Sequence[pl.LazyFrame]) -> pl.DataFrame:
        """The faulty pages of the whole log: first within each bucket, then over them."""
        paths = [self.scratch / f"pages-{number:05d}.parquet" for number in range(len(buckets))]
        with temporary_files(self.scratch):
            for bucket, path in zip(buckets, paths, strict=True):
                pages(bucket).collect(engine="streaming").write_parquet(path, compression="lz4", statistics=False)
        parts = pl.scan_parquet(paths, glob=False)
        n_shares = self._fewest_buckets(parts.select(pl.len()).collect().item(), parts.collect_schema())
        session = pl.col(SESSION).hash()
        shares = (parts.filter(session % n_shares == share) for share in range(n_shares))
        return pl.concat([faulty_over_parts(share).collect(engine="streaming") for share in shares])

    def _judge_rows(self, log: Log, faults: pl.DataFrame, read: int) -> dict[str, int]:
        counts = {int(code): int(rows) for code, rows in faults.select(REJECTED, "rows").iter_rows() if code}
        if counts and self.on_bad_rows == "error":
            raise SchemaError(describe_row_faults(log, counts, read))
        return {reason(code): counts[code] for code in sorted(counts)}

    def _judge_pages(self, log: Log, faulty: pl.DataFrame, rows: int) -> dict[str, int]:
        mostly = faulty["rows"].sum() > _MOSTLY * rows
        if faulty.height and (self.on_bad_rows == "error" or mostly):
            raise SchemaError(describe_page_faults(log, faulty, dropped=self.on_bad_rows == "drop"))
        return _counts(faulty)


def _counts(faulty: pl.DataFrame) -> dict[str, int]:
    """Rows by reason, of faulty pages."""
    counts = faulty.group_by(REJECTED).agg(pl.col("rows").sum()).sort(REJECTED)
    return {reason(code): int(rows) for code, rows in counts.iter_rows()}


def _spoiled(shown: pl.LazyFrame, faulty_rows: pl.LazyFrame, faulty: pl.DataFrame) -> pl.DataFrame:
    """The pages that lost a row, other than the faulty ones, with the number of their good rows."""
    lost = shown.join(faulty_rows.select(SESSION).unique(), on=SESSION, how="semi")
    others = lost.join(faulty.lazy().select(SESSION), on=SESSION, how="anti")
    code = pl.lit(int(PageFault.FAULTY_ROW), pl.UInt8).alias(REJECTED)
    return others.group_by(SESSION).agg(pl.col("rows").sum()).with_columns(code).collect()


def _without_pages(impressions: pl.LazyFrame, faulty: pl.DataFrame) -> pl.LazyFrame:
    return impressions.join(faulty.lazy().select(SESSION), on=SESSION, how="anti")


def _row_faults(impressions: pl.LazyFrame) -> pl.LazyFrame:
    return impressions.group_by(REJECTED).agg(rows=pl.len().cast(pl.Int64)).sort(REJECTED)


def _bucket_of_query(n_buckets: int) -> pl.Expr:
    return (pl.col(QUERY).hash() % n_buckets).cast(pl.Int64)


def _bucket_sink(frame: pl.LazyFrame, bucket: pl.Expr, folder: Path) -> pl.LazyFrame:
    return frame.with_columns(bucket.alias(_BUCKET)).sink_parquet(
        pl.PartitionBy(folder, key=_BUCKET, include_key=False),
        compression="lz4",
        statistics=False,
        mkdir=True,
        lazy=True,
    )


def _count_faults(folder: Path, bucket: int) -> tuple[int, pl.DataFrame]:
    """How many rows were read, and how many are faulty, by reason, in the bucket of the faulty ones."""
    everything = sorted(folder.glob("*/*.parquet"))
    read = sum(pl.scan_parquet(path, glob=False).select(pl.len()).collect().item() for path in everything)
    if not (folder / f"{_BUCKET}={bucket}").is_dir():
        return read, pl.DataFrame(schema={REJECTED: pl.UInt8, "rows": pl.Int64})
    return read, _row_faults(_bucket_frame(folder, bucket)).collect(engine="streaming")


def _bucket_frames(folder: Path, n_buckets: int) -> list[pl.LazyFrame]:
    """The buckets that hold rows, in the order of their number."""
    found = [number for number in range(n_buckets) if (folder / f"{_BUCKET}={number}").is_dir()]
    return [_bucket_frame(folder, number) for number in found]


def _bucket_frame(folder: Path, number: int) -> pl.LazyFrame:
    paths = sorted((folder / f"{_BUCKET}={number}").glob("*.parquet"))
    return pl.scan_parquet(paths, hive_partitioning=False, glob=False)


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{rows:,} x {why}" for why, rows in counts.items())
