"""A log that is read and counted once, and parted by the values of a column, each as a log of its own."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from math import isfinite
from pathlib import Path

import polars as pl

from posbias.core.counts.plan import StatisticsPlan
from posbias.core.errors import SchemaError
from posbias.core.schema import CLICKS, IMPRESSIONS
from posbias.io.counting.count import CountedLog, Reading, count_parts, read_log
from posbias.io.engines.engine import Engine
from posbias.io.log.log import Log
from posbias.io.progress import Progress
from posbias.io.temporary.kept import KeptFrame, keep

MOST_VALUES = 10_000
"""Each is a result of its own: a column with more of them names pages or users rather than markets."""


@dataclass(frozen=True)
class ValueOfColumn:
    """A value, and what a log counts where the column has it."""

    value: object  # as the log has it; None where the column is empty
    impressions: float  # how many there are, or the sum of their weights
    clicks: float  # likewise
    # Makes its counts, as those of a log in which there is nothing else. Its rows are those of the whole log.
    count: Callable[[], CountedLog]


def count_by_value(
    log: Log,
    plan: StatisticsPlan,
    column: str,
    engine: Engine,
    progress: Progress,
    today: date,
    factor: float | None = None,
) -> tuple[Reading, list[ValueOfColumn]]:
    """Read and count a log once, for each value of a column.

    Args:
        log: it is read once.
        plan: what is counted for each value; the column is none of its keys.
        column: of the log, which was opened with it as a stratum.
        engine: reads and counts.
        progress: where stages are reported.
        today: for what is said of its days.
        factor: what a day is worth of the next one, if older days weigh less.

    Returns:
        How the log was read, and its values, the empty one last.

    Raises:
        SchemaError: the log breaks the contract, or has too many values, or one that is NaN or infinite.
    """
    found = read_log(log, replace(plan, strata=(column, *plan.strata)), engine, progress, today)
    statistics = found.read.statistics(found.plan)
    folder = engine.scratch / "by-value"
    folder.mkdir(mode=0o700)
    part = partial(_parted, column=column, columns=plan_of(found.plan, column).columns, folder=folder)
    parts = defaultdict[object, list[_OfPart]](list)
    with progress.stage(f"counting by {column}", statistics.number) as stage:
        for of_part in statistics.map(part):
            stage.advance()
            for value, rows in of_part:
                if isinstance(value, float) and not isfinite(
                    value
                ):  # NaN differs from itself, so that parts never meet
                    raise SchemaError(
                        f"column {column!r} holds {value}, which names no part of a log. Leave it empty in these rows, "
                        "or take them out."
                    )
                parts[value].append(rows)
    if len(parts) > MOST_VALUES:
        raise SchemaError(
            f"column {column!r} has {len(parts):,} values, and each would be a result of its own; {MOST_VALUES:,} are "
            "the most. Name a column of markets, devices or the like."
        )
    values = [
        ValueOfColumn(
            value,
            sum(rows.impressions for rows in parts[value]),
            sum(rows.clicks for rows in parts[value]),
            partial(_count, parts[value], found, column, engine, progress, folder / f"value-{number:05d}", factor),
        )
        for number, value in enumerate(sorted(parts, key=_order))
    ]
    return found, values


@dataclass(frozen=True)
class _OfPart:
    """What a part of the log counts for one value."""

    rows: KeptFrame
    impressions: float
    clicks: float


def plan_of(plan: StatisticsPlan, column: str) -> StatisticsPlan:
    """What is counted for each value: the same without the column."""
    return replace(plan, strata=tuple(name for name in plan.strata if name != column))


def _parted(
    number: int, statistics: pl.LazyFrame, column: str, columns: tuple[str, ...], folder: Path
) -> list[tuple[object, _OfPart]]:
    """The statistics of a part, value by value; they lie on disk, as the values are counted one after another."""
    frame = statistics.collect()
    parted = frame.partition_by(column, as_dict=True, maintain_order=True)
    return [
        (
            value,
            _OfPart(
                keep(rows.select(columns), folder, f"part-{number:05d}-{place:05d}"),
                float(rows[IMPRESSIONS].sum()),
                float(rows[CLICKS].sum()),
            ),
        )
        for place, ((value,), rows) in enumerate(parted.items())
    ]


def _count(
    parts: list[_OfPart],
    found: Reading,
    column: str,
    engine: Engine,
    progress: Progress,
    folder: Path,
    factor: float | None,
) -> CountedLog:
    folder.mkdir(mode=0o700)
    rows = engine.parts_of([of_part.rows.scan() for of_part in parts])
    return count_parts(rows, found, plan_of(found.plan, column), engine, progress, folder, factor)


def _order(value: object) -> tuple[bool, object]:
    """Values in ascending order, the empty one last."""
    return value is None, "" if value is None else value
