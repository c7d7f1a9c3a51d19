"""Cells of a fit in words."""

from posbias.core.fit.fit import Fit
from posbias.core.wording import shown


def cell_in_words(fit: Fit, number: int) -> str:
    """A cell by its columns, e.g. `position 3, previous click 1`."""
    row = fit.statistics.cells.row(number, named=True)
    return ", ".join(f"{shown(name).replace('_', ' ')} {label_in_words(value)}" for name, value in row.items())


def label_in_words(value: object) -> str:
    """A value of a column of cells."""
    return "(none)" if value is None else shown(str(value))
