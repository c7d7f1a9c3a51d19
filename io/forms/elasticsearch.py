"""Elasticsearch's behavioral analytics."""

from typing import Any

from posbias.io.forms.form import PageForm, field

_ACTIONS = ("search", "search_click", "page_view", "pageview")


class Elasticsearch(PageForm):
    """Events of behavioral analytics."""

    name = "elasticsearch"
    title = "Elasticsearch"
    click_actions = ("search_click",)
    expected = (
        "Events of behavioral analytics are read as NDJSON, one per line, plain, as bulk requests or as hits of a "
        "search (jq -c '.hits.hits[]'); name the file .ndjson or .jsonl (.gz, .zst)."
    )

    def knows_document(self, document: dict[str, Any]) -> bool:
        """An event has a session and one of these actions."""
        return field(document, "event.action") in _ACTIONS and field(document, "session.id") is not None
