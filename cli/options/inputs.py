"""From options to a `LogRequest`: the columns of each role, and how values are read."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from posbias.cli.options.groups import LogOptions
from posbias.cli.options.option import ROWS, parse_memory, with_words
from posbias.core.choices import unknown_name
from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.errors import UsageError
from posbias.core.log.impressions import Paging, ReadingRules, TextValues, check_timestamp_format
from posbias.core.schema import Roles
from posbias.io.forms import form_names, get_form
from posbias.io.log.click_log import LogRequest
from posbias.io.log.clicks import ClicksRequest, RowCondition
from posbias.io.log.events import CLICKED_FLAG, IMPRESSION, SHOWN_FLAG, EventsRequest, RawReader
from posbias.io.log.exports import Export, find_export
from posbias.io.log.lists import ListRules
from posbias.io.log.sources import STANDARD_INPUT, Dialect, read_columns, read_encoding, read_separator
from posbias.io.log.sql import Query
from posbias.io.places.locations import ObjectUrl, location, read_text
from posbias.io.sources import NAMES as SOURCES
from posbias.io.sources import event_source

if TYPE_CHECKING:
    from posbias.io.engines.spark_session import Tables

_MAX_BASE = 1_000_000
_NO_COLUMN = "none"
"""The value of `--page`, `--session` and `--timestamp` for a log without such a column."""
_UBI = "ubi"
_TIME = re.compile(r"(\d{1,9})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def log_request(
    inputs: Sequence[str],
    log: LogOptions,
    plan: StatisticsPlan,
    *,
    day: str | None,
    sessions_for: str | None,
    features: tuple[str, ...],
) -> LogRequest:
    """Return the request of the log that options describe.

    Args:
        inputs: its files, as named by the user.
        log: the options.
        plan: of the counts.
        day: of all rows, where no column has it.
        sessions_for: the option that needs whole pages; None without.
        features: columns to learn from.

    Raises:
        UsageError: an option cannot be read, or does not go with another one.
    """
    if STANDARD_INPUT in (log.clicks or ()):
        also = ", and the log is read from it" if STANDARD_INPUT in inputs else ""
        raise UsageError(f"--clicks -: standard input can only be the log{also}. Name a file of clicks.")
    tables = _tables(inputs, log)
    query = _query(inputs, log) if tables is None else None
    if log.input_format in SOURCES:
        tracker = with_words(log, event_source(log.input_format).options)
        log = replace(tracker, input_format="flat", click_where=log.click_where or tracker.click_where)
    roles = Roles(
        session=() if log.session == [_NO_COLUMN] else tuple(log.session or ()),
        query=tuple(log.query or ()),
        doc=tuple(log.doc or ()),
        position=log.position,
        click=log.click,
        weight=log.weight_column,
        impressions=log.impressions,
        timestamp=log.timestamp,
        cell=plan.cell,
        context=plan.context,
        stratify=tuple(name for name in plan.strata if name != log.period_column),
        version=tuple(name for name in plan.strata if name == log.period_column),
        cluster=plan.clusters,
        arm=plan.arms,
        randomized=plan.randomized,
        features=features,
        clicked=log.clicked,
        page=None if log.page == _NO_COLUMN else log.page,
        no_page=log.page == _NO_COLUMN,
        no_session=log.session == [_NO_COLUMN],
        no_query=log.no_query,
    )
    base, raw, paging = _position_base(log), _raw_reader(log), _paging(log)
    is_given = {
        "--click-counts": log.click_counts,
        "--click": log.click is not None,
        "--clicked": log.clicked is not None,
        "--click-suffix": log.click_suffix is not None,
        "--clicks": bool(log.clicks),
        "--click-where": bool(log.click_where),
        "--impressions": log.impressions is not None,
    }
    flags = [flag for flag, given in is_given.items() if given]  # options that identify clicks
    beside_ranks = [] if log.click_ranks is None else ["--click-ranks", *(flag for flag in flags if flag != "--click")]
    exclusive = [flag for flag in flags if flag not in {"--click-counts", "--impressions"}]
    for conflict in (beside_ranks, [] if exclusive == ["--click", "--clicks"] else exclusive):
        if len(conflict) > 1:
            raise UsageError(f"{conflict[0]} and {conflict[1]}: both say what was clicked. Leave one of them out.")
    rules = ReadingRules(
        base,
        paging=paging,
        click_counts=log.click_counts,
        click_ranks=log.click_ranks,
        null_click=log.null_click is not None,
        period=plan.period,
        day=day,
        values=_text_values(log),
    )
    clicks = None
    if log.clicks:
        rows = tuple(RowCondition.parse(text) for text in log.clicks_where or ())
        session, doc = tuple(log.clicks_session or ()), tuple(log.clicks_doc or ())
        clicks = ClicksRequest(tuple(log.clicks), session=session, doc=doc, click=log.clicks_click, where=rows)
    events, text_dialect = _events_request(log), dialect(log)
    if not 0 <= log.max_bad_rows <= 1:
        raise UsageError(
            f"--max-bad-rows {log.max_bad_rows:g}: give a share of the rows from 0 to 1, e.g. 0.05 for 5 %."
        )
    by_document = "joins clicks by document, and cannot tell which of the two was clicked"
    once = {
        f"--model {plan.model.name} needs each document once on a page, as it looks at the clicks above": (
            plan.model.needs_session
        ),
        f"--clicks {by_document}": bool(log.clicks),
        f"{CLICKED_FLAG} {by_document}": bool(log.click_where),
        f"{sessions_for} needs each document once on a page": sessions_for is not None,
    }
    for reason, holds in once.items() if log.duplicate_docs == "keep" else ():
        if holds:
            raise UsageError(f"--duplicate-docs keep: {reason}. Use --duplicate-docs first.")
    return LogRequest(
        tuple(inputs),
        roles,
        rules,
        clicks,
        needs_session=sessions_for is not None or plan.model.needs_session or log.duplicate_docs == "first",
        form=log.input_format,
        events=events,
        raw=raw,
        max_bad_rows=log.max_bad_rows,
        dialect=text_dialect,
        duplicate_docs=log.duplicate_docs,
        lists=ListRules.parse(log.list_separator, log.click_suffix, order_is_position=log.order_is_position),
        query=None if raw else query,
        tables=tables,
    )


def drop_none(log: LogOptions) -> LogOptions:
    """Replace `--timestamp none` by no option."""
    return replace(log, timestamp=None) if log.timestamp == _NO_COLUMN else log


def export_of(inputs: Sequence[str], log: LogOptions) -> Export | None:
    """Return the description of exported warehouse counts; None for a log, or where options describe a log."""
    options = (log.table, log.sql, log.impressions, log.clicks, log.impression_where, log.columns)
    if any(options) or log.input_format not in {"auto", "flat"} or STANDARD_INPUT in inputs:
        return None
    return find_export(inputs)


SPARK_QUERY = "the query"
"""The name of a log read by --sql from tables of Spark."""


def table_names(log: LogOptions, files: Sequence[str]) -> list[str]:
    """Return the names of tables of Spark for messages, in place of files; none where files are read.

    Raises:
        UsageError: tables are named beside files or a query.
    """
    if not log.table:
        return [SPARK_QUERY] if log.engine == "spark" and not files and log.sql else []
    if files:
        raise UsageError(f"--table {log.table[0]} and {files[0]}: a log is in tables or in files. Leave one out.")
    if log.sql:
        raise UsageError(f"--table {log.table[0]}: name the tables in the query. Leave --table out.")
    return [f"table {name}" for name in log.table]


def _tables(inputs: Sequence[str], log: LogOptions) -> "Tables | None":
    """Return the tables of Spark with the rows of the log; None where files have them.

    Raises:
        UsageError: --input-format names raw files, or the file of the query cannot be read.
    """
    if log.engine != "spark" or not (log.table or [*inputs] == [SPARK_QUERY]):
        return None
    from posbias.io.engines.spark_session import Tables  # noqa: PLC0415 - only where tables are read

    if log.input_format not in ROWS:
        raise UsageError(f"--input-format {log.input_format}: raw files of a source are no table. Leave it out.")
    return Tables(tuple(log.table)) if log.table else Tables((), *_query_text(log.sql or ""))


def _query(inputs: Sequence[str], log: LogOptions) -> Query | None:
    """Return the query that selects the rows of the log, by --sql or of a tracker; None without a query.

    Raises:
        UsageError: its file cannot be read, the engine is not Polars, or an input is in an object store.
    """
    is_tracker = log.input_format in SOURCES
    if log.sql is None and not is_tracker:
        return None
    text, flag = ("", f"--input-format {log.input_format}") if is_tracker else _query_text(log.sql or "")
    if log.engine != "polars":
        advice = "Use --engine polars" if is_tracker else "Use --engine polars, or name tables in it and no files"
        raise UsageError(f"{flag}: the query runs on this machine only. {advice}.")
    remote = next((name for name in inputs if isinstance(location(name), ObjectUrl)), None)
    if remote is not None:
        raise UsageError(f"{remote}: {flag} reads local files only. Copy it to disk first.")
    if is_tracker:
        base = None if log.position_base is None else _position_base(log)
        return Query(event_source(log.input_format).text, parse_memory(log.memory), flag, base, selects=False)
    return Query(text, parse_memory(log.memory), flag)


def _query_text(query: str) -> tuple[str, str]:
    """Return the SQL, read from a file where `query` ends in .sql, and the option for messages.

    Raises:
        UsageError: the file cannot be read.
    """
    if not query.endswith(".sql"):
        return query, "--sql"
    try:
        return read_text(Path(query)), f"--sql {query}"
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"--sql {query}: cannot be read: {why}.") from error


def _position_base(log: LogOptions) -> int:
    """Return the number of the topmost position in the log; by default, and for UBI, 1.

    Raises:
        UsageError: not a whole number; or ACTION=N, which only --input-format ubi takes.
    """
    if log.position_base is None or log.input_format == _UBI:
        return 1
    if "=" in log.position_base:
        raise UsageError(
            f"--position-base {log.position_base}: only --input-format ubi has actions. Give one number, e.g. 0."
        )
    return _parse_base(log.position_base, log.position_base)


def _paging(log: LogOptions) -> Paging | None:
    """Return how positions continue from page to page; None where the log's positions already do.

    Raises:
        UsageError: --page is given without --page-size, or `--page none` with it.
    """
    if log.page == _NO_COLUMN and log.page_size is not None:
        raise UsageError(f"--page-size {log.page_size}: --page none says that there are no pages. Leave one out.")
    if log.page_size is None:
        if log.page not in {None, _NO_COLUMN}:
            raise UsageError(
                f"--page {log.page}: how many results does a page hold? Use --page-size N; 1 if the column is an "
                "offset, the number of results above the page."
            )
        return None
    default = 0 if log.page_size == 1 else 1
    return Paging(log.page_size, default if log.page_base is None else log.page_base)


def dialect(log: LogOptions) -> Dialect:
    """Return the dialect of text files: separator, encoding, columns.

    Raises:
        UsageError: an option cannot be parsed.
    """
    return Dialect(
        separator=None if log.separator is None else read_separator(log.separator),
        encoding=None if log.encoding is None else read_encoding(log.encoding),
        columns=read_columns(log.columns, header=not log.no_header),
    )


def _text_values(log: LogOptions) -> TextValues:
    """Return how numbers, clicks and times are written as text.

    Raises:
        UsageError: an option cannot be parsed, or a word is in both --true and --false.
    """
    if log.timestamp_format is not None:
        check_timestamp_format(log.timestamp_format)

    def words(flag: str, text: str | None) -> tuple[str, ...]:
        """Parse comma-separated words, in lower case."""
        words = () if text is None else tuple(word.strip().lower() for word in text.split(","))
        if not all(words):
            raise UsageError(f"{flag} {text}: name words, with commas between them, e.g. yes,y.")
        return words

    true, false = words("--true", log.true), words("--false", log.false)
    both = [word for word in true if word in false]
    if both:
        raise UsageError(f"--false {log.false}: {both[0]} is also in --true {log.true}. Leave it out of one.")
    values = TextValues(log.decimal is not None, true, false, log.timestamp_format)
    return values if log.input_format in ROWS else values.without_click_words


def _events_request(log: LogOptions) -> EventsRequest | None:
    """Return which rows of a table of events are impressions and which are clicks; None for other logs.

    Raises:
        UsageError: an option cannot be parsed, or conflicts with a table of events.
    """
    impressions, clicks = log.impression_where or [], log.click_where or []
    if not impressions and not clicks:
        return None
    if not (impressions and clicks):
        given, missing = (SHOWN_FLAG, CLICKED_FLAG) if impressions else (CLICKED_FLAG, SHOWN_FLAG)
        raise UsageError(f"{given} {(impressions or clicks)[0]}: name the other rows with {missing} COLUMN=VALUE.")
    both = sorted({*impressions} & {*clicks})
    if both:
        raise UsageError(f"{CLICKED_FLAG} {both[0]}: these rows are impressions already ({SHOWN_FLAG} {both[0]}).")
    if log.input_format not in {"auto", "flat"}:
        raise UsageError(f"--input-format {log.input_format}: a row of a table of events is one event. Leave it out.")
    if log.clicks:
        raise UsageError(f"--clicks: {CLICKED_FLAG} says that clicks are among the rows. Leave one of them out.")
    window = _TIME.fullmatch(log.click_window.strip())
    if window is None:
        raise UsageError(f"--click-window {log.click_window}: give a number and a unit, e.g. 90s, 30m, 2h or 1d.")
    return EventsRequest(
        tuple(RowCondition.parse(text, SHOWN_FLAG) for text in impressions),
        tuple(RowCondition.parse(text, CLICKED_FLAG) for text in clicks),
        log.page_time,
        int(window[1]) * _SECONDS[window[2]],
    )


def _raw_reader(log: LogOptions) -> RawReader | None:
    """Return the reader of raw files of a source; None for logs of rows.

    Raises:
        UsageError: the source is unknown, or an option cannot be parsed or does not apply to it.
    """
    if log.input_format in ROWS:
        return None
    if log.input_format not in form_names():
        raise unknown_name("--input-format", log.input_format, [*ROWS, *form_names(), *SOURCES])
    form = get_form(log.input_format)
    if log.clicks:
        raise UsageError(f"--clicks: in {form.title}, clicks are among the events. Give all files as inputs.")
    if log.click_counts:
        raise UsageError(f"--click-counts: an event of {form.title} is one click. Leave it out.")
    if log.no_query and not form.may_lack_queries:
        raise UsageError(f"--no-query: the pages of --input-format {form.name} have queries. Leave it out.")
    if log.input_format == _UBI and log.position_base is not None and log.ubi_impressions == "hits":
        raise UsageError(
            f"--position-base {log.position_base}: positions come from the hit lists, and ordinals are not read. "
            "Leave it out, or use --ubi-impressions events."
        )
    actions = tuple(name.strip() for name in log.click_actions.split(","))
    if not all(actions) or IMPRESSION in actions:
        raise UsageError(
            f"--click-actions {log.click_actions}: name actions other than {IMPRESSION}, e.g. click,add_to_cart."
        )
    bases, text = dict[str, int](), log.position_base
    if text is not None and "=" in text:  # `impression=0,click=1`, or one number for all actions
        named = [part.partition("=") for part in text.split(",")]
        bases = {action.strip(): _parse_base(number, text) for action, _, number in named}
    elif text is not None:
        bases = dict.fromkeys((IMPRESSION, *actions), _parse_base(text, text))
    return replace(form, impressions=log.ubi_impressions, click_actions=actions, bases=bases, no_query=log.no_query)


def _parse_base(number: str, text: str) -> int:
    try:
        base = int(number)
    except ValueError:
        base = None
    if base is None or abs(base) > _MAX_BASE:
        raise UsageError(
            f"--position-base {text}: give a whole number such as 0; for UBI one per action, e.g. impression=0,click=0."
        )
    return base
