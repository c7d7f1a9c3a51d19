"""Statistics on disk: a directory of Parquet parts and a manifest, which merge day by day.

The manifest says what was counted, from which sources, and which parts belong to it, so that merging the wrong
things, the same day twice, or what is not whole is an error. A directory is opened from its manifest alone.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import polars as pl
from msgspec import structs

from posbias.core.errors import LogFormatError, StatisticsError
from posbias.core.schema import PERIOD, coarsest
from posbias.io.log.clicks import Rows
from posbias.io.log.sources import named_paths, of_file
from posbias.io.places.locations import Location, ObjectUrl, is_plain, is_text, location
from posbias.io.places.object_stores import is_current, list_objects, on_disk, read_object, storage_options
from posbias.io.results.manifest import FILE_NAME, LARGEST, Manifest, open_manifest
from posbias.io.stores.metadata import (
    OLDEST,
    SCHEMA,
    VERSION,
    Decay,
    Part,
    Segment,
    StatisticsManifest,
    StatisticsMetadata,
    add_totals,
    describe_decay,
    describe_plan,
    join_sources,
)
from posbias.io.stores.segments import PARTS, Check, Each, Statistics, check_parts, replaced, scan_part

_FIRST_WITH_VERSION = 3  # older manifests do not name their version


def describe_statistics(metadata: StatisticsMetadata, segments: Sequence[Segment]) -> dict[str, Any]:
    """The description of statistics in the manifest of their directory."""
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "counted": describe_plan(metadata.plan),
        "key_types": _key_types(metadata, segments),
        "decay": describe_decay(metadata.decay),
        "rows": metadata.rows,
        "statistics": add_totals([segment.totals for segment in segments]),
        "segments": [_with_parts(segment, lambda part: part.path.name) for segment in segments],
    }


def _with_parts(segment: Segment, name: Callable[[Part], str | Path]) -> Segment:
    """A segment whose parts have other names: those in a manifest, or in a directory."""
    return structs.replace(segment, parts=tuple(part.at(name(part)) for part in segment.parts))


def counted_statistics(place: Location, metadata: StatisticsMetadata, segment: Segment) -> Statistics:
    """Statistics that were just counted, and have no manifest yet.

    Args:
        place: what they are called in messages.
        metadata: what they hold.
        segment: their files.
    """
    return Statistics(place, metadata, _key_types(metadata, [segment]), (segment,), {})


def _key_types(metadata: StatisticsMetadata, segments: Sequence[Segment]) -> dict[str, str]:
    schema = scan_part(segments[0].parts[0]).collect_schema()
    return {name: str(schema[name]) for name in metadata.plan.keys}


def find_statistics(names: Sequence[str]) -> list[Statistics]:
    """The statistics directories among what the user names: all of it, or none.

    Returns:
        One entry per directory, empty if what is named are logs.

    Raises:
        StatisticsError: statistics and logs are mixed, or statistics are damaged or of another version.
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
def checked(statistics: Sequence[Statistics], check: Check | None, each: Each) -> Generator[None]:
    """Check all parts before the block, which reads them, and after it that they are still the same files.

    Args:
        statistics: what is read.
        check: what is checked of the parts, `check_bytes` or `check_contents`; None for nothing.
        each: an engine's.

    Raises:
        StatisticsError: a part is damaged, or statistics were replaced while they were read.
    """
    try:
        if check is not None:
            check(statistics, each)
        yield
    except Exception:
        _check_unchanged(statistics)  # if it has failed because of that, it is what there is to say
        raise
    _check_unchanged(statistics)


def _check_unchanged(statistics: Sequence[Statistics]) -> None:
    for entry in statistics:
        entry.check_unchanged()


def merge_metadata(
    statistics: Sequence[Statistics], factor: float | None = None, newest: date | None = None
) -> StatisticsMetadata:
    """The metadata of several statistics together.

    Args:
        statistics: one or more.
        factor: what a day is to be worth of the following one; None for what they say themselves.
        newest: the last of their days that can be meant; None where they know no days.

    Raises:
        StatisticsError: they count different things, a source is in two of them, or they cannot decay together.
    """
    first = statistics[0]
    sources: dict[str, str] = {}
    owner: dict[str, Location] = {}  # by digest, and by that of the file alone where a query has read it
    for entry in statistics:
        check_same_plan(first, entry)
        for digest, path in entry.metadata.sources.items():
            whole = of_file(digest)
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
    if newest is None:
        raise StatisticsError(
            f"--decay {factor:g}: {statistics[0].path} does not know days. Collect the logs again with --date or "
            "--timestamp."
        )
    return Decay(factor, newest)


def plan_differences(first: Statistics, other: Statistics, *, any_period: bool = False) -> list[str]:
    """Differences in what two statistics count, in words; of two that know periods the coarser one is kept."""
    ours, theirs = describe_plan(first.metadata.plan), describe_plan(other.metadata.plan)
    if any_period or (ours["period"] and theirs["period"]):
        theirs["period"] = ours["period"]
    return [f"{key} {ours.get(key)} and {theirs.get(key)}" for key in ours | theirs if ours.get(key) != theirs.get(key)]


def check_same_plan(first: Statistics, other: Statistics) -> None:
    """Check that two statistics count the same, whatever the resolution of their periods.

    Raises:
        StatisticsError: they do not.
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
    """The statistics in a directory, or below a prefix of an object store; None where it holds none.

    Raises:
        StatisticsError: they are damaged or of another version.
    """
    if isinstance(place, ObjectUrl):
        names = _names_of_statistics(place)
        if names is None:
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


def _names_of_statistics(prefix: ObjectUrl) -> list[str] | None:
    """The objects that make up statistics; None where it is not worth a copy by what the manifest or a part says."""
    here = {entry.url.name: entry for entry in list_objects(prefix) if entry.url.path.parent == prefix.path}
    parts = sorted(name for name in here if fnmatch(name, PARTS))
    manifest = here.get(FILE_NAME)
    if manifest is not None and manifest.bytes <= LARGEST:
        text = read_object(manifest.url).decode(errors="replace")
        return [FILE_NAME, *parts] if SCHEMA in text else None
    return parts if parts and _is_part(str(here[parts[0]].url), storage_options(prefix)) else None


def _open(path: Path) -> Statistics | None:
    manifest, damage = None, ""
    try:
        manifest = open_manifest(path)
    except LogFormatError as error:
        damage = f" ({error})"
    if manifest is None or manifest.content.get("schema") != SCHEMA:
        if not _holds_part(path):
            return None
        raise StatisticsError(
            f"{path}: the manifest is missing or damaged, so these statistics are not whole. Collect them again."
            f"{damage}"
        )
    _check_version(manifest, path)
    return _opened(manifest.typed(StatisticsManifest, StatisticsError, "Collect the logs again."), manifest, path)


def _check_version(manifest: Manifest, path: Path) -> None:
    version = manifest.content.get("version", _FIRST_WITH_VERSION - 1)
    if type(version) is not int:
        raise StatisticsError(f"{manifest.path}: is damaged: its version is not a number. Collect the logs again.")
    if OLDEST <= version <= VERSION:
        return
    earlier = "" if "version" in manifest.content else " or earlier"
    what = "Collect them again" if version < VERSION else "Use the posbias that wrote them, or a later one"
    raise StatisticsError(
        f"{path}: these statistics have version {version}{earlier}, this posbias reads versions {OLDEST} to "
        f"{VERSION}. {what}."
    )


def _opened(stored: StatisticsManifest, manifest: Manifest, path: Path) -> Statistics:
    segments = tuple(_with_parts(segment, lambda part: path / part.place) for segment in stored.segments)
    metadata = StatisticsMetadata(
        plan=stored.counted.plan(),
        sources={digest: source for segment in segments for digest, source in segment.sources.items()},
        rows=stored.rows,
        decay=stored.decay,
    )
    statistics = Statistics(path, metadata, stored.key_types, segments, {manifest.path: manifest.state})
    try:
        return replace(statistics, opened=statistics.opened | check_parts(path, segments))
    except StatisticsError:
        statistics.check_unchanged()  # the parts may be those of another manifest by now
        raise


def _holds_part(path: Path) -> bool:
    first = next((part for part in sorted(path.glob(PARTS)) if is_plain(part)), None)
    return first is not None and _is_part(str(first), {})


def _is_part(place: str, options: dict[str, str]) -> bool:
    try:
        return pl.read_parquet_metadata(place, storage_options=options or None).get("schema") == SCHEMA
    except (pl.exceptions.PolarsError, OSError):
        return False


_BY_DAY = "day"


def open_store(place: Path) -> Statistics | None:
    """The store in a directory; None where there is nothing yet.

    Raises:
        StatisticsError: what is there is no store of days, is damaged, or is of another version.
    """
    store = open_statistics(place)
    if store is None:
        if place.exists() and (not place.is_dir() or any(place.iterdir())):
            raise StatisticsError(f"{place}: holds no store. Name another directory; one that is not there is made.")
        return None
    if store.metadata.plan.period != _BY_DAY:
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
    """See whether a day may be added to a store. One that is there may come again from the same logs.

    Args:
        store: to which it is added.
        day: which, as text.
        sources: path by digest of its logs.
        replaces: whether it may take the place of the same day from other logs.

    Raises:
        StatisticsError: it is there from other logs, or another day was counted from one of these.
    """
    countings = [counting for segment in store.segments for counting in segment.countings]
    for counting in (one for one in countings if one.days != (day,)):
        known = {*counting.sources, *map(of_file, counting.sources)}
        twice = next((one for one in sources if one in known or of_file(one) in counting.sources), None)
        if twice is not None:
            raise StatisticsError(
                f"{store.path}: has counted {sources[twice]} as {_span(counting)} already: its clicks would be counted "
                f"twice. Name the log of {day}, or remove the other day first (--remove-day)."
            )
    there = {digest for counting in countings if day in counting.days for digest in counting.sources}
    if there and there != set(sources) and not replaces:
        raise StatisticsError(
            f"{store.path}: holds {day} already, from other logs than {', '.join(sources.values())}, or before they "
            "changed. To count the day from these, add --replace-day."
        )


def without_day(store: Statistics, day: str) -> Statistics | None:
    """A store without a day, which need not be there; None where nothing is left.

    Raises:
        StatisticsError: the day was counted together with others.
    """
    countings = [counting for segment in store.segments for counting in segment.countings]
    together = next((entry for entry in countings if day in entry.days and len(entry.days) > 1), None)
    if together is not None:
        raise StatisticsError(
            f"{store.path}: {day} was counted together with other days ({_span(together)}), so that it cannot be taken "
            "out. Name another directory, and collect the logs into it, each with its --date."
        )
    whole = [segment for segment in store.segments if day not in segment.days]
    cut = [_without(segment, day) for segment in store.segments if day in segment.days and segment.of]
    left = (*whole, *cut)
    if not left:
        return None
    metadata = replace(store.metadata, sources=join_sources(left), rows=Rows.total([segment.rows for segment in left]))
    return replace(store, metadata=metadata, segments=left, cut=(*(one for one in store.cut if one in whole), *cut))


def _without(month: Segment, day: str) -> Segment:
    return Segment.of_countings([counting for counting in month.of if day not in counting.days], month.parts)


def _span(segment: Segment) -> str:
    """The days of a segment, in words."""
    return segment.days[0] if len(segment.days) == 1 else f"{segment.days[0]} to {segment.days[-1]}"
