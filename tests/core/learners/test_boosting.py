"""Gradient boosting with losses of our own, and the model files that it writes."""

import lightgbm
import numpy as np
import pytest

from posbias.core.arrays.count_table import Floats
from posbias.core.errors import SchemaError
from posbias.core.learners.boosting import BoostedTrees, TreeOptions, bin_rows, model_names
from posbias.core.learners.learning import sigmoid
from posbias.core.learners.models import Forest

N_ROWS, N_FEATURES = 2_000, 4
NAMES = ["price", "age in days", "{odd}", "stock"]


@pytest.fixture
def rows() -> Floats:
    return np.random.default_rng(0).standard_normal((N_ROWS, N_FEATURES))


@pytest.fixture
def labels(rows: Floats) -> Floats:
    return (np.random.default_rng(1).random(N_ROWS) < sigmoid(rows[:, 0] - 2)).astype(float)


def logistic(labels: Floats, scores: Floats) -> tuple[Floats, Floats]:
    return sigmoid(scores) - labels, sigmoid(scores) * sigmoid(-scores)


def test_a_model_file_predicts_the_scores_that_were_learnt(rows: Floats, labels: Floats) -> None:
    trees = BoostedTrees(bin_rows(rows, NAMES, [], TreeOptions()), start=-2.0)
    while trees.n_trees < 20:
        assert trees.grow(lambda scores: logistic(labels, scores))
    text = trees.model_text(objective="binary sigmoid:1")
    np.testing.assert_allclose(Forest(text).scores(rows), trees.scores(), rtol=0, atol=1e-12)
    alone = np.asarray(lightgbm.Booster(model_str=text).predict(rows))
    np.testing.assert_allclose(alone, sigmoid(trees.scores()), rtol=0, atol=1e-12)


def test_a_model_of_fewer_trees_is_what_had_been_learnt_by_then(rows: Floats, labels: Floats) -> None:
    trees = BoostedTrees(bin_rows(rows, NAMES, [], TreeOptions()), start=-2.0)
    for _ in range(5):
        trees.grow(lambda scores: logistic(labels, scores))
    then = trees.scores()
    trees.grow(lambda scores: logistic(labels, scores))
    np.testing.assert_allclose(Forest(trees.model_text(5)).scores(rows), then, rtol=0, atol=1e-12)
    assert np.abs(trees.scores() - then).max() > 1e-3


def test_rows_apart_are_scored_and_not_learnt_from(rows: Floats, labels: Floats) -> None:
    binned = bin_rows(rows, NAMES, [], TreeOptions())
    learnt, apart = np.arange(0, N_ROWS, 2), np.arange(1, N_ROWS, 2)
    trees = BoostedTrees(binned.subset(learnt), -2.0, [binned.subset(apart)])
    for _ in range(10):
        trees.grow(lambda scores: logistic(labels[learnt], scores))
    found = Forest(trees.model_text()).scores(rows)
    np.testing.assert_allclose(trees.scores(), found[learnt], rtol=0, atol=1e-12)
    np.testing.assert_allclose(trees.validation_scores()[0], found[apart], rtol=0, atol=1e-12)


def test_trees_do_not_depend_on_the_number_of_threads(rows: Floats, labels: Floats) -> None:
    texts: list[str] = []
    for threads in (1, 2):
        trees = BoostedTrees(bin_rows(rows, NAMES, [], TreeOptions(threads=threads)), -2.0)
        for _ in range(10):
            trees.grow(lambda scores: logistic(labels, scores))
        texts.append(trees.model_text().split("parameters:")[0])
    assert texts[0] == texts[1]


def test_where_nothing_can_be_learnt_the_start_is_predicted(rows: Floats) -> None:
    trees = BoostedTrees(bin_rows(rows, NAMES, [], TreeOptions()), start=-1.5)
    assert not trees.grow(lambda scores: (np.zeros(len(scores)), np.ones(len(scores))))
    np.testing.assert_array_equal(Forest(trees.model_text()).scores(rows[:3]), np.full(3, -1.5))


def test_names_that_a_model_file_cannot_hold_stand_there_by_their_number() -> None:
    assert model_names(NAMES) == ["price", "f1", "f2", "stock"]
    assert model_names(["f1", "age in days"]) == ["f1", "f1_"]  # LightGBM takes no name twice
    assert model_names(["f1", "a b", "f1_"]) == ["f1", "f1__", "f1_"]


def test_a_feature_that_has_the_name_of_a_number_stands_beside_one_of_that_number(rows: Floats) -> None:
    assert bin_rows(rows[:, :2], ["f1", "age in days"], [], TreeOptions()).dataset.get_feature_name() == ["f1", "f1_"]


def test_features_that_split_nothing_are_an_error_that_names_them(
    rows: Floats, capfd: pytest.CaptureFixture[str]
) -> None:
    constant = np.ones_like(rows)
    with pytest.raises(SchemaError, match=r"none of the features price, age in days, \{odd\}, stock splits the 2,000"):
        bin_rows(constant, NAMES, [], TreeOptions())
    with pytest.raises(SchemaError, match="leaves of 10 or more"):
        bin_rows(rows[:12], NAMES, [], TreeOptions())
    assert capfd.readouterr() == ("", "")
