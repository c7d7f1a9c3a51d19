"""Relevance that only the ranker sees: what it would do to theta, and what the rivals of documents show of it."""

from functools import cache

import numpy as np
import pytest

from posbias.core.features import LearningRows, hidden_relevance, learn_nuisances, options_of_trees
from posbias.core.fit.diagnostics import HiddenRelevance
from posbias.core.learners.boosting import bin_rows
from posbias.core.learners.learning import sigmoid

N_PAGES, SHOWN = 4_000, 6
POSITIONS = np.arange(1, SHOWN + 1)


@cache
def judged(known: float, hidden: float, *, named: bool = False) -> HiddenRelevance:
    """The judgment of a log whose ranker orders by a known and a hidden feature, and noise."""
    draws = np.random.default_rng(0)
    x = draws.normal(size=(N_PAGES, SHOWN, 2))
    score = known * x[..., 0] + hidden * x[..., 1]
    order = np.argsort(-score - 0.5 * draws.gumbel(size=score.shape), axis=1)
    x, score = np.take_along_axis(x, order[..., np.newaxis], axis=1).reshape(-1, 2), np.take_along_axis(score, order, 1)
    cell, page = np.tile(np.arange(SHOWN), N_PAGES), np.repeat(np.arange(N_PAGES), SHOWN)
    click = (draws.random(len(cell)) < sigmoid(x @ [1.2, 1.2 * (hidden > 0)] - 1) / POSITIONS[cell]).astype(float)
    fold, context = draws.integers(2, size=N_PAGES)[page], np.zeros(SHOWN, np.int64)
    rows = LearningRows(cell, click, np.ones(len(cell)), fold, POSITIONS, context)
    features = np.column_stack([x[:, 0], score.ravel()]) if named else x[:, :1]
    binned = bin_rows(features, ["x", "score"][: features.shape[1]], [], options_of_trees(1))
    return hidden_relevance(rows, learn_nuisances(binned, rows), page, score.ravel() if named else None)


@pytest.mark.slow
def test_rivals_show_what_only_the_ranker_knows() -> None:
    assert judged(1.0, 0.0).least == 0 < judged(1.0, 1.0).least
    assert judged(1.0, 1.0).by_rivals > judged(1.0, 0.4).by_rivals > judged(1.0, 0.0).by_rivals


@pytest.mark.slow
def test_naming_the_score_leaves_nothing_to_see_and_little_to_imagine() -> None:
    unnamed, named = judged(1.0, 1.0), judged(1.0, 1.0, named=True)
    assert named.least == 0 < unnamed.least
    assert named.benchmark < unnamed.benchmark / 2


@pytest.mark.slow
def test_the_error_that_may_be_imagined_grows_with_what_the_order_owes_to_relevance() -> None:
    errors = [judged(known, 0.0).benchmark for known in (0.0, 0.3, 1.0)]
    assert errors == sorted(errors)
    assert errors[0] < 0.05 < errors[-1]


def test_the_slope_is_the_least_of_what_is_imagined_and_what_rivals_allow() -> None:
    limited = HiddenRelevance(0.5, by_rivals=-0.1, std_error=0.1, degrees=1e9)
    assert (limited.least, limited.plausible) == (0, pytest.approx(0.196, abs=1e-4))
    assert (HiddenRelevance(0.5).least, HiddenRelevance(0.5).plausible) == (0, 0.5)
    assert HiddenRelevance(0.5, by_rivals=0.6, std_error=0.1, degrees=1e9).least == pytest.approx(0.404, abs=1e-4)
