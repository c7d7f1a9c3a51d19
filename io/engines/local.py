"""The local engine: Polars, on one machine, in bounded memory.

A log that fits is read once into memory. A larger one is split into buckets on disk, and every plan runs bucket by
bucket. A bucket holds whole queries, and so whole pages.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import narwhals as nw
import polars as pl

from posbias.core.choices import CheckPages, OnBadRows
from posbias.core.counts.packed import count_packed
from posbias.core.counts.plan import StatisticsPlan
from posbias.core.counts.sums_of_weights import add_up_weights, count_weights
from posbias.core.log.duplicates import mark_repeats
from posbias.core.log.guards import LogTotals, PageEnds, count_page_ends, sum_page_ends
from posbias.core.log.impressions import REJECTED
from posbias.core.log.pages import PageFault, over_parts, pages
from posbias.core.schema import CLICK, CLICKS, DOC, IMPRESSIONS, QUERY, SESSION
from posbias.io.engines.contract import (
    ROWS,
    SAMPLED_ROWS,
    fewest_parts,
    judge_pages,
    judge_rows,
    page_faults,
    rows_by_reason,
)
from posbias.io.engines.engine import Found, Item
from posbias.io.log.log import Log, good_rows
from posbias.io.log.scan import reading
from posbias.io.progress import RowCounter, count_rows
from posbias.io.results.tables import write_in_one_file
from posbias.io.temporary.files import check_room, temporary_files
from posbias.io.temporary.kept import keep

_TEMPORARY_BYTES_PER_ROW = 4  # of integer ids, compressed; the least that buckets were seen to take
_ROWS_THAT_STAY_IN_CACHE, _MANY_BUCKETS = 1 << 20, 64  # smaller buckets are faster, up to a point
_MOST_ROWS_AT_ONCE = 1 << 21  # counted together: they and their copies take about 200 MB
_FEW_QUERIES = 100  # too few for errors clustered by query to be judged by
_BUCKET = "posbias_bucket"


@dataclass(frozen=True)
class LocalParts:
    """Frames of this machine, made one after the other.

    Attributes:
        frames: makes them.
        number: how many there are, where that is known.
    """

    frames: Callable[[], Iterator[pl.LazyFrame]]
    number: int | None

    @property
    def in_memory(self) -> bool:
        """Whether there is but one."""
        return self.number == 1

    def map(self, work: Callable[[int, pl.LazyFrame], Found]) -> Iterator[Found]:
        """What a function makes of each frame, the next one being made meanwhile."""
        for number, frame in enumerate(_ahead(self.frames())):
            yield work(number, frame)


@dataclass(frozen=True)
class Bucketed:
    """A log as it was read: its good rows, in one bucket or several, and what became of the others.

    Attributes:
        log: the log.
        frames: canonical impressions; a query lies wholly in one bucket.
        rows_read: rows in the log.
        rejected: number of rows per reason.
        totals: what the good rows and pages add up to.
        clicks_without_impression: where clicks are apart.
        some_pages: whole pages, as a rule those of one bucket; None where the log has no sessions.
    """

    log: Log
    frames: tuple[pl.LazyFrame, ...]
    rows_read: int
    rejected: dict[str, int]
    totals: LogTotals
    clicks_without_impression: int | None
    some_pages: pl.LazyFrame | None

    @property
    def buckets(self) -> LocalParts:
        """The good rows."""
        return LocalParts(lambda: iter(self.frames), len(self.frames))

    def statistics(self, plan: StatisticsPlan) -> LocalParts:
        """The statistics of each bucket, sorted by the plan's keys."""
        return LocalParts(lambda: (_counted(bucket, plan) for bucket in self.frames), len(self.frames))


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
        """Read the log once, reject what breaks the contract, split what does not fit into memory."""
        with reading([*log.sources, *log.click_sources]):
            n_buckets = self._buckets_for(log.estimated_rows, log.impressions.collect_schema())
            if n_buckets == 1:
                return self._read_into_memory(log, on_rows, whole_pages=whole_pages)
            return self._split(log, n_buckets, on_rows, keep_sessions=keep_sessions, whole_pages=whole_pages)

    def parts_of(self, frames: Sequence[pl.LazyFrame]) -> LocalParts:
        """Frames that hold whole queries each, as parts."""
        return LocalParts(lambda: map(_collected, frames), len(frames))

    def add_up(self, statistics: Sequence[pl.LazyFrame], plan: StatisticsPlan) -> LocalParts:
        """Merge statistics (several days), in parts that hold whole queries, sorted by the plan's keys."""

        def parts() -> Iterator[pl.LazyFrame]:
            together = pl.concat(statistics)
            rows = together.select(pl.len()).collect().item()
            n_buckets = self._buckets_for(rows, together.collect_schema())
            frames = [together]
            if n_buckets > 1:
                folder = self.scratch / "statistics"
                with temporary_files(self.scratch):
                    _bucket_sink(together, _bucket_of_query(n_buckets), folder).collect(engine="streaming")
                frames = _bucket_frames(folder, n_buckets)
            for frame in frames:
                yield _added_up(frame, plan).lazy()

        return LocalParts(parts, None)

    def each(self, items: Iterable[Item], work: Callable[[Item], Found]) -> Iterator[Found]:
        """What a function makes of each item."""
        return map(work, items)

    def write_table(self, items: Iterable[Item], rows: Callable[[Item], pl.DataFrame], path: Path) -> Iterator[None]:
        """Write what a function makes of each item into one Parquet file."""
        return write_in_one_file(map(rows, items), path)

    def _buckets_for(self, rows: int, schema: pl.Schema) -> int:
        return max(fewest_parts(rows, schema, self.memory), min(rows // _ROWS_THAT_STAY_IN_CACHE, _MANY_BUCKETS))

    def _read_into_memory(self, log: Log, on_rows: RowCounter | None, *, whole_pages: bool) -> Bucketed:
        rows = count_rows(log.impressions, on_rows).collect(engine="streaming")
        counts = _row_counts(rows.lazy()).collect()
        rejected, totals = self._judge_rows(log, counts, rows.height), _totals(counts)
        good = good_rows(rows.lazy()).collect() if rejected else rows.drop(REJECTED)
        repeats = dict[str, int]()
        if log.docs_once:
            good, repeats = _each_doc_once(good.lazy(), whole_pages=whole_pages)
        if log.has_sessions:
            shown = pages(good.lazy(), log.page_rules).collect(engine="streaming").lazy()
            judged = _judged([shown])
            faulty, totals = judged.faulty, replace(totals, page_ends=judged.ends)
            rejected |= self._judge_pages(log, faulty, good.height)
            if whole_pages and rejected:
                affected = _affected_pages(shown, rows.lazy().filter(pl.col(REJECTED) > 0), faulty)
                rejected |= rows_by_reason(page_faults(affected))
                faulty = pl.concat([faulty, affected])
            good = _without_pages(good.lazy(), faulty).collect() if faulty.height else good
        some_pages = good.lazy() if log.has_sessions else None
        return Bucketed(log, (good.lazy(),), rows.height, rejected | repeats, totals, log.orphan_clicks(), some_pages)

    def _split(
        self, log: Log, n_buckets: int, on_rows: RowCounter | None, *, keep_sessions: bool, whole_pages: bool
    ) -> Bucketed:
        """Write the good rows to buckets by query, the others to one of their own."""
        check_room(self.scratch, log.estimated_rows * _TEMPORARY_BYTES_PER_ROW)
        impressions, judged, repeats = log.impressions, None, Counter[str]()
        keep_sessions = keep_sessions or log.docs_once
        if log.has_sessions and not keep_sessions:
            judged = self._judged_pages(log, good_rows(impressions), n_buckets)
            if self.on_bad_rows == "error":
                self._judge_pages(log, judged.faulty, log.estimated_rows)
            impressions = impressions if judged.faulty.height else self._with_some_sessions(log, impressions, n_buckets)
        folder = self.scratch / "impressions"
        bucket = pl.when(pl.col(REJECTED) == 0).then(_bucket_of_query(n_buckets)).otherwise(n_buckets)
        with temporary_files(self.scratch):
            _bucket_sink(count_rows(impressions, on_rows), bucket, folder).collect(engine="streaming")
        read, counts = _count_rows(folder, n_buckets)
        rejected, totals = self._judge_rows(log, counts, read), _totals(counts)
        buckets = [frame.drop(REJECTED) for frame in _bucket_frames(folder, n_buckets)]
        if log.docs_once:
            buckets, repeats = self._keep_docs_once(buckets, whole_pages=whole_pages)
        shown = [self._keep_pages(log, *bucket) for bucket in enumerate(buckets)] if keep_sessions else []
        if shown:
            judged = self._judged_over(pl.concat(shown))
        rows_lost = bool(rejected)
        if judged is not None:
            faulty, totals = judged.faulty, replace(totals, page_ends=judged.ends)
            rejected |= self._judge_pages(log, faulty, read)
            if whole_pages and rows_lost:
                affected = _affected_pages(pl.concat(shown), _bucket_frame(folder, n_buckets), faulty)
                rejected |= rows_by_reason(page_faults(affected))
                faulty = pl.concat([faulty, affected])
            buckets = [_without_pages(frame, faulty) for frame in buckets] if faulty.height else buckets
        split = log.page_rules.several_queries
        some_pages = _some_pages(folder, buckets, split=split) if log.has_sessions and buckets else None
        if log.has_sessions and not keep_sessions:
            buckets = [frame.drop(SESSION) for frame in buckets]
        return Bucketed(log, tuple(buckets), read, rejected | repeats, totals, log.orphan_clicks(), some_pages)

    def _judged_pages(self, log: Log, impressions: pl.LazyFrame, n_buckets: int) -> "_JudgedPages":
        """The pages of a sample of the sessions; of all, if all are checked or the faulty ones left out."""
        session = pl.col(SESSION).hash()

        def found(share: int, of: int) -> pl.LazyFrame:
            return pages(impressions.filter(session % of == share), log.page_rules)

        if self.check_pages == "sample":
            sample = _judged([found(0, max(n_buckets, log.estimated_rows // SAMPLED_ROWS))])
            if self.on_bad_rows == "error" or not sample.faulty.height:
                return sample
        return _judged(found(share, n_buckets) for share in range(n_buckets))

    @staticmethod
    def _with_some_sessions(log: Log, impressions: pl.LazyFrame, n_buckets: int) -> pl.LazyFrame:
        """Impressions with the sessions of the first bucket and of a sample of all; others are null, of no size."""
        one_in = max(1, log.estimated_rows // SAMPLED_ROWS)
        kept = pl.col(SESSION).hash() % one_in == 0
        if not log.page_rules.several_queries:
            kept |= _bucket_of_query(n_buckets) == 0
        return impressions.with_columns(pl.when(kept).then(SESSION).alias(SESSION))

    def _keep_docs_once(
        self, buckets: Sequence[pl.LazyFrame], *, whole_pages: bool
    ) -> tuple[list[pl.LazyFrame], Counter[str]]:
        """The buckets with each document once a page, on disk, and the rows that are left out, by reason."""
        kept, left_out = list[pl.LazyFrame](), Counter[str]()
        for number, bucket in enumerate(buckets):
            once, repeats = _each_doc_once(bucket, whole_pages=whole_pages)
            kept.append(keep(once, self.scratch, f"once-{number:05d}").scan())
            left_out.update(repeats)
        return kept, left_out

    def _keep_pages(self, log: Log, number: int, bucket: pl.LazyFrame) -> pl.LazyFrame:
        """The pages of a bucket, on disk."""
        return keep(
            pages(bucket, log.page_rules).collect(engine="streaming"), self.scratch, f"pages-{number:05d}"
        ).scan()

    def _judged_over(self, parts: pl.LazyFrame) -> "_JudgedPages":
        """The pages of the whole log, from those of its buckets."""
        n_shares = fewest_parts(parts.select(pl.len()).collect().item(), parts.collect_schema(), self.memory)
        session = pl.col(SESSION).hash()
        return _judged(over_parts(parts.filter(session % n_shares == share)) for share in range(n_shares))

    def _judge_rows(self, log: Log, faults: pl.DataFrame, read: int) -> dict[str, int]:
        counts = {int(code): int(rows) for code, rows in faults.select(REJECTED, ROWS).iter_rows() if code}
        return judge_rows(log, counts, read, self.on_bad_rows)

    def _judge_pages(self, log: Log, faulty: pl.DataFrame, rows: int) -> dict[str, int]:
        return judge_pages(log, page_faults(faulty), faulty, rows, self.on_bad_rows)


@dataclass(frozen=True)
class _JudgedPages:
    """What is known of pages.

    Attributes:
        faulty: `session`, `rows` and `rejected` of those that are faulty.
        ends: where the others end.
    """

    faulty: pl.DataFrame
    ends: PageEnds


def _judged(shares: Iterable[pl.LazyFrame]) -> _JudgedPages:
    """What is known of the `pages` of a log, which are collected share by share."""
    faulty, ends = list[pl.DataFrame](), list[pl.DataFrame]()
    for share in shares:
        judged = share.collect(engine="streaming")
        faulty.append(judged.filter(pl.col(REJECTED) > 0).select(SESSION, ROWS, REJECTED))
        ends.append(count_page_ends(judged.lazy()).collect())
    return _JudgedPages(pl.concat(faulty), sum_page_ends(ends))


def _each_doc_once(impressions: pl.LazyFrame, *, whole_pages: bool) -> tuple[pl.DataFrame, dict[str, int]]:
    """Impressions with each document once a page, and the rows that are left out, by reason."""
    marked = mark_repeats(impressions, clicks_above_matter=whole_pages).collect()
    repeats = rows_by_reason(_row_counts(marked.lazy()).filter(pl.col(REJECTED) > 0).collect())
    return good_rows(marked.lazy()).collect(), repeats


def _ahead(frames: Iterator[pl.LazyFrame]) -> Iterator[pl.LazyFrame]:
    """The same frames, the next one being made in another thread while this one is used."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        following = thread.submit(lambda: next(frames, None))
        while (frame := following.result()) is not None:
            following = thread.submit(lambda: next(frames, None))
            yield frame


def _counted(impressions: pl.LazyFrame, plan: StatisticsPlan) -> pl.LazyFrame:
    """The statistics of impressions, sorted by the plan's keys, in memory.

    A bucket that a frequent query makes large is counted piece by piece: pages stay whole where the model needs them.
    """
    n_pieces = -(-impressions.select(pl.len()).collect().item() // _MOST_ROWS_AT_ONCE)
    if n_pieces <= 1:
        return _counted_at_once(impressions, plan).lazy()
    number = pl.col(SESSION if plan.model.needs_session else DOC).hash() % n_pieces
    pieces = [_counted_at_once(impressions.filter(number == piece), plan) for piece in range(n_pieces)]
    return _added_up(pl.concat(pieces).lazy(), plan).lazy()


def _added_up(counts: pl.LazyFrame, plan: StatisticsPlan) -> pl.DataFrame:
    """Counts of equal keys added up, sorted by them."""
    if counts.collect_schema()[IMPRESSIONS].is_float():
        return add_up_weights(counts.collect(engine="streaming"), plan.keys)
    return plan.add_up(nw.from_native(counts)).to_native().sort(plan.keys).collect(engine="streaming")


def _counted_at_once(impressions: pl.LazyFrame, plan: StatisticsPlan) -> pl.DataFrame:
    in_cells = plan.with_cells_in_memory(impressions.collect(engine="streaming"))
    if plan.weighted:
        return count_weights(in_cells.lazy(), plan.keys)
    counted = count_packed(in_cells, plan)
    if counted is None:
        return plan.count_in_cells(nw.from_native(in_cells.lazy())).to_native().sort(plan.keys).collect()
    return counted


def _collected(frame: pl.LazyFrame) -> pl.LazyFrame:
    """The same rows, in memory."""
    return frame.collect(engine="streaming").lazy()


def _affected_pages(shown: pl.LazyFrame, faulty_rows: pl.LazyFrame, faulty: pl.DataFrame) -> pl.DataFrame:
    """The pages that lost a row, other than the faulty ones, with the number of their good rows."""
    lost = shown.join(faulty_rows.select(SESSION).unique(), on=SESSION, how="semi")
    others = lost.join(faulty.lazy().select(SESSION), on=SESSION, how="anti")
    code = pl.lit(int(PageFault.FAULTY_ROW), pl.UInt8).alias(REJECTED)
    return others.group_by(SESSION).agg(pl.col(ROWS).sum()).with_columns(code).collect()


def _without_pages(impressions: pl.LazyFrame, faulty: pl.DataFrame) -> pl.LazyFrame:
    return impressions.join(faulty.lazy().select(SESSION), on=SESSION, how="anti")


def _row_counts(impressions: pl.LazyFrame) -> pl.LazyFrame:
    """Rows, impressions and clicks by what is wrong with the rows; 0 for nothing."""
    return impressions.group_by(REJECTED).agg(_counts(impressions)).sort(REJECTED)


def _counts(impressions: pl.LazyFrame) -> list[pl.Expr]:
    """Rows, the impressions that they stand for, and the clicks on these."""
    shown = pl.col(IMPRESSIONS).sum() if IMPRESSIONS in impressions.collect_schema() else pl.len()
    counts = {ROWS: pl.len(), IMPRESSIONS: shown, CLICKS: pl.col(CLICK).cast(pl.Int64).sum()}
    return [count.cast(pl.Int64).alias(name) for name, count in counts.items()]


def _totals(counts: pl.DataFrame) -> LogTotals:
    good = counts.filter(pl.col(REJECTED) == 0).sum()
    return LogTotals(good[IMPRESSIONS].item() or 0, good[CLICKS].item() or 0)


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


def _some_pages(folder: Path, buckets: Sequence[pl.LazyFrame], *, split: bool) -> pl.LazyFrame:
    """The pages of the first bucket; where that holds few queries, a sample of all pages as well.

    Where pages are split over buckets, the sample alone.
    """
    if split:
        return pl.concat(buckets).filter(pl.col(SESSION).is_not_null())
    has_first = (folder / f"{_BUCKET}=0").is_dir()
    few = not has_first or buckets[0].select(pl.col(QUERY).n_unique()).collect().item() < _FEW_QUERIES
    return (pl.concat(buckets) if few else buckets[0]).filter(pl.col(SESSION).is_not_null())


def _count_rows(folder: Path, bucket: int) -> tuple[int, pl.DataFrame]:
    """How many rows were read, and the `_row_counts`: the faulty ones are in a bucket of their own."""
    good = [frame.select(_counts(frame)).collect(engine="streaming") for frame in _bucket_frames(folder, bucket)]
    names = (ROWS, IMPRESSIONS, CLICKS)
    counts = pl.concat(good).sum() if good else pl.DataFrame(schema=dict.fromkeys(names, pl.Int64))
    counts = counts.select(pl.lit(0, pl.UInt8).alias(REJECTED), *names)
    if (folder / f"{_BUCKET}={bucket}").is_dir():
        faulty = _row_counts(_bucket_frame(folder, bucket)).collect(engine="streaming")
        counts = pl.concat([counts, faulty])
    return int(counts[ROWS].sum()), counts


def _bucket_frames(folder: Path, n_buckets: int) -> list[pl.LazyFrame]:
    """The buckets that hold rows, in the order of their number."""
    found = [number for number in range(n_buckets) if (folder / f"{_BUCKET}={number}").is_dir()]
    return [_bucket_frame(folder, number) for number in found]


def _bucket_frame(folder: Path, number: int) -> pl.LazyFrame:
    paths = sorted((folder / f"{_BUCKET}={number}").glob("*.parquet"))
    return pl.scan_parquet(paths, hive_partitioning=False, glob=False)
