"""Options of the log: which column plays which role, and how files are read."""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from posbias.cli.options.option import (
    CHECK_PAGES,
    DOC,
    MEMORY,
    QUERY,
    THREADS,
    on_disk,
    one_of,
    option,
    options,
    read_name,
)
from posbias.core.choices import (
    FORMS,
    MOST_BAD_ROWS,
    MOST_RESULTS_OF_A_PAGE,
    CheckPages,
    DuplicateDocs,
    EngineName,
    Impressions,
    OnBadRows,
)
from posbias.core.errors import LogFormatError
from posbias.io.sources import NAMES as SOURCES

Decimal = Literal[","]
"""The mark before a fraction, where it is no point."""

NullClick = Literal["0"]
"""The meaning of an empty cell of the click column."""


@options("Columns of the log", position_base="Reading")
class ColumnOptions:
    """Columns of a log, and how their values are read."""

    session: list[str] | None = option("One results page, not a visit. Repeatable.", "COLUMN")
    query: list[str] | None = QUERY
    no_query: bool = option("The log has no queries: each document is compared with itself.")
    doc: list[str] | None = DOC
    position: str | None = option("The position on the page.", "COLUMN")
    click: str | None = option("Whether the document was clicked: 0/1 or true/false.", "COLUMN")
    timestamp: str | None = option("When the page was shown (recognised); none: do without.", "COLUMN")
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
        "Cluster standard errors by this column, e.g. the user, as well as by query.", "COLUMN"
    )
    arm: str | None = option(
        "The experiment arm of the page, drawn at random: tests whether the ranker knows the user or learns.", "COLUMN"
    )
    randomized_where: list[str] | None = option(
        "Rows placed at random: COLUMN=VALUE; add @1,5 if swapped between positions 1 and 5.", "COLUMN=VALUE"
    )
    position_base: str | None = option(
        "Number of the top position, 1 by default. For UBI ordinals, by action: impression=0,click=0.", "N"
    )
    click_counts: bool = option("The click column holds counts: any n > 0 is a click.")
    null_click: NullClick | None = option("What an empty cell of the click column means: 0, no click.", "0")
    true: str | None = option("Words of the click column that mean a click, e.g. yes.", "WORDS")
    false: str | None = option("Words of the click column that mean no click, e.g. no.", "WORDS")


@options("Columns of the log", input_format="Reading")
class LogOptions(ColumnOptions):
    """Columns and reading of a log; without a flag, well-known names are recognised."""

    page: str | None = option(
        "The number of the results page, where positions begin anew on each (with --page-size); none: it has none.",
        "COLUMN",
    )
    clicked: str | None = option(
        "The list of the clicked documents, where a row is a page with its documents in a list.", "COLUMN"
    )
    impressions: str | None = option(
        "The number of impressions in a table of sums, where --click names the number of clicks.", "COLUMN"
    )
    weight_column: str | None = option("Weight of a row: how many impressions it stands for (> 0).", "COLUMN")
    input_format: str = option(
        "flat: a row per impression. nested: a row per page, with lists. auto: detect which. Or the raw files of a "
        "source: {sources}.",
        "FORM",
        default="auto",
        complete=one_of(("auto", "flat", "nested", *FORMS, *SOURCES)),
    )
    sql: str | None = option(
        "A query over the files, 'SELECT ... FROM log', whose rows are read as the log, or a file of it; "
        "on Spark, over its tables.",
        "QUERY|FILE.sql",
    )
    list_separator: str | None = option(
        "Separator of lists that are written as text, e.g. ';'; or json, space, tab.", "MARK"
    )
    click_suffix: str | None = option(
        "Documents in lists are written with their click behind this mark: - for N1-0 N2-1.", "MARK"
    )
    order_is_position: bool = option("With --click-suffix: documents are in the order in which they were shown.")
    separator: str | None = option("Separator of the fields of CSV or TSV, e.g. ';', '|', tab or space.", "CHAR")
    encoding: str | None = option("The encoding of text files, e.g. cp1252 or utf-16.", "NAME")
    no_header: bool = option("The first line of CSV or TSV is a row already; --columns names them.")
    columns: str | None = option("The columns of a file without a header, in order, e.g. session,query,doc.", "NAMES")
    decimal: Decimal | None = option("Decimal mark of numbers in text files.", "','")
    timestamp_format: str | None = option("How times are written, as strftime has it, e.g. '%d.%m.%Y %H:%M'.", "FORMAT")
    clicks: list[str] | None = option(
        "A separate table of clicks, joined on session and document.", "FILE", parser=read_name
    )
    clicks_session: list[str] | None = option(
        "The session in the table of clicks, if it is called otherwise there.", "COLUMN"
    )
    clicks_doc: list[str] | None = option(
        "The document in the table of clicks, if it is called otherwise there.", "COLUMN"
    )
    clicks_click: str | None = option(
        "The column of the table of clicks that says whether a row was clicked.", "COLUMN"
    )
    clicks_where: list[str] | None = option(
        "The rows of the table of clicks that are clicks, e.g. action=click. Repeat for any of several.", "COLUMN=VALUE"
    )
    impression_where: list[str] | None = option(
        "The rows of a table of events that are impressions, e.g. event_type=impression. Repeat for any of several.",
        "COLUMN=VALUE",
    )
    click_where: list[str] | None = option(
        "The rows of a table of events that are clicks, e.g. event_type=click. Repeat for any of several.",
        "COLUMN=VALUE",
    )
    page_time: str | None = option(
        "The time of events, where --session is a visit: a page is what a visit shows for a query at one time.",
        "COLUMN",
    )
    click_window: str = option(
        "With --page-time, how long after the impression a click may come: 90s, 30m, 2h.", "TIME", default="30m"
    )
    ubi_impressions: Impressions = option(
        "What counts as shown in UBI: hits (the queries' hit lists) or events (those with action impression).",
        "WHAT",
        default="hits",
    )
    click_actions: str = option(
        "Actions that count as clicks in UBI or Metarank, e.g. click,add_to_cart.", "ACTIONS", default="click"
    )
    page_size: int | None = option(
        "Results that a page holds: position = (page - 1) * N + slot. 1 where --page is an offset.",
        "N",
        min=1,
        max=MOST_RESULTS_OF_A_PAGE,
    )
    page_base: int | None = option("Number of the first page, 1 by default; 0 for an offset.", "N", min=0, max=1)
    click_ranks: int | None = option(
        "The click column holds the rank of the clicked result (or a list of ranks), counted from N.", "N", min=0, max=1
    )
    on_bad_rows: OnBadRows = option("Stop at rows that break the rules for logs, or drop them.", default="error")
    max_bad_rows: float = option(
        "Stop if --on-bad-rows drop would leave out more than this share of the rows.", "SHARE", default=MOST_BAD_ROWS
    )
    duplicate_docs: DuplicateDocs = option(
        "A document twice on a page: stop (error), count its first row only (first), or all (keep; pbm only).",
        default="error",
    )
    check_pages: CheckPages = CHECK_PAGES | {"default": "sample"}
    memory: str = MEMORY
    threads: int | None = THREADS
    temp_dir: Path | None = option(
        "Directory for temporary files; the system's by default.",
        "DIR",
        parser=on_disk("temporary files need a directory on disk. Name one."),
    )
    table: list[str] | None = option(
        "With --engine spark, a table or view of its catalog in place of files, e.g. main.shop.impressions. "
        "Repeatable.",
        "NAME",
    )
    engine: EngineName = option("Engine that reads and counts rows: this machine or Spark.", default="polars")
    master: str | None = option("Spark master, e.g. spark://host:7077; local[*] by default.", "URL")


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
