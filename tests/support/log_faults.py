"""What may be wrong with a log of a form, as data: lines that are added to a small log, and what is said of them.

`log_faults_counted.txt`: form, reason, lines; such lines are counted under the reason, and change nothing.
`log_faults_refused.txt`: form, reason, line, place and what follows; such a line stops a run. Where bad rows are left
out, one row has the reason, or as many as are named, with a page of that number. Between these stands an arrow, and ++
between lines. A line `@name {...}` is a document of the small log with other fields.
"""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from log_forms import FORMS, Click, Event, Log, Page, write

SMALL = Log(
    [Page(3, "q", ["a", "b", "c"]), Page(4, "q", ["b", "a", "c"]), Page(5, "q", ["c", "a", "b"])],
    [Click(3, "b"), Click(4, "b")],
)
"""Three pages of one visit."""


class Counted(NamedTuple):
    """Lines that are counted under a reason."""

    form: str
    reason: str
    lines: list[str]


class Refused(NamedTuple):
    """A line that stops a run."""

    form: str
    reason: str
    line: str
    place: str
    rows: int = 1
    without: int | None = None


def write_small(folder: Path, form: str, lines: Iterable[str] = (), without: int | None = None) -> list[Path]:
    """Write the small log in a form, with further lines in its last file; or without a page."""
    pages = [page for page in SMALL.pages if page.number != without]
    clicks = [click for click in SMALL.clicks if click.page != without]
    paths = write(folder, FORMS[form].write(replace(SMALL, pages=pages, clicks=clicks)), "csv")
    with paths[-1].open("a", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)
    return paths


def _document(form: str, place: int, **changes: object) -> Event:
    (lines,) = FORMS[form].write(SMALL).values()
    found: list[Any] = [*lines]
    return found[place] | changes


DOCUMENTS: dict[str, Event] = {
    "ranking": _document("metarank", -1, id="r9"),
    "interaction": _document("metarank", 0),
    "search": _document("behavioral analytics", 0, **{"@timestamp": "2026-01-05T10:37:40Z"}),
}
"""A page that the small log does not hold, a click that it holds, and a later search."""


def changed(name: str, **fields: object) -> str:
    """Return the line of a document with other fields."""
    return json.dumps(DOCUMENTS[name] | fields)


def search(action: str = "search", **fields: object) -> str:
    """Return the line of a later search of the visit, or of another action."""
    return changed("search", event={"action": action}, **fields)


def _line(text: str) -> str:
    if text.startswith("@"):
        name, _, fields = text[1:].partition(" ")
        return changed(name, **json.loads(fields))
    return {"<blank>": "", "<100000 brackets>": "[" * 100_000}.get(text, text)


def _table(name: str) -> list[list[str]]:
    text = Path(__file__).with_name(f"log_faults_{name}.txt").read_text(encoding="utf-8")
    return [line.split(" -> ") for line in text.split("\n") if line]


COUNTED = [
    Counted(form, reason, [_line(line) for line in lines.split(" ++ ")]) for form, reason, lines in _table("counted")
]
REFUSED = [
    Refused(form, reason, _line(line), place, *map(int, further))
    for form, reason, line, place, *further in _table("refused")
]
