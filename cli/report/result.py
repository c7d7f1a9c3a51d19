"""One result of a command: the directory that is written, and what is said meanwhile."""

import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from posbias.cli import streams
from posbias.cli.console import say, stderr_console
from posbias.cli.interrupts import result_stands
from posbias.cli.messages import complain, is_json, tell, warn
from posbias.cli.options.output import OutputOptions
from posbias.cli.options.reading import ReadingOptions
from posbias.cli.report.curve import Curve
from posbias.cli.report.progress import show_progress
from posbias.cli.report.table import renderable
from posbias.io.jobs.result import WITH_DOUBTS, Printed, Result, is_same, write_description
from posbias.io.log.sources import named_paths
from posbias.io.places.locations import Location, ObjectUrl
from posbias.io.results.manifest import manifest_text
from posbias.io.results.output import output_directory
from posbias.io.temporary.directories import take_doubtful
from posbias.io.temporary.owner import Owner


@contextmanager
def open_result(
    command: str,
    output: OutputOptions,
    inputs: Sequence[str | Location],
    options: list[Any],
    also_read: Sequence[str | Location] = (),
    *,
    replaces_input: bool = False,
    waits: bool = False,
) -> Generator[Result]:
    """Write a result whole or not at all, with its manifest last; then show what it says.

    Args:
        command: the command that runs.
        output: where to, and how much to say.
        inputs: the logs or statistics that are read.
        options: the option groups that shaped the result.
        also_read: what else is read, and must not be replaced either.
        replaces_input: whether the result may replace an input; the caller sees to it that it holds all of that.
        waits: whether to wait until another run that writes the target has ended; else that is an error.
    """
    console = stderr_console()
    target = output.output
    temporary = next((group.temp_dir for group in options if isinstance(group, ReadingOptions)), None)
    protected = [path for name in (*inputs, *also_read) for path in named_paths(name)]
    if replaces_input:
        protected = [path for path in protected if not is_same(path, target)]
    protected += [path for path in (output.config, temporary) if path is not None]

    def on_wait(owner: Owner) -> None:
        if not output.quiet:
            tell(f"{target}: waiting for process {owner.process} on {owner.host}, which is writing it.")

    place = output_directory(
        target, force=output.force, protected=protected, temporary=temporary, on_wait=on_wait if waits else None
    )
    with place as folder:
        with show_progress(console, quiet=output.quiet) as progress:
            result = Result(folder, progress)
            yield result
        manifest = write_description(result, command, inputs, plain_options(options))
        result_stands(result.exit_code)
    _report(result, manifest_text(manifest), output, console)


def _report(result: Result, manifest: str, output: OutputOptions, console: Console) -> None:
    if not output.quiet:
        for one in (*result.printed, *result.hints):
            _print(one, console)
        if result.curve is not None and not is_json() and console.is_terminal and sys.stdout.isatty():
            say(console, Curve.of(*result.curve))
    for warning in result.warnings:
        warn(warning)
    for path, why in take_doubtful().items():
        warn(f"{path} is left in place: {why}. Delete it if it is no longer needed.")
    if not output.quiet:
        tell(f"written: {_named(output.output)}")
    if output.json:
        typer.echo(manifest.encode(), nl=False)
        lost = streams.why_lost(sys.stdout)
        if lost is not None:
            complain(f"{output.output} is written, but its manifest could not be printed to stdout: {lost}.")
            result.exit_code = WITH_DOUBTS


def _print(one: Printed, console: Console) -> None:
    """Print a sentence or a table; among lines of JSON, tables are left to the manifest."""
    if not is_json():
        say(console, renderable(one))
    elif isinstance(one, str):
        tell(one)


def _named(target: Location) -> str:
    """A target as the user calls it, and where it is if that is a link."""
    is_link = isinstance(target, Path) and target.is_symlink()
    return f"{target} (a symbolic link to {target.resolve()})" if is_link else str(target)


def plain_options(groups: Sequence[Any]) -> dict[str, Any]:
    """Options as plain values, under the names of the command line; those that are not set are left out."""
    values = {entry.name: getattr(group, entry.name) for group in groups for entry in fields(group)}
    return {name.replace("_", "-"): _plain_value(value) for name, value in values.items() if value is not None}


def _plain_value(value: object) -> object:
    return str(value) if isinstance(value, Path | ObjectUrl) else value
