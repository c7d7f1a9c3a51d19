"""Rounds of boosting with a loss: a tree a round, the learning curve, and when to stop."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import Flags, Floats
from posbias.core.learners.boosting import BinnedRows, BoostedTrees, bin_rows
from posbias.core.learners.data import Features, LearningData
from posbias.core.learners.forest import Forest
from posbias.core.learners.learner import ROUND, TRAINING, VALIDATION, Learned, LearningOptions, OnRound
from posbias.core.learners.models import TreeModel

PROBABILITY = "binary sigmoid:1"
"""What LightGBM calls a model whose scores are logits."""

RAW = "regression"
"""What it calls one whose scores stand for themselves."""


class Fitness(Protocol):
    """How well scores of some documents fit their clicks."""

    def per_impression(self, scores: Floats) -> float:
        """What is learnt by, the larger the better."""
        ...


class Loss(Fitness, Protocol):
    """A loss of the scores of some documents, which falls as the scores get better."""

    def start(self) -> float:
        """The score to start with."""
        ...

    def gradients(self, scores: Floats) -> tuple[Floats, Floats]:
        """The gradient and the Hessian of the loss by each score, shapes (n,)."""
        ...


class Rounds:
    """The learning curve, which round was the best, and when to stop.

    Attributes:
        best: the number of the round that is kept: the best one where learning may stop early, else the last.
        over: whether held-out queries have fared no better for as many rounds as it takes to stop.
    """

    def __init__(self, patience: int | None) -> None:
        """Begin without a round.

        Args:
            patience: after how many rounds without a better one to stop; None: never.
        """
        self._patience = patience
        self._found: list[tuple[int, float, float | None]] = []
        self._best_value = float("-inf")
        self._without = 0
        self.best = 0

    def add(self, number: int, training: float, validation: float | None) -> None:
        """Take note of a round: its number, ascending, and how well it fits."""
        self._found.append((number, training, validation))
        if self._patience is None or validation is None or validation > self._best_value:
            self.best, self._without = number, 0
            self._best_value = self._best_value if validation is None else validation
        else:
            self._without += 1

    @property
    def over(self) -> bool:  # noqa: D102 - in the docstring of the class
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


@dataclass(frozen=True)
class Grown:
    """Trees that have grown.

    Attributes:
        trees: them.
        best: how many of them are kept.
        curve: the learning curve.
    """

    trees: BoostedTrees
    best: int
    curve: pl.DataFrame

    def learned(self, objective: str, **more: object) -> Learned:
        """The model of the trees that are kept."""
        model = TreeModel(Forest(self.trees.model_text(self.best, objective)))
        return Learned(model, self.curve, self.importance, report={"trees": self.best, **more})

    @property
    def importance(self) -> pl.DataFrame:
        """`feature`, `gain` and `splits` of the trees that are kept."""
        return importance_of([self.trees], self.best)


SetsOfRows = tuple[BinnedRows, list[BinnedRows]]
"""Rows to learn from, and those that are set apart, if there are any."""


def features_of(data: LearningData) -> Features:
    """The features of the documents, which not all logs have."""
    if data.features is None:
        raise ValueError("this learner needs features")
    return data.features


def binned(data: LearningData, options: LearningOptions) -> SetsOfRows:
    """The features of the documents to learn from, and of those that are set apart, if there are any."""
    features = features_of(data)
    return split_rows(bin_rows(features.rows, features.names, features.categorical, options.trees), data.held_out)


def split_rows(rows: BinnedRows, held_out: Flags) -> SetsOfRows:
    """Rows in two, by whether they are held out, shape (n,)."""
    if not held_out.any():
        return rows, []
    return rows.subset(np.flatnonzero(~held_out)), [rows.subset(np.flatnonzero(held_out))]


def grow(
    rows: SetsOfRows,
    loss: Loss,
    held_out: Loss | None,
    options: LearningOptions,
    on_round: OnRound,
    after_tree: Callable[[BoostedTrees], None] | None = None,
) -> Grown:
    """Grow trees on a loss until there are enough, or until held-out documents fare no better.

    Args:
        rows: features to learn from, and those apart, as from `binned`.
        loss: of the documents to learn from.
        held_out: of those apart, if there are any.
        options: how many trees, and when to stop.
        on_round: is called after each.
        after_tree: is shown the trees after each, for losses that have something of their own to update.
    """
    learn_from, apart = rows
    trees = BoostedTrees(learn_from, loss.start(), apart)

    def one_more() -> bool:
        is_split = trees.grow(loss.gradients)
        if after_tree is not None:
            after_tree(trees)
        return is_split

    return grow_by(one_more, trees, loss, held_out, options, on_round)


def grow_by(
    one_more: Callable[[], bool],
    trees: BoostedTrees,
    fitness: Fitness,
    held_out: Fitness | None,
    options: LearningOptions,
    on_round: OnRound,
) -> Grown:
    """Grow trees by a step that adds one, and returns whether that splits the rows, as `grow` does."""
    rounds = Rounds(options.early_stopping)
    is_split = True
    while trees.n_trees < options.trees.trees and is_split and not rounds.over:
        is_split = one_more()
        value = None if held_out is None else held_out.per_impression(trees.scores_apart()[0])
        rounds.add(trees.n_trees, fitness.per_impression(trees.scores()), value)
        on_round()
    return Grown(trees, rounds.best, rounds.curve)


def importance_of(forests: Sequence[BoostedTrees], trees: int | None = None) -> pl.DataFrame:
    """`feature` (its number), `gain` and `splits`, of the first trees of each."""
    found = [forest.gain_and_splits(trees) for forest in forests]
    gain = np.sum([gains for gains, _ in found], axis=0)
    splits = np.sum([numbers for _, numbers in found], axis=0)
    return pl.DataFrame({"feature": range(len(gain)), "gain": gain, "splits": splits})
