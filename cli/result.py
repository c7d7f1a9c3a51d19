"""One result of a command: the directory that is written, what is said meanwhile, and the exit code."""

import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import typer
from rich.console import Console, RenderableType

from posbias.cli import streams
from posbias.cli.console import complain, say, stderr_console
from posbias.cli.options import OutputOptions, ReadingOptions
from posbias.cli.progress import show_progress
from posbias.io.manifest import manifest_text, write_manifest
from posbias.io.object_urls import Location, ObjectUrl, location
from posbias.io.outputs import output_directory
from posbias.io.progress import Progress
from posbias.io.sources import named_paths

DONE, WITH_DOUBTS = 0, 1


@dataclass
class Result:
    """What a command writes and says.

    Attributes:
        folder: where to write; it becomes the output directory when all is done.
        progress: where stages are reported.
        content: sections of the manifest.
        tables: what is shown at the end.
        warnings: sentences that are always shown.
        exit_code: 0, or 1 where the result is not to be taken at face value, or could not be printed.
    """

    folder: Path
    progress: Progress
    content: dict[str, Any] = field(default_factory=dict[str, Any])
    tables: list[RenderableType] = field(default_factory=list[RenderableType])
    warnings: list[str] = field(default_factory=list[str])
    exit_code: int = DONE


@contextmanager
def open_result(
    command: str,
    output: OutputOptions,
    inputs: list[str],
    options: list[Any],
    also_read: Sequence[str] = (),
    taken_over: Sequence[Location] = (),
) -> Generator[Result]:
    """Write a result whole or not at all, with its manifest last; then show what it says.

    Args:
        command: the command that runs.
        output: where to, and how much to say.
        inputs: the logs or statistics that are read.
        options: the option groups that shaped the result.
        also_read: what else is read, and must not be replaced either.
        taken_over: inputs of which the result holds all, so that it may replace one of them.
    """
    console = stderr_console()
    target = location(output.output)
    replaceable = {path.resolve() for path in taken_over if _is_same(path, target)}
    paths = [path for name in (*inputs, *also_read) for path in named_paths(name)]
    read = tuple(path for path in paths if path.resolve() not in replaceable)
    temporary = next((group.temp_dir for group in options if isinstance(group, ReadingOptions)), None)
    with output_directory(target, force=output.force, inputs=read, temporary=temporary) as folder:
        with show_progress(console, quiet=output.quiet) as progress:
            result = Result(folder, progress)
            yield result
        content = {"command": command, "inputs": inputs, "options": _plain(options), **result.content}
        manifest = write_manifest(folder, {**content, "warnings": result.warnings})
    _report(result, manifest_text(manifest), output, console)


def _is_same(path: Location, target: Location) -> bool:
    if isinstance(path, ObjectUrl) or isinstance(target, ObjectUrl):
        return path == target
    try:
        return path.samefile(target)
    except (OSError, ValueError):  # there is no such target yet, or there cannot be one
        return False


def _report(result: Result, manifest: str, output: OutputOptions, console: Console) -> None:
    if not output.quiet:
        for table in result.tables:
            say(console, table)
    for warning in result.warnings:
        say(console, f"warning: {warning}", style="yellow")
    if not output.quiet:
        say(console, f"written: {location(output.output)}")
    if output.json:
        typer.echo(manifest.encode(), nl=False)
        lost = streams.why_lost(sys.stdout)
        if lost is not None:
            complain(f"{location(output.output)} is written, but stdout is not: {lost}.")
            result.exit_code = WITH_DOUBTS


def _plain(groups: list[Any]) -> dict[str, Any]:
    """Options as plain values, under the names of the command line; those that are not set are left out."""
    values = {name: value for group in groups for name, value in asdict(group).items() if value is not None}
    return {name.replace("_", "-"): _plain_value(value) for name, value in values.items()}


def _plain_value(value: object) -> object:
    return str(value) if isinstance(value, Path) else value
