"""The options that say which column of a log plays which role."""

from dataclasses import dataclass
from typing import Annotated

from posbias.cli.options.option import option
from posbias.cli.options.shared import Doc, Query

_COLUMNS = "Columns of the log"


@dataclass(frozen=True)
class ColumnOptions:
    """Which column plays which role. Without a flag, well-known names are recognised."""

    session: Annotated[
        list[str] | None,
        option(
            "--session",
            "One results page, not a visit. Repeatable.",
            _COLUMNS,
            metavar="COLUMN",
        ),
    ] = None
    query: Query = None
    no_query: Annotated[
        bool,
        option("--no-query", "The log has no queries: each document is compared with itself.", _COLUMNS),
    ] = False
    doc: Doc = None
    position: Annotated[str | None, option("--position", "The position on the page.", _COLUMNS, metavar="COLUMN")] = (
        None
    )
    page: Annotated[
        str | None,
        option(
            "--page",
            "The number of the results page, where positions begin anew on each (with --page-size); none: it has none.",
            _COLUMNS,
            metavar="COLUMN",
        ),
    ] = None
    click: Annotated[
        str | None,
        option("--click", "Whether the document was clicked: 0/1 or true/false.", _COLUMNS, metavar="COLUMN"),
    ] = None
    clicked: Annotated[
        str | None,
        option(
            "--clicked",
            "The list of the clicked documents, where a row is a page with its documents in a list.",
            _COLUMNS,
            metavar="COLUMN",
        ),
    ] = None
    impressions: Annotated[
        str | None,
        option(
            "--impressions",
            "How many impressions a row adds up, where --click says how many clicks: a table of sums.",
            _COLUMNS,
            metavar="COLUMN",
        ),
    ] = None
    weight_column: Annotated[
        str | None,
        option("--weight-column", "How many impressions a row stands for (> 0).", _COLUMNS, metavar="COLUMN"),
    ] = None
    timestamp: Annotated[
        str | None,
        option("--timestamp", "When the page was shown: date, time or epoch number.", _COLUMNS, metavar="COLUMN"),
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
        option(
            "--context",
            "Estimate separate propensities for each value, e.g. of the device. Repeatable.",
            _COLUMNS,
            metavar="COLUMN",
        ),
    ] = None
    stratify: Annotated[
        list[str] | None,
        option(
            "--stratify",
            "What the ranker knows about the user, e.g. a segment; attractiveness may vary with it.",
            _COLUMNS,
            metavar="COLUMN",
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
