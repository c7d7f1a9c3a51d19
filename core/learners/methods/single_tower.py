"""A network for relevance, and none for position: what the two towers are compared with.

    P(click | d) = 1 / (1 + exp(-f(x_d)))

Source: Zhang et al. 2023 (KDD), the naive baseline.
"""

from posbias.core.learners.learner import LearningOptions
from posbias.core.learners.towers import Single, TowerLearner, Towers


class SingleTowerLearner(TowerLearner):
    """A network of click rates as they stand."""

    name = "single-tower"
    rank = 20
    reference = "Zhang et al. 2023"
    about = "a network of click rates as they stand"

    def towers(self, options: LearningOptions) -> Towers:  # noqa: ARG002 - it has none
        """Relevance alone."""
        return Single()
