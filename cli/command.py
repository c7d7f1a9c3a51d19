"""How a command meets the user: option groups as dataclasses, posbias.toml, errors as one message and exit code 2."""

import inspect
import signal
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from types import NoneType
from typing import Annotated, Any, get_args, get_type_hints

import typer

from posbias.cli.interrupts import stop
from posbias.cli.messages import fail, fail_by_a_fault, speak
from posbias.cli.options.common import CommonOptions
from posbias.cli.options.named_files import check_are_there
from posbias.cli.options.settings import settings_of
from posbias.cli.options.threads import use_threads
from posbias.cli.options.usage import CANNOT_RUN, PosbiasCommand, check_effects_of, check_said, command_to_try
from posbias.core.errors import PosbiasError, RoleError, SchemaError
from posbias.io.places.locations import ObjectUrl


def command(app: typer.Typer) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Register a function as a command: each parameter that is a dataclass stands for its fields, one option each.

    The function returns the exit code.
    """

    def register(function: Callable[..., int]) -> Callable[..., int]:
        groups = {
            name: hint for name, hint in get_type_hints(function, include_extras=True).items() if is_dataclass(hint)
        }

        def call(invocation: typer.Context, values: dict[str, Any]) -> int:
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
            common = CommonOptions(**{entry.name: values.pop(entry.name) for entry in fields(CommonOptions)})
            speak(common.log_format, errors_on_stdout=bool(values.get("json")))

            def work() -> int:
                use_threads(values.get("threads"))
                check_said(invocation)
                if common.print_config:
                    return _print_configuration(invocation)
                check_effects_of(invocation, values)
                check_are_there(values.get("logs") or values.get("inputs") or ())
                from posbias.io.places.local_copies import copies_below  # noqa: PLC0415 - now a command runs

                with copies_below(values.get("temp_dir")):
                    return call(invocation, values)

            raise typer.Exit(guarded(work))

        run.__signature__ = _flattened(function, groups)  # type: ignore[attr-defined]
        app.command(cls=PosbiasCommand)(run)
        return function

    return register


def _flattened(function: Callable[..., int], groups: dict[str, Any]) -> inspect.Signature:
    hints = get_type_hints(function, include_extras=True)
    parameters = [inspect.Parameter("invocation", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)]
    for name, parameter in inspect.signature(function).parameters.items():
        if name not in groups:
            kind = inspect.Parameter.KEYWORD_ONLY
            parameters.append(parameter.replace(kind=kind, annotation=_for_typer(hints[name])))
            continue
        parameters += _parameters_of(groups[name])
    return inspect.Signature([*parameters, *_parameters_of(CommonOptions)])


def _parameters_of(group: Any) -> list[inspect.Parameter]:  # noqa: ANN401 - a class of options
    """A parameter for each field of a group."""
    hints, kind = get_type_hints(group, include_extras=True), inspect.Parameter.KEYWORD_ONLY
    return [
        inspect.Parameter(
            entry.name,
            kind,
            default=inspect.Parameter.empty if entry.default is MISSING else entry.default,
            annotation=_for_typer(hints[entry.name]),
        )
        for entry in fields(group)
    ]


def _for_typer(hint: Any) -> Any:  # noqa: ANN401 - any type of an option
    """The type of a parameter; a `Location` as text, as Typer knows no unions. What reads the text makes it a place."""
    kinds = get_args(hint.__origin__)
    if ObjectUrl not in kinds:
        return hint
    text: Any = str | None if NoneType in kinds else str
    return Annotated[text, *hint.__metadata__]


def _print_configuration(invocation: typer.Context) -> int:
    """Print what every option is set to, and end."""
    from posbias.cli.report.settings import configuration_text  # noqa: PLC0415 - for this alone

    typer.echo(configuration_text(invocation.info_name or "", settings_of(invocation)), nl=False)
    return 0


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
