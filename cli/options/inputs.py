"""From options to how values are read: the number of the topmost position, and what events mean."""

import re
from collections.abc import Sequence
from dataclasses import replace

from posbias.cli.options.log import ColumnOptions, ReadingOptions
from posbias.core.choices import DuplicateDocs, unknown_name
from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.errors import UsageError
from posbias.core.log.impressions import Paging
from posbias.core.log.values import TextValues, check_timestamp_format
from posbias.io.forms import form_names, get_form
from posbias.io.log.events import CLICKED_FLAG, SHOWN_FLAG, ClickRows, ClicksRequest, EventsRequest
from posbias.io.log.files import Dialect, read_columns, read_encoding, read_separator
from posbias.io.log.lists import ListRules
from posbias.io.log.raw import IMPRESSION, RawReader, RawRules
from posbias.io.log.text import STANDARD_INPUT

_FARTHEST_BASE = 1_000_000
NO_PAGE = "none"
"""What `--page` says where no column numbers results pages."""
_UBI = "ubi"
_ROWS = ("auto", "flat", "nested")
_TIME = re.compile(r"(\d{1,9})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def position_base(reading: ReadingOptions) -> int:
    """The number of the topmost position in a log; 1 unless it is said.

    Raises:
        UsageError: it is no such number, or is said action by action, of which only UBI has any.
    """
    if reading.position_base is None or reading.input_format == _UBI:
        return 1
    if "=" in reading.position_base:
        raise UsageError(
            f"--position-base {reading.position_base}: only --input-format ubi has actions. Give one number, e.g. 0."
        )
    return _base(reading.position_base, reading.position_base)


def paging(columns: ColumnOptions, reading: ReadingOptions) -> Paging | None:
    """How positions go on from page to page; None where they do by themselves.

    Raises:
        UsageError: only one half of it is said.
    """
    if columns.page == NO_PAGE and reading.page_size is not None:
        raise UsageError(f"--page-size {reading.page_size}: --page none says that there are no pages. Leave one out.")
    if reading.page_size is None:
        if columns.page not in {None, NO_PAGE}:
            raise UsageError(
                f"--page {columns.page}: how many results does a page hold? Say --page-size N; 1 if the column is an "
                "offset, the number of results above the page."
            )
        return None
    usual = 0 if reading.page_size == 1 else 1
    return Paging(reading.page_size, usual if reading.page_base is None else reading.page_base)


def click_ranks(columns: ColumnOptions, reading: ReadingOptions) -> int | None:
    """The number of the topmost rank, where the click column holds ranks.

    Raises:
        UsageError: clicks are told in another way as well.
    """
    others = [flag for flag in _ways_of_clicks(columns, reading) if flag != "--click"]
    if reading.click_ranks is not None and others:
        raise UsageError(f"--click-ranks and {others[0]}: both say what was clicked. Leave one of them out.")
    return reading.click_ranks


def _ways_of_clicks(columns: ColumnOptions, reading: ReadingOptions) -> list[str]:
    """The options that say what was clicked."""
    ways = {
        "--click-counts": reading.click_counts,
        "--click": columns.click is not None,
        "--clicked": columns.clicked is not None,
        "--click-suffix": reading.click_suffix is not None,
        "--clicks": bool(reading.clicks),
        "--click-where": bool(reading.click_where),
        "--impressions": columns.impressions is not None,
    }
    return [flag for flag, is_given in ways.items() if is_given]


def clicks_request(reading: ReadingOptions) -> ClicksRequest | None:
    """How the table of clicks is read, where clicks are apart.

    Raises:
        UsageError: an option cannot be read.
    """
    if not reading.clicks:
        return None
    return ClicksRequest(
        inputs=tuple(reading.clicks),
        session=tuple(reading.clicks_session or ()),
        doc=tuple(reading.clicks_doc or ()),
        click=reading.clicks_click,
        where=tuple(ClickRows.parse(text) for text in reading.clicks_where or ()),
    )


def dialect(reading: ReadingOptions) -> Dialect:
    """How files of text are written.

    Raises:
        UsageError: an option cannot be read.
    """
    return Dialect(
        separator=None if reading.separator is None else read_separator(reading.separator),
        encoding=None if reading.encoding is None else read_encoding(reading.encoding),
        columns=read_columns(reading.columns, header=not reading.no_header),
    )


def text_values(reading: ReadingOptions) -> TextValues:
    """How text says numbers, clicks and times.

    Raises:
        UsageError: an option cannot be read.
    """
    if reading.timestamp_format is not None:
        check_timestamp_format(reading.timestamp_format)
    true, false = _words("--true", reading.true), _words("--false", reading.false)
    both = [word for word in true if word in false]
    if both:
        raise UsageError(f"--false {reading.false}: {both[0]} is also in --true {reading.true}. Leave it out of one.")
    values = TextValues(reading.decimal is not None, true, false, reading.timestamp_format)
    return values if reading.input_format in _ROWS else values.without_words


def check_standard_input(inputs: Sequence[str], reading: ReadingOptions) -> None:
    """See that standard input is asked for once.

    Raises:
        UsageError: the clicks are to be read from it.
    """
    if STANDARD_INPUT in (reading.clicks or ()):
        also = ", and the log is read from it" if STANDARD_INPUT in inputs else ""
        raise UsageError(f"--clicks -: standard input can only be the log{also}. Name a file of clicks.")


def _words(flag: str, text: str | None) -> tuple[str, ...]:
    """Read `yes,y` in lower case.

    Raises:
        UsageError: a word is missing.
    """
    words = () if text is None else tuple(word.strip().lower() for word in text.split(","))
    if not all(words):
        raise UsageError(f"{flag} {text}: name words, with commas between them, e.g. yes,y.")
    return words


def max_bad_rows(reading: ReadingOptions) -> float:
    """The share of the rows that may be left out.

    Raises:
        UsageError: it is no share.
    """
    share = reading.max_bad_rows
    if not 0 <= share <= 1:
        raise UsageError(f"--max-bad-rows {share:g}: give a share of the rows from 0 to 1, e.g. 0.05 for 5 %.")
    return share


def duplicate_docs(reading: ReadingOptions, plan: StatisticsPlan, pages_for: str | None) -> DuplicateDocs:
    """What becomes of a document that stands twice on a page.

    Args:
        reading: the options.
        plan: what is counted.
        pages_for: the option that needs the pages themselves, if there is one.

    Raises:
        UsageError: both of its rows are to be kept, and the work cannot tell them apart.
    """
    if reading.duplicate_docs == "keep":
        reasons = {
            f"--model {plan.model.name} needs each document once on a page, as it looks at the clicks above": (
                plan.model.needs_session
            ),
            "--clicks joins clicks by document, and cannot tell which of the two was clicked": bool(reading.clicks),
            f"{CLICKED_FLAG} joins clicks by document, and cannot tell which of the two was clicked": (
                bool(reading.click_where)
            ),
            f"{pages_for} needs each document once on a page": pages_for is not None,
        }
        for reason, holds in reasons.items():
            if holds:
                raise UsageError(f"--duplicate-docs keep: {reason}. Use --duplicate-docs first.")
    return reading.duplicate_docs


def list_rules(reading: ReadingOptions, columns: ColumnOptions) -> ListRules:
    """How lists are read.

    Raises:
        UsageError: an option cannot be read, or clicks are told in two ways.
    """
    given = [flag for flag in _ways_of_clicks(columns, reading) if flag not in {"--click-counts", "--impressions"}]
    if len(given) > 1 and given != ["--click", "--clicks"]:
        raise UsageError(f"{given[0]} and {given[1]}: both say what was clicked. Leave one of them out.")
    return ListRules.parse(reading.list_separator, reading.click_suffix, order_is_position=reading.order_is_position)


def events_request(reading: ReadingOptions) -> EventsRequest | None:
    """Which rows of a table of events are impressions and which are clicks; None for another log.

    Raises:
        UsageError: an option cannot be read, or does not go with a table of events.
    """
    shown, clicked = reading.impression_where or [], reading.click_where or []
    if not shown and not clicked:
        return None
    if not (shown and clicked):
        given, lacking = (SHOWN_FLAG, CLICKED_FLAG) if shown else (CLICKED_FLAG, SHOWN_FLAG)
        raise UsageError(f"{given} {(shown or clicked)[0]}: say with {lacking} COLUMN=VALUE which rows are the others.")
    both = sorted({*shown} & {*clicked})
    if both:
        raise UsageError(f"{CLICKED_FLAG} {both[0]}: these rows are impressions already ({SHOWN_FLAG} {both[0]}).")
    if reading.input_format not in {"auto", "flat"}:
        raise UsageError(
            f"--input-format {reading.input_format}: a row of a table of events is one event. Leave it out."
        )
    if reading.clicks:
        raise UsageError(f"--clicks: {CLICKED_FLAG} says that clicks are among the rows. Leave one of them out.")
    window = _TIME.fullmatch(reading.click_window.strip())
    if window is None:
        raise UsageError(f"--click-window {reading.click_window}: give a number and a unit, e.g. 90s, 30m, 2h or 1d.")
    return EventsRequest(
        tuple(ClickRows.parse(text, SHOWN_FLAG) for text in shown),
        tuple(ClickRows.parse(text, CLICKED_FLAG) for text in clicked),
        reading.page_time,
        int(window[1]) * _SECONDS[window[2]],
    )


def raw_reader(reading: ReadingOptions, *, no_query: bool) -> RawReader | None:
    """What makes a log of the raw files of a source; None for another log.

    Raises:
        UsageError: there is no such source, an option cannot be read, or is not for it.
    """
    if reading.input_format in _ROWS:
        return None
    if reading.input_format not in form_names():
        raise unknown_name("--input-format", reading.input_format, [*_ROWS, *form_names()])
    form = get_form(reading.input_format)
    if reading.clicks:
        raise UsageError(f"--clicks: in {form.title}, clicks are among the events. Give all files as inputs.")
    if reading.click_counts:
        raise UsageError(f"--click-counts: an event of {form.title} is one click. Leave it out.")
    if no_query and not form.may_lack_queries:
        raise UsageError(f"--no-query: the pages of --input-format {form.name} have queries. Leave it out.")
    return form.reader(replace(_raw_rules(reading), no_query=no_query))


def _raw_rules(reading: ReadingOptions) -> RawRules:
    if reading.input_format == _UBI and reading.position_base is not None and reading.ubi_impressions == "hits":
        raise UsageError(
            f"--position-base {reading.position_base}: positions come from the hit lists, and ordinals are not read. "
            "Leave it out, or use --ubi-impressions events."
        )
    actions = tuple(name.strip() for name in reading.click_actions.split(","))
    if not all(actions) or IMPRESSION in actions:
        raise UsageError(
            f"--click-actions {reading.click_actions}: name actions other than {IMPRESSION}, e.g. click,add_to_cart."
        )
    return RawRules(reading.ubi_impressions, actions, _bases(reading.position_base, (IMPRESSION, *actions)))


def _bases(text: str | None, actions: tuple[str, ...]) -> dict[str, int]:
    """Read `impression=0,click=1`, or one number for all actions."""
    if text is None:
        return {}
    if "=" not in text:
        return dict.fromkeys(actions, _base(text, text))
    named = [part.partition("=") for part in text.split(",")]
    return {action.strip(): _base(number, text) for action, _, number in named}


def _base(number: str, text: str) -> int:
    try:
        base = int(number)
    except ValueError:
        base = None
    if base is None or abs(base) > _FARTHEST_BASE:
        raise UsageError(
            f"--position-base {text}: give a whole number such as 0; for UBI one per action, e.g. impression=0,click=0."
        )
    return base
