"""Lines of raw files as records: what a line alone says, in the terms that sources share.

A line is a page with the documents that it showed, a click, or something else. It is read by itself, so that one odd
line is that line's own fault.
"""

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, cast

import msgspec
import polars as pl

from posbias.io.log.lost_clicks import OUTCOME, Fate
from posbias.io.log.moments import text_moment
from posbias.io.log.raw import ACTION, CLICKED, KIND, OTHER, SHOWN, UNDECIDED, Outcomes
from posbias.io.log.scan import FILE, LINE, ROW, scan_lines
from posbias.io.log.sources import Source

KEY, PAGE, VISIT, QUERY, DOCS, FIRST = "key", "page", "visit", "query", "docs", "first"
DOC, TIMESTAMP, USER, MOMENT, POSITION = "doc", "timestamp", "user", "moment", "position"


class Outcome(IntEnum):
    """What becomes of a line."""

    SHOWN = 1

    BLANK = 10
    ACTION_LINE = 11
    NOT_READ = 12
    UNKNOWN = 13
    NO_TIME = 14
    OTHER_ACTION = 15

    NO_ID = 20
    NO_QUERY = 21
    NO_DOCS = 22
    BAD_DOCS = 23
    REPEATED_PAGE = 24
    PAGES_DISAGREE = 25


OUTCOMES = Outcomes(
    shown={Outcome.SHOWN: "pages"},
    others={
        Outcome.BLANK: "blank lines",
        Outcome.ACTION_LINE: "action lines of the bulk format",
        Outcome.NOT_READ: "lines that are not in this format",
        Outcome.UNKNOWN: "lines of an unknown kind",
        Outcome.NO_TIME: "lines without a time that can be read",
        Outcome.OTHER_ACTION: "events of other kinds",
        Outcome.NO_ID: "pages without an id",
        Outcome.NO_QUERY: "pages without a query",
        Outcome.NO_DOCS: "pages that showed nothing",
        Outcome.BAD_DOCS: "pages whose list does not hold different ids",
        Outcome.REPEATED_PAGE: "pages that were seen before",
        Outcome.PAGES_DISAGREE: "pages whose id has another query or list as well",
    },
    fatal=(Outcome.NOT_READ, Outcome.UNKNOWN, Outcome.NO_TIME),
    other_action=Outcome.OTHER_ACTION,
)


class Line(NamedTuple):
    """What a line says.

    Attributes:
        outcome: as far as the line alone decides it; `UNDECIDED` where others do.
        kind: what it is.
        action: what its writer calls it, where that is of interest.
        key: what it has in common with all lines that belong together: the id of the page, or of the visit.
        page: the id of the page; null for a click that is joined by visit.
        visit: the id of the visit.
        query: what was asked.
        docs: what a page showed, from the top.
        first: the position of the first of them.
        doc: what was clicked.
        position: where it stood, as far as a click names that.
        timestamp: when it was.
        user: who it was.
    """

    outcome: int = UNDECIDED
    kind: int = OTHER
    action: str | None = None
    key: str | None = None
    page: str | None = None
    visit: str | None = None
    query: str | None = None
    docs: list[str] | None = None
    first: int = 1
    doc: str | None = None
    timestamp: str | None = None
    user: str | None = None
    position: int | None = None


ReadLine = Callable[[str], Line]

_LINES_AT_ONCE = 2048  # as objects, which take ten times what they take in columns

RECORD_TYPES: dict[str, pl.DataType] = {
    OUTCOME: pl.UInt8(),
    KIND: pl.UInt8(),
    ACTION: pl.String(),
    KEY: pl.String(),
    PAGE: pl.String(),
    VISIT: pl.String(),
    QUERY: pl.String(),
    DOCS: pl.List(pl.String()),
    FIRST: pl.Int64(),
    DOC: pl.String(),
    TIMESTAMP: pl.String(),
    USER: pl.String(),
    POSITION: pl.Int64(),
}
"""The columns of records: the fields of a line."""


def read_records(source: Source, number: int, read: ReadLine) -> pl.LazyFrame:
    """One record per line of a file, with its place and its time."""

    def of_some(lines: pl.Series) -> pl.DataFrame:
        return records_of([read(line) if line and not line.isspace() else Line(Outcome.BLANK) for line in lines])

    def of_lines(lines: pl.Series) -> pl.Series:
        parts = [of_some(lines.slice(at, _LINES_AT_ONCE)) for at in range(0, max(len(lines), 1), _LINES_AT_ONCE)]
        return pl.concat(parts).to_struct("record")

    record = pl.col(LINE).map_batches(of_lines, return_dtype=pl.Struct(RECORD_TYPES), is_elementwise=True)
    return (
        scan_lines(source)
        .select(pl.lit(number, pl.UInt32).alias(FILE), ROW, record.alias("record"))
        .unnest("record")
        .with_columns(text_moment(pl.col(TIMESTAMP)).alias(MOMENT))
    )


def records_of(lines: Sequence[Line]) -> pl.DataFrame:
    """What lines say, as columns."""
    return pl.DataFrame(
        {name: [line[place] for line in lines] for place, name in enumerate(RECORD_TYPES)}, schema=RECORD_TYPES
    )


def page_line(line: Line) -> Line:
    """A page, and what the line alone says against it."""
    cases = (
        (line.page is None, Outcome.NO_ID),
        (line.query is None, Outcome.NO_QUERY),
        (line.docs == [], Outcome.NO_DOCS),
        (line.docs is None or len({*line.docs}) < len(line.docs), Outcome.BAD_DOCS),
    )
    outcome = next((case for holds, case in cases if holds), UNDECIDED)
    return line._replace(kind=SHOWN, outcome=outcome)


def click_line(line: Line) -> Line:
    """A click, and what the line alone says against it."""
    if line.key is None:
        return line._replace(kind=CLICKED, outcome=Fate.NO_PAGE)
    return line._replace(kind=CLICKED, outcome=UNDECIDED if line.doc is not None else Fate.NO_DOC)


# --- JSON -------------------------------------------------------------------------------------------------------

Document = dict[str, Any]
_DECODER = msgspec.json.Decoder()
_OF_BULK = ("index", "create", "update", "delete")


def document_of(text: str) -> Document | None:
    """The JSON object in a line: alone, after the name of an index and a tab, or as a hit of a search (`_source`)."""
    if not text.startswith("{"):
        text = text.rpartition("\t")[2] if "\t" in text.partition("{")[0] else text
    try:
        found = _DECODER.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    document = cast("Document", found)
    source = document.get("_source")
    return cast("Document", source) if isinstance(source, dict) else document


def is_action_line(document: Document) -> bool:
    """Whether an object is an action line of the bulk format."""
    return len(document) == 1 and next(iter(document)) in _OF_BULK and isinstance(next(iter(document.values())), dict)


def field(document: Document, path: str) -> Any:  # noqa: ANN401 - of whatever type it has
    """A field by its path, whose parts may be objects in objects or one dotted name."""
    if path in document:
        return document[path]
    first, _, rest = path.partition(".")
    inner = document.get(first)
    return field(cast("Document", inner), rest) if rest and isinstance(inner, dict) else None


def text_of(value: object) -> str | None:
    """An id or a text; None where a value is none."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    text = str(value)
    return text if text.strip() else None


def ids_in(items: object, path: str) -> list[str] | None:
    """The ids of a list of objects; None where it is no list, or one has no id."""
    if not isinstance(items, list):
        return None
    found: list[str] = []
    for item in cast("Sequence[object]", items):
        known = text_of(field(cast("Document", item), path)) if isinstance(item, dict) else None
        if known is None:
            return None
        found.append(known)
    return found
