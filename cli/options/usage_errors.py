"""The commands together: what is wrong with a command line is said as every other error is."""

import re
from collections.abc import Generator
from contextlib import contextmanager
from itertools import takewhile
from typing import Any

import typer
from typer.core import TyperGroup

from posbias.cli.messages import fail, is_json, speak, tell

CANNOT_RUN = 2

_LOG_FORMAT_JSON = re.compile(r"(^|\s)--log-format[= ]json(\s|$)")


class Application(TyperGroup):
    """The commands. Errors that Typer finds are printed here: they quote options, values and configuration."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - a type of Typer's own
        """Parse the options of the application itself; without a command, help is shown."""
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help(), err=True)
            raise typer.Exit(CANNOT_RUN)
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401, ARG002 - types of Typer's own
        """Write what each command does, in full."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, (each.help or "").split("\n\n")[0]) for name, each in self.commands.items()])

    def make_context(self, name: str | None, words: list[str], *arguments: Any, **settings: Any) -> Any:  # noqa: ANN401 - a type of Typer's own
        """Parse the options of the application itself."""
        said = list(takewhile(lambda word: word != "--", words))
        of_messages = "json" if _LOG_FORMAT_JSON.search(" ".join(said)) else "text"
        speak(of_messages, errors_on_stdout="--json" in said)  # before anything can be wrong with them
        with _reported():
            return super().make_context(name, words, *arguments, **settings)

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - a type of Typer's own
        """Find the command, parse its options, and run it."""
        with _reported():
            return super().invoke(ctx)


@contextmanager
def _reported() -> Generator[None]:
    try:
        yield
    except typer.TyperException as error:
        invocation: Any = getattr(error, "ctx", None)
        if invocation is not None and not is_json():
            tell(f"{invocation.get_usage()}")
            tell(f"Try: {invocation.command_path} --help")
        fail(error.format_message(), "UsageError", CANNOT_RUN)
        raise typer.Exit(CANNOT_RUN) from error
