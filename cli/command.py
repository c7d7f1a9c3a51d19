"""How a command meets the user: option groups as dataclasses, posbias.toml, errors as one message and exit code 2."""

import inspect
import signal
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from typing import Annotated, Any, cast, get_type_hints

import typer
from typer.main import get_command

from posbias.cli.interrupts import stop
from posbias.cli.messages import fail, fail_by_a_fault, speak
from posbias.cli.options.common import CommonOptions
from posbias.cli.options.named_files import check_are_there
from posbias.cli.options.option import annotated
from posbias.cli.options.settings import settings_of
from posbias.cli.options.threads import use_threads
from posbias.cli.options.usage import CANNOT_RUN, PosbiasCommand, check_effects_of, check_said, command_to_try
from posbias.core.errors import PosbiasError, RoleError, SchemaError


def command(function: Callable[..., int]) -> PosbiasCommand:
    """Make a command of a function that returns the exit code.

    Each parameter that is a dataclass stands for its fields, one option each.
    """
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters = [inspect.Parameter("invocation", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)]
    for name, given in inspect.signature(function).parameters.items():
        parameters += _parameters_of(groups[name]) if name in groups else [_parameter(name, hints[name], given.default)]
    parameters += _parameters_of(CommonOptions)

    def call(invocation: typer.Context, values: dict[str, Any]) -> int:
        grouped = {
            name: group(**{entry.name: values.pop(entry.name) for entry in fields(group)})
            for name, group in groups.items()
        }
        try:
            return function(**values, **grouped)
        except RoleError as error:
            raise SchemaError(f"{error}{command_to_try(invocation, error.options)}") from error

    @wraps(function)
    def run(invocation: typer.Context, **values: Any) -> None:  # noqa: ANN401
        common = CommonOptions(**{entry.name: values.pop(entry.name) for entry in fields(CommonOptions)})
        speak(common.log_format, errors_on_stdout=bool(values.get("json")))

        def work() -> int:
            use_threads(values.get("threads"))
            check_said(invocation)
            if common.print_config:
                from posbias.cli.report.settings import configuration_text  # noqa: PLC0415 - for this alone

                typer.echo(configuration_text(invocation.info_name or "", settings_of(invocation)), nl=False)
                return 0
            check_effects_of(invocation, values)
            check_are_there(values.get("logs") or values.get("inputs") or ())
            from posbias.io.places.local_copies import copies_below  # noqa: PLC0415 - now a command runs

            with copies_below(values.get("temp_dir")):
                return call(invocation, values)

        raise typer.Exit(guarded(work))

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    alone = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    alone.command(cls=PosbiasCommand)(run)
    return cast("PosbiasCommand", get_command(alone))


def _parameters_of(group: Any) -> list[inspect.Parameter]:  # noqa: ANN401 - a class of options
    return [_parameter(entry.name, Annotated[entry.type, entry.metadata], entry.default) for entry in fields(group)]


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:  # noqa: ANN401 - for Typer
    annotation = annotated(name, annotation.__origin__, annotation.__metadata__[0])
    default = inspect.Parameter.empty if default is MISSING else default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


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
        fail(str(error), type(error).__name__, CANNOT_RUN)
    elif isinstance(error, MemoryError):
        fail("out of memory. Ask for less, or give the process more.", "MemoryError", CANNOT_RUN)
    elif isinstance(error, KeyboardInterrupt):
        stop(signal.SIGINT)
    elif _is_of_polars(error):
        fail(f"Polars failed: {error}", "PolarsError", CANNOT_RUN)
    else:  # a fault of our own must not pass for a result with doubts (exit code 1)
        fail_by_a_fault(CANNOT_RUN)


def _is_of_polars(error: BaseException) -> bool:
    import polars as pl  # noqa: PLC0415 - loaded by what has failed

    return isinstance(error, pl.exceptions.PolarsError | pl.exceptions.PanicException)
