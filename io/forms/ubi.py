"""OpenSearch User Behavior Insights: queries and events (the room `ubi` reads them)."""

from typing import Any, ClassVar

from posbias.io.forms.form import Form
from posbias.io.log.raw import RawReader, RawRules
from posbias.io.ubi.reader import ACTION_NAME, QUERY_ID, USER_QUERY, UbiReader


class Ubi(Form):
    """Documents of ubi_queries and ubi_events."""

    name: ClassVar[str] = "ubi"
    title: ClassVar[str] = "UBI"
    has_actions: ClassVar[bool] = True

    def reader(self, rules: RawRules) -> RawReader:
        """What makes a log of such files."""
        return UbiReader(rules)

    def knows_document(self, document: dict[str, Any]) -> bool:
        """A query or an event has the id of a query."""
        return QUERY_ID in document and not {ACTION_NAME, USER_QUERY}.isdisjoint(document)
