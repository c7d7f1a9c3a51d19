"""What a learner says of itself, what it is asked, and what it gives back."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import polars as pl

from posbias.core.arrays.count_table import Floats
from posbias.core.choices import MultipleTests, TieDistance, Vectors
from posbias.core.learners.boosting import TreeOptions
from posbias.core.learners.data import LearningData
from posbias.core.learners.models import FactorModel, RowModel
from posbias.core.registry import Plugin

Source = Literal["counts", "pages"]
OnRound = Callable[[], None]

OF_TREES = ("trees", "learning_rate", "leaves", "leaf_documents")
"""The options of learners that grow trees."""

ROUND, TRAINING, VALIDATION = "round", "training", "validation"
"""The columns of a learning curve."""


@dataclass(frozen=True)
class LearningOptions:
    """What is asked of a learner.

    Attributes:
        trees: how trees are grown.
        early_stopping: stop after so many rounds in which held-out queries became no more likely; None: never.
        observation_dropout: the chance with which a network does not see the position.
        gradient_reversal: the strength of the reversed gradient; 0 for none.
        position_as_feature: whether a logistic regression sees the position.
        significance: the level at which click rates differ, of `gbrank`.
        corrected: whether its click rates are corrected for position.
        multiple_tests: how its level allows for many pairs.
        tau: how far apart it wants the scores of a pair.
        margin_penalty: lambda, in [0, 1/2), of the term -lambda tau^2 by which it chooses tau; 0: tau stays.
        factors: number of factors of queries and documents.
        epochs: the most passes of a network over the data.
        regularization: what the squares of factors and biases are penalised by, half of it; None: as impressions apart
            say.
        steps: the most steps of a learner of factors.
        tie: what differences between the factors of two tasks are penalised by.
        tie_distance: half of their squares, or their absolute values.
        vectors: of which task documents are scored by.
        seed: of what is drawn.
    """

    trees: TreeOptions = field(default_factory=TreeOptions)
    early_stopping: int | None = None
    observation_dropout: float = 0.0
    gradient_reversal: float = 0.0
    position_as_feature: bool = True
    significance: float = 0.05
    corrected: bool = True
    multiple_tests: MultipleTests = "none"
    tau: float = 1.0
    margin_penalty: float = 0.0
    factors: int = 4
    epochs: int = 60
    regularization: float | None = None
    steps: int = 300
    tie: float = 20.0
    tie_distance: TieDistance = "squared"
    vectors: Vectors = "treatment"
    seed: int = 0


@dataclass(frozen=True)
class Learned:
    """What a learner gives back.

    Attributes:
        model: scores documents.
        curve: `round` from 1, `training` and, with validation, `validation`: what is learnt by, per impression unless
            the learner says otherwise, larger is better.
        importance: `feature` (its number), `gain` and `splits`, where the model is trees.
        propensities: theta as the learner itself estimates it, relative to the first cell, shape (K,); None where it
            is given.
        report: what else the manifest says.
        warnings: why it should not be taken at face value.
    """

    model: RowModel | FactorModel
    curve: pl.DataFrame
    importance: pl.DataFrame | None = None
    propensities: Floats | None = None
    report: dict[str, Any] = field(default_factory=dict[str, Any])
    warnings: tuple[str, ...] = ()


class Learner(Plugin):
    """A way to learn a ranker from clicks.

    Attributes:
        reference: the paper that describes it.
        about: what it does, in the help of --learner.
        source: what it learns from: counts by query and document, for which statistics will do, or pages.
        needs_features: whether it learns from features; else from who saw what.
        needs_randomized: whether it needs to know which rows were placed at random.
        uses_propensities: whether it takes theta; else it needs none, or estimates its own.
        does_without: the option under which it takes no theta all the same, if there is one.
        is_probability: whether 1 / (1 + exp(-score)) is an attractiveness.
        measure: what its learning curve shows, the larger the better.
        takes: the options that not all learners know and this one does.
    """

    reference: ClassVar[str]
    about: ClassVar[str]
    source: ClassVar[Source] = "counts"
    needs_features: ClassVar[bool] = True
    needs_randomized: ClassVar[bool] = False
    uses_propensities: ClassVar[bool] = True
    does_without: ClassVar[str | None] = None
    is_probability: ClassVar[bool] = False
    measure: ClassVar[str] = "log-likelihood per impression"
    takes: ClassVar[tuple[str, ...]] = OF_TREES

    @abstractmethod
    def learn(self, data: LearningData, options: LearningOptions, on_round: OnRound) -> Learned:
        """Learn.

        Args:
            data: the log. Only what this learner asks for is there.
            options: what is asked.
            on_round: is called after every tree or pass.

        Raises:
            IdentifiabilityError: the log has nothing to learn from.
            MissingExtraError: LightGBM is not installed.
        """
