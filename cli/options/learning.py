"""The options of learners: which, from what, how long, and what only some of them know."""

from dataclasses import dataclass
from typing import Annotated

from posbias.cli.options.option import option
from posbias.cli.options.shared import Feature, Features, MissingFeatures, Propensity, Validation
from posbias.core.choices import MultipleTests, TieDistance, Vectors

_LEARNING = "Learning"


@dataclass(frozen=True)
class LearningOptions:
    """What is learnt, and how."""

    learner: Annotated[
        str,
        option(
            "--learner",
            "pbm: the likelihood of the position-based model, the propensities given. "
            "For comparison: {other_learners}.",
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
    tau: Annotated[float, option("--tau", "How far apart the scores of a pair are to be.", _LEARNING, metavar="X")] = (
        1.0
    )
    margin_penalty: Annotated[
        float,
        option(
            "--margin-penalty",
            "Weight of -tau^2 in the objective, below 0.5: tau is then chosen after every fit. 0: it stays.",
            _LEARNING,
            metavar="LAMBDA",
        ),
    ] = 0.0
    negative_share: Annotated[
        float,
        option(
            "--negative-share",
            "Learn from so many of the documents without a click, each counted 1 / share times.",
            _LEARNING,
            metavar="X",
        ),
    ] = 1.0
    factors: Annotated[
        int, option("--factors", "Factors of queries and documents.", _LEARNING, min=1, max=1000, metavar="N")
    ] = 4
    regularization: Annotated[
        float | None,
        option(
            "--regularization",
            "Penalty on the squares of factors and biases; without it, the best of some for impressions set apart.",
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
            "Penalty on differences between factors of rows placed at random and those of other rows.",
            _LEARNING,
            metavar="X",
        ),
    ] = 20.0
    tie_distance: Annotated[
        TieDistance,
        option(
            "--tie-distance", "Penalise half the squares of these differences, or their absolute values.", _LEARNING
        ),
    ] = "squared"
    vectors: Annotated[
        Vectors,
        option("--vectors", "Rank by the factors of rows placed at random, or by those of other rows.", _LEARNING),
    ] = "treatment"
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
