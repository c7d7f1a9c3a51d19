"""Cross-fitting: the fold of a page, by a hash of its id, and trees that score the pages that they have not seen."""

from collections.abc import Callable

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import Flags, Floats, Hashes, Integers
from posbias.core.learners.boosting import BinnedRows, BoostedTrees
from posbias.core.learners.forest import Forest
from posbias.core.training.split import hashes

FOLDS = 2

GradientsOfRows = Callable[[Integers, Floats], tuple[Floats, Floats]]
"""From the numbers of rows and their scores to the gradient and the Hessian of the loss, shapes (n,)."""


class CrossFitted:
    """Trees that grow in lockstep, one ensemble a fold, each on the rows of the other folds."""

    def __init__(self, rows: BinnedRows, fold: Integers, start: float) -> None:
        """Begin without a tree.

        Args:
            rows: all of them.
            fold: of each row, 0 .. `FOLDS` - 1, shape (n,).
            start: the score to start with.
        """
        self.scores = np.full(len(fold), start)  # of each row, by the trees that have not seen its fold
        self.rounds = 0  # that found a split in some ensemble
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


_STEP, _FIRST, _SECOND = (np.uint64(number) for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_LARGEST = float(2**64)


def draws_of(sessions: pl.Series, seed: int) -> Hashes:
    """A number for each session, all equally likely, shape (n,).

    The hash of the id and the seed are mixed by SplitMix64 (Steele, Lea & Flood 2014).
    """
    mixed = np.array(hashes(sessions), np.int64).view(np.uint64)
    with np.errstate(over="ignore"):
        mixed = mixed + _STEP * np.random.SeedSequence(seed).generate_state(1, np.uint64)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST
        mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
    return mixed ^ (mixed >> np.uint64(31))


def fold_of(draws: Hashes) -> Integers:
    """The fold of each, 0 .. `FOLDS` - 1."""
    return (draws % np.uint64(FOLDS)).astype(np.int64)


def in_sample(draws: Hashes, share: float) -> Flags:
    """Whether each is in a sample of that share of the pages; a larger sample holds all of a smaller one."""
    return draws.astype(np.float64) < share * _LARGEST
