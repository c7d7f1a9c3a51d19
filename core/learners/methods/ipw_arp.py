"""The average rank of clicked documents, weighted by inverse propensities, on trees.

    minimise sum_{clicks i} r_i / theta_i,   r_i = 1 + sum_{j != i} log2(1 + exp(f_j - f_i)) >= the rank of i

In expectation over clicks this is the sum of the ranks of relevant documents, as if all had been examined. The paper
bounds the rank by hinges of a linear model (Propensity SVM-Rank); trees need a bound with a second derivative, the
logistic one of the 2019 paper. The derivatives are those of `bounded_ranks`.

Sources: Joachims, Swaminathan & Schnabel 2017; Agarwal, Takatsu, Zaitsev & Joachims 2019 (PropARP).
"""

import numpy as np

from posbias.core.arrays.count_table import Floats
from posbias.core.learners.bounded_ranks import BoundedRanks, RankMeasure
from posbias.core.learners.data import LearningData
from posbias.core.learners.growing import RAW, binned, grow
from posbias.core.learners.learner import Learned, Learner, LearningOptions, OnRound


class AverageRank(RankMeasure):
    """phi(r) = r."""

    def cost(self, rank: Floats) -> Floats:
        """The rank."""
        return rank

    def slope(self, rank: Floats) -> Floats:
        """1."""
        return np.ones_like(rank)


class IPWAverageRankLearner(Learner):
    """Boosted trees on the propensity-weighted average rank of clicked documents."""

    name = "ipw-arp"
    rank = 10
    reference = "Joachims et al. 2017; Agarwal et al. 2019"
    about = "the propensity-weighted average rank of clicked documents"
    source = "pages"
    measure = "weighted mean of the bounded rank of clicked documents, negative"

    def learn(self, data: LearningData, options: LearningOptions, on_round: OnRound) -> Learned:
        """Grow trees on the ranks of the clicks in cells that have a theta."""
        loss, held_out = BoundedRanks.of(data, self.name, AverageRank())
        grown = grow(binned(data, options), loss, held_out, options, on_round)
        return grown.learned(RAW)
