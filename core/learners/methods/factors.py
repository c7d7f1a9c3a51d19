"""Factors of queries and documents on the likelihood of the position-based model, theta given.

    P(click | q, d, e) = theta_e / (1 + exp(-f)),   f = m + b_q + b_d + u_q . v_d

The gradient by f is that of `likelihood`.

Sources: Wang et al. 2018 (the likelihood); Koren, Bell & Volinsky 2009 (the factors).
"""

from dataclasses import replace

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
        known, theta = replace(data, counts=data.counts.only_cells(data.known)), data.theta
        return factorize(known, lambda counts: ClickLikelihood(counts, theta), options, on_round)
