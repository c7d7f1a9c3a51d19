"""Matrix factorisation with propensities: the squared error, clicks weighted by 1 / theta (`squared_error`).

Sources: Schnabel, Swaminathan, Singh, Chandak & Joachims 2016; Saito et al. 2020 (for clicks).
"""

from posbias.core.choices import WEIGHTED_PENALTY
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
        counts = data.counts.only_cells(data.known)
        loss, held_out = (SquaredError(counts.take(documents), data.theta) for documents in (data.learnt, data.apart))
        return factorize(data, loss, held_out if len(data.apart) else None, options, on_round, WEIGHTED_PENALTY)
