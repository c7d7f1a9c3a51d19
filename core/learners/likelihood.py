"""Losses of scores by counts of clicks, which trees can grow on and factors can follow: likelihood and squared error.

The likelihood of the position-based model, given theta:

    P(click | d, e) = theta_e gamma_d,   gamma_d = 1 / (1 + exp(-f_d))

    p_d = sum_e { c_de + (n_de - c_de) gamma_d (1 - theta_e) / (1 - theta_e gamma_d) }      n_d = sum_e n_de
    gradient of -log L by f_d:  n_d gamma_d - p_d          Hessian, its expected part:  n_d gamma_d (1 - gamma_d)

p_d is how many of the impressions showed an attractive document, as far as clicks say: the gradient is that of logistic
regression on these expected labels (generalised EM, one gradient step per M-step).

The squared error against clicks, weighted by 1 / theta:

    sum_d { (C_d / 2) (1 - f_d)^2 + ((n_d - C_d) / 2) f_d^2 },   C_d = sum_e c_de / theta_e
    gradient by f_d:  n_d f_d - C_d

Its expectation is the error against attractiveness: that of all impressions, had all of them been examined. With theta
1 it is the error against click rates.

Sources: Wang, Golbandi, Bendersky, Metzler & Najork 2018; Schnabel et al. 2016; Saito et al. 2020 (for clicks, which do
not say that a document was examined in vain).
"""

from functools import cached_property

import numpy as np

from posbias.core.arrays.count_table import CountTable, Floats
from posbias.core.learners.learner import RATES
from posbias.core.learners.links import logit, sigmoid
from posbias.core.training.layouts.pointwise import expected_attractions

_FLATTEST = 1e-6  # the least Hessian of a row: LightGBM divides by sums of them
_TINY = 1e-300


class LossOfCounts:
    """A loss of the scores of some documents by their counts."""

    def __init__(self, counts: CountTable, theta: Floats) -> None:
        """Take the counts of the documents, in cells that have a theta, in (0, 1], shape (K,)."""
        self.counts, self.theta = counts, theta

    @cached_property
    def impressions(self) -> Floats:
        """n_d, shape (D,)."""
        return self.counts.sum_by_unit(self.counts.impressions)


class ClickLikelihood(LossOfCounts):
    """The likelihood of some documents' clicks."""

    def start(self) -> float:
        """The score of every document for which expected clicks are those that are there."""
        expected = float((self.counts.impressions * self.theta[self.counts.cell]).sum())
        return logit(float(np.clip(self.counts.clicks.sum() / max(expected, _TINY), *RATES)))

    def labels(self, gamma: Floats) -> Floats:
        """p_d, shape (D,)."""
        return expected_attractions(self.counts, self.theta, gamma)

    def gradients(self, scores: Floats) -> tuple[Floats, Floats]:
        """The gradient and the Hessian of -log L at scores of shape (D,)."""
        gamma, shown = sigmoid(scores), self.impressions
        return shown * gamma - self.labels(gamma), np.maximum(shown * gamma * (1 - gamma), _FLATTEST)

    def per_impression(self, scores: Floats) -> float:
        """Log L per impression at scores of shape (D,)."""
        total = 0.0
        for units, block in self.counts.blocks():
            chance = self.theta[block.cell] * block.spread(sigmoid(scores[units]))
            of_clicks = block.clicks * np.log(np.maximum(chance, _TINY))
            of_skips = (block.impressions - block.clicks) * np.log1p(-np.minimum(chance, 1 - 1e-16))
            total += float((of_clicks + of_skips).sum())
        return total / max(float(self.counts.impressions.sum()), _TINY)


class SquaredError(LossOfCounts):
    """The error of some documents' scores."""

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
