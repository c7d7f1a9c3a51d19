"""Statistics on disk: a directory of Parquet parts and a manifest, which merge day by day.

The manifest says what was counted, from which sources, and which parts belong to it, so that merging the wrong
things, the same day twice, or what is not whole is an error. A directory is opened from its manifest alone.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, cast

import polars as pl

from posbias.core.errors import StatisticsError
from posbias.io.decay import Decay
from posbias.io.file_names import is_text
from posbias.io.local_copies import on_disk
from posbias.io.manifest import FILE_NAME
from posbias.io.object_stores import list_objects, read_object, storage_options
from posbias.io.object_urls import Location, ObjectUrl, location
from posbias.io.regular_files import read_regular
from posbias.io.sources import named_paths
from posbias.io.statistics_metadata import (
    SCHEMA,
    VERSION,
    StatisticsMetadata,
    add_rows,
    describe_decay,
    describe_plan,
    plan_from,
)
from posbias.io.statistics_segments import PARTS, Part, Segment, check_parts

_FIRST_WITH_VERSION = 3  # older manifests do not name their version


@dataclass(frozen=True)
class Statistics:
    """One directory of statistics.

    Attributes:
        path: where it is.
        metadata: what it holds.
        key_types: the type of each key column, as text.
        segments: its files. Rows of different segments may have equal keys: they add up.
    """

    path: Location
    metadata: StatisticsMetadata
    key_types: dict[str, str]
    segments: tuple[Segment, ...]

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts of all segments."""
        return tuple(part for segment in self.segments for part in segment.parts)

    @property
    def days(self) -> list[str]:
        """The days that were counted, as text, sorted."""
        return sorted({day for segment in self.segments for day in segment.days})

    @property
    def totals(self) -> dict[str, int | float]:
        """`rows`, `impressions` and `clicks` of all segments."""
        return _totals(self.segments)


def describe_statistics(metadata: StatisticsMetadata, segments: Sequence[Segment]) -> dict[str, Any]:
    """What the manifest of a directory says about the statistics in it."""
    schema = pl.read_parquet_schema(segments[0].parts[0].path)
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "counted": describe_plan(metadata.plan),
        "key_types": {name: str(schema[name]) for name in metadata.plan.keys},
        "decay": describe_decay(metadata.decay),
        "rows": metadata.rows,
        "statistics": _totals(segments),
        "segments": [segment.describe() for segment in segments],
    }


def find_statistics(names: Sequence[str]) -> list[Statistics]:
    """The statistics directories among what the user names: all of it, or none.

    Returns:
        One entry per directory, empty if what is named are logs.

    Raises:
        StatisticsError: statistics and logs are mixed, or statistics are damaged or of another version.
    """
    paths = [path for name in names for path in named_paths(name) or [location(name)]]
    found: dict[Location, Statistics | None] = {}
    for path in paths:
        real = path.resolve()
        if found.get(real) is not None:
            raise StatisticsError(f"{path} is named twice: its clicks would count twice. Name it once.")
        found[real] = _open_at(path)
        if found[real] is not None and not is_text(str(real)):
            raise StatisticsError(f"{str(real)!a}: the name is not UTF-8, so that it cannot be read. Rename it.")
    statistics = [entry for entry in found.values() if entry is not None]
    if statistics and len(statistics) < len(found):
        log = next(path for path in paths if found[path.resolve()] is None)
        raise StatisticsError(
            f"{statistics[0].path} holds statistics, {log} does not: name logs or statistics, not both. "
            f"Collect {log} first: posbias collect {log} -o DIR."
        )
    return statistics


def merge_metadata(statistics: Sequence[Statistics], factor: float | None = None) -> StatisticsMetadata:
    """What several statistics hold together.

    Args:
        statistics: one or more.
        factor: what a day is to be worth of the following one; None for what they say themselves.

    Raises:
        StatisticsError: they count different things, a source is in two of them, or they cannot decay together.
    """
    first = statistics[0]
    sources: dict[str, str] = {}
    owner: dict[str, Location] = {}
    for entry in statistics:
        _check_same_plan(first, entry)
        for digest, path in entry.metadata.sources.items():
            if digest in sources:
                raise StatisticsError(
                    f"{owner[digest]} and {entry.path} both count the log {path}: its clicks would count twice. "
                    "Name one of them."
                )
            sources[digest], owner[digest] = path, entry.path
    rows = add_rows([entry.metadata.rows for entry in statistics])
    return StatisticsMetadata(first.metadata.plan, sources, rows, _merged_decay(statistics, factor))


def _merged_decay(statistics: Sequence[Statistics], factor: float | None) -> Decay | None:
    """How merged statistics have decayed: as of the newest of their days."""
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
    days = [day for entry in statistics for segment in entry.segments for day in segment.days]
    if not days:
        raise StatisticsError(
            f"--decay {factor:g}: {statistics[0].path} does not know days. Collect the logs again with --date or "
            "--timestamp."
        )
    return Decay(factor, date.fromisoformat(max(days)))


def _check_same_plan(first: Statistics, other: Statistics) -> None:
    ours, theirs = describe_plan(first.metadata.plan), describe_plan(other.metadata.plan)
    differing = [f"{key} {ours[key]} and {theirs[key]}" for key in ours if ours[key] != theirs[key]]
    if differing:
        raise StatisticsError(
            f"{first.path} and {other.path} do not count the same: {'; '.join(differing)}. "
            "Collect them with the same options."
        )
    for column, ours in first.key_types.items():
        if ours != other.key_types[column]:
            raise StatisticsError(
                f"{first.path} and {other.path}: {column!r} holds {ours} and {other.key_types[column]}. "
                "Write the logs with one type and collect them again."
            )


def _totals(segments: Sequence[Segment]) -> dict[str, int | float]:
    return {name: sum(segment.totals[name] for segment in segments) for name in segments[0].totals}


def _open_at(place: Location) -> Statistics | None:
    """The statistics in a directory, or below a prefix of an object store; None where it holds none."""
    if isinstance(place, ObjectUrl):
        if not _may_hold_statistics(place):
            return None
        with on_disk(place) as copy:
            found = _open(copy)
        return None if found is None else replace(found, path=place)
    return _open(place) if place.is_dir() else None


def _may_hold_statistics(prefix: ObjectUrl) -> bool:
    """Whether it is worth a copy: what a manifest or, where that is missing, the first part says."""
    here = {entry.url.name: entry.url for entry in list_objects(prefix) if entry.url.path.parent == prefix.path}
    if FILE_NAME in here:
        return SCHEMA in read_object(here[FILE_NAME]).decode(errors="replace")
    parts = sorted(name for name in here if fnmatch(name, PARTS))
    if not parts:
        return False
    try:
        metadata = pl.read_parquet_metadata(str(here[parts[0]]), storage_options=storage_options(prefix) or None)
    except (pl.exceptions.PolarsError, OSError):
        return False
    return metadata.get("schema") == SCHEMA


def _open(path: Path) -> Statistics | None:
    manifest = _manifest(path)
    if manifest is None:
        if _holds_part(path):
            raise StatisticsError(
                f"{path}: the manifest is missing or damaged, so these statistics are not whole. Collect them again."
            )
        return None
    version = manifest.get("version", _FIRST_WITH_VERSION - 1)
    if version != VERSION:
        raise StatisticsError(
            f"{path}: these statistics have version {version}, this posbias reads version {VERSION}. "
            "Collect them again."
        )
    try:
        statistics = _described(manifest, path)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StatisticsError(f"{path / FILE_NAME}: is damaged ({error!r}). Collect the logs again.") from error
    check_parts(path, statistics.segments)
    return statistics


def _described(manifest: dict[str, Any], path: Path) -> Statistics:
    segments = tuple(Segment.read(described, path) for described in manifest["segments"])
    metadata = StatisticsMetadata(
        plan=plan_from(manifest["counted"]),
        sources={digest: source for segment in segments for digest, source in segment.sources.items()},
        rows=manifest["rows"],
        decay=Decay.read(manifest["decay"]),
    )
    return Statistics(path, metadata, manifest["key_types"], segments)


def _manifest(path: Path) -> dict[str, Any] | None:
    """The manifest of statistics; None where there is none that can be read, or it is of something else."""
    try:
        content: object = json.loads(read_regular(path / FILE_NAME))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(content, dict):
        return None
    manifest = cast("dict[str, Any]", content)
    return manifest if manifest.get("schema") == SCHEMA else None


def _holds_part(path: Path) -> bool:
    part = min((part for part in path.glob(PARTS) if part.is_file()), default=None)
    if part is None:
        return False
    try:
        return pl.read_parquet_metadata(part).get("schema") == SCHEMA
    except (pl.exceptions.PolarsError, OSError):
        return False
