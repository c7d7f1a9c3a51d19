"""What a learner says of itself, what it takes, and what it gives back."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import CountTable, Floats
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

RATES = (1e-4, 0.9)
"""What the click rate that learning starts with is kept within."""


@dataclass(frozen=True)
class LearningOptions:
    """How to learn."""

    trees: TreeOptions = field(default_factory=TreeOptions)
    early_stopping: int | None = None  # after so many rounds in which held-out queries became no more likely
    observation_dropout: float = 0.0  # the chance with which a network does not see the position
    gradient_reversal: float = 0.0  # the strength of the reversed gradient
    position_as_feature: bool = True  # of a logistic regression
    significance: float = 0.05  # the level at which click rates differ, of `gbrank`
    corrected: bool = True  # its click rates, for position
    multiple_tests: MultipleTests = "none"  # how its level allows for many pairs
    tau: float = 1.0  # how far apart it wants the scores of a pair
    margin_penalty: float = 0.0  # lambda, in [0, 1/2), of the term -lambda tau^2 by which it chooses tau; 0: tau stays
    factors: int = 4  # of queries and documents
    epochs: int = 60  # passes of a network over the data, at most
    regularization: float | None = None  # half of it penalises squares of factors; None: as impressions apart say
    steps: int = 300  # of a learner of factors, at most
    tie: float = 20.0  # what differences between the factors of two tasks are penalised by
    tie_distance: TieDistance = "squared"  # half of their squares, or their absolute values
    vectors: Vectors = "treatment"  # of which task documents are scored by
    seed: int = 0


@dataclass(frozen=True)
class Learned:
    """What a learner gives back."""

    model: RowModel | FactorModel  # scores documents
    # `round` from 1, `training` and, with validation, `validation`: what is learnt by, per impression unless the
    # learner says otherwise, larger is better
    curve: pl.DataFrame
    importance: pl.DataFrame | None = None  # `feature` (its number), `gain` and `splits`, where the model is trees
    # theta as the learner itself estimates it, relative to the first cell, shape (K,); None where it is given
    propensities: Floats | None = None
    report: dict[str, Any] = field(default_factory=dict[str, Any])  # what else the manifest says
    warnings: tuple[str, ...] = ()  # why it should not be taken at face value


class Loss(Protocol):
    """A loss of the scores of some documents, which falls as the scores get better."""

    def start(self) -> float:
        """The score to start with."""
        ...

    def gradients(self, scores: Floats) -> tuple[Floats, Floats]:
        """The gradient and the Hessian of the loss by each score, shapes (n,)."""
        ...

    def per_impression(self, scores: Floats) -> float:
        """What the learning curve shows, the larger the better."""
        ...


class Rounds:
    """The learning curve, which round was the best, and when to stop."""

    def __init__(self, patience: int | None) -> None:
        """Begin without a round.

        Args:
            patience: after how many rounds without a better one to stop; None: never.
        """
        self._patience = patience
        self._found: list[tuple[int, float, float | None]] = []
        self._best_value = float("-inf")
        self._without = 0
        self.best = 0  # the number of the round that is kept: the best where learning may stop early, else the last

    def add(self, number: int, training: float, validation: float | None) -> None:
        """Take note of a round: its number, ascending, and how well it fits."""
        self._found.append((number, training, validation))
        if self._patience is None or validation is None or validation > self._best_value:
            self.best, self._without = number, 0
            self._best_value = self._best_value if validation is None else validation
        else:
            self._without += 1

    @property
    def over(self) -> bool:
        """Whether held-out queries have fared no better for as many rounds as it takes to stop."""
        return self._patience is not None and self._without >= self._patience

    @property
    def last(self) -> int:
        """The number of the last round, 0 before the first."""
        return self._found[-1][0] if self._found else 0

    @property
    def curve(self) -> pl.DataFrame:
        """`round`, `training`, `validation`."""
        schema = {ROUND: pl.Int32, TRAINING: pl.Float64, VALIDATION: pl.Float64}
        return pl.DataFrame(self._found, schema=schema, orient="row")


class Learner(Plugin):
    """A way to learn a ranker from clicks."""

    reference: ClassVar[str]  # the paper that describes it
    about: ClassVar[str]  # what it does, in the help of --learner
    source: ClassVar[Source] = "counts"  # by query and document, for which statistics will do, or pages
    needs_features: ClassVar[bool] = True  # else it learns from who saw what
    needs_randomized: ClassVar[bool] = False  # to know which rows were placed at random
    uses_propensities: ClassVar[bool] = True  # else it needs none, or estimates its own
    does_without: ClassVar[str | None] = None  # the option under which it takes no theta all the same
    is_probability: ClassVar[bool] = False  # 1 / (1 + exp(-score)) is an attractiveness
    measure: ClassVar[str] = "log-likelihood per impression"  # what its learning curve shows, the larger the better
    takes: ClassVar[tuple[str, ...]] = OF_TREES  # the options that not all learners know and this one does

    @abstractmethod
    def learn(self, data: LearningData, options: LearningOptions, on_round: OnRound) -> Learned:
        """Learn.

        Args:
            data: the log. Only what this learner needs is there.
            options: how to.
            on_round: is called after every tree or pass.

        Raises:
            IdentifiabilityError: the log has nothing to learn from.
            MissingExtraError: LightGBM is not installed.
        """

    def examined(self, data: LearningData) -> tuple[CountTable, Floats]:
        """The counts to learn from, and theta, shape (K,): of cells that have one, or of all and 1 if it takes none."""
        if self.uses_propensities:
            return data.counts.only_cells(data.known), data.theta
        return data.counts, np.ones(data.counts.n_cells)
