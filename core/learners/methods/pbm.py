"""The default: trees on the likelihood of the position-based model, theta given.

It counts every impression once, so that no weight has to be clipped, and gives attractiveness itself, on the
probability scale. The equations are those of `likelihood`.

Source: Wang, Golbandi, Bendersky, Metzler & Najork 2018 (the M-step of regression EM, here with theta given).
"""

from posbias.core.learners.data import LearningData
from posbias.core.learners.growing import PROBABILITY, binned, grow
from posbias.core.learners.learner import OF_TREES, Learned, Learner, LearningOptions, OnRound
from posbias.core.learners.likelihood import ClickLikelihood


class PBMLearner(Learner):
    """Boosted trees on the likelihood of clicks, theta given."""

    name = "pbm"
    reference = "Wang et al. 2018"
    about = "the likelihood of the position-based model, theta given"
    is_probability = True
    takes = (*OF_TREES, "negative_share")

    def learn(self, data: LearningData, options: LearningOptions, on_round: OnRound) -> Learned:
        """Grow trees on the clicks of the cells that have a theta."""
        counts = data.counts.only_cells(data.known)
        loss, held_out = (
            ClickLikelihood(counts.take(documents), data.theta) for documents in (data.learnt, data.apart)
        )
        grown = grow(binned(data, options), loss, held_out if len(data.apart) else None, options, on_round)
        return grown.learned(PROBABILITY)
