"""`collect`: statistics written, merged into a store, and described."""

import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import msgspec
import typer
from msgspec import UNSET
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table

from posbias.cli import streams
from posbias.cli.console import SafeConsole, line
from posbias.cli.options.columns import ColumnOptions
from posbias.cli.options.options import CountingOptions, DecayOptions, GateOptions, StoreOptions
from posbias.cli.options.output import OutputOptions, OutputOrInfoOptions
from posbias.cli.options.reading import ReadingOptions
from posbias.cli.report.result import is_same, open_result
from posbias.cli.work import collecting
from posbias.cli.work.engine import open_engine
from posbias.cli.work.job import resolve
from posbias.cli.work.plan import check_day
from posbias.cli.work.rehearsal import rehearse
from posbias.core.credentials import masked_values
from posbias.core.errors import OutputError, StatisticsError, UsageError
from posbias.core.wording import counted
from posbias.io.jobs import tables as summary
from posbias.io.jobs.reading import Job
from posbias.io.jobs.result import DONE
from posbias.io.log.sources import named_paths
from posbias.io.results.manifest import json_text
from posbias.io.stores.checks import check_contents, one_by_one
from posbias.io.stores.days import check_new_day, open_store
from posbias.io.stores.metadata import describe_decay, describe_plan
from posbias.io.stores.store import Statistics, checked, find_statistics

_WIDTH_IN_A_FILE = 80
_MOST_DAYS = 3
_KIBIBYTE = 1024


def show_info(statistics: Sequence[Statistics], inputs: Sequence[str], *, as_json: bool) -> None:
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
    if as_json:
        typer.echo(json_text(masked_values([_described(entry) for entry in statistics])).encode(), nl=False)
    else:
        SafeConsole(stderr=False, width_in_a_file=_WIDTH_IN_A_FILE).print(Group(*map(_table, statistics)))
    lost = streams.why_lost(sys.stdout)
    if lost is not None:
        raise OutputError(f"stdout cannot be written: {lost}.")


def _described(entry: Statistics) -> dict[str, Any]:
    return {
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


def _table(entry: Statistics) -> RenderableType:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, content in _lines(entry).items():
        table.add_row(name, content)
    return Group(line(str(entry.path)), Padding(table, (0, 0, 1, 2), expand=False))


def _lines(entry: Statistics) -> dict[str, RenderableType]:
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
    return {
        "model": line(plan.model.name),
        "keys": line(", ".join(f"{name} ({entry.key_types[name]})" for name in plan.keys)),
        **{name: line(said) for name, said in shape.items() if said},
        "days": line(_days(entry)),
        "sources": line(f"{len(entry.metadata.sources):,}"),
        "rows": line(summary.rows_in_words(rows)),
        **({} if rows.clicks is UNSET else {"clicks joined": line(summary.clicks_in_words(rows.clicks))}),
        "counted": line(f"{counted(totals['impressions'], 'impressions')}, {counted(totals['clicks'], 'clicks')}"),
        "statistics": line(
            f"{counted(totals['rows'], 'rows')}, {_size(_bytes(entry))} in {counted(len(entry.parts), 'parts')} of "
            f"{counted(len(entry.segments), 'segments')}"
        ),
    }


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
        return _remove_day(inputs or [], store, reading, output)
    if not inputs:
        raise UsageError("LOGS|STATISTICS... is missing: name the logs to count, or the statistics to merge.")
    if output.info:
        show_info(find_statistics(inputs), inputs, as_json=output.json)
        return DONE
    limit = gate.limit()
    if store.into is not None:
        _check_exact(decay)
        job = resolve(inputs, columns, reading, counting)
        return _add_day(job, reading, [columns, reading, counting, gate, store], limit, store, output)
    target, groups = output.to_write(), [columns, reading, counting, decay, gate]
    if output.dry_run:
        job = _resolved(inputs, columns, reading, counting, decay, target)
        return rehearse("collect", job, reading, target.output, target, reading.clicks or (), replaces_input=True)
    with open_result("collect", target, inputs, groups, reading.clicks or (), replaces_input=True) as result:
        # Only now, when no other run writes the target, is it certain what it holds.
        job = _resolved(inputs, columns, reading, counting, decay, target)
        with open_engine(reading, target.output) as engine:
            if job.statistics:
                merged_into = _store_at(target, job.statistics)
                collecting.merge(job.statistics, merged_into, limit, engine, result, job.decay)
            else:
                collecting.count(job, engine, result)
        result.printed.append(summary.statistics_line(result.content["statistics"]))
    return result.exit_code


def _resolved(
    inputs: list[str],
    columns: ColumnOptions,
    reading: ReadingOptions,
    counting: CountingOptions,
    decay: DecayOptions,
    target: OutputOptions,
) -> Job:
    """What is counted or merged, once it is known that the result may stand where it is to."""
    statistics = find_statistics(inputs)
    _check_replaced(statistics, inputs, target, decay)
    if not statistics:
        _check_exact(decay)
    return resolve(inputs, columns, reading, counting, statistics=statistics, decay=decay.decay)


def _add_day(
    job: Job,
    reading: ReadingOptions,
    groups: list[Any],
    limit: float | None,
    store: StoreOptions,
    output: OutputOrInfoOptions,
) -> int:
    """Count the logs of a day into a store; one that is not there is made."""
    place = _place_of(store.into)
    if job.statistics:
        raise UsageError(
            f"--into {place}: {job.inputs[0]} holds statistics, and what goes into a store this way are logs. Merge "
            f"statistics with -o {place} --force."
        )
    if job.day is None:
        raise UsageError(f"--into {place}: say of which day the log is: --date YYYY-MM-DD.")
    also_read, target = reading.clicks or (), output.to_change(place)
    if output.dry_run:
        known = open_store(place)
        if known is not None:
            check_new_day(known, job.day, job.open_log().digests, replaces=store.replace_day)
        return rehearse("collect", job, reading, place, target, also_read)
    with (
        _store_first(place),
        open_result("collect", target, list(job.inputs), groups, also_read, waits=True) as result,
    ):
        known = open_store(place)  # only now is it certain that no other run changes it
        with open_engine(reading, place) as engine:
            collecting.add_day(job, job.day, known, limit, engine, result, replaces=store.replace_day)
        result.printed.append(summary.statistics_line(result.content["statistics"]))
    return result.exit_code


def _remove_day(inputs: list[str], store: StoreOptions, reading: ReadingOptions, output: OutputOrInfoOptions) -> int:
    """Take a day out of a store."""
    place, day = _place_of(store.into), str(store.remove_day)
    check_day("--remove-day", day)
    if inputs:
        raise UsageError(f"--remove-day {day}: counts nothing, so {inputs[0]} has no effect. Leave it out.")
    with (
        _store_first(place),
        open_result("collect", output.to_change(place), [], [reading, store], waits=True) as result,
    ):
        known = open_store(place)
        if known is None:
            raise StatisticsError(f"{place}: there is no store. Name the directory that --into has made.")
        with open_engine(reading, place) as engine:
            collecting.remove_day(day, known, engine, result)
        result.printed.append(summary.statistics_line(result.content["statistics"]))
    return result.exit_code


def _place_of(store: Path | None) -> Path:
    """Where the store is.

    Raises:
        UsageError: nobody says.
    """
    if store is None:
        raise UsageError("--into STORE is missing: say which store to change.")
    return store


@contextmanager
def _store_first(place: Path) -> Generator[None]:
    """Where the output cannot be written, what is wrong with the store says more than that it cannot be replaced."""
    try:
        yield
    except OutputError:
        open_store(place)
        raise


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


def _store_at(target: OutputOptions, statistics: Sequence[Statistics]) -> Statistics | None:
    """The statistics that the result replaces: the store to which the others are added."""
    return next((entry for entry in statistics if is_same(entry.path, target.output)), None)
