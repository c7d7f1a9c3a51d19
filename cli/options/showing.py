"""How a result is shown again."""

from typing import Literal

from posbias.cli.options.option import option, options

Form = Literal["table", "markdown", "csv", "json"]


@options("Showing")
class ShowingOptions:
    """The form of what is shown."""

    format: Form = option(
        "table and markdown: what was printed; csv: its table, with all rows and digits; json: the manifest.",
        default="table",
        environment=False,
    )
    plot: bool = option("Draw the propensities with their intervals.")
