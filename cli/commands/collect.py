"""`posbias collect`: sufficient statistics, and the merging of those of other days."""

from collections.abc import Sequence
from typing import Annotated

import typer

from posbias.cli import clock
from posbias.cli.commands.info import show_info
from posbias.cli.options.columns import ColumnOptions
from posbias.cli.options.options import (
    CountingOptions,
    DecayOptions,
    GateOptions,
    OutputOptions,
    OutputOrInfoOptions,
)
from posbias.cli.options.reading import ReadingOptions
from posbias.cli.report import summary
from posbias.cli.report.odd_days import odd_day_warnings, shifted_pages_warning, why_kept_out
from posbias.cli.report.result import DONE, WITH_DOUBTS, Result, is_same, open_result
from posbias.cli.work import steps
from posbias.cli.work.engine import open_engine
from posbias.cli.work.job import Job, resolve
from posbias.core.errors import OutputError, StatisticsError, UsageError
from posbias.io.counting.count import days_of_statistics, read_log
from posbias.io.counting.merge import known_days, merge_statistics
from posbias.io.counting.odd_days import look_at_days_of_log, look_at_files, look_at_merged_days, look_at_pages
from posbias.io.engines.engine import Engine
from posbias.io.log.days import Days
from posbias.io.log.sources import named_paths
from posbias.io.places.locations import location
from posbias.io.stores.metadata import StatisticsMetadata
from posbias.io.stores.segments import write_segment
from posbias.io.stores.store import Statistics, describe_statistics, find_statistics, merge_metadata


def collect(
    inputs: Annotated[
        list[str], typer.Argument(metavar="LOGS|STATISTICS...", help="Logs to count, or statistics to merge.")
    ],
    columns: ColumnOptions,
    reading: ReadingOptions,
    counting: CountingOptions,
    decay: DecayOptions,
    gate: GateOptions,
    output: OutputOrInfoOptions,
) -> int:
    """Count a log once and for all, into compact statistics that can be merged across days.

    Example: posbias collect logs/2026-01-05.parquet --date 2026-01-05 -o statistics/2026-01-05
    """
    if output.info:
        show_info(find_statistics(inputs), inputs, as_json=output.json)
        return DONE
    target, groups = output.to_write(), [columns, reading, counting, decay, gate]
    limit = gate.limit()
    with open_result("collect", target, inputs, groups, reading.clicks or (), replaces_input=True) as result:
        # Only now, when no other run writes the target, is it certain what it holds.
        statistics = find_statistics(inputs)
        _check_replaced(statistics, inputs, target, decay)
        if decay.decay is not None and not statistics:
            raise UsageError(
                f"--decay {decay.decay:g}: logs are counted without decay. Use it to fit, or to merge statistics."
            )
        job = resolve(inputs, columns, reading, counting, statistics=statistics, decay=decay.decay)
        with open_engine(reading, target.output) as engine:
            if job.statistics:
                _merge(job, _store_at(target, statistics), limit, engine, result)
            else:
                _count(job, engine, result)
        result.printed.append(summary.statistics_line(result.content["statistics"]))
    return result.exit_code


def _check_replaced(
    statistics: Sequence[Statistics], inputs: list[str], output: OutputOptions, decay: DecayOptions
) -> None:
    """The result may replace statistics that it holds all of: not logs, and not counts that decay in it.

    Raises:
        OutputError: it would replace another input.
    """
    target = location(output.output)
    kept = [entry.path for entry in statistics if decay.decay is None or entry.metadata.decay is not None]
    replaced = any(is_same(path, target) for name in inputs for path in named_paths(name))
    if replaced and not any(is_same(path, target) for path in kept):
        raise OutputError(f"{target}: is an input, which --force would delete. Choose another directory.")


def _store_at(target: OutputOptions, statistics: Sequence[Statistics]) -> Statistics | None:
    """The statistics that the result replaces: the store to which the others are added."""
    return next((entry for entry in statistics if is_same(entry.path, location(target.output))), None)


def _merge(job: Job, store: Statistics | None, limit: float | None, engine: Engine, result: Result) -> None:
    statistics = job.statistics
    days = days_of_statistics(statistics, clock.today())
    metadata = merge_metadata(statistics, job.decay, None if days is None else days.newest)
    with result.progress.stage("merging") as stage:
        segments = merge_statistics(statistics, metadata, result.folder, engine, on_part=stage.advance)
    with result.progress.stage("comparing days"):
        looks = look_at_merged_days(statistics, store, engine)
    others = "other statistics" if days is None else "other days" if store is None else "days of the store"
    refusal = None if limit is None else why_kept_out(looks, limit, others)
    if refusal is not None:
        raise StatisticsError(refusal)
    result.content |= describe_statistics(metadata, segments)
    _describe(metadata, days, (), result)
    _warn(odd_day_warnings(looks, others), result)
    result.warnings += [
        f"{entry.path}: its days are also in the other statistics. If a log was exported again, its clicks count twice."
        for entry in known_days(statistics)
    ]


def _count(job: Job, engine: Engine, result: Result) -> None:
    found = read_log(steps.open_log(job, result), job.plan, engine, result.progress, clock.today())
    metadata = StatisticsMetadata(found.plan, found.sources, found.rows)
    parts = found.read.statistics(found.plan)
    with result.progress.stage("counting", parts.number) as stage:
        segment = write_segment(parts, result.folder, metadata, on_part=stage.advance)
    result.content |= describe_statistics(metadata, [segment])
    _describe(metadata, found.days, found.said, result)
    if found.plan.period:
        _warn(odd_day_warnings(look_at_days_of_log(segment, engine), "other days"), result)
    else:
        _warn(odd_day_warnings(look_at_files(found.read.log, engine), "other files"), result)
    shifted = look_at_pages(found.read)
    if shifted is not None and result.exit_code == DONE:
        _warn([shifted_pages_warning(shifted)], result)


def _warn(said: Sequence[str], result: Result) -> None:
    """Say what is odd, if anything is; then the result is not to be taken at face value."""
    result.warnings += said
    if said:
        result.exit_code = WITH_DOUBTS


def _describe(metadata: StatisticsMetadata, days: Days | None, said: Sequence[str], result: Result) -> None:
    result.printed += summary.rows_lines(metadata.rows)
    steps.describe_reading(days, said, result)
