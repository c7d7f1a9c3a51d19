"""Every option of the command line, once: name, environment variable, help, default. A command takes whole groups."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from posbias.cli.config import load_defaults
from posbias.core.models import model_names
from posbias.core.weights import Layout
from posbias.io.engines.local import CheckPages, OnBadRows
from posbias.io.training import format_names


def _one_of(names: list[str]) -> str:
    return f"[{'|'.join(names)}]"


def option(flag: str, help_text: str, panel: str | None = None, *, short: str | None = None, **settings: Any) -> Any:  # noqa: ANN401
    """An option with its environment variable: --position-base is also POSBIAS_POSITION_BASE."""
    environment = "POSBIAS_" + flag.partition("/")[0].removeprefix("--").replace("-", "_").upper()
    names = (flag,) if short is None else (flag, short)
    return typer.Option(
        *names, help=help_text, envvar=environment, show_envvar=False, rich_help_panel=panel, **settings
    )


_COLUMNS, _READING, _COUNTING = "Columns of the log", "Reading", "Counting"
_ESTIMATING, _WEIGHTING, _OUTPUT = "Estimating", "Weighting", "Output"


@dataclass(frozen=True)
class ColumnOptions:
    """Which column plays which role. Without a flag, well-known names are recognised."""

    session: Annotated[
        list[str] | None,
        option("--session", "One results page shown once, not a visit. Repeat it for several columns.", _COLUMNS),
    ] = None
    query: Annotated[list[str] | None, option("--query", "The query. Repeat it for several columns.", _COLUMNS)] = None
    doc: Annotated[list[str] | None, option("--doc", "The document. Repeat it for several columns.", _COLUMNS)] = None
    position: Annotated[str | None, option("--position", "The position on the page.", _COLUMNS)] = None
    click: Annotated[str | None, option("--click", "Whether it was clicked: 0/1 or true/false.", _COLUMNS)] = None
    weight_column: Annotated[
        str | None, option("--weight-column", "How many impressions a row stands for (> 0).", _COLUMNS)
    ] = None
    timestamp: Annotated[str | None, option("--timestamp", "When it was shown; for --period day.", _COLUMNS)] = None
    stratify: Annotated[
        list[str] | None,
        option(
            "--stratify",
            "What the ranker knows about the user, e.g. a segment: attractiveness may differ by it.",
            _COLUMNS,
        ),
    ] = None


@dataclass(frozen=True)
class ReadingOptions:
    """How the log is read."""

    clicks: Annotated[
        list[str] | None,
        option("--clicks", "A second table that holds the clicks, joined on session and document.", _READING),
    ] = None
    position_base: Annotated[
        int,
        option(
            "--position-base",
            "The number of the topmost position in the log.",
            _READING,
            min=-1_000_000,
            max=1_000_000,
            metavar="N",
        ),
    ] = 1
    click_counts: Annotated[
        bool, option("--click-counts", "The click column counts clicks: any n > 0 is a click.", _READING)
    ] = False
    on_bad_rows: Annotated[
        OnBadRows,
        option("--on-bad-rows", "Stop at rows that break the contract, or leave them out.", _READING),
    ] = "error"
    check_pages: Annotated[
        CheckPages,
        option("--check-pages", "Check a sample of a large log's pages, or all of them.", _READING),
    ] = "sample"
    memory: Annotated[str, option("--memory", "Target for the peak memory of the process.", _READING)] = "2GiB"
    temp_dir: Annotated[
        Path | None,
        option("--temp-dir", "Where temporary files go; the system's place by default.", _READING),
    ] = None


@dataclass(frozen=True)
class CountingOptions:
    """What is counted."""

    model: Annotated[
        str,
        option(
            "--model",
            "What examination depends on: position (pbm), also the last click (ubm).",
            _COUNTING,
            metavar=_one_of(model_names()),
        ),
    ] = "pbm"
    max_position: Annotated[
        int | None, option("--max-position", "Leave out what stands further down.", _COUNTING, min=2)
    ] = None
    position_bins: Annotated[
        str | None,
        option(
            "--position-bins",
            "First position of each bin, e.g. 1,2,3,5,10,20: 5 to 9 share one propensity.",
            _COUNTING,
        ),
    ] = None
    period: Annotated[
        Literal["none", "day"],
        option("--period", "Let attractiveness differ by day, for rankers that learn from clicks.", _COUNTING),
    ] = "none"


@dataclass(frozen=True)
class EstimationOptions:
    """How propensities and attractiveness are estimated."""

    method: Annotated[
        str,
        option(
            "--method",
            "conditional: consistent on sparse logs, with errors. joint: textbook EM.",
            _ESTIMATING,
            metavar="NAME",
        ),
    ] = "conditional"
    attractiveness_prior: Annotated[
        str,
        option(
            "--attractiveness-prior",
            "Beta prior of attractiveness, MEAN:STRENGTH in impressions.",
            _ESTIMATING,
            metavar="M:S",
        ),
    ] = "0.5:2"
    examination_prior: Annotated[
        str,
        option(
            "--examination-prior", "Beta prior of examination in joint EM, MEAN:STRENGTH.", _ESTIMATING, metavar="M:S"
        ),
    ] = "0.5:2"
    max_iterations: Annotated[
        int | None,
        option("--max-iterations", "Stop after so many, converged or not.", _ESTIMATING, min=1, metavar="N"),
    ] = None
    tolerance: Annotated[
        float | None,
        option("--tolerance", "Relative change at which an estimate has converged.", _ESTIMATING, min=0, metavar="X"),
    ] = None
    no_acceleration: Annotated[
        bool, option("--no-acceleration", "Plain joint EM, not accelerated by SQUAREM.", _ESTIMATING)
    ] = False
    compare: Annotated[
        bool | None,
        option(
            "--compare/--no-compare",
            "Run joint EM beside the chosen method. By default up to 200,000 signatures.",
            _ESTIMATING,
        ),
    ] = None
    csv: Annotated[bool, option("--csv", "Write propensities and attractiveness also as CSV, for people.", _OUTPUT)] = (
        False
    )
    strict: Annotated[bool, option("--strict", "Exit with 1 if anything is not identified.", _ESTIMATING)] = False


@dataclass(frozen=True)
class WeightingOptions:
    """How clicks become training weights."""

    layout: Annotated[
        Layout,
        option(
            "--layout",
            "pointwise: a clicked and an unclicked row per pair. session: the pages as shown.",
            _WEIGHTING,
        ),
    ] = "pointwise"
    format: Annotated[
        str, option("--format", "Of the training files.", _WEIGHTING, metavar=_one_of(format_names()))
    ] = "parquet"
    min_propensity: Annotated[
        float, option("--min-propensity", "Propensities below it weigh as if they were it.", _WEIGHTING)
    ] = 0.01
    self_normalize: Annotated[
        bool, option("--self-normalize", "Scale the weights of all clicks to a mean of 1.", _WEIGHTING)
    ] = False
    unidentified: Annotated[
        OnBadRows,
        option(
            "--unidentified",
            "Clicks in cells without a propensity: leave them out and say so, or stop.",
            _WEIGHTING,
        ),
    ] = "drop"


@dataclass(frozen=True)
class OutputOptions:
    """Where the result goes, and what is said meanwhile."""

    output: Annotated[Path, option("--output", "The directory to write.", _OUTPUT, short="-o")]
    force: Annotated[bool, option("--force", "Replace an existing result, in one step.", _OUTPUT)] = False
    quiet: Annotated[bool, option("--quiet", "No bars and no summary; warnings and errors only.", _OUTPUT)] = False
    json: Annotated[bool, option("--json", "Print the manifest on stdout.", _OUTPUT)] = False
    config: Annotated[
        Path | None,
        option(
            "--config",
            "A TOML file of options; posbias.toml in the current directory by default.",
            _OUTPUT,
            callback=load_defaults,
            is_eager=True,
        ),
    ] = None
