"""What the errors of theta add to the standard deviation of attractiveness, and of other rates that divide by theta.

Given theta, gamma of a unit has posterior mean m and standard deviation sd (`posterior`). With an error of log theta of
covariance V,

    sd_total^2 = sd^2 + g' V g
    g_e = d m / d log theta_e = -(n_e - c_e) theta_e / (1 - theta_e m)^2 sd^2

to first order, exact in the limit of many impressions.

Sources: Kass & Steffey 1989 (errors of hyperparameters, delta method).
"""

import numpy as np

from posbias.core.arrays.count_table import CountTable, Floats
from posbias.core.arrays.linalg import by_unit_and_cell
from posbias.core.arrays.threads import at_once

_BLOCK = 4_000_000  # numbers in one dense block of work, 32 MB


def variance_by_unit(table: CountTable, slopes: Floats, covariance: Floats) -> Floats:
    """Variance g' V g of each unit, shape (J,).

    Args:
        table: the units' entries.
        slopes: g, by log theta, one of each entry, shape (R,).
        covariance: V, shape (K, K).
    """
    rows, moved = by_unit_and_cell(table, slopes), np.empty_like(slopes)
    height = max(1, _BLOCK // table.n_cells)
    for first in range(0, table.n_units, height):
        last = min(first + height, table.n_units)
        entries = slice(*table.start[[first, last]].tolist())
        of_units = rows[first:last] @ covariance
        moved[entries] = of_units[table.unit_of_entry[entries] - first, table.cell[entries]]
    return table.sum_by_unit(slopes * moved)


def with_errors_of_theta(
    table: CountTable, examination: Floats, covariance: Floats, mean: Floats, std_dev: Floats
) -> Floats:
    """The standard deviation of gamma, theta's own errors included, shape (J,).

    Args:
        table: counts per unit and cell.
        examination: theta, shape (K,); NaN where not identified.
        covariance: V, shape (K, K).
        mean: of gamma given theta, shape (J,).
        std_dev: likewise.
    """
    known = np.isfinite(examination)
    total = np.empty_like(std_dev)
    theta = np.where(known, examination, 0.0)

    def add(part: tuple[slice, CountTable]) -> None:
        units, block = part
        of_entry = theta[block.cell]
        slope = -(block.impressions - block.clicks) * of_entry / (1 - of_entry * block.spread(mean[units])) ** 2
        added = variance_by_unit(block, slope * block.spread(std_dev[units] ** 2), covariance)
        total[units] = np.sqrt(std_dev[units] ** 2 + added)

    for _ in at_once(add, table.blocks()):
        pass
    return total
