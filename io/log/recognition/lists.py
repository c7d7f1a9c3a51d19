"""Which columns of a log hold lists of a page's documents and clicks, as lists or as text: told by the first rows."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import polars as pl

from posbias.core.column_names import plain
from posbias.core.role_search import NAMES_IN_EXPORTS
from posbias.core.schema import ALIASES, CLICK, DOC, FLAGS, POSITION, QUERY
from posbias.io.log.findings import Finding
from posbias.io.log.nested import holds_lists
from posbias.io.log.recognition.roles import AS_CLICKS, NO_QUERY
from posbias.io.log.scan import reading, scan_sources
from posbias.io.log.sources import Source
from posbias.io.log.written_values import JSON, SPACE, ListRules

_ROWS_WITH_LISTS = 1000
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
        first = scanned.head(_ROWS_WITH_LISTS).collect()
    for separator, lists in _readings(first):
        for find in (_with_suffix, _with_click_lists, _with_clicked_ids):
            columns = find(lists)
            if columns is not None:
                return _findings(columns, separator, scanned)
    return []


Columns = dict[str, str | None]
"""The column of the documents, `doc`; where there are such, `click` and `position`, with an entry for each document,
and `clicked`, the ids of the clicked ones; and `suffix`, what stands between an id and its click."""


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


def _with_suffix(lists: Lists) -> Columns | None:
    """Ids with clicks behind them, of one mark."""
    for name, rows in lists.items():
        entries = [entry for row in rows for entry in row]
        marks = {match[1] if (match := _SUFFIX.fullmatch(entry)) else None for entry in entries}
        if len(marks) == 1 and (mark := marks.pop()) and _mean_length(rows) > _LONGER_THAN_WORDS:
            return {"doc": name, "suffix": mark}
    return None


def _with_click_lists(lists: Lists) -> Columns | None:
    """A list of 0 and 1, or of true and false, and one of documents of the same length."""
    clicks = [
        name
        for name, rows in lists.items()
        if any(rows) and _mean_length(rows) > 1 and all(entry.lower() in AS_CLICKS for row in rows for entry in row)
    ]
    click = _by_name(clicks, CLICK) or (clicks[0] if clicks else None)
    if click is None:
        return None
    lengths = [*map(len, lists[click])]
    fitting = [
        name
        for name, rows in lists.items()
        if name not in clicks and _nearly_all(len(row) == n for row, n in zip(rows, lengths, strict=True))
    ]
    counting = (name for name in fitting if all(_counts(row) for row in lists[name]))
    position = _by_name([*counting], POSITION)
    docs = [name for name in fitting if name != position]
    distinct = {name: len({entry for row in lists[name] for entry in row}) for name in docs}
    doc = _by_name(docs, DOC) or max(docs, key=lambda name: distinct[name], default=None)
    return None if doc is None else {"doc": doc, "click": click, "position": position}


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


def _findings(columns: Columns, separator: str | None, scanned: pl.LazyFrame) -> list[Finding]:
    """What was found as options, but for names that say it all."""
    found = list[Finding]()
    if separator is not None:
        words = {JSON: "JSON lists", SPACE: "lists, separated by blanks"}
        said = words.get(separator, f"lists, separated by {separator}")
        found.append(Finding(f"the text of column {columns['doc']!r} holds {said}", ("--list-separator", separator)))
    of_roles = {
        DOC: "lists the documents of a page",
        POSITION: "lists their positions",
        CLICK: "has a click for each document",
    }
    for role, says in of_roles.items():
        name = columns.get(role)
        if name is not None and name.lower() not in ALIASES[role]:
            found.append(Finding(f"column {name!r} {says}", (FLAGS[role], name)))
    if (clicked := columns.get("clicked")) is not None:
        found.append(Finding(f"column {clicked!r} lists the clicked ones", ("--clicked", clicked)))
        if scanned.select(pl.col(clicked).is_null().any()).collect(engine="streaming").item():
            found.append(Finding("an empty cell there means that nothing was clicked", ("--null-click", "0")))
    if (suffix := columns.get("suffix")) is not None:
        if not _QUERIES.intersection(map(plain, scanned.collect_schema())):
            found.append(NO_QUERY)
        order = (
            "logs of this form are often published with the documents of a page in random order, as MIND is, and then "
            "their order is no position and no propensity follows from it: keep --order-is-position only if documents "
            "stand as they were shown"
        )
        found.append(Finding(f"ids have their click behind {suffix!r}", (f"--click-suffix={suffix}",)))
        found.append(Finding(order, ("--order-is-position",), certain=False))
    return found


def _by_name(names: Sequence[str], role: str) -> str | None:
    """The one that is called like a role, alone or at the end of a path."""
    return next((name for name in names if name.lower().rpartition(".")[2] in ALIASES[role]), None)


def _mean_length(rows: list[list[str]]) -> float:
    filled = [row for row in rows if row]
    return sum(map(len, filled)) / max(len(filled), 1)


def _counts(row: list[str]) -> bool:
    """Whether entries are whole numbers, and differ."""
    return all(map(str.isdecimal, row)) and len(set(row)) == len(row)


def _nearly_all(holds: Iterable[bool]) -> bool:
    found = list(holds)
    return sum(found) >= _NEARLY_ALL * max(len(found), 1)
