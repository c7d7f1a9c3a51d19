"""Every option of the command line, once: name, environment variable, help, default. A command takes whole groups."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from posbias.cli.options.config import load_defaults
from posbias.core.errors import UsageError
from posbias.core.estimators import estimator_names
from posbias.core.estimators.estimate import Cluster, Period, Shrink
from posbias.core.log.duplicates import DuplicateDocs
from posbias.core.models import model_names
from posbias.core.shapes import FREE, shapes_in_words
from posbias.io.engines.engine import CheckPages, EngineName, OnBadRows
from posbias.io.log.log import InputFormat
from posbias.io.log.ubi_rules import Impressions


def _one_of(names: list[str]) -> str:
    return f"[{'|'.join(names)}]"


def option(flag: str, help_text: str, panel: str | None = None, *, short: str | None = None, **settings: Any) -> Any:  # noqa: ANN401
    """An option with its environment variable: --position-base is also POSBIAS_POSITION_BASE."""
    environment = "POSBIAS_" + flag.partition("/")[0].removeprefix("--").replace("-", "_").upper()
    names = (flag,) if short is None else (flag, short)
    return typer.Option(
        *names, help=help_text, envvar=environment, show_envvar=False, rich_help_panel=panel, **settings
    )


NullClick = Literal["0"]
"""What an empty cell of the click column may be said to mean."""

_COLUMNS, _READING, _COUNTING = "Columns of the log", "Reading", "Counting"
_ESTIMATING, _OUTPUT = "Estimating", "Output"


@dataclass(frozen=True)
class ColumnOptions:
    """Which column plays which role. Without a flag, well-known names are recognised."""

    session: Annotated[
        list[str] | None,
        option("--session", "One results page, shown once (not a visit). Repeat for several columns.", _COLUMNS),
    ] = None
    query: Annotated[list[str] | None, option("--query", "The query. Repeat for several columns.", _COLUMNS)] = None
    doc: Annotated[list[str] | None, option("--doc", "The document. Repeat for several columns.", _COLUMNS)] = None
    position: Annotated[str | None, option("--position", "The position on the page.", _COLUMNS)] = None
    click: Annotated[
        str | None, option("--click", "Whether the document was clicked: 0/1 or true/false.", _COLUMNS)
    ] = None
    impressions: Annotated[
        str | None,
        option(
            "--impressions",
            "How many impressions a row adds up, where --click says how many clicks: a table of sums.",
            _COLUMNS,
        ),
    ] = None
    weight_column: Annotated[
        str | None, option("--weight-column", "How many impressions a row stands for (> 0).", _COLUMNS)
    ] = None
    timestamp: Annotated[
        str | None, option("--timestamp", "When the page was shown: a date, a time or an epoch number.", _COLUMNS)
    ] = None
    period_column: Annotated[
        str | None,
        option(
            "--period-column",
            "The version of the ranker that made the page; attractiveness may vary with it.",
            _COLUMNS,
            metavar="COLUMN",
        ),
    ] = None
    context: Annotated[
        list[str] | None,
        option("--context", "Estimate separate propensities for each value, e.g. of the device. Repeatable.", _COLUMNS),
    ] = None
    stratify: Annotated[
        list[str] | None,
        option(
            "--stratify",
            "What the ranker knows about the user, e.g. a segment; attractiveness may vary with it.",
            _COLUMNS,
        ),
    ] = None
    cluster_column: Annotated[
        str | None,
        option(
            "--cluster-column",
            "What shares errors beside queries, e.g. the user: standard errors are clustered by both.",
            _COLUMNS,
            metavar="COLUMN",
        ),
    ] = None
    randomized_where: Annotated[
        list[str] | None,
        option(
            "--randomized-where",
            "Rows placed at random: COLUMN=VALUE; add @1,5 if swapped between positions 1 and 5.",
            _COLUMNS,
            metavar="COLUMN=VALUE",
        ),
    ] = None


@dataclass(frozen=True)
class ReadingOptions:
    """How the log is read."""

    input_format: Annotated[
        InputFormat,
        option(
            "--input-format",
            "flat: a row per impression. nested: a row per page, with lists. auto: detect which. ubi: OpenSearch UBI.",
            _READING,
            metavar="FORM",
        ),
    ] = "auto"
    clicks: Annotated[
        list[str] | None,
        option("--clicks", "A separate table of clicks, joined on session and document.", _READING),
    ] = None
    clicks_session: Annotated[
        list[str] | None,
        option("--clicks-session", "The session in the table of clicks, if it is called otherwise there.", _READING),
    ] = None
    clicks_doc: Annotated[
        list[str] | None,
        option("--clicks-doc", "The document in the table of clicks, if it is called otherwise there.", _READING),
    ] = None
    clicks_click: Annotated[
        str | None,
        option("--clicks-click", "The column of the table of clicks that says whether a row was clicked.", _READING),
    ] = None
    clicks_where: Annotated[
        list[str] | None,
        option(
            "--clicks-where",
            "The rows of the table of clicks that are clicks, e.g. action=click. Repeat for any of several.",
            _READING,
            metavar="COLUMN=VALUE",
        ),
    ] = None
    ubi_impressions: Annotated[
        Impressions,
        option(
            "--ubi-impressions",
            "What counts as shown in UBI: hits (the queries' hit lists) or events (those with action impression).",
            _READING,
            metavar="WHAT",
        ),
    ] = "hits"
    click_actions: Annotated[
        str,
        option("--click-actions", "UBI actions that count as clicks, e.g. click,add_to_cart.", _READING),
    ] = "click"
    position_base: Annotated[
        str | None,
        option(
            "--position-base",
            "Number of the top position, 1 by default. For UBI ordinals, by action: impression=0,click=0.",
            _READING,
            metavar="N",
        ),
    ] = None
    click_counts: Annotated[
        bool, option("--click-counts", "The click column holds counts: any n > 0 is a click.", _READING)
    ] = False
    null_click: Annotated[
        NullClick | None,
        option("--null-click", "What an empty cell of the click column means: 0, no click.", _READING, metavar="0"),
    ] = None
    on_bad_rows: Annotated[
        OnBadRows,
        option("--on-bad-rows", "Stop at rows that break the rules for logs, or drop them.", _READING),
    ] = "error"
    max_bad_rows: Annotated[
        float,
        option(
            "--max-bad-rows",
            "Stop if --on-bad-rows drop would leave out more than this share of the rows.",
            _READING,
            metavar="SHARE",
        ),
    ] = 0.05
    duplicate_docs: Annotated[
        DuplicateDocs,
        option(
            "--duplicate-docs",
            "A document twice on a page: stop (error), count its first row only (first), or all (keep; pbm only).",
            _READING,
        ),
    ] = "error"
    check_pages: Annotated[
        CheckPages,
        option("--check-pages", "Check a sample of a large log's pages, or all of them.", _READING),
    ] = "sample"
    memory: Annotated[str, option("--memory", "Target for peak memory.", _READING)] = "2GiB"
    temp_dir: Annotated[
        Path | None,
        option("--temp-dir", "Directory for temporary files; the system's by default.", _READING),
    ] = None
    engine: Annotated[
        EngineName,
        option("--engine", "Where rows are read and counted: on this machine or on Spark.", _READING),
    ] = "polars"
    master: Annotated[
        str | None,
        option("--master", "Spark master, e.g. spark://host:7077; local[*] by default.", _READING, metavar="URL"),
    ] = None


@dataclass(frozen=True)
class CountingOptions:
    """What is counted."""

    model: Annotated[
        str | None,
        option(
            "--model",
            "What examination depends on: position (pbm, the default), or also the last click above (ubm).",
            _COUNTING,
            metavar=_one_of(model_names()),
        ),
    ] = None
    max_position: Annotated[
        int | None, option("--max-position", "Ignore results shown below this position.", _COUNTING, min=2)
    ] = None
    position_bins: Annotated[
        str | None,
        option(
            "--position-bins",
            "First position of each bin, e.g. 1,2,3,5,10,20: positions 5 to 9 share one propensity.",
            _COUNTING,
        ),
    ] = None
    period: Annotated[
        Period,
        option(
            "--period",
            "Let attractiveness vary by hour, day or week, for rankers that learn from clicks. auto: as needed.",
            _COUNTING,
        ),
    ] = "auto"
    date: Annotated[
        str | None,
        option("--date", "Day of the whole log, if no column holds it.", _COUNTING, metavar="YYYY-MM-DD"),
    ] = None


@dataclass(frozen=True)
class DecayOptions:
    """How fast the past is forgotten."""

    decay: Annotated[
        float | None,
        option(
            "--decay",
            "Weight of a day relative to the next, e.g. 0.98. Needs days: --date or --timestamp.",
            _COUNTING,
            metavar="X",
        ),
    ] = None


@dataclass(frozen=True)
class EstimationOptions:
    """How propensities and attractiveness are estimated."""

    method: Annotated[
        str,
        option(
            "--method",
            "conditional: consistent on sparse logs, with standard errors. "
            f"For comparison: {', '.join(estimator_names()[1:])}.",
            _ESTIMATING,
            metavar="NAME",
        ),
    ] = "conditional"
    reference: Annotated[
        str | None,
        option(
            "--reference",
            "Reference position (ubm: position and last click, e.g. 1,0); the first by default.",
            _ESTIMATING,
            metavar="CELL",
        ),
    ] = None
    shape: Annotated[
        str,
        option("--shape", f"Shape of the propensity curve: {shapes_in_words()}.", _ESTIMATING, metavar="SHAPE"),
    ] = FREE
    shrink: Annotated[
        Shrink,
        option(
            "--shrink",
            "Shrink each context towards the others: none, or auto (as far as the log says).",
            _ESTIMATING,
            metavar="HOW",
        ),
    ] = "auto"
    cluster: Annotated[
        Cluster | None,
        option(
            "--cluster",
            "Unit for clustering standard errors: query (the default), pair, session (which needs the log), column "
            "or two-way (query and --cluster-column, the default with it).",
            _ESTIMATING,
            metavar="UNIT",
        ),
    ] = None
    bootstrap: Annotated[
        int,
        option(
            "--bootstrap",
            "Standard errors from N bootstrap replicates over queries.",
            _ESTIMATING,
            min=0,
            metavar="N",
        ),
    ] = 0
    seed: Annotated[int, option("--seed", "Random seed.", _ESTIMATING, min=0, metavar="N")] = 0
    attractiveness_prior: Annotated[
        str,
        option(
            "--attractiveness-prior",
            "Beta prior on attractiveness: estimate, or MEAN:STRENGTH, the strength in impressions.",
            _ESTIMATING,
            metavar="M:S",
        ),
    ] = "estimate"
    examination_prior: Annotated[
        str,
        option(
            "--examination-prior", "Beta prior on examination in joint EM, MEAN:STRENGTH.", _ESTIMATING, metavar="M:S"
        ),
    ] = "0.5:2"
    max_iterations: Annotated[
        int | None,
        option("--max-iterations", "Stop after N iterations, converged or not.", _ESTIMATING, min=1, metavar="N"),
    ] = None
    tolerance: Annotated[
        float | None,
        option("--tolerance", "Relative change at which an estimate has converged.", _ESTIMATING, min=0, metavar="X"),
    ] = None
    no_acceleration: Annotated[
        bool, option("--no-acceleration", "Run joint EM without SQUAREM acceleration.", _ESTIMATING)
    ] = False
    compare: Annotated[
        bool | None,
        option(
            "--compare/--no-compare",
            "Run joint EM as well, for comparison. On by default up to 200,000 signatures.",
            _ESTIMATING,
        ),
    ] = None
    csv: Annotated[
        bool, option("--csv", "Also write propensities and attractiveness as CSV, for spreadsheets.", _OUTPUT)
    ] = False
    strict: Annotated[bool, option("--strict", "Exit with code 1 if any cell is not identified.", _ESTIMATING)] = False


_Force = Annotated[bool, option("--force", "Replace an existing result, in one step.", _OUTPUT)]
_Quiet = Annotated[bool, option("--quiet", "No progress bars or summary; warnings and errors only.", _OUTPUT)]
_Json = Annotated[bool, option("--json", "Print the manifest on stdout.", _OUTPUT)]
_Config = Annotated[
    Path | None,
    option(
        "--config",
        "TOML file of options; posbias.toml in the current directory by default.",
        _OUTPUT,
        callback=load_defaults,
        is_eager=True,
    ),
]
_output = option("--output", "Directory or s3:// prefix to write to.", _OUTPUT, short="-o")


@dataclass(frozen=True)
class OutputOptions:
    """Where the result goes, and what is printed."""

    output: Annotated[Path, _output]
    force: _Force = False
    quiet: _Quiet = False
    json: _Json = False
    config: _Config = None


@dataclass(frozen=True)
class OutputOrInfoOptions:
    """Where the result goes; none is written where statistics are only described."""

    output: Annotated[Path | None, _output] = None
    info: Annotated[bool, option("--info", "Describe statistics (with --json as JSON) and write nothing.", _OUTPUT)] = (
        False
    )
    force: _Force = False
    quiet: _Quiet = False
    json: _Json = False
    config: _Config = None

    def to_write(self) -> OutputOptions:
        """The options of a result.

        Raises:
            UsageError: it is not said where to.
        """
        if self.output is None:
            raise UsageError(
                "-o DIR is missing: say where to write the statistics. (To describe existing ones, use --info.)"
            )
        return OutputOptions(self.output, force=self.force, quiet=self.quiet, json=self.json, config=self.config)
