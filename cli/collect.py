"""`posbias collect`: sufficient statistics, and the merging of those of other days."""

from typing import Annotated

import typer

from posbias.cli import setup, summary
from posbias.cli.options import ColumnOptions, CountingOptions, OutputOptions, ReadingOptions
from posbias.cli.result import DONE, open_result
from posbias.io.gathering import merged_parts, read_log
from posbias.io.statistics_store import (
    StatisticsMetadata,
    describe_plan,
    find_statistics,
    merge_metadata,
    write_statistics,
)


def collect(
    inputs: Annotated[
        list[str], typer.Argument(metavar="LOGS|STATISTICS...", help="Logs to count, or statistics to merge.")
    ],
    columns: ColumnOptions,
    reading: ReadingOptions,
    counting: CountingOptions,
    output: OutputOptions,
) -> int:
    """Count a log once, for good: small statistics that add up over days.

    Example: posbias collect logs/2026-01-05.parquet -o statistics/2026-01-05
    """
    statistics = find_statistics(inputs)
    with open_result("collect", output, inputs, [columns, reading, counting], reading.clicks or ()) as result:
        with setup.local_engine(reading) as engine:
            if statistics:
                setup.check_counting(statistics[0].metadata.plan, counting, columns)
                metadata = merge_metadata(statistics)
                parts, number = merged_parts(statistics, metadata, engine)
            else:
                plan = setup.statistics_plan(columns, counting)
                log = setup.open_requested_log(inputs, columns, reading, plan, needs_session=False)
                read, rows = read_log(log, plan, engine, result.progress)
                metadata = StatisticsMetadata(plan, log.digests, rows)
                parts, number = engine.statistics(read, plan), len(read.buckets)
            with result.progress.stage("counting", number) as stage:
                totals = write_statistics(parts, result.folder, metadata, on_part=stage.advance)
        result.content |= {
            "schema": "posbias.statistics",
            "counted": describe_plan(metadata.plan),
            "sources": metadata.sources,
            "rows": metadata.rows,
            "statistics": totals,
        }
        result.tables.append(summary.rows_line(metadata.rows))
        result.tables.append(summary.statistics_line(totals))
    return DONE
