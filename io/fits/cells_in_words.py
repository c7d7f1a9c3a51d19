"""Cells of a fit in words."""

from collections.abc import Sequence

from posbias.core.fit.fit import Fit
from posbias.core.wording import shown

_MOST = 6  # contexts that a sentence names


def cell_in_words(fit: Fit, number: int) -> str:
    """A cell by its columns, e.g. `position 3, previous click 1`."""
    row = fit.statistics.cells.row(number, named=True)
    return ", ".join(f"{shown(name).replace('_', ' ')} {label_in_words(value)}" for name, value in row.items())


def context_in_words(fit: Fit, number: int) -> str:
    """The context of a cell by its values, e.g. `phone / Norway`."""
    row = fit.statistics.cells.row(number, named=True)
    return " / ".join(label_in_words(row[name]) for name in fit.statistics.plan.context)


def listed(entries: Sequence[str], rest: str) -> str:
    """The first entries of several, and in which field of the manifest the rest is."""
    more = len(entries) - _MOST
    return ", ".join(entries[:_MOST]) + (f" and {more} more (`{rest}` in manifest.json)" if more > 0 else "")


def label_in_words(value: object) -> str:
    """A value of a column of cells."""
    return "(none)" if value is None else shown(str(value))
