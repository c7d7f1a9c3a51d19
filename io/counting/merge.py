"""Merge statistics into one directory, at a cost proportional to the new rows rather than to all rows.

Segments are linked side by side. Rows of different days never have equal keys where the statistics keep the period, so
there the days of a month that is over are written once more, sorted together, and that is all. Elsewhere the same pair
has a row in every segment, and small segments are added up into larger ones now and then, so that neither their number
nor the repeated rows get out of hand.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import polars as pl
from msgspec import structs

from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.counts.sufficient_statistics import SufficientStatistics
from posbias.core.errors import StatisticsError
from posbias.core.fit.comparison import CURVE
from posbias.core.schema import PERIOD, coarsest
from posbias.io.counting.count import compress, have_distinct_days, have_distinct_keys, merged_parts
from posbias.io.engines.engine import Engine
from posbias.io.progress import Progress
from posbias.io.stores.metadata import Segment, StatisticsMetadata, same_totals
from posbias.io.stores.store import Statistics, checked, link_segment, merge_metadata, plan_differences, write_segment

_SMALL = 1 << 20
"""Rows of statistics that are added up in a moment, so that it need not be put off."""

_MONTH = len("2026-01")
"""Letters of a day that say its month."""

_WORTHWHILE = 3
"""A segment is written again only together with this many times as many rows of smaller ones."""


def merge_statistics(
    statistics: Sequence[Statistics],
    metadata: StatisticsMetadata,
    folder: Path,
    engine: Engine,
    on_part: Callable[[], None],
) -> list[Segment]:
    """Write the sum of several statistics; the result does not depend on the order of the inputs.

    Args:
        statistics: what is merged.
        metadata: what they hold together. Where it decays, all counts are written anew, as one segment.
        folder: where to.
        engine: adds up.
        on_part: called after each part that is written.

    Raises:
        StatisticsError: a part is damaged, or statistics were replaced meanwhile.
    """
    if metadata.decay is None:
        with checked(statistics, engine.each, "bytes"):
            return _side_by_side(statistics, metadata, folder, engine, on_part)
    with checked(statistics, engine.each):
        return [write_segment(merged_parts(statistics, metadata, engine), folder, metadata, on_part)]


def _side_by_side(
    statistics: Sequence[Statistics],
    metadata: StatisticsMetadata,
    folder: Path,
    engine: Engine,
    on_part: Callable[[], None],
) -> list[Segment]:
    """Link the files of segments; rewrite segments of one month together, and add up small segments with equal keys."""
    owned = [(entry, segment) for entry in statistics for segment in entry.segments]
    owned.sort(key=lambda both: (both[1].days, sorted(both[1].sources)))
    segments = [segment for _, segment in owned]
    finer = [segment for entry, segment in owned if entry.metadata.plan.period != metadata.plan.period]
    # Segments that may have equal keys are added up, all of them or as many as are worth it.
    equal = [] if len(segments) == 1 or (metadata.plan.period and have_distinct_days(segments)) else segments
    equal = equal if sum(map(_rows, equal)) <= _SMALL else worth_adding_up(equal)
    small = [*finer, *(segment for segment in equal if segment not in finer)]
    cut = [segment for entry in statistics for segment in entry.cut]
    months = have_distinct_keys(statistics, metadata.plan)  # then none are small
    alone = [[segment] for segment in segments if segment not in small]
    merged, n_parts = list[Segment](), 0
    for group in group_by_month(segments) if months else [*alone, *([small] if small else [])]:
        if len(group) == 1 and group[0] not in (*small, *cut):
            merged.append(link_segment(group[0], folder, n_parts))
        else:
            expected = Segment.of_countings([counting for segment in group for counting in segment.countings], ())
            described = replace(metadata, sources=expected.sources, rows=expected.rows)
            frames = [
                frame for entry, segment in owned if segment in group for frame in entry.scan(segment, metadata.plan)
            ]
            parts = engine.add_up(frames, metadata.plan, distinct=group is not small)
            written = write_segment(parts, folder, described, on_part, n_parts)
            counted, declared = (of.totals | {"rows": 0} for of in (written, expected))
            if written.days != expected.days or not same_totals(counted, declared):
                raise StatisticsError(
                    f"{group[0].parts[0].path.parent}: its counts differ from those in its manifest, or in that of "
                    "statistics merged with it. Collect these statistics again."
                )
            of = () if group is small else expected.of
            merged.append(structs.replace(written, pages=expected.pages, order=expected.order, of=of))
        n_parts += len(merged[-1].parts)
    return merged


def group_by_month(segments: Sequence[Segment]) -> list[list[Segment]]:
    """Group segments by month; segments of the newest month, or of several months, stay alone."""
    newest = max((day for segment in segments for day in segment.days), default="")
    groups = dict[str, list[Segment]]()
    for number, segment in enumerate(segments):
        months = {day[:_MONTH] for day in segment.days}
        month = months.pop() if len(months) == 1 else newest
        key = str(number) if newest.startswith(month) else month
        groups.setdefault(key, []).append(segment)
    return list(groups.values())


def known_days(statistics: Sequence[Statistics]) -> list[Statistics]:
    """Return statistics all of whose days occur in the others: parts of days, or repeated exports."""
    owners = Counter(day for entry in statistics for day in entry.days)
    return [entry for entry in statistics if entry.days and all(owners[day] > 1 for day in entry.days)]


def worth_adding_up(segments: Sequence[Segment]) -> list[Segment]:
    """Return the smallest segments, in ascending order, whose addition pays; may be empty.

    The last one taken is at most a third of the others together, so that whatever is written again ends up in a segment
    that counts four times as many rows, and no row is written more than log4(all rows) times. Of those left, each is
    more than a third of all smaller ones together, so that their number grows with the logarithm, too.
    """
    ascending = sorted(segments, key=_rows)
    before = [0, *accumulate(map(_rows, ascending))]
    worthwhile = [
        number
        for number, segment in enumerate(ascending, start=1)
        if number > 1 and _WORTHWHILE * _rows(segment) <= before[number - 1]
    ]
    return ascending[: max(worthwhile, default=0)]


def _rows(segment: Segment) -> int:
    return int(segment.totals["rows"])


def count_sides(
    sides: Sequence[tuple[str, Sequence[Statistics]]], engine: Engine, progress: Progress
) -> SufficientStatistics:
    """Add a context `CURVE` that names the side of a comparison; rows on both sides count twice.

    Args:
        sides: each with its name, and the statistics that add up to it.
        engine: where it is counted.
        progress: where that is reported.

    Raises:
        StatisticsError: they do not count the same, are damaged, or were replaced meanwhile.
    """
    with ExitStack() as checks:
        for _, statistics in sides:
            checks.enter_context(checked(statistics, engine.each))
        merged = [_merged(statistics) for _, statistics in sides]
        (_, (first, *_)), *others = sides
        for _, (other, *_) in others:
            apart = plan_differences(first, other, any_period=True) + [
                f"{name} holds {kind} and {other.key_types.get(name)}"
                for name, kind in first.key_types.items()
                if name != PERIOD and kind != other.key_types.get(name)
            ]
            if apart:
                raise StatisticsError(
                    f"{first.path} and {other.path} do not count the same: {'; '.join(apart)}. "
                    "Collect them with the same options, or compare fits."
                )
        plan = replace(merged[0].plan, period=coarsest([metadata.plan.period for metadata in merged]))
        by_curve = replace(plan, context=(*plan.context, CURVE))
        frames = [frame for name, statistics in sides for frame in _frames(statistics, plan, pl.lit(name), by_curve)]
        return compress(engine.add_up(frames, by_curve), by_curve, engine, progress)[0]


def count_days(statistics: Sequence[Statistics], engine: Engine, progress: Progress) -> SufficientStatistics:
    """Add the day as a context `CURVE`.

    Raises:
        StatisticsError: they know no days, do not count the same, are damaged, or were replaced meanwhile.
    """
    with checked(statistics, engine.each):
        plan = _merged(statistics).plan
        if not plan.period:
            raise StatisticsError(
                f"--by day: {statistics[0].path} does not know days. Collect the logs again with --date or --timestamp."
            )
        finer = None if plan.period == "day" else plan.period
        by_curve = replace(plan, context=(*plan.context, CURVE), period=finer)
        frames = _frames(statistics, plan, pl.col(PERIOD).cast(pl.Date), by_curve)
        return compress(engine.add_up(frames, by_curve), by_curve, engine, progress)[0]


def _frames(
    statistics: Sequence[Statistics], plan: StatisticsPlan, curve: pl.Expr, by_curve: StatisticsPlan
) -> list[pl.LazyFrame]:
    """Add the name of a curve as a column."""
    return [
        frame.with_columns(curve.alias(CURVE)).select(by_curve.columns)
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
