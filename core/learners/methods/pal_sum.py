"""Two towers whose logits are added up, with two ways to keep position from taking up relevance.

    P(click | d, k) = 1 / (1 + exp(-(f(x_d) + o_k))),   score of d = f(x_d) + o_1

Observation dropout hides the position of a row with chance p (o_k = 0, else o_k / (1 - p)): what relevance can say of a
click, it has to say itself. Gradient reversal lets an adversary predict clicks from position, (c - a o_k - b)^2, and
moves o against it, by alpha times its gradient. exp(o_k) of an additive model is no propensity: there is none.

Source: Zhang et al. 2023 (KDD, "Towards Disentangling Relevance and Bias in Unbiased Learning to Rank").
"""

from posbias.core.learners.learner import LearningOptions
from posbias.core.learners.towers import Sum, TowerLearner, Towers


class PALSumLearner(TowerLearner):
    """Two towers whose logits are added up."""

    name = "pal-sum"
    rank = 22
    reference = "Zhang et al. 2023"
    about = "two networks, of relevance and position, whose logits are added up"
    takes = ("epochs", "observation_dropout", "gradient_reversal")

    def towers(self, options: LearningOptions) -> Towers:
        """The sum."""
        return Sum(options.observation_dropout, options.gradient_reversal)
