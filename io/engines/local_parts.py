"""Parts of a log on this machine, several of which are worked on at once, and how one is counted."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import narwhals as nw
import polars as pl

from posbias.core.arrays.bit_fields import BitFields
from posbias.core.arrays.threads import at_once
from posbias.core.counts.packed import count_numbers, count_packed
from posbias.core.counts.plan import StatisticsPlan
from posbias.core.counts.running_total import running_total
from posbias.core.counts.sums_of_weights import add_up_weights, count_weights
from posbias.core.log.guards import LogTotals
from posbias.core.schema import DOC, IMPRESSIONS, SESSION
from posbias.io.engines.engine import Found
from posbias.io.engines.pieces import pieces_of
from posbias.io.log.log import Log

_MOST_NUMBERS_AT_ONCE = 1 << 23  # rows of a bucket that are counted together


@dataclass(frozen=True)
class LocalParts:
    """Frames of this machine, several at a time.

    Attributes:
        frames: gives them.
        number: how many there are, where that is known.
        at_once: how many are worked on at once.
        prepared: what is done to each before the work, along with it.
    """

    frames: Callable[[], Iterable[pl.LazyFrame]]
    number: int | None
    at_once: int
    prepared: Callable[[pl.LazyFrame], pl.LazyFrame] | None = None

    @property
    def in_memory(self) -> bool:
        """Whether there is but one."""
        return self.number == 1

    def map(self, work: Callable[[int, pl.LazyFrame], Found]) -> Iterator[Found]:
        """What a function makes of each frame, in their order."""

        def on_frame(numbered: tuple[int, pl.LazyFrame]) -> Found:
            number, frame = numbered
            return work(number, frame if self.prepared is None else self.prepared(frame))

        return at_once(on_frame, enumerate(self.frames()), self.at_once)


@dataclass(frozen=True)
class Numbers:
    """Rows as numbers.

    Attributes:
        frames: the numbers, in buckets.
        fields: what they say.
    """

    frames: tuple[pl.LazyFrame, ...]
    fields: BitFields


@dataclass(frozen=True)
class Bucketed:
    """A log as it was read: its good rows, in one bucket or several, and what became of the others.

    Attributes:
        log: the log.
        scratch: a directory for temporary files.
        frames: canonical impressions; a query lies wholly in one bucket.
        rows_read: rows in the log.
        rejected: number of rows per reason.
        totals: what the good rows and pages add up to.
        clicks_without_impression: where clicks are apart.
        some_pages: whole pages, as a rule those of one bucket; None where the log has no sessions.
        numbers: the rows of each bucket as numbers, where all of them are.
        at_once: how many buckets are worked on at once.
    """

    log: Log
    scratch: Path
    frames: tuple[pl.LazyFrame, ...]
    rows_read: int
    rejected: dict[str, int]
    totals: LogTotals
    clicks_without_impression: int | None
    some_pages: pl.LazyFrame | None
    numbers: Numbers | None = None
    at_once: int = 1

    @property
    def buckets(self) -> LocalParts:
        """The good rows."""
        return LocalParts(lambda: self.frames, len(self.frames), self.at_once)

    @property
    def pieces(self) -> LocalParts:
        """The good rows."""
        return self.buckets

    def statistics(self, plan: StatisticsPlan) -> LocalParts:
        """The statistics of each bucket, sorted by the plan's keys."""
        numbers = self.numbers
        if numbers is None or plan.model.needs_session:
            return replace(self.buckets, prepared=partial(count_part, plan=plan, scratch=self.scratch))
        count = partial(_count_numbers, fields=numbers.fields, plan=plan)
        return LocalParts(lambda: numbers.frames, len(numbers.frames), self.at_once, count)


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


def _count_numbers(numbers: pl.LazyFrame, fields: BitFields, plan: StatisticsPlan) -> pl.LazyFrame:
    rows = numbers.select(pl.len()).collect().item()
    slices = (numbers.slice(first, _MOST_NUMBERS_AT_ONCE) for first in range(0, rows, _MOST_NUMBERS_AT_ONCE))
    return count_numbers((piece.collect().to_series() for piece in slices), fields, plan).lazy()


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
