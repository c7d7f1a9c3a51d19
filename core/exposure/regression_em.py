"""Regression EM: theta and a regression of relevance on features by turns, as published. For comparison.

    E-step:  P(E=1, R=0 | c=0) = theta (1 - g) / (1 - theta g),   P(E=0, R=1 | c=0) = (1 - theta) g / (1 - theta g);
             a click says E = R = 1
    M-step:  theta_k = mean over the rows in cell k of c + (1 - c) P(E=1 | c=0)
             a label R drawn for each row with P(R=1 | c), and trees fitted anew to the labels by the logistic loss

The equations are those of Algorithm 1 (where each side of the expectation is conditional on no click); the steps stop
after a number of iterations. Theta starts from click rates, since it hardly moves from a flat start.

Source: Wang, Golbandi, Bendersky, Metzler & Najork 2018, Position bias estimation for unbiased learning to rank in
personal search.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from posbias.core.arrays.count_table import Floats
from posbias.core.exposure.nuisances import LearningRows
from posbias.core.learners.boosting import BinnedRows, BoostedTrees
from posbias.core.learners.links import logit, sigmoid

ITERATIONS = 15
TREES = 20
RATE = 0.3

_FIRST_THETA = 0.9  # of the position with the largest click rate
_SURE = (1e-6, 1 - 1e-6)  # between which relevance is kept


def expectation(theta: Floats, relevance: Floats, click: Floats) -> tuple[Floats, Floats]:
    """The E-step: P(E=1 | c) and P(R=1 | c) of each row, shape (n,).

    Args:
        theta: of each row's cell, in [0, 1].
        relevance: g, in (0, 1).
        click: 0 or 1.
    """
    unclicked = np.maximum(1 - theta * relevance, 1 - _SURE[1])
    examined = np.where(click > 0, 1.0, theta * (1 - relevance) / unclicked)
    return examined, np.where(click > 0, 1.0, relevance * (1 - theta) / unclicked)


def regression_em(
    features: BinnedRows,
    rows: LearningRows,
    seed: int,
    iterations: int = ITERATIONS,
    on_iteration: Callable[[str], None] = lambda _: None,
) -> Floats:
    """Theta by cell, shape (K,), in [0, 1].

    Args:
        features: of the rows.
        rows: where they were shown, and which were clicked.
        seed: of the labels that are drawn.
        iterations: how many.
        on_iteration: is told how far it is.
    """
    draws = np.random.default_rng(seed)
    rate = rows.mean_by_cell(rows.click)
    theta = rate / max(float(rate.max()), 1 - _SURE[1]) * _FIRST_THETA
    relevance = np.full(len(rows.cell), min(max(2 * float(rate.max()), _SURE[0]), 0.5))
    for iteration in range(iterations):
        examined, relevant = expectation(theta[rows.cell], relevance, rows.click)
        label = (draws.random(len(relevance)) < relevant).astype(np.float64)
        relevance = regressed(features, rows, label)
        theta = rows.mean_by_cell(examined)
        on_iteration(f"regression EM {iteration + 1}")
    return theta


def regressed(features: BinnedRows, rows: LearningRows, label: Floats) -> Floats:
    """Relevance by trees that are fitted anew to labels, shape (n,)."""
    mean = float(np.average(label, weights=rows.weight))
    steeper = replace(features, options=replace(features.options, rate=RATE))
    trees = BoostedTrees(steeper, logit(min(max(mean, _SURE[0]), _SURE[1])))

    def gradients(scores: Floats) -> tuple[Floats, Floats]:
        found = sigmoid(scores)
        return rows.weight * (found - label), rows.weight * np.maximum(found * (1 - found), _SURE[0])

    for _ in range(TREES):
        if not trees.grow(gradients):
            break
    return np.clip(sigmoid(trees.scores()), *_SURE)
