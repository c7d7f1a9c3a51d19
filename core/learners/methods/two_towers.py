"""Networks: of relevance alone, or of relevance and of position, which learn together from the likelihood of clicks.

    single-tower    P(click | d) = 1 / (1 + exp(-f(x_d)))
    pal-product     P(click | d, k) = gamma_d theta_k,  gamma_d = 1 / (1 + exp(-f(x_d))),  theta_k = 1 / (1 + exp(-o_k))
    pal-sum         P(click | d, k) = 1 / (1 + exp(-(f(x_d) + o_k))),   score of d = f(x_d) + o_1

f is a network, o_k a number for each position; f alone scores. What a good ranker made the log with can be read as
relevance or as position, and nothing here tells them apart; the sum has two ways to keep position from taking up
relevance. Observation dropout hides the position of a row with chance p (o_k = 0, else o_k / (1 - p)): what relevance
can say of a click, it has to say itself. Gradient reversal lets an adversary predict clicks from position, (c - a o_k
- b)^2, and moves o against it, by alpha times its gradient. exp(o_k) of an additive model is no propensity: there is
none.

Sources: Guo et al. 2019 (PAL, the product); Zhang et al. 2023 (KDD, "Towards Disentangling Relevance and Bias in
Unbiased Learning to Rank": the sum, and the naive baseline).
"""

from posbias.core.learners.learner import LearningOptions
from posbias.core.learners.towers import Product, Single, Sum, TowerLearner, Towers


class SingleTowerLearner(TowerLearner):
    """A network of click rates as they stand."""

    name = "single-tower"
    reference = "Zhang et al. 2023"
    about = "a network of click rates as they stand"

    def towers(self, options: LearningOptions) -> Towers:  # noqa: ARG002 - it has none
        """Relevance alone."""
        return Single()


class PALProductLearner(TowerLearner):
    """Two towers whose probabilities are multiplied."""

    name = "pal-product"
    reference = "Guo et al. 2019"
    about = "two networks, of relevance and position, whose probabilities are multiplied"
    first_position = 2.0

    def towers(self, options: LearningOptions) -> Towers:  # noqa: ARG002 - it has no options
        """The product."""
        return Product()


class PALSumLearner(TowerLearner):
    """Two towers whose logits are added up."""

    name = "pal-sum"
    reference = "Zhang et al. 2023"
    about = "two networks, of relevance and position, whose logits are added up"
    takes = ("epochs", "observation_dropout", "gradient_reversal")

    def towers(self, options: LearningOptions) -> Towers:
        """The sum."""
        return Sum(options.observation_dropout, options.gradient_reversal)
