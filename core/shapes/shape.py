"""Propensity curves of a given shape over positions: what `power` and `monotone` share.

Both maximise the likelihood of the conditional estimate,

    l(beta) = sum_j m_j { sum_e c_je beta_e - C_j log sum_e n_je exp(beta_e) },    beta_ref = 0 in each group of cells

over fewer curves. A group (a context) has a reference and a curve of its own. A shape says something where the log does
not, and is wrong where it does not hold: each fit comes with a test against the free estimate.
"""

from dataclasses import dataclass

import numpy as np

from posbias.core.arrays.count_table import Floats, Integers
from posbias.core.standard_errors.contrasts import ContrastTest
from posbias.core.standard_errors.intervals import Intervals
from posbias.core.theta.linked_counts import LinkedCounts


@dataclass(frozen=True)
class ShapedEstimate:
    """A curve of a given shape, one a group of cells.

    Attributes:
        log_theta: shape (K,), log propensity relative to the cell's reference, 0 there; NaN where there is none.
        intervals: how sure it is. Monotone: given the blocks.
        block: shape (K,), monotone: the cell whose number the cell shares, possibly its own. Power: the cell itself.
        eta: shape (K,), power: the severity of the cell's group, NaN where there is none. Monotone: NaN.
        eta_error: shape (K,), its standard error.
        converged: whether the optimum was reached.
        test: of the shape against the free estimate. Power: shape - free, by cell. Monotone: how far the free
            estimate rises from one position to the next, one-sided.
        warning: a sentence where the shape is rejected, else None.
    """

    log_theta: Floats
    intervals: Intervals
    block: Integers
    eta: Floats
    eta_error: Floats
    converged: bool
    test: ContrastTest
    warning: str | None

    @property
    def theta(self) -> Floats:
        """Propensity relative to the reference, shape (K,); NaN where there is none."""
        return np.exp(self.log_theta)


def gains(linked: LinkedCounts, shares: Floats, move: Floats) -> Floats:
    """What each unit adds to l when the log propensities of its entries move, shape (J,), of one of its copies."""
    table = linked.table
    growth = table.sum_by_unit(shares * np.expm1(move))
    return table.sum_by_unit(table.clicks * move) - linked.unit_clicks * np.log1p(growth)
