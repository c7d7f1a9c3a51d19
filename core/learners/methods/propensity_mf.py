"""Matrix factorisation with propensities: the squared error, clicks weighted by 1 / theta (`squared_error`).

Weights make the variance of clicks greater by about the mean of 1 / theta over impressions, so that the penalties to
choose from are greater by that.

Sources: Schnabel, Swaminathan, Singh, Chandak & Joachims 2016; Saito et al. 2020 (for clicks).
"""

from dataclasses import replace

from posbias.core.learners.data import LearningData
from posbias.core.learners.factorizing import OF_FACTORS, factorize
from posbias.core.learners.learner import Learned, Learner, LearningOptions, OnRound
from posbias.core.learners.squared_error import SquaredError


class PropensityMFLearner(Learner):
    """Matrix factorisation of clicks over theta."""

    name = "propensity-mf"
    rank = 32
    reference = "Schnabel et al. 2016"
    about = "factors of queries and documents, on click rates weighted by 1 / theta"
    needs_features = False
    takes = OF_FACTORS
    measure = "minus the squared error per impression"

    def learn(self, data: LearningData, options: LearningOptions, on_round: OnRound) -> Learned:
        """Find factors on the clicks of the cells that have a theta."""
        counts, theta = data.counts.only_cells(data.known), data.theta
        scale = float((counts.impressions / theta[counts.cell]).sum() / max(counts.impressions.sum(), 1.0))
        known = replace(data, counts=counts)
        return factorize(known, lambda counts: SquaredError(counts, theta), options, on_round, scale)
