"""Recognition of the form of a log, the roles of its columns, and the dialect of its text files, in its first rows.

A role without a usual name is guessed from values: positions increase down a page, a click is yes or no, documents
change. The rows of a page are assumed to stand together, from top to bottom.
"""

import codecs
import csv
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain

import polars as pl
import polars.selectors as cs

from posbias.core.errors import PosbiasError, RoleError, SchemaError
from posbias.core.log.impressions import REJECTED, RowRejection, thousands_pattern
from posbias.core.log.pages import find_shifted_pages
from posbias.core.roles import (
    CLIENTS,
    NAMES_IN_EXPORTS,
    TIMES,
    has_role_word,
    is_count_name,
    is_no_click_name,
    is_page_name,
    plain_name,
    words_in,
)
from posbias.core.schema import ALIASES, CLICK, DOC, FLAGS, POSITION, QUERY, SESSION
from posbias.io.forms import forms
from posbias.io.forms.form import Document, Form, parse_document
from posbias.io.log.click_log import Log
from posbias.io.log.clicks import any_condition
from posbias.io.log.events import CLICKED_FLAG, SHOWN_FLAG, EventReader
from posbias.io.log.faults import clicked_rank, impressions_by_position, is_top, summed_impressions
from posbias.io.log.lists import Finding, find_click_words, holds_times, is_list
from posbias.io.log.scan import LINE, TEXT_SEPARATORS, reading, scan_lines, scan_sources, schema_of
from posbias.io.log.sources import Source, decompress_start, is_compressed, read_start, utf_16_variant
from posbias.io.log.sql import Query, run_query, sql_of_click, sql_of_pages, sql_text
from posbias.io.sources import LINKED, finding_of_linked, recognise

_SAMPLED_LINES, _SAMPLED_ROWS = 100, 10_000
_MAJORITY = 0.5
_TEXT = ("ndjson", "csv", "tsv")
_BULK_ACTIONS = ("index", "create", "update", "delete")
_SHOWN_WORDS = (
    *("impression", "impressions", "shown", "show", "view", "viewed", "display", "displayed", "exposure"),
    *("viewitemlist", "viewsearchresults", "productimpression", "searchimpression", "itemimpression"),
)
_CLICKED_WORDS = (
    *("click", "clicks", "clicked", "tap", "select", "selected", "searchclick", "productclick"),
    *("selectitem", "selectcontent", "itemclick", "resultclick"),
)
_LIKELY_NAMES = ("event", "action", "type", "kind")
_CERTAIN_WORDS = ("impression", "click")
_LIST = r"^\s*(\[.*,.*\]|[^\s,;|]+(\s*[,;|]\s*[^\s,;|]+)+)\s*$"  # in text: JSON, or ids with a mark between them
_FEWEST_IDS = 0.02  # least number of distinct ids of pages or visits, per row with a list
_IDS, _LISTS = cs.string() | cs.integer(), cs.by_dtype(pl.List)
_OBJECT = r"^\s*\{"
_MEMORY = 1 << 30  # bytes
_MOST_TYPES = 50  # distinct values of a column of event types


def find_form(sources: Sequence[Source]) -> list[Finding]:
    """Recognise the form of files, with the options that declare it; none for rows of impressions and for pages.

    Raw lines are recognised in the first file. They are certain if every sampled line is a record of the source.

    Raises:
        LogFormatError: a file cannot be read.
    """
    if not sources:
        return []
    finding = _find_source(sources[0])
    if finding is None:
        with reading(sources[:1]):
            known = recognise(frozenset(schema_of(sources[0])))
        by_columns = known and Finding(f"these are events of {known.title}", ("--input-format", known.name))
        first = _first_rows(sources)
        texts = first.select(cs.string())
        lacks_events = known and known.events and not any(text.is_in(known.events).any() for text in texts)
        linked = None if known and not lacks_events else _find_linked(sources)
        first = pl.DataFrame() if any(dtype.is_nested() for dtype in first.dtypes) else first
        finding = linked or by_columns or _find_event_table(sources)
        finding = finding or _find_numbered_columns(first) or _find_click_times(first)
    return [] if finding is None else [finding]


def _find_source(source: Source) -> Finding | None:
    """Recognise the known source of most of the first lines of a text file."""
    if source.format not in _TEXT:
        return None
    with reading([source]):
        head = scan_lines(source, lossy=True).select(pl.col(LINE).fill_null("")).head(_SAMPLED_LINES).collect()
    lines = [line for line in head[LINE].to_list() if line.strip()]
    documents = list[Document | None]()
    for document in map(parse_document, lines):
        first, *others = [*(document or {}).items()] or [("", None)]
        if others or first[0] not in _BULK_ACTIONS or not isinstance(first[1], dict):  # not an action line of a bulk
            documents.append(document)
    counts = list[tuple[int, Form]]()
    for form in forms():
        n_documents = sum(document is not None and form.matches_document(document) for document in documents)
        counts.append((n_documents or sum(map(form.matches_line, lines)), form))
    matches, form = max(counts, key=lambda entry: entry[0])
    if matches <= _MAJORITY * max(len(documents), 1):
        return None
    certain = matches == len(documents)
    these_are = "these are" if certain else f"{matches} of the first {len(documents)} lines look like"
    lacking = [form.lacks_query(document) for document in documents if document is not None]
    if form.may_lack_queries and True in lacking and False not in lacking:
        options = ("--input-format", form.name, "--no-query")
        return Finding(f"{these_are} events of {form.title}, of pages without queries", options, certain)
    return Finding(f"{these_are} events of {form.title}", ("--input-format", form.name), certain)


def _find_linked(sources: Sequence[Source]) -> Finding | None:
    """Recognise pages with a list, and clicks with the id of their page.

    Only logs with an id that rows with and without lists share, and logs of JSON in text, are queried for it.
    """
    if any(one.store or one.made_of for one in sources):  # not readable by a query, or rows of a query already
        return None
    with reading(sources):
        frames = [scan_sources([one]).select(_IDS | _LISTS).head(_SAMPLED_ROWS) for one in sources]
        rows = pl.concat(frames, how="diagonal_relaxed").collect(engine="streaming")
    texts = [column.name for column in rows.select(cs.string()) if _mostly(column, _LIST)]
    in_text = any(_mostly(column, _OBJECT) for column in rows.select(cs.string()))
    lists = [pl.col(name).list.len() > 1 for name, dtype in rows.schema.items() if isinstance(dtype, pl.List)]
    lists += [pl.col(name).str.contains(_LIST) for name in texts]
    if lists and not in_text:
        is_page = rows.select(pl.any_horizontal(lists).fill_null(value=False)).to_series()
        ids = rows.select(_IDS.cast(pl.String))
        other_ids = ids.filter(~is_page).unpivot(value_name="posbias_id")["posbias_id"].unique().implode()
        page_ids = [column for column in ids.filter(is_page) if column.n_unique() > _FEWEST_IDS * len(column)]
        lists = [column for column in page_ids if column.is_in(other_ids).any()]
    if not lists and not in_text:
        return None
    try:
        found = scan_sources([run_query(Query(finding_of_linked(), _MEMORY), sources)]).collect()
    except PosbiasError:  # such as names that differ in case alone
        return None
    return Finding(found.item(), ("--input-format", LINKED)) if found.height else None


def _mostly(texts: pl.Series, pattern: str) -> bool:
    return _share(texts.filter(texts != "").str.contains(pattern)) > _MAJORITY


def _find_event_table(sources: Sequence[Source]) -> Finding | None:
    """Recognise a column of event types with a word for impressions and a word for clicks."""
    with reading(sources):
        schema = schema_of(sources[0])
        texts = [name for name, dtype in schema.items() if isinstance(dtype, pl.String | pl.Categorical | pl.Enum)]
        texts.sort(key=lambda name: not any(word in plain_name(name) for word in _LIKELY_NAMES))
        same_schema = [source for source in sources if schema_of(source) == schema]
        rows = pl.concat(scan_sources([source]).head(_SAMPLED_ROWS) for source in same_schema)
        sample = rows.select(texts).collect(engine="streaming") if texts else pl.DataFrame()
    for name in texts:
        counts = Counter[str](map(str, sample[name].drop_nulls().to_list()))
        if len(counts) > _MOST_TYPES:
            continue
        by_word = {re.sub(r"[^a-z]", "", value.lower()): value for value in counts}
        shown, clicked = (
            next((word for word in known if word in by_word), None) for known in (_SHOWN_WORDS, _CLICKED_WORDS)
        )
        if shown is None or clicked is None:
            continue
        kinds = ", ".join(f"{kind} ({rows:,})" for kind, rows in counts.most_common())
        return Finding(
            f"the rows are events: {name!r} holds {kinds} in the sample; {by_word[shown]} is read as shown, "
            f"{by_word[clicked]} as clicked",
            (SHOWN_FLAG, f"{name}={by_word[shown]}", CLICKED_FLAG, f"{name}={by_word[clicked]}"),
            (shown, clicked) == _CERTAIN_WORDS,
        )
    return None


_CLICK_PATTERN, _SEARCH_PATTERN = (
    rf"(?i)(^|[^a-z])({words})([^a-z]|$)"
    for words in ("clicks?|clicked|clickthrough|taps?|tapped|(product|item)[ _-]?views?", "search(es|ed)?([ _-]?term)?")
)


def check_shown(sources: Sequence[Source]) -> None:
    """Raise SchemaError if the events of a log without lists are clicks, and searches without their results, alone."""
    rows = _first_rows(sources)
    if any((rows[name].list.len() > 1).any() for name, dtype in rows.schema.items() if isinstance(dtype, pl.List)):
        return
    for values in rows.select(pl.col(pl.String).str.replace_all("([a-z])([A-Z])", "$1 $2")):
        clicks = values.str.contains(_CLICK_PATTERN)
        share = _share(clicks | values.str.contains(_SEARCH_PATTERN))
        if values.n_unique() <= _MOST_TYPES and clicks.any() and share >= _NEARLY_ALL:
            kinds = ", ".join(rows[values.name].drop_nulls().unique().sort().head(3).to_list())
            raise SchemaError(
                f"{sources[0].path}: the rows are clicks ({values.name!r} holds {kinds}), and nothing that was shown "
                "is logged: what was not clicked cannot be told from what nobody saw. Log an event for each page of "
                "results as well, also where nothing is clicked: an id of its own, the query, and the ids of all "
                "results from the top; repeat that id in each click. If the search service logs its answers so, name "
                "both logs."
            )


_NUMBERED = re.compile(r"(.*?)(\d{1,3})(\D*)")


def _find_numbered_columns(rows: pl.DataFrame) -> Finding | None:
    """Recognise columns for each position of a page, such as `doc_0`, `click_0`, `doc_1`, with the query for them."""
    numbered = defaultdict[str, dict[int, str]](dict)  # by the name without its number
    for match in filter(None, map(_NUMBERED.fullmatch, rows.columns)):
        numbered[(match[1] + match[3]).strip("._- ")][int(match[2])] = match[0]
    lists = {
        name: [column for _, column in sorted(columns.items())]
        for name, columns in numbered.items()
        if max(columns) - min(columns) + 1 == len(columns) > 1 >= min(columns)
    }
    fixed = [name for name in rows.columns if not any(name in columns for columns in lists.values())]
    known = {role for role in ALIASES for name in fixed if plain_name(name) in map(plain_name, ALIASES[role])}
    if not known <= {SESSION, QUERY}:
        return None
    head = rows.head(_LINES)
    texts = {name: pl.concat(head[columns].cast(pl.String).get_columns()) for name, columns in lists.items()}
    by_name = [name for name in lists if has_role_word(CLICK, name) and _may_be_clicks(texts[name])]
    clicks = by_name or [name for name in lists if _is_flag(texts[name]) and not is_no_click_name(name)]
    docs = [name for name in lists if name not in clicks and not (_numbers(texts[name]) % 1 > 0).any()]
    same_length = [name for name in docs if {len(lists[name])} == {len(lists[click]) for click in clicks}]
    doc = max(same_length, key=lambda name: (has_role_word(DOC, name), texts[name].n_unique()), default="")
    if not doc or len(clicks) != 1 or not (by_name or has_role_word(DOC, doc)):
        return None
    query = sql_of_pages(fixed, lists[doc], lists[clicks[0]], with_session=SESSION not in known)
    text = f"a row is a page with columns for each position, such as {lists[doc][0]!r} and {lists[clicks[0]][0]!r}"
    return Finding(text, ("--sql", query), certain=False)


_TIME_WORDS = {"at", "time", "ts", "timestamp", "date", "second", "seconds", "secs", "sec", "s", "ms", "delay", "after"}

_ID_WORDS = {"id", "uuid", "guid"}


def _find_click_times(rows: pl.DataFrame) -> Finding | None:
    """Recognise a column of times or ids of clicks, null or another constant without a click, with the query for it."""
    conditions, kind = dict[str, str](), "times"
    for name in (name for name in rows.columns if has_role_word(CLICK, name)):
        no_click = None if rows[name].null_count() else next(iter(rows[name].mode(maintain_order=True)), None)
        times = rows[name].filter(rows[name].ne_missing(no_click))
        may_be_numbers = not _TIME_WORDS.isdisjoint(words_in(name)) or (_numbers(times) >= _MOST_CLICKS).all()
        is_time = holds_times(times) or (may_be_numbers and not _numbers(times).null_count())
        is_id = not _ID_WORDS.isdisjoint(words_in(name)) and times.is_unique().all()
        if (is_time or is_id) and times.n_unique() > _TWO and len(times) < rows.height / _TWO:
            conditions[name] = "IS NOT NULL" if no_click is None else f"<> {sql_text(no_click)}"
            kind = "ids" if is_id else "times"
        elif _may_be_clicks(rows[name]):
            return None
    for name, condition in conditions.items() if len(conditions) == 1 else ():
        text = f"{name!r} holds {kind} of clicks: a click is where it {condition}"
        return Finding(text, ("--sql", sql_of_click(name, condition)), certain=False)
    return None


_NEARLY_ALL = 0.95
_LONGEST_PAGE = 1000
_MOST_CLICKS = 10**6  # on a row; larger numbers are times or ids
_TWO = 2  # words for a click and none; columns of the narrowest grid
AS_CLICKS = frozenset(("0", "1", "0.0", "1.0", "true", "false"))
"""Values of flags, as text in lower case."""


def _guess_by_values(rows: pl.DataFrame, flags: Sequence[str], named: Mapping[str, str]) -> dict[str, str]:
    """Guess the columns of roles from their values; columns with well-known names of other roles are left out.

    Args:
        rows: the first rows of a log.
        flags: the options of the roles to guess.
        named: columns of other roles, by their options.

    Returns:
        Columns by option.
    """
    roles = [_ROLE_OF[flag] for flag in flags]
    known = {
        role: name
        for role, names in ALIASES.items()
        if role not in roles
        for name in rows.columns
        if plain_name(name) in map(plain_name, names)
    }
    known |= {_ROLE_OF[flag]: column for flag, column in named.items() if column != _NO_GUESS and flag in _ROLE_OF}
    free = [
        name
        for name, dtype in rows.schema.items()
        if name not in known.values()
        and (dtype.is_numeric() or dtype.is_temporal() or isinstance(dtype, pl.String | pl.Boolean | pl.Categorical))
    ]
    columns = dict[str, str]()
    if POSITION in roles:
        candidate = max(free, key=lambda name: _share_counting_up(rows[name]), default="")
        counts_up = candidate and _share_counting_up(rows[candidate]) >= _NEARLY_ALL
        columns |= {POSITION: candidate} if counts_up else {}
    if CLICK in roles:
        clicks = [name for name in _flags(rows.select(free)) if name not in columns.values()]
        columns |= {CLICK: clicks[0]} if len(clicks) == 1 and not is_no_click_name(clicks[0]) else {}
    position = columns.get(POSITION, known.get(POSITION))
    if position is not None and _share_counting_up(rows[position]) >= _NEARLY_ALL:  # so that rows are in page order
        left = [name for name in free if name not in columns.values() and not rows.schema[name].is_float()]
        keys = rows.select(name for name in left if not holds_times(rows[name]))
        columns |= _guess_keys(keys, _numbers(rows[position]), roles if SESSION in known else [*roles, SESSION])
    return {FLAGS[role]: column for role, column in columns.items()}


def _guess_keys(rows: pl.DataFrame, position: pl.Series, roles: Collection[str]) -> dict[str, str]:
    """Guess the columns of sessions, queries and documents by role: documents alone change within a page."""
    same_page = (position > position.shift(1)).fill_null(value=False)  # as the row before
    n_pages = int((~same_page).sum())
    stays = {name: _share((rows[name] == rows[name].shift(1)).filter(same_page)) for name in rows.columns}
    distinct = {name: rows[name].n_unique() for name in rows.columns}
    fixed = [name for name in rows.columns if stays[name] >= _NEARLY_ALL and distinct[name] > 1]
    changing = [name for name in rows.columns if stays[name] <= 1 - _NEARLY_ALL]
    candidates = {
        SESSION: [name for name in fixed if distinct[name] >= _NEARLY_ALL * n_pages],
        QUERY: [name for name in fixed if distinct[name] < _NEARLY_ALL * n_pages],
        DOC: [name for name in changing if distinct[name] < _NEARLY_ALL * rows.height],
    }
    return {
        role: max(names, key=lambda name: distinct[name])
        for role, names in candidates.items()
        if role in roles and names
    }


def _numbers(column: pl.Series) -> pl.Series:
    """Cast plain values to Float64; null for other values. A nested column gives an empty one."""
    plain = pl.Series(dtype=pl.String) if column.dtype.is_nested() else column
    return plain.cast(pl.String).cast(pl.Float64, strict=False)


def _share_counting_up(column: pl.Series, fewest: int = 3) -> float:
    """Share of rows that are 1 above the row before, or at the smallest value, 0 or 1; 0 for less than `fewest` values.

    Of positions on whole pages it is 1.
    """
    numbers = _numbers(column)
    match numbers.min(), numbers.max():
        case (0.0 | 1.0) as top, float() as last if (
            top + fewest - 1 <= last <= _LONGEST_PAGE and not numbers.null_count()
        ):
            return _share((numbers - numbers.shift(1) == 1) | (numbers == top))
        case _:
            return 0.0


def _is_flag(column: pl.Series) -> bool:
    """Return True for yes and no, or yes alone, as numbers, truth values or words."""
    values = {value.lower() for value in column.cast(pl.String).drop_nulls().unique().to_list()}
    is_flag = values <= AS_CLICKS and not values <= {"0", "0.0", "false"}
    return bool(values) and (is_flag or (len(values) <= _TWO and find_click_words(values) is not None))


def _flags(rows: pl.DataFrame) -> list[str]:
    """Return the columns of flags, or lists of flags; those with names of other flags only if there are no more."""
    flags = [name for name in rows.columns if not is_page_name(name) and _is_flag(_entries(rows[name]))]
    return [name for name in flags if not is_no_click_name(name)] or flags


def _entries(column: pl.Series) -> pl.Series:
    """Return the values of a column, or the entries of its lists; none for structs."""
    entries = column.explode() if is_list(column.dtype) else column
    return pl.Series(dtype=pl.String) if entries.dtype.is_nested() else entries


def _may_be_clicks(column: pl.Series) -> bool:
    """Return True for flags, counts and ranks: whole numbers below a million."""
    numbers = _numbers(column := _entries(column))
    is_count = numbers.null_count() == column.null_count() and ((numbers >= 0) & (numbers < _MOST_CLICKS)).all()
    return _is_flag(column) or bool(is_count and (numbers % 1 == 0).all())


def _share(holds: pl.Series) -> float:
    return float(holds.fill_null(value=False).mean() or 0.0)  # pyright: ignore[reportArgumentType]


NO_QUERY = Finding(
    "no column looks like the query: each document is compared with itself", ("--no-query",), certain=False
)
"""Finding about a log without queries."""

_NO_GUESS = "COLUMN"
_GUESSING_ROWS = 20_000
_ROLE_OF = {flag: role for role, flag in FLAGS.items() if role in ALIASES}
_PAGE_IDS = ("serpid", "searchid", "pageviewid", "impressionid")
"""Plain names of ids of pages, which precede other candidates for the session."""


def find_roles(opened: Callable[[], Log], sources: Callable[[], Sequence[Source]]) -> list[Finding]:
    """Recognise roles of columns without well-known names, by similar names or by values.

    Args:
        opened: opens the log.
        sources: returns its files.

    Raises:
        RoleError: a role has no column, and no guess.
        PosbiasError: the log cannot be opened.
    """
    try:
        log = opened()
    except RoleError as error:
        words, click, position = _choose_usual(error.options, error.several), FLAGS[CLICK], FLAGS[POSITION]
        pairs = dict(zip(words[::2], words[1::2], strict=True))
        if pairs.get(click) == _NO_GUESS:
            check_shown(sources())
        if not pairs:
            raise
        rows = _first_rows(sources())
        if pairs.get(click, CLICK).lower() not in ALIASES[CLICK]:  # a merely similar name: the values must be clicks
            named = [name for name in error.several.get(click, (pairs[click],)) if name in rows.columns]
            pairs[click], *others = [*filter(lambda name: _may_be_clicks(rows[name]), named), _NO_GUESS]
            if len(others) > 1:
                raise
        unknown = [flag for flag, column in pairs.items() if column == _NO_GUESS and flag in _ROLE_OF]
        column = pairs.get(position, _NO_GUESS)
        if column != _NO_GUESS and _share_counting_up(rows[column], _TWO) < _NEARLY_ALL:
            unknown.append(position)
        others = {flag: column for flag, column in pairs.items() if flag not in unknown}
        by_values = _guess_by_values(rows, unknown, others) if unknown else {}
        pairs |= by_values
        users = [name for name in rows.columns if plain_name(name) in CLIENTS]
        if pairs.get(FLAGS[SESSION]) == _NO_GUESS and len(users) == 1:  # a visit, whose pages times tell apart
            pairs[FLAGS[SESSION]] = users[0]
        lacking = [flag for flag, column in pairs.items() if column == _NO_GUESS]
        has_no_query = lacking == [FLAGS[QUERY]] and not _query_candidates(rows.schema, pairs.values())
        without_query = [NO_QUERY] if has_no_query else []
        flags = _flags(rows) if click in lacking else []
        if flags:
            advice = f"Columns of two values: {', '.join(flags)}. If one is the click, name it: {click} {flags[0]!r}."
            raise RoleError(*error.lines, advice, options=error.options) from error
        if lacking and not without_query:
            raise
        return [
            _guess(flag, column, error.several.get(flag, ()), by_values=flag in by_values)
            for flag, column in pairs.items()
            if column != _NO_GUESS
        ] + without_query
    findings, events = [_guess(flag, column) for flag, column in log.guessed], log.raw
    if isinstance(events, EventReader) and (query := events.event_roles.query):
        with reading(log.sources):
            queries = first_shown(log, events).select(query).collect(engine="streaming")
        findings += [NO_QUERY] if queries.height and not queries.drop_nulls().height else []
    return findings


def _first_rows(sources: Sequence[Source]) -> pl.DataFrame:
    with reading(sources):
        return scan_sources(sources[:1]).head(_GUESSING_ROWS).collect(engine="streaming")


def _query_candidates(schema: pl.Schema, guessed: Collection[str]) -> list[str]:
    """Return text and integer columns that could be the query: without a guess or a name of another role."""
    others = [names for role in ALIASES if role != QUERY for names in (ALIASES[role], NAMES_IN_EXPORTS[role])]
    known = {plain_name(name) for names in others for name in names} | CLIENTS
    return [
        name
        for name, dtype in schema.items()
        if name not in guessed
        and plain_name(name) not in known
        and not TIMES.intersection([plain_name(name), *words_in(name)[-1:]])
        and (dtype.is_integer() or isinstance(dtype, pl.String | pl.Categorical | pl.Enum))
    ]


def _guess(flag: str, column: str, several: Sequence[str] = (), *, by_values: bool = False) -> Finding:
    """Return a finding about the column of a role, and its other candidates."""
    others = [name for name in several if name != column]
    addition = f", not {' or '.join(map(repr, others))}" if others else ""
    addition += ", by what it holds" if by_values else ""
    text = f"the {flag.removeprefix('--').replace('-', ' ')} is taken to be column {column!r}{addition}"
    return Finding(text, option(flag, column), certain=False)


def option(flag: str, value: str) -> tuple[str, ...]:
    """Return an option as words of a command line; as one word if its value begins with a dash."""
    return (f"{flag}={value}",) if value.startswith("-") else (flag, value)


def _choose_usual(options: Sequence[str], several: Mapping[str, Sequence[str]]) -> list[str]:
    """Return flags and columns in turn; of several candidates the one with the most usual name."""
    words = [word for each in options for word in (each.split("=", 1) if each.startswith("--") else [each])]
    for n, flag in enumerate(words[:-1]):
        if flag in several and words[n + 1] == _NO_GUESS:
            known = [plain_name(alias) for alias in ALIASES[_ROLE_OF[flag]]] if flag in _ROLE_OF else []
            order = [*_PAGE_IDS, *known] if _ROLE_OF.get(flag) == SESSION else known
            usual = [name for alias in order for name in several[flag] if plain_name(name) == alias]
            words[n + 1] = (usual or several[flag])[0]
    return words


_ROWS, _FILES = 200_000, 8
_VALUES = 1000  # distinct texts of a column


def first_impressions(log: Log) -> pl.DataFrame:
    """Read the canonical impressions of the first rows of up to eight files, invalid ones included."""
    step = -(-len(log.sources) // _FILES)
    sample = log.sources[::step]
    with reading([*sample, *log.click_sources]):
        frames = [
            replace(log, sources=(source,)).impressions.head(_ROWS // len(sample)).collect(engine="streaming")
            for source in sample
        ]
    return pl.concat(frames, how="diagonal_relaxed")


def first_texts(log: Log, column: str | None) -> list[str]:
    """Read distinct values of a text column from the first rows, at most 1,000; none for another column."""
    if column is None or schema_of(log.sources[0])[column] != pl.String:
        return []
    with reading(log.sources):
        rows = scan_sources(log.sources).select(column).head(_ROWS).drop_nulls().unique().sort(column)
        values = rows.collect(engine="streaming")[column]
    return values.gather_every(-(-len(values) // _VALUES) or 1).to_list()  # from all of their range, such as all days


_NEARLY_NONE = 0.01
"""Largest share of invalid clicks that remain invalid as counts, where clicks are counts."""

_MOSTLY_EMPTY = 0.5


def find_sums(log: Log) -> list[Finding]:
    """Recognise a table of sums of impressions and clicks."""
    count = summed_impressions(log)
    if count is None:
        return []
    text = f"a row adds up the impressions in {count!r} and the clicks on them in {log.roles.click!r}"
    return [Finding(text, option("--impressions", count), certain=is_count_name(count))]


def find_position_base(log: Log) -> list[Finding]:
    """Recognise positions from 0."""
    base = log.request.rules.position_base - 1
    if log.raw is None:
        first = first_impressions(log)
        shown = impressions_by_position(first.lazy())
        if min(shown, default=1) == 0 and not is_top(0, shown):
            if find_shifted_pages(first) is not None:
                text = f"some pages count positions from {base}, and most from {base + 1}"
                return [Finding(text, option("--position-base", str(base)))]
            text = f"{shown[0]:,} impressions have position {base}, and {shown.get(1, 0):,} have {base + 1}"
            return [Finding(f"{text}: {base} seems to mean that the position is unknown", certain=False)]
        shown = {position + base: number for position, number in shown.items()}
    elif isinstance(log.raw, EventReader) and log.raw.event_roles.position is not None:
        position = pl.col(log.raw.event_roles.position).cast(pl.Float64, strict=False)
        with reading(log.sources):
            positions = first_shown(log, log.raw).select(position).collect(engine="streaming").to_series()
        shown = dict(positions.drop_nulls().value_counts().iter_rows())
    else:
        return []
    if min(shown, default=base + 1) != base or not is_top(base, shown):
        return []
    return [Finding(f"positions count from {base}", option("--position-base", str(base)))]


def first_shown(log: Log, events: EventReader) -> pl.LazyFrame:
    """Scan the impressions among the first rows of a table of events."""
    is_shown = any_condition(events.request.shown, schema_of(log.sources[0]))
    return scan_sources(log.sources).head(_ROWS).filter(is_shown)


def find_clicks(log: Log) -> list[Finding]:
    """Recognise a click column of counts or ranks, and empty cells that mean no click."""
    if log.raw is not None or log.click_sources:
        return []
    values = log.request.rules.values
    has_words = bool(values.true or values.false)
    top = None if has_words else clicked_rank(log)
    if top is not None:
        text = f"{log.roles.click!r} holds the rank of the clicked result, from {top}"
        return [Finding(text, ("--click-ranks", str(top)))]
    rows = first_impressions(log)
    faults = _click_faults(rows)
    if faults[RowRejection.CLICK_INVALID] and not log.roles.impressions and not has_words:
        rules = replace(log.request.rules, click_counts=True)
        counted = first_impressions(replace(log, request=replace(log.request, rules=rules)))
        if _click_faults(counted)[RowRejection.CLICK_INVALID] <= _NEARLY_NONE * faults[RowRejection.CLICK_INVALID]:
            return [Finding(f"{log.roles.click!r} counts clicks", ("--click-counts",))]
    valid = rows.filter(pl.col(REJECTED) == 0)[CLICK]
    if faults[RowRejection.CLICK_MISSING] and len(valid) and (valid > 0).all():
        text = f"{log.roles.click!r} is a click or empty: an empty cell means no click"
        mostly = faults[RowRejection.CLICK_MISSING] > _MOSTLY_EMPTY * rows.height
        return [Finding(text, ("--null-click", "0"), certain=mostly)]
    return []


def _click_faults(rows: pl.DataFrame) -> dict[int, int]:
    """Count rows with invalid and with missing clicks."""
    counts = dict(rows.group_by(REJECTED).len().iter_rows())
    return {fault: counts.get(fault, 0) for fault in (RowRejection.CLICK_INVALID, RowRejection.CLICK_MISSING)}


_EXAMINED = 1 << 20  # bytes
_LINES = 1000
_KNOWN_MARKS = (",", ";", "\t", "|", " ")
_NAMES = {"\t": "tab", " ": "space"}
_NUMBER = re.compile(r"\s*[+-]?[0-9]+([.,][0-9]+)?\s*")
_DECIMAL_COMMA = re.compile(r"\s*[+-]?[0-9]*,[0-9]+\s*")


def find_dialects(sources: Sequence[Source]) -> list[Finding]:
    """Recognise the dialect of text files, with a finding for each option; only those that all files have."""
    by_file = [_dialect_of(source) for source in sources if source.format in {*TEXT_SEPARATORS, "ndjson", "json"}]
    return [finding for finding in dict.fromkeys(chain(*by_file)) if all(finding in findings for findings in by_file)]


def _dialect_of(source: Source) -> list[Finding]:
    """Recognise encoding, separator, header and decimal mark of a text file."""
    head = read_start(source, _EXAMINED)
    cut = source.bytes > len(head)
    if is_compressed(head):
        head, cut = decompress_start(head), True
    encoding, certain = utf_16_variant(head), True
    if encoding is None:
        try:
            codecs.getincrementaldecoder("utf-8")().decode(head)
        except UnicodeDecodeError:
            encoding, certain = _guess_encoding(head), False
    text = codecs.getincrementaldecoder(encoding or "utf-8")(errors="replace").decode(head).removeprefix("\ufeff")
    lines = text.splitlines()
    lines = (lines[:-1] if cut and len(lines) > 1 else lines)[:_LINES]
    usual = TEXT_SEPARATORS.get(source.format)
    field_findings = _fields_dialect(lines, usual) if usual is not None and lines else []
    if encoding is None:
        return field_findings
    seems = "is" if certain else "is not UTF-8, and may be"
    return [Finding(f"the text {seems} {encoding}", ("--encoding", encoding), certain), *field_findings]


_KANA = 0.2  # share of the letters beyond ASCII: at least half in Japanese, nearly none in text of other encodings


def _guess_encoding(head: bytes) -> str:
    """Guess the encoding of text that is not UTF-8: Japanese by its kana, else western, else the first valid one."""
    for name, least in (("cp932", _KANA), ("euc_jp", _KANA), ("cp1252", 0), ("cp932", 0), ("gb18030", 0)):
        with suppress(UnicodeDecodeError):
            letters = [letter for letter in codecs.getincrementaldecoder(name)().decode(head) if not letter.isascii()]
            if sum("\u3041" <= letter <= "\u30ff" for letter in letters) >= least * len(letters):
                return name
    return "latin-1"


def _fields_dialect(lines: Sequence[str], usual: str) -> list[Finding]:
    """Recognise separator, header and decimal mark in the lines of CSV and TSV."""
    mark = _guess_separator(lines, usual)
    rows = [row for row in csv.reader(lines, delimiter=mark) if row]
    name = _NAMES.get(mark, mark)
    findings = [] if mark == usual else [Finding(f"fields are separated by {name!r}", ("--separator", name))]
    if _is_data(rows):
        names = ",".join(f"c{number}" for number in range(1, len(rows[0]) + 1))
        text = f"the first line is a row, not a header; its {len(rows[0])} columns are called {names}"
        findings.append(Finding(text, ("--no-header", "--columns", names)))
    else:
        rows = rows[1:]
    return [*findings, *_decimal_marks(rows)]


def _guess_separator(lines: Sequence[str], usual: str) -> str:
    """Return the mark with the most fields among those that split 95 % of the lines alike; otherwise the usual one."""
    widths = {mark: [len(row) for row in csv.reader(lines, delimiter=mark) if row] for mark in _KNOWN_MARKS}
    even = {
        mark: counts[0]
        for mark, counts in widths.items()
        if counts and counts[0] > 1 and Counter(counts)[counts[0]] >= _NEARLY_ALL * len(counts)
    }
    if len(even) > 1:
        even.pop(" ", None)  # the fields of any file may have equal numbers of words
    if not even or even.get(usual) == max(even.values()) or usual == "\t" in even:
        return usual
    return max(even, key=lambda mark: (even[mark], mark == usual))


def _is_data(rows: Sequence[Sequence[str]]) -> bool:
    """Return True if the first row is no header: it has numbers where the others have, and no well-known name."""
    first, others = rows[0], rows[1:]
    known = {plain_name(name) for names in (*ALIASES.values(), *NAMES_IN_EXPORTS.values()) for name in names}
    if any(plain_name(name.strip()) in known for name in first):
        return False
    in_first = {place for place, value in enumerate(first) if _NUMBER.fullmatch(value)}
    elsewhere = {
        place
        for place in range(len(first))
        if all(len(row) > place and _NUMBER.fullmatch(row[place]) for row in others)
    }
    return bool(in_first) and (not others or elsewhere <= in_first)


def _decimal_marks(rows: Sequence[Sequence[str]]) -> list[Finding]:
    """Recognise a decimal comma, in columns of numbers without points; or marks between thousands.

    Marks between thousands all stand before three digits, and other numbers of the column have none.
    """
    width = min(map(len, rows), default=0)
    columns = [[row[place] for row in rows if row[place].strip()] for place in range(width)]
    if any(
        all(_NUMBER.fullmatch(value) and "." not in value for value in column)
        and any(_DECIMAL_COMMA.fullmatch(value) and not re.match(thousands_pattern(","), value) for value in column)
        for column in columns
    ):
        return [Finding("numbers have a comma before their fraction", ("--decimal", ","))]
    for mark, name, options in ((",", "comma", ()), (".", "point", ("--decimal", ","))):
        for column in columns:
            others = [value for value in column if not re.match(thousands_pattern(mark), value)]
            if 0 < len(others) < len(column) and all(value.strip().isdecimal() for value in others):
                return [Finding(f"numbers have a {name} between thousands", options, certain=not options)]
    return []
