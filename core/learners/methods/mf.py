"""Matrix factorisation of click rates: the squared error, each pair as often as it was shown, no theta.

Source: Koren, Bell & Volinsky 2009.
"""

import numpy as np

from posbias.core.learners.data import LearningData
from posbias.core.learners.factorizing import OF_FACTORS, factorize
from posbias.core.learners.learner import Learned, Learner, LearningOptions, OnRound
from posbias.core.learners.squared_error import SquaredError


class MFLearner(Learner):
    """Matrix factorisation of clicks as they are."""

    name = "mf"
    rank = 31
    reference = "Koren et al. 2009"
    about = "factors of queries and documents, on click rates"
    needs_features = False
    takes = OF_FACTORS
    uses_propensities = False
    measure = "minus the squared error per impression"

    def learn(self, data: LearningData, options: LearningOptions, on_round: OnRound) -> Learned:
        """Find factors on all clicks."""
        theta = np.ones(len(data.position))
        return factorize(data, lambda counts: SquaredError(counts, theta), options, on_round)
