"""Click rates as they stand: trees on the likelihood of clicks as if everything had been examined.

    P(click | d) = gamma_d

What position bias does to a ranker shows in the difference between this one and `pbm`.

Source: Joachims 2002 (clicks as labels); Friedman 2001 (boosted logistic regression).
"""

import numpy as np

from posbias.core.learners.data import LearningData
from posbias.core.learners.growing import PROBABILITY, binned, grow
from posbias.core.learners.learner import OF_TREES, Learned, Learner, LearningOptions, OnRound
from posbias.core.learners.likelihood import ClickLikelihood


class NaiveLearner(Learner):
    """Boosted trees on click rates, whatever the position."""

    name = "naive"
    reference = "Friedman 2001"
    about = "click rates as they stand"
    uses_propensities = False
    is_probability = True
    takes = (*OF_TREES, "negative_share")

    def learn(self, data: LearningData, options: LearningOptions, on_round: OnRound) -> Learned:
        """Grow trees on all clicks, theta being 1."""
        everywhere = np.ones(data.counts.n_cells)
        loss, held_out = (
            ClickLikelihood(data.counts.take(documents), everywhere) for documents in (data.learnt, data.apart)
        )
        grown = grow(binned(data, options), loss, held_out if len(data.apart) else None, options, on_round)
        return grown.learned(PROBABILITY)
