"""Statistics on disk: a directory of Parquet parts and a manifest, mergeable day by day.

The manifest records the plan, the sources and the parts. Merging different plans, the same source twice or an
incomplete directory is an error. A directory is opened from its manifest alone.

A directory is a list of segments: immutable parts of one counting, or of all countings of a month. A merge lists the
segments side by side and links their files, so adding a day to a year costs a day. The days of a past month are
rewritten once, sorted together by key: they take half the space, and a fit reads them in half the time. Rows keep their
day, and a segment keeps the totals of each counting, so removing a day rewrites one month.
"""

import os
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import polars as pl
from msgspec import structs

from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.errors import LogFormatError, StatisticsError
from posbias.core.schema import CLICKS, IMPRESSIONS, PERIOD, coarsen_periods, coarsest
from posbias.io.engines.engine import Item, Output, Parts
from posbias.io.log.clicks import Rows
from posbias.io.log.sources import counted_already, file_digest, named_paths
from posbias.io.places.locations import (
    FileState,
    Location,
    ObjectUrl,
    is_text,
    location,
    open_plain,
    plain_file,
    state_of,
)
from posbias.io.places.object_stores import is_current, list_objects, on_disk, read_object, storage_options
from posbias.io.places.temporary import remove_unfinished, whole_files
from posbias.io.results.manifest import FILE_NAME, LARGEST, file_checksum, open_manifest
from posbias.io.stores.metadata import (
    OLDEST,
    SCHEMA,
    VERSION,
    Amounts,
    Decay,
    Part,
    Segment,
    StatisticsManifest,
    StatisticsMetadata,
    add_totals,
    describe_plan,
    join_sources,
    same_totals,
)

PARTS = "part-*.parquet"
_FIRST_WITH_VERSION = 3  # older manifests lack a version

# Files are written daily and read as a whole: the fastest level takes 1 % more space and half the time.
_STORAGE: dict[str, Any] = {"compression": "zstd", "compression_level": 1, "statistics": False}


@dataclass(frozen=True)
class Statistics:
    """A directory of statistics."""

    path: Location
    metadata: StatisticsMetadata
    key_types: dict[str, str]  # name of the dtype of each key column
    segments: tuple[Segment, ...]  # rows of different segments may have equal keys, and add up
    opened: dict[Path, FileState]  # state of the manifest and the parts, or of their copies, when opened
    cut: tuple[Segment, ...] = ()  # segments whose parts also hold removed days, which `scan` filters out

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts of all segments."""
        return tuple(part for segment in self.segments for part in segment.parts)

    @property
    def days(self) -> list[str]:
        """Counted days in ISO format, sorted."""
        return sorted({day for segment in self.segments for day in segment.days})

    @property
    def totals(self) -> Amounts:
        """Sums of `rows`, `impressions` and `clicks` over segments."""
        return add_totals([segment.totals for segment in self.segments])

    @property
    def types(self) -> dict[str, str]:
        """Name of the dtype of each column."""
        whole = not self.metadata.plan.weighted and self.metadata.decay is None
        counts = dict.fromkeys((IMPRESSIONS, CLICKS), "Int64" if whole else "Float64")
        return {name: (self.key_types | counts)[name] for name in self.metadata.plan.columns}

    def scan(self, segment: Segment, plan: StatisticsPlan) -> list[pl.LazyFrame]:
        """Rows of a segment, one frame per part, with periods coarsened to the plan's; keys may repeat."""
        frames = [scan_part(part) for part in segment.parts]
        if segment in self.cut:
            days = [date.fromisoformat(day) for day in segment.days]
            frames = [frame.filter(pl.col(PERIOD).cast(pl.Date).is_in(days)) for frame in frames]
        if plan.period is None or plan.period == self.metadata.plan.period:
            return frames
        return [coarsen_periods(frame, plan.period) for frame in frames]

    def check_unchanged(self) -> None:
        """Check that no file was replaced since the directory was opened.

        Raises:
            StatisticsError: one was replaced, or a newer copy exists in the object store.
        """
        if not all(plain_file(path) == state for path, state in self.opened.items()) or not is_current(self.path):
            raise replaced(self.path)


def replaced(place: Location) -> StatisticsError:
    """Error for statistics that were replaced while they were read."""
    return StatisticsError(f"{place}: was replaced while it was read. Run the command again.")


def write_segment(
    parts: Parts, folder: Path, metadata: StatisticsMetadata, on_part: Callable[[], None], first: int = 0
) -> Segment:
    """Write parts of statistics as the files `part-{number}.parquet` of a segment.

    Args:
        parts: rows sorted by the plan's keys, in parts of whole queries.
        folder: an existing directory.
        metadata: written into each file.
        on_part: called after each part.
        first: number of the first file.
    """
    written, days, totals = list[Part](), set[str](), list[Amounts]()
    for part, part_days, part_totals in parts.map(partial(_write_part, folder=folder, metadata=metadata, first=first)):
        written.append(part)
        days.update(part_days)
        totals.append(part_totals)
        on_part()
    remove_unfinished(folder)
    return Segment(tuple(sorted(days)), metadata.sources, metadata.rows, add_totals(totals), tuple(written))


def _write_part(
    number: int, statistics: pl.LazyFrame, folder: Path, metadata: StatisticsMetadata, first: int
) -> tuple[Part, list[str], Amounts]:
    """Write a part; return it with its days and its totals. Runs in any process."""
    frame = statistics.collect().select(metadata.plan.columns)
    path = folder / f"part-{first + number:05d}.parquet"
    with whole_files(folder) as unfinished:
        frame.write_parquet(unfinished / path.name, metadata=metadata.to_parquet(), **_STORAGE)
    days = frame[PERIOD].cast(pl.Date).unique().cast(pl.String).to_list() if metadata.plan.period else []
    totals = frame.select(pl.len().alias("rows"), pl.col(IMPRESSIONS, CLICKS).sum()).row(0, named=True)
    return Part(str(path), state_of(path).bytes, file_checksum(path)), days, totals


def link_segment(segment: Segment, folder: Path, first: int) -> Segment:
    """Link the files of a segment into another directory, numbered from `first`; copy them if links are impossible.

    Raises:
        StatisticsError: the checksum of a copy is not that in the manifest.
    """
    parts = list[Part]()
    for number, part in enumerate(segment.parts, start=first):
        path = folder / f"part-{number:05d}.parquet"
        try:
            os.link(part.path, path, follow_symlinks=False)
        except OSError:  # another device, or a file system without links
            with open_plain(part.path) as file, path.open("xb") as copy:
                shutil.copyfileobj(file, copy)
            if file_checksum(path) != part.checksum:
                raise StatisticsError(
                    f"{part.path}: was replaced while it was copied. Run the command again."
                ) from None
        parts.append(part.at(path))
    return structs.replace(segment, parts=tuple(parts))


def scan_part(part: Part) -> pl.LazyFrame:
    """Scan the rows of a part."""
    return pl.scan_parquet(part.path.absolute(), hive_partitioning=False, glob=False)


_TypedPart: TypeAlias = tuple[Part, dict[str, str]]
"""A part and the dtype name of each of its columns."""

MapParts: TypeAlias = Callable[[Iterable[_TypedPart], Callable[[_TypedPart], Amounts | str]], Iterator[Amounts | str]]
"""Apply a function to each part, in order: in this process, or on a cluster (`Engine.each`)."""


def one_by_one(items: Iterable[Item], work: Callable[[Item], Output]) -> Iterator[Output]:
    """Apply a function to each item in this process, lazily; see `MapParts`."""
    return map(work, items)


def check_parts(folder: Path, segments: Sequence[Segment]) -> dict[Path, FileState]:
    """Check that the folder holds the parts of the manifest, with their sizes, and no further parts.

    Returns:
        The state of each file, by path.

    Raises:
        StatisticsError: a part is missing, truncated, unreadable, or not listed.
    """
    states = dict[Path, FileState]()
    for part in (part for segment in segments for part in segment.parts):
        where = f"{part.path}: this part of the statistics"
        try:
            states[part.path] = state = state_of(part.path)
        except FileNotFoundError as error:
            raise StatisticsError(f"{where} is missing. Collect them again.") from error
        except OSError as error:
            raise StatisticsError(f"{where} cannot be read: {error.strerror}. Collect them again.") from error
        if state.bytes != part.bytes:
            what = "is truncated" if state.bytes < part.bytes else "has been replaced"
            raise StatisticsError(
                f"{part.path}: {what}: it has {state.bytes:,} bytes, and was written with {part.bytes:,}. Collect it "
                "again."
            )
    foreign = sorted(path.name for path in folder.glob(PARTS) if path not in states)
    if foreign:
        raise StatisticsError(
            f"{folder / foreign[0]}: is not part of these statistics: their manifest does not list it. Remove it; "
            "to merge statistics, name their directories."
        )
    return states


def check_contents(statistics: Sequence[Statistics], each: MapParts, *, counts: bool = True) -> None:
    """Check the checksum and column types of every part, and the totals of every segment.

    Args:
        statistics: directories to check.
        each: maps the check over parts.
        counts: whether totals are checked; checksums suffice to link files.

    Raises:
        StatisticsError: a part is damaged, or totals differ from the manifest.
    """
    # Absolute paths, as workers may have another working directory.
    items = [(part.at(part.path.absolute()), entry.types) for entry in statistics for part in entry.parts]
    results = each(items, partial(_inspect, counts=counts))
    for place, segment in [(entry.path, segment) for entry in statistics for segment in entry.segments]:
        totals = list[Amounts]()
        for part, totals_or_damage in zip(segment.parts, results, strict=False):
            if isinstance(totals_or_damage, str):
                raise StatisticsError(f"{place / part.path.name}: {totals_or_damage} Collect these statistics again.")
            totals.append(totals_or_damage)
        if counts and totals and not same_totals(segment.totals, total := add_totals(totals)):
            held, stated = (
                f"{sums['rows']:,} rows, {sums['impressions']:,} impressions and {sums['clicks']:,} clicks"
                for sums in (total, segment.totals)
            )
            raise StatisticsError(
                f"{place}: the parts from {segment.parts[0].path.name} on hold {held}, and the manifest says {stated}. "
                "Collect these statistics again."
            )


def _inspect(item: _TypedPart, *, counts: bool) -> Amounts | str:
    """Totals of a part, empty without `counts`; or its damage in words. Runs in any process."""
    part, types = item
    try:
        if file_checksum(part.path) != part.checksum:
            return "is damaged: its bytes are not those that were written."
        rows = scan_part(part)
        if {name: str(dtype) for name, dtype in rows.collect_schema().items()} != types:
            return "holds other columns than the manifest says."
        if not counts:
            return {}
        totals = rows.select(pl.len().alias("rows"), pl.col(IMPRESSIONS, CLICKS).sum())
        return totals.collect().row(0, named=True)
    except OSError as error:
        return f"cannot be read: {error.strerror}."
    except pl.exceptions.PolarsError as error:
        return f"cannot be read as Parquet: {str(error).splitlines()[0]}."


def describe_statistics(metadata: StatisticsMetadata, segments: Sequence[Segment]) -> dict[str, Any]:
    """Manifest content of a directory of statistics, as `StatisticsManifest` reads it."""
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "counted": describe_plan(metadata.plan),
        "key_types": _key_types(metadata, segments),
        "decay": metadata.decay,
        "rows": metadata.rows,
        "statistics": add_totals([segment.totals for segment in segments]),
        "segments": [_with_parts(segment, lambda part: part.path.name) for segment in segments],
    }


def _with_parts(segment: Segment, name: Callable[[Part], str | Path]) -> Segment:
    """Replace the path of each part of a segment."""
    return structs.replace(segment, parts=tuple(part.at(name(part)) for part in segment.parts))


def counted_statistics(place: Location, metadata: StatisticsMetadata, segment: Segment) -> Statistics:
    """Statistics of a segment that was just written, without a manifest.

    Args:
        place: name in messages.
        metadata: plan, sources and rows.
        segment: the files.
    """
    return Statistics(place, metadata, _key_types(metadata, [segment]), (segment,), {})


def _key_types(metadata: StatisticsMetadata, segments: Sequence[Segment]) -> dict[str, str]:
    schema = scan_part(segments[0].parts[0]).collect_schema()
    return {name: str(schema[name]) for name in metadata.plan.keys}


def find_statistics(names: Sequence[str]) -> list[Statistics]:
    """Open the inputs as directories of statistics, if they are; all inputs must be of one kind.

    Returns:
        One entry per directory; empty if the inputs are logs.

    Raises:
        StatisticsError: statistics and logs are mixed, a directory is named twice, damaged, or of another version.
    """
    paths = [path for name in names for path in named_paths(name) or [location(name)]]
    by_path: dict[Location, Statistics | None] = {}
    for path in paths:
        real = path.resolve()
        if by_path.get(real) is not None:
            raise StatisticsError(f"{path} is named twice: its clicks would be counted twice. Name it once.")
        by_path[real] = open_statistics(path)
        if by_path[real] is not None and not is_text(str(real)):
            raise StatisticsError(f"{str(real)!a}: the name is not UTF-8, so that it cannot be read. Rename it.")
    statistics = [entry for entry in by_path.values() if entry is not None]
    if statistics and len(statistics) < len(by_path):
        log = next(path for path in paths if by_path[path.resolve()] is None)
        raise StatisticsError(
            f"{statistics[0].path} holds statistics, {log} does not: name logs or statistics, not both. "
            f"Collect {log} first: posbias collect {log} -o DIR."
        )
    return statistics


@contextmanager
def checked(
    statistics: Sequence[Statistics], each: MapParts, what: Literal["nothing", "bytes", "counts"] = "counts"
) -> Generator[None]:
    """Check parts before the block, which reads them, and check after it that no file was replaced.

    Args:
        statistics: directories that the block reads.
        each: maps the check over parts.
        what: content to check before the block; see `check_contents`.

    Raises:
        StatisticsError: a part is damaged, or statistics were replaced while they were read.
    """
    try:
        if what != "nothing":
            check_contents(statistics, each, counts=what == "counts")
        yield
    except Exception:
        for entry in statistics:
            entry.check_unchanged()  # a replaced file explains the failure of the block
        raise
    for entry in statistics:
        entry.check_unchanged()


def merge_metadata(
    statistics: Sequence[Statistics], factor: float | None = None, newest: date | None = None
) -> StatisticsMetadata:
    """Metadata of a merge of statistics.

    Args:
        statistics: one or more directories.
        factor: weight of a day relative to the next one; None keeps the decay of a single directory.
        newest: the last plausible day; None if days are unknown.

    Raises:
        StatisticsError: plans differ, two directories count one source, or decays cannot be combined.
    """
    first = statistics[0]
    sources: dict[str, str] = {}
    owner: dict[str, Location] = {}  # by digest; for a query over a file, also by the digest of the file
    for entry in statistics:
        check_same_plan(first, entry)
        for digest, path in entry.metadata.sources.items():
            whole = file_digest(digest)
            if digest in owner or whole in sources:
                raise StatisticsError(
                    f"{owner.get(digest, owner[whole])} and {entry.path} both count the log {path}: its clicks would "
                    "be counted twice. Name one of them."
                )
            sources[digest], owner[digest], owner[whole] = path, entry.path, entry.path
    rows = Rows.total([entry.metadata.rows for entry in statistics])
    plan = replace(first.metadata.plan, period=coarsest([entry.metadata.plan.period for entry in statistics]))
    return StatisticsMetadata(plan, sources, rows, _merged_decay(statistics, factor, newest))


def _merged_decay(statistics: Sequence[Statistics], factor: float | None, newest: date | None) -> Decay | None:
    """Decay of merged statistics, as of their newest day; see `merge_metadata`."""
    decayed = [(entry, entry.metadata.decay) for entry in statistics if entry.metadata.decay is not None]
    if factor is None:
        if decayed and len(statistics) > 1:
            entry, held = decayed[0]
            raise StatisticsError(
                f"{entry.path} has decayed as of {held.newest}, and the others have not, or as of another day. Give "
                f"--decay {held.factor:g}, so that they decay alike, or merge statistics that have not decayed."
            )
        return decayed[0][1] if decayed else None
    for entry, held in decayed:
        if held.factor != factor:
            raise StatisticsError(
                f"--decay {factor:g}: {entry.path} was collected with --decay {held.factor:g}. Give the same, or name "
                "statistics that have not decayed."
            )
    if newest is None:
        raise StatisticsError(
            f"--decay {factor:g}: {statistics[0].path} does not know days. Collect the logs again with --date or "
            "--timestamp."
        )
    return Decay(factor, newest)


def plan_differences(first: Statistics, other: Statistics, *, any_period: bool = False) -> list[str]:
    """Describe differences of two plans, e.g. `model pbm and ubm`; periods differ only if exactly one plan has them."""
    ours, theirs = describe_plan(first.metadata.plan), describe_plan(other.metadata.plan)
    if any_period or (ours["period"] and theirs["period"]):
        theirs["period"] = ours["period"]
    return [f"{key} {ours.get(key)} and {theirs.get(key)}" for key in ours | theirs if ours.get(key) != theirs.get(key)]


def check_same_plan(first: Statistics, other: Statistics) -> None:
    """Check that two statistics have one plan, up to the resolution of periods, and one type per key column.

    Raises:
        StatisticsError: they differ.
    """
    if differing := plan_differences(first, other):
        raise StatisticsError(
            f"{first.path} and {other.path} do not count the same: {'; '.join(differing)}. "
            "Collect them with the same options."
        )
    for column, ours in first.key_types.items():
        if ours != other.key_types[column] and column != PERIOD:
            raise StatisticsError(
                f"{first.path} and {other.path}: {column!r} holds {ours} and {other.key_types[column]}. "
                "Write the logs with the same type and collect them again."
            )


def open_statistics(place: Location) -> Statistics | None:
    """Open the statistics in a directory or below an object-store prefix; None if it holds none.

    Raises:
        StatisticsError: they are damaged, of another version, or were replaced meanwhile.
    """
    if isinstance(place, ObjectUrl):
        here = {entry.url.name: entry for entry in list_objects(place) if entry.url.path.parent == place.path}
        names = sorted(name for name in here if fnmatch(name, PARTS))
        manifest = here.get(FILE_NAME)  # copy the prefix only if the manifest, or a part, is of statistics
        if manifest is not None and manifest.bytes <= LARGEST:
            names = [FILE_NAME, *names]
            if SCHEMA not in read_object(manifest.url).decode(errors="replace"):
                return None
        elif not names or not _is_part(str(here[names[0]].url), storage_options(place)):
            return None
        with on_disk(place, names) as copy:
            try:
                statistics = _open(copy)
            except StatisticsError:
                if not is_current(place):
                    raise replaced(copy) from None
                raise
        return None if statistics is None else replace(statistics, path=place)
    return _open(place) if place.is_dir() else None


def _open(path: Path) -> Statistics | None:
    manifest, damage = None, ""
    try:
        manifest = open_manifest(path)
    except LogFormatError as error:
        damage = f" ({error})"
    if manifest is None or manifest.content.get("schema") != SCHEMA:
        first = next((part for part in sorted(path.glob(PARTS)) if plain_file(part)), None)
        if first is None or not _is_part(str(first), {}):
            return None
        raise StatisticsError(
            f"{path}: the manifest is missing or damaged, so these statistics are not whole. Collect them again."
            f"{damage}"
        )
    version = manifest.content.get("version", _FIRST_WITH_VERSION - 1)
    if type(version) is not int:
        raise StatisticsError(f"{manifest.path}: is damaged: its version is not a number. Collect the logs again.")
    if not OLDEST <= version <= VERSION:
        earlier = "" if "version" in manifest.content else " or earlier"
        what = "Collect them again" if version < VERSION else "Use the posbias that wrote them, or a later one"
        raise StatisticsError(
            f"{path}: these statistics have version {version}{earlier}, this posbias reads versions {OLDEST} to "
            f"{VERSION}. {what}."
        )
    stored = manifest.typed(StatisticsManifest, StatisticsError, "Collect the logs again.")
    segments = tuple(_with_parts(segment, lambda part: path / part.place) for segment in stored.segments)
    metadata = StatisticsMetadata(stored.counted.plan(), join_sources(segments), stored.rows, stored.decay)
    statistics = Statistics(path, metadata, stored.key_types, segments, {manifest.path: manifest.state})
    try:
        return replace(statistics, opened=statistics.opened | check_parts(path, segments))
    except StatisticsError:
        statistics.check_unchanged()  # the parts may belong to a newer manifest
        raise


def _is_part(place: str, options: dict[str, str]) -> bool:
    try:
        return pl.read_parquet_metadata(place, storage_options=options or None).get("schema") == SCHEMA
    except (pl.exceptions.PolarsError, OSError):
        return False


def open_store(place: Path) -> Statistics | None:
    """Open the store of days in a directory; None if the directory is missing or empty.

    Raises:
        StatisticsError: it holds no store of days, or a store that is damaged, decayed or of another version.
    """
    store = open_statistics(place)
    if store is None:
        if place.exists() and (not place.is_dir() or any(place.iterdir())):
            raise StatisticsError(f"{place}: holds no store. Name another directory; one that is not there is made.")
        return None
    if store.metadata.plan.period != "day":
        kept = "no days" if store.metadata.plan.period is None else "times of day"
        raise StatisticsError(
            f"{place}: keeps {kept}, so that no day can be added to it or taken out of it. Name another directory, and "
            "collect the logs into it, each with its --date."
        )
    if store.metadata.decay is not None:
        raise StatisticsError(
            f"{place}: its counts have decayed, so that no day can be added to it or taken out of it. Name another "
            "directory, collect the logs into it, and give --decay to `posbias fit`."
        )
    return store


def check_new_day(store: Statistics, day: str, sources: Mapping[str, str], *, replaces: bool) -> None:
    """Check that a day can be added to a store; a known day may be counted again from the same logs.

    Args:
        store: the store to extend.
        day: ISO date.
        sources: path of each log of the day, by digest.
        replaces: whether the day may replace a counting from other logs.

    Raises:
        StatisticsError: the day was counted from other logs, or another day from one of these logs.
    """
    countings = [counting for segment in store.segments for counting in segment.countings]
    for counting in (entry for entry in countings if entry.days != (day,)):
        twice = counted_already(sources, counting.sources)
        if twice is not None:
            raise StatisticsError(
                f"{store.path}: has counted {twice} as {_span(counting)} already: its clicks would be counted "
                f"twice. Name the log of {day}, or remove the other day first (--remove-day)."
            )
    there = {digest for counting in countings if day in counting.days for digest in counting.sources}
    if there and there != set(sources) and not replaces:
        raise StatisticsError(
            f"{store.path}: holds {day} already, from other logs than {', '.join(sources.values())}, or before they "
            "changed. To count the day from these, add --replace-day."
        )


def without_day(store: Statistics, day: str) -> Statistics | None:
    """Remove a day from a store, if present; None if no other day is left.

    Raises:
        StatisticsError: the day was counted together with other days.
    """
    countings = [counting for segment in store.segments for counting in segment.countings]
    together = next((entry for entry in countings if day in entry.days and len(entry.days) > 1), None)
    if together is not None:
        raise StatisticsError(
            f"{store.path}: {day} was counted together with other days ({_span(together)}), so that it cannot be taken "
            "out. Name another directory, and collect the logs into it, each with its --date."
        )
    whole = [segment for segment in store.segments if day not in segment.days]
    cut = [
        Segment.join_countings([counting for counting in month.of if day not in counting.days], month.parts)
        for month in store.segments
        if day in month.days and month.of
    ]
    left = (*whole, *cut)
    if not left:
        return None
    metadata = replace(store.metadata, sources=join_sources(left), rows=Rows.total([segment.rows for segment in left]))
    return replace(store, metadata=metadata, segments=left, cut=(*(kept for kept in store.cut if kept in whole), *cut))


def _span(segment: Segment) -> str:
    """Format the days of a segment: one date, or the first and the last."""
    return segment.days[0] if len(segment.days) == 1 else f"{segment.days[0]} to {segment.days[-1]}"
