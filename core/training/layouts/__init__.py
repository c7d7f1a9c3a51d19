"""Layouts: in which rows a training set carries weights. Each is one file here; trainers take different ones.

A layout is a class below `LayoutOfPages` or `LayoutOfCounts`. A line in `choices` names it.
"""

from posbias.core.choices import LAYOUTS, Grouping
from posbias.core.errors import UsageError
from posbias.core.registry import Room
from posbias.core.training.layouts.layout import GROUP, LABEL, Layout, LayoutOfCounts, LayoutOfPages

__all__ = [
    "GROUP",
    "LABEL",
    "Layout",
    "LayoutOfCounts",
    "LayoutOfPages",
    "choose_grouping",
    "get_layout",
    "layout_names",
    "layouts_of_pages",
    "layouts_that_take",
]

_LAYOUTS = Room[LayoutOfPages | LayoutOfCounts](LAYOUTS, "--layout")


def layout_names() -> list[str]:
    """The layouts, in the order in which lists show them."""
    return _LAYOUTS.names


def get_layout(name: str) -> LayoutOfPages | LayoutOfCounts:
    """The layout of that name.

    Raises:
        UsageError: there is none.
    """
    return _LAYOUTS.get(name)


def layouts_that_take(option: str) -> list[str]:
    """The layouts that know an option that is not for all."""
    return [name for name, layout in _LAYOUTS.plugins.items() if option in layout.takes]


def layouts_of_pages() -> list[str]:
    """The layouts that need the pages of the log."""
    return [name for name, layout in _LAYOUTS.plugins.items() if layout.from_pages]


def choose_grouping(layout: Layout, wanted: Grouping | None) -> Grouping:
    """What stands together: what is wanted, or else what is usual.

    Raises:
        UsageError: the layout has no such groups.
    """
    if wanted is None:
        return layout.groupings[0]
    if wanted not in layout.groupings:
        able = [name for name, other in _LAYOUTS.plugins.items() if wanted in other.groupings]
        raise UsageError(
            f"--group {wanted}: --layout {layout.name} adds up all pages of a query. Layouts with groups by {wanted}: "
            f"{', '.join(able)}."
        )
    return wanted
