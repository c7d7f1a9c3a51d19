"""Recognition of the structure of pages: sessions, lists, grids, rankers of interleaved pages, repeated documents."""

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
"""Least share of sessions that cannot be one page, where a session is a visit."""

_GOOD_PAGES = 0.05
"""Largest share of invalid pages, where columns tell pages apart."""

_MOST_LISTS = 30
"""Largest number of values of a column that tells the lists of a page apart."""

_PAGE_WORDS = {"search", "serp", "page", "request", "view", "impression", "time", "timestamp", "date", "ts", "at"}


@dataclass(frozen=True)
class _Shares:
    """Shares of invalid pages by fault, 0 to 1."""

    several_queries: float
    repeated_doc: float
    repeated_position: float
    pages: int = 0  # number of pages
    longest: int = 0  # rows of the longest page

    @property
    def no_page(self) -> float:
        return self.several_queries + self.repeated_position

    @property
    def faulty(self) -> float:
        return self.no_page + self.repeated_doc


def find_session(log: Log) -> list[Finding]:
    """Recognise an optional column of sessions by names in exports of other tools, if its sessions are pages.

    Pages may have several lists, with positions of their own, if a column tells these apart.
    """
    if log.has_sessions or log.raw is not None or log.nesting is not None or log.roles.impressions is not None:
        return []
    known = frozenset[str]() if log.request.roles.no_session else NAMES_IN_EXPORTS[SESSION]
    free = [name for name in schema_of(log.sources[0]) if name not in log.roles.columns()]
    names = [name for name in free if plain_name(name) in known]
    by_name = {name: replace(log, roles=replace(log.roles, session=(name,))) for name in names}
    keys = _best_keys(log, [(name,) for name in names]) or [name for name in names if find_cells(by_name[name])]
    if not keys:
        return []
    return [Finding(f"the session is taken to be column {keys[0]!r}", option("--session", keys[0]), certain=False)]


_LIST_WORDS = {"row", "list", "carousel", "shelf", "strip", "section", "module", "block", "group", "widget", "lane"}


def find_cells(log: Log) -> list[Finding]:
    """Recognise the column of the rows or lists of a page, where positions begin anew in each."""
    if not log.has_sessions or log.roles.cell or log.raw is not None or log.nesting is not None:
        return []
    log = replace(log, request=replace(log.request, duplicate_docs="keep"))  # several lists may show a document
    shares = _shares(log)
    if shares.repeated_position < _VISITS or shares.several_queries >= _VISITS:
        return []
    shares_by_name = dict[str, _Shares]()
    for name in free_columns(log):
        if is_page_name(name) or is_offset_name(name) or not _PAGE_WORDS.isdisjoint(words_in(name)):
            continue
        with_cell = replace(log, roles=replace(log.roles, cell=(name,)))
        if first_impressions(with_cell)[name].n_unique() <= _MOST_LISTS:
            shares_by_name[name] = _shares(with_cell)
    usual = {name for name in shares_by_name if not _LIST_WORDS.isdisjoint(words_in(name))}
    good = [name for name, of_name in shares_by_name.items() if of_name.faulty <= _GOOD_PAGES]
    name = min(good, key=lambda name: (name not in usual, shares_by_name[name].faulty), default=None)
    if name is None or (name not in usual and _best_keys(log, _page_keys(log)) is not None):  # a visit with its pages
        return []
    text = f"positions begin anew in each {name!r} of a page: with it, a place on the page is one"
    if name not in usual:
        text += f". If each is a page of its own, name it with --session {name} in place of --cell, beside the others"
    return [Finding(text, option("--cell", name), certain=name in usual)]


_DRAFTED, _TOPS = 0.5, (0.2, 0.8)
"""Least share of pages with documents of both teams, and range of the share of pages with a team at the top."""
_RANKS = (("ranka", "rankb"), ("arank", "brank"), ("positiona", "positionb"))
"""Plain names of the columns of two rankers' ranks."""


def rank_columns(log: Log) -> tuple[str, ...]:
    """Return the two columns of two rankers' ranks, by their names; none without such names."""
    names = {plain_name(name): name for name in schema_of(log.sources[0])}
    return next((tuple(names[one] for one in ranks) for ranks in _RANKS if {*ranks} <= names.keys()), ())


def find_drafts(log: Log) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield the columns of the ranker that picked a document of a team draft, with the first impressions.

    Such a column has a usual name and two values. Most pages have both, either is often at the top, and the value of a
    document varies within a query, as it does not for advertisements and properties of documents or pages.
    """
    if not _has_pages(log):
        return
    request, used = log.request, {*log.roles.session, *log.roles.ids(), log.roles.position, log.roles.click}
    marks = [mark.column for mark in log.roles.randomized]
    for name in schema_of(log.sources[0]):
        if not is_team_name(name) or name in used:
            continue
        try:
            roles = replace(request.roles, features=tuple(dict.fromkeys([name, *marks])))
            rows = first_impressions(open_log(replace(request, roles=roles))).filter(pl.col(REJECTED) == 0)
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
    """Return the attribute of UBI's events with the ranker of a document: a usual name, and two values on a page."""
    pages = defaultdict[str, defaultdict[str, set[str]]](lambda: defaultdict(set))
    for source in sources[:_FILES]:
        with reading([source]):
            lines = scan_lines(source).select(LINE).head(_LINES).drop_nulls().collect(engine="streaming").to_series()
        for document in filter(None, map(parse_document, lines)):
            attributes = field(document, _OBJECT)
            for name, value in cast("Document", attributes).items() if isinstance(attributes, dict) else ():
                if is_team_name(name) and isinstance(value, str | int) and value != "":
                    pages[name][str(document.get("query_id"))].add(str(value))
    rankers = 2
    for name, by_page in pages.items():
        if len(frozenset(chain(*by_page.values()))) == rankers == max(map(len, by_page.values())):
            return f"{_OBJECT}.{name}"
    return None


def _has_pages(log: Log) -> bool:
    return log.has_sessions and log.raw is None and log.request.tables is None


def team_error(mark: RandomizedRows, advice: str) -> UsageError:
    """Return the error about --randomized-where with a column of the rankers of a draft."""
    return UsageError(
        f"--randomized-where {mark}: column {mark.column!r} says which of two rankers picked a document, and each "
        f"picks the best that is left; only which of them comes first is random. {advice}"
    )


def check_drafts(log: Log) -> None:
    """Raise UsageError if --randomized-where selects rows by the ranker of a draft, or all rows of drafted pages."""
    drafts, ranks, roles = dict(find_drafts(log)), rank_columns(log) or ("rank_a", "rank_b"), log.roles
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
        if mark.column in drafts or ("team" in words_in(mark.column) and not _has_pages(log)):
            raise team_error(mark, ways_out)
        for name, rows in drafts.items():
            is_marked = pl.col(mark.column).cast(pl.String).eq_missing(mark.value)
            by_page = rows.group_by(SESSION).agg(some=is_marked.any(), all=is_marked.all())
            if by_page["some"].any() and (not mark.positions or by_page["some"].equals(by_page["all"])):
                raise UsageError(
                    f"--randomized-where {mark}: takes all documents that two rankers drafted (column {name!r}) to be "
                    "placed at random. A coin swaps two of them only where the rankers order them differently; where "
                    "they agree the better one stands above, so that position bias looks too steep (by 8 to 18 % in "
                    f"simulations). {ways_out}"
                )


def find_pages(log: Log) -> list[Finding]:
    """Recognise sessions that are visits, and the columns that tell their pages apart."""
    if not log.has_sessions or log.request.roles.session or log.raw is not None:
        return []
    visit, is_visit = f"a session ({', '.join(log.roles.session)}) is a visit", _shares(log).no_page >= _VISITS
    if log.nesting is not None:
        return [Finding(f"{visit}: each row is a page", ("--session", "none"), certain=False)] if is_visit else []
    if not is_visit:
        judged = pages(first_impressions(log).lazy().filter(pl.col(REJECTED) == 0), log.page_rules).collect()
        faulty, rows = judged.filter(pl.col(REJECTED) > 0), judged[PAGE_ROWS].to_numpy()
        if faulty[PAGE_ROWS].to_numpy().sum() <= _GOOD_PAGES * rows.sum():
            return []
        advice = advice_without_sessions(log, faulty)
        return [Finding(advice, certain=False)] if advice else []
    keys = _best_keys(log, _page_keys(log))
    if keys is None:
        return [Finding(f"{visit}, and no columns tell its pages apart", certain=False)]
    text = f"{visit}: a page is identified by {' and '.join(keys)}"
    return [Finding(text, tuple(chain(*(option("--session", name) for name in keys))), certain=False)]


def _best_keys(log: Log, keys: Iterable[tuple[str, ...]]) -> tuple[str, ...] | None:
    """Return the columns with the fewest invalid pages, at most 5 %, then the fewest pages; None if there are none."""
    shares = {names: _shares(replace(log, roles=replace(log.roles, session=names))) for names in keys}
    good = {names: share for names, share in shares.items() if share.faulty <= _GOOD_PAGES and share.longest > 1}
    return min(good, key=lambda names: (round(good[names].faulty, 2), good[names].pages), default=None)


def find_duplicates(log: Log) -> list[Finding]:
    """Recognise pages that show a document twice, with the option for them."""
    if not log.has_sessions or log.raw is not None or log.request.duplicate_docs != "error":
        return []
    shares = _shares(log)
    if not shares.repeated_doc or shares.no_page >= _VISITS:
        return []
    rows = first_impressions(log).filter(pl.col(REJECTED) == 0)
    options = click_row_options(log, rows.lazy())
    if options:
        has_option = log.request.roles.click is not None  # which the table of events cannot have
        text = f"{CLICKED_TWICE}{f': without --click, use {shlex.join(options)}' if has_option else ''}"
        return [Finding(text, () if has_option else options)]
    twice = rows.group_by(SESSION, QUERY, DOC, POSITION).len().filter(pl.col("len") > 1)
    n_twice, n_pages = (some.select(pl.col(SESSION).n_unique()).item() for some in (twice, rows))
    share = f"{shares.repeated_doc:.2%} of the pages"
    if n_twice > shares.repeated_doc / 2 * n_pages:
        text = f"{share} hold rows twice, as of a log that was exported twice: one counts"
        return [Finding(text, ("--duplicate-docs", "first"), certain=False)]
    counts, value = ("each of its rows counts", "keep") if log.roles.no_query else ("its first row counts", "first")
    return [Finding(f"{share} show a document twice: {counts}", ("--duplicate-docs", value))]


def _shares(log: Log) -> _Shares:
    """Compute the shares of invalid pages among the first rows; all are invalid if a column has an impossible type."""
    try:
        rows = first_impressions(log)
    except SchemaError:
        return _Shares(1.0, 0.0, 0.0)
    judged = pages(rows.lazy().filter(pl.col(REJECTED) == 0), log.page_rules).collect()
    counts = dict(judged.group_by(REJECTED).len().iter_rows())
    total = max(judged.height, 1)
    longest = int(judged[PAGE_ROWS].cast(pl.Int64).to_numpy().max(initial=0))
    faults = (PageRejection.SEVERAL_QUERIES, PageRejection.REPEATED_DOC, PageRejection.REPEATED_POSITION)
    return _Shares(*(counts.get(fault, 0) / total for fault in faults), pages=judged.height, longest=longest)


def _page_keys(log: Log) -> Iterator[tuple[str, ...]]:
    """Yield columns that may tell pages apart: visit and query, or columns named like a page or a time."""
    visit, query = log.roles.session, log.roles.query
    candidates = [name for name in free_columns(log) if not _PAGE_WORDS.isdisjoint(words_in(name))]
    yield (*visit, *query)
    for name in candidates:
        yield (*visit, name)
        yield (name,)
        yield (*visit, *query, name)


_ROWS_WITH_LISTS = 1000
_NEARLY_ALL = 0.95
_LONGER_THAN_WORDS = 1.5  # entries per row; shorter rows may be text of a few words
_SEPARATORS = (JSON, ";", "|", ",", SPACE)
_SUFFIX = re.compile(r"(?![0-9]+\.[01]$).+?([^\w\s])(?:0|1|true|false)")
_QUERIES = {plain_name(name) for name in ALIASES[QUERY]} | NAMES_IN_EXPORTS[QUERY]

Lists = Mapping[str, list[list[str]]]
"""The entries of each row, as text, by column."""


def find_lists(sources: Sequence[Source]) -> list[Finding]:
    """Recognise nested pages with the options of their lists; none for flat logs and for well-known names."""
    with reading(sources):
        scan = scan_sources(sources[:1])
        first = scan.head(_ROWS_WITH_LISTS).collect()
    for separator, lists in _lists_by_separator(first):
        for find in (_suffix_columns, _click_list_columns, _clicked_id_columns, _clicked_place_columns):
            columns = find(lists)
            if columns is not None:
                return _list_findings(columns, separator, scan)
    return []


Columns = dict[str, str | None]
"""Columns of nested pages, by kind: `doc`; `click` and `position`, with an entry for each document; `clicked`, ids of
clicked documents; `places`, places of clicked documents, which count from `top`; and `suffix`, the mark between an id
and its click."""


def _lists_by_separator(first: pl.DataFrame) -> Iterator[tuple[str | None, Lists]]:
    """Yield the lists in the first rows: list columns (None), then texts by each separator."""
    nested = {name: first[name] for name, dtype in first.schema.items() if is_list(dtype)}
    plain = {name: column for name, column in nested.items() if not column.explode().dtype.is_nested()}
    if plain:
        yield None, {name: _as_texts(column) for name, column in plain.items()}
    texts = [name for name, dtype in first.schema.items() if dtype == pl.String]
    for separator in _SEPARATORS:
        rules = ListRules(separator)
        split = first.select(rules.as_list(name).alias(name) for name in texts)
        lists = {name: _as_texts(column) for name, column in split.to_dict().items() if column.drop_nulls().len()}
        if lists:
            yield separator, lists


def _as_texts(column: pl.Series) -> list[list[str]]:
    """Convert a column of lists to texts, without nulls."""
    lists = column.arr.to_list() if isinstance(column.dtype, pl.Array) else column
    texts = lists.cast(pl.List(pl.String)).to_list()
    return [[] if row is None else [entry for entry in row if entry is not None] for row in texts]


def _suffix_columns(lists: Lists) -> Columns | None:
    """Recognise ids with clicks behind one and the same mark."""
    for name, rows in lists.items():
        entries = [*chain.from_iterable(rows)]
        marks = {match[1] if (match := _SUFFIX.fullmatch(entry)) else None for entry in entries}
        if len(marks) == 1 and (mark := marks.pop()) and _mean_length(rows) > _LONGER_THAN_WORDS:
            return {"doc": name, "suffix": mark}
    return None


def _click_list_columns(lists: Lists) -> Columns | None:
    """Recognise a list of flags, 0 and 1 or true and false, and a list of documents of the same length.

    A list named like clicks may also count them. Otherwise exactly one list of flags must have no name of other flags.
    """
    by_name = {name: rows for name, rows in lists.items() if has_role_word(CLICK, name)}
    flags = [name for name, rows in lists.items() if not by_name and _all_entries(rows, AS_CLICKS.__contains__)]
    flags = [name for name in flags if not (is_page_name(name) or is_rank_name(name))]
    flags = [name for name in flags if not _all_entries(lists[name], _NO_CLICK)]
    clicks = [name for name, rows in by_name.items() if _all_entries(rows, _is_click)] or flags
    candidates = [name for name in clicks if by_name or not is_no_click_name(name)]
    click = _usual_name(clicks, CLICK) or (candidates[0] if len(candidates) == 1 else None)
    if click is None:
        return None
    others = {name: zip(rows, lists[click], strict=True) for name, rows in lists.items() if name not in clicks}
    aligned = [name for name, rows in others.items() if _nearly_all(len(row) == len(flags) for row, flags in rows)]
    # Positions are whole numbers that differ within a row.
    whole = [name for name in aligned if all(entry.isdecimal() for row in lists[name] for entry in row)]
    positions = [name for name in whole if all(len(set(row)) == len(row) for row in lists[name])]
    ranks = [name for name in positions if is_rank_name(name)]  # several are those of several rankers
    position = _usual_name(positions, POSITION) or (ranks[0] if len(ranks) == 1 else None)
    docs = [name for name in aligned if name != position and not is_rank_name(name)]
    distinct = {name: len({*chain.from_iterable(lists[name])}) for name in docs}
    doc = _usual_name(docs, DOC) or max(docs, key=lambda name: distinct[name], default=None)
    return None if doc is None else {"doc": doc, "click": click, "position": position}


_NO_CLICK = frozenset(("0", "0.0", "false")).__contains__


def _all_entries(rows: list[list[str]], test: Callable[[str], bool]) -> bool:
    """Test all entries, in lower case; False for lists of less than two entries in the mean."""
    return any(rows) and _mean_length(rows) > 1 and all(test(entry.lower()) for row in rows for entry in row)


def _is_click(entry: str) -> bool:
    """Return True for a flag or a number of clicks."""
    return entry in AS_CLICKS or re.fullmatch(r"\d+(\.0)?", entry) is not None


def _clicked_id_columns(lists: Lists) -> Columns | None:
    """Recognise a list of documents, and a shorter list that is a subset of it in nearly all rows."""
    for doc, shown in lists.items():
        if _mean_length(shown) <= _LONGER_THAN_WORDS:
            continue
        for clicked, ids in lists.items():
            is_shorter = clicked != doc and any(ids) and _mean_length(ids) < _mean_length(shown)
            if is_shorter and _nearly_all(set(row) <= set(of) for row, of in zip(ids, shown, strict=True) if row):
                return {"doc": doc, "clicked": clicked}
    return None


def _clicked_place_columns(lists: Lists) -> Columns | None:
    """Recognise a list of documents, and a list of places in it.

    There are several places in some rows, none in others, and fewer than half as many as documents.
    """
    for doc, shown in lists.items():
        for name, places in lists.items():
            entries = [*chain.from_iterable(places)]
            is_sparse = name != doc and min(map(len, places)) == 0 < 2 * len(entries) < sum(map(len, shown))
            if not is_sparse or max(map(len, places)) == 1 or not all(map(str.isdecimal, entries)):
                continue
            top = int(min(map(int, entries)) > 0)
            if all(max(map(int, row), default=0) < len(docs) + top for row, docs in zip(places, shown, strict=True)):
                return {"doc": doc, "places": name, "top": str(top)}
    return None


def _list_findings(columns: Columns, separator: str | None, scan: pl.LazyFrame) -> list[Finding]:
    """Return a finding for each column of nested pages without a well-known name, and for the separator."""
    findings = list[Finding]()
    if separator is not None:
        words = {JSON: "lists in brackets", SPACE: "lists, separated by blanks"}
        text = f"the text of column {columns['doc']!r} holds {words.get(separator, f'lists, separated by {separator}')}"
        findings.append(Finding(text, ("--list-separator", separator)))
    descriptions = {
        DOC: "lists the documents of a page",
        POSITION: "lists their positions",
        CLICK: "has a click for each document",
    }
    for role, description in descriptions.items():
        name = columns.get(role)
        if name is not None and name.lower() not in ALIASES[role]:
            by_values = role == CLICK and not has_role_word(CLICK, name)
            text = f"column {name!r} {description}{', by what it holds' if by_values else ''}"
            findings.append(Finding(text, (FLAGS[role], name), certain=not by_values))
    if (clicked := columns.get("clicked")) is not None:
        findings.append(Finding(f"column {clicked!r} lists the clicked ones", ("--clicked", clicked)))
        if scan.select(pl.col(clicked).is_null().any()).collect(engine="streaming").item():
            findings.append(Finding("an empty cell there means that nothing was clicked", ("--null-click", "0")))
    if (places := columns.get("places")) is not None:
        top = columns["top"] or ""
        text = f"column {places!r} lists the places of the clicked ones, from {top}"
        findings.append(Finding(text, (*option("--click", places), "--click-ranks", top), certain=False))
    if (suffix := columns.get("suffix")) is not None:
        if not _QUERIES.intersection(map(plain_name, scan.collect_schema())):
            findings.append(NO_QUERY)
        order = (
            "logs of this form are often published with the documents of a page in random order, as MIND is, and then "
            "their order is no position and no propensity follows from it: keep --order-is-position only if documents "
            "stand as they were shown"
        )
        findings.append(Finding(f"ids have their click behind {suffix!r}", (f"--click-suffix={suffix}",)))
        findings.append(Finding(order, ("--order-is-position",), certain=False))
    return findings


def _usual_name(names: Sequence[str], role: str) -> str | None:
    """Return the first column with a well-known name of a role, also at the end of a path."""
    return next((name for name in names if name.lower().rpartition(".")[2] in ALIASES[role]), None)


def _mean_length(rows: list[list[str]]) -> float:
    filled = [row for row in rows if row]
    return sum(map(len, filled)) / max(len(filled), 1)


def _nearly_all(holds: Iterable[bool]) -> bool:
    flags = list(holds)
    return sum(flags) >= _NEARLY_ALL * max(len(flags), 1)


def find_page_time(log: Log) -> list[Finding]:
    """Recognise the column of times that tells the pages of a visit apart in a table of events."""
    events = log.raw
    if not isinstance(events, EventReader) or events.request.time is not None:
        return []
    schema = schema_of(log.sources[0])
    times = [name for name in schema if plain_name(name) in TIMES and name not in log.roles.columns()]
    with reading(log.sources):
        time = next(iter(finest_first(first_shown(log, events).select(times).collect(engine="streaming"))), None)
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
