"""What `collect` makes: statistics, merged statistics, and stores that grow day by day."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from posbias.cli.options.columns import ColumnOptions
from posbias.cli.options.options import CountingOptions, DecayOptions, GateOptions, StoreOptions
from posbias.cli.options.output import OutputOptions, OutputOrInfoOptions
from posbias.cli.options.reading import ReadingOptions
from posbias.cli.report import summary
from posbias.cli.report.info import show_info
from posbias.cli.report.result import DONE, is_same, open_result
from posbias.cli.work import collecting
from posbias.cli.work.engine import open_engine
from posbias.cli.work.job import Job, resolve
from posbias.cli.work.plan import check_day
from posbias.cli.work.rehearsal import rehearse
from posbias.core.errors import OutputError, StatisticsError, UsageError
from posbias.io.log.sources import named_paths
from posbias.io.stores.days import check_new_day, open_store
from posbias.io.stores.store import Statistics, find_statistics


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
        return _add_day(job, [columns, reading, counting, gate, store], limit, store, output)
    target, groups = output.to_write(), [columns, reading, counting, decay, gate]
    if output.dry_run:
        job = _resolved(inputs, columns, reading, counting, decay, target)
        return rehearse("collect", job, target.output, target, reading.clicks or (), replaces_input=True)
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


def _add_day(job: Job, groups: list[Any], limit: float | None, store: StoreOptions, output: OutputOrInfoOptions) -> int:
    """Count the logs of a day into a store; one that is not there is made."""
    place = _place_of(store.into)
    if job.statistics:
        raise UsageError(
            f"--into {place}: {job.inputs[0]} holds statistics, and what goes into a store this way are logs. Merge "
            f"statistics with -o {place} --force."
        )
    if job.day is None:
        raise UsageError(f"--into {place}: say of which day the log is: --date YYYY-MM-DD.")
    also_read, target = job.reading.clicks or (), output.to_change(place)
    if output.dry_run:
        known = open_store(place)
        if known is not None:
            check_new_day(known, job.day, job.open_log().digests, replaces=store.replace_day)
        return rehearse("collect", job, place, target, also_read)
    with (
        _store_first(place),
        open_result("collect", target, list(job.inputs), groups, also_read, waits=True) as result,
    ):
        known = open_store(place)  # only now is it certain that no other run changes it
        with open_engine(job.reading, place) as engine:
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
