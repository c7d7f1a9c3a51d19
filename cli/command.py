"""How a command meets the user: option groups as dataclasses, posbias.toml, errors as one message and exit code 2.

Errors of usage: on the command line, and in POSBIAS_* variables.

A variable that begins so is meant for posbias: one that no option has would change nothing in silence, and is refused.
Kubernetes sets some by itself, in every container beside a service whose name begins with `posbias`: they mean nothing.
"""

import difflib
import inspect
import os
import re
import shlex
import signal
from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass
from functools import partial, wraps
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar, cast, get_type_hints

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typer.main import get_command

from posbias.cli.interrupts import stop
from posbias.cli.messages import fail, fail_by_a_fault, is_json, speak, tell
from posbias.cli.options.config import no_setting, settings_of, source_of
from posbias.cli.options.groups import CommonOptions, LogOptions
from posbias.cli.options.option import OPTIONS, SETTINGS
from posbias.cli.options.parameters import check_are_there, parameter_of, write_parameters
from posbias.core.choices import read_settings, settings_in
from posbias.core.errors import PosbiasError, RoleError, SchemaError, UsageError

PREFIX = "POSBIAS_"
_OF_KUBERNETES = re.compile(
    rf"{PREFIX}(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)


def check_environment(environment: Mapping[str, str], known: Collection[str]) -> None:
    """Refuse variables that are meant for posbias and that it does not know. An empty one counts as not set.

    Raises:
        UsageError: one is no option's, or holds nothing but blanks.
    """
    by_option = {variable.removeprefix(PREFIX): variable for variable in known}
    for name, value in sorted(environment.items()):
        if not name.upper().startswith(PREFIX) or not value:
            continue
        if name in known:
            if not value.strip():
                raise UsageError(f"{name}: contains only whitespace. Unset it, or give it a value.")
        elif reason := no_setting(name.upper().removeprefix(PREFIX).lower()):
            raise UsageError(f"{name}: {reason}. Unset the variable.")
        elif _OF_KUBERNETES.fullmatch(name) is None:
            close = difflib.get_close_matches(name.upper().removeprefix(PREFIX), sorted(by_option), n=1)
            advice = f"Did you mean {by_option[close[0]]}? If not, rename" if close else "Rename"
            raise UsageError(f"{name}: no such option. {advice} or unset the variable.")


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
        options = list(takewhile(lambda word: word != "--", words))
        of_messages = "json" if _LOG_FORMAT_JSON.search(" ".join(options)) else "text"
        speak(of_messages, errors_on_stdout="--json" in options)  # before anything can be wrong with them
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
            tell(*invocation.get_usage().splitlines())
            tell(f"Try: {invocation.command_path} --help")
        fail(" ".join(error.format_message().split()), kind="UsageError", exit_code=CANNOT_RUN)
        raise typer.Exit(CANNOT_RUN) from error


_GIVEN, _WORDS = "posbias.given", "posbias.words"


_FILES = ("logs", "inputs")
"""Parameters that name files of a log."""


def _reads_tables(values: Mapping[str, Any]) -> bool:
    """Whether a log is in tables of Spark, where no files are named."""
    of_tables = values.get("table") or values.get("sql")
    return bool(values.get("print_config") or (values.get("engine") == "spark" and of_tables))


class PosbiasCommand(TyperCommand):
    """A command that remembers the options on its command line, and has a short help and a long one."""

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - types of Typer's own
        """Write what help says of arguments and options."""
        write_parameters(ctx, self.get_params(ctx), formatter)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ANN401, ARG002 - a type of Typer's own
        """The words of the line of usage: arguments by their names in help."""
        arguments = [each for each in self.params if isinstance(each, TyperArgument)]
        return ["[OPTIONS]", *(f"{each.metavar}" if each.required else f"[{each.metavar}]" for each in arguments)]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - a type of Typer's own
        """Parse, and keep each option that was given, with its values before they are converted.

        Raises:
            BadParameter: a value cannot be what it should; the message names the origin of one that was not typed.
        """
        if ctx.resilient_parsing and args and args[-1].startswith("-"):
            args = [*args, ""]  # a value is being completed, and the arguments before it count
        ctx.meta[_WORDS] = list(args)
        values, _, order = self.make_parser(ctx).parse_args(args=list(args))
        times = Counter(parameter for parameter in order if isinstance(parameter, TyperOption))
        ctx.meta[_GIVEN] = [
            (option, list(values[option.name]) if option.multiple else [values[option.name]], number)
            for option, number in times.items()
        ]
        required = [each for each in self.params if each.required]
        files = next((each for each in required if each.name in _FILES), None)
        if any(option.name == "print_config" for option in times):
            for parameter in required:  # while a command is only looked at, what it would need to run may be missing
                parameter.required = False
        elif files is not None and not any(option.is_eager for option in times):  # tables of Spark stand in for them
            files.required = False
        try:
            rest = super().parse_args(ctx, args)
        except typer.BadParameter as error:
            where = source_of(ctx, error.param)[1] if isinstance(error.param, TyperOption) else ""
            if where:
                error.message = f"{error.message.removesuffix('.')}. It comes from {where}."
            raise
        finally:
            for parameter in required:
                parameter.required = True
        named = files is None or values.get(files.name) or any(option.name == "table" for option in times)
        if files is not None and not (named or ctx.resilient_parsing or _reads_tables(ctx.params)):
            files.process_value(ctx, None)  # which is missing
        return rest

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - a type of Typer's own
        """Run the command, print its error, and end with its exit code."""
        raise typer.Exit(guarded(partial(self.run, ctx)))

    def run(self, ctx: Any) -> int:  # noqa: ANN401 - a type of Typer's own
        """Run the command, and return its exit code; its errors are raised."""
        return super().invoke(ctx)


def check_given(invocation: typer.Context) -> None:
    """Refuse what means nothing by itself: a variable of no option, an empty value, an option that is given twice.

    Raises:
        UsageError: something means nothing.
    """
    if any(name.upper().startswith(PREFIX) for name in os.environ):
        group = cast("TyperGroup", invocation.parent.command) if invocation.parent else None
        commands = group.commands.values() if group is not None else [invocation.command]
        check_environment(os.environ, {str(each.envvar) for command in commands for each in command.params})
    for option, values, times in _given(invocation):
        flag = option.opts[0]
        if any(value == "" for value in values):
            raise UsageError(f"{flag} '': is empty. Is a shell variable unset? Give it a value, or leave it out.")
        is_switch = option.is_flag and not option.secondary_opts  # given twice, it means the same
        if times > 1 and not option.multiple and not is_switch:
            raise UsageError(f"{flag}: is given {times} times, but takes one value. Give it once.")


def check_effects_of(invocation: typer.Context, values: Mapping[str, Any]) -> None:
    """Refuse options on the command line that would have no effect.

    Raises:
        UsageError: there is one.
    """
    from posbias.cli.options.rules import Situation, check_effects  # noqa: PLC0415 - for a command that runs

    given: dict[str, str] = {}
    for option, typed, _ in _given(invocation):
        flag, texts = option.opts[0], [str(text) for text in typed if not option.is_flag]
        if option.name in SETTINGS:
            given |= {name: f"{flag} {text}" for name, text in zip(values[option.name], texts, strict=True)}
        else:
            given[option.name] = " ".join([flag, *texts])
    situation = dict(values)
    for name in SETTINGS.keys() & values.keys():
        situation |= {setting: entry.default for setting, entry in settings_in(SETTINGS[name]).items()}
        situation |= values[name] or {}
    check_effects(given, Situation(invocation.info_name or "", situation))


def _given(invocation: typer.Context) -> list[tuple[TyperOption, list[object], int]]:
    """The options on the command line, each with its values as they were written, and how often it was given."""
    return invocation.meta[_GIVEN]


_SETTINGS = ("POLARS_MAX_THREADS", "OMP_NUM_THREADS")  # the latter is LightGBM's


def use_threads(number: int | None) -> None:
    """Let what is loaded from now on work with so many threads; None: with all, or as the environment says.

    Polars reads its setting once, when it is loaded.

    Raises:
        UsageError: the environment says what `--threads` would not take.
    """
    if number is not None:
        os.environ.update(dict.fromkeys(_SETTINGS, str(number)))
    text = os.environ.get(_SETTINGS[0]) or "1"
    most = OPTIONS["threads"]["max"]  # to start more takes minutes
    if not (re.fullmatch("[0-9]{1,9}", text) and 1 <= int(text) <= most):
        raise UsageError(f"{_SETTINGS[0]}={text}: is no number from 1 to {most}. Set another, or none.")


_Group = TypeVar("_Group")


def _group(kind: type[_Group], values: Mapping[str, Any]) -> _Group:
    """A group of options with their values."""
    return kind(**{entry.name: values[entry.name] for entry in fields(cast("Any", kind))})


def command(function: Callable[..., int]) -> PosbiasCommand:
    """Make a command of a function that returns the exit code.

    Each parameter that is a dataclass stands for its fields, one option each.
    """
    hints = get_type_hints(function)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters = [inspect.Parameter("invocation", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)]

    def add(name: str, kind: Any, default: Any) -> None:  # noqa: ANN401 - of Typer
        kind = parameter_of(function.__name__, name, kind)
        default = inspect.Parameter.empty if default is MISSING else default
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind))

    for name, given in {**inspect.signature(function).parameters, "common": None}.items():
        if given is not None and name not in groups:
            add(name, hints[name], given.default)
            continue
        for entry in fields(CommonOptions if given is None else groups[name]):
            add(entry.name, entry.type, entry.default)

    def call(invocation: typer.Context, values: dict[str, Any]) -> int:
        try:
            return function(
                **{
                    name: _group(groups[name], values) if name in groups else values[name]
                    for name in hints
                    if name != "return"
                }
            )
        except RoleError as error:
            words = ["posbias", invocation.info_name or "", *error.options, *invocation.meta[_WORDS]]
            raise SchemaError(*error.lines, *([f"Try: {shlex.join(words)}"] if error.options else [])) from error

    @wraps(function)
    def run(invocation: typer.Context, **values: Any) -> int:  # noqa: ANN401
        common = _group(CommonOptions, {"help_all": False, **values})
        speak(common.log_format, errors_on_stdout=bool(values.get("json")))
        use_threads(values.get("threads"))
        check_given(invocation)
        if common.print_config:
            from posbias.cli.report.shown import configuration_text  # noqa: PLC0415 - for this alone

            typer.echo(configuration_text(invocation.info_name or "", settings_of(invocation)), nl=False)
            return 0
        for name in SETTINGS.keys() & values.keys():
            values[name] = read_settings(f"--{name.replace('_', '-')}", values[name] or (), SETTINGS[name]) or None
        check_effects_of(invocation, values)
        check_are_there(values.get("logs") or values.get("inputs") or ())
        from posbias.io.places.object_stores import copies_below  # noqa: PLC0415 - now a command runs

        with copies_below(values.get("temp_dir")), tables_of(invocation.info_name or "", values):
            return call(invocation, values)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    alone = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    alone.command(cls=PosbiasCommand)(run)
    return cast("PosbiasCommand", get_command(alone))


@contextmanager
def tables_of(command: str, values: dict[str, Any]) -> Generator[None]:
    """Let tables of Spark be read while a command runs that names some; their names take the place of files."""
    if "engine" not in values or not _reads_tables(values):
        yield
        return
    from posbias.cli.options.inputs import names_of_tables  # noqa: PLC0415 - only for tables
    from posbias.io.engines.spark_session import tables_below  # noqa: PLC0415 - only for tables
    from posbias.io.places.temporary import shared_place  # noqa: PLC0415 - only for tables

    files = next(name for name in _FILES if name in values)
    values[files] = names_of_tables(_group(LogOptions, values), values[files] or []) or values[files]
    place = shared_place(values["temp_dir"], values.get("into") or values.get("output") or Path(command))
    with tables_below(
        place, values["master"], every_column=command == "check", every_row=not values.get("dry_run", False)
    ):
        yield


def guarded(work: Callable[[], int]) -> int:
    """The exit code of some work; where it fails, its error is printed, and the code says that nothing was written."""
    try:
        return work()
    except (SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001 - a panic of Rust is no Exception
        _explain(error)
    return CANNOT_RUN


def _explain(error: BaseException) -> None:
    """Print what went wrong, and end where the user has stopped the process."""
    if isinstance(error, PosbiasError):
        fail(*error.lines, kind=type(error).__name__, exit_code=CANNOT_RUN)
    elif isinstance(error, MemoryError):
        fail("out of memory. Ask for less, or give the process more.", kind="MemoryError", exit_code=CANNOT_RUN)
    elif isinstance(error, KeyboardInterrupt):
        stop(signal.SIGINT)
    elif _is_of_polars(error):
        fail(f"Polars failed: {error}", kind="PolarsError", exit_code=CANNOT_RUN)
    elif isinstance(error, FileNotFoundError) and _is_nowhere():
        gone = "the current directory is gone. Change to another one, or name files in full."
        fail(gone, kind="OutputError", exit_code=CANNOT_RUN)
    else:  # a fault of our own must not pass for a result with doubts (exit code 1)
        fail_by_a_fault(CANNOT_RUN)


def _is_nowhere() -> bool:
    """Whether the current directory is gone."""
    try:
        Path.cwd()
    except FileNotFoundError:
        return True
    return False


def _is_of_polars(error: BaseException) -> bool:
    import polars as pl  # noqa: PLC0415 - loaded by what has failed

    return isinstance(error, pl.exceptions.PolarsError | pl.exceptions.PanicException)
