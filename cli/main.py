"""The Typer application: commands made from plain functions, their parsing, and their errors.

Groups of options are dataclasses. The command line takes precedence over POSBIAS_* variables, and these over
posbias.toml. An error is one message and exit code 2. A POSBIAS_* variable without an option is refused, as it would
silently change nothing; variables that Kubernetes sets for a service called `posbias...` are ignored.
"""

import difflib
import inspect
import os
import re
import shlex
import signal
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, partial, wraps
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast, get_type_hints

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typer.main import get_command

from posbias.cli import interrupts, messages
from posbias.cli.options.config import origin_of, why_not_settable
from posbias.cli.options.groups import SETTINGS, CommonOptions, LogOptions
from posbias.cli.options.option import check_inputs_exist, declarations, parameter_of, read_plainly, write_parameters
from posbias.core.choices import read_settings, settings_of
from posbias.core.errors import PosbiasError, RoleError, SchemaError, UsageError

_HELP = """Estimate position bias from click logs, and write training files that correct for it.

Clicks are biased: results higher up get more attention. posbias estimates how likely each position is to be examined,
with standard errors, and writes training files whose weights correct for that.

Start with: posbias run LOG -o DIR
"""

CANNOT_RUN = 2

_COMMANDS = (
    *("run", "check", "collect", "sql", "fit", "weight", "train", "score", "export", "predict", "evaluate"),
    *("interleave", "explore"),
    *("compare", "report", "show", "simulate", "demo"),
)


def _function(name: str) -> Callable[..., int]:
    return getattr(import_module("posbias.cli.commands"), name)


@cache
def _command(name: str) -> "PosbiasCommand":
    return command(_function(name))


class _Commands(Mapping[str, "PosbiasCommand"]):
    """Commands by name, each made on its first lookup."""

    def __getitem__(self, name: str) -> "PosbiasCommand":
        if name not in _COMMANDS:
            raise KeyError(name)
        return _command(name)

    def __iter__(self) -> Iterator[str]:
        return iter(_COMMANDS)

    def __len__(self) -> int:
        return len(_COMMANDS)


_LOG_FORMAT_JSON = re.compile(r"(^|\s)--log-format[= ]json(\s|$)")


class Application(TyperGroup):
    """The application with its commands; prints Typer's own errors, as they quote values and configuration."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 - of Typer
        super().__init__(**settings)
        self.commands = cast("Any", _Commands())

    def get_params(self, ctx: Any) -> list[Any]:  # noqa: ANN401 - types of Typer's own
        """Return all parameters, with that of help."""
        return read_plainly(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - a type of Typer's own
        """Parse the options of the application itself; without a command, print the help."""
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help(), err=True)
            raise typer.Exit(CANNOT_RUN)
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401, ARG002 - types of Typer's own
        """List the commands by the docstrings of their functions: making all commands would take longer."""
        with formatter.section("Commands"):
            about = {name: inspect.getdoc(_function(name)) or "" for name in _COMMANDS}
            formatter.write_dl([(name, text.split("\n\n")[0]) for name, text in about.items()])

    def make_context(self, name: str | None, words: list[str], *arguments: Any, **settings: Any) -> Any:  # noqa: ANN401 - a type of Typer's own
        """Set the format of messages, which parsing may already print, and parse the application's own options."""
        options = list(takewhile(lambda word: word != "--", words))
        log_format = "json" if _LOG_FORMAT_JSON.search(" ".join(options)) else "text"
        messages.set_format(log_format, errors_on_stdout="--json" in options)
        with _printing_usage_errors():
            return super().make_context(name, words, *arguments, **settings)

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - a type of Typer's own
        """Parse the options of the command, and run it."""
        with _printing_usage_errors():
            return super().invoke(ctx)


@contextmanager
def _printing_usage_errors() -> Generator[None]:
    try:
        yield
    except typer.TyperException as error:
        invocation: Any = getattr(error, "ctx", None)
        if invocation is not None and not messages.is_json():
            messages.print_message(*invocation.get_usage().splitlines())
            messages.print_message(f"Try: {invocation.command_path} --help")
        messages.print_failure(" ".join(error.format_message().split()), kind="UsageError", exit_code=CANNOT_RUN)
        raise typer.Exit(CANNOT_RUN) from error


app = typer.Typer(
    name="posbias",
    cls=Application,
    help=_HELP,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - as Typer calls it
    if wanted:
        from importlib.metadata import version  # noqa: PLC0415 - takes as long as the rest of the start

        typer.echo(f"posbias {version('posbias')}")
        raise typer.Exit


@app.callback()
def _application(
    *,
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Options of the application itself."""


def main() -> None:
    """Run the command line, and exit with its code: 1 only from a command whose result is written."""

    def run() -> int:
        try:
            app()
        except SystemExit as done:
            return done.code if isinstance(done.code, int) else 0
        return 0

    interrupts.install()
    messages.escape_warnings()
    try:
        code = exit_code_of(run)
        lost = messages.write_error(sys.stdout)
        if lost is not None and not code:  # help, or the version
            messages.print_message(f"stdout cannot be written: {lost}.", level="error")
            code = CANNOT_RUN
        sys.exit(code)
    finally:
        interrupts.ignore()


def exit_code_of(work: Callable[[], int]) -> int:
    """Return the exit code of a callable; if it raises, print the error and return `CANNOT_RUN`."""
    fail = partial(messages.print_failure, exit_code=CANNOT_RUN)
    try:
        return work()
    except (SystemExit, GeneratorExit):
        raise
    except PosbiasError as error:
        fail(*error.lines, kind=type(error).__name__)
    except MemoryError:
        fail("out of memory. Ask for less, or give the process more.", kind="MemoryError")
    except KeyboardInterrupt:
        interrupts.stop(signal.SIGINT)
    except BaseException as error:  # noqa: BLE001 - a panic of Rust is no Exception
        import polars as pl  # noqa: PLC0415 - help and usage errors do not load it

        if isinstance(error, pl.exceptions.PolarsError | pl.exceptions.PanicException):
            fail(f"Polars failed: {error}", kind="PolarsError")
        elif isinstance(error, FileNotFoundError) and _cwd_is_gone():
            fail("the current directory is gone. Change to another one, or name files in full.", kind="OutputError")
        else:  # a bug must not look like a result with doubts (exit code 1)
            messages.print_bug(CANNOT_RUN)
    return CANNOT_RUN


def _cwd_is_gone() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return True
    return False


_GIVEN, _WORDS = "posbias.given", "posbias.words"  # keys of a context's `meta`
_FILES = ("logs", "inputs")
"""Parameters that name files of a log."""


def _needs_no_files(values: Mapping[str, Any]) -> bool:
    """Whether the log is in tables of Spark, or only the configuration is printed."""
    tables = values.get("table") or values.get("sql")
    return bool(values.get("print_config") or (values.get("engine") == "spark" and tables))


class PosbiasCommand(TyperCommand):
    """A command with a short and a long help, whose context records the options of the command line."""

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - types of Typer's own
        """Write the help of arguments and options."""
        write_parameters(ctx, self.get_params(ctx), formatter)

    def get_params(self, ctx: Any) -> list[Any]:  # noqa: ANN401 - types of Typer's own
        """Return all parameters, `--help` included."""
        return read_plainly(super().get_params(ctx))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ANN401, ARG002 - a type of Typer's own
        """Return the words of the usage line, arguments by their metavars."""
        arguments = [each for each in self.params if isinstance(each, TyperArgument)]
        return ["[OPTIONS]", *(f"{each.metavar}" if each.required else f"[{each.metavar}]" for each in arguments)]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - a type of Typer's own
        """Parse, and record each option of the command line with its unconverted values.

        Raises:
            BadParameter: a value cannot be converted; the message names the variable or the file it comes from.
        """
        if ctx.resilient_parsing and args and args[-1].startswith("-"):
            args = [*args, ""]  # completion of a value: the arguments before it must be parsed
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
            for parameter in required:
                parameter.required = False
        elif files is not None and not any(option.is_eager for option in times):  # perhaps tables of Spark are named
            files.required = False
        try:
            rest = super().parse_args(ctx, args)
        except typer.BadParameter as error:
            where = origin_of(ctx, error.param)[1] if isinstance(error.param, TyperOption) else ""
            if where:
                error.message = f"{error.message.removesuffix('.')}. It comes from {where}."
            raise
        finally:
            for parameter in required:
                parameter.required = True
        named = files is None or values.get(files.name) or any(option.name == "table" for option in times)
        if files is not None and not (named or ctx.resilient_parsing or _needs_no_files(ctx.params)):
            files.process_value(ctx, None)  # raises MissingParameter
        return rest

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - a type of Typer's own
        """Run the command, print its error, and exit with its code."""
        raise typer.Exit(exit_code_of(partial(self.run, ctx)))

    def run(self, ctx: Any) -> int:  # noqa: ANN401 - a type of Typer's own
        """Run the command and return its exit code; raise its errors."""
        return super().invoke(ctx)


PREFIX = "POSBIAS_"
_KUBERNETES = re.compile(
    rf"{PREFIX}(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)


def _check_environment(invocation: typer.Context) -> None:
    """Validate the names of non-empty POSBIAS_* variables.

    Raises:
        UsageError: a variable belongs to no option, or is blank.
    """
    variables = sorted(name for name, value in os.environ.items() if name.upper().startswith(PREFIX) and value)
    if not variables:
        return
    group = cast("TyperGroup", invocation.parent.command) if invocation.parent else None
    commands = group.commands.values() if group is not None else [invocation.command]
    option_variables = {str(each.envvar) for command in commands for each in command.params}
    by_option = {variable.removeprefix(PREFIX): variable for variable in option_variables}
    for name in variables:
        option = name.upper().removeprefix(PREFIX)
        if name in option_variables:
            if not os.environ[name].strip():
                raise UsageError(f"{name}: contains only whitespace. Unset it, or give it a value.")
        elif reason := why_not_settable(option.lower()):
            raise UsageError(f"{name}: {reason}. Unset the variable.")
        elif _KUBERNETES.fullmatch(name) is None:
            close = difflib.get_close_matches(option, sorted(by_option), n=1)
            advice = f"Did you mean {by_option[close[0]]}? If not, rename" if close else "Rename"
            raise UsageError(f"{name}: no such option. {advice} or unset the variable.")


def _check_given(invocation: typer.Context) -> None:
    """Validate the options of the command line.

    Raises:
        UsageError: a value is empty, or an option for one value is given twice.
    """
    for option, values, times in invocation.meta[_GIVEN]:
        flag = option.opts[0]
        if any(value == "" for value in values):
            raise UsageError(f"{flag} '': is empty. Is a shell variable unset? Give it a value, or leave it out.")
        is_switch = option.is_flag and not option.secondary_opts  # may be repeated
        if times > 1 and not option.multiple and not is_switch:
            raise UsageError(f"{flag}: is given {times} times, but takes one value. Give it once.")


def _check_effects(invocation: typer.Context, values: Mapping[str, Any]) -> None:
    """Raise UsageError if an option of the command line has no effect."""
    from posbias.cli.options.rules import Situation, check_effects  # noqa: PLC0415 - for a command that runs

    given: dict[str, str] = {}
    for option, typed, _ in invocation.meta[_GIVEN]:
        flag, texts = option.opts[0], [str(text) for text in typed if not option.is_flag]
        if option.name in SETTINGS:
            given |= {name: f"{flag} {text}" for name, text in zip(values[option.name], texts, strict=True)}
        else:
            given[option.name] = " ".join([flag, *texts])
    situation = dict(values)
    for name in SETTINGS.keys() & values.keys():
        situation |= {setting: entry.default for setting, entry in settings_of(SETTINGS[name]).items()}
        situation |= values[name] or {}
    check_effects(given, Situation(invocation.info_name or "", situation))


_THREAD_VARIABLES = ("POLARS_MAX_THREADS", "OMP_NUM_THREADS")  # the latter is LightGBM's


def _set_threads(number: int | None) -> None:
    """Set the threads of Polars and LightGBM, before they are loaded; None leaves the environment as it is.

    Raises:
        UsageError: POLARS_MAX_THREADS is not in the range of `--threads`.
    """
    if number is not None:
        os.environ.update(dict.fromkeys(_THREAD_VARIABLES, str(number)))
    text = os.environ.get(_THREAD_VARIABLES[0]) or "1"
    most = declarations().options["threads"]["max"]  # to start more takes minutes
    if not (re.fullmatch("[0-9]{1,9}", text) and 1 <= int(text) <= most):
        raise UsageError(f"{_THREAD_VARIABLES[0]}={text}: is no number from 1 to {most}. Set another, or none.")


_Group = TypeVar("_Group")


def _group(kind: type[_Group], values: Mapping[str, Any]) -> _Group:
    """Make a group of options from the values of all options."""
    return kind(**{entry.name: values[entry.name] for entry in fields(cast("Any", kind))})


def command(function: Callable[..., int]) -> PosbiasCommand:
    """Make a command from a function that returns the exit code.

    A dataclass parameter becomes one option per field, any other parameter one option or argument.
    """
    hints = get_type_hints(function)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    entries: list[tuple[str, Any, Any]] = []  # name, type, default
    for name, given in inspect.signature(function).parameters.items():
        if name in groups:
            entries += [(entry.name, entry.type, entry.default) for entry in fields(groups[name])]
        else:
            entries.append((name, hints[name], given.default))
    entries += [(entry.name, entry.type, entry.default) for entry in fields(CommonOptions)]
    keyword, empty = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.empty
    parameters = [inspect.Parameter("invocation", keyword, annotation=typer.Context)]
    for name, kind, given in entries:
        default, annotation = empty if given is MISSING else given, parameter_of(function.__name__, name, kind)
        parameters.append(inspect.Parameter(name, keyword, default=default, annotation=annotation))

    @wraps(function)
    def run(invocation: typer.Context, **values: Any) -> int:  # noqa: ANN401 - of whatever types the options have
        common = _group(CommonOptions, {"help_all": False, **values})
        messages.set_format(common.log_format, errors_on_stdout=bool(values.get("json")))
        _set_threads(values.get("threads"))
        _check_environment(invocation)
        _check_given(invocation)
        if common.print_config:
            from posbias.cli.options.config import configuration_text  # noqa: PLC0415 - only here

            typer.echo(configuration_text(invocation), nl=False)
            return 0
        for name in SETTINGS.keys() & values.keys():
            values[name] = read_settings(f"--{name.replace('_', '-')}", values[name] or (), SETTINGS[name]) or None
        _check_effects(invocation, values)
        check_inputs_exist(values.get("logs") or values.get("inputs") or ())
        from posbias.io.places.object_stores import copies_below  # noqa: PLC0415 - only for a command that runs

        with copies_below(values.get("temp_dir")), _spark_tables(invocation.info_name or "", values):
            arguments = {
                name: _group(groups[name], values) if name in groups else values[name]
                for name in hints
                if name != "return"
            }
            try:
                return function(**arguments)
            except RoleError as error:
                words = ["posbias", invocation.info_name or "", *error.options, *invocation.meta[_WORDS]]
                advice = [f"Try: {shlex.join(words)}"] if error.options else []
                raise SchemaError(*error.lines, *advice) from error

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    alone = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    alone.command(cls=PosbiasCommand)(run)
    return cast("PosbiasCommand", get_command(alone))


@contextmanager
def _spark_tables(command: str, values: dict[str, Any]) -> Generator[None]:
    """Make tables of Spark readable while the block runs, and set their names in place of files in `values`."""
    if "engine" not in values or not _needs_no_files(values):
        yield
        return
    from posbias.cli.options.inputs import table_names  # noqa: PLC0415 - only for tables
    from posbias.io.engines.spark_session import tables_below  # noqa: PLC0415 - only for tables
    from posbias.io.places.temporary import shared_place  # noqa: PLC0415 - only for tables

    files = next(name for name in _FILES if name in values)
    values[files] = table_names(_group(LogOptions, values), values[files] or []) or values[files]
    place = shared_place(values["temp_dir"], values.get("into") or values.get("output") or Path(command))
    with tables_below(
        place, values["master"], every_column=command == "check", every_row=not values.get("dry_run", False)
    ):
        yield
