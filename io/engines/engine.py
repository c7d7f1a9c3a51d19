"""The interface of engines, local (Polars) or Spark, and what they share: samples, validation, sizes of parts.

Rows are split into parts of whole queries: in memory, on disk, or on a cluster. Functions are sent to the parts, and
return small results.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, TypeVar

import polars as pl

from posbias.core.choices import CheckPages, OnBadRows
from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.errors import SchemaError
from posbias.core.log.impressions import REJECTED, RowRejection
from posbias.core.log.pages import HARMLESS, LogTotals, PageRejection
from posbias.core.schema import CLICKS, DOC, IMPRESSIONS, QUERY, SESSION
from posbias.io.log.click_log import Log
from posbias.io.log.clicks import JoinedClicks, Rows
from posbias.io.log.rejections import describe_rejected_pages, describe_rejected_rows, why_rejected
from posbias.io.log.times import Days
from posbias.io.progress import RowCounter

KeepSessions: TypeAlias = bool | Literal["unchecked"]

Item = TypeVar("Item")
Output = TypeVar("Output")


class Parts(Protocol):
    """Rows split into parts."""

    @property
    def number(self) -> int | None:
        """Upper bound on the number of parts; None if unknown."""
        ...

    @property
    def in_memory(self) -> bool:
        """Whether all rows are one part in the memory of this process."""
        ...

    def map(self, work: Callable[[int, pl.LazyFrame], Output]) -> Iterator[Output]:
        """Yield `work(number, rows)` for each part, in the order of the numbers.

        The function may run in another process, and twice: it must be picklable, and write by `whole_files`.
        """
        ...


def sums_by(parts: Parts, keys: Sequence[pl.Expr], **sums: pl.Expr) -> pl.DataFrame:
    """Sum expressions by key over all parts; the order of rows is undefined."""
    by_part = pl.concat(parts.map(partial(_sum_part, keys=keys, sums=sums)))
    return by_part.group_by([name for name in by_part.columns if name not in sums]).sum()


def _sum_part(_: int, rows: pl.LazyFrame, keys: Sequence[pl.Expr], sums: dict[str, pl.Expr]) -> pl.DataFrame:
    return rows.group_by(*keys).agg(**sums).collect(engine="streaming")


@dataclass(frozen=True)
class ReadLog(ABC):
    """A log after reading: its accepted rows in parts, and the number of rejected rows by reason."""

    log: Log  # for raw files, the log into which they were converted
    plan: StatisticsPlan  # keys that can be counted: its period is the day if timestamps have no time of day
    rows_read: int  # number of rows in the log
    rejected: dict[str, int]  # number of rows per reason
    totals: LogTotals  # totals of accepted rows and pages
    clicks: JoinedClicks | None  # outcomes of clicks that were logged in a table of their own

    # Set by `read_log`
    sources: dict[str, str] = field(default_factory=dict[str, str], kw_only=True)  # path by digest
    rows: Rows = field(default=Rows(0, 0, {}), kw_only=True)  # numbers of rows, for the manifest
    notes: tuple[str, ...] = field(default=(), kw_only=True)  # remarks on how the log was read
    days: Days | None = field(default=None, kw_only=True)  # rows by day; None without a period

    @property
    @abstractmethod
    def buckets(self) -> Parts:
        """Accepted impressions in canonical form; each query lies in one part."""

    @property
    def pieces(self) -> Parts:
        """Accepted impressions in any partition: cheaper on Spark, as no rows are moved."""
        return self.buckets

    @property
    @abstractmethod
    def page_sample(self) -> pl.LazyFrame | None:
        """Whole pages: all of a small log, else the pages of a sample of queries; None without a session column."""

    @property
    @abstractmethod
    def in_order(self) -> Sequence[pl.LazyFrame]:
        """Accepted rows of a sample of queries in log order, each query in one frame; empty if the order is unknown."""

    @abstractmethod
    def statistics(self, plan: StatisticsPlan) -> Parts:
        """Sufficient statistics of accepted rows; each part is sorted by the plan's keys."""


@dataclass(frozen=True)
class Engine(ABC):
    """Read logs, count them by a plan, and run functions on their parts."""

    memory: int  # target for the memory of a process that works on a part, in bytes
    scratch: Path  # directory for temporary files, which all workers of the engine see
    on_bad_rows: OnBadRows = "error"  # whether rows that break the contract stop the run or are left out
    check_pages: CheckPages = "sample"  # whether pages of a large log are checked in a sample, or all

    in_this_process: ClassVar[bool]
    """Whether all work is done in this process."""

    @abstractmethod
    def read(
        self, log: Log, plan: StatisticsPlan, *, keep_sessions: KeepSessions, on_rows: RowCounter | None = None
    ) -> ReadLog:
        """Read a log and reject rows and pages that break the contract.

        Args:
            log: an opened log.
            plan: keys of the counts; if it needs pages, pages that lost a row are rejected: that may have been clicked.
            keep_sessions: whether later steps need sessions; all pages are then checked, or a sample if "unchecked".
            on_rows: called with the number of rows as the local engine reads them; Spark does not call it.

        Raises:
            SchemaError: rows or pages break the contract, and are not to be left out.
            LogFormatError: a file cannot be read.
        """

    def parts_of(self, frames: Sequence[pl.LazyFrame]) -> Parts:
        """Make each frame a part; each must hold whole queries."""
        makers = [partial(collected, frame) for frame in frames]
        in_memory = self.in_this_process and len(makers) == 1
        return FrameParts(self.each, lambda: makers, len(makers), in_memory=in_memory)

    @abstractmethod
    def add_up(self, statistics: Sequence[pl.LazyFrame], plan: StatisticsPlan, *, distinct: bool = False) -> Parts:
        """Merge statistics, e.g. of several days; each part is sorted by the plan's keys.

        Args:
            statistics: statistics; rows of several frames may have equal keys.
            plan: keys of the counts.
            distinct: whether no two rows have equal keys, so that they need only be sorted.
        """

    @abstractmethod
    def each(self, items: Iterable[Item], work: Callable[[Item], Output]) -> Iterator[Output]:
        """Yield `work(item)` in the order of the items. It may run in another process, and twice."""

    @abstractmethod
    def write_table(self, items: Iterable[Item], rows: Callable[[Item], pl.DataFrame], path: Path) -> Iterator[None]:
        """Write the frames `rows(item)` as one Parquet table: a file, or a directory of part files."""


MakeFrame = Callable[[], pl.LazyFrame | pl.DataFrame]


@dataclass(frozen=True)
class FrameParts:
    """Parts of whole queries that are made lazily, each in the worker that processes it."""

    each: Callable[[Iterable[Any], Callable[[Any], Any]], Iterator[Any]]  # `Engine.each`
    makers: Callable[[], Iterable[MakeFrame]]  # return a function for each part that makes its frame
    number: int | None
    in_memory: bool

    def map(self, work: Callable[[int, pl.LazyFrame], Output]) -> Iterator[Output]:
        """Yield `work(number, frame)` in the order of the parts."""
        return self.each(enumerate(self.makers()), partial(_make_and_apply, work=work))


def _make_and_apply(item: tuple[int, MakeFrame], work: Callable[[int, pl.LazyFrame], Output]) -> Output:
    number, make = item
    return work(number, make().lazy())


def collected(frame: pl.LazyFrame) -> pl.DataFrame:
    """Collect a frame with the streaming engine."""
    return frame.collect(engine="streaming")


ROWS = "rows"
"""Column: number of rows of a page, or with a reason."""

PAGES = "pages"
"""Column: number of pages with a reason."""

SAMPLED_ROWS = 1 << 20
"""Approximate number of rows in the sample of pages that is checked: enough to detect that sessions are visits."""

# Peak memory of counting, per row: measured on group-by, sort and window over integer ids, rounded up.
_BYTES_PER_ROW, _BYTES_PER_KEY_BYTE = 220, 3
_TEXT_BYTES, _NUMBER_BYTES = 40, 8

PROCESS_BYTES = 300 << 20
"""Memory of the interpreter, its libraries and their thread buffers."""

ROWS_IN_ORDER = 1 << 19
"""Approximate number of rows to test for feedback by their order: enough to detect a ranker that learns from clicks."""

_MOSTLY = 0.5
_SEED_OF_SAMPLE = 1  # not that of buckets, which are samples of queries already
_FAR_OFF = 4  # a sample of more than 4 times, or less than a quarter of, the requested rows is rejected


def sample_rows(rows: Sequence[pl.LazyFrame], most: int) -> list[pl.DataFrame]:
    """Sample about `most` rows in log order: whole queries, so that documents recur as often as in all rows.

    If few queries hold most rows, whole pages are sampled; without sessions, the first rows of each frame are returned.

    Args:
        rows: frames of whole queries.
        most: approximate number of rows, of all frames together.
    """
    height = sum(frame.select(pl.len()).collect(engine="streaming").item() for frame in rows)
    one_in = -(-height // most)
    if one_in <= 1:
        return [frame.collect(engine="streaming") for frame in rows]

    def sample(column: str) -> list[pl.DataFrame]:
        in_sample = pl.col(column).hash(_SEED_OF_SAMPLE) % one_in == 0
        return [frame.filter(in_sample).collect(engine="streaming") for frame in rows]

    queries = sample(QUERY)
    if most // _FAR_OFF <= sum(frame.height for frame in queries) <= _FAR_OFF * most:
        return queries
    if SESSION in rows[0].collect_schema():
        return sample(SESSION)
    return [frame.head(most // len(rows)).collect(engine="streaming") for frame in rows]


def check_rows(log: Log, counts: pl.DataFrame, on_bad_rows: OnBadRows) -> tuple[dict[str, int], LogTotals]:
    """Return the number of rejected rows by reason, and the totals of accepted rows; pages are not checked.

    Args:
        log: the log, for messages.
        counts: `rows`, `impressions` and `clicks` by `rejected`.
        on_bad_rows: whether faulty rows stop the run.

    Raises:
        SchemaError: there are faulty rows, and they stop the run.
    """
    rejected = {code: rows for code, rows in counts.select(REJECTED, ROWS).iter_rows() if code}
    faulty = {code: rows for code, rows in rejected.items() if code not in HARMLESS}
    if faulty and on_bad_rows == "error":
        raise SchemaError(*describe_rejected_rows(log, faulty, int(counts[ROWS].sum())))
    good = counts.filter(pl.col(REJECTED) == 0).select(pl.col(IMPRESSIONS, CLICKS).sum())
    totals = add_lost_clicks(LogTotals(*good.row(0)), counts)
    totals = replace(totals, clicks_read=totals.clicked + totals.clicks_left_out)
    return {why_rejected(code): rejected[code] for code in sorted(rejected)}, totals


_LOSE_NO_CLICK = (
    *(RowRejection.EMPTY_PAGE, RowRejection.NO_IMPRESSIONS, RowRejection.RARE_QUERY, RowRejection.CLICK_INVALID),
    *(RowRejection.CLICKS_INVALID, RowRejection.OTHER_VALUE, PageRejection.COPY),
)
"""Rejections by which no click of the log is lost, or whose number of clicks is unknown."""


def add_lost_clicks(totals: LogTotals, left_out: pl.DataFrame) -> LogTotals:
    """Add clicks by `rejected` to `clicks_left_out`, except clicks on exact copies and on rows that options exclude."""
    lost = (pl.col(REJECTED) > 0) & ~pl.col(REJECTED).is_in([int(code) for code in _LOSE_NO_CLICK])
    return replace(totals, clicks_left_out=totals.clicks_left_out + int(left_out.filter(lost)[CLICKS].sum()))


def check_pages(
    log: Log, faults: pl.DataFrame, examples: pl.DataFrame, rows: int, on_bad_rows: OnBadRows
) -> dict[str, int]:
    """Return the number of rows by reason on faulty pages: sessions that cannot be one results page.

    Args:
        log: the log, for messages.
        faults: counts of faulty pages, from `page_faults`.
        examples: `session` and `rejected` of faulty pages, at least one for each reason.
        rows: number of rows in the log.
        on_bad_rows: whether faulty pages stop the run.

    Raises:
        SchemaError: there are faulty pages, and they stop the run or hold most of the rows.
    """
    mostly = faults[ROWS].sum() > _MOSTLY * rows
    if faults.height and (on_bad_rows == "error" or mostly):
        counts = dict(faults.select(REJECTED, PAGES).iter_rows())
        raise SchemaError(*describe_rejected_pages(log, counts, examples, dropped=on_bad_rows == "drop"))
    return rows_by_reason(faults)


def page_faults(faulty: pl.DataFrame) -> pl.DataFrame:
    """Count `pages` and `rows` by `rejected`, from faulty pages (`rows`, `rejected`)."""
    return faulty.group_by(REJECTED).agg(pl.len().alias(PAGES), pl.col(ROWS).sum()).sort(REJECTED)


def rows_by_reason(faults: pl.DataFrame) -> dict[str, int]:
    """Return the number of rows by reason, in words, from `rows` by `rejected`."""
    return {why_rejected(code): int(rows) for code, rows in faults.sort(REJECTED).select(REJECTED, ROWS).iter_rows()}


def fewest_parts(rows: int, schema: pl.Schema, memory: int, text_bytes: int = 0) -> int:
    """Return the smallest number of parts such that a process working on one part stays within `memory`.

    Args:
        rows: number of rows.
        schema: columns of the rows.
        memory: in bytes.
        text_bytes: mean length of ids of text, if it is known.
    """
    return max(1, -(-rows * bytes_per_row(schema, text_bytes) // room_for_parts(memory)))


def bytes_per_row(schema: pl.Schema, text_bytes: int = 0) -> int:
    """Return the peak memory of counting, in bytes per row; for the arguments see `fewest_parts`."""
    keys = [schema[name] for name in (SESSION, QUERY, DOC) if name in schema]
    width = sum(_NUMBER_BYTES if dtype.is_numeric() else max(_TEXT_BYTES, text_bytes) for dtype in keys)
    return _BYTES_PER_ROW + _BYTES_PER_KEY_BYTE * width


def room_for_parts(memory: int) -> int:
    """Return the bytes for parts in a process whose target is `memory` bytes."""
    return max(memory - PROCESS_BYTES, memory // 8)
