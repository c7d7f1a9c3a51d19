"""Errors of usage: on the command line, and in POSBIAS_* variables.

A variable that begins so is meant for posbias: one that no option has would change nothing in silence, and is refused.
Kubernetes sets some by itself, in every container beside a service whose name begins with `posbias`: they mean nothing.
"""

import difflib
import os
import re
import shlex
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, cast

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from posbias.cli.messages import fail, is_json, speak, tell
from posbias.cli.options.config import DEFAULT_FILE
from posbias.cli.options.help import write_parameters
from posbias.core.errors import UsageError

PREFIX = "POSBIAS_"
_OF_KUBERNETES = re.compile(
    rf"{PREFIX}(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)


def check_environment(environment: Mapping[str, str], known: Collection[str]) -> None:
    """Find variables that are meant for posbias and that it does not know. An empty one counts as not set.

    Args:
        environment: of the process.
        known: the variables of all options.

    Raises:
        UsageError: one is no option's, or holds nothing but blanks.
    """
    for name, value in sorted(environment.items()):
        if not name.upper().startswith(PREFIX) or not value:
            continue
        if name in known:
            if not value.strip():
                raise UsageError(f"{name}: contains only whitespace. Unset it, or give it a value.")
        elif _OF_KUBERNETES.fullmatch(name) is None:
            close = closest(name, known)
            meant = "" if close is None else f"Did you mean {close}? If not, "
            raise UsageError(f"{name}: no such option. {meant}{'r' if meant else 'R'}ename or unset the variable.")


def closest(name: str, known: Collection[str]) -> str | None:
    """The known variable that was probably meant."""
    by_option = {variable.removeprefix(PREFIX): variable for variable in known}
    option = name.upper().removeprefix(PREFIX)
    found = difflib.get_close_matches(option, sorted(by_option), n=1)
    return by_option[found[0]] if found else None


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


_SAID, _WORDS = "posbias.said", "posbias.words"


@dataclass(frozen=True)
class _Said:
    """An option on the command line, as it was written there.

    Attributes:
        option: which one.
        values: that of an option with one value, those of an option with several.
        times: how often it was said.
    """

    option: TyperOption
    values: tuple[object, ...]
    times: int

    def __str__(self) -> str:
        """The option with its values."""
        return " ".join([self.option.opts[0], *([] if self.option.is_flag else map(str, self.values))])


class PosbiasCommand(TyperCommand):
    """A command that remembers what was said on its command line, and has a short help and a long one."""

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - types of Typer's own
        """Write what help says of arguments and options."""
        write_parameters(ctx, self.get_params(ctx), formatter)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ANN401, ARG002 - a type of Typer's own
        """What the line of usage says: arguments by what they are called in help."""
        arguments = [parameter for parameter in self.params if isinstance(parameter, TyperArgument)]
        named = [str(argument.metavar) for argument in arguments]
        return [
            "[OPTIONS]",
            *(name if each.required else f"[{name}]" for name, each in zip(named, arguments, strict=True)),
        ]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - a type of Typer's own
        """Parse, and keep each option that was said, with its values before they are converted.

        Raises:
            BadParameter: a value cannot be what it should; one that was not typed is said to come from where it stands.
        """
        ctx.meta[_WORDS] = list(args)
        values, _, order = self.make_parser(ctx).parse_args(args=list(args))
        options = [parameter for parameter in order if isinstance(parameter, TyperOption)]
        ctx.meta[_SAID] = [
            _Said(option, _values(option, values[option.name or ""]), options.count(option))
            for option in dict.fromkeys(options)
        ]
        looks_only = any(option.name == "print_config" for option in options)
        try:
            with _nothing_required(self.params if looks_only else ()):
                return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            if origin := _origin(ctx, error):
                error.message = f"{error.message.removesuffix('.')}. {origin}"
            raise


@contextmanager
def _nothing_required(parameters: Iterable[Any]) -> Generator[None]:
    """While a command is only looked at, what it would need to run may be missing."""
    required = [parameter for parameter in parameters if parameter.required]
    for parameter in required:
        parameter.required = False
    try:
        yield
    finally:
        for parameter in required:
            parameter.required = True


def _origin(invocation: typer.Context, error: typer.BadParameter) -> str:
    """Where a value comes from that was not typed, or nothing where it was."""
    option = error.param
    source = invocation.get_parameter_source(option.name) if isinstance(option, TyperOption) and option.name else None
    name = "" if source is None else source.name
    if name == "ENVIRONMENT" and isinstance(option, TyperOption):
        return f"It comes from {option.envvar}."
    return f"It comes from {invocation.params.get('config') or DEFAULT_FILE}." if name == "DEFAULT_MAP" else ""


def _values(option: TyperOption, value: object) -> tuple[object, ...]:
    return tuple(cast("list[object]", value)) if option.multiple else (value,)


def check_said(invocation: typer.Context) -> None:
    """Find what means nothing by itself: a variable of no option, an empty value, an option that is said twice.

    Raises:
        UsageError: something means nothing.
    """
    group = cast("TyperGroup", invocation.parent.command) if invocation.parent else None
    commands = group.commands.values() if group is not None else [invocation.command]
    variables = {str(option.envvar) for command in commands for option in command.params if option.envvar}
    check_environment(os.environ, variables)
    for option in _said(invocation):
        _check_option(option)


def check_effects_of(invocation: typer.Context, values: Mapping[str, Any]) -> None:
    """Find options on the command line that would have no effect.

    Raises:
        UsageError: there is one.
    """
    # Plug-ins say what goes with what: they are loaded for a command that runs.
    from posbias.cli.options.effects import Situation, check_effects  # noqa: PLC0415
    from posbias.cli.options.needs import NEEDS  # noqa: PLC0415

    given = {option.option.name or "": str(option) for option in _said(invocation)}
    situation = Situation(invocation.info_name or "", values)
    check_effects(given, NEEDS[situation.command], situation)


def _said(invocation: typer.Context) -> "list[_Said]":
    """The options on the command line."""
    return cast("list[_Said]", invocation.meta[_SAID])


def command_to_try(invocation: typer.Context, options: Sequence[str]) -> str:
    """The command line with further options, as a line to copy; nothing where there are none."""
    if not options:
        return ""
    words = ["posbias", invocation.info_name or "", *options, *cast("list[str]", invocation.meta[_WORDS])]
    return f"\nTry: {shlex.join(words)}"


def _check_option(said: _Said) -> None:
    if any(value == "" for value in said.values):
        raise UsageError(
            f"{said.option.opts[0]} '': is empty. Is a shell variable unset? Give it a value, or leave it out."
        )
    is_switch = said.option.is_flag and not said.option.secondary_opts  # said twice, it means the same
    if said.times > 1 and not said.option.multiple and not is_switch:
        raise UsageError(f"{said.option.opts[0]}: is given {said.times} times, but takes one value. Give it once.")
