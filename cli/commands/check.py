"""`posbias check`: what is in a log, what is wrong with it, and what can be estimated from it."""

import sys
from typing import Annotated, Any

import typer

from posbias.cli import streams
from posbias.cli.messages import warn
from posbias.cli.options.columns import ColumnOptions
from posbias.cli.options.option import read_name
from posbias.cli.options.options import CountingOptions
from posbias.cli.options.output import CheckOptions
from posbias.cli.options.reading import ReadingOptions
from posbias.core.errors import OutputError

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
    from posbias.cli.report.progress import show_progress
    from posbias.cli.work.check_content import content_of
    from posbias.cli.work.looking import check as look_into
    from posbias.cli.work.recognition import Asked
    from posbias.core.credentials import masked_values
    from posbias.io.jobs.result import DONE, WITH_DOUBTS

    with show_progress(stderr_console(), quiet=output.quiet) as progress:
        checked = look_into(Asked(tuple(logs), columns, reading, counting), progress)
    content = masked_values(content_of(checked))
    _print(content, output)
    return DONE if content["carries_estimate"] else WITH_DOUBTS


def _print(content: dict[str, Any], output: CheckOptions) -> None:
    """Print what was found on stdout; with `--quiet` only what is wrong, on stderr.

    Raises:
        OutputError: stdout cannot be written.
    """
    from posbias.cli.console import SafeConsole
    from posbias.cli.report.check import check_report, command_line
    from posbias.core.wording import shown
    from posbias.io.results.manifest import json_text

    if output.json:
        typer.echo(json_text(content).encode(), nl=False)
    elif not output.quiet:
        console = SafeConsole(stderr=False, width_in_a_file=_WIDTH_IN_A_FILE)
        console.print(check_report(content, console.width))
        console.print(f"\n{shown(command_line(content))}", soft_wrap=True)
    if output.quiet:
        for sentence in (*content["warnings"], *content["reasons"]):
            warn(sentence)
    lost = streams.why_lost(sys.stdout)
    if lost is not None:
        raise OutputError(f"stdout cannot be written: {lost}.")
