"""Factors of queries and documents, on the likelihood of clicks or their squared error; no features.

`factors`, theta given, whose gradient by f is that of `likelihood`:

    P(click | q, d, e) = theta_e / (1 + exp(-f)),   f = m + b_q + b_d + u_q . v_d

`mf`: the squared error of click rates, each pair as often as it was shown, no theta. `propensity-mf`: the squared
error, clicks weighted by 1 / theta (`squared_error`). Weights make the variance of clicks greater by about the mean
of 1 / theta over impressions, so that the penalties to choose from are greater by that.

Sources: Koren, Bell & Volinsky 2009 (the factors); Wang et al. 2018 (the likelihood); Schnabel, Swaminathan, Singh,
Chandak & Joachims 2016 and, for clicks, Saito et al. 2020 (propensities).
"""

from dataclasses import replace

import numpy as np

from posbias.core.learners.data import LearningData
from posbias.core.learners.factorizing import OF_FACTORS, factorize
from posbias.core.learners.learner import Learned, Learner, LearningOptions, OnRound
from posbias.core.learners.likelihood import ClickLikelihood
from posbias.core.learners.squared_error import SquaredError


class FactorsLearner(Learner):
    """Matrix factorisation of attractiveness."""

    name = "factors"
    reference = "Koren et al. 2009"
    about = "factors of queries and documents, on the likelihood of clicks"
    needs_features = False
    takes = OF_FACTORS
    is_probability = True

    def learn(self, data: LearningData, options: LearningOptions, on_round: OnRound) -> Learned:
        """Find factors on the clicks of the cells that have a theta."""
        known, theta = replace(data, counts=data.counts.only_cells(data.known)), data.theta
        return factorize(known, lambda counts: ClickLikelihood(counts, theta), options, on_round)


class MFLearner(Learner):
    """Matrix factorisation of clicks as they are."""

    name = "mf"
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


class PropensityMFLearner(Learner):
    """Matrix factorisation of clicks over theta."""

    name = "propensity-mf"
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
