"""How a result is shown again."""

from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from posbias.cli.options.option import option

Form = Literal["table", "markdown", "csv", "json"]

_SHOWING = "Showing"


@dataclass(frozen=True)
class ShowingOptions:
    """The form of what is shown."""

    format: Annotated[
        Form,
        typer.Option(
            "--format",
            help="table and markdown: what was printed; csv: its table, with all rows and digits; json: the manifest.",
            rich_help_panel=_SHOWING,
        ),
    ] = "table"
    plot: Annotated[bool, option("--plot", "Draw the propensities with their intervals.", _SHOWING)] = False
