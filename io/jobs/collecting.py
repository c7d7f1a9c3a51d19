"""`collect`: count logs, add and remove days, merge statistics, and report odd days."""

from collections.abc import Sequence
from math import inf
from pathlib import Path

from msgspec import UNSET, structs

from posbias.core.check import LogFacts
from posbias.core.counts.odd_days import Change, DayReport, LackingDays, positions_in_words
from posbias.core.errors import StatisticsError, UsageError, plural
from posbias.io.counting import profile
from posbias.io.counting.count import PartsWithFacts, days_of_statistics, order_within, read_log, totals_of_pages
from posbias.io.counting.merge import known_days, merge_statistics
from posbias.io.engines.engine import Engine, ReadLog
from posbias.io.jobs import tables
from posbias.io.jobs.fit import Job, describe_reading, lost_click_reasons
from posbias.io.jobs.tables import Result
from posbias.io.log.click_log import Log
from posbias.io.log.clicks import JoinedClicks
from posbias.io.log.faults import faults_in
from posbias.io.log.times import Days, reasons_against_day
from posbias.io.places.locations import location
from posbias.io.places.ownership import owned_directory
from posbias.io.results.conclusions import Reason, reason
from posbias.io.stores.metadata import OrderTotals, StatisticsMetadata
from posbias.io.stores.store import (
    Statistics,
    check_new_day,
    check_same_plan,
    counted_statistics,
    describe_statistics,
    merge_metadata,
    without_day,
    write_segment,
)

_MOST_DAYS = 5
_OF_STORE = "the store:"


def _odd_day_reasons(
    looks: Sequence[DayReport], others: str, lost: LackingDays | None = None, log: Log | None = None
) -> list[Reason]:
    """Reasons on odd days: one for each of the first five, one for the rest, and those on further lost clicks.

    Args:
        looks: reports of days, each compared with the others.
        others: noun of the others, in the plural.
        lost: days that lack clicks.
        log: the counted log; None for statistics.
    """
    odd = [look for look in looks if look.is_odd]
    reasons: list[Reason] = []
    for look in odd[:_MOST_DAYS]:
        facts = _misfits_in_words(look)
        if look.far and not look.without_clicks:
            further = len(look.far) - 1
            verb = "is" if further == 1 else "are"
            also = f", and {plural(further, 'further positions')} {verb} far off as well" if further else ""
            facts.append(f"{_change_in_words(look.far[0])}{also}")
        figures = {"day": str(look.day)} | ({"change": look.far[0].relative} if look.far else {})
        reasons.append(reason("odd-day", figures, others=others, facts="; ".join(facts)))
    if len(odd) > _MOST_DAYS:
        rest = [look.day for look in odd[_MOST_DAYS:]]
        reasons.append(reason("odd-day.others", {"days": len(rest)}, others=others, first=rest[0], last=rest[-1]))
    if lost is not None and not {look.day for look in odd}.issuperset(lost.days):
        reasons += faults_in(profile.profile_of_days(lost, log))
    return reasons


def _check_gate(looks: Sequence[DayReport], limit: float, others: str, lost: LackingDays | None) -> None:
    """Raise StatisticsError for days that are incomparable, lack clicks, or change a click rate beyond the limit."""
    reasons: dict[str, str] = {}
    for look in looks:
        change = look.beyond(limit)
        if look.misplaced or look.without_clicks:
            reasons[look.day] = "; ".join(_misfits_in_words(look))
        elif lost is not None and look.day in lost.days:
            reasons[look.day] = "clicks are missing"
        elif change is not None:
            reasons[look.day] = f"{_change_in_words(change)}, more than {100 * limit:g} %"
    if reasons:
        (day, reason), *rest = reasons.items()
        also = f" So are {', '.join(other for other, _ in rest[:_MOST_DAYS])}." if rest else ""
        raise StatisticsError(
            f"{day} is kept out by --gate {limit:g}, and nothing is written: beside the {others}, {reason}.{also} Look "
            "at its log. If it is right, merge it without --gate."
        )


def _change_in_words(change: Change) -> str:
    """Describe the change of the click rate of a position."""
    rate, usual = (f"{100 * share:.3g} %" for share in (change.rate, change.usual))
    return (
        f"the click rate of position {change.position} is {rate}, and theirs {usual} ({100 * change.relative:+.0f} %)"
    )


def _misfits_in_words(look: DayReport) -> list[str]:
    """Describe shifted, missing or new positions, and missing clicks."""
    facts: list[str] = []
    ours, theirs = look.positions, look.usual_positions
    if look.misplaced and (ours is None or theirs is None or ours[0] == theirs[0]):
        if look.gone:
            facts.append(f"it has hardly anything at {positions_in_words(look.gone)}, where they have")
        if look.new:
            facts.append(f"it has impressions at {positions_in_words(look.new)}, where they have hardly any")
    elif look.misplaced and ours is not None and theirs is not None:
        shifted = ours[1] - theirs[1] == ours[0] - theirs[0]
        why = ", as if they were shifted or counted from another base" if shifted else ""
        facts.append(f"its positions go from {ours[0]} to {ours[1]}, and theirs from {theirs[0]} to {theirs[1]}{why}")
    if look.without_clicks:
        facts.append(f"it has no clicks, where about {look.expected_clicks:,.0f} are to be expected")
    return facts


def check_gate(limit: float | None) -> None:
    """Raise UsageError unless --gate, the largest relative change of a click rate, is positive and finite."""
    if limit is not None and not 0 < limit < inf:
        raise UsageError(f"--gate {limit:g}: give a relative change above 0, e.g. 0.5 for 50 %.")


def collect_log(job: Job, engine: Engine, result: Result) -> None:
    """Count a log into statistics, which are the result."""
    read, facts, statistics = _counted(job, job.open_log(result), result.folder, engine, result)
    result.content |= describe_statistics(statistics.metadata, statistics.segments)
    describe_reading(result, read.rows, read.clicks, read.days, read.notes)
    if read.plan.period:
        looks, lost = profile.compare_days_of_log(statistics.segments[0], engine)
        odd = _odd_day_reasons(looks, "other days", lost, read.log)
    else:
        odd = _odd_day_reasons(profile.compare_files(read.log, engine), "other files")
    result.reasons += odd
    result.faults += profile.faults_of_log(read, facts, read.plan, None, *(reason.code for reason in odd))
    _conclude(result)


def add_day(
    job: Job, day: str, store: Statistics | None, limit: float | None, engine: Engine, result: Result, *, replaces: bool
) -> None:
    """Count the log of a day; the result is the store with this counting of the day.

    Raises:
        StatisticsError: the day was counted from other logs and `replaces` is false, or together with other days; its
            plan differs from that of the store; or --gate refuses it.
    """
    log = job.open_log(result)
    rest = None if store is None else without_day(store, day)
    if store is not None:
        check_new_day(store, day, log.digests, replaces=replaces)
    with owned_directory(result.folder.parent) as folder:
        read, facts, statistics = _counted(job, log, folder, engine, result)
        if store is not None:
            check_same_plan(store, statistics)
        what = "added" if store is None or day not in store.days else "counted again, and replaced"
        result.facts += [f"{day}: {what}", *tables.rows_lines(read.rows), *read.notes, _OF_STORE]
        both = [statistics] if rest is None else [rest, statistics]
        odd = merge_stores(both, rest, limit, engine, result, clicks=read.clicks)
        if rest is not None:
            result.reasons += lost_click_reasons(read.rows, read.clicks, f"{day}: ")
        result.faults += profile.faults_of_log(read, facts, read.plan, None, *(reason.code for reason in odd))


def remove_day(day: str, store: Statistics, engine: Engine, result: Result) -> None:
    """Remove a day; the result is the store without it. A missing day is a reason, not an error.

    Raises:
        StatisticsError: it is the only day, or was counted together with other days.
    """
    rest = without_day(store, day)
    if rest is None:
        raise StatisticsError(f"{store.path}: holds no other day than {day}. Remove the directory itself.")
    if day in store.days:
        result.facts.append(f"{day}: removed")
    else:
        result.reasons.append(reason("day-not-there", {"day": day}, store=store.path))
    result.facts.append(_OF_STORE)
    _write_merged([rest], None, engine, result, None)


def merge_stores(
    statistics: Sequence[Statistics],
    store: Statistics | None,
    limit: float | None,
    engine: Engine,
    result: Result,
    factor: float | None = None,
    clicks: JoinedClicks | None = None,
) -> list[Reason]:
    """Merge statistics into the result; return the reasons on odd days.

    Args:
        statistics: directories to merge.
        store: the directory that days are added to, if one of them is a store.
        limit: of --gate.
        engine: sums counts.
        result: receives the statistics.
        factor: weight of a day relative to the next one.
        clicks: outcomes of clicks of a log that was just counted.

    Raises:
        StatisticsError: plans differ, sources overlap, or --gate refuses a day.
    """
    days = _write_merged(statistics, factor, engine, result, clicks)
    with result.progress.stage("comparing days"):
        looks, lost = profile.compare_merged_days(statistics, store, engine)
    others = "other statistics" if days is None else "other days" if store is None else "days of the store"
    if limit is not None:
        _check_gate(looks, limit, others, lost)
    twice = [reason("days-twice", statistics=entry.path) for entry in known_days(statistics)]
    odd = _odd_day_reasons(looks, others, lost)
    result.reasons += [*odd, *twice]
    return odd


def _write_merged(
    statistics: Sequence[Statistics], factor: float | None, engine: Engine, result: Result, clicks: JoinedClicks | None
) -> Days | None:
    """Write the merged statistics and describe them; return their days."""
    days = days_of_statistics(statistics)
    metadata = merge_metadata(statistics, factor, None if days is None else days.newest)
    with result.progress.stage("merging") as stage:
        segments = merge_statistics(statistics, metadata, result.folder, engine, on_part=stage.advance)
    result.content |= describe_statistics(metadata, segments)
    describe_reading(result, metadata.rows, clicks, days)
    _conclude(result)
    return days


def _counted(
    job: Job, log: Log, folder: Path, engine: Engine, result: Result
) -> tuple[ReadLog, LogFacts | None, Statistics]:
    """Count a log into a directory; return the read log, its facts, and the statistics."""
    read = read_log(log, job.plan, engine, result.progress)
    result.reasons += reasons_against_day(read.log)
    metadata = StatisticsMetadata(read.plan, read.sources, read.rows)
    parts = PartsWithFacts(read.statistics(read.plan))
    with result.progress.stage("counting", parts.number) as stage:
        segment = write_segment(parts, folder, metadata, on_part=stage.advance)
    order = order_within(read, read.plan)
    segment = structs.replace(
        segment,
        pages=totals_of_pages(read, read.plan) or UNSET,
        order=UNSET if order is None else OrderTotals.of(order),
    )
    return read, parts.facts, counted_statistics(location(job.inputs[0]), metadata, segment)


def _conclude(result: Result) -> None:
    """Set headline, next step and facts from the totals of the statistics."""
    totals = result.content["statistics"]
    impressions, clicks = (plural(totals[name], name) for name in ("impressions", "clicks"))
    result.headline = f"{impressions} and {clicks} are counted"
    result.next = f"posbias fit {result.target} -o fit"
    result.facts.append(f"statistics: {plural(totals['rows'], 'rows')}")
