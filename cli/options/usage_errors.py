"""What is wrong with a command line, found before the command runs: it quotes options, values and configuration."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

from posbias.cli.console import shown_lines


class Application(TyperGroup):
    """The commands. Errors that Typer finds and prints are made safe to print first."""

    def make_context(self, *arguments: Any, **settings: Any) -> Any:  # noqa: ANN401 - a type of Typer's own
        """Parse the options of the application itself."""
        with _safe_to_print():
            return super().make_context(*arguments, **settings)

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - a type of Typer's own
        """Find the command, parse its options, and run it."""
        with _safe_to_print():
            return super().invoke(ctx)


@contextmanager
def _safe_to_print() -> Generator[None]:
    try:
        yield
    except typer.TyperException as error:
        error.message = shown_lines(error.message)
        raise
