"""Counting a log into statistics, merging statistics, and changing a day of a store, with what is said of each."""

from collections.abc import Sequence
from pathlib import Path

from posbias.cli.report import summary
from posbias.cli.report.odd_days import odd_day_warnings, shifted_pages_warning, why_kept_out
from posbias.cli.report.result import WITH_DOUBTS, Result
from posbias.cli.work import steps
from posbias.cli.work.job import Job
from posbias.core.errors import StatisticsError
from posbias.io import clock
from posbias.io.counting.count import Reading, days_of_statistics, read_log
from posbias.io.counting.merge import known_days, merge_statistics
from posbias.io.counting.odd_days import look_at_days_of_log, look_at_files, look_at_merged_days, look_at_pages
from posbias.io.engines.engine import Engine
from posbias.io.log.days import Days
from posbias.io.log.log import Log
from posbias.io.log.lost_clicks import JoinedClicks
from posbias.io.places.locations import location
from posbias.io.stores.days import check_new_day, without_day
from posbias.io.stores.metadata import StatisticsMetadata
from posbias.io.stores.segments import write_segment
from posbias.io.stores.store import (
    Statistics,
    check_same_plan,
    counted_statistics,
    describe_statistics,
    merge_metadata,
)
from posbias.io.temporary.directories import owned_directory

_OF_STORE = "the store:"


def count(job: Job, engine: Engine, result: Result) -> None:
    """Count a log; the statistics are the result."""
    found, statistics = _counted(job, steps.open_log(job, result), result.folder, engine, result)
    result.content |= describe_statistics(statistics.metadata, statistics.segments)
    _describe(statistics.metadata, found.days, found.said, result, found.clicks)
    if found.plan.period:
        odd = odd_day_warnings(look_at_days_of_log(statistics.segments[0], engine), "other days")
    else:
        odd = odd_day_warnings(look_at_files(found.read.log, engine), "other files")
    _warn(odd or _shifted_pages(found), result)


def merge(
    statistics: Sequence[Statistics],
    store: Statistics | None,
    limit: float | None,
    engine: Engine,
    result: Result,
    factor: float | None = None,
    clicks: JoinedClicks | None = None,
) -> bool:
    """Merge statistics; together they are the result. Return whether days are odd.

    Args:
        statistics: what is merged.
        store: the one of them that the others are added to, if there is one.
        limit: of `--gate`.
        engine: adds up.
        result: what is written.
        factor: what a day is to be worth of the following one.
        clicks: those of a log that was counted now.

    Raises:
        StatisticsError: they do not go together, or a day is kept out.
    """
    days = _write_together(statistics, factor, engine, result, clicks)
    with result.progress.stage("comparing days"):
        looks = look_at_merged_days(statistics, store, engine)
    others = "other statistics" if days is None else "other days" if store is None else "days of the store"
    refusal = None if limit is None else why_kept_out(looks, limit, others)
    if refusal is not None:
        raise StatisticsError(refusal)
    odd = odd_day_warnings(looks, others)
    _warn(odd, result)
    result.warnings += [
        f"{entry.path}: its days are also in the other statistics. If a log was exported again, its clicks count twice."
        for entry in known_days(statistics)
    ]
    return bool(odd)


def add_day(
    job: Job, day: str, store: Statistics | None, limit: float | None, engine: Engine, result: Result, *, replaces: bool
) -> None:
    """Count the log of a day; the result is the store with it, and without what it held of that day before.

    Raises:
        StatisticsError: the day is there from other logs, and `replaces` is not given; or it cannot be replaced, does
            not go with the store, or is kept out.
    """
    log = steps.open_log(job, result)
    rest = None if store is None else without_day(store, day)
    if store is not None:
        check_new_day(store, day, log.digests, replaces=replaces)
    with owned_directory(result.folder.parent) as folder:
        found, counted = _counted(job, log, folder, engine, result)
        if store is not None:
            check_same_plan(store, counted)
        what = "added" if store is None or day not in store.days else "counted again, and replaced"
        result.printed += [f"{day}: {what}", *summary.rows_lines(found.rows), *found.said, _OF_STORE]
        odd = merge([counted] if rest is None else [rest, counted], rest, limit, engine, result, clicks=found.clicks)
        if rest is not None:
            steps.judge_clicks(found.rows, found.clicks, result, f"{day}: ")
    _warn([] if odd else _shifted_pages(found), result)


def remove_day(day: str, store: Statistics, engine: Engine, result: Result) -> None:
    """The result is the store without a day. One that is not there may have been removed before.

    Raises:
        StatisticsError: it is the only day, or was counted together with others.
    """
    rest = without_day(store, day)
    if rest is None:
        raise StatisticsError(f"{store.path}: holds no other day than {day}. Remove the directory itself.")
    if day in store.days:
        result.printed.append(f"{day}: removed")
    else:
        result.warnings.append(f"{store.path}: holds no {day}, and stays as it is.")
    result.printed.append(_OF_STORE)
    _write_together([rest], None, engine, result)


def _write_together(
    statistics: Sequence[Statistics],
    factor: float | None,
    engine: Engine,
    result: Result,
    clicks: JoinedClicks | None = None,
) -> Days | None:
    """Write what statistics hold together, and describe it; return its days."""
    days = days_of_statistics(statistics, clock.today())
    metadata = merge_metadata(statistics, factor, None if days is None else days.newest)
    with result.progress.stage("merging") as stage:
        segments = merge_statistics(statistics, metadata, result.folder, engine, on_part=stage.advance)
    result.content |= describe_statistics(metadata, segments)
    _describe(metadata, days, (), result, clicks)
    return days


def _counted(job: Job, log: Log, folder: Path, engine: Engine, result: Result) -> tuple[Reading, Statistics]:
    """Count a log into a directory."""
    found = read_log(log, job.plan, engine, result.progress, clock.today())
    metadata = StatisticsMetadata(found.plan, found.sources, found.rows)
    parts = found.read.statistics(found.plan)
    with result.progress.stage("counting", parts.number) as stage:
        segment = write_segment(parts, folder, metadata, on_part=stage.advance)
    return found, counted_statistics(location(job.inputs[0]), metadata, segment)


def _shifted_pages(found: Reading) -> list[str]:
    shifted = look_at_pages(found.read)
    return [] if shifted is None else [shifted_pages_warning(shifted)]


def _warn(said: Sequence[str], result: Result) -> None:
    """Say what is odd, if anything is; then the result is not to be taken at face value."""
    result.warnings += said
    if said:
        result.exit_code = WITH_DOUBTS


def _describe(
    metadata: StatisticsMetadata,
    days: Days | None,
    said: Sequence[str],
    result: Result,
    clicks: JoinedClicks | None = None,
) -> None:
    steps.describe_rows(metadata.rows, clicks, result)
    steps.describe_reading(days, said, result)
