"""The options that say how a log is read."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from posbias.cli.options.option import on_disk, option, read_name
from posbias.cli.options.shared import Memory, Threads
from posbias.core.choices import (
    MOST_BAD_ROWS,
    MOST_RESULTS_OF_A_PAGE,
    CheckPages,
    DuplicateDocs,
    EngineName,
    Impressions,
    OnBadRows,
)

Decimal = Literal[","]
"""What may stand before a fraction instead of a point."""

NullClick = Literal["0"]
"""What an empty cell of the click column may be said to mean."""

_READING = "Reading"


@dataclass(frozen=True)
class ReadingOptions:
    """How the log is read."""

    input_format: Annotated[
        str,
        option(
            "--input-format",
            "flat: a row per impression. nested: a row per page, with lists. auto: detect which. Or the raw files of "
            "a source: {sources}.",
            _READING,
            metavar="FORM",
        ),
    ] = "auto"
    list_separator: Annotated[
        str | None,
        option(
            "--list-separator",
            "Lists are written as text with this between the entries, e.g. ';'; or json, space, tab.",
            _READING,
            metavar="MARK",
        ),
    ] = None
    click_suffix: Annotated[
        str | None,
        option(
            "--click-suffix",
            "Documents in lists are written with their click behind this mark: - for N1-0 N2-1.",
            _READING,
            metavar="MARK",
        ),
    ] = None
    order_is_position: Annotated[
        bool,
        option(
            "--order-is-position",
            "With --click-suffix: documents stand in the order in which they were shown.",
            _READING,
        ),
    ] = False
    separator: Annotated[
        str | None,
        option(
            "--separator",
            "What stands between the fields of CSV or TSV, e.g. ';', '|', tab or space.",
            _READING,
            metavar="CHAR",
        ),
    ] = None
    encoding: Annotated[
        str | None,
        option("--encoding", "The encoding of text files, e.g. cp1252 or utf-16.", _READING, metavar="NAME"),
    ] = None
    no_header: Annotated[
        bool, option("--no-header", "The first line of CSV or TSV is a row already; --columns names them.", _READING)
    ] = False
    columns: Annotated[
        str | None,
        option(
            "--columns",
            "The columns of a file without a header, in order, e.g. session,query,doc.",
            _READING,
            metavar="NAMES",
        ),
    ] = None
    decimal: Annotated[
        Decimal | None,
        option("--decimal", "What text has before the fraction of a number.", _READING, metavar="','"),
    ] = None
    true: Annotated[
        str | None,
        option("--true", "Words of the click column that mean a click, e.g. yes.", _READING, metavar="WORDS"),
    ] = None
    false: Annotated[
        str | None,
        option("--false", "Words of the click column that mean no click, e.g. no.", _READING, metavar="WORDS"),
    ] = None
    timestamp_format: Annotated[
        str | None,
        option(
            "--timestamp-format",
            "How times are written, as strftime has it, e.g. '%d.%m.%Y %H:%M'.",
            _READING,
            metavar="FORMAT",
        ),
    ] = None
    clicks: Annotated[
        list[str] | None,
        option(
            "--clicks",
            "A separate table of clicks, joined on session and document.",
            _READING,
            metavar="FILE",
            parser=read_name,
        ),
    ] = None
    clicks_session: Annotated[
        list[str] | None,
        option(
            "--clicks-session",
            "The session in the table of clicks, if it is called otherwise there.",
            _READING,
            metavar="COLUMN",
        ),
    ] = None
    clicks_doc: Annotated[
        list[str] | None,
        option(
            "--clicks-doc",
            "The document in the table of clicks, if it is called otherwise there.",
            _READING,
            metavar="COLUMN",
        ),
    ] = None
    clicks_click: Annotated[
        str | None,
        option(
            "--clicks-click",
            "The column of the table of clicks that says whether a row was clicked.",
            _READING,
            metavar="COLUMN",
        ),
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
    impression_where: Annotated[
        list[str] | None,
        option(
            "--impression-where",
            "The rows of a table of events that are impressions, e.g. event_type=impression. Repeat for any of "
            "several.",
            _READING,
            metavar="COLUMN=VALUE",
        ),
    ] = None
    click_where: Annotated[
        list[str] | None,
        option(
            "--click-where",
            "The rows of a table of events that are clicks, e.g. event_type=click. Repeat for any of several.",
            _READING,
            metavar="COLUMN=VALUE",
        ),
    ] = None
    page_time: Annotated[
        str | None,
        option(
            "--page-time",
            "The time of events, where --session is a visit: a page is what a visit shows for a query at one time.",
            _READING,
            metavar="COLUMN",
        ),
    ] = None
    click_window: Annotated[
        str,
        option(
            "--click-window",
            "With --page-time, how long after the impression a click may come: 90s, 30m, 2h.",
            _READING,
            metavar="TIME",
        ),
    ] = "30m"
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
        option(
            "--click-actions",
            "Actions that count as clicks in UBI or Metarank, e.g. click,add_to_cart.",
            _READING,
            metavar="ACTIONS",
        ),
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
    page_size: Annotated[
        int | None,
        option(
            "--page-size",
            "Results that a page holds: position = (page - 1) * N + slot. 1 where --page is an offset.",
            _READING,
            min=1,
            max=MOST_RESULTS_OF_A_PAGE,
            metavar="N",
        ),
    ] = None
    page_base: Annotated[
        int | None,
        option(
            "--page-base",
            "Number of the first page, 1 by default; 0 for an offset.",
            _READING,
            min=0,
            max=1,
            metavar="N",
        ),
    ] = None
    click_counts: Annotated[
        bool, option("--click-counts", "The click column holds counts: any n > 0 is a click.", _READING)
    ] = False
    click_ranks: Annotated[
        int | None,
        option(
            "--click-ranks",
            "The click column holds the rank of the clicked result (or a list of ranks), counted from N.",
            _READING,
            min=0,
            max=1,
            metavar="N",
        ),
    ] = None
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
    ] = MOST_BAD_ROWS
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
    memory: Memory = "2GiB"
    threads: Threads = None
    temp_dir: Annotated[
        Path | None,
        option(
            "--temp-dir",
            "Directory for temporary files; the system's by default.",
            _READING,
            metavar="DIR",
            parser=on_disk("temporary files need a directory on disk. Name one."),
        ),
    ] = None
    engine: Annotated[
        EngineName,
        option("--engine", "Where rows are read and counted: on this machine or on Spark.", _READING),
    ] = "polars"
    master: Annotated[
        str | None,
        option("--master", "Spark master, e.g. spark://host:7077; local[*] by default.", _READING, metavar="URL"),
    ] = None
