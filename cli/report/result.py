"""Results of commands: written with progress and messages; and stored results shown again."""

import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from shlex import quote
from types import SimpleNamespace
from typing import cast

import polars as pl
import polars.selectors as cs
import typer
from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, Task, TextColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

from posbias.cli.interrupts import set_exit_code, silenced_by_a_signal
from posbias.cli.messages import is_json, print_message, write_error
from posbias.cli.options.groups import Form, PrintOptions
from posbias.cli.report import printing
from posbias.core.errors import LogFormatError, UsageError, escape_unseen
from posbias.io.fits.saved_fit import FitManifest, fits_of_values
from posbias.io.jobs.tables import WITH_DOUBTS, Result, write_description
from posbias.io.log.sources import input_paths
from posbias.io.places.locations import Location, is_same
from posbias.io.progress import Progress, SilentProgress, Stage
from posbias.io.results.conclusions import ResultManifest
from posbias.io.results.manifest import StoredResult, json_text, open_stored
from posbias.io.results.outputs import output_directory
from posbias.io.results.tables import PROPENSITIES, as_spreadsheet_columns, read_table

_UNABBREVIATED = 10_000  # counts below are printed with all digits
_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_BAR_WIDTH = 14  # so that all columns fit into 80


class _AmountColumn(ProgressColumn):
    """Amount done of the total, with bytes read; or the note of the stage."""

    def render(self, task: Task) -> Text:
        if task.fields["note"]:
            return printing.line(task.fields["note"])
        if task.total is None and not task.completed:
            return Text("")
        is_known = task.total is not None and not task.finished and task.completed <= task.total
        about = "about " if task.fields["estimated"] else ""
        total = f" of {about}{_short(task.total)}" if is_known and task.total is not None else ""
        amount = f"{_short(task.completed)}{total} {task.fields['unit']}"
        size = task.fields["size"]
        if size and task.total:
            factor, name = next((unit for unit in _UNITS if size >= unit[0]), _UNITS[-1])
            share = min(task.completed / task.total, 1)  # in one unit: 6.1 of 24.4 MB
            done = "" if task.finished else f"{share * size / factor:.1f} of "
            amount += f", {done}{size / factor:.1f} {name}"
        return Text(amount)


class _TimeColumn(ProgressColumn):
    """Time left; if unknown, or after the stage, the elapsed time."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        left = None if task.finished else task.time_remaining
        if left is not None:
            return Text(f"{timedelta(seconds=int(left))} left", style="progress.remaining")
        return Text(str(timedelta(seconds=int(task.finished_time or task.elapsed or 0))), style="progress.elapsed")


def _short(count: float) -> str:
    """Return a count in four or five characters: 9,999, 328k, 12.3M."""
    if count < _UNABBREVIATED:
        return f"{count:,.0f}"
    return f"{count / 1e3:.0f}k" if count < 1e6 else f"{count / 1e6:.1f}M"  # noqa: PLR2004 - a million


@dataclass(frozen=True)
class _BarProgress:
    bars: RichProgress
    is_watched = True

    @contextmanager
    def stage(
        self,
        description: str,
        total: int | None = None,
        *,
        unit: str = "buckets",
        size: int | None = None,
        estimated: bool = False,
    ) -> Generator[Stage]:
        task = self.bars.add_task(description, total=total, note="", unit=unit, size=size, estimated=estimated)

        def say(text: str) -> None:
            self.bars.update(task, note=text)

        yield cast("Stage", SimpleNamespace(advance=partial(self.bars.advance, task), say=say))
        done = self.bars.tasks[self.bars.task_ids.index(task)].completed or total or 1  # a total may be an estimate
        self.bars.update(task, total=done, completed=done)


@contextmanager
def show_progress(console: Console, *, quiet: bool) -> Generator[Progress]:
    """Yield a reporter of stages: bars on a terminal, else silent."""
    if quiet or is_json() or not console.is_terminal:
        yield SilentProgress()
        return
    columns = (
        TextColumn("{task.description:<10}", markup=False),
        BarColumn(bar_width=_BAR_WIDTH),
        _AmountColumn(),
        _TimeColumn(),
    )
    # With redirection Rich would print output of libraries itself, and interpret escapes in it.
    bars = RichProgress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
    with silenced_by_a_signal(partial(setattr, console, "quiet", True)), bars:
        yield _BarProgress(bars)
    console.quiet = False  # a signal may have set it; messages about a finished result are printed all the same


def write_result(
    command: str,
    inputs: Sequence[str | Location],
    target: Location,
    output: PrintOptions,
    options: Mapping[str, object],
    work: Callable[[Result], object],
    also_read: Sequence[str | Location] = (),
    *,
    replaces_input: bool = False,
    waits: bool = False,
) -> int:
    """Write a result whole or not at all, with its manifest last; print its conclusion, and return the exit code.

    Args:
        command: its name.
        inputs: the logs or statistics.
        target: the place of the result.
        output: replacement of an old result, and printing.
        options: for the manifest.
        work: makes the result.
        also_read: further inputs, which must not be replaced.
        replaces_input: whether the result may replace an input, because the caller knows that it contains the input.
        waits: whether to wait for another run that writes the target, instead of raising OutputError.

    Raises:
        OutputError: the target cannot be written, must not be replaced, or is being written by another run.
    """
    console = printing.SafeConsole(stderr=True)
    temporary = Path(str(options["temp-dir"])) if "temp-dir" in options else None
    protected = input_paths((*inputs, *also_read))
    if replaces_input:
        protected = [path for path in protected if not is_same(path, target)]
    protected += [path for path in (output.config, temporary) if path is not None]

    def on_wait(owner: str) -> None:
        if not output.quiet:
            print_message(f"{target}: waiting for {owner}, which is writing it.")

    place = output_directory(
        target, force=output.force, protected=protected, temporary=temporary, on_wait=on_wait if waits else None
    )
    with place as folder:
        with show_progress(console, quiet=output.quiet) as progress:
            result = Result(folder, progress, quote(str(target)))
            work(result)
        manifest = write_description(result, command, inputs, options)
        set_exit_code(result.exit_code)
    return _report(result, manifest, target, output, console)


def _report(
    result: Result, manifest: dict[str, object], target: Location, output: PrintOptions, console: Console
) -> int:
    """Print the conclusion, tables, reasons and facts; return the exit code."""
    conclusion, code = result.conclusion, result.exit_code
    items = printing.in_order(conclusion, result.printed, result.facts, details=output.details)
    if output.quiet:
        printing.print_warnings(conclusion, console)
    else:
        printing.print_items(items, console, details=output.details)
        if result.curve is not None and not is_json() and console.is_terminal and sys.stdout.isatty():
            printing.print_content(console, printing.curve(*result.curve))
    if not output.quiet:
        is_link = isinstance(target, Path) and target.is_symlink()
        print_message(f"written: {target}{f' (a symbolic link to {target.resolve()})' if is_link else ''}")
    if output.json:
        typer.echo(json_text(manifest).encode(), nl=False)
        lost = write_error(sys.stdout)
        if lost is not None:
            sentence = f"{target} is written, but its manifest could not be printed to stdout: {lost}."
            print_message(sentence, level="error")
            return WITH_DOUBTS
    return code


# --- a stored result, printed again from its manifest and tables ---

_TABLES = (
    *(PROPENSITIES, "comparison", "verdict", "metrics", "models", "widths"),
    *("feature_importance", "learning_curve", "truth", "parameters_truth", "parameters"),
)
FILES = tuple(f"{name}.parquet" for name in _TABLES)
"""Files to read beside the manifest; the first one that a result has is its table for --format csv."""


def show_stored(place: Location, form: Form, *, plot: bool, details: bool) -> None:
    """Print a stored result as when it was made, or its table as CSV, or its manifest as JSON.

    Raises:
        LogFormatError: the result does not exist, or is damaged.
        UsageError: the result has no table, no curve, or nothing that it printed.
        OutputError: stdout cannot be written.
    """
    with open_stored(place, FILES) as stored:
        if form == "json":
            typer.echo(json_text(stored.content).encode(), nl=False)
        elif form == "csv":
            table = as_spreadsheet_columns(_table(stored).lazy()).collect()
            if sys.stdout.isatty():  # a file gets the text unescaped
                table = table.with_columns(cs.string().map_elements(escape_unseen, pl.String))
            typer.echo(table.write_csv().encode(), nl=False)
        else:
            drawn = [_curve(stored)] if plot and form == "table" else []
            result = stored.typed(ResultManifest)
            if "printed" not in stored.content or not result.verdict:
                raise UsageError(
                    f"{stored.folder}: was made before results kept what they print. Make it again, or look at it with "
                    "--format json or csv."
                )
            items = printing.in_order(result, result.printed, result.facts, details=details)
            if form == "markdown":
                typer.echo(printing.markdown(items, details=details).encode(), nl=False)
            else:
                printing.print_on_stdout([*(printing.renderable(item, details=details) for item in items), *drawn])
    printing.check_stdout()


def _table(stored: StoredResult) -> pl.DataFrame:
    table_name = next((name for name in FILES if name in stored.files), None)
    if table_name is not None:
        return read_table(stored.folder / table_name)
    if "weights_by_position" in stored.content:
        return pl.DataFrame(stored.typed(ResultManifest).weights_by_position)
    raise UsageError(f"--format csv: what `posbias {stored.command}` writes has no such table. Use --format json.")


def _curve(stored: StoredResult) -> printing.Drawing:
    name = f"{PROPENSITIES}.parquet"
    if name not in stored.files:
        raise UsageError(
            f"--plot: {stored.folder} holds no {name}. Name a directory that `posbias fit` or `run` wrote."
        )
    fits = fits_of_values(stored)
    if fits:
        raise UsageError(
            f"--plot: {stored.folder} holds several fits (--for-each). Name one of them, such as {fits[0]}."
        )
    cells = stored.typed(FitManifest).counted.plan().cell_columns
    table = read_table(stored.folder / name)
    missing = [column for column in (*cells, "propensity", "ci_low", "ci_high") if column not in table.columns]
    if missing:
        raise LogFormatError(f"{stored.folder / name}: has no column {missing[0]!r}. Run `posbias fit` again.")
    return printing.curve(table, cells)
