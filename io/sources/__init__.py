"""SQL of sources: a file `NAME.sql` for each, run by DuckDB over the files of a log.

A file begins with comments, of which some are read. Sources whose events one query makes a table of, for
`--input-format NAME`, have `-- title:`, `-- columns:`, once for each set of columns by which the source is recognised,
and `-- options:`, those that read the rows of the query. `-- then: FILE` names the rest of the query, which reads the
rows of the file as `events`. `linked` has no columns: it is recognised by what `finding_of_linked` finds. All is
plain text: to read a log that differs, copy the query to a file of your own, change it, and say `--sql FILE.sql` with
the options.

The rows of every such query are `kind` (impression, click, or what else the event is), `page` or `visit`, `query`,
`doc`, `position` and `timestamp`, so that every event is accounted for as in any other table of events.

The others, `_NAME.sql`, are scripts that make a log of records; `-- include: FILE` stands for another one. They say
what becomes of a record with `-- used:`, `-- outcome:`, and `-- fatal:`, which stops the run.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent
_MARK = "-- "
_ROWS = "-- rows:\n"
LINKED = "linked"
"""The source whose fields are found by their values."""

NAMES = tuple(sorted(path.stem for path in _FOLDER.glob("[a-z]*.sql")))
"""The sources by name."""


@dataclass(frozen=True)
class EventSource:
    """A source, and the query over its files."""

    name: str
    title: str  # for people
    columns: tuple[frozenset[str], ...]  # sets of columns; a file that has all of one set is of this source
    events: tuple[str, ...]  # what its events of lists are called, where no others are read
    options: tuple[str, ...]  # what reads the rows of the query, as words of a command line
    text: str  # the query

    def fitting(self, columns: frozenset[str]) -> int:
        """Number of columns by which a file is recognised; 0 if it is not of this source."""
        return max((len(known) for known in self.columns if known <= columns), default=0)


def _read(file: str) -> tuple[str, list[tuple[str, str]]]:
    """The text of a file, and the settings in its comments."""
    text = (_FOLDER / file).read_text(encoding="utf-8")
    head = [line.removeprefix(_MARK).partition(": ") for line in text.splitlines() if line.startswith(_MARK)]
    return text, [(key, value) for key, _, value in head if value]


@cache
def event_source(name: str) -> EventSource:
    """The source of that name, one of `NAMES`."""
    text, head = _read(f"{name}.sql")
    settings = {key: [value for other, value in head if other == key] for key, _ in head}
    for rest in settings.get("then", []):
        text = f"WITH events AS (\n{text}\n), {_read(rest)[0]}"
    columns = tuple(frozenset(known.split()) for known in settings.get("columns", []))
    events, options = (next(iter(settings.get(key, [""]))).split() for key in ("events", "options"))
    return EventSource(name, settings["title"][0], columns, tuple(events), tuple(options), text)


@cache
def finding_of_linked() -> str:
    """The query for what `linked` finds in the files, in words; no row where it finds nothing."""
    return event_source(LINKED).text.partition(_ROWS)[0] + "FROM said"


@cache
def script(name: str) -> tuple[str, dict[str, str]]:
    """The statements of a script, and the outcomes of records: each `used`, `fatal` or another `outcome`."""
    text, head = _read(f"{name}.sql")
    outcomes = {value: key for key, value in head if key in {"used", "outcome", "fatal"}}
    for file in (value for key, value in head if key == "include"):
        included, further = script(file.removesuffix(".sql"))
        text, outcomes = text.replace(f"{_MARK}include: {file}\n", included), outcomes | further
    return text, outcomes


def recognise(columns: frozenset[str]) -> EventSource | None:
    """The source that most columns tell of; None if there is none."""
    best = max(map(event_source, NAMES), key=lambda source: source.fitting(columns))
    return best if best.fitting(columns) else None
