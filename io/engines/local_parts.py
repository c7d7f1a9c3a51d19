"""Parts of a log on this machine: how one is counted, in pieces where a frequent query makes it large."""

import secrets
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import narwhals as nw
import polars as pl

from posbias.core.arrays.bit_fields import BitFields
from posbias.core.arrays.threads import at_once
from posbias.core.counts.packed import count_numbers, count_packed, running_total
from posbias.core.counts.plan import StatisticsPlan
from posbias.core.counts.sums_of_weights import add_up_weights, count_weights
from posbias.core.schema import DOC, IMPRESSIONS, SESSION
from posbias.io.engines.buckets import Buckets
from posbias.io.engines.engine import Found, ReadLog
from posbias.io.engines.packed_buckets import Numbers, ReadNumbers
from posbias.io.temporary.directories import remove_tree
from posbias.io.temporary.files import temporary_files

_MOST_ROWS_AT_ONCE = 1 << 21  # worked on together: they and their copies take 200 to 500 MB


@contextmanager
def pieces_of(rows: pl.LazyFrame, column: str, scratch: Path) -> Generator[list[pl.LazyFrame]]:
    """The rows in pieces that go into memory, on disk while they are used; one piece where all of them do.

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
            pieces.write([rows], judged=False, key=column)
        yield pieces.frames
    finally:
        remove_tree(pieces.folder)


_MOST_NUMBERS_AT_ONCE = 1 << 23  # rows of a bucket that are counted together


MakeFrame = Callable[[], pl.LazyFrame]


@dataclass(frozen=True)
class LocalParts:
    """Frames of this machine, several at a time."""

    frames: Callable[[], Iterable[MakeFrame]]  # gives what makes each of them, which is done along with the work on it
    number: int | None
    at_once: int  # how many are worked on

    @property
    def in_memory(self) -> bool:
        """Whether there is but one."""
        return self.number == 1

    def map(self, work: Callable[[int, pl.LazyFrame], Found]) -> Iterator[Found]:
        """What a function makes of each frame, in their order."""

        def on_frame(numbered: tuple[int, MakeFrame]) -> Found:
            number, make = numbered
            return work(number, make())

        return at_once(on_frame, enumerate(self.frames()), self.at_once)


@dataclass(frozen=True)
class Bucketed(ReadLog):
    """A log as it was read: its good rows, in one bucket or several."""

    scratch: Path  # a directory for temporary files
    frames: tuple[pl.LazyFrame, ...]  # canonical impressions; a query lies wholly in one bucket
    whole_pages: pl.LazyFrame | None  # see `some_pages`
    numbers: Numbers | None = None  # the rows of each bucket as numbers, where all of them are
    at_once: int = 1  # buckets that are worked on

    @property
    def buckets(self) -> LocalParts:
        """The good rows."""
        return self._parts([lambda frame=frame: frame for frame in self.frames])

    @property
    def some_pages(self) -> pl.LazyFrame | None:
        """Whole pages, as a rule those of one bucket; None where the log has no sessions."""
        return self.whole_pages

    def statistics(self, plan: StatisticsPlan) -> LocalParts:
        """The statistics of each bucket, sorted by the plan's keys."""
        if self.numbers is None or plan.model.needs_session:
            return self._parts([partial(count_part, frame, plan, self.scratch) for frame in self.frames])
        return self._parts([partial(_count_numbers, read, self.numbers.fields, plan) for read in self.numbers.buckets])

    def _parts(self, frames: Sequence[MakeFrame]) -> LocalParts:
        return LocalParts(lambda: frames, len(frames), self.at_once)


def count_part(impressions: pl.LazyFrame, plan: StatisticsPlan, scratch: Path) -> pl.LazyFrame:
    """The statistics of impressions, sorted by the plan's keys, in memory.

    A bucket that a frequent query makes large is counted piece by piece: pages stay whole where the model needs them.

    Args:
        impressions: of the bucket.
        plan: what is counted.
        scratch: a directory for temporary files.
    """
    with pieces_of(impressions, SESSION if plan.model.needs_session else DOC, scratch) as pieces:
        counted = (_counted_at_once(piece, plan) for piece in pieces)
        return running_total(counted, lambda counts: add_up_part(pl.concat(counts).lazy(), plan)).lazy()


def _count_numbers(read: ReadNumbers, fields: BitFields, plan: StatisticsPlan) -> pl.LazyFrame:
    return count_numbers(read(_MOST_NUMBERS_AT_ONCE), fields, plan).lazy()


def add_up_part(counts: pl.LazyFrame, plan: StatisticsPlan) -> pl.DataFrame:
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
