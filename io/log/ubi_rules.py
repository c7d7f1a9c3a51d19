"""How UBI documents are read: where impressions come from, what a click is, from what number ordinals count."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from posbias.core.schema import RequestedRoles

Impressions = Literal["hits", "events"]
"""What says that a document was shown: the hit list of the query, or an event of the action `impression`."""

IMPRESSION = "impression"
"""The action of an event that says that a document was shown."""

QUERY_ID, USER_QUERY, OBJECT_ID, ACTION_NAME = "query_id", "user_query", "object_id", "action_name"
POSITION, CLICK = "position", "click"
OF_THE_QUERY = ("timestamp", "client_id", "application")
"""What else of a query's document goes with its page, as text."""

COLUMNS = (QUERY_ID, USER_QUERY, OBJECT_ID, POSITION, CLICK, *OF_THE_QUERY)
"""The columns of the log that is made of UBI documents."""


@dataclass(frozen=True)
class UbiRules:
    """How UBI documents are read.

    Attributes:
        impressions: what says that a document was shown.
        click_actions: the actions that are clicks.
        bases: the number of the topmost position in the ordinals of each action; no number, no trust: the official
            sample mixes ordinals from 0 and from 1.
    """

    impressions: Impressions = "hits"
    click_actions: tuple[str, ...] = ("click",)
    bases: Mapping[str, int] = field(default_factory=dict[str, int])


def with_usual_columns(requested: RequestedRoles) -> RequestedRoles:
    """The columns that were named, and those of UBI for the others."""
    return replace(
        requested,
        session=requested.session or (QUERY_ID,),
        query=requested.query or (USER_QUERY,),
        doc=requested.doc or (OBJECT_ID,),
        position=requested.position or POSITION,
        click=requested.click or CLICK,
    )
