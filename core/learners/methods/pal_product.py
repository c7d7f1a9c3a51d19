"""Position-bias aware learning: the chance that a document is seen, times the chance that it is clicked if seen.

    P(click | d, k) = gamma_d theta_k,   gamma_d = 1 / (1 + exp(-f(x_d))),   theta_k = 1 / (1 + exp(-o_k))

f is a network, o_k a number for each position; both learn together from the likelihood of clicks, and f alone scores.
What a good ranker made the log with can be read as relevance or as position, and nothing here tells them apart.

Source: Guo et al. 2019 (PAL).
"""

from posbias.core.learners.learner import LearningOptions
from posbias.core.learners.towers import Product, TowerLearner, Towers


class PALProductLearner(TowerLearner):
    """Two towers whose probabilities are multiplied."""

    name = "pal-product"
    rank = 21
    reference = "Guo et al. 2019"
    about = "two networks, of relevance and position, whose probabilities are multiplied"
    first_position = 2.0

    def towers(self, options: LearningOptions) -> Towers:  # noqa: ARG002 - it has no options
        """The product."""
        return Product()
