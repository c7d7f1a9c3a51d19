"""Dual learning: a ranker and theta, each weighted by the ratios that the other gives within a page.

    ranking:       -sum_{clicks} (theta_1 / theta_k)  log softmax(f)_d      over the documents of the page
    examination:   -sum_{clicks} (gamma_1 / gamma_d)  log softmax(g)_k      over the positions of the page

gamma = softmax(f), theta = softmax(g); gamma_1 is that of the document at the top of the page, theta_1 that of the
first position. Only ratios within a page count, so that sums over pages of different lengths do not mix. Weights are
clipped at 100. With every tree for f, each g_k takes half a Newton step, w_k = gamma_1 / gamma_d where k was clicked:

    g_k <- g_k - 1/2 sum_pages (W p_k - w_k) / sum_pages W p_k (1 - p_k),   p = softmax(g), W = sum_k w_k

The learning curve shows how likely it is, per click, that of a page's documents this one was clicked: softmax(f + g).

The paper takes stochastic steps of a network for f; here trees take Newton steps, over all pages.

Source: Ai, Bi, Luo, Guo & Croft 2018.
"""

from dataclasses import dataclass, replace

import numpy as np

from posbias.core.arrays.count_table import Floats, sum_by_number
from posbias.core.learners.boosting import BoostedTrees
from posbias.core.learners.data import LearningData
from posbias.core.learners.growing import RAW, binned, grow
from posbias.core.learners.learner import Learned, Learner, LearningOptions, OnRound
from posbias.core.learners.lists import Lists, clicked_lists, lists_to_learn_from

_LARGEST_WEIGHT = 100.0
_FLATTEST = 1e-6  # the least Hessian of a row
_TINY = 1e-300
_STEP = 0.5  # of a Newton step: theta and the ranker move at once


class DualLearner(Learner):
    """Boosted trees and theta that weigh each other's clicks."""

    name = "dla"
    reference = "Ai et al. 2018"
    about = "dual learning of ranker and propensities"
    source = "pages"
    uses_propensities = False
    measure = "log-likelihood of which document of a page is clicked, per click"

    def learn(self, data: LearningData, options: LearningOptions, on_round: OnRound) -> Learned:
        """Grow a tree on weighted clicks and take a step of theta, at once."""
        examination = Examination(data)
        loss = WeightedSoftmax(lists_to_learn_from(data, self.name), len(data.learnt), examination)
        held_out = WeightedSoftmax(clicked_lists(data, data.apart), len(data.apart), examination)
        grown = grow(
            binned(data, options),
            loss,
            held_out if len(data.apart) else None,
            options,
            on_round,
            lambda trees: examination.step(loss.lists, trees),
        )
        return replace(grown.learned(RAW), propensities=np.exp(examination.after[grown.best - 1]))


class Examination:
    """g of each cell, 0 at the first position; it moves after every tree.

    Attributes:
        now: g, shape (K,).
        after: g after each tree.
    """

    def __init__(self, data: LearningData) -> None:
        """Begin with theta 1 everywhere."""
        self.now = np.zeros(len(data.position))
        self.after: list[Floats] = []
        self._first = int(np.argmin(data.position))
        self._scores = np.zeros(len(data.learnt))

    @property
    def weight(self) -> Floats:
        """theta_1 / theta_k of each cell, clipped, shape (K,)."""
        return np.minimum(np.exp(-self.now), _LARGEST_WEIGHT)

    def step(self, lists: list[Lists], trees: BoostedTrees) -> None:
        """Half a Newton step at the scores that the last tree was grown on: both sides move from one place."""
        gradient, hessian = examination_gradients(lists, self.now, self._scores)
        self._scores = trees.scores()
        moved = self.now - _STEP * gradient / np.maximum(hessian, _FLATTEST)
        self.now = moved - moved[self._first]
        self.after.append(self.now)


def examination_gradients(lists: list[Lists], examination: Floats, scores: Floats) -> tuple[Floats, Floats]:
    """The gradient and the Hessian of the loss of examination by each g_k, shapes (K,)."""
    gradient, hessian = np.zeros_like(examination), np.zeros_like(examination)
    for block in lists:
        excess = scores[block.document] - scores[block.document[:, :1]]
        weight = block.click * np.exp(np.clip(-excess, -np.log(_LARGEST_WEIGHT), np.log(_LARGEST_WEIGHT)))
        whole = weight.sum(axis=1, keepdims=True)
        share = softmax(examination[block.cell])
        cell = block.cell.ravel()
        gradient += sum_by_number(cell, (whole * share - weight).ravel(), len(examination))
        hessian += sum_by_number(cell, (whole * share * (1 - share)).ravel(), len(examination))
    return gradient, hessian


def softmax(scores: Floats) -> Floats:
    """exp(f_d) / sum exp(f_d') over each row of scores of shape (P, L)."""
    above: Floats = np.exp(scores - scores.max(axis=1, keepdims=True))
    return above / above.sum(axis=1, keepdims=True)


@dataclass(frozen=True)
class WeightedSoftmax:
    """The loss of ranking.

    Attributes:
        lists: pages with clicks.
        n_documents: number of scored documents n.
        examination: weighs their clicks, as it stands.
    """

    lists: list[Lists]
    n_documents: int
    examination: Examination

    def start(self) -> float:
        """0: only differences of scores count."""
        return 0.0

    def gradients(self, scores: Floats) -> tuple[Floats, Floats]:
        """The gradient and the Hessian of the loss at scores of shape (n,)."""
        gradient, hessian = np.zeros(self.n_documents), np.zeros(self.n_documents)
        for block in self.lists:
            weight = block.click * self.examination.weight[block.cell]
            whole, share = weight.sum(axis=1, keepdims=True), softmax(scores[block.document])
            document = block.document.ravel()
            gradient += sum_by_number(document, (whole * share - weight).ravel(), self.n_documents)
            hessian += sum_by_number(document, (whole * share * (1 - share)).ravel(), self.n_documents)
        return gradient, np.maximum(hessian, _FLATTEST)

    def per_impression(self, scores: Floats) -> float:
        """Log softmax(f + g) of what was clicked, the mean over the clicks.

        Both losses change with their weights; this one does not, and rises as ranker and theta come to explain clicks.
        """
        total = clicks = 0.0
        for block in self.lists:
            share = softmax(scores[block.document] + self.examination.now[block.cell])
            total += float((block.click * np.log(np.maximum(share, _TINY))).sum())
            clicks += float(block.click.sum())
        return total / clicks if clicks else 0.0
