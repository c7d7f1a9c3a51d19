"""Which form a log has, by its first lines and its columns: raw files of a source, or a table.

Where names say nothing, it is guessed from values: positions climb down a page, a click is yes or no, documents change.
Rows are taken in their order: those of a page stand together, from top to bottom, as logs are mostly written.
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
_MOST_LINES = 0.5
_TEXT = ("ndjson", "csv", "tsv")
_OF_BULK = ("index", "create", "update", "delete")
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
_LIST = r"^\s*(\[.*,.*\]|[^\s,;|]+(\s*[,;|]\s*[^\s,;|]+)+)\s*$"  # in text: of JSON, or with a mark between ids
_FEWEST_IDS = 0.02  # values in a row with a list, of ids of pages and visits
_IDS, _LISTS = cs.string() | cs.integer(), cs.by_dtype(pl.List)
_OBJECT = r"^\s*\{"
_MEMORY = 1 << 30  # bytes, for records of which each structure is looked at in its first 5,000
_MOST_KINDS = 50  # a column of more is none of kinds of events


def find_form(sources: Sequence[Source]) -> list[Finding]:
    """The form of files, with the options that declare it; nothing where they look like rows or pages.

    A log is recognised by its first file. A form is certain where every line of the sample is of its schema.

    Raises:
        LogFormatError: the first file cannot be read.
    """
    if not sources:
        return []
    finding = _source_of(sources[0])
    if finding is None:
        with reading(sources[:1]):
            known = recognise(frozenset(schema_of(sources[0])))
        by_columns = known and Finding(f"these are events of {known.title}", ("--input-format", known.name))
        first = _first_rows(sources)
        has_others = (
            known and known.events and not any(text.is_in(known.events).any() for text in first.select(cs.string()))
        )
        linked = None if known and not has_others else _linked(sources)
        first = pl.DataFrame() if any(dtype.is_nested() for dtype in first.dtypes) else first
        finding = linked or by_columns or _table_of_events(sources)
        finding = finding or _numbered_columns(first) or _times_of_clicks(first)
    return [] if finding is None else [finding]


def _source_of(source: Source) -> Finding | None:
    """The known source whose lines most of the first ones are."""
    if source.format not in _TEXT:
        return None
    with reading([source]):
        head = scan_lines(source, lossy=True).select(pl.col(LINE).fill_null("")).head(_SAMPLED_LINES).collect()
    lines = [line for line in head[LINE].to_list() if line.strip()]
    documents = list[Document | None]()
    for document in map(parse_document, lines):
        first, *others = [*(document or {}).items()] or [("", None)]
        if others or first[0] not in _OF_BULK or not isinstance(first[1], dict):  # or else an action line of a bulk
            documents.append(document)
    counts = list[tuple[int, Form]]()
    for form in forms():
        of_documents = sum(document is not None and form.matches_document(document) for document in documents)
        counts.append((of_documents or sum(map(form.matches_line, lines)), form))
    fitting, form = max(counts, key=lambda entry: entry[0])
    if fitting <= _MOST_LINES * max(len(documents), 1):
        return None
    certain = fitting == len(documents)
    these_are = "these are" if certain else f"{fitting} of the first {len(documents)} lines look like"
    lacking = [form.lacks_query(document) for document in documents if document is not None]
    if form.may_lack_queries and True in lacking and False not in lacking:
        options = ("--input-format", form.name, "--no-query")
        return Finding(f"{these_are} events of {form.title}, of pages without queries", options, certain)
    return Finding(f"{these_are} events of {form.title}", ("--input-format", form.name), certain)


def _linked(sources: Sequence[Source]) -> Finding | None:
    """Pages with a list, and clicks that name their ids, where first rows without a list hold an id of one with it."""
    if any(one.store or one.made_of for one in sources):  # where no query reads them, or one has made them
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
        named = ids.filter(~is_page).unpivot(value_name="posbias_id")["posbias_id"].unique().implode()
        of_pages = [column for column in ids.filter(is_page) if column.n_unique() > _FEWEST_IDS * len(column)]
        lists = [column for column in of_pages if column.is_in(named).any()]
    if not lists and not in_text:
        return None
    try:
        found = scan_sources([run_query(Query(finding_of_linked(), _MEMORY), sources)]).collect()
    except PosbiasError:  # such as names that a query does not tell apart
        return None
    return Finding(found.item(), ("--input-format", LINKED)) if found.height else None


def _mostly(texts: pl.Series, pattern: str) -> bool:
    return _share(texts.filter(texts != "").str.contains(pattern)) > _MOST_LINES


def _table_of_events(sources: Sequence[Source]) -> Finding | None:
    """The column that says which rows are impressions and which are clicks, if there is one."""
    with reading(sources):
        schema = schema_of(sources[0])
        texts = [name for name, dtype in schema.items() if isinstance(dtype, pl.String | pl.Categorical | pl.Enum)]
        texts.sort(key=lambda name: not any(word in plain_name(name) for word in _LIKELY_NAMES))
        alike = [source for source in sources if schema_of(source) == schema]  # others are of another form
        rows = pl.concat(scan_sources([source]).head(_SAMPLED_ROWS) for source in alike)
        sample = rows.select(texts).collect(engine="streaming") if texts else pl.DataFrame()
    for name in texts:
        counts = Counter[str](map(str, sample[name].drop_nulls().to_list()))
        if len(counts) > _MOST_KINDS:
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


_SAYS_CLICK, _SAYS_SEARCH = (
    rf"(?i)(^|[^a-z])({words})([^a-z]|$)"
    for words in ("clicks?|clicked|clickthrough|taps?|tapped|(product|item)[ _-]?views?", "search(es|ed)?([ _-]?term)?")
)


def check_shown(sources: Sequence[Source]) -> None:
    """Check that a log whose columns are not found has more than clicks, and searches without what they showed.

    Raises:
        SchemaError: its events are these, and it has no lists.
    """
    rows = _first_rows(sources)
    if any((rows[name].list.len() > 1).any() for name, dtype in rows.schema.items() if isinstance(dtype, pl.List)):
        return
    for values in rows.select(pl.col(pl.String).str.replace_all("([a-z])([A-Z])", "$1 $2")):
        clicks = values.str.contains(_SAYS_CLICK)
        if (
            values.n_unique() <= _MOST_KINDS
            and clicks.any()
            and _share(clicks | values.str.contains(_SAYS_SEARCH)) >= _MOSTLY
        ):
            kinds = ", ".join(rows[values.name].drop_nulls().unique().sort().head(3).to_list())
            raise SchemaError(
                f"{sources[0].path}: the rows are clicks ({values.name!r} holds {kinds}), and nothing that was shown "
                "is logged: what was not clicked cannot be told from what nobody saw. Log an event for each page of "
                "results as well, also where nothing is clicked: an id of its own, the query, and the ids of all "
                "results from the top; repeat that id in each click. If the search service logs its answers so, name "
                "both logs."
            )


_NUMBERED = re.compile(r"(.*?)(\d{1,3})(\D*)")


def _numbered_columns(rows: pl.DataFrame) -> Finding | None:
    """Columns for each position of a page, such as `doc_0`, `click_0`, `doc_1`, with the query that reads them."""
    numbered = defaultdict[str, dict[int, str]](dict)  # by the name without its number
    for match in filter(None, map(_NUMBERED.fullmatch, rows.columns)):
        numbered[(match[1] + match[3]).strip("._- ")][int(match[2])] = match[0]
    whole = [name for name, of in numbered.items() if max(of) - min(of) + 1 == len(of) > 1 >= min(of)]
    lists = {name: [column for _, column in sorted(numbered[name].items())] for name in whole}
    fixed = [name for name in rows.columns if not any(name in of for of in lists.values())]
    known = {role for role in ALIASES for name in fixed if plain_name(name) in map(plain_name, ALIASES[role])}
    if not known <= {SESSION, QUERY}:
        return None
    texts = {name: pl.concat(rows[of].head(_LINES).cast(pl.String).get_columns()) for name, of in lists.items()}
    named = [name for name in lists if has_role_word(CLICK, name) and _may_be_clicks(texts[name])]
    clicks = named or [name for name in lists if _is_flag(texts[name]) and not is_no_click_name(name)]
    docs = [name for name in lists if name not in clicks and not (_numbers(texts[name]) % 1 > 0).any()]
    alike = [name for name in docs if {len(lists[name])} == {len(lists[click]) for click in clicks}]
    doc = max(alike, key=lambda name: (has_role_word(DOC, name), texts[name].n_unique()), default="")
    if not doc or len(clicks) != 1 or not (named or has_role_word(DOC, doc)):
        return None
    query = sql_of_pages(fixed, lists[doc], lists[clicks[0]], with_session=SESSION not in known)
    text = f"a row is a page with columns for each position, such as {lists[doc][0]!r} and {lists[clicks[0]][0]!r}"
    return Finding(text, ("--sql", query), certain=False)


_OF_TIMES = {"at", "time", "ts", "timestamp", "date", "second", "seconds", "secs", "sec", "s", "ms", "delay", "after"}


def _times_of_clicks(rows: pl.DataFrame) -> Finding | None:
    """A column with the time of a click in place of the click, with the query that makes clicks of it."""
    conditions = dict[str, str]()
    for name in (name for name in rows.columns if has_role_word(CLICK, name)):
        none = None if rows[name].null_count() else next(iter(rows[name].mode(maintain_order=True)), None)
        some = rows[name].filter(rows[name].ne_missing(none))
        of_times = not _OF_TIMES.isdisjoint(words_in(name)) or (_numbers(some) >= _MOST_CLICKS).all()
        is_time = holds_times(some) or (of_times and not _numbers(some).null_count())
        if is_time and some.n_unique() > _TWO and len(some) < rows.height / _TWO:
            conditions[name] = "IS NOT NULL" if none is None else f"<> {sql_text(none)}"
        elif _may_be_clicks(rows[name]):
            return None
    for name, condition in conditions.items() if len(conditions) == 1 else ():
        text = f"{name!r} holds times of clicks: a click is where it {condition}"
        return Finding(text, ("--sql", sql_of_click(name, condition)), certain=False)
    return None


_MOSTLY = 0.95
_LONGEST_PAGE = 1000
_MOST_CLICKS = 10**6  # on a row; more are times or ids
_TWO = 2  # words for a click and none; columns of the narrowest grid
AS_CLICKS = frozenset(("0", "1", "0.0", "1.0", "true", "false"))
"""The values of a column of clicks, as text."""


def _by_values(rows: pl.DataFrame, flags: Sequence[str], named: Mapping[str, str]) -> dict[str, str]:
    """Columns by flag that probably play roles, by what they hold; those of well-known names are left out.

    Args:
        rows: the first rows of a log.
        flags: the options of the roles that are looked for.
        named: columns by the flags of other roles.
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
        climbing = max(free, key=lambda name: _climbing(rows[name]), default="")
        columns |= {POSITION: climbing} if climbing and _climbing(rows[climbing]) >= _MOSTLY else {}
    if CLICK in roles:
        clicks = [name for name in _flags(rows.select(free)) if name not in columns.values()]
        columns |= {CLICK: clicks[0]} if len(clicks) == 1 and not is_no_click_name(clicks[0]) else {}
    position = columns.get(POSITION, known.get(POSITION))
    if (
        position is not None and _climbing(rows[position]) >= _MOSTLY
    ):  # without the order of pages, nothing tells others
        left = [name for name in free if name not in columns.values() and not rows.schema[name].is_float()]
        keys = rows.select(name for name in left if not holds_times(rows[name]))
        columns |= _keys(keys, _numbers(rows[position]), roles if SESSION in known else [*roles, SESSION])
    return {FLAGS[role]: column for role, column in columns.items()}


def _keys(rows: pl.DataFrame, position: pl.Series, roles: Collection[str]) -> dict[str, str]:
    """The columns of sessions, queries and documents: the latter change within a page, the former do not."""
    goes_on = (position > position.shift(1)).fill_null(value=False)  # further down on the page of the row before
    n_pages = int((~goes_on).sum())
    stays = {name: _share((rows[name] == rows[name].shift(1)).filter(goes_on)) for name in rows.columns}
    different = {name: rows[name].n_unique() for name in rows.columns}
    fixed = [name for name in rows.columns if stays[name] >= _MOSTLY and different[name] > 1]
    candidates = {
        SESSION: [name for name in fixed if different[name] >= _MOSTLY * n_pages],
        QUERY: [name for name in fixed if different[name] < _MOSTLY * n_pages],
        DOC: [name for name in rows.columns if stays[name] <= 1 - _MOSTLY and different[name] < _MOSTLY * rows.height],
    }
    return {
        role: max(names, key=lambda name: different[name])
        for role, names in candidates.items()
        if role in roles and names
    }


def _numbers(column: pl.Series) -> pl.Series:
    single = pl.Series(dtype=pl.String) if column.dtype.is_nested() else column
    return single.cast(pl.String).cast(pl.Float64, strict=False)


def _climbing(column: pl.Series, fewest: int = 3) -> float:
    """Share of the rows that are one below the row before, or at the top: of so many positions on pages nearly all."""
    numbers = _numbers(column)
    match numbers.min(), numbers.max():
        case (0.0 | 1.0) as top, float() as last if (
            top + fewest - 1 <= last <= _LONGEST_PAGE and not numbers.null_count()
        ):
            return _share((numbers - numbers.shift(1) == 1) | (numbers == top))
        case _:
            return 0.0


def _is_flag(column: pl.Series) -> bool:
    values = {value.lower() for value in column.cast(pl.String).drop_nulls().unique().to_list()}
    is_flag = values <= AS_CLICKS and not values <= {"0", "0.0", "false"}
    return bool(values) and (is_flag or (len(values) <= _TWO and find_click_words(values) is not None))


def _flags(rows: pl.DataFrame) -> list[str]:
    """Columns of 0 and 1, or of two words, or of lists of such; those whose names say something else only alone."""
    flags = [name for name in rows.columns if not is_page_name(name) and _is_flag(_entries(rows[name]))]
    return [name for name in flags if not is_no_click_name(name)] or flags


def _entries(column: pl.Series) -> pl.Series:
    """The values of a column, or the entries of its lists; none of structs."""
    entries = column.explode() if is_list(column.dtype) else column
    return pl.Series(dtype=pl.String) if entries.dtype.is_nested() else entries


def _may_be_clicks(column: pl.Series) -> bool:
    """Whether a column that is called like clicks holds some, or counts or ranks of some."""
    numbers = _numbers(column := _entries(column))
    is_count = numbers.null_count() == column.null_count() and ((numbers >= 0) & (numbers < _MOST_CLICKS)).all()
    return _is_flag(column) or bool(is_count and (numbers % 1 == 0).all())


def _share(holds: pl.Series) -> float:
    return float(holds.fill_null(value=False).mean() or 0.0)  # pyright: ignore[reportArgumentType]


NO_QUERY = Finding(
    "no column looks like the query: each document is compared with itself", ("--no-query",), certain=False
)
"""The finding where there is nothing to compare documents by."""

_NO_GUESS = "COLUMN"
_ROWS_OF_GUESSES = 20_000
_ROLE_OF = {flag: role for role, flag in FLAGS.items() if role in ALIASES}
_PAGE_IDS = ("serpid", "searchid", "pageviewid", "impressionid")
"""Names of ids of pages, which go before other columns that could be the session."""


def find_roles(opened: Callable[[], Log], sources: Callable[[], Sequence[Source]]) -> list[Finding]:
    """Findings on the roles of columns without well-known names: by other names, else by their values.

    Args:
        opened: opens the log.
        sources: finds its files.

    Raises:
        RoleError: a role has no column, and there is nothing to guess one from.
        PosbiasError: the log cannot be opened.
    """
    try:
        log = opened()
    except RoleError as error:
        words, click, position = _chosen(error.options, error.several), FLAGS[CLICK], FLAGS[POSITION]
        pairs = dict(zip(words[::2], words[1::2], strict=True))
        if pairs.get(click) == _NO_GUESS:
            check_shown(sources())
        if not pairs:
            raise
        rows = _first_rows(sources())
        if pairs.get(click, CLICK).lower() not in ALIASES[CLICK]:  # what is only called like it must hold clicks
            named = [name for name in error.several.get(click, (pairs[click],)) if name in rows.columns]
            pairs[click], *others = [*filter(lambda name: _may_be_clicks(rows[name]), named), _NO_GUESS]
            if len(others) > 1:
                raise
        unknown = [flag for flag, column in pairs.items() if column == _NO_GUESS and flag in _ROLE_OF]
        named = pairs.get(position, _NO_GUESS)  # what is called like positions must count them up
        if named != _NO_GUESS and _climbing(rows[named], _TWO) < _MOSTLY:
            unknown.append(position)
        others = {flag: column for flag, column in pairs.items() if flag not in unknown}
        by_values = _by_values(rows, unknown, others) if unknown else {}
        pairs |= by_values
        users = [name for name in rows.columns if plain_name(name) in CLIENTS]
        if pairs.get(FLAGS[SESSION]) == _NO_GUESS and len(users) == 1:  # visits, whose pages their times tell apart
            pairs[FLAGS[SESSION]] = users[0]
        lacking = [flag for flag, column in pairs.items() if column == _NO_GUESS]
        has_none = lacking == [FLAGS[QUERY]] and not _left(rows.schema, pairs.values())
        without_query = [NO_QUERY] if has_none else []
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
        return scan_sources(sources[:1]).head(_ROWS_OF_GUESSES).collect(engine="streaming")


def _left(schema: pl.Schema, guessed: Collection[str]) -> list[str]:
    """Columns that could hold a query: they play no role, and are no pages, users, times or fractions."""
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
    others = [name for name in several if name != column]
    beside = f", not {' or '.join(map(repr, others))}" if others else ""
    beside += ", by what it holds" if by_values else ""
    text = f"the {flag.removeprefix('--').replace('-', ' ')} is taken to be column {column!r}{beside}"
    return Finding(text, option(flag, column), certain=False)


def option(flag: str, value: str) -> tuple[str, ...]:
    """An option with its value, as words of a command line; a value may begin with a dash."""
    return (f"{flag}={value}",) if value.startswith("-") else (flag, value)


def _chosen(options: Sequence[str], several: Mapping[str, Sequence[str]]) -> list[str]:
    """Flags and columns in turn; of several columns the one that is the most usual."""
    words = [word for each in options for word in (each.split("=", 1) if each.startswith("--") else [each])]
    for at, flag in enumerate(words[:-1]):
        if flag in several and words[at + 1] == _NO_GUESS:
            words[at + 1] = min(several[flag], key=lambda name, flag=flag: _rank(name, flag))
    return words


def _rank(name: str, flag: str) -> int:
    known = [plain_name(alias) for alias in ALIASES[_ROLE_OF[flag]]] if flag in _ROLE_OF else []
    order = [*_PAGE_IDS, *known] if _ROLE_OF.get(flag) == "session" else known
    return order.index(plain_name(name)) if plain_name(name) in order else len(order)


_ROWS, _FILES = 200_000, 8
_VALUES = 1000  # of a column of text


def first_impressions(log: Log) -> pl.DataFrame:
    """Canonical impressions of the first rows of some files; faulty ones are marked in `rejected`."""
    step = -(-len(log.sources) // _FILES)
    some = log.sources[::step]
    with reading([*some, *log.click_sources]):
        frames = [
            replace(log, sources=(source,)).impressions.head(_ROWS // len(some)).collect(engine="streaming")
            for source in some
        ]
    return pl.concat(frames, how="diagonal_relaxed")


def first_texts(log: Log, column: str | None) -> list[str]:
    """The values of a column of text in the first rows, each once; none where it holds something else."""
    if column is None or schema_of(log.sources[0])[column] != pl.String:
        return []
    with reading(log.sources):
        rows = scan_sources(log.sources).select(column).head(_ROWS).drop_nulls().unique().sort(column)
        values = rows.collect(engine="streaming")[column]
    return values.gather_every(-(-len(values) // _VALUES) or 1).to_list()  # the first ones alone may be of some days


_NEARLY_NONE = 0.01
"""Share of the clicks that could not be read, up to which the rest of them are bad rows."""

_MOSTLY_EMPTY = 0.5


def find_sums(log: Log) -> list[Finding]:
    """Whether a row adds up impressions and clicks."""
    count = summed_impressions(log)
    if count is None:
        return []
    text = f"a row adds up the impressions in {count!r} and the clicks on them in {log.roles.click!r}"
    return [Finding(text, option("--impressions", count), certain=is_count_name(count))]


def find_position_base(log: Log) -> list[Finding]:
    """Whether positions count from 0."""
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
    """The impressions among the first rows."""
    is_shown = any_condition(events.request.shown, schema_of(log.sources[0]))
    return scan_sources(log.sources).head(_ROWS).filter(is_shown)


def find_clicks(log: Log) -> list[Finding]:
    """Whether the click column holds counts or ranks, and what its empty cells mean."""
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
    filled = rows.filter(pl.col(REJECTED) == 0)[CLICK]
    if faults[RowRejection.CLICK_MISSING] and len(filled) and (filled > 0).all():
        text = f"{log.roles.click!r} is a click or empty: an empty cell means no click"
        mostly = faults[RowRejection.CLICK_MISSING] > _MOSTLY_EMPTY * rows.height
        return [Finding(text, ("--null-click", "0"), certain=mostly)]
    return []


def _click_faults(rows: pl.DataFrame) -> dict[int, int]:
    counts = dict(rows.group_by(REJECTED).len().iter_rows())
    return {fault: counts.get(fault, 0) for fault in (RowRejection.CLICK_INVALID, RowRejection.CLICK_MISSING)}


_LOOKED_AT = 1 << 20  # bytes
_LINES = 1000
_KNOWN_MARKS = (",", ";", "\t", "|", " ")
_NAMES = {"\t": "tab", " ": "space"}
_NUMBER = re.compile(r"\s*[+-]?[0-9]+([.,][0-9]+)?\s*")
_WITH_COMMA = re.compile(r"\s*[+-]?[0-9]*,[0-9]+\s*")
_MOST = 0.95  # of the lines that have as many fields as the first


def find_dialects(sources: Sequence[Source]) -> list[Finding]:
    """The options without which the text files of a log cannot be read: one finding for each.

    There are none where the files differ in it, nor for Parquet and Arrow.
    """
    by_file = [_of_file(source) for source in sources if source.format in {*TEXT_SEPARATORS, "ndjson", "json"}]
    return [finding for finding in dict.fromkeys(chain(*by_file)) if all(finding in of_file for of_file in by_file)]


def _of_file(source: Source) -> list[Finding]:
    head = read_start(source, _LOOKED_AT)
    cut = source.bytes > len(head)
    if is_compressed(head):
        head, cut = decompress_start(head), True
    encoding, certain = utf_16_variant(head), True
    if encoding is None:
        try:
            codecs.getincrementaldecoder("utf-8")().decode(head)
        except UnicodeDecodeError:
            encoding, certain = _encoding_of(head), False
    text = codecs.getincrementaldecoder(encoding or "utf-8")(errors="replace").decode(head).removeprefix("\ufeff")
    lines = text.splitlines()
    lines = (lines[:-1] if cut and len(lines) > 1 else lines)[:_LINES]
    of_fields = _fields(lines, TEXT_SEPARATORS[source.format]) if source.format in TEXT_SEPARATORS and lines else []
    if encoding is None:
        return of_fields
    seems = "is" if certain else "is not UTF-8, and may be"
    return [Finding(f"the text {seems} {encoding}", ("--encoding", encoding), certain), *of_fields]


_KANA = 0.2  # share of the letters beyond ASCII: in Japanese, a half or more are; of other text read so, next to none


def _encoding_of(head: bytes) -> str:
    """The encoding of text that is not UTF-8: one of Japan's, or that of western Windows, or the first that fits."""
    for name, least in (("cp932", _KANA), ("euc_jp", _KANA), ("cp1252", 0), ("cp932", 0), ("gb18030", 0)):
        with suppress(UnicodeDecodeError):
            letters = [letter for letter in codecs.getincrementaldecoder(name)().decode(head) if not letter.isascii()]
            if sum("\u3041" <= letter <= "\u30ff" for letter in letters) >= least * len(letters):
                return name
    return "latin-1"


def _fields(lines: Sequence[str], usual: str) -> list[Finding]:
    """Findings from the lines of CSV and TSV."""
    mark = _separator_of(lines, usual)
    rows = [row for row in csv.reader(lines, delimiter=mark) if row]
    name = _NAMES.get(mark, mark)
    seen = [] if mark == usual else [Finding(f"fields are separated by {name!r}", ("--separator", name))]
    if _is_data(rows):
        names = ",".join(f"c{number}" for number in range(1, len(rows[0]) + 1))
        text = f"the first line is a row, not a header; its {len(rows[0])} columns are called {names}"
        seen.append(Finding(text, ("--no-header", "--columns", names)))
    else:
        rows = rows[1:]
    return [*seen, *_decimal_marks(rows)]


def _separator_of(lines: Sequence[str], usual: str) -> str:
    """The mark that parts most lines in as many fields as the first, the one with the most fields; else the usual."""
    widths = {mark: [len(row) for row in csv.reader(lines, delimiter=mark) if row] for mark in _KNOWN_MARKS}
    even = {
        mark: counts[0]
        for mark, counts in widths.items()
        if counts and counts[0] > 1 and Counter(counts)[counts[0]] >= _MOST * len(counts)
    }
    if len(even) > 1:
        even.pop(" ", None)  # fields of any file may hold as many words
    if not even or even.get(usual) == max(even.values()) or usual == "\t" in even:
        return usual
    return max(even, key=lambda mark: (even[mark], mark == usual))


def _is_data(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first row holds numbers where the others do, and no name of a column that is known."""
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
    """The mark before fractions, by columns of numbers with a comma and no other fractions; that between thousands.

    With a mark between thousands, all marks stand before three digits, and other numbers of the column have none.
    """
    width = min(map(len, rows), default=0)
    columns = [[row[place] for row in rows if row[place].strip()] for place in range(width)]
    if any(
        all(_NUMBER.fullmatch(value) and "." not in value for value in column)
        and any(_WITH_COMMA.fullmatch(value) and not re.match(thousands_pattern(","), value) for value in column)
        for column in columns
    ):
        return [Finding("numbers have a comma before their fraction", ("--decimal", ","))]
    for mark, name, options in ((",", "comma", ()), (".", "point", ("--decimal", ","))):
        for column in columns:
            others = [value for value in column if not re.match(thousands_pattern(mark), value)]
            if 0 < len(others) < len(column) and all(value.strip().isdecimal() for value in others):
                return [Finding(f"numbers have a {name} between thousands", options, certain=not options)]
    return []
