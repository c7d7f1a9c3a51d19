"""The ranks of clicked documents, weighted by inverse propensities, on trees.

With r_i = 1 + sum_{j != i} log2(1 + exp(f_j - f_i)) >= the rank of i, over clicks i:

    ipw-arp    minimise sum r_i / theta_i
    ipw-dcg    maximise sum 1 / (theta_i log2(1 + r_i))

In expectation over clicks the first is the sum of the ranks of relevant documents, as if all had been examined. The
2017 paper bounds the rank by hinges of a linear model (Propensity SVM-Rank); trees need a bound with a second
derivative, the logistic one of the 2019 paper. The second is a lower bound of the DCG of clicked documents, and not
convex. As in the paper (PropDCG), every step takes -1 / log2(1 + r) for the line that touches it: ranks near the top
count more than those far down, and trees fit the steps. The derivatives are those of `bounded_ranks`.

Sources: Joachims, Swaminathan & Schnabel 2017; Agarwal, Takatsu, Zaitsev & Joachims 2019 (PropARP, PropDCG).
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
    reference = "Joachims et al. 2017; Agarwal et al. 2019"
    about = "the propensity-weighted average rank of clicked documents"
    source = "pages"
    measure = "weighted mean of the bounded rank of clicked documents, negative"

    def learn(self, data: LearningData, options: LearningOptions, on_round: OnRound) -> Learned:
        """Grow trees on the ranks of the clicks in cells that have a theta."""
        loss, held_out = BoundedRanks.of(data, self.name, AverageRank())
        grown = grow(binned(data, options), loss, held_out, options, on_round)
        return grown.learned(RAW)


class DiscountedGain(RankMeasure):
    """phi(r) = -1 / log2(1 + r)."""

    def cost(self, rank: Floats) -> Floats:
        """The gain, negative."""
        return -1 / np.log2(1 + rank)

    def slope(self, rank: Floats) -> Floats:
        """1 / ((1 + r) log(2) log2(1 + r)^2)."""
        return 1 / ((1 + rank) * np.log(2) * np.log2(1 + rank) ** 2)


class IPWDiscountedGainLearner(Learner):
    """Boosted trees on the propensity-weighted discounted gain of clicked documents."""

    name = "ipw-dcg"
    reference = "Agarwal et al. 2019"
    about = "the propensity-weighted DCG of clicked documents"
    source = "pages"
    measure = "weighted mean of the bounded discounted gain of clicked documents"

    def learn(self, data: LearningData, options: LearningOptions, on_round: OnRound) -> Learned:
        """Grow trees on the gains of the clicks in cells that have a theta."""
        loss, held_out = BoundedRanks.of(data, self.name, DiscountedGain())
        grown = grow(binned(data, options), loss, held_out, options, on_round)
        return grown.learned(RAW)
