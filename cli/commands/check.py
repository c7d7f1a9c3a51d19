"""`posbias check`: what is in a log, what is wrong with it, and what can be estimated from it."""

from typing import Annotated

from posbias.cli.messages import tell, warn
from posbias.cli.options.columns import ColumnOptions
from posbias.cli.options.option import argument
from posbias.cli.options.options import CountingOptions
from posbias.cli.options.output import CheckOptions
from posbias.cli.options.reading import ReadingOptions

_WIDTH_IN_A_FILE = 80


def check(
    logs: Annotated[list[str], argument("LOGS...", "Log files, globs or directories.")],
    columns: ColumnOptions,
    reading: ReadingOptions,
    counting: CountingOptions,
    output: CheckOptions,
) -> int:
    """Look at a log before a fit: what is recognised, what is wrong, what can be estimated.

    Nothing is written, unless --write-config FILE keeps what it takes to read the log.

    Example: posbias check logs/*.parquet
    """
    from posbias.cli.console import stderr_console
    from posbias.cli.report.check import check_report, command_line
    from posbias.cli.report.progress import show_progress
    from posbias.cli.report.settings import settings_text
    from posbias.cli.report.shown import print_on_stdout
    from posbias.cli.work.looking import check as look_into
    from posbias.cli.work.recognition import Asked
    from posbias.core.wording import shown
    from posbias.io.jobs.result import DONE, WITH_DOUBTS
    from posbias.io.results.atomic import check_settings, write_settings

    target = output.write_config
    if target is not None:
        check_settings(target, force=output.force)

    with show_progress(stderr_console(), quiet=output.quiet) as progress:
        asked, content = look_into(Asked(tuple(logs), columns, reading, counting), progress)
    if output.quiet and not output.json:
        print_on_stdout([])
    else:
        as_json = content if output.json else None
        report, command = check_report(content), f"\n{shown(command_line(content))}"
        print_on_stdout([report], as_json, unwrapped=command, width_in_a_file=_WIDTH_IN_A_FILE)
    if output.quiet:
        for sentence in (*content["warnings"], *content["reasons"]):
            warn(sentence)
    if target is not None:
        text = settings_text(logs, asked.options, asked.findings, content["advice"])
        write_settings(target, text, force=output.force)
        if not output.quiet:
            tell(f"written: {target}. Read it, then: posbias run LOGS -o DIR")
    return DONE if content["carries_estimate"] else WITH_DOUBTS
