"""The options that say which column of a log plays which role."""

from posbias.cli.options.option import option, options
from posbias.cli.options.shared import DOC, QUERY


@options("Columns of the log")
class ColumnOptions:
    """Which column plays which role. Without a flag, well-known names are recognised."""

    session: list[str] | None = option("One results page, not a visit. Repeatable.", "COLUMN")
    query: list[str] | None = QUERY
    no_query: bool = option("The log has no queries: each document is compared with itself.")
    doc: list[str] | None = DOC
    position: str | None = option("The position on the page.", "COLUMN")
    page: str | None = option(
        "The number of the results page, where positions begin anew on each (with --page-size); none: it has none.",
        "COLUMN",
    )
    click: str | None = option("Whether the document was clicked: 0/1 or true/false.", "COLUMN")
    clicked: str | None = option(
        "The list of the clicked documents, where a row is a page with its documents in a list.", "COLUMN"
    )
    impressions: str | None = option(
        "How many impressions a row adds up, where --click says how many clicks: a table of sums.", "COLUMN"
    )
    weight_column: str | None = option("How many impressions a row stands for (> 0).", "COLUMN")
    timestamp: str | None = option("When the page was shown: date, time or epoch number.", "COLUMN")
    period_column: str | None = option(
        "The version of the ranker that made the page; attractiveness may vary with it.", "COLUMN"
    )
    context: list[str] | None = option(
        "Estimate separate propensities for each value, e.g. of the device. Repeatable.", "COLUMN"
    )
    stratify: list[str] | None = option(
        "What the ranker knows about the user, e.g. a segment; attractiveness may vary with it.", "COLUMN"
    )
    cluster_column: str | None = option(
        "What shares errors beside queries, e.g. the user: standard errors are clustered by both.", "COLUMN"
    )
    randomized_where: list[str] | None = option(
        "Rows placed at random: COLUMN=VALUE; add @1,5 if swapped between positions 1 and 5.", "COLUMN=VALUE"
    )
