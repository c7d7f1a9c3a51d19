"""OpenSearch UBI."""

from collections.abc import Mapping
from typing import Any

from posbias.core.errors import SchemaError
from posbias.core.schema import Roles
from posbias.io.forms.form import Form
from posbias.io.log.clicks import RawLines

_MOSTLY = 0.5


class Ubi(Form):
    """Documents of ubi_queries and ubi_events."""

    name = "ubi"
    title = "UBI"
    has_actions = True
    formats = ("ndjson", "tsv")
    expected = (
        "UBI documents are read as NDJSON, one per line, plain or as bulk requests; name the file .ndjson or .jsonl "
        "(.gz, .zst)."
    )
    columns = ("query_id", "user_query", "object_id", "position", "click", "timestamp", "client_id", "application")
    other_action = "events of other actions"

    def knows_document(self, document: dict[str, Any]) -> bool:
        """A query or an event has the id of a query."""
        return "query_id" in document and not {"action_name", "user_query"}.isdisjoint(document)

    def roles(self, requested: Roles) -> Roles:
        """The columns that were named, and those of UBI for the others."""
        return requested.or_else(
            session="query_id", query="user_query", doc="object_id", position="position", click="click"
        )

    def positions(self, counts: Mapping[str, int]) -> dict[str, int]:
        """From hit lists, or from ordinals."""
        return {"from_hit_lists": counts["rows"] - counts["by_ordinal"], "from_ordinals": counts["by_ordinal"]}

    def judge(self, where: str, counts: Mapping[str, int], account: RawLines) -> None:
        """Check that pages were shown, and that most of them do not contradict themselves.

        Raises:
            SchemaError: nothing was shown, or a query_id is no page.
        """
        pages, contradicting = counts["pages"], counts["contradicting"]
        if contradicting > _MOSTLY * pages:
            raise SchemaError(
                f"{where}: {contradicting:,} of {pages:,} pages contradict themselves: a query_id with several queries "
                "or hit lists, two documents at one position, or one at two. A query_id is one results page; too many "
                f"of them are not. {self.in_words(account)}"
            )
        if counts["rows"] and not counts["clicks"] and account.other_actions:
            raise self.no_clicks(where, self.rules.click_actions, account)
        if counts["rows"]:
            return
        advice = "Nothing that was shown could be read."
        if self.rules.impressions == "hits":
            advice = (
                "No query has a hit list (query_response_hit_ids). If the log has impression events, use "
                "--ubi-impressions events --position-base impression=N, where N is the ordinal of the topmost position."
            )
        raise SchemaError(f"{where}: {advice} {self.in_words(account)}")
