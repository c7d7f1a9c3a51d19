"""SQL of sources: a file `NAME.sql` for each, run by DuckDB over the files of a log.

A file begins with comments, of which some are read. Sources whose events one query makes a table of, for
`--input-format NAME`, have `-- title:`, `-- columns:`, once for each set of columns by which the source is recognised,
and `-- options:`, those that read the rows of the query. `-- then: FILE` names the rest of the query, which reads the
rows of the file as `events`. `linked` has no columns: it is recognised by the query `finding_of_linked`. To read a log
that differs, copy the query to a file, change it, and use `--sql FILE.sql` with the options.

The rows of every such query are `kind` (impression, click, or what else the event is), `page` or `visit`, `query`,
`doc`, `position` and `timestamp`, so that every event is accounted for as in any other table of events.

The others, `_NAME.sql`, are scripts that convert records to a log; `-- include: FILE` includes another one. The
outcomes of records are `-- used:`, `-- outcome:`, and `-- fatal:`, which stops the run.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent
_MARK = "-- "
_ROWS = "-- rows:\n"
LINKED = "linked"
"""The source that is recognised by values, not by columns."""

NAMES = tuple(sorted(path.stem for path in _FOLDER.glob("[a-z]*.sql")))
"""Names of all sources with a query."""


@dataclass(frozen=True)
class EventSource:
    """A source with the query over its files."""

    name: str
    title: str  # for people
    columns: tuple[frozenset[str], ...]  # a file with all columns of one set is of this source
    events: tuple[str, ...]  # names of the events with lists, if others are not read
    options: tuple[str, ...]  # words of the command line that read the rows of the query
    text: str  # the query

    def n_matching(self, columns: frozenset[str]) -> int:
        """Return the size of the largest set of the source's columns that a file has; 0 for none."""
        return max((len(known) for known in self.columns if known <= columns), default=0)


def _read(file: str) -> tuple[str, list[tuple[str, str]]]:
    """Return the text of a file, and the (key, value) pairs in its comments."""
    text = (_FOLDER / file).read_text(encoding="utf-8")
    head = [line.removeprefix(_MARK).partition(": ") for line in text.splitlines() if line.startswith(_MARK)]
    return text, [(key, value) for key, _, value in head if value]


@cache
def event_source(name: str) -> EventSource:
    """Read the source of a name of `NAMES`."""
    text, head = _read(f"{name}.sql")
    settings = {key: [value for other, value in head if other == key] for key, _ in head}
    for rest in settings.get("then", []):
        text = f"WITH events AS (\n{text}\n), {_read(rest)[0]}"
    columns = tuple(frozenset(known.split()) for known in settings.get("columns", []))
    events, options = (next(iter(settings.get(key, [""]))).split() for key in ("events", "options"))
    return EventSource(name, settings["title"][0], columns, tuple(events), tuple(options), text)


@cache
def finding_of_linked() -> str:
    """Return the query for a description of linked pages and clicks, with one row, or none in other logs."""
    return event_source(LINKED).text.partition(_ROWS)[0] + "FROM said"


@cache
def script(name: str) -> tuple[str, dict[str, str]]:
    """Return the statements of a script, and the outcomes of records with their kind: used, fatal or outcome."""
    text, head = _read(f"{name}.sql")
    outcomes = {value: key for key, value in head if key in {"used", "outcome", "fatal"}}
    for file in (value for key, value in head if key == "include"):
        included, further = script(file.removesuffix(".sql"))
        text, outcomes = text.replace(f"{_MARK}include: {file}\n", included), outcomes | further
    return text, outcomes


def recognise(columns: frozenset[str]) -> EventSource | None:
    """Return the source with the most matching columns; None if no source matches."""
    best = max(map(event_source, NAMES), key=lambda source: source.n_matching(columns))
    return best if best.n_matching(columns) else None
