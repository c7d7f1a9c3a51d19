"""Merge statistics into one directory, at a cost proportional to the new rows rather than to all rows.

The files of a segment are hard-linked, not copied. If statistics have a period, rows of different days have different
keys: the days of a completed month are rewritten once, sorted together. Without a period, a pair has a row in every
segment: small segments are added up into larger ones, so that the number of segments grows only logarithmically.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import accumulate, count
from pathlib import Path

import polars as pl
from msgspec import structs

from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.counts.sufficient_statistics import SufficientStatistics
from posbias.core.errors import StatisticsError
from posbias.core.fit.comparison import CURVE
from posbias.core.schema import PERIOD, coarsest
from posbias.io.counting.count import compress_parts, have_distinct_days, have_distinct_keys, merged_parts
from posbias.io.engines.engine import Engine
from posbias.io.progress import Progress
from posbias.io.stores.metadata import Segment, StatisticsMetadata, same_totals
from posbias.io.stores.store import Statistics, checked, link_segment, merge_metadata, plan_differences, write_segment

_SMALL = 1 << 20
"""Rows of statistics up to which segments are always added up: it takes a moment."""

_MONTH = len("2026-01")
"""Characters of the month in a day."""

_WORTHWHILE = 3
"""Least number of rows of smaller segments, per row of a segment that is rewritten together with them."""


def merge_statistics(
    statistics: Sequence[Statistics],
    metadata: StatisticsMetadata,
    folder: Path,
    engine: Engine,
    on_part: Callable[[], None],
) -> list[Segment]:
    """Write the sum of several statistics; the result does not depend on the order of the inputs.

    Args:
        statistics: the statistics to merge.
        metadata: merged metadata; with a decay, all counts are rewritten, as one segment.
        folder: the new directory.
        engine: engine that adds up counts.
        on_part: called after each part that is written.

    Raises:
        StatisticsError: a part is damaged, or statistics were replaced meanwhile.
    """
    if metadata.decay is None:
        with checked(statistics, engine.each, "bytes"):
            return _link_or_rewrite(statistics, metadata, folder, engine, on_part)
    with checked(statistics, engine.each):
        return [write_segment(merged_parts(statistics, metadata, engine), folder, metadata, on_part)]


def _link_or_rewrite(
    statistics: Sequence[Statistics],
    metadata: StatisticsMetadata,
    folder: Path,
    engine: Engine,
    on_part: Callable[[], None],
) -> list[Segment]:
    """Link the files of segments; rewrite segments of one month together, and add up small segments with equal keys.

    Raises:
        StatisticsError: the counts of a segment differ from its manifest.
    """
    owned = [(entry, segment) for entry in statistics for segment in entry.segments]
    owned.sort(key=lambda entry_segment: (entry_segment[1].days, sorted(entry_segment[1].sources)))
    segments = [segment for _, segment in owned]
    finer = [segment for entry, segment in owned if entry.metadata.plan.period != metadata.plan.period]
    # Segments that may have equal keys: all are added up if they are small, else those for which it pays.
    equal = [] if len(segments) == 1 or (metadata.plan.period and have_distinct_days(segments)) else segments
    equal = equal if sum(map(_rows, equal)) <= _SMALL else worth_adding_up(equal)
    small = [*finer, *(segment for segment in equal if segment not in finer)]
    cut = [segment for entry in statistics for segment in entry.cut]
    groups = [*([segment] for segment in segments if segment not in small), *([small] if small else [])]
    if have_distinct_keys(statistics, metadata.plan):  # `small` is then empty
        groups = group_by_month(segments)
    merged, n_parts = list[Segment](), 0
    for group in groups:
        if len(group) == 1 and group[0] not in (*small, *cut):
            merged.append(link_segment(group[0], folder, n_parts))
        else:
            expected = Segment.join_countings([counting for segment in group for counting in segment.countings], ())
            described = replace(metadata, sources=expected.sources, rows=expected.rows)
            frames = [
                frame for entry, segment in owned if segment in group for frame in entry.scan(segment, metadata.plan)
            ]
            parts = engine.add_up(frames, metadata.plan, distinct=group is not small)
            written = write_segment(parts, folder, described, on_part, n_parts)
            counted, declared = (totals | {"rows": 0} for totals in (written.totals, expected.totals))
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
    """Return statistics all of whose days occur in other statistics: parts of days, or repeated exports."""
    owners = Counter(day for entry in statistics for day in entry.days)
    return [entry for entry in statistics if entry.days and all(owners[day] > 1 for day in entry.days)]


def worth_adding_up(segments: Sequence[Segment]) -> list[Segment]:
    """Return the smallest segments, in ascending order, whose addition pays; may be empty.

    The largest of them has at most a third of the rows of the others together: every rewritten row gets into a segment
    of at least four times as many rows, so that it is rewritten at most log4(all rows) times. Each segment that is left
    has more than a third of the rows of all smaller ones, so that their number is logarithmic, too.
    """
    ascending = sorted(segments, key=_rows)
    sizes = list(map(_rows, ascending))
    candidates = zip(count(2), accumulate(sizes), sizes[1:], strict=False)
    pays = [number for number, smaller, size in candidates if _WORTHWHILE * size <= smaller]
    return ascending[: max(pays, default=0)]


def _rows(segment: Segment) -> int:
    return int(segment.totals["rows"])


def count_sides(
    sides: Sequence[tuple[str, Sequence[Statistics]]], engine: Engine, progress: Progress
) -> SufficientStatistics:
    """Count statistics with a context `CURVE`, the side of a comparison; rows on both sides count twice.

    Args:
        sides: name and statistics of each side.
        engine: engine that adds up counts.
        progress: progress display.

    Raises:
        StatisticsError: the statistics do not count the same, have decayed, are damaged, or were replaced meanwhile.
    """
    with ExitStack() as checks:
        for _, statistics in sides:
            checks.enter_context(checked(statistics, engine.each))
        merged = [_merged(statistics) for _, statistics in sides]
        (_, (first, *_)), *others = sides
        for _, (other, *_) in others:
            differences = plan_differences(first, other, any_period=True) + [
                f"{name} holds {kind} and {other.key_types.get(name)}"
                for name, kind in first.key_types.items()
                if name != PERIOD and kind != other.key_types.get(name)
            ]
            if differences:
                raise StatisticsError(
                    f"{first.path} and {other.path} do not count the same: {'; '.join(differences)}. "
                    "Collect them with the same options, or compare fits."
                )
        plan = replace(merged[0].plan, period=coarsest([metadata.plan.period for metadata in merged]))
        by_curve = replace(plan, context=(*plan.context, CURVE))
        frames = [frame for name, statistics in sides for frame in _frames(statistics, plan, pl.lit(name), by_curve)]
        return compress_parts(engine.add_up(frames, by_curve), by_curve, engine, progress)[0]


def count_days(statistics: Sequence[Statistics], engine: Engine, progress: Progress) -> SufficientStatistics:
    """Count statistics with the day as a context `CURVE`.

    Raises:
        StatisticsError: the statistics have no days, do not match, have decayed, are damaged, or were replaced
            meanwhile.
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
        return compress_parts(engine.add_up(frames, by_curve), by_curve, engine, progress)[0]


def _frames(
    statistics: Sequence[Statistics], plan: StatisticsPlan, curve: pl.Expr, by_curve: StatisticsPlan
) -> list[pl.LazyFrame]:
    """Return the frames of all segments with a column `CURVE`, with the columns of the plan `by_curve`."""
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
