"""`posbias init`: a file of options for logs like one that was looked at."""

from pathlib import Path
from typing import Annotated

import typer

from posbias.cli.messages import tell, warn
from posbias.cli.options.columns import ColumnOptions
from posbias.cli.options.config import DEFAULT_FILE
from posbias.cli.options.option import read_name
from posbias.cli.options.options import CountingOptions
from posbias.cli.options.output import InitOptions
from posbias.cli.options.reading import ReadingOptions


def init(
    logs: Annotated[
        list[str], typer.Argument(metavar="LOGS...", help="Log files, globs or directories.", parser=read_name)
    ],
    columns: ColumnOptions,
    reading: ReadingOptions,
    counting: CountingOptions,
    output: InitOptions,
) -> int:
    """Look at a log as `check` does, and write what it takes to read it into posbias.toml in the current directory.

    Example: posbias init logs/2026-01-05.parquet
    """
    from posbias.cli.console import stderr_console
    from posbias.cli.report.progress import show_progress
    from posbias.cli.report.settings import settings_text
    from posbias.cli.work.looking import check
    from posbias.cli.work.recognition import Asked
    from posbias.io.jobs.result import DONE, WITH_DOUBTS
    from posbias.io.results.atomic import check_settings, write_settings

    target, console = Path(DEFAULT_FILE), stderr_console()
    check_settings(target, force=output.force)
    with show_progress(console, quiet=output.quiet) as progress:
        asked, content = check(Asked(tuple(logs), columns, reading, counting), progress)
    write_settings(target, settings_text(logs, asked.options, asked.findings, content["advice"]), force=output.force)
    for sentence in (*content["warnings"], *content["reasons"]):
        warn(sentence)
    if not output.quiet:
        tell(f"written: {target}. Read it, then: posbias run LOGS -o DIR")
    return WITH_DOUBTS if content["reasons"] else DONE
