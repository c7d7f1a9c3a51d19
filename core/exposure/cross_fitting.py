"""Boosted trees by fold: each row is scored by the trees that have not seen its page (Chernozhukov et al. 2018)."""

from collections.abc import Callable

import numpy as np

from posbias.core.arrays.count_table import Floats, Integers
from posbias.core.learners.boosting import BinnedRows, BoostedTrees
from posbias.core.learners.forest import Forest

FOLDS = 2

GradientsOfRows = Callable[[Integers, Floats], tuple[Floats, Floats]]
"""From the numbers of rows and their scores to the gradient and the Hessian of the loss, shapes (n,)."""


class CrossFitted:
    """Trees that grow in lockstep, one ensemble a fold, each on the rows of the other folds.

    Attributes:
        scores: of each row, by the trees that have not seen its fold, shape (n,).
        rounds: how many found a split in some ensemble.
    """

    def __init__(self, rows: BinnedRows, fold: Integers, start: float) -> None:
        """Begin without a tree.

        Args:
            rows: all of them.
            fold: of each row, 0 .. `FOLDS` - 1, shape (n,).
            start: the score to start with.
        """
        self.scores = np.full(len(fold), start)
        self.rounds = 0
        self._apart = [np.flatnonzero(fold == one) for one in range(FOLDS)]
        self._seen = [np.flatnonzero(fold != one) for one in range(FOLDS)]
        self._trees = [
            BoostedTrees(rows.subset(seen), start, [rows.subset(apart)])
            for seen, apart in zip(self._seen, self._apart, strict=True)
        ]

    def grow(self, gradients: GradientsOfRows) -> bool:
        """Add a tree to each ensemble; return whether any was found that splits its rows."""
        grown = False
        for trees, seen, apart in zip(self._trees, self._seen, self._apart, strict=True):
            if trees.grow(lambda scores, rows=seen: gradients(rows, scores)):
                grown = True
                self.scores[apart] = trees.scores_apart()[0]
        self.rounds += grown
        return grown

    def forests(self) -> tuple[Forest, ...]:
        """The ensemble for each fold, as files that predict by themselves."""
        return tuple(Forest(trees.model_text()) for trees in self._trees)
