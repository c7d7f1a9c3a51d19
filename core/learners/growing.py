"""Rounds of boosting with a loss: a tree a round, the learning curve, and when to stop."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import polars as pl

from posbias.core.arrays.count_table import Floats
from posbias.core.learners.boosting import BinnedRows, BoostedTrees, Forest, bin_rows
from posbias.core.learners.data import LearningData
from posbias.core.learners.learner import ROUND, TRAINING, VALIDATION, Learned, LearningOptions, OnRound
from posbias.core.learners.models import TreeModel

PROBABILITY = "binary sigmoid:1"
"""What LightGBM calls a model whose scores are logits."""

RAW = "regression"
"""What it calls one whose scores stand for themselves."""


class Loss(Protocol):
    """A loss of the scores of some documents, which falls as the scores get better."""

    def start(self) -> float:
        """The score to start with."""
        ...

    def gradients(self, scores: Floats) -> tuple[Floats, Floats]:
        """The gradient and the Hessian of the loss by each score, shapes (n,)."""
        ...

    def per_impression(self, scores: Floats) -> float:
        """What is learnt by, the larger the better."""
        ...


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
        gain, splits = self.trees.gain_and_splits(self.best)
        importance = pl.DataFrame({"feature": range(len(gain)), "gain": gain, "splits": splits})
        model = TreeModel(Forest(self.trees.model_text(self.best, objective)))
        return Learned(model, self.curve, importance, report={"trees": self.best, **more})


def binned(data: LearningData, options: LearningOptions) -> tuple[BinnedRows, list[BinnedRows]]:
    """The features of the documents to learn from, and of those that are set apart, if there are any."""
    features = data.features
    if features is None:
        raise ValueError("this learner needs features")
    rows = bin_rows(features.rows, features.names, features.categorical, options.trees)
    apart = data.apart
    if not len(apart):
        return rows, []
    return rows.subset(data.learnt), [rows.subset(apart)]


def grow(
    rows: tuple[BinnedRows, list[BinnedRows]],
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
    found: list[tuple[int, float, float | None]] = []
    best, best_value = 0, float("-inf")
    patience = options.early_stopping
    while trees.n_trees < options.trees.trees:
        split = trees.grow(loss.gradients)
        if after_tree is not None:
            after_tree(trees)
        value = None if held_out is None else held_out.per_impression(trees.scores_apart()[0])
        found.append((trees.n_trees, loss.per_impression(trees.scores()), value))
        on_round()
        if value is None or patience is None or value > best_value:
            best, best_value = trees.n_trees, best_value if value is None else value
        if not split or (patience is not None and trees.n_trees - best >= patience):
            break
    return Grown(trees, best, _curve(found))


def _curve(found: list[tuple[int, float, float | None]]) -> pl.DataFrame:
    schema = {ROUND: pl.Int32, TRAINING: pl.Float64, VALIDATION: pl.Float64}
    return pl.DataFrame(found, schema=schema, orient="row")
