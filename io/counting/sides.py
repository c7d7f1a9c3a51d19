"""Several statistics counted side by side: each is a context, so that one fit knows the errors of all of them."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

import polars as pl

from posbias.core.comparison.curves import CURVE
from posbias.core.counts.plan import StatisticsPlan
from posbias.core.counts.sufficient_statistics import SufficientStatistics
from posbias.core.errors import StatisticsError
from posbias.core.periods import coarsest
from posbias.core.schema import PERIOD
from posbias.io.counting.count import compress_parts
from posbias.io.engines.engine import Engine
from posbias.io.progress import Progress
from posbias.io.stores.checks import check_contents
from posbias.io.stores.metadata import StatisticsMetadata, describe_plan
from posbias.io.stores.store import Statistics, checked, merge_metadata


def count_sides(
    sides: Sequence[tuple[str, Sequence[Statistics]]], engine: Engine, progress: Progress
) -> SufficientStatistics:
    """Statistics with a context `CURVE` that names the side; what stands on both sides counts on both.

    Args:
        sides: each with its name, and the statistics that add up to it.
        engine: where it is counted.
        progress: where that is reported.

    Raises:
        StatisticsError: they do not count the same, are damaged, or were replaced meanwhile.
    """
    with ExitStack() as checks:
        for _, statistics in sides:
            checks.enter_context(checked(statistics, check_contents, engine.each))
        merged = [_merged(statistics) for _, statistics in sides]
        _check_same(sides)
        plan = replace(merged[0].plan, period=coarsest([metadata.plan.period for metadata in merged]))
        wanted = replace(plan, context=(*plan.context, CURVE))
        frames = [frame for name, statistics in sides for frame in _frames(statistics, plan, pl.lit(name), wanted)]
        return compress_parts(engine.add_up(frames, wanted), wanted, engine, progress)


def count_days(statistics: Sequence[Statistics], engine: Engine, progress: Progress) -> SufficientStatistics:
    """Statistics with the day as a context `CURVE`.

    Raises:
        StatisticsError: they know no days, do not count the same, are damaged, or were replaced meanwhile.
    """
    with checked(statistics, check_contents, engine.each):
        plan = _merged(statistics).plan
        if not plan.period:
            raise StatisticsError(
                f"--by day: {statistics[0].path} does not know days. Collect the logs again with --date or --timestamp."
            )
        finer = None if plan.period == "day" else plan.period
        wanted = replace(plan, context=(*plan.context, CURVE), period=finer)
        frames = _frames(statistics, plan, pl.col(PERIOD).cast(pl.Date), wanted)
        return compress_parts(engine.add_up(frames, wanted), wanted, engine, progress)


def _frames(
    statistics: Sequence[Statistics], plan: StatisticsPlan, curve: pl.Expr, wanted: StatisticsPlan
) -> list[pl.LazyFrame]:
    """Statistics with the name of a curve."""
    return [
        frame.with_columns(curve.alias(CURVE)).select(wanted.columns)
        for entry in statistics
        for segment in entry.segments
        for frame in entry.scan(segment, plan)
    ]


def _merged(statistics: Sequence[Statistics]) -> StatisticsMetadata:
    metadata = merge_metadata(statistics)
    if metadata.decay is not None:
        raise StatisticsError(
            f"{statistics[0].path} has decayed, so that its counts are worth less than they say. Compare statistics "
            "that have not, or fits."
        )
    return metadata


def _check_same(sides: Sequence[tuple[str, Sequence[Statistics]]]) -> None:
    """See that all sides count the same things, in the same words.

    Raises:
        StatisticsError: they do not.
    """
    (_, (first, *_)), *others = sides
    ours = describe_plan(first.metadata.plan)
    for _, (other, *_) in others:
        theirs = describe_plan(other.metadata.plan)
        theirs["period"] = ours["period"]  # the coarser one is kept
        apart = [f"{name} {ours.get(name)} and {theirs.get(name)}" for name in ours | theirs]
        apart = [said for said, name in zip(apart, ours | theirs, strict=True) if ours.get(name) != theirs.get(name)]
        types = first.key_types, other.key_types
        apart += [
            f"{name} holds {kind} and {types[1].get(name)}"
            for name, kind in types[0].items()
            if name != PERIOD and kind != types[1].get(name)
        ]
        if apart:
            raise StatisticsError(
                f"{first.path} and {other.path} do not count the same: {'; '.join(apart)}. "
                "Collect them with the same options, or compare fits."
            )
