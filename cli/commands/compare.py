"""`posbias compare`: what has changed between two results, or from day to day."""

from pathlib import Path
from typing import Annotated

from posbias.cli.messages import warn
from posbias.cli.options.comparing import ComparingOptions
from posbias.cli.options.option import argument
from posbias.cli.options.output import OutputOrPrintOptions
from posbias.cli.options.reading import ReadingOptions


def compare(
    inputs: Annotated[list[str], argument("A B", "Two fits, or two statistics; with --by day, one store.")],
    comparing: ComparingOptions,
    output: OutputOrPrintOptions,
) -> int:
    """Compare the propensities of two results, or of the days of a store.

    Example: posbias compare last_week this_week --max-change 0.2 --fail-if change
    """
    from posbias.cli.console import stderr_console
    from posbias.cli.report.progress import show_progress
    from posbias.cli.report.result import open_result
    from posbias.cli.report.shown import print_on_stdout
    from posbias.cli.report.table import renderable
    from posbias.cli.work.engine import open_engine
    from posbias.io.jobs import comparing as job
    from posbias.io.jobs.result import Result
    from posbias.io.results.tables import write_small_table

    comparing.check()
    target, fail_if = output.to_write(), comparing.fail_if or ()
    by_day, most = comparing.by == "day", comparing.max_change
    if target is not None:
        with open_result("compare", target, inputs, [comparing]) as result:
            with open_engine(ReadingOptions(), target.output) as engine:
                table = job.compare(inputs, engine, result, by_day=by_day, max_change=most, fail_if=fail_if)
            write_small_table(table, result.folder, job.COMPARISON, csv=output.csv)
        return result.exit_code
    with (
        show_progress(stderr_console(), quiet=output.quiet) as progress,
        open_engine(ReadingOptions(), Path()) as engine,
    ):
        result = Result(Path(), progress)
        job.compare(inputs, engine, result, by_day=by_day, max_change=most, fail_if=fail_if)
    as_json = result.content | {"warnings": result.warnings} if output.json else None
    print_on_stdout([] if output.quiet else map(renderable, result.printed), as_json)
    for warning in result.warnings:
        warn(warning)
    return result.exit_code
