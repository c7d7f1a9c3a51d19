"""Findings about sessions: whether one is a page or a visit, and whether documents stand twice on pages."""

import re
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import cast

import polars as pl

from posbias.core.choices import RandomizedRows
from posbias.core.errors import SchemaError, UsageError
from posbias.core.log.impressions import REJECTED
from posbias.core.log.pages import PAGE_ROWS, PageRejection, pages
from posbias.core.roles import (
    NAMES_IN_EXPORTS,
    TIMES,
    has_role_word,
    is_no_click_name,
    is_offset_name,
    is_page_name,
    is_rank_name,
    is_team_name,
    plain_name,
    words_in,
)
from posbias.core.schema import ALIASES, CLICK, DOC, FLAGS, POSITION, QUERY, SESSION
from posbias.io.forms.form import Document, field, parse_document
from posbias.io.forms.recognition import AS_CLICKS, NO_QUERY, first_impressions, first_shown, option
from posbias.io.log.click_log import Log, open_log
from posbias.io.log.events import EventReader
from posbias.io.log.faults import click_row_options
from posbias.io.log.lists import JSON, SPACE, Finding, ListRules, is_list
from posbias.io.log.rejections import CLICKED_TWICE, advice_without_sessions
from posbias.io.log.scan import LINE, reading, scan_lines, scan_sources, schema_of
from posbias.io.log.sources import Source
from posbias.io.log.sql import sql_of_swaps, sql_option
from posbias.io.log.times import finest_first, free_columns

_VISITS = 0.1
"""Share of the sessions that cannot be one page, from which a session is a visit."""

_GOOD_PAGES = 0.05
"""Share of faulty pages up to which columns tell pages apart."""

_MOST_LISTS = 30
"""Values of a column that tells the lists of a page apart."""

_TELLING = {"search", "serp", "page", "request", "view", "impression", "time", "timestamp", "date", "ts", "at"}


@dataclass(frozen=True)
class _Shares:
    """Shares of faulty pages, by fault; the number of pages, and the rows of the longest."""

    several_queries: float
    repeated_doc: float
    repeated_position: float
    pages: int = 0
    longest: int = 0

    @property
    def no_page(self) -> float:
        return self.several_queries + self.repeated_position

    @property
    def faulty(self) -> float:
        return self.no_page + self.repeated_doc


def find_session(log: Log) -> list[Finding]:
    """The column of the session, by names in exports of other tools, where none is needed and its rows are pages."""
    if log.has_sessions or log.raw is not None or log.nesting is not None or log.roles.impressions is not None:
        return []
    known = frozenset[str]() if log.request.roles.no_session else NAMES_IN_EXPORTS[SESSION]
    free = [name for name in schema_of(log.sources[0]) if name not in log.roles.columns()]
    keys = _best_keys(log, [(name,) for name in free if plain_name(name) in known])
    if keys is None:
        return []
    return [Finding(f"the session is taken to be column {keys[0]!r}", option("--session", keys[0]), certain=False)]


_OF_LISTS = {"row", "list", "carousel", "shelf", "strip", "section", "module", "block", "group", "widget", "lane"}


def find_cells(log: Log) -> list[Finding]:
    """The column that tells the rows or lists of a page apart, where positions begin anew in each."""
    if not log.has_sessions or log.roles.cell or log.raw is not None or log.nesting is not None:
        return []
    log = replace(log, request=replace(log.request, duplicate_docs="keep"))  # several lists may show a document
    shares = _shares(log)
    if shares.repeated_position < _VISITS or shares.several_queries >= _VISITS:
        return []
    found = dict[str, _Shares]()
    for name in free_columns(log):
        if is_page_name(name) or is_offset_name(name) or not _TELLING.isdisjoint(words_in(name)):
            continue
        of_lists = replace(log, roles=replace(log.roles, cell=(name,)))
        if first_impressions(of_lists)[name].n_unique() <= _MOST_LISTS:
            found[name] = _shares(of_lists)
    named = {name for name in found if not _OF_LISTS.isdisjoint(words_in(name))}
    good = [name for name in found if found[name].faulty <= _GOOD_PAGES]
    name = min(good, key=lambda name: (name not in named, found[name].faulty), default=None)
    if name is None or (name not in named and _best_keys(log, _page_keys(log)) is not None):  # a visit with its pages
        return []
    text = f"positions begin anew in each {name!r} of a page: with it, a place on the page is one"
    if name not in named:
        text += f". If each is a page of its own, name it with --session {name} in place of --cell, beside the others"
    return [Finding(text, option("--cell", name), certain=name in named)]


_DRAFTED, _TOPS = 0.5, (0.2, 0.8)
"""The least share of pages with documents of both teams, and between what shares each of them has the top."""
_RANKS = (("ranka", "rankb"), ("arank", "brank"), ("positiona", "positionb"))
"""Plain names of the columns with the ranks that both rankers give to a document."""


def ranks_of(log: Log) -> tuple[str, ...]:
    """The columns with the ranks that two rankers give to a document; none where no names tell."""
    names = {plain_name(name): name for name in schema_of(log.sources[0])}
    return next((tuple(names[one] for one in ranks) for ranks in _RANKS if {*ranks} <= names.keys()), ())


def find_drafts(log: Log) -> Iterator[tuple[str, pl.DataFrame]]:
    """The columns that say which of two rankers picked a document for the page, with the first impressions so picked.

    Such a column has a telling name and two values. Most pages hold both, either is often at the top, and some document
    of a query has now one, now the other: advertisements and properties of documents or pages are none.
    """
    if not _shows_pages(log):
        return
    request, played = log.request, {*log.roles.session, *log.roles.ids(), log.roles.position, log.roles.click}
    marks = [mark.column for mark in log.roles.randomized]
    for name in schema_of(log.sources[0]):
        if not is_team_name(name) or name in played:
            continue
        try:
            roles = replace(request.roles, features=tuple(dict.fromkeys([name, *marks])))
            named = open_log(replace(request, roles=roles))
            rows = first_impressions(named).filter(pl.col(REJECTED) == 0)
            rows = rows.with_columns(team := pl.col(name).cast(pl.String)).filter(team.fill_null("") != "")
        except (SchemaError, pl.exceptions.InvalidOperationError):
            continue
        if rows[name].n_unique() != 2:  # noqa: PLR2004 - rankers
            continue
        pages = rows.sort(POSITION).group_by(SESSION).agg(both=team.n_unique() > 1, top=team.first())
        tops = pages["top"].value_counts(normalize=True)["proportion"]
        moved = rows.group_by(QUERY, DOC).agg(team.n_unique() > 1)[name].any()
        if pages["both"].sum() >= _DRAFTED * pages.height and tops.is_between(*_TOPS).all() and moved:
            yield name, rows


_LINES, _FILES, _OBJECT = 5000, 4, "event_attributes.object"


def find_teams_of_ubi(sources: Sequence[Source]) -> str | None:
    """The attribute of UBI's events that says so: a telling name, and two values, both on some page."""
    pages = defaultdict[str, defaultdict[str, set[str]]](lambda: defaultdict(set))
    for source in sources[:_FILES]:
        with reading([source]):
            lines = scan_lines(source).select(LINE).head(_LINES).drop_nulls().collect(engine="streaming").to_series()
        for document in filter(None, map(parse_document, lines)):
            of_doc = field(document, _OBJECT)
            for name, value in cast("Document", of_doc).items() if isinstance(of_doc, dict) else ():
                if is_team_name(name) and isinstance(value, str | int) and value != "":
                    pages[name][str(document.get("query_id"))].add(str(value))
    rankers = 2
    for name, of_pages in pages.items():
        if len(frozenset(chain(*of_pages.values()))) == rankers == max(map(len, of_pages.values())):
            return f"{_OBJECT}.{name}"
    return None


def _shows_pages(log: Log) -> bool:
    return log.has_sessions and log.raw is None and log.request.tables is None


def of_team(mark: RandomizedRows, advice: str) -> UsageError:
    """The error of rows that are marked as placed at random by the ranker that picked them."""
    return UsageError(
        f"--randomized-where {mark}: column {mark.column!r} says which of two rankers picked a document, and each "
        f"picks the best that is left; only which of them comes first is random. {advice}"
    )


def check_drafts(log: Log) -> None:
    """Refuse the picks of two rankers as documents that were placed at random (--randomized-where).

    Raises:
        UsageError: rows are marked by the ranker that picked them, or all rows of pages that two rankers drafted.
    """
    drafts, ranks, roles = dict(find_drafts(log)), ranks_of(log) or ("rank_a", "rank_b"), log.roles
    marked = "in a log of one row per document (--sql)"
    if log.nesting is None and log.raw is None:
        page = [*(roles.session or ("session",)), *([roles.page] if roles.page else [])]
        query = sql_of_swaps(page, roles.position or POSITION, ranks, log.request.rules.position_base)
        marked = f"{sql_option(query)} --randomized-where swap=true@1,2 --max-position 2"
    ways_out = (
        f"By the ranks of both rankers, mark the rounds that they order differently: {marked}. "
        "Or leave --method and --randomized-where out, and compare documents within the same two lists: "
        f"{' '.join(f'--stratify {rank}' for rank in ranks)}."
    )
    for mark in log.roles.randomized:
        if mark.column in drafts or ("team" in words_in(mark.column) and not _shows_pages(log)):
            raise of_team(mark, ways_out)
        for name, rows in drafts.items():
            is_marked = pl.col(mark.column).cast(pl.String).eq_missing(mark.value)
            of_pages = rows.group_by(SESSION).agg(some=is_marked.any(), all=is_marked.all())
            if of_pages["some"].any() and (not mark.positions or of_pages["some"].equals(of_pages["all"])):
                raise UsageError(
                    f"--randomized-where {mark}: takes all documents that two rankers drafted (column {name!r}) to be "
                    "placed at random. A coin swaps two of them only where the rankers order them differently; where "
                    "they agree the better one stands above, so that position bias looks too steep (by 8 to 18 % in "
                    f"simulations). {ways_out}"
                )


def find_pages(log: Log) -> list[Finding]:
    """Other columns for the session where it is a visit."""
    if not log.has_sessions or log.request.roles.session or log.raw is not None:
        return []
    visit, is_visit = f"a session ({', '.join(log.roles.session)}) is a visit", _shares(log).no_page >= _VISITS
    if log.nesting is not None:
        return [Finding(f"{visit}: each row is a page", ("--session", "none"), certain=False)] if is_visit else []
    if not is_visit:
        judged = pages(first_impressions(log).lazy().filter(pl.col(REJECTED) == 0), log.page_rules).collect()
        faulty, rows = judged.filter(pl.col(REJECTED) > 0), judged[PAGE_ROWS].to_numpy()
        few = (
            advice_without_sessions(log, faulty)
            if faulty[PAGE_ROWS].to_numpy().sum() > _GOOD_PAGES * rows.sum()
            else ""
        )
        return [Finding(few, certain=False)] if few else []
    keys = _best_keys(log, _page_keys(log))
    if keys is None:
        return [Finding(f"{visit}, and no columns tell its pages apart", certain=False)]
    text = f"{visit}: a page is identified by {' and '.join(keys)}"
    return [Finding(text, tuple(chain(*(option("--session", name) for name in keys))), certain=False)]


def _best_keys(log: Log, keys: Iterable[tuple[str, ...]]) -> tuple[str, ...] | None:
    """The columns that tell pages apart: the fewest faulty ones, then the fewest, as a page is not cut needlessly."""
    shares = {names: _shares(replace(log, roles=replace(log.roles, session=names))) for names in keys}
    good = {names: share for names, share in shares.items() if share.faulty <= _GOOD_PAGES and share.longest > 1}
    return min(good, key=lambda names: (round(good[names].faulty, 2), good[names].pages), default=None)


def find_duplicates(log: Log) -> list[Finding]:
    """Whether pages show a document twice."""
    if not log.has_sessions or log.raw is not None or log.request.duplicate_docs != "error":
        return []
    shares = _shares(log)
    if not shares.repeated_doc or shares.no_page >= _VISITS:
        return []
    rows = first_impressions(log).filter(pl.col(REJECTED) == 0)
    options = click_row_options(log, rows.lazy())
    if options:  # a click column that was named is for rows that are impressions
        named = log.request.roles.click is not None
        text = f"{CLICKED_TWICE}{f': without --click, use {shlex.join(options)}' if named else ''}"
        return [Finding(text, () if named else options)]
    twice = rows.group_by(SESSION, QUERY, DOC, POSITION).len().filter(pl.col("len") > 1)
    n_twice, n_pages = (some.select(pl.col(SESSION).n_unique()).item() for some in (twice, rows))
    of_pages = f"{shares.repeated_doc:.2%} of the pages"
    if n_twice > shares.repeated_doc / 2 * n_pages:
        text = f"{of_pages} hold rows twice, as of a log that was exported twice: one counts"
        return [Finding(text, ("--duplicate-docs", "first"), certain=False)]
    counts, kept = ("each of its rows counts", "keep") if log.roles.no_query else ("its first row counts", "first")
    return [Finding(f"{of_pages} show a document twice: {counts}", ("--duplicate-docs", kept))]


def _shares(log: Log) -> _Shares:
    try:
        rows = first_impressions(log)
    except SchemaError:  # a column of a type that cannot play the role
        return _Shares(1.0, 0.0, 0.0)
    judged = pages(rows.lazy().filter(pl.col(REJECTED) == 0), log.page_rules).collect()
    counts = dict(judged.group_by(REJECTED).len().iter_rows())
    total = max(judged.height, 1)
    longest = int(judged[PAGE_ROWS].cast(pl.Int64).to_numpy().max(initial=0))
    faults = (PageRejection.SEVERAL_QUERIES, PageRejection.REPEATED_DOC, PageRejection.REPEATED_POSITION)
    return _Shares(*(counts.get(fault, 0) / total for fault in faults), pages=judged.height, longest=longest)


def _page_keys(log: Log) -> Iterator[tuple[str, ...]]:
    """Columns that may tell pages apart: the visit with the query, or with what is called like a page or a time."""
    visit, query = log.roles.session, log.roles.query
    telling = [name for name in free_columns(log) if not _TELLING.isdisjoint(words_in(name))]
    yield (*visit, *query)
    for name in telling:
        yield (*visit, name)
        yield (name,)
        yield (*visit, *query, name)


_ROWS_WITH_LISTS = 1000
_NEARLY_ALL = 0.95
_LONGER_THAN_WORDS = 1.5  # entries per row: what is shorter may be text of a few words
_SEPARATORS = (JSON, ";", "|", ",", SPACE)
_SUFFIX = re.compile(r"(?![0-9]+\.[01]$).+?([^\w\s])(?:0|1|true|false)")
_QUERIES = {plain_name(name) for name in ALIASES[QUERY]} | NAMES_IN_EXPORTS[QUERY]

Lists = Mapping[str, list[list[str]]]
"""The entries of each row, as text, by column."""


def find_lists(sources: Sequence[Source]) -> list[Finding]:
    """The options by which the lists of a log are read; none where a row is one impression, or names say it all."""
    with reading(sources):
        scanned = scan_sources(sources[:1])
        first = scanned.head(_ROWS_WITH_LISTS).collect()
    for separator, lists in _readings(first):
        for find in (_with_suffix, _with_click_lists, _with_clicked_ids, _with_clicked_places):
            columns = find(lists)
            if columns is not None:
                return _findings(columns, separator, scanned)
    return []


Columns = dict[str, str | None]
"""The column of the documents, `doc`; where there are such, `click` and `position`, with an entry for each document,
and `clicked`, the ids of the clicked ones, or `places`, theirs, which count from `top`; and `suffix`, what stands
between an id and its click."""


def _readings(first: pl.DataFrame) -> Iterator[tuple[str | None, Lists]]:
    """The lists in the first rows: those of list columns, then those in text by each separator."""
    real = {name: first[name] for name, dtype in first.schema.items() if is_list(dtype)}
    flat = {name: column for name, column in real.items() if not column.explode().dtype.is_nested()}
    if flat:
        yield None, {name: _as_text(column) for name, column in flat.items()}
    texts = [name for name, dtype in first.schema.items() if dtype == pl.String]
    for separator in _SEPARATORS:
        rules = ListRules(separator)
        read = first.select(rules.as_list(name).alias(name) for name in texts)
        lists = {name: _as_text(column) for name, column in read.to_dict().items() if column.drop_nulls().len()}
        if lists:
            yield separator, lists


def _as_text(column: pl.Series) -> list[list[str]]:
    listed = column.arr.to_list() if isinstance(column.dtype, pl.Array) else column
    texts = listed.cast(pl.List(pl.String)).to_list()
    return [[] if row is None else [entry for entry in row if entry is not None] for row in texts]


def _with_suffix(lists: Lists) -> Columns | None:
    """Ids with clicks behind them, of one mark."""
    for name, rows in lists.items():
        entries = [entry for row in rows for entry in row]
        marks = {match[1] if (match := _SUFFIX.fullmatch(entry)) else None for entry in entries}
        if len(marks) == 1 and (mark := marks.pop()) and _mean_length(rows) > _LONGER_THAN_WORDS:
            return {"doc": name, "suffix": mark}
    return None


def _with_click_lists(lists: Lists) -> Columns | None:
    """A list of 0 and 1, or of true and false, and one of documents of the same length.

    It is the one that is called like clicks, and may then count them; else the only one that is not called otherwise.
    """
    named = {name: rows for name, rows in lists.items() if has_role_word(CLICK, name)}
    flags = [name for name, rows in lists.items() if not named and _hold(rows, AS_CLICKS.__contains__)]
    flags = [name for name in flags if not (is_page_name(name) or is_rank_name(name) or _hold(lists[name], _NO_CLICK))]
    clicks = [name for name, rows in named.items() if _hold(rows, _is_click)] or flags
    guess = [name for name in clicks if named or not is_no_click_name(name)]
    click = _by_name(clicks, CLICK) or (guess[0] if len(guess) == 1 else None)
    if click is None:
        return None
    others = {name: zip(rows, lists[click], strict=True) for name, rows in lists.items() if name not in clicks}
    fitting = [name for name, rows in others.items() if _nearly_all(len(row) == len(of) for row, of in rows)]
    # Positions are whole numbers that differ within a row.
    whole = [name for name in fitting if all(entry.isdecimal() for row in lists[name] for entry in row)]
    counting = [name for name in whole if all(len(set(row)) == len(row) for row in lists[name])]
    ranks = [name for name in counting if is_rank_name(name)]  # several are those of several rankers
    position = _by_name(counting, POSITION) or (ranks[0] if len(ranks) == 1 else None)
    docs = [name for name in fitting if name != position and not is_rank_name(name)]
    distinct = {name: len({entry for row in lists[name] for entry in row}) for name in docs}
    doc = _by_name(docs, DOC) or max(docs, key=lambda name: distinct[name], default=None)
    return None if doc is None else {"doc": doc, "click": click, "position": position}


_NO_CLICK = frozenset(("0", "0.0", "false")).__contains__


def _hold(rows: list[list[str]], is_one: Callable[[str], bool]) -> bool:
    """Whether there are entries, several in a row, and all are of some kind."""
    return any(rows) and _mean_length(rows) > 1 and all(is_one(entry.lower()) for row in rows for entry in row)


def _is_click(entry: str) -> bool:
    """Whether an entry, in lower case, is a click or none, or a number of clicks."""
    return entry in AS_CLICKS or re.fullmatch(r"\d+(\.0)?", entry) is not None


def _with_clicked_ids(lists: Lists) -> Columns | None:
    """A list of documents, and one that holds only some of them in nearly all rows."""
    for doc, shown in lists.items():
        if _mean_length(shown) <= _LONGER_THAN_WORDS:
            continue
        for clicked, ids in lists.items():
            is_shorter = clicked != doc and any(ids) and _mean_length(ids) < _mean_length(shown)
            if is_shorter and _nearly_all(set(row) <= set(of) for row, of in zip(ids, shown, strict=True) if row):
                return {"doc": doc, "clicked": clicked}
    return None


def _with_clicked_places(lists: Lists) -> Columns | None:
    """A list of documents, and one of places in it: several in some rows, none in others, fewer than half of all."""
    for doc, shown in lists.items():
        for name, places in lists.items():
            entries = [entry for row in places for entry in row]
            may_be = name != doc and min(map(len, places)) == 0 < 2 * len(entries) < sum(map(len, shown))
            if not may_be or max(map(len, places)) == 1 or not all(map(str.isdecimal, entries)):
                continue
            top = int(min(map(int, entries)) > 0)
            if all(max(map(int, row), default=0) < len(of) + top for row, of in zip(places, shown, strict=True)):
                return {"doc": doc, "places": name, "top": str(top)}
    return None


def _findings(columns: Columns, separator: str | None, scanned: pl.LazyFrame) -> list[Finding]:
    """Findings, but for columns with well-known names."""
    seen = list[Finding]()
    if separator is not None:
        words = {JSON: "lists in brackets", SPACE: "lists, separated by blanks"}
        lists = words.get(separator, f"lists, separated by {separator}")
        seen.append(Finding(f"the text of column {columns['doc']!r} holds {lists}", ("--list-separator", separator)))
    of_roles = {
        DOC: "lists the documents of a page",
        POSITION: "lists their positions",
        CLICK: "has a click for each document",
    }
    for role, says in of_roles.items():
        name = columns.get(role)
        if name is not None and name.lower() not in ALIASES[role]:
            by_values = role == CLICK and not has_role_word(CLICK, name)
            text = f"column {name!r} {says}{', by what it holds' if by_values else ''}"
            seen.append(Finding(text, (FLAGS[role], name), certain=not by_values))
    if (clicked := columns.get("clicked")) is not None:
        seen.append(Finding(f"column {clicked!r} lists the clicked ones", ("--clicked", clicked)))
        if scanned.select(pl.col(clicked).is_null().any()).collect(engine="streaming").item():
            seen.append(Finding("an empty cell there means that nothing was clicked", ("--null-click", "0")))
    if (places := columns.get("places")) is not None:
        top = columns["top"] or ""
        text = f"column {places!r} lists the places of the clicked ones, from {top}"
        seen.append(Finding(text, (*option("--click", places), "--click-ranks", top), certain=False))
    if (suffix := columns.get("suffix")) is not None:
        if not _QUERIES.intersection(map(plain_name, scanned.collect_schema())):
            seen.append(NO_QUERY)
        order = (
            "logs of this form are often published with the documents of a page in random order, as MIND is, and then "
            "their order is no position and no propensity follows from it: keep --order-is-position only if documents "
            "stand as they were shown"
        )
        seen.append(Finding(f"ids have their click behind {suffix!r}", (f"--click-suffix={suffix}",)))
        seen.append(Finding(order, ("--order-is-position",), certain=False))
    return seen


def _by_name(names: Sequence[str], role: str) -> str | None:
    """The name that is that of a role, alone or at the end of a path."""
    return next((name for name in names if name.lower().rpartition(".")[2] in ALIASES[role]), None)


def _mean_length(rows: list[list[str]]) -> float:
    filled = [row for row in rows if row]
    return sum(map(len, filled)) / max(len(filled), 1)


def _nearly_all(holds: Iterable[bool]) -> bool:
    flags = list(holds)
    return sum(flags) >= _NEARLY_ALL * max(len(flags), 1)


def find_page_time(log: Log) -> list[Finding]:
    """The column of the time that tells the pages of a visit apart, where a session is a visit."""
    events = log.raw
    if not isinstance(events, EventReader) or events.request.time is not None:
        return []
    schema = schema_of(log.sources[0])
    named = [name for name in schema if plain_name(name) in TIMES and name not in log.roles.columns()]
    with reading(log.sources):
        time = next(iter(finest_first(first_shown(log, events).select(named).collect(engine="streaming"))), None)
    if time is None:
        return []
    roles = events.event_roles
    names = [*roles.session, *roles.query, *roles.doc, *([roles.position] if roles.position else [])]
    with reading(log.sources):
        shown = first_shown(log, events).select(list(dict.fromkeys(names))).unique().collect(engine="streaming")
    queries = pl.lit(value=False) if roles.no_query else pl.struct(roles.query).n_unique() > 1
    again = pl.col(roles.position).n_unique() < pl.len() if roles.position else pl.lit(value=False)
    visits = shown.group_by(roles.session).agg((queries | again).alias("visit"))["visit"]
    if visits.sum() <= _VISITS * len(visits):
        return []
    visit = ", ".join(roles.session)
    text = f"a session ({visit}) is a visit: a page is what it shows at one time, by {time!r}"
    return [Finding(text, option("--page-time", time), certain=False)]
