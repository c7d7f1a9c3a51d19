"""Segments: the parts that one counting wrote, which never change.

A directory of statistics is a list of segments. To merge directories is to put their segments side by side: the files
are linked, not written again, so that adding a day to a year costs a day.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeAlias

import msgspec
import polars as pl

from posbias.core.errors import StatisticsError
from posbias.core.schema import CLICKS, IMPRESSIONS, PERIOD
from posbias.io.engines.engine import Found, Item, Parts
from posbias.io.log.clicks import Rows
from posbias.io.places.locations import FileState, Location, checksum, chunks_of, open_plain, state_of, state_of_open
from posbias.io.places.temporary import remove_unfinished, whole_files
from posbias.io.stores.metadata import Amounts, StatisticsMetadata, add_totals, same_totals

PARTS = "part-*.parquet"

# Written every day and read as a whole: the fastest level takes 1 % more room and half the time.
_STORAGE: dict[str, Any] = {"compression": "zstd", "compression_level": 1, "statistics": False}


@dataclass(frozen=True)
class Part:
    """One Parquet file of statistics, which holds whole queries of its segment."""

    path: Path  # where it is
    bytes: int  # its size
    checksum: str  # of its bytes

    def describe(self) -> dict[str, Any]:
        """As plain values, for the manifest."""
        return {"name": self.path.name, "bytes": self.bytes, "xxh3_128": self.checksum}


@dataclass(frozen=True)
class Segment:
    """The parts that one counting wrote."""

    parts: tuple[Part, ...]  # its files
    sources: dict[str, str]  # path by digest of every log file that was counted
    rows: Rows  # rows read, rejected and used
    days: tuple[str, ...]  # the days that it holds, as text, sorted; none where the statistics keep no period
    totals: dict[str, int | float]  # `rows` of the statistics, and the `impressions` and `clicks` that they add up to

    def describe(self) -> dict[str, Any]:
        """As plain values, for the manifest."""
        return {
            "days": list(self.days),
            "sources": self.sources,
            "rows": msgspec.to_builtins(self.rows),
            "statistics": self.totals,
            "parts": [part.describe() for part in self.parts],
        }


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
    written = list[_Written]()
    for of_part in parts.map(partial(_write_part, folder=folder, metadata=metadata, first=first)):
        written.append(of_part)
        on_part()
    remove_unfinished(folder)
    return Segment(
        parts=tuple(of_part.part for of_part in written),
        sources=metadata.sources,
        rows=metadata.rows,
        days=tuple(sorted({day for of_part in written for day in of_part.days})),
        totals={name: sum(of_part.totals[name] for of_part in written) for name in ("rows", IMPRESSIONS, CLICKS)},
    )


@dataclass(frozen=True)
class _Written:
    """A part that was written, the days in it, and what it adds up to."""

    part: Part
    days: list[str]
    totals: dict[str, int | float]


def _write_part(
    number: int, statistics: pl.LazyFrame, folder: Path, metadata: StatisticsMetadata, first: int
) -> _Written:
    frame = statistics.collect().select(metadata.plan.columns)
    path = _part_path(folder, first + number)
    with whole_files(folder) as unfinished:
        frame.write_parquet(unfinished / path.name, metadata=metadata.to_parquet(), **_STORAGE)
    days = frame[PERIOD].cast(pl.Date).unique().cast(pl.String).to_list() if metadata.plan.period else []
    totals: dict[str, int | float] = {"rows": frame.height}
    for name in (IMPRESSIONS, CLICKS):
        total = frame[name].sum()
        totals[name] = total if isinstance(total, int | float) else 0
    with open_plain(path) as file:
        return _Written(Part(path, state_of_open(file).bytes, checksum(chunks_of(file))), days, totals)


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
    return replace(segment, parts=parts)


def _link_part(part: Part, path: Path) -> Part:
    try:
        os.link(part.path, path, follow_symlinks=False)
    except OSError:  # another device, or a file system without links
        _copy_part(part, path)
    return replace(part, path=path)


def _copy_part(part: Part, path: Path) -> None:
    with open_plain(part.path) as file, path.open("xb") as copy:
        found = checksum(_written(chunks_of(file), copy))
    if found != part.checksum:
        raise StatisticsError(f"{part.path}: was replaced while it was copied. Run the command again.")


def _written(chunks: Iterable[memoryview], file: BinaryIO) -> Iterator[memoryview]:
    for chunk in chunks:
        file.write(chunk)
        yield chunk


def scan_part(part: Part) -> pl.LazyFrame:
    """The rows of a part."""
    return pl.scan_parquet(part.path.absolute(), hive_partitioning=False, glob=False)


class Each(Protocol):
    """An engine's way to do the same with each item, in this process or on a cluster."""

    def __call__(self, items: Iterable[Item], work: Callable[[Item], Found]) -> Iterator[Found]:
        """What the function makes of each item, in their order."""
        ...


def one_by_one(items: Iterable[Item], work: Callable[[Item], Found]) -> Iterator[Found]:
    """What a function makes of each item, in this process."""
    return map(work, items)


@dataclass(frozen=True)
class Expected:
    """What must be found in the files of a segment."""

    place: Location  # the statistics, as they are called in messages
    segment: Segment  # its files, and what they add up to
    types: dict[str, str]  # the type of each column, as text, in the order of the columns


Check: TypeAlias = Callable[[Sequence[Expected], Each], None]


def check_parts(folder: Path, segments: Sequence[Segment]) -> dict[Path, FileState]:
    """What the manifest names must be there, of the right size, and nothing else of such a name.

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


def check_bytes(expected: Sequence[Expected], each: Each) -> None:
    """Read every part: its bytes must be those that were written. That is all it takes to link it.

    Raises:
        StatisticsError: they are not.
    """
    for _ in _inspected(expected, each, _intact):
        pass


def check_contents(expected: Sequence[Expected], each: Each) -> None:
    """Read every part: its bytes must be those that were written, and its counts what the manifest says.

    Raises:
        StatisticsError: they are not.
    """
    for entry, totals in _inspected(expected, each, _totals_of):
        if not same_totals(entry.segment.totals, add_totals(totals)):
            raise StatisticsError(
                f"{entry.place}: the parts from {entry.segment.parts[0].path.name} on hold "
                f"{_in_words(add_totals(totals))}, and the manifest says {_in_words(entry.segment.totals)}. Collect "
                "these statistics again."
            )


def _inspected(
    expected: Sequence[Expected], each: Each, inspect: Callable[[tuple[Part, dict[str, str]]], Amounts | str]
) -> Iterator[tuple[Expected, list[Amounts]]]:
    """What was found in the parts of each segment that has some."""
    # By their full names: who inspects may work in another directory.
    found = each([(_from_anywhere(part), entry.types) for entry in expected for part in entry.segment.parts], inspect)
    for entry in expected:
        totals = list[Amounts]()
        for part, of_part in zip(entry.segment.parts, found, strict=False):
            if isinstance(of_part, str):
                raise StatisticsError(f"{entry.place / part.path.name}: {of_part} Collect these statistics again.")
            totals.append(of_part)
        if totals:
            yield entry, totals


def _from_anywhere(part: Part) -> Part:
    return replace(part, path=part.path.absolute())


def _intact(item: tuple[Part, dict[str, str]]) -> Amounts | str:
    """Nothing, or what is wrong with a part. It may run on another machine."""
    return _fault_of(*item) or {}


def _totals_of(item: tuple[Part, dict[str, str]]) -> Amounts | str:
    """What the rows of a part add up to, or what is wrong with it. It may run on another machine."""
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
            found = checksum(chunks_of(file))
        if found != part.checksum:
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
