"""Sources whose events one query makes a table of: a file `NAME.sql` here each, for `--input-format NAME`.

A file begins with comments. Three of them are read: `-- title:`, `-- columns:`, once for each set of columns by which
the source is recognised, and `-- options:`, those that read the rows of the query. `-- then: FILE` names the rest of
the query, which reads the rows of the file as `events`. All is plain text: to read a log that differs, copy the query
to a file of your own, change it, and say `--sql FILE.sql` with the options.

The rows of every query are `kind` (impression, click, or what else the event is), `page` or `visit`, `query`, `doc`,
`position` and `timestamp`, so that every event is accounted for as in any other table of events.
"""

import shlex
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent
_MARK = "-- "

NAMES = tuple(sorted(path.stem for path in _FOLDER.glob("[a-z]*.sql")))
"""The sources by name."""


@dataclass(frozen=True)
class EventSource:
    """A source, and the query over its files."""

    name: str
    title: str  # for people
    columns: tuple[frozenset[str], ...]  # sets of columns; a file that has all of one set is of this source
    options: tuple[str, ...]  # what reads the rows of the query, as words of a command line
    text: str  # the query

    def fitting(self, columns: frozenset[str]) -> int:
        """Number of columns by which a file is recognised; 0 if it is not of this source."""
        return max((len(known) for known in self.columns if known <= columns), default=0)


@cache
def event_source(name: str) -> EventSource:
    """The source of that name, one of `NAMES`."""
    text = (_FOLDER / f"{name}.sql").read_text(encoding="utf-8")
    head = [line.removeprefix(_MARK).partition(": ") for line in text.splitlines() if line.startswith(_MARK)]
    settings = {key: [value for other, _, value in head if other == key] for key, _, _ in head}
    for rest in settings.get("then", []):
        text = f"WITH events AS (\n{text}\n), {(_FOLDER / rest).read_text(encoding='utf-8')}"
    columns = tuple(frozenset(known.split()) for known in settings["columns"])
    return EventSource(name, settings["title"][0], columns, tuple(shlex.split(settings["options"][0])), text)


def recognise(columns: frozenset[str]) -> EventSource | None:
    """The source that most columns tell of; None if there is none."""
    best = max(map(event_source, NAMES), key=lambda source: source.fitting(columns))
    return best if best.fitting(columns) else None
