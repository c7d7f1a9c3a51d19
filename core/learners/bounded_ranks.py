"""Propensity-weighted ranks of clicked documents, as a loss of scores that trees can grow on.

    r_i = 1 + sum_{j on the page of i, j != i} log2(1 + exp(f_j - f_i))        at least the rank of i on its page
    loss = sum_{clicks i} w_i phi(r_i),   w_i = 1 / max(theta_i, LEAST_PROPENSITY)

    gradient by f_j:   sum_i w_i phi'(r_i) s_ij,          s_ij = 1 / (1 + exp(f_i - f_j)) / log 2
    gradient by f_i:  -w_i phi'(r_i) sum_j s_ij
    Hessian:           w_i phi'(r_i) s_ij (1 - s_ij log 2), phi taken for the straight line that touches it at r_i

phi rises; where it bends downwards, the line lies above it, so that a step lowers the loss itself (the convex-concave
procedure). Clicks in cells without a theta weigh nothing; their documents are ranked against, as all that was shown.

Sources: Joachims, Swaminathan & Schnabel 2017 (the weighted rank); Agarwal, Takatsu, Zaitsev & Joachims 2019 (phi).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from posbias.core.arrays.count_table import Floats, Integers, sum_by_number
from posbias.core.learners.data import LearningData
from posbias.core.learners.links import sigmoid
from posbias.core.learners.lists import Lists, clicked_lists, lists_to_learn_from

LEAST_PROPENSITY = 0.01
"""What propensities are clipped at, as in training files."""

_FLATTEST = 1e-6  # the least Hessian of a row
_LOG_2 = float(np.log(2))


class RankMeasure(ABC):
    """phi: what a rank costs."""

    @abstractmethod
    def cost(self, rank: Floats) -> Floats:
        """phi(r)."""

    @abstractmethod
    def slope(self, rank: Floats) -> Floats:
        """phi'(r) > 0."""


@dataclass(frozen=True)
class BoundedRanks:
    """The weighted ranks of the clicked documents of some pages.

    Attributes:
        lists: the pages.
        weight: of a click in each cell, shape (K,).
        n_documents: number of scored documents n.
        measure: phi.
    """

    lists: list[Lists]
    weight: Floats
    n_documents: int
    measure: RankMeasure

    @classmethod
    def of(cls, data: LearningData, learner: str, measure: RankMeasure) -> tuple["BoundedRanks", "BoundedRanks | None"]:
        """The clicks of a log to learn from and those held out, weighted by the propensities of their cells.

        Raises:
            IdentifiabilityError: nothing is ranked against anything.
        """
        weight = np.where(data.known, 1 / np.maximum(data.theta, LEAST_PROPENSITY), 0.0)
        learnt = cls(lists_to_learn_from(data, learner), weight, len(data.learnt), measure)
        apart = cls(clicked_lists(data, data.apart), weight, len(data.apart), measure)
        return learnt, apart if len(data.apart) else None

    def start(self) -> float:
        """0: only differences of scores count."""
        return 0.0

    def gradients(self, scores: Floats) -> tuple[Floats, Floats]:
        """The gradient and the Hessian of the loss at scores of shape (n,)."""
        gradient, hessian = np.zeros(self.n_documents), np.zeros(self.n_documents)
        for clicks in self._clicks:
            above = sigmoid(clicks.excess(scores))
            above[clicks.itself] = 0.0
            lead = clicks.weight * self.measure.slope(clicks.rank(scores)) / _LOG_2
            pull = lead[:, np.newaxis] * above
            bend = pull * (1 - above)
            gradient += self._sum(clicks.shown, pull) - self._sum(clicks.document, pull.sum(axis=1))
            hessian += self._sum(clicks.shown, bend) + self._sum(clicks.document, bend.sum(axis=1))
        return gradient, np.maximum(hessian, _FLATTEST)

    def per_impression(self, scores: Floats) -> float:
        """-phi of the bounded rank, the weighted mean over the clicks."""
        total = sum(float(clicks.weight @ self.measure.cost(clicks.rank(scores))) for clicks in self._clicks)
        weight = sum(float(clicks.weight.sum()) for clicks in self._clicks)
        return -total / weight if weight else 0.0

    @property
    def _clicks(self) -> Iterator["_Clicks"]:
        return (_Clicks(lists, self.weight) for lists in self.lists)

    def _sum(self, document: Integers, values: Floats) -> Floats:
        return sum_by_number(document.ravel(), values.ravel(), self.n_documents)


@dataclass(frozen=True)
class _Clicks:
    """The weighted clicks of pages of one length L, C of them."""

    lists: Lists
    weight_of_cell: Floats

    @cached_property
    def _places(self) -> tuple[Integers, Integers]:
        """The page of each click, and its place there."""
        page, place = np.nonzero(self.lists.click * self.weight_of_cell[self.lists.cell])
        return page, place

    @property
    def weight(self) -> Floats:
        """w_i, shape (C,)."""
        clicked = self.lists.click[self._places]
        return clicked * self.weight_of_cell[self.lists.cell[self._places]]

    @cached_property
    def document(self) -> Integers:
        """The clicked documents i, shape (C,)."""
        return self.lists.document[self._places]

    @cached_property
    def shown(self) -> Integers:
        """The documents of their pages j, with i itself, shape (C, L)."""
        return self.lists.document[self._places[0]]

    @property
    def itself(self) -> tuple[Integers, Integers]:
        """Where i itself stands in `shown`."""
        return np.arange(len(self.document)), self._places[1]

    def excess(self, scores: Floats) -> Floats:
        """f_j - f_i, shape (C, L)."""
        return scores[self.shown] - scores[self.document][:, np.newaxis]

    def rank(self, scores: Floats) -> Floats:
        """r_i, shape (C,); i itself gives the 1, as log2(1 + exp(0))."""
        bounds: Floats = np.logaddexp(0.0, self.excess(scores)).sum(axis=1) / _LOG_2
        return bounds
