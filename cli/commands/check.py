"""`posbias check`: what is in a log, what is wrong with it, and what can be estimated from it."""

from typing import Annotated

import typer

from posbias.cli.messages import warn
from posbias.cli.options.columns import ColumnOptions
from posbias.cli.options.option import read_name
from posbias.cli.options.options import CountingOptions
from posbias.cli.options.output import CheckOptions
from posbias.cli.options.reading import ReadingOptions

_WIDTH_IN_A_FILE = 80


def check(
    logs: Annotated[
        list[str], typer.Argument(metavar="LOGS...", help="Log files, globs or directories.", parser=read_name)
    ],
    columns: ColumnOptions,
    reading: ReadingOptions,
    counting: CountingOptions,
    output: CheckOptions,
) -> int:
    """Look at a log before a fit: what is recognised, what is wrong, what can be estimated. Nothing is written.

    Example: posbias check logs/*.parquet
    """
    from posbias.cli.console import stderr_console
    from posbias.cli.report.check import check_report, command_line
    from posbias.cli.report.progress import show_progress
    from posbias.cli.report.shown import print_on_stdout
    from posbias.cli.work.looking import check as look_into
    from posbias.cli.work.recognition import Asked
    from posbias.core.wording import shown
    from posbias.io.jobs.result import DONE, WITH_DOUBTS

    with show_progress(stderr_console(), quiet=output.quiet) as progress:
        _, content = look_into(Asked(tuple(logs), columns, reading, counting), progress)
    if output.quiet and not output.json:
        print_on_stdout([])
    else:
        as_json = content if output.json else None
        report, command = check_report(content), f"\n{shown(command_line(content))}"
        print_on_stdout([report], as_json, unwrapped=command, width_in_a_file=_WIDTH_IN_A_FILE)
    if output.quiet:
        for sentence in (*content["warnings"], *content["reasons"]):
            warn(sentence)
    return DONE if content["carries_estimate"] else WITH_DOUBTS
