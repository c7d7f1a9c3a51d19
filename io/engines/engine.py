"""What every engine can do, so that whoever counts, fits and writes does not know which one runs.

Rows lie in parts that hold whole queries, in this process, on its disk or on a cluster. Work goes to the parts: a
function that is sent there, and whose small results come back.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol, TypeVar

import polars as pl

from posbias.core.choices import CheckPages, OnBadRows
from posbias.core.counts.plan import StatisticsPlan
from posbias.core.log.guards import LogTotals
from posbias.io.log.log import Log
from posbias.io.log.lost_clicks import JoinedClicks
from posbias.io.progress import RowCounter

Item = TypeVar("Item")
Found = TypeVar("Found")


class Parts(Protocol):
    """Rows in parts."""

    @property
    def number(self) -> int | None:
        """How many parts there are at most, where that is known."""
        ...

    @property
    def in_memory(self) -> bool:
        """Whether there is but one part, in the memory of this process."""
        ...

    def map(self, work: Callable[[int, pl.LazyFrame], Found]) -> Iterator[Found]:
        """What a function makes of the number of each part and its rows, in the order of the numbers.

        The function may run in another process, and twice: it must travel (no lambda), and write by `whole_files`.
        """
        ...


@dataclass(frozen=True)
class ReadLog(ABC):
    """A log as it was read: its good rows, in parts, and what became of the others."""

    log: Log
    rows_read: int  # in the log
    rejected: dict[str, int]  # number of rows per reason
    totals: LogTotals  # of the good rows and pages
    clicks: JoinedClicks | None  # what became of them, where they are apart

    @property
    @abstractmethod
    def buckets(self) -> Parts:
        """Canonical impressions that keep the contract, each query in one part."""

    @property
    def pieces(self) -> Parts:
        """The same, for what does not need whole queries: on Spark it moves no rows."""
        return self.buckets

    @property
    @abstractmethod
    def some_pages(self) -> pl.LazyFrame | None:
        """Whole pages of good rows: all of a small log, else those of some queries; None where it has no sessions."""

    @abstractmethod
    def statistics(self, plan: StatisticsPlan) -> Parts:
        """The statistics of the good rows, those of a part sorted by the plan's keys."""


@dataclass(frozen=True)
class Engine(ABC):
    """Reads logs, runs plans, and takes work to where the rows are."""

    memory: int  # target for the memory of a process that works on a part, in bytes
    scratch: Path  # a directory for temporary files, which everything that works for the engine sees
    on_bad_rows: OnBadRows = "error"  # whether what breaks the contract stops the run or is left out
    check_pages: CheckPages = "sample"  # whether pages of a large log are checked in a sample, or all

    in_this_process: ClassVar[bool]
    """Whether all work is done in this process, so that results need not travel."""

    @abstractmethod
    def read(self, log: Log, *, keep_sessions: bool, whole_pages: bool, on_rows: RowCounter | None = None) -> ReadLog:
        """Read a log, and reject what breaks the contract.

        Args:
            log: an opened log.
            keep_sessions: whether the work needs the sessions themselves, so that all of them are checked.
            whole_pages: whether a page that lost a row is of no use (UBM: the lost row may have been clicked).
            on_rows: called with rows as they are read, where somebody watches and the engine reads them itself.

        Raises:
            SchemaError: rows or pages break the contract, and are not to be left out.
            LogFormatError: a file cannot be read.
        """

    @abstractmethod
    def parts_of(self, frames: Sequence[pl.LazyFrame]) -> Parts:
        """Frames that hold whole queries each, as parts."""

    @abstractmethod
    def add_up(self, statistics: Sequence[pl.LazyFrame], plan: StatisticsPlan) -> Parts:
        """Merge statistics (several days): counts of equal keys add up; each part is sorted by the plan's keys."""

    @abstractmethod
    def each(self, items: Iterable[Item], work: Callable[[Item], Found]) -> Iterator[Found]:
        """What a function makes of each item, in their order. It may run in another process, and twice."""

    @abstractmethod
    def write_table(self, items: Iterable[Item], rows: Callable[[Item], pl.DataFrame], path: Path) -> Iterator[None]:
        """Write what a function makes of each item as one Parquet table: a file, or a directory of part files."""
