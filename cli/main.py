"""The application: its commands, and what all of them share."""

import sys
from importlib.metadata import version
from typing import Annotated

import typer

from posbias.cli import collect, fit, interrupts, run, simulate, weight
from posbias.cli.command import CANNOT_RUN, command
from posbias.cli.console import complain_of_a_fault, escape_warnings
from posbias.cli.usage_errors import Application

_HELP = """Position-bias propensities and unbiased training files from click logs.

Clicks are biased: what stands higher is seen more. posbias estimates how much each position is seen, with errors,
and writes training files whose weights undo it.

Start with: posbias run LOG -o DIR
"""

app = typer.Typer(
    name="posbias",
    cls=Application,
    help=_HELP,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
for function in (run.run, collect.collect, fit.fit, weight.weight, simulate.simulate):
    command(app)(function)


def _print_version(wanted: bool) -> None:  # noqa: FBT001
    if wanted:
        typer.echo(f"posbias {version('posbias')}")
        raise typer.Exit


@app.callback()
def options(
    *,
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Options of the application itself."""


def main() -> None:
    """Run the command line."""
    interrupts.install()
    escape_warnings()
    try:
        app()
    except Exception:  # noqa: BLE001 - outside of the commands: while options are read, or after the work
        complain_of_a_fault()
        sys.exit(CANNOT_RUN)
    finally:
        interrupts.ignore()
