"""`posbias compare`: what has changed between two results, or from day to day."""

from pathlib import Path
from typing import Annotated

import typer

from posbias.cli.messages import warn
from posbias.cli.options.comparing import ComparingOptions
from posbias.cli.options.option import read_name
from posbias.cli.options.output import OutputOrPrintOptions
from posbias.cli.options.reading import ReadingOptions


def compare(
    inputs: Annotated[
        list[str],
        typer.Argument(metavar="A B", help="Two fits, or two statistics; with --by day, one store.", parser=read_name),
    ],
    comparing: ComparingOptions,
    output: OutputOrPrintOptions,
) -> int:
    """Compare the propensities of two results, or of the days of a store.

    Example: posbias compare last_week this_week --max-change 0.2 --fail-if change
    """
    from posbias.cli.console import stderr_console
    from posbias.cli.report.progress import show_progress
    from posbias.cli.report.result import open_result
    from posbias.cli.report.shown import check_stdout, print_on_stdout
    from posbias.cli.report.table import renderable
    from posbias.cli.work.comparing import comparison_of
    from posbias.cli.work.engine import open_engine
    from posbias.cli.work.outcome import described, judge, write
    from posbias.core.credentials import masked_values
    from posbias.io.results.manifest import json_text

    comparing.check()
    target = output.to_write()
    if target is None:
        console = stderr_console()
        with show_progress(console, quiet=output.quiet) as progress, open_engine(ReadingOptions(), Path()) as engine:
            found = comparison_of(inputs, comparing, engine, progress)
        outcome = judge(found, comparing)
        if output.json:
            typer.echo(
                json_text(masked_values(described(found, outcome) | {"warnings": list(outcome.warnings)})).encode(),
                nl=False,
            )
        elif not output.quiet:
            print_on_stdout(map(renderable, outcome.printed))
        check_stdout()
        for warning in outcome.warnings:
            warn(warning)
        return outcome.exit_code
    with open_result("compare", target, inputs, [comparing]) as result:
        with open_engine(ReadingOptions(), target.output) as engine:
            found = comparison_of(inputs, comparing, engine, result.progress)
        outcome = judge(found, comparing)
        write(found, result.folder, csv=output.csv)
        result.content |= described(found, outcome)
        result.printed += outcome.printed
        result.warnings += outcome.warnings
        result.exit_code = outcome.exit_code
    return result.exit_code
