"""LightGBM's model files as text: sums of models, and models without a feature that is held at one value."""

import lightgbm
import numpy as np
import pytest

from posbias.core.arrays.count_table import Floats
from posbias.core.learners.boosting import BoostedTrees, ModelText, TreeOptions, bin_rows, scaled_sum
from posbias.core.learners.learning import sigmoid
from posbias.core.learners.models import Forest

N_ROWS, LAST = 3_000, 3


@pytest.fixture(scope="module")
def rows() -> Floats:
    """A number with missing values, a number, a category, and last a position."""
    rng = np.random.default_rng(0)
    found = rng.standard_normal((N_ROWS, 4))
    found[rng.random(N_ROWS) < 0.1, 0] = np.nan
    found[:, 2] = rng.integers(0, 8, N_ROWS)
    found[:, LAST] = rng.integers(1, 8, N_ROWS)
    return found


@pytest.fixture(scope="module")
def text(rows: Floats) -> str:
    rng = np.random.default_rng(1)
    wanted = np.nan_to_num(rows[:, 0], nan=2.0) + 2 * np.isin(rows[:, 2], [1, 4, 6]) - rows[:, LAST]
    labels = (rng.random(N_ROWS) < sigmoid(wanted)).astype(float)
    trees = BoostedTrees(bin_rows(rows, ["a", "b", "c", "position"], [2], TreeOptions()), start=-1.0)
    for _ in range(30):
        trees.grow(lambda scores: (sigmoid(scores) - labels, sigmoid(scores) * sigmoid(-scores)))
    return trees.model_text(objective="binary sigmoid:1")


@pytest.mark.parametrize("position", [1.0, 3.0, 7.0])
def test_without_its_last_feature_a_model_says_what_it_said_at_that_value(
    rows: Floats, text: str, position: float
) -> None:
    held = rows.copy()
    held[:, LAST] = position
    folded = ModelText.parse(text).without_last_feature(position).complete()
    np.testing.assert_array_equal(Forest(folded).scores(rows[:, :LAST]), Forest(text).scores(held))


def test_the_model_that_is_tested_splits_categories_and_positions(text: str) -> None:
    trees = ModelText.parse(text).trees
    assert any(int(tree["num_cat"]) > 0 for tree in trees)
    assert any(str(LAST) in tree["split_feature"].split() for tree in trees)


def test_a_tree_of_nothing_but_positions_is_one_number(rows: Floats) -> None:
    trees = BoostedTrees(bin_rows(rows, ["a", "b", "c", "position"], [2], TreeOptions(leaves=2)), start=0.0)
    trees.grow(lambda scores: (scores - rows[:, LAST], np.ones(N_ROWS)))
    folded = ModelText.parse(trees.model_text()).without_last_feature(1.0).complete()
    held = rows.copy()
    held[:, LAST] = 1.0
    np.testing.assert_array_equal(Forest(folded).scores(rows[:, :LAST]), Forest(trees.model_text()).scores(held))
    assert lightgbm.Booster(model_str=folded).dump_model()["tree_info"][0]["num_leaves"] == 1


def test_a_model_without_a_feature_does_not_know_it(text: str) -> None:
    folded = lightgbm.Booster(model_str=ModelText.parse(text).without_last_feature(1.0).complete())
    assert folded.feature_name() == ["a", "b", "c"]
    assert folded.num_feature() == LAST
    assert folded.num_trees() == 30


def test_the_sum_of_models_is_the_sum_of_their_scores(rows: Floats, text: str) -> None:
    models = [ModelText.parse(text)] * 3
    found = Forest(scaled_sum(models, (0.25, 0.5, -2), 0.125).complete()).scores(rows)
    np.testing.assert_allclose(found, 0.125 - 1.25 * Forest(text).scores(rows), rtol=0, atol=1e-12)


def test_a_file_that_was_taken_apart_keeps_its_objective(rows: Floats, text: str) -> None:
    again = lightgbm.Booster(model_str=ModelText.parse(text).complete())
    np.testing.assert_array_equal(again.predict(rows), lightgbm.Booster(model_str=text).predict(rows))
