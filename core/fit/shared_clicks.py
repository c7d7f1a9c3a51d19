"""Which clicks compare which cells: what it takes to say how much more a log would tell if documents stood elsewhere.

A stratum j (a pair, or a pair within a period) has the clicks C_j, which are expected to fall into its cells in the
shares p_je = n_je theta_e / sum over e' of n_je' theta_e'. Shared clicks are

    M_ef = sum_j C_j p_je p_jf

The row sums of M are the expected clicks by cell, and diag(row sums) - M is the information of the conditional
likelihood (`theta.conditional`).
"""

from dataclasses import dataclass

import numpy as np

from posbias.core.arrays.count_table import CountTable, Floats, Integers
from posbias.core.arrays.linalg import by_unit_and_cell, gram
from posbias.core.counts.sufficient_statistics import SufficientStatistics
from posbias.core.estimators.estimate import Estimate


@dataclass(frozen=True)
class SharedClicks:
    """M of a fit."""

    strata: CountTable  # their counts
    theta: Floats  # shape (K,), above 0 in every cell that has impressions

    @property
    def n_strata(self) -> float:
        """How many strata there are, whether they compare cells or not."""
        return float(self.strata.multiplicity.sum())

    @property
    def clicks(self) -> Floats:
        """M, shape (K, K)."""
        shared = np.zeros((self.strata.n_cells, self.strata.n_cells))
        for _, block in self.strata.blocks():
            expected = block.impressions * self.theta[block.cell]
            of_unit = block.sum_by_unit(expected)
            weight = np.sqrt(block.multiplicity * block.sum_by_unit(block.clicks))
            shared += gram(by_unit_and_cell(block, expected * block.spread(weight / of_unit)))
        return shared

    @classmethod
    def of(cls, statistics: SufficientStatistics, estimate: Estimate) -> "SharedClicks | None":
        """Of a free estimate.

        Returns:
            None where theta is not estimated from the clicks of strata, where cells depend on other clicks, and where
            impressions carry weights, so that no further page is worth a known part of them.
        """
        plan = statistics.plan
        if estimate.fitted is None or plan.model.beside_position or plan.weighted:
            return None
        counts, position = statistics.cell_totals, statistics.position_of_cell
        theta = working_theta(estimate.propensity, *counts, position, statistics.context_of_cell)
        return cls(estimate.fitted.strata.signatures, theta)


def working_theta(
    propensity: Floats, impressions: Floats, clicks: Floats, position: Integers, context: Integers
) -> Floats:
    """A propensity for every cell: where none is known, as if the documents were those of the nearest known position.

    Args:
        propensity: shape (K,), NaN where not identified.
        impressions: likewise.
        clicks: likewise.
        position: likewise.
        context: likewise, the number of the context; only cells of one context are compared.

    Returns:
        Shape (K,), above 0.
    """
    rate = (clicks + _HALF_A_CLICK) / (impressions + 2 * _HALF_A_CLICK)
    theta = propensity.copy()
    for cell in np.flatnonzero(~np.isfinite(propensity)):
        known = np.flatnonzero(np.isfinite(propensity) & (context == context[cell]))
        if not len(known):
            theta[cell] = rate[cell] / rate[context == context[cell]].max()
            continue
        nearest = known[np.argmin(np.abs(position[known] - position[cell]))]
        theta[cell] = propensity[nearest] * rate[cell] / rate[nearest]
    return theta


_HALF_A_CLICK = 0.5  # so that a cell without clicks has a rate above 0
