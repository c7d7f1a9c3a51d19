"""Logs and statistics counted for `collect`, and days that do not look like the others."""

from collections.abc import Sequence
from pathlib import Path

from posbias.core.counts.odd_days import Change, DayLook
from posbias.core.errors import StatisticsError
from posbias.core.log.pages import ShiftedPages
from posbias.core.wording import counted
from posbias.io import clock
from posbias.io.counting.count import Reading, days_of_statistics, read_log
from posbias.io.counting.merge import known_days, merge_statistics
from posbias.io.counting.odd_days import look_at_days_of_log, look_at_files, look_at_merged_days, look_at_pages
from posbias.io.engines.engine import Engine
from posbias.io.jobs import tables as summary
from posbias.io.jobs.reading import Job, describe_reading, judge_clicks, open_log
from posbias.io.jobs.result import WITH_DOUBTS, Result
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

_MOST_DAYS = 5
_MOST_POSITIONS = 5


def odd_day_warnings(looks: Sequence[DayLook], others: str) -> list[str]:
    """A sentence for each odd day; beyond a few, their names.

    Args:
        looks: days beside others.
        others: what these are called, in the plural.
    """
    odd = [look for look in looks if look.is_odd]
    said = [
        f"{look.day} does not look like the {others}: {'; '.join(_facts(look))}. Look at its rows."
        for look in odd[:_MOST_DAYS]
    ]
    if len(odd) > _MOST_DAYS:
        rest = [look.day for look in odd[_MOST_DAYS:]]
        said.append(f"{len(rest)} more do not look like the {others}, {rest[0]} to {rest[-1]}.")
    return said


def shifted_pages_warning(found: ShiftedPages) -> str:
    """What is said of pages that count from another base."""
    (first, last), usual = found.span, found.usual
    return (
        f"{found.pages:,} of {counted(found.of, 'pages')} that were looked at go from position {first} to {last}, and "
        f"most from {usual[0]} to {usual[1]}, as if a part of the log counted from another base. Find out where these "
        "pages come from."
    )


def why_kept_out(looks: Sequence[DayLook], limit: float, others: str) -> str | None:
    """Why days are not let into a store, in words; None where all are."""
    reasons = {look.day: reason for look in looks if (reason := _reason(look, limit))}
    if not reasons:
        return None
    day, reason = next(iter(reasons.items()))
    also = f" So are {', '.join(list(reasons)[1:][:_MOST_DAYS])}." if len(reasons) > 1 else ""
    return (
        f"{day} is kept out by --gate {limit:g}, and nothing is written: beside the {others}, {reason}.{also} Look at "
        "its log. If it is right, merge it without --gate."
    )


def _reason(look: DayLook, limit: float) -> str | None:
    """What keeps a day out: what cannot be compared, or a click rate that has changed too much."""
    if look.misplaced or look.without_clicks:
        return "; ".join([*_misplaced(look), *_without_clicks(look)])
    change = look.beyond(limit)
    return None if change is None else f"{_changed(change)}, more than {100 * limit:g} %"


def _facts(look: DayLook) -> list[str]:
    facts = [*_misplaced(look), *_without_clicks(look)]
    if look.far and not look.without_clicks:
        further = len(look.far) - 1
        also = f", and {counted(further, 'further positions')} {_is_or_are(further)} far off as well" if further else ""
        facts.append(f"{_changed(look.far[0])}{also}")
    return facts


def _is_or_are(number: int) -> str:
    return "is" if number == 1 else "are"


def _changed(change: Change) -> str:
    return (
        f"the click rate of position {change.position} is {_percent(change.rate)}, and theirs "
        f"{_percent(change.usual)} ({100 * change.relative:+.0f} %)"
    )


def _percent(rate: float) -> str:
    return f"{100 * rate:.3g} %"


def _without_clicks(look: DayLook) -> list[str]:
    if not look.without_clicks:
        return []
    return [f"it has no clicks, where about {look.expected_clicks:,.0f} are to be expected"]


def _misplaced(look: DayLook) -> list[str]:
    """How positions differ: all of them shifted, or where they start, or which are gone or new."""
    if not look.misplaced:
        return []
    ours, theirs = look.positions, look.usual_positions
    if ours is None or theirs is None or ours[0] == theirs[0]:
        gone = [f"it has hardly anything at {_listed(look.gone)}, where they have"] if look.gone else []
        new = [f"it has impressions at {_listed(look.new)}, where they have hardly any"] if look.new else []
        return gone + new
    shifted = ours[1] - theirs[1] == ours[0] - theirs[0]
    why = ", as if they were shifted or counted from another base" if shifted else ""
    return [f"its positions go from {ours[0]} to {ours[1]}, and theirs from {theirs[0]} to {theirs[1]}{why}"]


def _listed(positions: Sequence[int]) -> str:
    if len(positions) == 1:
        return f"position {positions[0]}"
    more = f" and {len(positions) - _MOST_POSITIONS} more" if len(positions) > _MOST_POSITIONS else ""
    return f"positions {', '.join(map(str, positions[:_MOST_POSITIONS]))}{more}"


_OF_STORE = "the store:"


def count(job: Job, engine: Engine, result: Result) -> None:
    """Count a log; the statistics are the result."""
    found, statistics = _counted(job, open_log(job, result), result.folder, engine, result)
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
    log = open_log(job, result)
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
            judge_clicks(found.rows, found.clicks, result, f"{day}: ")
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
    said: tuple[str, ...],
    result: Result,
    clicks: JoinedClicks | None = None,
) -> None:
    describe_reading(metadata.rows, clicks, days, said, result)
