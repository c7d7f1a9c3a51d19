"""Layouts: in which rows a training set carries weights. Each is one file here; trainers take different ones.

Rows of a layout come in groups, which rankers rank by themselves, and stand in the order of their groups.
"""

from dataclasses import dataclass
from typing import Literal

from posbias.core.errors import UsageError
from posbias.core.schema import CLICK, DOC, POSITION, QUERY, SESSION

LayoutName = Literal["pointwise", "clicked-group", "session", "pairs", "judgments"]
Grouping = Literal["session", "query"]

GROUP = "group"
"""The column that numbers groups, from 0."""

LABEL = "label"
"""The column that is learnt, where it is not the click."""


@dataclass(frozen=True)
class Layout:
    """What sets a layout apart from the others.

    Attributes:
        name: on the command line.
        from_pages: whether it needs the pages of the log; else counts by query and document will do.
        groupings: what may stand together: a page, or all that was seen of a query. The first one is usual.
        label: the column that is learnt.
    """

    name: LayoutName
    from_pages: bool
    groupings: tuple[Grouping, ...]
    label: str = LABEL

    def ids(self, grouping: Grouping) -> tuple[str, ...]:
        """The columns that say what a row is."""
        if self.name == "session":
            return (SESSION, QUERY, DOC, POSITION)
        return (SESSION, QUERY, DOC) if self.from_pages and grouping == "session" else (QUERY, DOC)


LAYOUTS: dict[LayoutName, Layout] = {
    layout.name: layout
    for layout in (
        Layout("pointwise", from_pages=False, groupings=("query",)),
        Layout("clicked-group", from_pages=True, groupings=("query", "session")),
        Layout("session", from_pages=True, groupings=("session", "query"), label=CLICK),
        Layout("pairs", from_pages=True, groupings=("query", "session")),
        Layout("judgments", from_pages=False, groupings=("query",)),
    )
}


def choose_grouping(layout: Layout, wanted: Grouping | None) -> Grouping:
    """What stands together: what is wanted, or else what is usual.

    Raises:
        UsageError: the layout has no such groups.
    """
    if wanted is None:
        return layout.groupings[0]
    if wanted not in layout.groupings:
        pages = ", ".join(other.name for other in LAYOUTS.values() if wanted in other.groupings)
        raise UsageError(
            f"--group {wanted}: --layout {layout.name} adds up all pages of a query. Layouts with groups by {wanted}: "
            f"{pages}."
        )
    return wanted
