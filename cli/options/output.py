"""Where the result goes, and what is printed."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from posbias.cli.options.config import load_defaults
from posbias.cli.options.option import on_disk, option, read_place
from posbias.cli.options.shared import Csv
from posbias.core.errors import UsageError
from posbias.io.places.locations import Location

_OUTPUT = "Output"

_Force = Annotated[bool, option("--force", "Replace an existing result, in one step.", _OUTPUT)]
_Quiet = Annotated[bool, option("--quiet", "No progress bars or summary; warnings and errors only.", _OUTPUT)]
_Json = Annotated[bool, option("--json", "Print the manifest, or what was found, as JSON.", _OUTPUT)]
_Config = Annotated[
    Path | None,
    option(
        "--config",
        "TOML file of options; ./posbias.toml by default.",
        _OUTPUT,
        callback=load_defaults,
        parser=on_disk("a file of options is read from disk. Copy it there."),
        is_eager=True,
        metavar="FILE",
    ),
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Say what would be read and written, and write nothing.", rich_help_panel=_OUTPUT),
]


def _output_option(parser: Callable[[str], Location]) -> Any:  # noqa: ANN401 - as Typer has it
    help_text = "Directory or s3:// prefix to write to; of a report, a file."
    return option("--output", help_text, _OUTPUT, short="-o", metavar="DIR", parser=parser)


_output = _output_option(read_place)
_report = _output_option(on_disk("a report is a file on disk. Write it there, and copy it."))


@dataclass(frozen=True)
class OutputOptions:
    """Where the result goes, and what is printed."""

    output: Annotated[Location, _output]
    force: _Force = False
    quiet: _Quiet = False
    json: _Json = False
    config: _Config = None


@dataclass(frozen=True)
class ResultOptions(OutputOptions):
    """The same, for a command that can say first what it would do."""

    dry_run: DryRun = False


@dataclass(frozen=True)
class OutputOrPrintOptions:
    """Where the result goes, if it is to be kept, and what is printed."""

    output: Annotated[Location | None, _output] = None
    csv: Csv = False
    force: _Force = False
    quiet: _Quiet = False
    json: _Json = False
    config: _Config = None

    def to_write(self) -> OutputOptions | None:
        """The options of a result; None where none is written."""
        if self.output is None:
            return None
        return OutputOptions(self.output, force=self.force, quiet=self.quiet, json=self.json, config=self.config)


@dataclass(frozen=True)
class OutputOrInfoOptions:
    """Where the result goes; none is written where statistics are only described."""

    output: Annotated[Location | None, _output] = None
    info: Annotated[bool, option("--info", "Describe statistics (with --json as JSON) and write nothing.", _OUTPUT)] = (
        False
    )
    force: _Force = False
    quiet: _Quiet = False
    json: _Json = False
    config: _Config = None
    dry_run: DryRun = False

    def to_write(self) -> OutputOptions:
        """The options of a result.

        Raises:
            UsageError: it is not said where to.
        """
        if self.output is None:
            raise UsageError(
                "-o DIR is missing: say where to write the statistics, or --into STORE for a day of a store. (To "
                "describe existing ones, use --info.)"
            )
        return OutputOptions(self.output, force=self.force, quiet=self.quiet, json=self.json, config=self.config)

    def to_change(self, store: Path) -> OutputOptions:
        """The options of a result that takes the place of a store."""
        return OutputOptions(store, force=True, quiet=self.quiet, json=self.json, config=self.config)


@dataclass(frozen=True)
class InitOptions:
    """What is said where a file of options is written."""

    force: _Force = False
    quiet: _Quiet = False
    config: _Config = None


@dataclass(frozen=True)
class CheckOptions:
    """What is printed where nothing is written."""

    quiet: _Quiet = False
    json: _Json = False
    config: _Config = None


@dataclass(frozen=True)
class ReportOptions:
    """Where a report goes, and what it is: a page, or one chart."""

    output: Annotated[Path, _report]
    chart: Annotated[str, option("--chart", "The chart of a report that is a picture.", _OUTPUT, metavar="NAME")] = (
        "curve"
    )
    force: _Force = False
    quiet: _Quiet = False
    config: _Config = None
