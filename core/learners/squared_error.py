"""The squared error of scores against clicks, weighted by 1 / theta.

    sum_d { (C_d / 2) (1 - f_d)^2 + ((n_d - C_d) / 2) f_d^2 },   C_d = sum_e c_de / theta_e,  n_d = sum_e n_de
    gradient by f_d:  n_d f_d - C_d

Its expectation is the error against attractiveness: that of all impressions, had all of them been examined. With theta
1 it is the error against click rates.

Sources: Schnabel et al. 2016; Saito et al. 2020 (for clicks, which do not say that a document was examined in vain).
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from posbias.core.arrays.count_table import CountTable, Floats


@dataclass(frozen=True)
class SquaredError:
    """The error of some documents' scores.

    Attributes:
        counts: of the documents, in cells that have a theta.
        theta: of each cell, in (0, 1], shape (K,).
    """

    counts: CountTable
    theta: Floats

    @cached_property
    def impressions(self) -> Floats:
        """n_d, shape (D,)."""
        return self.counts.sum_by_unit(self.counts.impressions)

    @cached_property
    def clicks(self) -> Floats:
        """C_d, shape (D,)."""
        return self.counts.sum_by_unit(self.counts.clicks / self.theta[self.counts.cell])

    def start(self) -> float:
        """The mean."""
        return float(self.clicks.sum() / max(self.impressions.sum(), 1.0))

    def gradients(self, scores: Floats) -> tuple[Floats, Floats]:
        """The gradient and the Hessian at scores of shape (D,)."""
        return self.impressions * scores - self.clicks, self.impressions

    def per_impression(self, scores: Floats) -> float:
        """Minus the squared error per impression."""
        missed = self.clicks * (1 - scores) ** 2 + (self.impressions - self.clicks) * scores**2
        return -float(missed.sum() / max(self.impressions.sum(), np.finfo(float).tiny))
