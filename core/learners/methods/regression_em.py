"""Regression EM as published: theta and relevance learnt together, with sampled labels.

    P(E = 1, R = 1 | c = 0, d, k) = 0
    P(E = 1 | c = 0, d, k) = theta_k (1 - gamma_d) / (1 - theta_k gamma_d)
    P(R = 1 | c = 0, d, k) = gamma_d (1 - theta_k) / (1 - theta_k gamma_d)          both are 1 where c = 1

Every round draws a label R of each impression from its probability, grows a tree on the gradient of logistic regression
on these labels, and then sets

    theta_k = mean over the impressions at k of c + (1 - c) P(E = 1 | c = 0, d, k)

Impressions of a document at one position are alike, so that their labels are one binomial draw. Theta starts at the
click rates by position over the largest of them. It is on the probability scale as the model has it, which clicks do
not fix; `learned_propensities.parquet` holds it relative to the first cell.

Source: Wang, Golbandi, Bendersky, Metzler & Najork 2018, section 4.
"""

from dataclasses import replace
from functools import cached_property

import numpy as np

from posbias.core.arrays.count_table import CountTable, Floats, Integers
from posbias.core.learners.boosting import BoostedTrees
from posbias.core.learners.data import LEAST_EXAMINATION, LearningData, relative
from posbias.core.learners.growing import PROBABILITY, binned, grow
from posbias.core.learners.learner import Learned, Learner, LearningOptions, OnRound
from posbias.core.learners.likelihood import ClickLikelihood
from posbias.core.learners.links import sigmoid

_FLATTEST = 1e-6  # the least Hessian of a row
_TINY = 1e-12


class RegressionEMLearner(Learner):
    """Boosted trees on sampled labels of relevance, and theta from expected examination."""

    name = "regression-em"
    reference = "Wang et al. 2018"
    about = "regression EM, which learns propensities and relevance together"
    uses_propensities = False
    is_probability = True

    def learn(self, data: LearningData, options: LearningOptions, on_round: OnRound) -> Learned:
        """Grow a tree on sampled labels and take a step of theta, in turn."""
        theta = Theta.of(data.counts.take(data.learnt))
        loss, held_out = (
            SampledLabels(data.counts.take(documents), theta, options.seed) for documents in (data.learnt, data.apart)
        )
        grown = grow(
            binned(data, options),
            loss,
            held_out if len(data.apart) else None,
            options,
            on_round,
            lambda trees: theta.step(loss.counts, trees),
        )
        return replace(grown.learned(PROBABILITY), propensities=relative(theta.after[grown.best - 1]))


class Theta:
    """Examination of each cell, which moves after every tree.

    Attributes:
        now: theta, shape (K,); nan where nothing was shown.
        after: theta after each tree.
    """

    def __init__(self, now: Floats) -> None:
        """Begin with theta of shape (K,)."""
        self.now = now
        self.after: list[Floats] = []

    @classmethod
    def of(cls, counts: CountTable) -> "Theta":
        """Click rates by cell over the largest of them."""
        shown = counts.sum_by_cell(counts.impressions)
        rate = np.divide(counts.sum_by_cell(counts.clicks), shown, out=np.full(counts.n_cells, np.nan), where=shown > 0)
        highest = float(np.nanmax(rate)) if np.isfinite(rate).any() else 0.0
        return cls(np.clip(rate / highest if highest else rate, LEAST_EXAMINATION, 1.0))

    def step(self, counts: CountTable, trees: BoostedTrees) -> None:
        """The M-step for theta, at the scores of the trees."""
        self.now = expected_examination(counts, self.now, sigmoid(trees.scores()))
        self.after.append(self.now)


def expected_examination(counts: CountTable, theta: Floats, gamma: Floats) -> Floats:
    """The mean of c + (1 - c) P(E = 1 | c = 0, d, k) at each cell, shape (K,); nan where nothing was shown."""
    total, shown = np.zeros(counts.n_cells), np.zeros(counts.n_cells)
    for units, block in counts.blocks():
        of_entry, gamma_of = theta[block.cell], block.spread(gamma[units])
        examined = of_entry * (1 - gamma_of) / np.maximum(1 - of_entry * gamma_of, _TINY)
        total += block.sum_by_cell(block.clicks + (block.impressions - block.clicks) * examined)
        shown += block.sum_by_cell(block.impressions)
    return np.divide(total, shown, out=np.full(counts.n_cells, np.nan), where=shown > 0)


class SampledLabels:
    """Logistic regression on labels that are drawn anew for every tree, theta as it stands then."""

    def __init__(self, counts: CountTable, theta: Theta, seed: int) -> None:
        """Begin.

        Args:
            counts: of the documents.
            theta: moves between trees.
            seed: of the labels.
        """
        self.counts = counts
        self._theta = theta
        self._rng = np.random.default_rng(seed)

    @cached_property
    def _impressions(self) -> Floats:
        return self.counts.sum_by_unit(self.counts.impressions)

    def start(self) -> float:
        """The score of every document for which expected clicks are those that are there."""
        return self._likelihood.start()

    def gradients(self, scores: Floats) -> tuple[Floats, Floats]:
        """The gradient n gamma - R and the Hessian n gamma (1 - gamma), R the sum of a document's drawn labels."""
        gamma = sigmoid(scores)
        labels = np.empty(self.counts.n_units)
        for units, block in self.counts.blocks():
            theta, gamma_of = self._theta.now[block.cell], block.spread(gamma[units])
            chance = gamma_of * (1 - theta) / np.maximum(1 - theta * gamma_of, _TINY)
            labels[units] = block.sum_by_unit(
                block.clicks + _drawn(block.impressions - block.clicks, np.clip(chance, 0, 1), self._rng)
            )
        shown = self._impressions
        return shown * gamma - labels, np.maximum(shown * gamma * (1 - gamma), _FLATTEST)

    def per_impression(self, scores: Floats) -> float:
        """The log-likelihood of the clicks per impression, theta as it stands."""
        return self._likelihood.per_impression(scores)

    @property
    def _likelihood(self) -> ClickLikelihood:
        return ClickLikelihood(self.counts, np.nan_to_num(self._theta.now, nan=1.0))


def _drawn(trials: Floats, chance: Floats, rng: np.random.Generator) -> Floats:
    """How many of the trials succeed; what is left of a sum of weights beyond whole trials succeeds or fails as one."""
    whole: Integers = np.floor(trials + _TINY).astype(np.int64)
    drawn: Floats = rng.binomial(whole, chance).astype(np.float64)
    rest = np.maximum(trials - whole, 0.0)
    if rest.any():
        drawn += rest * (rng.random(len(rest)) < chance)
    return drawn
