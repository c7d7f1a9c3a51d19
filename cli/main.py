"""The application: its commands, and what all of them share."""

import sys
from typing import Annotated

import typer
from typer.main import get_command

from posbias.cli import completion, interrupts, streams
from posbias.cli.command import command, guarded
from posbias.cli.commands import (
    check,
    collect,
    compare,
    evaluate,
    explore,
    fit,
    init,
    report,
    run,
    score,
    show,
    simulate,
    train,
    weight,
)
from posbias.cli.completion_scripts import SCRIPTS, Shell, install
from posbias.cli.messages import complain, escape_warnings
from posbias.cli.options.usage import CANNOT_RUN, Application

_HELP = """Estimate position bias from click logs, and write training files that correct for it.

Clicks are biased: results higher up get more attention. posbias estimates how likely each position is to be examined,
with standard errors, and writes training files whose weights correct for that.

Start with: posbias run LOG -o DIR
"""

app = typer.Typer(
    name="posbias",
    cls=Application,
    help=_HELP,
    context_settings={"help_option_names": ["-h", "--help"]},
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
_COMMANDS = (
    *(run.run, check.check, init.init, collect.collect, fit.fit, weight.weight, train.train, score.score),
    *(evaluate.evaluate, explore.explore, compare.compare, report.report, show.show, simulate.simulate),
)
for function in _COMMANDS:
    command(app)(function)


def _print_version(wanted: bool) -> None:  # noqa: FBT001
    if wanted:
        from importlib.metadata import version  # noqa: PLC0415 - takes as long as the rest of the start

        typer.echo(f"posbias {version('posbias')}")
        raise typer.Exit


def _print_completion(shell: Shell | None) -> None:
    if shell:
        typer.echo(SCRIPTS[shell], nl=False)
        raise typer.Exit


def _install_completion(shell: Shell | None) -> None:
    if shell:
        raise typer.Exit(guarded(lambda: install(shell) or 0))


@app.callback()
def options(
    *,
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
    install_completion: Annotated[
        Shell | None,
        typer.Option(
            help="Complete words of posbias when Tab is pressed, in bash, zsh or fish.",
            callback=_install_completion,
            is_eager=True,
        ),
    ] = None,
    show_completion: Annotated[
        Shell | None,
        typer.Option(
            help="Print what that takes instead: bash, zsh, fish.",
            metavar="SHELL",
            callback=_print_completion,
            is_eager=True,
        ),
    ] = None,
) -> None:
    """Options of the application itself."""


def main() -> None:
    """Run the command line, and end with its exit code. None but that of a command is 1: then a result stands."""
    if completion.is_asked():
        completion.answer(get_command(app))
        return
    interrupts.install()
    escape_warnings()
    try:
        code = guarded(_run)
        lost = streams.why_lost(sys.stdout)
        if lost is not None and not code:  # help, or the version
            complain(f"stdout cannot be written: {lost}.")
            code = CANNOT_RUN
        sys.exit(code)
    finally:
        interrupts.ignore()


def _run() -> int:
    try:
        app()
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else 0
    return 0
