"""`posbias report`: results as one page that opens anywhere, or one chart of them as a picture."""

from typing import Annotated

from posbias.cli.messages import tell
from posbias.cli.options.option import argument
from posbias.cli.options.output import ReportOptions


def report(
    results: Annotated[list[str], argument("RESULT...", "Directories written by `posbias fit`, `run` and others.")],
    output: ReportOptions,
) -> int:
    """Draw results on one page that opens offline (.html), or one chart as a picture (.svg, .png).

    Example: posbias report fit -o report.html
    """
    from posbias.cli.console import stderr_console
    from posbias.cli.interrupts import result_stands
    from posbias.cli.report.progress import show_progress
    from posbias.cli.work.reporting import check_results, format_of, make_report
    from posbias.core.wording import shown
    from posbias.io.jobs.result import DONE
    from posbias.io.places.locations import location

    target = output.output
    form = format_of(target)
    places = [location(name) for name in results]
    check_results(places, target, force=output.force)
    with show_progress(stderr_console(), quiet=output.quiet) as progress:
        size = make_report(places, target, form, output.chart, progress, force=output.force)
    result_stands(DONE)
    if not output.quiet:
        about = ", with all that it takes to draw it: it opens in any browser, offline" if form == "html" else ""
        tell(f"written: {shown(str(target))}, {size / 1e6:.1f} MB{about}")
    return DONE
