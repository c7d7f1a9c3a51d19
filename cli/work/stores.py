"""`collect`: write statistics, merge them, change a day of a store, describe statistics."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import msgspec
from msgspec import UNSET
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table

from posbias.cli.options.groups import CountingOptions, LogOptions, ResultOptions, StoreOptions
from posbias.cli.options.option import plain_options
from posbias.cli.report.printing import line, print_on_stdout
from posbias.cli.report.result import write_result
from posbias.cli.work.execution import dry_run, open_engine
from posbias.cli.work.requests import check_day, resolve
from posbias.core.errors import OutputError, StatisticsError, UsageError, plural
from posbias.io.jobs import collecting, tables
from posbias.io.jobs.fit import Job
from posbias.io.jobs.tables import DONE, Result
from posbias.io.log.sources import named_paths
from posbias.io.places.locations import Location, is_same
from posbias.io.stores.metadata import describe_plan
from posbias.io.stores.store import Statistics, check_new_day, checked, find_statistics, one_by_one, open_store

_MOST_DAYS = 3
_KIBIBYTE = 1024


def show_info(inputs: Sequence[str], *, as_json: bool) -> int:
    """Print a description of each directory of statistics; return the exit code.

    Raises:
        UsageError: the inputs are not statistics.
        StatisticsError: statistics are damaged.
        OutputError: stdout cannot be written.
    """
    statistics = find_statistics(inputs)
    if not statistics:
        raise UsageError(f"--info: {inputs[0]} holds no statistics. Give directories written by `posbias collect`.")
    with checked(statistics, one_by_one):
        pass
    described = [
        {
            "path": str(entry.path),
            "counted": describe_plan(entry.metadata.plan),
            "key_types": entry.key_types,
            "decay": msgspec.to_builtins(entry.metadata.decay),
            "days": entry.days,
            "segments": len(entry.segments),
            "parts": len(entry.parts),
            "bytes": _bytes(entry),
            "sources": entry.metadata.sources,
            "rows": msgspec.to_builtins(entry.metadata.rows),
            "statistics": entry.totals,
        }
        for entry in statistics
    ]
    print_on_stdout(map(_table, statistics), described if as_json else None, width_in_a_file=80)
    return DONE


def _table(entry: Statistics) -> RenderableType:
    plan, decay, totals, rows = entry.metadata.plan, entry.metadata.decay, entry.totals, entry.metadata.rows
    shape = {
        "max position": str(plan.max_position or ""),
        "bins from": ", ".join(map(str, plan.position_bins)),
        "cell": ", ".join(plan.cell),
        "context": ", ".join(plan.context),
        "strata": ", ".join(plan.strata),
        "clusters": ", ".join(plan.clusters),
        "arms": ", ".join(plan.arms),
        "randomized": ", ".join(map(str, plan.randomized)),
        "counts": "sums of weights" if plan.weighted else "",
        "decay": "" if decay is None else f"{decay.factor:g} per day; {decay.newest} has full weight",
    }
    size, units = float(_bytes(entry)), ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while size >= _KIBIBYTE and len(units) > 1:
        size, units = size / _KIBIBYTE, units[1:]
    in_words = f"{size:,.{0 if units[0] == 'bytes' else 1}f} {units[0]}"
    lines = {
        "model": plan.model.name,
        "keys": ", ".join(f"{name} ({entry.key_types[name]})" for name in plan.keys),
        **{name: words for name, words in shape.items() if words},
        "days": _days(entry),
        "sources": f"{len(entry.metadata.sources):,}",
        "rows": tables.rows_in_words(rows),
        **({} if rows.clicks is UNSET else {"clicks joined": tables.clicks_in_words(rows.clicks)}),
        "counted": f"{plural(totals['impressions'], 'impressions')}, {plural(totals['clicks'], 'clicks')}",
        "statistics": (
            f"{plural(totals['rows'], 'rows')}, {in_words} in {plural(len(entry.parts), 'parts')} of "
            f"{plural(len(entry.segments), 'segments')}"
        ),
    }
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, words in lines.items():
        table.add_row(name, line(words))
    return Group(line(str(entry.path)), Padding(table, (0, 0, 1, 2), expand=False))


def _days(entry: Statistics) -> str:
    days = entry.days
    if not days:
        return "not kept" if not entry.metadata.plan.period else "none"
    first, last = date.fromisoformat(days[0]), date.fromisoformat(days[-1])
    calendar = (first + timedelta(days=number) for number in range((last - first).days))
    missing = sorted({day.isoformat() for day in calendar} - set(days))
    days_in_words = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}, {len(days):,} days"
    if missing:
        more = f" and {len(missing) - _MOST_DAYS:,} more" if len(missing) > _MOST_DAYS else ""
        days_in_words += f"; missing {', '.join(missing[:_MOST_DAYS])}{more}"
    return days_in_words


def _bytes(entry: Statistics) -> int:
    return sum(part.bytes for part in entry.parts)


def count_or_merge(
    inputs: Sequence[str],
    log: LogOptions,
    counting: CountingOptions,
    decay: float | None,
    gate: float | None,
    target: Location | None,
    output: ResultOptions,
) -> int:
    """Count a log, or merge statistics; return the exit code.

    Raises:
        UsageError: -o is missing.
    """
    collecting.check_gate(gate)
    if target is None:
        raise UsageError(
            "-o DIR is missing: say where to write the statistics, or --into STORE for a day of a store. (To "
            "describe existing ones, use --info.)"
        )
    also_read = log.clicks or ()

    def resolve_job() -> Job:
        """Check that the result may be written to the target, and return the job."""
        statistics = find_statistics(inputs)
        # The result may replace statistics that it contains in full: not logs, and not counts that decay in it.
        contained = [entry.path for entry in statistics if decay is None or entry.metadata.decay is not None]
        is_input = any(is_same(path, target) for name in inputs for path in named_paths(name))
        if is_input and not any(is_same(path, target) for path in contained):
            raise OutputError(f"{target}: is an input, which --force would delete. Choose another directory.")
        if not statistics:
            _refuse_decay(decay)
        return resolve(inputs, log, counting, statistics, decay=decay, detect_timestamp=counting.period != "none")

    if output.dry_run:
        return dry_run("collect", resolve_job(), log, target, output, also_read, replaces_input=True)

    def work(result: Result) -> None:
        job = resolve_job()  # the target is locked by now, so that no other run changes it
        with open_engine(log, target, result.facts) as engine:
            if job.statistics:
                merged_into = next((entry for entry in job.statistics if is_same(entry.path, target)), None)
                collecting.merge_stores(job.statistics, merged_into, gate, engine, result, job.decay)
            else:
                collecting.collect_log(job, engine, result)

    options = plain_options(log, counting, decay=decay, gate=gate)
    return write_result("collect", inputs, target, output, options, work, also_read, replaces_input=True)


def add_day(
    inputs: Sequence[str],
    log: LogOptions,
    counting: CountingOptions,
    decay: float | None,
    gate: float | None,
    store: StoreOptions,
    output: ResultOptions,
) -> int:
    """Add the counts of a day to a store, which is created if it does not exist; return the exit code.

    Raises:
        UsageError: the inputs are statistics, or --date is missing.
    """
    collecting.check_gate(gate)
    _refuse_decay(decay)
    job, place, also_read = resolve(inputs, log, counting), _store_path(store), log.clicks or ()
    if job.log is None:
        raise UsageError(
            f"--into {place}: {job.inputs[0]} holds statistics, and what goes into a store this way are logs. Merge "
            f"statistics with -o {place} --force."
        )
    day = counting.date
    if day is None:
        raise UsageError(f"--into {place}: say of which day the log is: --date YYYY-MM-DD.")
    if output.dry_run:
        old = open_store(place)
        if old is not None:
            check_new_day(old, day, job.open_log().digests, replaces=store.replace_day)
        return dry_run("collect", job, log, place, replace(output, force=True), also_read)

    def work(old: Statistics | None, result: Result) -> None:
        with open_engine(log, place, result.facts) as engine:
            collecting.add_day(job, day, old, gate, engine, result, replaces=store.replace_day)

    options = plain_options(log, counting, gate=gate) | plain_options(store)
    return _change_store(place, output, inputs, options, work, also_read)


def remove_day(inputs: Sequence[str], day: str, store: StoreOptions, log: LogOptions, output: ResultOptions) -> int:
    """Remove a day from a store; return the exit code.

    Raises:
        UsageError: --into is missing, the day is not a day, or inputs are named.
    """
    place = _store_path(store)
    check_day("--remove-day", day)
    if inputs:
        raise UsageError(f"--remove-day {day}: counts nothing, so {inputs[0]} has no effect. Leave it out.")

    def work(old: Statistics | None, result: Result) -> None:
        if old is None:
            raise StatisticsError(f"{place}: there is no store. Name the directory that --into has made.")
        with open_engine(log, place, result.facts) as engine:
            collecting.remove_day(day, old, engine, result)

    return _change_store(place, output, (), plain_options(log, store), work, ())


def _change_store(
    place: Path,
    output: ResultOptions,
    inputs: Sequence[str],
    options: Mapping[str, object],
    work: Callable[[Statistics | None, Result], None],
    also_read: Sequence[str],
) -> int:
    """Write a result in place of a store; `work` receives the old statistics, read while the store is locked."""

    def change(result: Result) -> None:
        work(open_store(place), result)

    output = replace(output, force=True)
    try:
        return write_result("collect", inputs, place, output, options, change, also_read, waits=True)
    except OutputError:
        open_store(place)  # an error of the store itself is more precise
        raise


def _store_path(store: StoreOptions) -> Path:
    if store.into is None:
        raise UsageError("--into STORE is missing: say which store to change.")
    return store.into


def _refuse_decay(decay: float | None) -> None:
    if decay is not None:
        raise UsageError(f"--decay {decay:g}: logs are counted without decay. Use it to fit, or to merge statistics.")
