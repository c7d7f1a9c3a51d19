"""Segments: the parts that one counting wrote, which never change.

A directory of statistics is a list of segments. To merge directories is to put their segments side by side: the files
are linked, not written again, so that adding a day to a year costs a day.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import polars as pl

from posbias.core.errors import StatisticsError
from posbias.core.schema import CLICKS, IMPRESSIONS, PERIOD
from posbias.io.engines.engine import Parts
from posbias.io.log.rows import Rows
from posbias.io.places.plain_files import checksum, chunks_of, open_plain, state_of_open
from posbias.io.stores.metadata import StatisticsMetadata
from posbias.io.temporary.files import remove_unfinished, whole_files

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
