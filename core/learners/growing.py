"""Learners that grow trees on a loss: a tree a round, until there are enough or held-out documents fare no better."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import Flags
from posbias.core.errors import SchemaError
from posbias.core.learners.boosting import BinnedRows, BoostedTrees, bin_rows
from posbias.core.learners.data import Features, LearningData
from posbias.core.learners.forest import Forest
from posbias.core.learners.learner import Learned, Learner, LearningOptions, Loss, OnRound, Rounds

PROBABILITY = "binary sigmoid:1"
"""What LightGBM calls a model whose scores are logits."""

RAW = "regression"
"""What it calls one whose scores stand for themselves."""

SetsOfRows = tuple[BinnedRows, list[BinnedRows]]
"""Rows to learn from, and those that are set apart, if there are any."""


class TreeLearner(Learner):
    """A learner that grows boosted trees on a loss of its own."""

    objective: ClassVar[str] = PROBABILITY

    @abstractmethod
    def losses(self, data: LearningData) -> tuple[Loss, Loss]:
        """The loss of the documents to learn from, and of those held out."""

    def learn(self, data: LearningData, options: LearningOptions, on_round: OnRound) -> Learned:
        """Grow trees on the loss."""
        return grow(binned(data, options), self.losses(data), options, on_round).learned(self.objective)


@dataclass(frozen=True)
class Grown:
    """Trees that have grown."""

    trees: BoostedTrees
    best: int  # how many of them are kept
    curve: pl.DataFrame

    def learned(self, objective: str) -> Learned:
        """The model of the trees that are kept."""
        model = Forest(self.trees.model_text(self.best, objective))
        return Learned(model, self.curve, importance_of([self.trees], self.best), report={"trees": self.best})


def features_of(data: LearningData, of_numbers: str | None = None) -> Features:
    """The features of the documents, which not all logs have.

    Args:
        data: the log.
        of_numbers: the learner that takes no text, if it is one of these.

    Raises:
        SchemaError: it is, and a feature is text.
    """
    features = data.features
    if features is None:
        raise ValueError("this learner needs features")
    if of_numbers and features.categorical:
        raise SchemaError(
            f"--learner {of_numbers}: learns from numbers, and the feature {features.names[features.categorical[0]]!r} "
            "is text. Leave it out, or make columns of 0 and 1 of it."
        )
    return features


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
    losses: tuple[Loss, Loss],
    options: LearningOptions,
    on_round: OnRound,
    *,
    after_tree: Callable[[BoostedTrees], None] = lambda _: None,
    objective: Mapping[str, Any] | None = None,
) -> Grown:
    """Grow trees on a loss.

    Args:
        rows: features to learn from, and those apart.
        losses: of the documents to learn from, and of those apart.
        options: how many trees, and when to stop.
        on_round: is called after each.
        after_tree: is shown the trees after each, for losses that have something of their own to update.
        objective: one of LightGBM's own, for rows that have its labels; then the losses only say how well trees fit.
    """
    (loss, held_out), (learn_from, apart) = losses, rows
    trees, rounds, is_split = (
        BoostedTrees(learn_from, loss.start(), apart, objective),
        Rounds(options.early_stopping),
        True,
    )
    while trees.n_trees < options.trees.trees and is_split and not rounds.over:
        is_split = trees.grow(None if objective else loss.gradients)
        after_tree(trees)
        value = held_out.per_impression(trees.scores_apart()[0]) if apart else None
        rounds.add(trees.n_trees, loss.per_impression(trees.scores()), value)
        on_round()
    return Grown(trees, rounds.best, rounds.curve)


def importance_of(forests: Sequence[BoostedTrees], trees: int | None = None) -> pl.DataFrame:
    """`feature` (its number), `gain` and `splits`, of the first trees of each."""
    gain, splits = (
        np.sum(found, axis=0) for found in zip(*(forest.gain_and_splits(trees) for forest in forests), strict=True)
    )
    return pl.DataFrame({"feature": range(len(gain)), "gain": gain, "splits": splits})
