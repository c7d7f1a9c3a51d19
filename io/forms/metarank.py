"""Metarank's events."""

from typing import Any, cast

from posbias.io.forms.form import Document, PageForm

_NEEDED = {"ranking": "items", "interaction": "type", "item": "fields", "user": "fields"}
"""The field that an event of a kind has."""


class Metarank(PageForm):
    """Rankings, which say what was shown, and interactions, which say what was done with it."""

    name = "metarank"
    title = "Metarank"
    has_actions = True
    may_lack_queries = True
    expected = "Metarank's events are read as NDJSON, one per line; name the file .ndjson or .jsonl (.gz, .zst)."

    def lacks_query(self, document: dict[str, Any]) -> bool | None:
        """Whether a ranking is that of a recommender."""
        if document.get("event") != "ranking":
            return None
        fields: Any = document.get("fields")
        for entry in cast("list[Any]", fields if isinstance(fields, list) else []):
            if isinstance(entry, dict) and cast("Document", entry).get("name") == "query":
                return not str(cast("Document", entry).get("value") or "").strip()
        return True

    def knows_document(self, document: dict[str, Any]) -> bool:
        """A ranking has items, an interaction a type, and metadata fields."""
        return _NEEDED.get(str(document.get("event"))) in document and "timestamp" in document
