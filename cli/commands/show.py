"""`posbias show`: a result as it was printed when it was made, on stdout."""

from pathlib import Path
from typing import Annotated

import typer

from posbias.cli.options.showing import ShowingOptions


def show(
    result: Annotated[Path, typer.Argument(metavar="RESULT", help="Directory that a command wrote with -o.")],
    showing: ShowingOptions,
) -> int:
    """Show a result as it was printed when it was made.

    Example: posbias show fit --plot
    """
    from posbias.cli.report import shown
    from posbias.cli.report.result import DONE
    from posbias.io.places.locations import location
    from posbias.io.results.stored import open_stored

    with open_stored(location(result), shown.FILES) as stored:
        forms = {
            "table": lambda: shown.as_table(stored, plot=showing.plot),
            "markdown": lambda: shown.as_markdown(stored),
            "csv": lambda: shown.as_csv(stored),
            "json": lambda: shown.as_json(stored),
        }
        forms[showing.format]()
    shown.check_stdout()
    return DONE
