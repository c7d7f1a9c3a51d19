"""The options of learners: which, from what, how long, and what only some of them know."""

from dataclasses import dataclass
from math import inf
from typing import Annotated

from posbias.cli.options.option import option
from posbias.cli.options.shared import Feature, Features, MissingFeatures, Propensity, Validation
from posbias.core.errors import UsageError
from posbias.core.learners.boosting import TreeOptions
from posbias.core.learners.click_rate_pairs import MultipleTests
from posbias.core.learners.factorizing import USUAL_PENALTY, WEIGHTED_PENALTY
from posbias.core.learners.learner import LearningOptions as CoreOptions
from posbias.core.learners.methods import learner_names

_LEARNING = "Learning"


@dataclass(frozen=True)
class LearningOptions:
    """What is learnt, and how."""

    learner: Annotated[
        str,
        option(
            "--learner",
            "pbm: the likelihood of the position-based model, the propensities given. "
            f"For comparison: {', '.join(learner_names()[1:])}.",
            _LEARNING,
            metavar="NAME",
        ),
    ] = "pbm"
    features: Features = None
    feature: Feature = None
    missing: MissingFeatures = "error"
    propensity: Propensity = "smooth"
    validation: Validation = 0.0
    early_stopping: Annotated[
        int | None,
        option(
            "--early-stopping",
            "Stop once held-out queries have fared no better for N rounds, and keep the best.",
            _LEARNING,
            min=1,
            metavar="N",
        ),
    ] = None
    trees: Annotated[int, option("--trees", "Number of trees.", _LEARNING, min=1, max=100_000, metavar="N")] = 100
    learning_rate: Annotated[float, option("--learning-rate", "Shrinkage of each tree.", _LEARNING, metavar="X")] = 0.1
    leaves: Annotated[int, option("--leaves", "Leaves of a tree.", _LEARNING, min=2, max=4096, metavar="N")] = 15
    leaf_documents: Annotated[
        int, option("--leaf-documents", "Fewest documents of a leaf.", _LEARNING, min=1, metavar="N")
    ] = 10
    seed: Annotated[int, option("--seed", "Random seed.", _LEARNING, min=0, metavar="N")] = 0
    no_position_feature: Annotated[
        bool, option("--no-position-feature", "Logistic regression without the position as a feature.", _LEARNING)
    ] = False
    raw_rates: Annotated[
        bool, option("--raw-rates", "Compare click rates without correcting them for position.", _LEARNING)
    ] = False
    significance: Annotated[
        float,
        option("--significance", "Level at which click rates of two documents differ.", _LEARNING, metavar="X"),
    ] = 0.05
    multiple_tests: Annotated[
        MultipleTests,
        option(
            "--multiple-tests",
            "What the level is about: each pair, any pair (bonferroni), or the share of false ones (fdr).",
            _LEARNING,
        ),
    ] = "none"
    factors: Annotated[
        int, option("--factors", "Factors of queries and documents.", _LEARNING, min=1, max=1000, metavar="N")
    ] = 4
    regularization: Annotated[
        float | None,
        option(
            "--regularization",
            f"Penalty on the squares of factors and biases: {USUAL_PENALTY:g} unless said, {WEIGHTED_PENALTY:g} for "
            "propensity-mf.",
            _LEARNING,
            metavar="X",
        ),
    ] = None
    steps: Annotated[
        int, option("--steps", "Most steps of a learner of factors.", _LEARNING, min=1, max=100_000, metavar="N")
    ] = 300
    tie: Annotated[
        float,
        option(
            "--tie",
            "Penalty on squared differences between factors of rows placed at random and those of other rows.",
            _LEARNING,
            metavar="X",
        ),
    ] = 20.0
    epochs: Annotated[
        int, option("--epochs", "Most passes of a network over the log.", _LEARNING, min=1, max=100_000, metavar="N")
    ] = 60
    observation_dropout: Annotated[
        float,
        option("--observation-dropout", "Chance with which the position is hidden.", _LEARNING, metavar="X"),
    ] = 0.0
    gradient_reversal: Annotated[
        float,
        option(
            "--gradient-reversal",
            "Strength of the reversed gradient that keeps position from predicting clicks.",
            _LEARNING,
            metavar="X",
        ),
    ] = 0.0

    def asked(self) -> CoreOptions:
        """The options as a learner takes them.

        Raises:
            UsageError: a value is out of range, or options do not go together.
        """
        if not 0 < self.learning_rate <= 1:
            raise UsageError(f"--learning-rate {self.learning_rate:g}: must be above 0 and at most 1.")
        if not 0 <= self.validation < 1:
            raise UsageError(f"--validation {self.validation:g}: must be at least 0 and below 1, e.g. 0.1.")
        if self.early_stopping is not None and not self.validation:
            raise UsageError("--early-stopping needs held-out queries: say, --validation 0.1.")
        if not 0 < self.significance < 1:
            raise UsageError(f"--significance {self.significance:g}: must be above 0 and below 1, e.g. 0.05.")
        if not 0 <= self.observation_dropout < 1:
            raise UsageError(f"--observation-dropout {self.observation_dropout:g}: must be at least 0 and below 1.")
        if not 0 <= self.gradient_reversal < inf:
            raise UsageError(f"--gradient-reversal {self.gradient_reversal:g}: must be at least 0, e.g. 0.1.")
        if self.regularization is not None and not 0 <= self.regularization < inf:
            raise UsageError(f"--regularization {self.regularization:g}: must be at least 0, and finite.")
        if not 0 <= self.tie < inf:
            raise UsageError(f"--tie {self.tie:g}: must be at least 0, and finite.")
        trees = TreeOptions(
            trees=self.trees,
            rate=self.learning_rate,
            leaves=self.leaves,
            leaf_rows=self.leaf_documents,
            seed=self.seed,
        )
        return CoreOptions(
            trees=trees,
            early_stopping=self.early_stopping,
            position_as_feature=not self.no_position_feature,
            significance=self.significance,
            corrected=not self.raw_rates,
            multiple_tests=self.multiple_tests,
            epochs=self.epochs,
            observation_dropout=self.observation_dropout,
            gradient_reversal=self.gradient_reversal,
            factors=self.factors,
            regularization=self.regularization,
            steps=self.steps,
            tie=self.tie,
            seed=self.seed,
        )
