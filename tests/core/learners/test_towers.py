"""Networks of two towers: their gradients, what each says of a click, and what they learn."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from learning_logs import N_QUERIES, THETA, draw, rank_correlation, true_scores

from posbias.core.arrays.count_table import Floats
from posbias.core.errors import IdentifiabilityError, SchemaError
from posbias.core.learners.adam import Adam
from posbias.core.learners.data import LearningData
from posbias.core.learners.learner import Learned, LearningOptions
from posbias.core.learners.links import sigmoid
from posbias.core.learners.methods import get_learner
from posbias.core.learners.models import NetworkModel
from posbias.core.learners.network import Perceptron
from posbias.core.learners.towers import Batch, Product, Single, Sum, Towers

OPTIONS = LearningOptions(epochs=25)
STEP = 1e-6


@pytest.fixture(scope="module")
def data() -> LearningData:
    return draw()


@pytest.fixture(scope="module")
def unseen() -> Floats:
    return np.random.default_rng(9).standard_normal((2_000, 2))


def learn(name: str, data: LearningData, options: LearningOptions = OPTIONS) -> Learned:
    return get_learner(name).learn(data, options, lambda: None)


def scores(learned: Learned, rows: Floats) -> Floats:
    assert isinstance(learned.model, NetworkModel)
    return learned.model.scores(rows)


def test_the_gradients_of_a_network_are_the_derivatives_of_its_loss() -> None:
    rng = np.random.default_rng(0)
    network: Any = Perceptron((3, 4, 2, 1), rng)  # in double precision here
    network.weights[:] = [weight.astype(np.float64) for weight in network.weights]
    network.biases[:] = [rng.standard_normal(bias.shape) for bias in network.biases]
    rows, slope, decay = rng.standard_normal((7, 3)), rng.standard_normal(7), 0.3

    def loss() -> float:
        return float(slope @ network.forward(rows)) + decay * sum((weight**2).sum() for weight in network.weights) / 2

    network.forward(rows)
    gradients = network.backward(slope, decay)
    for name, parameter in network.parameters.items():
        gradient = gradients[name]
        for place in np.ndindex(parameter.shape):
            parameter[place] += STEP
            above = loss()
            parameter[place] -= 2 * STEP
            below = loss()
            parameter[place] += STEP
            assert gradient[place] == pytest.approx((above - below) / (2 * STEP), abs=1e-6)


def test_adam_takes_the_published_steps() -> None:
    parameter = np.array([1.0], np.float32)
    adam = Adam({"x": parameter}, 0.1)
    adam.step({"x": np.array([2.0], np.float32)})
    assert parameter[0] == pytest.approx(0.9)  # the first step is the rate, whatever the gradient
    adam.step({"x": np.array([-1.0], np.float32)})
    mean = (0.9 * 0.1 * 2 + 0.1 * -1) / (1 - 0.9**2)
    square = (0.999 * 0.001 * 4 + 0.001 * 1) / (1 - 0.999**2)
    assert parameter[0] == pytest.approx(0.9 - 0.1 * mean / np.sqrt(square), rel=1e-5)


def batch() -> Batch:
    rng = np.random.default_rng(3)
    return Batch(rng.standard_normal(6), np.array([0, 1, 2, 0, 1, 2]), rng.random(6), rng.random(6))


@pytest.mark.parametrize("towers", [Sum(0, 0), Product(), Single()], ids=["sum", "product", "single"])
def test_a_step_is_the_derivative_of_the_likelihood_of_clicks(towers: Towers) -> None:
    rows, positions = batch(), np.array([0.3, -0.2, -1.0])

    def loss(relevance: Floats, of_positions: Floats) -> float:
        chance = towers.chance(relevance, of_positions[rows.place])
        return -float(rows.weight @ (rows.rate * np.log(chance) + (1 - rows.rate) * np.log1p(-chance)))

    step = towers.step(rows, positions, np.zeros(2), np.random.default_rng(0))
    np.testing.assert_allclose(step.of_relevance, slopes(lambda x: loss(x, positions), rows.relevance), atol=1e-6)
    np.testing.assert_allclose(step.of_positions, slopes(lambda x: loss(rows.relevance, x), positions), atol=1e-6)


def slopes(loss: Callable[[Floats], float], at: Floats) -> Floats:
    """The derivatives of a loss, by differences."""
    steps = np.eye(len(at)) * STEP
    return np.array([(loss(at + step) - loss(at - step)) / (2 * STEP) for step in steps])


def test_the_adversary_predicts_clicks_from_position_and_position_moves_against_it() -> None:
    rows, positions, adversary = batch(), np.array([0.3, -0.2, -1.0]), np.array([0.7, 0.1])

    def error(of_positions: Floats, of_adversary: Floats) -> float:
        left = of_adversary[0] * of_positions[rows.place] + of_adversary[1] - rows.rate
        return float(rows.weight @ left**2)

    plain = Sum(0, 0).step(rows, positions, adversary, np.random.default_rng(0))
    found = Sum(0, 0.25).step(rows, positions, adversary, np.random.default_rng(0))
    np.testing.assert_allclose(
        found.of_positions - plain.of_positions, -0.25 * slopes(lambda x: error(x, adversary), positions), atol=1e-6
    )
    np.testing.assert_allclose(found.of_adversary, slopes(lambda x: error(positions, x), adversary), atol=1e-6)


def test_dropout_hides_positions_with_its_chance_and_leaves_their_mean() -> None:
    n_rows = 20_000
    rows = Batch(np.zeros(n_rows), np.zeros(n_rows, np.int64), np.full(n_rows, 0.5), np.full(n_rows, 1 / n_rows))
    step = Sum(0.75, 0).step(rows, np.array([0.4]), np.zeros(2), np.random.default_rng(0))
    hidden = step.of_relevance == 0  # 1 / (1 + exp(0)) is the rate
    assert hidden.mean() == pytest.approx(0.75, abs=0.01)
    np.testing.assert_allclose(step.of_relevance[~hidden] * n_rows, sigmoid(np.array([1.6]))[0] - 0.5)


@pytest.mark.parametrize("name", ["pal-product", "pal-sum"])
def test_a_tower_for_position_keeps_what_the_ranker_likes_out_of_relevance(
    data: LearningData, unseen: Floats, name: str
) -> None:
    with_position, without = scores(learn(name, data), unseen), scores(learn("single-tower", data), unseen)
    assert rank_correlation(with_position, true_scores(unseen)) > rank_correlation(without, true_scores(unseen)) + 0.05
    assert rank_correlation(with_position, true_scores(unseen)) > 0.9


def test_the_product_finds_the_propensities_of_a_log_whose_pages_are_shuffled() -> None:
    learned = learn("pal-product", draw(preference=0.0), replace(OPTIONS, epochs=60))
    assert learned.propensities is not None
    np.testing.assert_allclose(learned.propensities, THETA, rtol=0.15)


def test_a_sum_scores_documents_as_if_they_stood_at_the_top(data: LearningData) -> None:
    learned = learn("pal-sum", data, replace(OPTIONS, epochs=60))
    rows = np.asarray(data.features.rows) if data.features is not None else np.zeros((1, 2))
    at_top = data.counts.cell == 0
    expected = (data.counts.impressions * sigmoid(scores(learned, rows))[data.counts.unit_of_entry])[at_top].sum()
    assert expected == pytest.approx(data.counts.clicks[at_top].sum(), rel=0.05)
    assert learned.propensities is None


def test_the_same_seed_learns_the_same_and_another_one_something_else(data: LearningData, unseen: Floats) -> None:
    few = replace(OPTIONS, epochs=3)
    first, again, other = (scores(learn("pal-sum", data, replace(few, seed=seed)), unseen) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0


def test_queries_are_set_apart_to_stop_by_where_the_user_sets_none_apart(data: LearningData) -> None:
    learned = learn("single-tower", data)
    assert learned.report["queries_set_apart_to_stop"] == N_QUERIES // 8
    assert learned.curve["validation"].null_count() == 0
    held_out = learn("single-tower", draw(held_out=0.3), replace(OPTIONS, early_stopping=6))
    assert "queries_set_apart_to_stop" not in held_out.report


def test_what_a_network_cannot_learn_from_is_said(data: LearningData) -> None:
    assert data.features is not None
    with pytest.raises(SchemaError, match="'liked' is text"):
        learn("pal-sum", replace(data, features=replace(data.features, categorical=(1,))))
    with pytest.raises(IdentifiabilityError, match="single query"):
        learn("pal-sum", replace(data, query=np.zeros_like(data.query)))
    assert len(THETA) == data.counts.n_cells
