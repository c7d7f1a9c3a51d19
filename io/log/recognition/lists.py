"""Which columns of a log hold lists of a page's documents and clicks, as lists or as text: told by the first rows."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import polars as pl

from posbias.core.column_names import plain
from posbias.core.role_search import NAMES_IN_EXPORTS
from posbias.core.schema import ALIASES, CLICK, DOC, POSITION, QUERY
from posbias.io.log.findings import Finding
from posbias.io.log.nested import holds_lists
from posbias.io.log.recognition.roles import AS_CLICKS, NO_QUERY
from posbias.io.log.scan import reading, scan_sources
from posbias.io.log.sources import Source
from posbias.io.log.written_values import JSON, SPACE, ListRules

_SAMPLED_ROWS = 1000
_NEARLY_ALL = 0.95
_LONGER_THAN_WORDS = 1.5  # entries per row: what is shorter may be text of a few words
_SEPARATORS = (JSON, ";", "|", ",", SPACE)
_SUFFIX = re.compile(r".+?([^\w\s])(?:0|1|true|false)")
_QUERIES = {plain(name) for name in ALIASES[QUERY]} | NAMES_IN_EXPORTS[QUERY]

Lists = Mapping[str, list[list[str]]]
"""By column: the entries of each row, as text."""


def find_lists(sources: Sequence[Source]) -> list[Finding]:
    """The options by which the lists of a log are read; none where a row is one impression, or names say it all."""
    with reading(sources):
        scanned = scan_sources(sources[:1])
        first = scanned.head(_SAMPLED_ROWS).collect()
    for separator, lists in _readings(first):
        for found in (_with_suffix, _with_click_lists, _with_clicked_ids):
            columns = found(lists)
            if columns is not None:
                return _findings(replace(columns, separator=separator), scanned)
    return []


@dataclass(frozen=True)
class _Columns:
    """What was found."""

    doc: str  # the column of the documents
    click: str | None = None  # the column with a click for each document, where there is one
    clicked: str | None = None  # the column of the ids of the clicked documents, where there is one
    position: str | None = None  # the column with a position for each document, where there is one
    suffix: str | None = None  # what stands between an id and its click
    separator: str | None = None  # what stands between the entries, where lists are written as text


def _readings(first: pl.DataFrame) -> Iterator[tuple[str | None, Lists]]:
    """The lists in the first rows: those of list columns, then those in text by each separator."""
    real = {name: first[name] for name, dtype in first.schema.items() if holds_lists(dtype)}
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


def _with_suffix(lists: Lists) -> _Columns | None:
    """Ids with clicks behind them, of one mark."""
    for name, rows in lists.items():
        entries = [entry for row in rows for entry in row]
        marks = {match[1] if (match := _SUFFIX.fullmatch(entry)) else None for entry in entries}
        if len(marks) == 1 and (mark := marks.pop()) and _mean_length(rows) > _LONGER_THAN_WORDS:
            return _Columns(name, suffix=mark)
    return None


def _with_click_lists(lists: Lists) -> _Columns | None:
    """A list of 0 and 1, or of true and false, and one of documents of the same length."""
    clicks = [name for name, rows in lists.items() if _all_entries(rows, AS_CLICKS) and _mean_length(rows) > 1]
    click = _by_name(clicks, CLICK) or (clicks[0] if clicks else None)
    if click is None:
        return None
    fitting = [name for name in lists if name not in clicks and _same_lengths(lists[name], lists[click])]
    position = _by_name([name for name in fitting if _counts(lists[name])], POSITION)
    docs = [name for name in fitting if name != position]
    doc = _by_name(docs, DOC) or max(docs, key=lambda name: _distinct(lists[name]), default=None)
    return None if doc is None else _Columns(doc, click=click, position=position)


def _with_clicked_ids(lists: Lists) -> _Columns | None:
    """A list of documents, and one of some of them."""
    for doc, shown in lists.items():
        if _mean_length(shown) <= _LONGER_THAN_WORDS:
            continue
        for clicked, ids in lists.items():
            if clicked != doc and any(ids) and _among(ids, shown) and _mean_length(ids) < _mean_length(shown):
                return _Columns(doc, clicked=clicked)
    return None


def _findings(columns: _Columns, scanned: pl.LazyFrame) -> list[Finding]:
    """What was found as options, but for names that say it all."""
    found = list[Finding]()
    if columns.separator is not None:
        words = {JSON: "JSON lists", SPACE: "lists, separated by blanks"}
        said = words.get(columns.separator, f"lists, separated by {columns.separator}")
        found.append(
            Finding(f"the text of column {columns.doc!r} holds {said}", ("--list-separator", columns.separator))
        )
    if columns.doc.lower() not in ALIASES[DOC]:
        found.append(Finding(f"column {columns.doc!r} lists the documents of a page", ("--doc", columns.doc)))
    if columns.position is not None and columns.position.lower() not in ALIASES[POSITION]:
        found.append(Finding(f"column {columns.position!r} lists their positions", ("--position", columns.position)))
    if columns.click is not None and columns.click.lower() not in ALIASES[CLICK]:
        found.append(Finding(f"column {columns.click!r} has a click for each document", ("--click", columns.click)))
    if columns.clicked is not None:
        found.append(Finding(f"column {columns.clicked!r} lists the clicked ones", ("--clicked", columns.clicked)))
        if scanned.select(pl.col(columns.clicked).is_null().any()).collect(engine="streaming").item():
            found.append(Finding("an empty cell there means that nothing was clicked", ("--null-click", "0")))
    if columns.suffix is not None:
        if not _QUERIES.intersection(map(plain, scanned.collect_schema())):
            found.append(NO_QUERY)
        found.append(
            Finding(
                f"ids have their click behind {columns.suffix!r}",
                (f"--click-suffix={columns.suffix}",),
            )
        )
        found.append(
            Finding(
                "logs of this form are often published with the documents of a page in random order, as MIND is, and "
                "then their order is no position and no propensity follows from it: keep --order-is-position only if "
                "documents stand as they were shown",
                ("--order-is-position",),
                certain=False,
            )
        )
    return found


def _by_name(names: Sequence[str], role: str) -> str | None:
    """The one that is called like a role, alone or at the end of a path."""
    return next((name for name in names if name.lower().rpartition(".")[2] in ALIASES[role]), None)


def _mean_length(rows: list[list[str]]) -> float:
    filled = [row for row in rows if row]
    return sum(map(len, filled)) / max(len(filled), 1)


def _all_entries(rows: list[list[str]], known: frozenset[str]) -> bool:
    return any(rows) and all(entry.lower() in known for row in rows for entry in row)


def _counts(rows: list[list[str]]) -> bool:
    """Whether entries are whole numbers, which differ within a row."""
    return all(entry.isdecimal() for row in rows for entry in row) and all(len(set(row)) == len(row) for row in rows)


def _distinct(rows: list[list[str]]) -> int:
    return len({entry for row in rows for entry in row})


def _same_lengths(rows: list[list[str]], others: list[list[str]]) -> bool:
    return _share(len(row) == len(other) for row, other in zip(rows, others, strict=True)) >= _NEARLY_ALL


def _among(rows: list[list[str]], others: list[list[str]]) -> bool:
    """Whether nearly all rows hold only entries of the others."""
    return _share(set(row) <= set(other) for row, other in zip(rows, others, strict=True) if row) >= _NEARLY_ALL


def _share(holds: Iterator[bool]) -> float:
    found = list(holds)
    return sum(found) / max(len(found), 1)
