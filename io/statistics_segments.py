"""Segments: the parts that one counting wrote, which never change.

A directory of statistics is a list of segments. To merge directories is to put their segments side by side: the files
are linked, not written again, so that adding a day to a year costs a day.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import polars as pl

from posbias.core.errors import StatisticsError
from posbias.core.schema import CLICKS, IMPRESSIONS, PERIOD
from posbias.io.statistics_metadata import StatisticsMetadata

PARTS = "part-*.parquet"


@dataclass(frozen=True)
class Part:
    """One Parquet file of statistics, which holds whole queries of its segment.

    Attributes:
        path: where it is.
        bytes: its size.
    """

    path: Path
    bytes: int


@dataclass(frozen=True)
class Segment:
    """The parts that one counting wrote.

    Attributes:
        parts: its files.
        sources: path by digest of every log file that was counted.
        rows: rows read, rejected and used.
        days: the days that it holds, as text, sorted; none where the statistics keep no period.
        totals: `rows` of the statistics, and the `impressions` and `clicks` that they add up to.
    """

    parts: tuple[Part, ...]
    sources: dict[str, str]
    rows: dict[str, Any]
    days: tuple[str, ...]
    totals: dict[str, int | float]

    def describe(self) -> dict[str, Any]:
        """As plain values, for the manifest."""
        return {
            "days": list(self.days),
            "sources": self.sources,
            "rows": self.rows,
            "statistics": self.totals,
            "parts": {part.path.name: part.bytes for part in self.parts},
        }

    @staticmethod
    def read(description: dict[str, Any], folder: Path) -> "Segment":
        """The segment that `describe` described, of the statistics in `folder`."""
        return Segment(
            parts=tuple(Part(folder / name, size) for name, size in description["parts"].items()),
            sources=description["sources"],
            rows=description["rows"],
            days=tuple(description["days"]),
            totals=description["statistics"],
        )


def part_paths(folder: Path) -> Iterator[Path]:
    """The names of the parts of a new directory, one after the other."""
    return (folder / f"part-{number:05d}.parquet" for number in count())


def write_segment(
    frames: Iterable[pl.DataFrame], paths: Iterator[Path], metadata: StatisticsMetadata, on_part: Callable[[], None]
) -> Segment:
    """Write frames of whole queries as parts, each sorted by the plan's keys."""
    parts, days = list[Part](), set[str]()
    totals: dict[str, int | float] = {"rows": 0, IMPRESSIONS: 0, CLICKS: 0}
    for frame in frames:
        path = next(paths)
        frame.select(metadata.plan.columns).write_parquet(path, metadata=metadata.to_parquet())
        parts.append(Part(path, path.stat().st_size))
        if metadata.plan.period:
            days.update(frame[PERIOD].unique().cast(pl.String))
        totals["rows"] += frame.height
        for name in (IMPRESSIONS, CLICKS):
            total = frame[name].sum()
            totals[name] += total if isinstance(total, int | float) else 0
        on_part()
    return Segment(tuple(parts), metadata.sources, metadata.rows, tuple(sorted(days)), totals)


def link_segment(segment: Segment, paths: Iterator[Path]) -> Segment:
    """The same segment in another directory: its files under new names, or copies where files cannot be linked."""
    parts = list[Part]()
    for part in segment.parts:
        path = next(paths)
        try:
            os.link(part.path.resolve(), path)
        except OSError:  # another device, or a file system without links
            shutil.copyfile(part.path, path)
        parts.append(Part(path, part.bytes))
    return Segment(tuple(parts), segment.sources, segment.rows, segment.days, segment.totals)


def scan_parts(parts: Iterable[Part]) -> pl.LazyFrame:
    """Parts of one directory, one after the other."""
    return pl.scan_parquet([part.path for part in parts], hive_partitioning=False, glob=False)


def check_parts(folder: Path, segments: Iterable[Segment]) -> None:
    """What the manifest names must be there, whole, and nothing else.

    Raises:
        StatisticsError: a part is lost, truncated or of other statistics.
    """
    named = set[str]()
    for part in (part for segment in segments for part in segment.parts):
        named.add(part.path.name)
        size = part.path.stat().st_size if part.path.is_file() else None
        if size is None:
            raise StatisticsError(f"{part.path}: this part of the statistics is lost. Collect them again.")
        if size != part.bytes:
            what = "is truncated" if size < part.bytes else "has been replaced"
            raise StatisticsError(
                f"{part.path}: {what}: it has {size:,} bytes, and was written with {part.bytes:,}. Collect it again."
            )
    foreign = sorted(path.name for path in folder.glob(PARTS) if path.name not in named)
    if foreign:
        raise StatisticsError(
            f"{folder / foreign[0]}: is no part of these statistics: their manifest does not name it. Remove it; "
            "to merge statistics, name their directories."
        )
