"""The counts that say something about theta: units with a click that were shown in several identified cells."""

from dataclasses import dataclass, replace

import numpy as np

from posbias.core.arrays.count_table import CountTable, Floats, Integers
from posbias.core.theta.linkage import Linkage

_UNDERFLOW = 1e-200  # sums below it may have lost digits


@dataclass(frozen=True)
class LinkedCounts:
    """The part of a table that carries information on the identified cells."""

    table: CountTable  # the units with a click and at least two identified cells; cells are numbered 0 .. I - 1.
    cells: Integers  # shape (I,), the identified cells, ascending: their numbers in the whole table
    units: Integers  # the units' numbers in the whole table
    reference_of: Integers  # shape (I,), the number among the I of each cell's reference
    unit_clicks: Floats  # C_j of each unit, in identified cells, of one of its copies

    @property
    def free(self) -> Integers:
        """Numbers among the I of the cells other than the references, shape (F,)."""
        return np.flatnonzero(self.reference_of != np.arange(len(self.cells)))

    def shares(self, log_theta: Floats) -> Floats:
        """Each entry's p_je = n_je theta_e / sum_e' n_je' theta_e', for log_theta of shape (I,)."""
        return shares_at(self.table, log_theta)[0]


def linked_counts(table: CountTable, linkage: Linkage) -> LinkedCounts:
    """Restrict a table to the identified cells and to the units that compare them."""
    cells = np.flatnonzero(linkage.identified)
    inside = table.only_cells(linkage.identified)
    units = np.flatnonzero(inside.links)
    kept = inside.take(units)  # those of signatures stand first, and are not copied
    if len(cells) < table.n_cells:
        kept = replace(kept, n_cells=len(cells), cell=np.searchsorted(cells, kept.cell))
    return LinkedCounts(
        table=kept,
        cells=cells,
        units=units,
        reference_of=np.searchsorted(cells, linkage.reference_of[cells]),
        unit_clicks=kept.sum_by_unit(kept.clicks),
    )


def shares_at(table: CountTable, log_theta: Floats) -> tuple[Floats, Floats]:
    """Each entry's p_je, and each unit's log sum_e n_je theta_e, without overflow."""
    largest = float(log_theta.max(initial=0.0))
    share = table.impressions * np.exp(log_theta - largest).take(table.cell)
    total = table.sum_by_unit(share)
    if total.min(initial=1.0) < _UNDERFLOW:
        return _shares_of_tiny(table, log_theta)
    share /= table.spread(total)
    return share, largest + np.log(total)


def _shares_of_tiny(table: CountTable, log_theta: Floats) -> tuple[Floats, Floats]:
    """The same where some unit was shown in cells only whose theta is nothing beside the largest: slower."""
    exponent = np.log(table.impressions) + log_theta[table.cell]
    largest = table.max_by_unit(exponent)
    share = np.exp(exponent - table.spread(largest))
    total = table.sum_by_unit(share)
    share /= table.spread(total)
    return share, largest + np.log(total)
