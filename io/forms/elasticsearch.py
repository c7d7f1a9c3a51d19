"""Elasticsearch's behavioral analytics: the events search, search_click and page_view.

Fields as in "Behavioral Analytics events reference" of the Elasticsearch guide (8.x): @timestamp, event.action,
session.id, user.id, search.query, search.page.current and .size, search.results.items[].document.id, document.id.
"""

from typing import Any

from posbias.io.forms.form import (
    QUERY,
    VISIT,
    Document,
    Line,
    Outcome,
    PageForm,
    click_line,
    document_of,
    field,
    ids_in,
    is_action_line,
    page_line,
    text_of,
)

_SEARCH, _CLICK = "search", "search_click"


class Elasticsearch(PageForm):
    """A page is a search. A click belongs to the last search of its session and query that showed the document."""

    name = "elasticsearch"
    title = "Elasticsearch"
    clicked_by = (VISIT, QUERY)
    click_actions = (_CLICK,)
    expected = (
        "Events of behavioral analytics are read as NDJSON, one per line, plain, as bulk requests or as hits of a "
        "search (jq -c '.hits.hits[]'); name the file .ndjson or .jsonl (.gz, .zst)."
    )

    def read(self, text: str) -> Line:
        """Read an event."""
        document = document_of(text)
        if document is None:
            return Line(Outcome.NOT_READ)
        if is_action_line(document):
            return Line(Outcome.ACTION_LINE)
        action = text_of(field(document, "event.action"))
        if action == _SEARCH:
            return _search(document)
        if action == _CLICK:
            return click_line(_common(document)._replace(doc=text_of(field(document, "document.id"))))
        return Line(Outcome.UNKNOWN) if action is None else Line(Outcome.OTHER_ACTION, action=action)

    def knows_document(self, document: dict[str, Any]) -> bool:
        """An event has a session and one of these actions."""
        action = field(document, "event.action")
        return action in {_SEARCH, _CLICK, "page_view", "pageview"} and field(document, "session.id") is not None


def _search(document: Document) -> Line:
    common = _common(document)
    number, size = field(document, "search.page.current"), field(document, "search.page.size")
    before = (number - 1) * size if _is_whole(number) and _is_whole(size) else 0
    named = [common.visit, common.timestamp, common.query, str(before)]
    page = " ".join(name or "" for name in named) if common.visit else None
    docs = ids_in(field(document, "search.results.items"), "document.id")
    return page_line(common._replace(page=page, docs=docs, first=before + 1))


def _common(document: Document) -> Line:
    visit = text_of(field(document, "session.id"))
    return Line(
        key=visit,
        visit=visit,
        query=text_of(field(document, "search.query")),
        timestamp=text_of(document.get("@timestamp")),
        user=text_of(field(document, "user.id")),
    )


def _is_whole(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 0 < number < 10**6
