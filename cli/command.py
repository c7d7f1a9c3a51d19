"""How a command meets the user: option groups as dataclasses, posbias.toml, errors as one message and exit code 2."""

import inspect
import signal
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from typing import Any, get_type_hints

import typer

from posbias.cli.interrupts import stop
from posbias.cli.messages import complain, complain_of_a_fault
from posbias.cli.options.help import HelpAll
from posbias.cli.options.usage import PosbiasCommand, check_usage, command_to_try
from posbias.cli.options.usage_errors import CANNOT_RUN
from posbias.core.errors import PosbiasError, RoleError, SchemaError

_HELP_ALL = "help_all"


def command(app: typer.Typer) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Register a function as a command: each parameter that is a dataclass stands for its fields, one option each.

    The function returns the exit code.
    """

    def register(function: Callable[..., int]) -> Callable[..., int]:
        groups = {
            name: hint for name, hint in get_type_hints(function, include_extras=True).items() if is_dataclass(hint)
        }

        def checked(invocation: typer.Context, values: dict[str, Any]) -> int:
            check_usage(invocation, values)
            grouped: dict[str, Any] = {
                name: group(**{entry.name: values[entry.name] for entry in fields(group)})  # type: ignore[operator]
                for name, group in groups.items()
            }
            try:
                return function(**{name: grouped.get(name, values.get(name)) for name in signature.parameters})
            except RoleError as error:
                raise SchemaError(f"{error}{command_to_try(invocation, error.options)}") from error

        signature = inspect.signature(function)

        @wraps(function)
        def run(invocation: typer.Context, **values: Any) -> None:  # noqa: ANN401
            values.pop(_HELP_ALL)

            def work() -> int:
                from posbias.io.places.local_copies import copies_below  # noqa: PLC0415 - now a command runs

                with copies_below(values.get("temp_dir")):
                    return checked(invocation, values)

            raise typer.Exit(guarded(work))

        run.__signature__ = _flattened(function, groups)  # type: ignore[attr-defined]
        app.command(cls=PosbiasCommand)(run)
        return function

    return register


def _flattened(function: Callable[..., int], groups: dict[str, Any]) -> inspect.Signature:
    parameters = [inspect.Parameter("invocation", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)]
    for name, parameter in inspect.signature(function).parameters.items():
        if name not in groups:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        hints = get_type_hints(groups[name], include_extras=True)
        for entry in fields(groups[name]):
            default = inspect.Parameter.empty if entry.default is MISSING else entry.default
            parameters.append(
                inspect.Parameter(
                    entry.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[entry.name]
                )
            )
    parameters.append(inspect.Parameter(_HELP_ALL, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=HelpAll))
    return inspect.Signature(parameters)


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
        complain(str(error))
    elif isinstance(error, MemoryError):
        complain("out of memory. Ask for less, or give the process more.")
    elif isinstance(error, KeyboardInterrupt):
        stop(signal.SIGINT)
    elif _is_of_polars(error):
        complain(f"Polars failed: {error}")
    else:  # a fault of our own must not pass for a result with doubts (exit code 1)
        complain_of_a_fault()


def _is_of_polars(error: BaseException) -> bool:
    import polars as pl  # noqa: PLC0415 - loaded by what has failed

    return isinstance(error, pl.exceptions.PolarsError | pl.exceptions.PanicException)
