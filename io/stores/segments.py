"""Segments: the parts that one counting wrote, or a month of them, which never change.

A directory of statistics is a list of segments. To merge directories is to put their segments side by side: the files
are linked, not written again, so that adding a day to a year costs a day. The days of a month that is over are written
once more, together: sorted by their keys they take half the room, and a fit reads them in half the time. Rows keep
their day, so that nothing is lost, and each day what it counted, so that it can be taken out: that writes one month.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import polars as pl
from msgspec import structs

from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.errors import StatisticsError
from posbias.core.schema import CLICKS, IMPRESSIONS, PERIOD, coarsened
from posbias.io.engines.engine import Item, Output, Parts
from posbias.io.places.locations import FileState, Location, checksum, chunks_of, is_still, open_plain, state_of
from posbias.io.places.object_stores import is_current
from posbias.io.places.temporary import remove_unfinished, whole_files
from posbias.io.stores.metadata import Amounts, Part, Segment, StatisticsMetadata, add_totals, same_totals

PARTS = "part-*.parquet"

# Written every day and read as a whole: the fastest level takes 1 % more room and half the time.
_STORAGE: dict[str, Any] = {"compression": "zstd", "compression_level": 1, "statistics": False}


@dataclass(frozen=True)
class Statistics:
    """One directory of statistics."""

    path: Location  # where it is
    metadata: StatisticsMetadata  # what it holds
    key_types: dict[str, str]  # the type of each key column, as text
    segments: tuple[Segment, ...]  # its files. Rows of different segments may have equal keys: they add up
    opened: dict[Path, FileState]  # the manifest and the parts, or their copies, as they were when it was opened
    cut: tuple[Segment, ...] = ()  # segments whose parts hold days, too, that are to be left out

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts of all segments."""
        return tuple(part for segment in self.segments for part in segment.parts)

    @property
    def days(self) -> list[str]:
        """The days that were counted, as text, sorted."""
        return sorted({day for segment in self.segments for day in segment.days})

    @property
    def totals(self) -> Amounts:
        """`rows`, `impressions` and `clicks` of all segments."""
        return add_totals([segment.totals for segment in self.segments])

    @property
    def types(self) -> dict[str, str]:
        """The type of each column, as text."""
        whole = not self.metadata.plan.weighted and self.metadata.decay is None
        counts = dict.fromkeys((IMPRESSIONS, CLICKS), "Int64" if whole else "Float64")
        return {name: (self.key_types | counts)[name] for name in self.metadata.plan.columns}

    def scan(self, segment: Segment, plan: StatisticsPlan) -> list[pl.LazyFrame]:
        """The rows of one of its segments, part by part, their periods as the plan keeps them; rows may be equal."""
        frames = [scan_part(part) for part in segment.parts]
        if segment in self.cut:
            days = [date.fromisoformat(day) for day in segment.days]
            frames = [frame.filter(pl.col(PERIOD).cast(pl.Date).is_in(days)) for frame in frames]
        if plan.period is None or plan.period == self.metadata.plan.period:
            return frames
        return [coarsened(frame, plan.period) for frame in frames]

    def check_unchanged(self) -> None:
        """Find out whether it is still what was opened.

        Raises:
            StatisticsError: another one has taken its place, or is about to.
        """
        if not all(is_still(path, state) for path, state in self.opened.items()) or not is_current(self.path):
            raise replaced(self.path)


def replaced(place: Location) -> StatisticsError:
    """The error where statistics were replaced meanwhile."""
    return StatisticsError(f"{place}: was replaced while it was read. Run the command again.")


def write_segment(
    parts: Parts, folder: Path, metadata: StatisticsMetadata, on_part: Callable[[], None], first: int = 0
) -> Segment:
    """Write parts that are sorted by the plan's keys.

    Args:
        parts: statistics in parts of whole queries.
        folder: where to.
        metadata: what they hold.
        on_part: called after each part.
        first: the number of the first part in the folder's names.
    """
    written, days, totals = list[Part](), set[str](), list[Amounts]()
    for part, of_part, added_up in parts.map(partial(_write_part, folder=folder, metadata=metadata, first=first)):
        written.append(part)
        days.update(of_part)
        totals.append(added_up)
        on_part()
    remove_unfinished(folder)
    return Segment(tuple(sorted(days)), metadata.sources, metadata.rows, add_totals(totals), tuple(written))


def _write_part(
    number: int, statistics: pl.LazyFrame, folder: Path, metadata: StatisticsMetadata, first: int
) -> tuple[Part, list[str], Amounts]:
    """Write a part; return it with the days in it, and what it adds up to."""
    frame = statistics.collect().select(metadata.plan.columns)
    path = _part_path(folder, first + number)
    with whole_files(folder) as unfinished:
        frame.write_parquet(unfinished / path.name, metadata=metadata.to_parquet(), **_STORAGE)
    days = frame[PERIOD].cast(pl.Date).unique().cast(pl.String).to_list() if metadata.plan.period else []
    totals = frame.select(pl.len().alias("rows"), pl.col(IMPRESSIONS, CLICKS).sum()).row(0, named=True)
    with open_plain(path) as file:
        return Part(str(path), state_of(file).bytes, checksum(chunks_of(file))), days, totals


def _part_path(folder: Path, number: int) -> Path:
    return folder / f"part-{number:05d}.parquet"


def link_segment(segment: Segment, folder: Path, first: int) -> Segment:
    """The same segment in another directory: its files under new names, from a number on, or copies of them.

    Raises:
        StatisticsError: a part is not what it was when it was checked.
    """
    parts = tuple(
        _link_part(part, _part_path(folder, number)) for number, part in enumerate(segment.parts, start=first)
    )
    return structs.replace(segment, parts=parts)


def _link_part(part: Part, path: Path) -> Part:
    try:
        os.link(part.path, path, follow_symlinks=False)
    except OSError:  # another device, or a file system without links
        with open_plain(part.path) as file, path.open("xb") as copy:
            digest = checksum(_written(chunks_of(file), copy))
        if digest != part.checksum:
            raise StatisticsError(f"{part.path}: was replaced while it was copied. Run the command again.") from None
    return part.at(path)


def _written(chunks: Iterable[memoryview], file: BinaryIO) -> Iterator[memoryview]:
    for chunk in chunks:
        file.write(chunk)
        yield chunk


def scan_part(part: Part) -> pl.LazyFrame:
    """The rows of a part."""
    return pl.scan_parquet(part.path.absolute(), hive_partitioning=False, glob=False)


_Typed: TypeAlias = tuple[Part, dict[str, str]]
"""A part with the types of its columns, as text."""

Each: TypeAlias = Callable[[Iterable[_Typed], Callable[[_Typed], Amounts | str]], Iterator[Amounts | str]]
"""An engine's way to do the same with each part, in this process or on a cluster."""


def one_by_one(items: Iterable[Item], work: Callable[[Item], Output]) -> Iterator[Output]:
    """Yield the results of a function for each item, in this process."""
    return map(work, items)


Check: TypeAlias = Callable[[Sequence[Statistics], Each], None]


def check_parts(folder: Path, segments: Sequence[Segment]) -> dict[Path, FileState]:
    """Check that the parts in the manifest are there, of the right size, and no others.

    Returns:
        Which files they are.

    Raises:
        StatisticsError: a part is lost, truncated, no plain file, or of other statistics.
    """
    parts = [part for segment in segments for part in segment.parts]
    states = {part.path: _state_of_part(part) for part in parts}
    foreign = sorted(path.name for path in folder.glob(PARTS) if path not in states)
    if foreign:
        raise StatisticsError(
            f"{folder / foreign[0]}: is not part of these statistics: their manifest does not list it. Remove it; "
            "to merge statistics, name their directories."
        )
    return states


def check_bytes(statistics: Sequence[Statistics], each: Each) -> None:
    """Read every part: its bytes must be those that were written. That is all it takes to link it.

    Raises:
        StatisticsError: they are not.
    """
    for _ in _inspected(statistics, each, _intact):
        pass


def check_contents(statistics: Sequence[Statistics], each: Each) -> None:
    """Read every part: its bytes must be those that were written, and its counts what the manifest says.

    Raises:
        StatisticsError: they are not.
    """
    for place, segment, totals in _inspected(statistics, each, _totals_of):
        if not same_totals(segment.totals, add_totals(totals)):
            raise StatisticsError(
                f"{place}: the parts from {segment.parts[0].path.name} on hold "
                f"{_in_words(add_totals(totals))}, and the manifest says {_in_words(segment.totals)}. Collect "
                "these statistics again."
            )


def _inspected(
    statistics: Sequence[Statistics], each: Each, inspect: Callable[[_Typed], Amounts | str]
) -> Iterator[tuple[Location, Segment, list[Amounts]]]:
    """Results of the inspection of the parts of each segment that has some, and where."""
    # By their full names: who inspects may work in another directory.
    items = [(part.at(part.path.absolute()), entry.types) for entry in statistics for part in entry.parts]
    results = each(items, inspect)
    for entry, segment in [(of, segment) for of in statistics for segment in of.segments]:
        totals = list[Amounts]()
        for part, of_part in zip(segment.parts, results, strict=False):
            if isinstance(of_part, str):
                raise StatisticsError(f"{entry.path / part.path.name}: {of_part} Collect these statistics again.")
            totals.append(of_part)
        if totals:
            yield entry.path, segment, totals


def _intact(item: _Typed) -> Amounts | str:
    """Nothing, or what is wrong with a part. It may run on another machine."""
    return _fault_of(*item) or {}


def _totals_of(item: _Typed) -> Amounts | str:
    """The totals of the rows of a part, or what is wrong with it. It may run on another machine."""
    fault = _fault_of(*item)
    if fault:
        return fault
    totals = scan_part(item[0]).select(pl.len().alias("rows"), pl.col(IMPRESSIONS, CLICKS).sum())
    try:
        return totals.collect().row(0, named=True)
    except pl.exceptions.PolarsError as error:
        return _unreadable(error)


def _fault_of(part: Part, types: dict[str, str]) -> str | None:
    try:
        with open_plain(part.path) as file:
            digest = checksum(chunks_of(file))
        if digest != part.checksum:
            return "is damaged: its bytes are not those that were written."
        columns = scan_part(part).collect_schema()
    except OSError as error:
        return f"cannot be read: {error.strerror}."
    except pl.exceptions.PolarsError as error:
        return _unreadable(error)
    if {name: str(of_type) for name, of_type in columns.items()} != types:
        return "holds other columns than the manifest says."
    return None


def _unreadable(error: pl.exceptions.PolarsError) -> str:
    return f"cannot be read as Parquet: {str(error).splitlines()[0]}."


def _in_words(totals: Amounts) -> str:
    return f"{totals['rows']:,} rows, {totals['impressions']:,} impressions and {totals['clicks']:,} clicks"


def _state_of_part(part: Part) -> FileState:
    try:
        state = state_of(part.path)
    except FileNotFoundError as error:
        raise StatisticsError(f"{part.path}: this part of the statistics is missing. Collect them again.") from error
    except OSError as error:
        raise StatisticsError(
            f"{part.path}: this part of the statistics cannot be read: {error.strerror}. Collect them again."
        ) from error
    if state.bytes != part.bytes:
        what = "is truncated" if state.bytes < part.bytes else "has been replaced"
        raise StatisticsError(
            f"{part.path}: {what}: it has {state.bytes:,} bytes, and was written with {part.bytes:,}. Collect it again."
        )
    return state
