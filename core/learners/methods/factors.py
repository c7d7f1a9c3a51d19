"""Factors of queries and documents on the likelihood of the position-based model, theta given.

    P(click | q, d, e) = theta_e / (1 + exp(-f)),   f = m + b_q + b_d + u_q . v_d

The gradient by f is that of `likelihood`.

Sources: Wang et al. 2018 (the likelihood); Koren, Bell & Volinsky 2009 (the factors).
"""

from posbias.core.learners.data import LearningData
from posbias.core.learners.factorizing import OF_FACTORS, factorize
from posbias.core.learners.learner import Learned, Learner, LearningOptions, OnRound
from posbias.core.learners.likelihood import ClickLikelihood


class FactorsLearner(Learner):
    """Matrix factorisation of attractiveness."""

    name = "factors"
    rank = 30
    reference = "Koren et al. 2009"
    about = "factors of queries and documents, on the likelihood of clicks"
    needs_features = False
    takes = OF_FACTORS
    is_probability = True

    def learn(self, data: LearningData, options: LearningOptions, on_round: OnRound) -> Learned:
        """Find factors on the clicks of the cells that have a theta."""
        counts = data.counts.only_cells(data.known)
        loss, held_out = (
            ClickLikelihood(counts.take(documents), data.theta) for documents in (data.learnt, data.apart)
        )
        return factorize(data, loss, held_out if len(data.apart) else None, options, on_round)
