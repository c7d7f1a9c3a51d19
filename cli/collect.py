"""`posbias collect`: sufficient statistics, and the merging of those of other days."""

from collections.abc import Sequence
from typing import Annotated

import typer

from posbias.cli import setup, summary
from posbias.cli.info import show_info
from posbias.cli.options import ColumnOptions, CountingOptions, DecayOptions, OutputOrInfoOptions, ReadingOptions
from posbias.cli.result import DONE, Result, open_result
from posbias.core.errors import UsageError
from posbias.io.engines.engine import Engine
from posbias.io.gathering import read_log
from posbias.io.object_urls import Location
from posbias.io.statistics_merge import known_days, merge_statistics
from posbias.io.statistics_metadata import StatisticsMetadata
from posbias.io.statistics_segments import write_segment
from posbias.io.statistics_store import Statistics, describe_statistics, find_statistics, merge_metadata


def collect(
    inputs: Annotated[
        list[str], typer.Argument(metavar="LOGS|STATISTICS...", help="Logs to count, or statistics to merge.")
    ],
    columns: ColumnOptions,
    reading: ReadingOptions,
    counting: CountingOptions,
    decay: DecayOptions,
    output: OutputOrInfoOptions,
) -> int:
    """Count a log once, for good: small statistics that add up over days.

    Example: posbias collect logs/2026-01-05.parquet --date 2026-01-05 -o statistics/2026-01-05
    """
    statistics = find_statistics(inputs)
    if output.info:
        show_info(statistics, inputs, as_json=output.json)
        return DONE
    target, groups = output.to_write(), [columns, reading, counting, decay]
    kept = _taken_over(statistics, decay)
    with open_result("collect", target, inputs, groups, reading.clicks or (), kept) as result:
        with setup.open_engine(reading, target.output) as engine:
            if statistics:
                setup.check_counting(statistics[0].metadata.plan, counting, columns)
                _merge(statistics, decay, engine, result)
            else:
                _count(inputs, columns, reading, counting, decay, engine, result)
        result.tables.append(summary.rows_line(result.content["rows"]))
        result.tables.append(summary.statistics_line(result.content["statistics"]))
    return result.exit_code


def _taken_over(statistics: Sequence[Statistics], decay: DecayOptions) -> list[Location]:
    """The statistics of which the result holds all: decayed counts do not replace those from which they were made."""
    return [entry.path for entry in statistics if decay.decay is None or entry.metadata.decay is not None]


def _merge(statistics: Sequence[Statistics], decay: DecayOptions, engine: Engine, result: Result) -> None:
    setup.check_decay(decay.decay, statistics[0].metadata.plan)
    metadata = merge_metadata(statistics, decay.decay)
    with result.progress.stage("merging") as stage:
        segments = merge_statistics(statistics, metadata, result.folder, engine, on_part=stage.advance)
    result.content |= describe_statistics(metadata, segments)
    result.warnings += [
        f"{entry.path}: its days are in the other statistics, too. If a log was exported again, its clicks count twice."
        for entry in known_days(statistics)
    ]


def _count(
    logs: list[str],
    columns: ColumnOptions,
    reading: ReadingOptions,
    counting: CountingOptions,
    decay: DecayOptions,
    engine: Engine,
    result: Result,
) -> None:
    if decay.decay is not None:
        raise UsageError(
            f"--decay {decay.decay:g}: a log is counted as it is. Give it to `fit`, or when statistics are merged."
        )
    plan = setup.statistics_plan(columns, counting)
    log = setup.open_requested_log(logs, columns, reading, plan, needs_session=False, day=counting.date)
    read, rows = read_log(log, plan, engine, result.progress)
    metadata = StatisticsMetadata(plan, log.digests, rows)
    parts = read.statistics(plan)
    with result.progress.stage("counting", parts.number) as stage:
        segment = write_segment(parts, result.folder, metadata, on_part=stage.advance)
    result.content |= describe_statistics(metadata, [segment])
