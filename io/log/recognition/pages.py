"""What the rows of a session say: whether it is one page, or a visit, and whether documents stand twice on pages."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain

import polars as pl

from posbias.core.column_names import plain, words
from posbias.core.errors import SchemaError
from posbias.core.log.impressions import REJECTED
from posbias.core.log.pages import PAGE_ROWS, PageFault, pages
from posbias.core.role_search import NAMES_IN_EXPORTS
from posbias.core.schema import DOC, POSITION, QUERY, SESSION
from posbias.io.log.findings import Finding
from posbias.io.log.log import Log
from posbias.io.log.misread import unsaid_page
from posbias.io.log.recognition.roles import option
from posbias.io.log.recognition.values import first_impressions
from posbias.io.log.scan import schema_of

_VISITS = 0.1
"""Share of the sessions that cannot be one page, from which a session is a visit."""

_GOOD_PAGES = 0.05
"""Share of faulty pages up to which columns tell pages apart."""

_TELLING = {"search", "serp", "page", "request", "view", "impression", "time", "timestamp", "date", "ts", "at"}


@dataclass(frozen=True)
class _Shares:
    """Of so many pages, the shares of those that are faulty, by what is wrong; the rows of the longest."""

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


def find_paging(log: Log) -> list[Finding]:
    """The column by which positions go on from page to page, where they begin anew on each."""
    found = unsaid_page(log)
    return [] if found is None else [Finding(found.found, found.options, certain=False)]


def find_session(log: Log) -> list[Finding]:
    """The column of the session, by names in exports of other tools, where none is needed and its rows are pages."""
    if log.has_sessions or log.raw is not None or log.nesting is not None or log.roles.impressions is not None:
        return []
    known, played = NAMES_IN_EXPORTS[SESSION], log.roles.columns()
    named = [(name,) for name in schema_of(log.sources[0]) if plain(name) in known and name not in played]
    found = _best_keys(log, named)
    if found is None:
        return []
    return [Finding(f"the session is taken to be column {found[0]!r}", option("--session", found[0]), certain=False)]


def find_pages(log: Log) -> list[Finding]:
    """Other columns for the session where it is a visit."""
    if not log.has_sessions or log.request.roles.session or log.nesting is not None or log.raw is not None:
        return []
    if _shares(log).no_page < _VISITS:
        return []
    visit, found = f"a session ({', '.join(log.roles.session)}) is a visit", _best_keys(log, _page_keys(log))
    if found is None:
        return [Finding(f"{visit}, and no columns tell its pages apart", certain=False)]
    said = f"{visit}: a page is told by {' and '.join(found)}"
    return [Finding(said, tuple(chain(*(option("--session", name) for name in found))), certain=False)]


def _best_keys(log: Log, keys: Iterable[tuple[str, ...]]) -> tuple[str, ...] | None:
    """The columns that tell pages apart: the fewest faulty ones, then the fewest, as a page is not cut needlessly."""
    shares = {names: _shares(replace(log, roles=replace(log.roles, session=names))) for names in keys}
    good = {names: found for names, found in shares.items() if found.faulty <= _GOOD_PAGES and found.longest > 1}
    return min(good, key=lambda names: (round(good[names].faulty, 2), good[names].pages), default=None)


def find_duplicates(log: Log) -> list[Finding]:
    """Whether pages show a document twice."""
    if not log.has_sessions or log.raw is not None or log.request.duplicate_docs != "error":
        return []
    shares = _shares(log)
    if not shares.repeated_doc or shares.no_page >= _VISITS:
        return []
    rows = first_impressions(log).filter(pl.col(REJECTED) == 0)
    twice = rows.group_by(SESSION, QUERY, DOC, POSITION).len().filter(pl.col("len") > 1)
    n_twice, n_pages = (some.select(pl.col(SESSION).n_unique()).item() for some in (twice, rows))
    if n_twice > shares.repeated_doc / 2 * n_pages:
        said = f"{shares.repeated_doc:.2%} of the pages hold rows twice. Was the log exported twice, or named twice?"
        return [Finding(said, certain=False)]
    said = f"{shares.repeated_doc:.2%} of the pages show a document twice: its first row counts"
    return [Finding(said, ("--duplicate-docs", "first"))]


def _shares(log: Log) -> _Shares:
    try:
        rows = first_impressions(log)
    except SchemaError:  # a column of a type that cannot play the role
        return _Shares(1.0, 0.0, 0.0)
    judged = pages(rows.lazy().filter(pl.col(REJECTED) == 0), log.page_rules).collect()
    counts = dict(judged.group_by(REJECTED).len().iter_rows())
    total = max(judged.height, 1)
    longest = int(judged[PAGE_ROWS].cast(pl.Int64).to_numpy().max(initial=0))
    faults = (PageFault.SEVERAL_QUERIES, PageFault.REPEATED_DOC, PageFault.REPEATED_POSITION)
    return _Shares(*(counts.get(fault, 0) / total for fault in faults), pages=judged.height, longest=longest)


def _page_keys(log: Log) -> Iterator[tuple[str, ...]]:
    """Columns that may tell pages apart: the visit with the query, or with what is called like a page or a time."""
    visit, query = log.roles.session, log.roles.query
    played = {*log.roles.columns()}
    schema = schema_of(log.sources[0])
    free = (name for name, dtype in schema.items() if name not in played and not dtype.is_nested())
    telling = [name for name in free if not _TELLING.isdisjoint(words(name))]
    yield (*visit, *query)
    for name in telling:
        yield (*visit, name)
        yield (name,)
        yield (*visit, *query, name)
