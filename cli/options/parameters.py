"""Options and arguments as parameters of Typer: readers of values, what a shell offers, the short help and the long."""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from glob import glob
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args

import typer
from typer.core import TyperOption

from posbias.cli.options.config import load_defaults
from posbias.cli.options.option import METHODS, OPTIONS, ROWS, SETTINGS, declaration, filled, settings_table
from posbias.core.choices import CLICK_MODELS, FORMATS, FORMS, FREE, LAYOUTS, LEARNERS, SHAPES, settings_in
from posbias.core.errors import LogFormatError, UsageError
from posbias.io.places.locations import Location, ObjectUrl, location
from posbias.io.ranking_names import split_name
from posbias.io.sources import NAMES as SOURCES

_PACKED = (".gz", ".zst", ".bz2")
_PLAIN = re.compile(r"[\w.-]+")  # a shell would act on other characters of a name


def _one_of(names: Iterable[str]) -> Callable[[str], list[str]]:
    """Complete a name."""
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]


def _several_of(names: Iterable[str]) -> Callable[[str], list[str]]:
    """Complete the last of several names with commas."""

    def complete(incomplete: str) -> list[str]:
        done, comma, last = incomplete.rpartition(",")
        rest = [name for name in names if name.startswith(last) and name not in done.split(",")]
        return [f"{done}{comma}{name}" for name in rest]

    return complete


COMPLETERS: Mapping[str, Callable[[str], list[str]]] = {
    "models": _one_of(CLICK_MODELS),
    "several_models": _several_of((*CLICK_MODELS, "all")),
    "methods": _one_of(METHODS),
    "shapes": _one_of((FREE, *SHAPES)),
    "forms": _one_of((*ROWS, *FORMS, *SOURCES)),
    "learners": _one_of(LEARNERS),
    "layouts": _one_of(LAYOUTS),
    "formats": _one_of(FORMATS),
    **{name: _one_of([f"{setting}=" for setting in settings_in(kind)]) for name, kind in SETTINGS.items()},
}
"""What a shell offers, by the names that options.toml gives it."""


def _columns_of_the_log(option: str) -> Callable[[typer.Context, str], list[str]]:
    """Complete a column of the log on the line or, for options about it, of its table of clicks.

    No more than a schema is read, and that of no file in an object store, that would have to be unpacked, or is no
    plain file.
    """

    def complete(invocation: typer.Context, incomplete: str) -> list[str]:
        from posbias.io.log.scan import schema_of  # noqa: PLC0415 - only where a column is to be completed
        from posbias.io.log.sources import find_sources  # noqa: PLC0415 - only where a column is to be completed

        given = invocation.params
        inputs = given.get("clicks") if option.startswith("clicks_") else given.get("logs") or given.get("inputs")
        local = [name for name in inputs or () if "://" not in name]
        files = [file for name in local for file in sorted(glob(name)) + sorted(glob(f"{name}/*"))]  # noqa: PTH207
        first = next((file for file in files if os.path.isfile(file) and not file.endswith(_PACKED)), None)  # noqa: PTH113
        with suppress(BaseException):  # also a panic of Rust
            columns = [] if first is None else list(schema_of(find_sources([first])[0]))
            return [name for name in columns if _PLAIN.fullmatch(name) and name.startswith(incomplete)]
        return []

    return complete


def _read_place(text: str) -> Location:
    """Return the place that an option names.

    Raises:
        BadParameter: it is a URL of no object store.
    """
    try:
        return location(text)
    except UsageError as error:
        raise typer.BadParameter(str(error)) from error


def _read_name(text: str) -> str:
    """Return the name of files, which may be a pattern: of an object store its URL, of a disk as it was typed.

    Raises:
        BadParameter: it is a URL of no object store.
    """
    place = _read_place(text)
    return text if isinstance(place, Path) else str(place)


def _read_ranking(text: str) -> str:
    """Return the name of a file, or NAME=FILE.

    Raises:
        BadParameter: the file is a URL of no object store.
    """
    name, file = split_name(text)
    return _read_name(file) if name is None else f"{name}={_read_name(file)}"


def _on_disk(instead: str) -> Callable[[str], Location | None]:
    """A reader of a path; `instead` says why it cannot be in an object store, and what to do."""

    def read(text: str) -> Location | None:
        place = _read_place(text) if text else None  # an empty value is refused later, with those of other options
        if isinstance(place, ObjectUrl):
            raise typer.BadParameter(f"{place}: {instead}")
        return place

    return read


READERS: Mapping[str, Callable[[str], Any]] = {"name": _read_name, "ranking": _read_ranking, "text": str}
"""Readers of values, by the names that options.toml gives them."""


def parameter_of(command: str, name: str, kind: Any) -> Any:  # noqa: ANN401 - a type, for Typer
    """Annotate the type of a parameter for Typer; places are texts, as Typer knows no unions, and so is NAME=VALUE.

    --position-base is also POSBIAS_POSITION_BASE, unless no variable is to set it.
    """
    entry = declaration(command, name)
    reader = READERS.get(entry.get("reads", ""))
    if ObjectUrl in get_args(kind) or kind is Location:
        kind, reader = str | None if NoneType in get_args(kind) else str, _read_place
    if "on_disk" in entry:
        reader = _on_disk(entry["on_disk"])
    if "argument" in entry:
        return Annotated[kind, typer.Argument(metavar=entry["argument"], help=entry["help"], parser=_not_empty(reader))]
    kind = list[str] | None if name in SETTINGS else kind
    flags = [entry.get("flag", f"--{name.replace('_', '-')}"), *([entry["short"]] if "short" in entry else [])]
    metavar, complete = entry.get("metavar"), COMPLETERS.get(entry.get("complete", ""))
    if (metavar or "").startswith("COLUMN"):
        complete = _columns_of_the_log(name)
    return Annotated[
        kind,
        typer.Option(
            *flags,
            metavar=metavar,
            help=entry["help"],
            min=entry.get("min"),
            max=entry.get("max"),
            parser=reader,
            autocompletion=complete,
            envvar=f"POSBIAS_{name.upper()}" if entry.get("environment", True) else None,
            show_envvar=False,
            rich_help_panel=entry.get("section"),
            callback=_CALLBACKS.get(name),
            is_eager=name in _CALLBACKS,
            expose_value=name != "help_all",
        ),
    ]


def _not_empty(reader: Callable[[str], Any] | None) -> Callable[[str], Any]:
    """A reader of an argument, by default of the name of files; it is never empty."""

    def read(text: str) -> Any:  # noqa: ANN401 - whatever the reader makes of it
        if not text.strip():
            raise typer.BadParameter("it is empty. Is a shell variable unset?")
        return (reader or _read_name)(text)

    return read


_NO_PLAIN_NAME = re.compile(r"[*?\[]|://|^-?$")  # a pattern, a URL, standard input, nothing


def check_are_there(names: Iterable[str]) -> None:
    """Check that plain names of files and directories are such.

    Raises:
        LogFormatError: one is not there.
    """
    for name in names:
        if _NO_PLAIN_NAME.search(name):
            continue
        try:
            Path.cwd()
        except OSError:
            continue  # that the working directory is gone is reported later
        try:
            os.lstat(name)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise LogFormatError(f"{name}: no such file or directory.") from error
        except (OSError, ValueError):
            continue  # reported when it is opened


_WHOLE = "posbias.whole_help"


def _show_all(invocation: typer.Context, wanted: bool) -> None:  # noqa: FBT001 - as Typer calls it
    """Print the help with all options, and end."""
    if wanted and not invocation.resilient_parsing:
        invocation.meta[_WHOLE] = True
        typer.echo(invocation.get_help())
        raise typer.Exit


_CALLBACKS: Mapping[str, Callable[..., Any]] = {"config": load_defaults, "help_all": _show_all}
"""Options that act before the others are read."""


def write_parameters(invocation: Any, parameters: Iterable[Any], formatter: Any) -> None:  # noqa: ANN401 - of Typer
    """Write arguments and options: in sections where all are shown, else the first ones."""
    whole = bool(invocation.meta.get(_WHOLE))
    sections: dict[str, list[tuple[str, str]]] = {}
    for parameter in parameters:
        name, text = parameter.get_help_record(invocation)
        if not isinstance(parameter, TyperOption):
            name, section = parameter.metavar, "Arguments"
        elif whole:
            section = filled(parameter.rich_help_panel or "Options")
        elif parameter.required or OPTIONS.get(str(parameter.name), {"first": True}).get("first"):
            section = "Options"
        else:
            continue
        sections.setdefault(section, []).append((name, filled(text)))
        if whole and parameter.name in SETTINGS:
            sections[f"{parameter.opts[0]} NAME=VALUE"] = [
                (name, f"{about}  [{values}]") for name, values, about in settings_table(parameter.name)
            ]
    for section, rows in sections.items():
        with formatter.section(section):
            formatter.write_dl(rows)
