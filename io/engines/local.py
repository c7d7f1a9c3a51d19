"""The local engine: Polars, on one machine, in bounded memory.

A log that fits is read once into memory. A larger one is split into buckets on disk, and every plan runs on several
buckets at a time. A bucket holds whole queries, and so whole pages.

Pages of a log on this machine: which of them break the contract, and what is left without them.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import polars as pl

from posbias.core.arrays.threads import at_once, n_threads
from posbias.core.choices import CheckPages, OnBadRows
from posbias.core.counts.plan import StatisticsPlan
from posbias.core.log.guards import LogTotals, PageEnds, count_page_ends, sum_page_ends
from posbias.core.log.impressions import REJECTED
from posbias.core.log.pages import PageFault, mark_repeats, over_parts, pages, pages_in_memory
from posbias.core.schema import CLICKS, DOC, IMPRESSIONS, QUERY, SESSION
from posbias.io.engines.buckets import LEAST_BYTES_PER_ROW, Buckets, bucket_of_query, only_sessions, row_counts
from posbias.io.engines.contract import (
    ROWS,
    SAMPLED_ROWS,
    bytes_per_row,
    fewest_parts,
    judge_pages,
    judge_rows,
    page_faults,
    room_for_parts,
    rows_by_reason,
)
from posbias.io.engines.engine import Found, Item
from posbias.io.engines.local_parts import Bucketed, LocalParts, MakeFrame, add_up_part, pieces_of
from posbias.io.engines.packed_buckets import packed_buckets
from posbias.io.log.log import Log, good_rows
from posbias.io.log.scan import reading
from posbias.io.progress import RowCounter, count_rows
from posbias.io.results.tables import write_in_one_file
from posbias.io.temporary.files import check_room, temporary_files
from posbias.io.temporary.kept import keep


@dataclass(frozen=True)
class JudgedPages:
    """What is known of pages.

    Attributes:
        faulty: `session`, `rows` and `rejected` of those that are faulty.
        ends: where the others end.
    """

    faulty: pl.DataFrame
    ends: PageEnds


def judge(shares: Iterable[pl.LazyFrame]) -> JudgedPages:
    """What is known of the `pages` of a log, which are collected share by share."""
    faulty, ends = list[pl.DataFrame](), list[pl.DataFrame]()
    for share in shares:
        judged = share.collect(engine="streaming")
        faulty.append(judged.filter(pl.col(REJECTED) > 0).select(SESSION, ROWS, REJECTED))
        ends.append(count_page_ends(judged.lazy()).collect())
    return JudgedPages(pl.concat(faulty), sum_page_ends(ends))


def in_sample(log: Log, n_buckets: int) -> pl.Expr:
    """Whether a row is of the pages that are checked where not all are."""
    return pl.col(SESSION).is_not_null() & _is_checked(log, n_buckets)


def keeps_session(log: Log, n_buckets: int) -> pl.Expr:
    """Whether a row is of the pages that are looked at: of the first bucket, and of a sample of all."""
    return pl.col(SESSION).is_not_null() & _is_kept(log, n_buckets)


def is_looked_at(log: Log, n_buckets: int) -> pl.Expr:
    """Whether a row is of any of these pages."""
    return pl.col(SESSION).is_not_null() & (_is_kept(log, n_buckets) | _is_checked(log, n_buckets))


def _is_checked(log: Log, n_buckets: int) -> pl.Expr:
    return pl.col(SESSION).hash() % max(n_buckets, log.estimated_rows // SAMPLED_ROWS) == 0


def _is_kept(log: Log, n_buckets: int) -> pl.Expr:
    kept = pl.col(SESSION).hash() % max(1, log.estimated_rows // SAMPLED_ROWS) == 0
    return kept if log.page_rules.several_queries else kept | (bucket_of_query(n_buckets) == 0)


def each_doc_once(impressions: pl.LazyFrame, *, whole_pages: bool) -> tuple[pl.DataFrame, dict[str, int]]:
    """Impressions with each document once a page, and the rows that are left out, by reason."""
    marked = mark_repeats(impressions, clicks_above_matter=whole_pages).collect()
    repeats = rows_by_reason(row_counts(marked.lazy()).filter(pl.col(REJECTED) > 0).collect())
    return good_rows(marked.lazy()).collect(), repeats


def affected_pages(shown: pl.LazyFrame, faulty_rows: pl.LazyFrame, faulty: pl.DataFrame) -> pl.DataFrame:
    """The pages that lost a row, other than the faulty ones, with the number of their good rows."""
    lost = shown.join(faulty_rows.select(SESSION).unique(), on=SESSION, how="semi")
    others = lost.join(faulty.lazy().select(SESSION), on=SESSION, how="anti")
    code = pl.lit(int(PageFault.FAULTY_ROW), pl.UInt8).alias(REJECTED)
    return others.group_by(SESSION).agg(pl.col(ROWS).sum()).with_columns(code).collect()


def without_pages(impressions: pl.LazyFrame, faulty: pl.DataFrame) -> pl.LazyFrame:
    """The rows of other pages."""
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
            widths = _widths(log)
            n_buckets = self._buckets_for(log.estimated_rows, log.impressions.collect_schema(), widths.of_text)
            if n_buckets == 1:
                return self._read_into_memory(log, on_rows, whole_pages=whole_pages)
            return self._split(log, n_buckets, widths, on_rows, keep_sessions=keep_sessions, whole_pages=whole_pages)

    def parts_of(self, frames: Sequence[pl.LazyFrame]) -> LocalParts:
        """Frames that hold whole queries each, as parts."""
        return LocalParts(lambda: (partial(_collected, frame) for frame in frames), len(frames), self._at_once)

    def add_up(self, statistics: Sequence[pl.LazyFrame], plan: StatisticsPlan) -> LocalParts:
        """Merge statistics (several days), in parts that hold whole queries, sorted by the plan's keys."""

        def parts() -> Iterator[MakeFrame]:
            together = pl.concat(statistics)
            rows = together.select(pl.len()).collect().item()
            n_buckets = self._buckets_for(rows, together.collect_schema())
            frames = [together]
            if n_buckets > 1:
                buckets = Buckets(self.scratch / "statistics", n_buckets)
                with temporary_files(self.scratch):
                    buckets.write([together], judged=False)
                frames = buckets.frames
            yield from (partial(_added_up, frame, plan) for frame in frames)

        return LocalParts(parts, None, self._at_once)

    @property
    def in_this_process(self) -> bool:
        """It is all here."""
        return True

    def each(self, items: Iterable[Item], work: Callable[[Item], Found]) -> Iterator[Found]:
        """What a function makes of each item."""
        return at_once(work, items, self._at_once)

    def write_table(self, items: Iterable[Item], rows: Callable[[Item], pl.DataFrame], path: Path) -> Iterator[None]:
        """Write what a function makes of each item into one Parquet file."""
        return write_in_one_file(at_once(rows, items, self._at_once), path)

    @property
    def _at_once(self) -> int:
        """How many parts are worked on at once, of a size that is not known."""
        return self._at_once_of(_BYTES_OF_USUAL_PART)

    def _at_once_of(self, part: int) -> int:
        """How many parts are worked on at once: as many as threads, as far as memory goes.

        Args:
            part: what a plan holds at its peak for one of them, in bytes; parts are cut so that memory holds that.
        """
        room = room_for_parts(self.memory)
        return max(1, min(n_threads(), int(room / (_SHARE_AT_WORK * max(min(part, room), 1)))))

    def _buckets_for(self, rows: int, schema: pl.Schema, text_bytes: int = 0) -> int:
        fewest = fewest_parts(rows, schema, self.memory, text_bytes)
        return max(fewest, min(rows // _ROWS_THAT_STAY_IN_CACHE, _MANY_BUCKETS))

    def _read_into_memory(self, log: Log, on_rows: RowCounter | None, *, whole_pages: bool) -> Bucketed:
        rows = count_rows(log.impressions, on_rows).collect(engine="streaming")
        counts = row_counts(rows.lazy()).collect()
        rejected, totals = self._judge_rows(log, counts, rows.height), _totals(counts)
        good = good_rows(rows.lazy()).collect() if rejected else rows.drop(REJECTED)
        repeats = dict[str, int]()
        if log.docs_once:
            good, repeats = each_doc_once(good.lazy(), whole_pages=whole_pages)
        if log.has_sessions:
            shown = pages_in_memory(good, log.page_rules).lazy()
            judged = judge([shown])
            faulty, totals = judged.faulty, replace(totals, page_ends=judged.ends)
            rejected |= self._judge_pages(log, faulty, good.height)
            if whole_pages and rejected:
                affected = affected_pages(shown, rows.lazy().filter(pl.col(REJECTED) > 0), faulty)
                rejected |= rows_by_reason(page_faults(affected))
                faulty = pl.concat([faulty, affected])
            good = without_pages(good.lazy(), faulty).collect() if faulty.height else good
        some_pages = good.lazy() if log.has_sessions else None
        return Bucketed(
            log,
            self.scratch,
            (good.lazy(),),
            rows.height,
            rejected | repeats,
            totals,
            log.joined_clicks(),
            some_pages,
        )

    def _split(
        self,
        log: Log,
        n_buckets: int,
        widths: "_Widths",
        on_rows: RowCounter | None,
        *,
        keep_sessions: bool,
        whole_pages: bool,
    ) -> Bucketed:
        """Write the good rows to buckets by query, the others to one of their own."""
        repeats = Counter[str]()
        all_pages = keep_sessions or log.docs_once or self.check_pages == "all"
        if log.has_sessions and not all_pages:
            all_pages = self._has_faulty_pages(log, n_buckets)
        rows = partial(self._rows_to_write, log, widths)
        looked_at = None
        if log.has_sessions and not all_pages:
            looked_at = is_looked_at(log, n_buckets)
        row = bytes_per_row(log.impressions.collect_schema(), widths.of_text)
        place, some = self.scratch / "impressions", self._at_once_of(log.estimated_rows // n_buckets * row)
        buckets = packed_buckets(log, place, n_buckets, some) or Buckets(place, n_buckets)
        check_room(self.scratch, log.estimated_rows * LEAST_BYTES_PER_ROW)
        with temporary_files(self.scratch):
            if isinstance(buckets, Buckets):
                buckets.write(only_sessions(rows(on_rows), looked_at))
            else:
                buckets.write(rows(on_rows), rows(None), looked_at)
        read, counts = buckets.count_rows()
        rejected, totals = self._judge_rows(log, counts, read), _totals(counts)
        frames = [frame.drop(REJECTED, strict=False) for frame in buckets.frames]
        numbers = None if isinstance(buckets, Buckets) or log.docs_once else buckets.numbers
        if log.docs_once:
            frames, repeats = self._keep_docs_once(frames, whole_pages=whole_pages)
        some_pages = None
        if log.has_sessions and frames:
            looked_at = frames if all_pages else [frame.drop(REJECTED, strict=False) for frame in buckets.with_session]
            shown = self._pages(log, looked_at, n_buckets, all_pages=all_pages)
            judged = self._judged_over(shown) if all_pages else judge([shown])
            faulty, totals, rows_lost = judged.faulty, replace(totals, page_ends=judged.ends), bool(rejected)
            rejected |= self._judge_pages(log, faulty, read)
            if whole_pages and rows_lost:
                affected = affected_pages(shown, buckets.faulty, faulty)
                rejected |= rows_by_reason(page_faults(affected))
                faulty = pl.concat([faulty, affected])
            if faulty.height:
                frames, looked_at = ([without_pages(frame, faulty) for frame in group] for group in (frames, looked_at))
                numbers = None
            kept = pl.col(SESSION).is_not_null() if all_pages else keeps_session(log, n_buckets)
            of_buckets = [frame.filter(kept) for frame in looked_at]
            some_pages = _some_pages(of_buckets, has_first=buckets.holds(0), split=log.page_rules.several_queries)
        if log.has_sessions and not (keep_sessions or log.docs_once):
            frames = [frame.drop(SESSION) for frame in frames]
        return Bucketed(
            log,
            self.scratch,
            tuple(frames),
            read,
            rejected | repeats,
            totals,
            log.joined_clicks(),
            some_pages,
            numbers,
            some,
        )

    def _rows_to_write(self, log: Log, widths: "_Widths", on_rows: RowCounter | None) -> Iterator[pl.LazyFrame]:
        """The rows of a log, in slices where too many are read at once."""
        room = room_for_parts(self.memory) // widths.of_row
        sliced = log.can_be_sliced and room < log.estimated_rows and room < _rows_on_the_way(log)
        frames = log.slices(room // _COPIES_OF_SLICE) if sliced else [log.impressions]
        yield from (count_rows(frame, on_rows) for frame in frames)

    def _has_faulty_pages(self, log: Log, n_buckets: int) -> bool:
        """Whether pages have to be left out, so that all of them must be known, by a sample.

        Raises:
            SchemaError: the first ones cannot be results pages, and are not to be left out: the log need not be read.
        """
        stops = self.on_bad_rows == "error"
        if stops and not self._first_pages(log).faulty.height:
            return False
        sample = good_rows(log.impressions).filter(in_sample(log, n_buckets))
        faulty = judge([pages(sample, log.page_rules)]).faulty
        if stops:
            self._judge_pages(log, faulty, log.estimated_rows)
        return stops or bool(faulty.height)

    @staticmethod
    def _first_pages(log: Log) -> JudgedPages:
        return judge([pages(good_rows(log.impressions.head(_FIRST_ROWS)), log.page_rules)])

    def _pages(self, log: Log, frames: Sequence[pl.LazyFrame], n_buckets: int, *, all_pages: bool) -> pl.LazyFrame:
        """The `pages` of buckets, on disk; those of a sample, whole, if that is all that is needed."""
        if not all_pages:
            return pages(pl.concat(frames).filter(in_sample(log, n_buckets)), log.page_rules)
        if log.page_rules.several_queries:  # buckets do not hold whole pages
            together, session = pl.concat(frames), pl.col(SESSION).hash()
            frames = [together.filter(session % n_buckets == share) for share in range(n_buckets)]
        keep_pages = partial(self._keep_pages, log)
        return pl.concat(at_once(keep_pages, enumerate(frames), self._at_once))

    def _keep_docs_once(
        self, buckets: Sequence[pl.LazyFrame], *, whole_pages: bool
    ) -> tuple[list[pl.LazyFrame], Counter[str]]:
        """The buckets with each document once a page, on disk, and the rows that are left out, by reason."""
        kept, left_out = list[pl.LazyFrame](), Counter[str]()
        for number, bucket in enumerate(buckets):
            once, repeats = each_doc_once(bucket, whole_pages=whole_pages)
            kept.append(keep(once, self.scratch, f"once-{number:05d}").scan())
            left_out.update(repeats)
        return kept, left_out

    def _keep_pages(self, log: Log, numbered: tuple[int, pl.LazyFrame]) -> pl.LazyFrame:
        """The pages of a bucket, on disk."""
        number, bucket = numbered
        kept = list[pl.LazyFrame]()
        with pieces_of(bucket, SESSION, self.scratch) as pieces:
            for at, piece in enumerate(pieces):
                found = pages_in_memory(piece.collect(engine="streaming"), log.page_rules)
                kept.append(keep(found, self.scratch, f"pages-{number:05d}-{at:05d}", quickly=True).scan())
        return pl.concat(kept)

    def _judged_over(self, parts: pl.LazyFrame) -> JudgedPages:
        """The pages of the whole log, from those of its buckets."""
        n_shares = fewest_parts(parts.select(pl.len()).collect().item(), parts.collect_schema(), self.memory)
        session = pl.col(SESSION).hash()
        return judge(over_parts(parts.filter(session % n_shares == share)) for share in range(n_shares))

    def _judge_rows(self, log: Log, faults: pl.DataFrame, read: int) -> dict[str, int]:
        counts = {int(code): int(rows) for code, rows in faults.select(REJECTED, ROWS).iter_rows() if code}
        return judge_rows(log, counts, read, self.on_bad_rows)

    def _judge_pages(self, log: Log, faulty: pl.DataFrame, rows: int) -> dict[str, int]:
        return judge_pages(log, page_faults(faulty), faulty, rows, self.on_bad_rows)


def _rows_on_the_way(log: Log) -> int:
    """How many rows are in memory at once, while Polars streams a large log into buckets."""
    return _ROWS_ON_THE_WAY + n_threads() * log.longest_row_group


def _collected(frame: pl.LazyFrame) -> pl.LazyFrame:
    """The same rows, in memory."""
    return frame.collect(engine="streaming").lazy()


def _added_up(counts: pl.LazyFrame, plan: StatisticsPlan) -> pl.LazyFrame:
    return add_up_part(counts, plan).lazy()


def _totals(counts: pl.DataFrame) -> LogTotals:
    good = counts.filter(pl.col(REJECTED) == 0).sum()
    return LogTotals(good[IMPRESSIONS].item() or 0, good[CLICKS].item() or 0)


def _some_pages(kept: Sequence[pl.LazyFrame], *, has_first: bool, split: bool) -> pl.LazyFrame:
    """The pages of the first bucket; where that holds few queries, a sample of all pages as well.

    Where pages are split over buckets, the sample alone.

    Args:
        kept: the rows of each bucket whose pages are looked at.
        has_first: whether the first of them is the first bucket.
        split: whether pages are split over buckets.
    """
    if split:
        return pl.concat(kept)
    few = not has_first or kept[0].select(pl.col(QUERY).n_unique()).collect().item() < _FEW_QUERIES
    return pl.concat(kept) if few else kept[0]


@dataclass(frozen=True)
class _Widths:
    """Bytes that rows take, by the first ones.

    Attributes:
        of_row: all of a row.
        of_text: the longest of the texts that are ids.
    """

    of_row: int
    of_text: int


def _widths(log: Log) -> _Widths:
    """How wide rows are."""
    schema = log.impressions.collect_schema()
    texts = [name for name, dtype in schema.items() if isinstance(dtype, pl.String)]
    first = log.impressions.head(_FIRST_WIDTHS).select(pl.col(texts).str.len_bytes().mean()) if texts else None
    bytes_of = {} if first is None else first.collect(engine="streaming").fill_null(0).row(0, named=True)
    of_ids = [int(bytes_of.get(name, 0)) for name in (SESSION, QUERY, DOC)]
    others = _BYTES_OF_NUMBER * (len(schema) - len(texts))
    return _Widths(others + sum(_BYTES_OF_VIEW + int(width) for width in bytes_of.values()), max(of_ids))
