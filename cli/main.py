"""The application: its commands, and what all of them share."""

import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Annotated, Any, cast

import typer

from posbias.cli import interrupts, streams
from posbias.cli.command import CANNOT_RUN, Application, PosbiasCommand, command, guarded
from posbias.cli.messages import complain, escape_warnings

_HELP = """Estimate position bias from click logs, and write training files that correct for it.

Clicks are biased: results higher up get more attention. posbias estimates how likely each position is to be examined,
with standard errors, and writes training files whose weights correct for that.

Start with: posbias run LOG -o DIR
"""

COMMANDS = {
    "run": "posbias.cli.commands:run",
    "check": "posbias.cli.commands:check",
    "collect": "posbias.cli.commands:collect",
    "sql": "posbias.cli.commands:sql",
    "fit": "posbias.cli.commands:fit",
    "weight": "posbias.cli.commands:weight",
    "train": "posbias.cli.commands:train",
    "score": "posbias.cli.commands:score",
    "predict": "posbias.cli.commands:predict",
    "evaluate": "posbias.cli.commands:evaluate",
    "explore": "posbias.cli.commands:explore",
    "compare": "posbias.cli.commands:compare",
    "report": "posbias.cli.commands:report",
    "show": "posbias.cli.commands:show",
    "simulate": "posbias.cli.commands:simulate",
    "demo": "posbias.cli.commands:demo",
}


class _Commands(Mapping[str, PosbiasCommand]):
    """The commands, each loaded when it is looked up."""

    def __getitem__(self, name: str) -> PosbiasCommand:
        return _loaded(COMMANDS[name])

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


@cache
def _loaded(path: str) -> PosbiasCommand:
    module, _, function = path.partition(":")
    return command(getattr(import_module(module), function))


class _Posbias(Application):
    """The application with its commands."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 - of Typer
        super().__init__(**settings)
        self.commands = cast("Any", _Commands())


app = typer.Typer(
    name="posbias",
    cls=_Posbias,
    help=_HELP,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:  # noqa: FBT001
    if wanted:
        from importlib.metadata import version  # noqa: PLC0415 - takes as long as the rest of the start

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
    """Run the command line, and end with its exit code. None but that of a command is 1: then a result stands."""
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
