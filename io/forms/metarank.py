"""Metarank's events: rankings, which say what was shown, and interactions, which say what was done with it.

Fields as in "Supported events" and "Timestamp formats" of its documentation (doc/event-schema.md of metarank/metarank):
event, id, timestamp, user, session, fields[name = query], items[].id; ranking, type, item.
"""

from typing import Any, cast

from posbias.io.forms.form import Document, Line, Outcome, PageForm, click_line, document_of, ids_in, page_line, text_of

_RANKING = "ranking"
_OTHERS = ("item", "user")


class Metarank(PageForm):
    """A page is a ranking; interactions name it. Their type says which of them are clicks."""

    name = "metarank"
    title = "Metarank"
    has_actions = True
    may_lack_queries = True
    expected = "Metarank's events are read as NDJSON, one per line; name the file .ndjson or .jsonl (.gz, .zst)."

    def read(self, text: str) -> Line:
        """Read an event."""
        document = document_of(text)
        if document is None:
            return Line(Outcome.NOT_READ)
        kind = document.get("event")
        if kind == _RANKING:
            return _ranking(document, no_query=self.rules.no_query)
        if kind == "interaction":
            return _interaction(document, self.rules.click_actions)
        return Line(Outcome.OTHER_ACTION, action=kind) if kind in _OTHERS else Line(Outcome.UNKNOWN)

    def lacks_query(self, document: dict[str, Any]) -> bool | None:
        """Whether a ranking is that of a recommender."""
        return _query(document.get("fields")) is None if document.get("event") == _RANKING else None

    def knows_document(self, document: dict[str, Any]) -> bool:
        """A ranking has items, an interaction a type, and metadata fields."""
        needed = {"ranking": "items", "interaction": "type", "item": "fields", "user": "fields"}
        return needed.get(str(document.get("event"))) in document and "timestamp" in document


def _ranking(document: Document, *, no_query: bool) -> Line:
    page = text_of(document.get("id"))
    return page_line(
        Line(
            key=page,
            page=page,
            visit=text_of(document.get("session")),
            query="" if no_query else _query(document.get("fields")),
            docs=ids_in(document.get("items"), "id"),
            timestamp=text_of(document.get("timestamp")),
            user=text_of(document.get("user")),
        )
    )


def _interaction(document: Document, click_actions: tuple[str, ...]) -> Line:
    action = text_of(document.get("type"))
    if action not in click_actions:
        return Line(Outcome.OTHER_ACTION, action=action)
    page = text_of(document.get("ranking"))
    doc, timestamp = text_of(document.get("item")), text_of(document.get("timestamp"))
    return click_line(Line(action=action, key=page, page=page, doc=doc, timestamp=timestamp))


def _query(fields: object) -> str | None:
    """The value of the field `query`."""
    if not isinstance(fields, list):
        return None
    for entry in cast("list[object]", fields):
        if isinstance(entry, dict) and cast("Document", entry).get("name") == "query":
            return text_of(cast("Document", entry).get("value"))
    return None
