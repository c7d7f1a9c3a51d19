"""Statistics on disk: a directory of Parquet parts and a manifest, which merge day by day.

Each part carries, in its Parquet metadata, what was counted and from which sources, so that merging the wrong
things, or the same day twice, is an error.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from posbias.core.errors import StatisticsError
from posbias.core.models import get_model
from posbias.core.randomization import RandomizedRows
from posbias.core.statistics_plan import StatisticsPlan
from posbias.io.sources import named_paths

SCHEMA = "posbias.statistics"
VERSION = 2


@dataclass(frozen=True)
class StatisticsMetadata:
    """What statistics hold.

    Attributes:
        plan: what was counted.
        sources: path by digest of every log file that was counted.
        rows: rows read, rejected and used.
    """

    plan: StatisticsPlan
    sources: dict[str, str]
    rows: dict[str, Any]

    def to_parquet(self) -> dict[str, str]:
        """As the key-value metadata of a Parquet file."""
        return {
            "schema": SCHEMA,
            "posbias": json.dumps(
                {"version": VERSION, **describe_plan(self.plan), "sources": self.sources, "rows": self.rows},
                sort_keys=True,
            ),
        }


@dataclass(frozen=True)
class Statistics:
    """One statistics directory."""

    path: Path
    parts: tuple[Path, ...]
    metadata: StatisticsMetadata


def describe_plan(plan: StatisticsPlan) -> dict[str, Any]:
    """A plan as plain values, for metadata and manifests."""
    return {
        "model": plan.model.name,
        "max_position": plan.max_position,
        "position_bins": list(plan.position_bins),
        "context": list(plan.context),
        "period": plan.period,
        "strata": list(plan.strata),
        "randomized": [str(rows) for rows in plan.randomized],
        "weighted": plan.weighted,
    }


def plan_from(description: dict[str, Any]) -> StatisticsPlan:
    """The plan that `describe_plan` described."""
    return StatisticsPlan(
        model=get_model(description["model"]),
        max_position=description["max_position"],
        position_bins=tuple(description["position_bins"]),
        context=tuple(description["context"]),
        period=description["period"],
        strata=tuple(description["strata"]),
        randomized=tuple(RandomizedRows.parse(text) for text in description["randomized"]),
        weighted=description["weighted"],
    )


def write_statistics(
    parts: Iterable[pl.DataFrame], folder: Path, metadata: StatisticsMetadata, on_part: Callable[[], None]
) -> dict[str, int | float]:
    """Write parts, which are sorted by the plan's keys, and say what they add up to."""
    rows, impressions, clicks = 0, 0, 0
    for number, part in enumerate(parts):
        part.select(metadata.plan.columns).write_parquet(
            folder / f"part-{number:05d}.parquet", metadata=metadata.to_parquet()
        )
        rows += part.height
        impressions += _number(part["impressions"].sum())
        clicks += _number(part["clicks"].sum())
        on_part()
    return {"rows": rows, "impressions": impressions, "clicks": clicks}


def _number(total: object) -> int | float:
    return total if isinstance(total, int | float) else 0


def find_statistics(names: Sequence[str]) -> list[Statistics]:
    """The statistics directories among what the user names: all of it, or none.

    Returns:
        One entry per directory, empty if what is named are logs.

    Raises:
        StatisticsError: statistics and logs are mixed, or statistics are damaged or of another version.
    """
    paths = [path for name in names for path in named_paths(name) or [Path(name)]]
    twice = [path for number, path in enumerate(paths) if path.resolve() in map(Path.resolve, paths[:number])]
    found = {path: _open(path) for path in paths if path.is_dir()}
    if twice and found.get(twice[0]) is not None:
        raise StatisticsError(f"{twice[0]} is named twice: its clicks would count twice. Name it once.")
    statistics = [entry for entry in found.values() if entry is not None]
    if statistics and len(statistics) < len(paths):
        log = next(path for path in paths if found.get(path) is None)
        raise StatisticsError(
            f"{statistics[0].path} holds statistics, {log} does not: name logs or statistics, not both. "
            f"Collect {log} first: posbias collect {log} -o DIR."
        )
    return statistics


def merge_metadata(statistics: Sequence[Statistics]) -> StatisticsMetadata:
    """What several statistics hold together.

    Raises:
        StatisticsError: they count different things, or a source is in two of them.
    """
    first = statistics[0]
    sources: dict[str, str] = {}
    owner: dict[str, Path] = {}
    for entry in statistics:
        _check_same_plan(first, entry)
        for digest, path in entry.metadata.sources.items():
            if digest in sources:
                raise StatisticsError(
                    f"{owner[digest]} and {entry.path} both count the log {path}: its clicks would count twice. "
                    "Name one of them."
                )
            sources[digest], owner[digest] = path, entry.path
    return StatisticsMetadata(first.metadata.plan, sources, add_rows([entry.metadata.rows for entry in statistics]))


def add_rows(counts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Add up counts of rows read, used and rejected per reason."""
    rejected: dict[str, int] = {}
    for count in counts:
        for reason, rows in count["rejected"].items():
            rejected[reason] = rejected.get(reason, 0) + rows
    keys = dict.fromkeys(key for count in counts for key in count if key != "rejected")
    total = {key: sum(count.get(key, 0) for count in counts) for key in keys}
    return {**total, "rejected": rejected}


def _check_same_plan(first: Statistics, other: Statistics) -> None:
    ours, theirs = describe_plan(first.metadata.plan), describe_plan(other.metadata.plan)
    differing = [f"{key} {ours[key]} and {theirs[key]}" for key in ours if ours[key] != theirs[key]]
    if differing:
        raise StatisticsError(
            f"{first.path} and {other.path} do not count the same: {'; '.join(differing)}. "
            "Collect them with the same options."
        )
    schemas = [pl.read_parquet_schema(entry.parts[0]) for entry in (first, other)]
    for column in first.metadata.plan.keys:
        if schemas[0][column] != schemas[1][column]:
            raise StatisticsError(
                f"{first.path} and {other.path}: {column!r} holds {schemas[0][column]} and {schemas[1][column]}. "
                "Write the logs with one type and collect them again."
            )


def _open(path: Path) -> Statistics | None:
    parts = tuple(sorted(path.glob("part-*.parquet")))
    if not parts:
        return None
    try:
        metadata = pl.read_parquet_metadata(parts[0])
    except (pl.exceptions.PolarsError, OSError):
        return None
    if metadata.get("schema") != SCHEMA:
        return None
    described = json.loads(metadata["posbias"])
    if described["version"] != VERSION:
        raise StatisticsError(
            f"{path}: these statistics have version {described['version']}, this posbias reads version {VERSION}. "
            "Collect them again."
        )
    if not (path / "manifest.json").is_file():
        raise StatisticsError(
            f"{path}: the manifest is missing, so these statistics are not whole. Collect them again."
        )
    return Statistics(path, parts, StatisticsMetadata(plan_from(described), described["sources"], described["rows"]))
