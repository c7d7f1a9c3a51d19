"""Commands as functions: options are keyword arguments, errors are exceptions, and a result is an object.

A call is turned into the words of a command line and parsed by the command itself, so that options, their defaults and
what is refused are written once.
"""

import difflib
import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, TypeVar, cast

import typer
from typer.core import TyperGroup, TyperOption
from typer.main import get_command

from posbias.cli.command import PosbiasCommand
from posbias.cli.main import app
from posbias.cli.messages import captured
from posbias.cli.options.config import checked_values
from posbias.cli.options.option import OPTIONS, filled, is_table
from posbias.core.errors import RoleError, SchemaError, UsageError
from posbias.frames import FRAME, FrameFiles, frame_files, is_of_spark, is_single
from posbias.io.places.locations import Location, location
from posbias.io.places.ownership import owned_directory, system_temporary

_R_co = TypeVar("_R_co", covariant=True)


class Call(Protocol[_R_co]):
    """A command as a function: what it reads, then its options by keyword."""

    def __call__(self, inputs: object = (), /, **options: object) -> _R_co:
        """Run the command; `help` of the function lists its options."""
        ...


@dataclass(frozen=True)
class Outcome:
    """The end of a command."""

    inputs: tuple[object, ...]  # as they were handed in
    place: Location | None  # of its result, if it writes one
    temporary: ExitStack  # removes the result, if nobody named a place for it
    content: dict[str, Any]  # what it prints as JSON, if it writes none
    warnings: tuple[str, ...]


def carried_out(
    name: str, inputs: object, options: Mapping[str, object], defaults: Mapping[str, object] | None = None
) -> Outcome:
    """Run a command in this process.

    Args:
        name: the command.
        inputs: names of files, frames or results; one, or several.
        options: by parameter name; None leaves an option at its default.
        defaults: below the options, as a configuration file has them: one without an effect is ignored.

    Raises:
        PosbiasError: whatever the command ends with.
    """
    command = command_named(name)
    by_name = _options(command)
    _check_names(name, options, by_name)
    named = (inputs,) if is_single(inputs) else tuple(cast("Iterable[object]", inputs))
    target = options.get("output") or options.get("into")
    with frame_files() as files, ExitStack() as temporary, captured() as kept:
        words = [word for key, value in options.items() for word in _words(by_name[key], value, files)]
        if target is None and "output" in by_name:
            target = temporary.enter_context(owned_directory(system_temporary().absolute())) / "result"
            words += ["--output", str(target)]
        words += ["--quiet"] * ("quiet" in by_name) + ["--json"] * (target is None)
        of_spark = [value for value in named if options.get("engine") == "spark" and is_of_spark(value)]
        words += [f"--table={files.table_of(value)}" for value in of_spark]
        read = [files.plain(value, FRAME) for value in named if not any(value is one for one in of_spark)]
        for value in read:
            if not isinstance(value, str):
                raise UsageError(f"posbias.{name}: reads files, frames and results, not {type(value).__name__}.")
        words += ["--", *map(str, read)]
        try:
            with command.make_context(name, words, parent=_application(), default_map=dict(defaults or {})) as call:
                command.run(call)
        except typer.TyperException as error:
            raise UsageError(error.format_message()) from None
        except SchemaError as error:
            raise error.__cause__ if isinstance(error.__cause__, RoleError) else error from None
        place = None if target is None else location(str(files.plain(target, "output")))
        content = cast("dict[str, Any]", kept.content or {})
        return Outcome(named, place, temporary.pop_all(), content, tuple(kept.warnings))


@cache
def _application() -> typer.Context:
    application = get_command(app)
    return typer.Context(application, info_name="posbias", **application.context_settings)


def command_named(name: str) -> PosbiasCommand:
    """A command of the command line."""
    return cast("PosbiasCommand", cast("TyperGroup", _application().command).commands[name])


def _options(command: PosbiasCommand) -> dict[str, TyperOption]:
    """The options of a command by parameter name."""
    return {
        str(each.name): each for each in command.params if isinstance(each, TyperOption) and each.name != "help_all"
    }


def _check_names(name: str, options: Mapping[str, object], known: Mapping[str, TyperOption]) -> None:
    for option in options:
        if option not in known:
            close = difflib.get_close_matches(option, sorted(known), n=1)
            hint = f"Did you mean {close[0]}?" if close else f"help(posbias.{name}) lists them."
            raise UsageError(f"posbias.{name}({option}=...): no such option. {hint}")
        if reason := OPTIONS[option].get("python"):
            raise UsageError(f"posbias.{name}({option}=...): is for the command line: {reason}.")


def _words(option: TyperOption, value: object, files: FrameFiles) -> list[str]:
    """An option as words of a command line.

    Raises:
        UsageError: the value is of a type that the option does not take.
    """
    if value is None:
        return []
    name = str(option.name)
    if is_table(name, value) or is_single(value):
        settings = checked_values(name, files.plain(value, f"the frame of {name}"), option)
    else:
        several = cast("Iterable[object]", value)
        settings = checked_values(name, [files.plain(each, f"the frame of {name}") for each in several], option)
    words: list[str] = []
    for each in cast("list[object]", settings) if isinstance(settings, list) else [settings]:
        if isinstance(each, bool):
            words += option.opts[:1] if each else option.secondary_opts[:1]
        else:
            words.append(f"{max(option.opts, key=len)}={each}")
    return words


def function_of(name: str, result_of: Callable[[Outcome], _R_co]) -> Call[_R_co]:
    """A command as a function, with its help as the docstring and its options as the signature.

    Args:
        name: the command.
        result_of: makes what is returned.
    """

    def call(inputs: object = (), /, **options: object) -> _R_co:
        outcome = carried_out(name, inputs, options)
        result = result_of(outcome)
        for sentence in outcome.warnings:
            warnings.warn(sentence, stacklevel=2)
        return result

    command = command_named(name)
    options = {key: option for key, option in _options(command).items() if "python" not in OPTIONS[key]}
    parameters = [inspect.Parameter("inputs", inspect.Parameter.POSITIONAL_ONLY, default=())]
    listed: list[str] = []
    for key, option in options.items():
        default = None if option.required else option.default
        parameters.append(inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=default))
        listed.append(f"    {key}: {filled(option.help or '')}")
    about, _, _ = (command.help or "").partition("\n\nExample")
    call.__name__ = call.__qualname__ = name
    call.__module__ = "posbias"
    call.__doc__ = "\n".join([about, "", f"The options are those of `posbias {name}`:", "", *listed])
    cast("Any", call).__signature__ = inspect.Signature(parameters)
    return call
