"""Options of the output: where a result goes, and what is printed."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

from posbias.cli.options.config import load_defaults
from posbias.cli.options.option import CSV, REQUIRED, on_disk, option, options, read_place
from posbias.core.errors import UsageError
from posbias.io.places.locations import Location

FORCE = option("Replace a result or file of posbias, in one step.", environment=False)
QUIET = option("No progress bars or summary; warnings and errors only.")
_JSON = option("Print the manifest, or the findings, as JSON.")
DETAILS = option("Print tests, p-values and names of methods, too.")


def _read_config(text: str) -> Location | None:
    """A file on disk; none where the name is empty, which is refused with the empty values of other options."""
    return on_disk("a file of options is read from disk. Copy it there.")(text) if text else None


CONFIG = option(
    "TOML file of options; ./posbias.toml by default.",
    "FILE",
    callback=load_defaults,
    parser=_read_config,
    is_eager=True,
)
_DRY_RUN = option("Say what would be read and written, and write nothing.", environment=False)
TARGET = option(
    "Directory or s3:// prefix to write to; of a report or a query, a file.", "DIR", short="-o", parser=read_place
)


@options("Output")
class OutputOptions:
    """Where the result goes, and what is printed."""

    output: Location = TARGET | {"default": REQUIRED}
    force: bool = FORCE
    quiet: bool = QUIET
    details: bool = DETAILS
    json: bool = _JSON
    config: Path | None = CONFIG


@options("Output")
class DemoOptions:
    """Where a demonstration goes."""

    output: Location = TARGET | {"default": Path("posbias-demo")}
    force: bool = FORCE


@options("Output")
class ResultOptions(OutputOptions):
    """Options of the result of a command with `--dry-run`."""

    dry_run: bool = _DRY_RUN


@options("Output")
class OutputOrPrintOptions:
    """Where the result goes, if it is to be kept, and what is printed."""

    output: Location | None = TARGET
    csv: bool = CSV
    force: bool = FORCE
    quiet: bool = QUIET
    details: bool = DETAILS
    json: bool = _JSON
    config: Path | None = CONFIG

    def to_write(self) -> OutputOptions | None:
        """The options of a result; None where none is written."""
        if self.output is None:
            return None
        return _written_to(self.output, self)


@options("Output")
class OutputOrInfoOptions:
    """Where the result goes; none is written where statistics are only described."""

    output: Location | None = TARGET
    info: bool = option("Describe statistics (with --json as JSON) and write nothing.")
    force: bool = FORCE
    quiet: bool = QUIET
    details: bool = DETAILS
    json: bool = _JSON
    config: Path | None = CONFIG
    dry_run: bool = _DRY_RUN

    def to_write(self) -> OutputOptions:
        """The options of a result.

        Raises:
            UsageError: no place to write to is named.
        """
        if self.output is None:
            raise UsageError(
                "-o DIR is missing: say where to write the statistics, or --into STORE for a day of a store. (To "
                "describe existing ones, use --info.)"
            )
        return _written_to(self.output, self)

    def to_change(self, store: Path) -> OutputOptions:
        """The options of a result that takes the place of a store."""
        return replace(_written_to(store, self), force=True)


def _written_to(place: Location, printed: OutputOrPrintOptions | OutputOrInfoOptions) -> OutputOptions:
    common = {name: getattr(printed, name) for name in ("force", "quiet", "details", "json", "config")}
    return OutputOptions(place, **common)


@options("Output")
class CheckOptions:
    """Options of what is printed, and of the file of settings that is written."""

    write_config: Path | None = option(
        "Write the options that read the log to this file, e.g. posbias.toml.",
        "FILE",
        environment=False,
        parser=on_disk("a file of options is read from disk. Write it there."),
    )
    force: bool = FORCE
    quiet: bool = QUIET
    details: bool = DETAILS
    json: bool = _JSON
    config: Path | None = CONFIG


@options("Output")
class ReportOptions:
    """Where a report goes, and what it is: a page, or one chart."""

    output: Path = TARGET | {
        "default": REQUIRED,
        "parser": on_disk("a report is a file on disk. Write it there, and copy it."),
    }
    chart: str = option("The chart of a report that is a picture.", "NAME", default="curve")
    force: bool = FORCE
    quiet: bool = QUIET
    config: Path | None = CONFIG


Form = Literal["table", "markdown", "csv", "json"]


FORM = option(
    "table and markdown: what was printed; csv: its table, with all rows and digits; json: the manifest.",
    environment=False,
    section="Showing",
)
PLOT = option("Draw the propensities with their intervals.", section="Showing")
