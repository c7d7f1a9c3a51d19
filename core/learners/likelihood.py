"""The likelihood of the position-based model, given theta, as a loss of scores that trees can grow on.

    P(click | d, e) = theta_e gamma_d,   gamma_d = 1 / (1 + exp(-f_d))

    p_d = sum_e { c_de + (n_de - c_de) gamma_d (1 - theta_e) / (1 - theta_e gamma_d) }      n_d = sum_e n_de
    gradient of -log L by f_d:  n_d gamma_d - p_d          Hessian, its expected part:  n_d gamma_d (1 - gamma_d)

p_d is how many of the impressions showed an attractive document, as far as clicks say: the gradient is that of logistic
regression on these expected labels (generalised EM, one gradient step per M-step).

Source: Wang, Golbandi, Bendersky, Metzler & Najork 2018.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from posbias.core.arrays.count_table import CountTable, Floats
from posbias.core.learners.links import logit, sigmoid
from posbias.core.training.layouts.pointwise import expected_attractions

_FLATTEST = 1e-6  # the least Hessian of a row: LightGBM divides by sums of them
_RATES = (1e-4, 0.9)  # what the start is kept within
_TINY = 1e-300


@dataclass(frozen=True)
class ClickLikelihood:
    """The likelihood of some documents' clicks.

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

    def start(self) -> float:
        """The score of every document for which expected clicks are those that are there."""
        expected = float((self.counts.impressions * self.theta[self.counts.cell]).sum())
        return logit(float(np.clip(self.counts.clicks.sum() / max(expected, _TINY), *_RATES)))

    def gradients(self, scores: Floats) -> tuple[Floats, Floats]:
        """The gradient and the Hessian of -log L at scores of shape (D,)."""
        gamma, shown = sigmoid(scores), self.impressions
        attracted = expected_attractions(self.counts, self.theta, gamma)
        return shown * gamma - attracted, np.maximum(shown * gamma * (1 - gamma), _FLATTEST)

    def per_impression(self, scores: Floats) -> float:
        """Log L per impression at scores of shape (D,)."""
        total = 0.0
        for units, block in self.counts.blocks():
            chance = self.theta[block.cell] * block.spread(sigmoid(scores[units]))
            skipped = block.impressions - block.clicks
            total += float(
                (
                    block.clicks * np.log(np.maximum(chance, _TINY))
                    + skipped * np.log1p(-np.minimum(chance, 1 - 1e-16))
                ).sum()
            )
        return total / max(float(self.counts.impressions.sum()), _TINY)
