"""Trees on pages: clicked documents against what was shown with them.

`ipw-arp` and `ipw-dcg`: the ranks of clicked documents, weighted by inverse propensities.

    r_i = 1 + sum_{j on the page of i, j != i} log2(1 + exp(f_j - f_i))        at least the rank of i on its page
    loss = sum_{clicks i} w_i phi(r_i),   w_i = 1 / max(theta_i, LEAST_PROPENSITY)

    ipw-arp    phi(r) = r                     minimise sum r_i / theta_i
    ipw-dcg    phi(r) = -1 / log2(1 + r)      maximise sum 1 / (theta_i log2(1 + r_i))

    gradient by f_j:   sum_i w_i phi'(r_i) s_ij,          s_ij = 1 / (1 + exp(f_i - f_j)) / log 2
    gradient by f_i:  -w_i phi'(r_i) sum_j s_ij
    Hessian:           w_i phi'(r_i) s_ij (1 - s_ij log 2), phi taken for the straight line that touches it at r_i

phi rises; where it bends downwards, the line lies above it, so that a step lowers the loss itself (the convex-concave
procedure). Clicks in cells without a theta weigh nothing; their documents are ranked against, as all that was shown.

In expectation over clicks the first is the sum of the ranks of relevant documents, as if all had been examined. The
2017 paper bounds the rank by hinges of a linear model (Propensity SVM-Rank); trees need a bound with a second
derivative, the logistic one of the 2019 paper. The second is a lower bound of the DCG of clicked documents, and not
convex: ranks near the top count more than those far down.

`dla`: dual learning, a ranker and theta, each weighted by the ratios that the other gives within a page.

    ranking:       -sum_{clicks} (theta_1 / theta_k)  log softmax(f)_d      over the documents of the page
    examination:   -sum_{clicks} (gamma_1 / gamma_d)  log softmax(g)_k      over the positions of the page

gamma = softmax(f), theta = softmax(g); gamma_1 is that of the document at the top of the page, theta_1 that of the
first position. Only ratios within a page count, so that sums over pages of different lengths do not mix. Weights are
clipped at 100. With every tree for f, each g_k takes half a Newton step, w_k = gamma_1 / gamma_d where k was clicked:

    g_k <- g_k - 1/2 sum_pages (W p_k - w_k) / sum_pages W p_k (1 - p_k),   p = softmax(g), W = sum_k w_k

The learning curve shows how likely it is, per click, that of a page's documents this one was clicked: softmax(f + g).
The paper takes stochastic steps of a network for f; here trees take Newton steps, over all pages.

Sources: Joachims, Swaminathan & Schnabel 2017 (the weighted rank); Agarwal, Takatsu, Zaitsev & Joachims 2019 (PropARP,
PropDCG); Ai, Bi, Luo, Guo & Croft 2018 (dual learning).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from posbias.core.arrays.count_table import Floats, Integers, sum_by_number
from posbias.core.learners.boosting import BoostedTrees
from posbias.core.learners.data import LearningData, Lists, clicked_lists, lists_to_learn_from
from posbias.core.learners.growing import RAW, TreeLearner, binned, grow
from posbias.core.learners.learner import Learned, LearningOptions, OnRound
from posbias.core.learners.links import sigmoid

LEAST_PROPENSITY = 0.01
"""What propensities are clipped at, as in training files."""

_FLATTEST = 1e-6  # the least Hessian of a row
_LOG_2 = float(np.log(2))
_LARGEST_WEIGHT = 100.0
_TINY = 1e-300
_STEP = 0.5  # of a Newton step: theta and the ranker move at once


@dataclass(frozen=True)
class BoundedRanks(ABC):
    """The weighted ranks of the clicked documents of some pages, and what a rank costs: phi."""

    lists: list[Lists]
    weight: Floats  # of a click in each cell, shape (K,)
    n_documents: int  # number of scored documents n

    @staticmethod
    @abstractmethod
    def cost(rank: Floats) -> Floats:
        """phi(r)."""

    @staticmethod
    @abstractmethod
    def slope(rank: Floats) -> Floats:
        """phi'(r) > 0."""

    def start(self) -> float:
        """0: only differences of scores count."""
        return 0.0

    def gradients(self, scores: Floats) -> tuple[Floats, Floats]:
        """The gradient and the Hessian of the loss at scores of shape (n,)."""
        gradient, hessian = np.zeros(self.n_documents), np.zeros(self.n_documents)
        for weight, rank, above, clicked, shown in self._clicks(scores):
            pull = (weight * self.slope(rank) / _LOG_2)[:, np.newaxis] * above
            bend = pull * (1 - above)
            gradient += self._sum(shown, pull) - self._sum(clicked, pull.sum(axis=1))
            hessian += self._sum(shown, bend) + self._sum(clicked, bend.sum(axis=1))
        return gradient, np.maximum(hessian, _FLATTEST)

    def per_impression(self, scores: Floats) -> float:
        """-phi of the bounded rank, the weighted mean over the clicks."""
        sums = [(float(weight @ self.cost(rank)), float(weight.sum())) for weight, rank, *_ in self._clicks(scores)]
        total, weight = sum(cost for cost, _ in sums), sum(weight for _, weight in sums)
        return -total / weight if weight else 0.0

    def _clicks(self, scores: Floats) -> Iterator[tuple[Floats, Floats, Floats, Integers, Integers]]:
        """The C weighted clicks i of pages of one length L at a time.

        w_i and r_i, shape (C,); s_ij log 2, 0 for i itself, shape (C, L); the documents i, shape (C,), and j, (C, L).
        """
        for lists in self.lists:
            weights = lists.click * self.weight[lists.cell]
            page, place = np.nonzero(weights)
            clicked, shown = lists.document[page, place], lists.document[page]
            excess = scores[shown] - scores[clicked][:, np.newaxis]
            rank = np.logaddexp(0.0, excess).sum(axis=1) / _LOG_2  # i itself gives the 1, as log2(1 + exp(0))
            above = sigmoid(excess)
            above[np.arange(len(clicked)), place] = 0.0
            yield weights[page, place], rank, above, clicked, shown

    def _sum(self, document: Integers, values: Floats) -> Floats:
        return sum_by_number(document.ravel(), values.ravel(), self.n_documents)


class AverageRank(BoundedRanks):
    """phi(r) = r."""

    @staticmethod
    def cost(rank: Floats) -> Floats:
        """The rank."""
        return rank

    @staticmethod
    def slope(rank: Floats) -> Floats:
        """1."""
        return np.ones_like(rank)


class DiscountedGain(BoundedRanks):
    """phi(r) = -1 / log2(1 + r)."""

    @staticmethod
    def cost(rank: Floats) -> Floats:
        """The gain, negative."""
        return -1 / np.log2(1 + rank)

    @staticmethod
    def slope(rank: Floats) -> Floats:
        """1 / ((1 + r) log(2) log2(1 + r)^2)."""
        return 1 / ((1 + rank) * np.log(2) * np.log2(1 + rank) ** 2)


class IPWAverageRankLearner(TreeLearner):
    """Boosted trees on the propensity-weighted average rank of clicked documents."""

    name = "ipw-arp"
    reference = "Joachims et al. 2017; Agarwal et al. 2019"
    about = "the propensity-weighted average rank of clicked documents"
    source = "pages"
    measure = "weighted mean of the bounded rank of clicked documents, negative"
    objective = RAW
    ranks: ClassVar[type[BoundedRanks]] = AverageRank

    def losses(self, data: LearningData) -> tuple[BoundedRanks, BoundedRanks]:
        """The ranks of the clicks, weighted by the propensities of their cells."""
        weight = np.where(data.known, 1 / np.maximum(data.theta, LEAST_PROPENSITY), 0.0)
        learnt, apart = lists_to_learn_from(data, self.name), clicked_lists(data, data.apart)
        return self.ranks(learnt, weight, len(data.learnt)), self.ranks(apart, weight, len(data.apart))


class IPWDiscountedGainLearner(IPWAverageRankLearner):
    """Boosted trees on the propensity-weighted discounted gain of clicked documents."""

    name = "ipw-dcg"
    reference = "Agarwal et al. 2019"
    about = "the propensity-weighted DCG of clicked documents"
    measure = "weighted mean of the bounded discounted gain of clicked documents"
    ranks = DiscountedGain


class DualLearner(TreeLearner):
    """Boosted trees and theta that weigh each other's clicks."""

    name = "dla"
    reference = "Ai et al. 2018"
    about = "dual learning of ranker and propensities"
    source = "pages"
    uses_propensities = False
    measure = "log-likelihood of which document of a page is clicked, per click"
    objective = RAW

    def losses(self, data: LearningData) -> tuple["WeightedSoftmax", "WeightedSoftmax"]:
        """The loss of ranking, theta being 1 to begin with."""
        learnt, apart, even = (
            lists_to_learn_from(data, self.name),
            clicked_lists(data, data.apart),
            np.zeros_like(data.theta),
        )
        return WeightedSoftmax(learnt, len(data.learnt), even), WeightedSoftmax(apart, len(data.apart), even)

    def learn(self, data: LearningData, options: LearningOptions, on_round: OnRound) -> Learned:
        """Grow a tree on weighted clicks and take a step of theta, at once: both sides move from one place."""
        loss, held_out = self.losses(data)
        after, scores = list[Floats](), np.zeros(len(data.learnt))

        def step(trees: BoostedTrees) -> None:
            nonlocal scores
            gradient, hessian = examination_gradients(loss.lists, loss.examination, scores)
            moved = loss.examination - _STEP * gradient / np.maximum(hessian, _FLATTEST)
            loss.examination = held_out.examination = moved - moved[np.argmin(data.position)]
            after.append(loss.examination)
            scores = trees.scores()

        grown = grow(binned(data, options), (loss, held_out), options, on_round, after_tree=step)
        return replace(grown.learned(self.objective), propensities=np.exp(after[grown.best - 1]))


@dataclass
class WeightedSoftmax:
    """The loss of ranking."""

    lists: list[Lists]  # pages with clicks
    n_documents: int  # number of scored documents n
    examination: Floats  # g of each cell, 0 at the first position, as it stands, shape (K,)

    def start(self) -> float:
        """0: only differences of scores count."""
        return 0.0

    def gradients(self, scores: Floats) -> tuple[Floats, Floats]:
        """The gradient and the Hessian of the loss at scores of shape (n,)."""
        gradient, hessian = np.zeros(self.n_documents), np.zeros(self.n_documents)
        of_cell = np.minimum(np.exp(-self.examination), _LARGEST_WEIGHT)  # theta_1 / theta_k
        for block in self.lists:
            _add_softmax(block.click * of_cell[block.cell], scores, block.document, gradient, hessian)
        return gradient, np.maximum(hessian, _FLATTEST)

    def per_impression(self, scores: Floats) -> float:
        """Log softmax(f + g) of what was clicked, the mean over the clicks.

        Both losses change with their weights; this one does not, and rises as ranker and theta come to explain clicks.
        """
        total = clicks = 0.0
        for block in self.lists:
            share = softmax(scores[block.document] + self.examination[block.cell])
            total += float((block.click * np.log(np.maximum(share, _TINY))).sum())
            clicks += float(block.click.sum())
        return total / clicks if clicks else 0.0


def examination_gradients(lists: list[Lists], examination: Floats, scores: Floats) -> tuple[Floats, Floats]:
    """The gradient and the Hessian of the loss of examination by each g_k, shapes (K,)."""
    gradient, hessian = np.zeros_like(examination), np.zeros_like(examination)
    for block in lists:
        excess = scores[block.document] - scores[block.document[:, :1]]
        weight = block.click * np.exp(np.clip(-excess, -np.log(_LARGEST_WEIGHT), np.log(_LARGEST_WEIGHT)))
        _add_softmax(weight, examination, block.cell, gradient, hessian)
    return gradient, hessian


def _add_softmax(weight: Floats, values: Floats, number: Integers, gradient: Floats, hessian: Floats) -> None:
    """Add the derivatives of -sum w log softmax of the values with these numbers, each row a page, shape (P, L)."""
    whole, share = weight.sum(axis=1, keepdims=True), softmax(values[number])
    gradient += sum_by_number(number.ravel(), (whole * share - weight).ravel(), len(values))
    hessian += sum_by_number(number.ravel(), (whole * share * (1 - share)).ravel(), len(values))


def softmax(scores: Floats) -> Floats:
    """exp(f_d) / sum exp(f_d') over each row of scores of shape (P, L)."""
    above: Floats = np.exp(scores - scores.max(axis=1, keepdims=True))
    return above / above.sum(axis=1, keepdims=True)
