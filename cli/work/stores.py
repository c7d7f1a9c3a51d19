"""`collect`: statistics written, merged into a store, and described."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table

from posbias.cli.console import line
from posbias.cli.options.estimating import CountingOptions, DecayOptions, GateOptions, StoreOptions
from posbias.cli.options.log import ColumnOptions, ReadingOptions
from posbias.cli.options.output import OutputOptions, OutputOrInfoOptions
from posbias.cli.report.result import open_result
from posbias.cli.report.shown import print_on_stdout
from posbias.cli.work.checking import rehearse
from posbias.cli.work.requests import check_day, open_engine, resolve
from posbias.core.errors import OutputError, StatisticsError, UsageError, counted
from posbias.io.jobs import collecting, tables
from posbias.io.jobs.fit import Job
from posbias.io.jobs.tables import DONE, Result, is_same
from posbias.io.log.sources import named_paths
from posbias.io.stores.metadata import describe_decay, describe_plan
from posbias.io.stores.segments import check_contents, one_by_one
from posbias.io.stores.store import Statistics, check_new_day, checked, find_statistics, open_store

_MOST_DAYS = 3
_KIBIBYTE = 1024


def _show_info(statistics: Sequence[Statistics], inputs: Sequence[str], *, as_json: bool) -> None:
    """Print what each directory of statistics holds.

    Raises:
        UsageError: the inputs are no statistics.
        StatisticsError: they are damaged.
        OutputError: stdout cannot be written.
    """
    if not statistics:
        raise UsageError(f"--info: {inputs[0]} holds no statistics. Give directories written by `posbias collect`.")
    with checked(statistics, check_contents, one_by_one):
        pass
    described = [
        {
            "path": str(entry.path),
            "counted": describe_plan(entry.metadata.plan),
            "key_types": entry.key_types,
            "decay": describe_decay(entry.metadata.decay),
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


def _table(entry: Statistics) -> RenderableType:
    plan, decay, totals, rows = entry.metadata.plan, entry.metadata.decay, entry.totals, entry.metadata.rows
    shape = {
        "max position": str(plan.max_position or ""),
        "bins from": ", ".join(map(str, plan.position_bins)),
        "context": ", ".join(plan.context),
        "strata": ", ".join(plan.strata),
        "clusters": ", ".join(plan.clusters),
        "randomized": ", ".join(map(str, plan.randomized)),
        "counts": "sums of weights" if plan.weighted else "",
        "decay": "" if decay is None else f"{decay.factor:g} per day; {decay.newest} has full weight",
    }
    lines = {
        "model": plan.model.name,
        "keys": ", ".join(f"{name} ({entry.key_types[name]})" for name in plan.keys),
        **{name: words for name, words in shape.items() if words},
        "days": _days(entry),
        "sources": f"{len(entry.metadata.sources):,}",
        "rows": tables.rows_in_words(rows),
        **({} if rows.clicks is UNSET else {"clicks joined": tables.clicks_in_words(rows.clicks)}),
        "counted": f"{counted(totals['impressions'], 'impressions')}, {counted(totals['clicks'], 'clicks')}",
        "statistics": (
            f"{counted(totals['rows'], 'rows')}, {_size(_bytes(entry))} in {counted(len(entry.parts), 'parts')} of "
            f"{counted(len(entry.segments), 'segments')}"
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
    said = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}, {len(days):,} days"
    if missing:
        more = f" and {len(missing) - _MOST_DAYS:,} more" if len(missing) > _MOST_DAYS else ""
        said += f"; missing {', '.join(missing[:_MOST_DAYS])}{more}"
    return said


def _bytes(entry: Statistics) -> int:
    return sum(part.bytes for part in entry.parts)


def _size(n_bytes: int) -> str:
    size, units = float(n_bytes), ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while size >= _KIBIBYTE and len(units) > 1:
        size, units = size / _KIBIBYTE, units[1:]
    return f"{size:,.0f} {units[0]}" if units[0] == "bytes" else f"{size:,.1f} {units[0]}"


def collect(
    columns: ColumnOptions,
    reading: ReadingOptions,
    counting: CountingOptions,
    decay: DecayOptions,
    gate: GateOptions,
    store: StoreOptions,
    output: OutputOrInfoOptions,
    inputs: list[str] | None,
) -> int:
    """Count a log once and for all, into compact statistics that can be merged across days."""
    if store.remove_day is not None:
        return _remove_day(inputs or [], store.remove_day, store, reading, output)
    if not inputs:
        raise UsageError("LOGS|STATISTICS... is missing: name the logs to count, or the statistics to merge.")
    if output.info:
        _show_info(find_statistics(inputs), inputs, as_json=output.json)
        return DONE
    limit, also_read = gate.limit(), reading.clicks or ()
    if store.into is not None:
        _check_exact(decay)
        job = resolve(inputs, columns, reading, counting)
        return _add_day(job, [columns, reading, counting, gate, store], reading, limit, store, output)
    target, groups = output.to_write(), [columns, reading, counting, decay, gate]

    def resolved() -> Job:
        """What is counted or merged, once it is known that the result may stand where it is to."""
        statistics = find_statistics(inputs)
        _check_replaced(statistics, inputs, target, decay)
        if not statistics:
            _check_exact(decay)
        return resolve(inputs, columns, reading, counting, statistics=statistics, decay=decay.decay)

    if output.dry_run:
        return rehearse("collect", resolved(), reading, target.output, target, also_read, replaces_input=True)
    with open_result("collect", target, inputs, groups, also_read, replaces_input=True) as result:
        job = resolved()  # only now, when no other run writes the target, is it certain what it holds
        with open_engine(reading, target.output) as engine:
            if job.statistics:
                merged_into = next((one for one in job.statistics if is_same(one.path, target.output)), None)
                collecting.merge(job.statistics, merged_into, limit, engine, result, job.decay)
            else:
                collecting.count_log(job, engine, result)
    return result.exit_code


def _add_day(
    job: Job,
    groups: list[Any],
    reading: ReadingOptions,
    limit: float | None,
    store: StoreOptions,
    output: OutputOrInfoOptions,
) -> int:
    """Count the logs of a day into a store; one that is not there is made."""
    place = _place_of(store)
    if job.statistics:
        raise UsageError(
            f"--into {place}: {job.inputs[0]} holds statistics, and what goes into a store this way are logs. Merge "
            f"statistics with -o {place} --force."
        )
    day = job.day
    if day is None:
        raise UsageError(f"--into {place}: say of which day the log is: --date YYYY-MM-DD.")
    also_read, target = reading.clicks or (), output.to_change(place)
    if output.dry_run:
        known = open_store(place)
        if known is not None:
            check_new_day(known, day, job.open_log().digests, replaces=store.replace_day)
        return rehearse("collect", job, reading, place, target, also_read)
    with (
        _changed_store(place, target, job.inputs, groups, also_read) as (result, known),
        open_engine(reading, place) as engine,
    ):
        collecting.add_day(job, day, known, limit, engine, result, replaces=store.replace_day)
    return result.exit_code


def _remove_day(
    inputs: list[str], day: str, store: StoreOptions, reading: ReadingOptions, output: OutputOrInfoOptions
) -> int:
    """Take a day out of a store."""
    place = _place_of(store)
    check_day("--remove-day", day)
    if inputs:
        raise UsageError(f"--remove-day {day}: counts nothing, so {inputs[0]} has no effect. Leave it out.")
    with _changed_store(place, output.to_change(place), (), [reading, store], ()) as (result, known):
        if known is None:
            raise StatisticsError(f"{place}: there is no store. Name the directory that --into has made.")
        with open_engine(reading, place) as engine:
            collecting.remove_day(day, known, engine, result)
    return result.exit_code


@contextmanager
def _changed_store(
    place: Path, target: OutputOptions, inputs: Sequence[str], groups: list[Any], also_read: Sequence[str]
) -> Generator[tuple[Result, Statistics | None]]:
    """A result that takes the place of a store, and what the store holds once no other run changes it."""
    try:
        with open_result("collect", target, inputs, groups, also_read, waits=True) as result:
            yield result, open_store(place)
    except OutputError:  # what is wrong with the store says more than that it cannot be replaced
        open_store(place)
        raise


def _place_of(store: StoreOptions) -> Path:
    if store.into is None:
        raise UsageError("--into STORE is missing: say which store to change.")
    return store.into


def _check_exact(decay: DecayOptions) -> None:
    if decay.decay is not None:
        raise UsageError(
            f"--decay {decay.decay:g}: logs are counted without decay. Use it to fit, or to merge statistics."
        )


def _check_replaced(
    statistics: Sequence[Statistics], inputs: list[str], output: OutputOptions, decay: DecayOptions
) -> None:
    """The result may replace statistics that it holds all of: not logs, and not counts that decay in it.

    Raises:
        OutputError: it would replace another input.
    """
    target = output.output
    kept = [entry.path for entry in statistics if decay.decay is None or entry.metadata.decay is not None]
    replaced = any(is_same(path, target) for name in inputs for path in named_paths(name))
    if replaced and not any(is_same(path, target) for path in kept):
        raise OutputError(f"{target}: is an input, which --force would delete. Choose another directory.")
