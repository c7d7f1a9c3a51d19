"""Relevance and place are learnt out of fold, and the same rows give the same trees."""

import numpy as np
import pytest

from posbias.core.arrays.count_table import Floats
from posbias.core.errors import IdentifiabilityError
from posbias.core.features import LearningRows, Nuisances, learn_nuisances, options_of_trees
from posbias.core.learners.boosting import bin_rows
from posbias.core.learners.learning import sigmoid

N_PAGES, SHOWN = 2_000, 5
THETA = np.array([1.0, 0.6, 0.45, 0.3, 0.2])


def world(seed: int) -> tuple[Floats, LearningRows, Floats]:
    """Features, rows and relevance: pages whose ranker orders by half of what decides relevance."""
    draws = np.random.default_rng(seed)
    features = draws.normal(size=(N_PAGES, SHOWN, 2))
    score: Floats = features[:, :, 0] + draws.gumbel(size=(N_PAGES, SHOWN))
    order = np.argsort(-score, axis=1)
    features = np.take_along_axis(features, order[:, :, np.newaxis], axis=1).reshape(-1, 2)
    relevance = sigmoid(features[:, 0] + features[:, 1] - 1)
    cell = np.tile(np.arange(SHOWN), N_PAGES)
    click = (draws.random(len(cell)) < THETA[cell] * relevance).astype(float)
    fold = np.repeat(draws.integers(2, size=N_PAGES), SHOWN)
    context = np.zeros(SHOWN, np.int64)
    rows = LearningRows(cell, click, np.ones(len(cell)), fold, np.arange(1, SHOWN + 1), context)
    return features, rows, relevance


@pytest.fixture(scope="module")
def learned() -> tuple[Floats, LearningRows, Floats]:
    return world(0)


def nuisances(features: Floats, rows: LearningRows) -> Nuisances:
    return learn_nuisances(bin_rows(features, ["a", "b"], [], options_of_trees(1)), rows)


@pytest.fixture(scope="module")
def found(learned: tuple[Floats, LearningRows, Floats]) -> Nuisances:
    return nuisances(*learned[:2])


def test_trees_find_relevance_and_place(learned: tuple[Floats, LearningRows, Floats], found: Nuisances) -> None:
    features, _, relevance = learned
    assert np.corrcoef(sigmoid(found.scores), relevance)[0, 1] > 0.9
    assert np.corrcoef(found.places, features[:, 0])[0, 1] < -0.9  # the ranker orders by the first feature alone
    np.testing.assert_allclose(found.theta, THETA, atol=0.1)


def test_each_row_is_scored_by_the_trees_that_have_not_seen_its_fold(
    learned: tuple[Floats, LearningRows, Floats], found: Nuisances
) -> None:
    features, rows, _ = learned
    for forests, scores in ((found.relevance, found.scores), (found.place, found.places)):
        for one, forest in enumerate(forests):
            apart = rows.fold == one
            np.testing.assert_allclose(forest.scores(features[apart]), scores[apart], rtol=0, atol=1e-9)
    changed = rows.click.copy()
    changed[rows.fold == 0] = 1 - changed[rows.fold == 0]
    held_out = LearningRows(rows.cell, changed, rows.weight, rows.fold, rows.position, rows.context)
    again = nuisances(features, held_out)
    assert np.abs(again.scores - found.scores)[rows.fold == 1].max() > 0.1  # learnt from the changed clicks
    np.testing.assert_array_equal(again.places, found.places)


def test_the_same_rows_give_the_same_trees(learned: tuple[Floats, LearningRows, Floats], found: Nuisances) -> None:
    again = nuisances(*learned[:2])
    assert found.relevance == again.relevance
    assert found.place == again.place
    np.testing.assert_array_equal(found.theta, again.theta)


def test_features_that_say_nothing_and_rows_that_are_too_few_are_refused(
    learned: tuple[Floats, LearningRows, Floats],
) -> None:
    features, rows, _ = learned
    two = (np.arange(len(rows.cell)) % 1_000 < 5).astype(float).reshape(-1, 1)  # too few for a leaf, in fact 50
    with pytest.raises(IdentifiabilityError, match="neither which of 10,000 rows are clicked nor where they stand"):
        nuisances(np.hstack([two, two]), rows)
    one_fold = LearningRows(rows.cell, rows.click, rows.weight, 0 * rows.fold, rows.position, rows.context)
    with pytest.raises(IdentifiabilityError, match="of 10,000 rows, one half of the pages holds 0"):
        nuisances(features, one_fold)


def test_a_row_of_weight_two_counts_as_two_rows(learned: tuple[Floats, LearningRows, Floats]) -> None:
    _, rows, _ = learned
    double = LearningRows(rows.cell, rows.click, 2 * rows.weight, rows.fold, rows.position, rows.context)
    np.testing.assert_array_equal(double.sum_by_cell(double.click), 2 * rows.sum_by_cell(rows.click))
