"""`posbias show`: a result as it was printed when it was made, on stdout."""

from typing import Annotated

from posbias.cli.options.option import argument, read_place
from posbias.cli.options.showing import ShowingOptions
from posbias.io.places.locations import Location


def show(
    result: Annotated[Location, argument("RESULT", "Directory that a command wrote with -o.", read_place)],
    showing: ShowingOptions,
) -> int:
    """Show a result as it was printed when it was made.

    Example: posbias show fit --plot
    """
    from posbias.cli.report import shown
    from posbias.io.jobs.result import DONE
    from posbias.io.results.stored import open_stored

    with open_stored(result, shown.FILES) as stored:
        forms = {
            "table": lambda: shown.as_table(stored, plot=showing.plot),
            "markdown": lambda: shown.as_markdown(stored),
            "csv": lambda: shown.as_csv(stored),
            "json": lambda: shown.as_json(stored),
        }
        forms[showing.format]()
    shown.check_stdout()
    return DONE
