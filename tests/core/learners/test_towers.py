"""Networks of two towers: their gradients, what each says of a click, and what they learn."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from learned import learn, scores
from learning_logs import N_QUERIES, THETA, UNSEEN, draw
from present import present

from posbias.core.arrays.count_table import Floats
from posbias.core.choices import LearningOptions
from posbias.core.errors import IdentifiabilityError, SchemaError
from posbias.core.learners import networks
from posbias.core.learners.learning import Learned, LearningData, sigmoid
from posbias.core.learners.models import forward
from posbias.core.learners.networks import Batch, Slopes, Towers, backward, click_probability, dropout, initial_layers

STEP = 1e-6


@pytest.fixture(scope="module")
def data() -> LearningData:
    return draw()


@pytest.fixture(scope="module")
def without_position(data: LearningData) -> Learned:
    return learn("single-tower", data, epochs=25)


def test_the_gradients_of_a_network_are_the_derivatives_of_its_loss() -> None:
    rng = np.random.default_rng(0)
    drawn, zeros = initial_layers((3, 4, 2, 1), rng)
    weights = [weight.astype(np.float64) for weight in drawn]  # in double precision here
    biases = [rng.standard_normal(bias.shape) for bias in zeros]
    rows, slope, decay = rng.standard_normal((7, 3)), rng.standard_normal(7), 0.3

    def loss() -> float:
        of_rows = float(slope @ forward(rows, weights, biases)[-1][:, 0])
        return of_rows + decay * sum(float((weight**2).sum()) for weight in weights) / 2

    found = backward(forward(rows, weights, biases), weights, slope, decay)
    for gradient, parameter in zip(found.values(), (*weights, *biases), strict=True):
        for place in np.ndindex(parameter.shape):
            parameter[place] += STEP
            above = loss()
            parameter[place] -= 2 * STEP
            below = loss()
            parameter[place] += STEP
            assert gradient[place] == pytest.approx((above - below) / (2 * STEP), abs=1e-6)


RELEVANCE, POSITIONS = np.random.default_rng(3).standard_normal(6), np.array([0.3, -0.2, -1.0])
NONE = np.zeros(2)


@pytest.fixture
def rows() -> Batch:
    rng = np.random.default_rng(4)
    return Batch(np.array([0, 1, 2, 0, 1, 2]), rng.random(6), rng.random(6))


def slopes_of(towers: Towers, rows: Batch, adversary: Floats = NONE, reversal: float = 0.0) -> Slopes:
    return networks.slopes(towers, RELEVANCE, POSITIONS, adversary, replace(rows, reversal=reversal))


@pytest.mark.parametrize("towers", ["sum", "product", "alone"])
def test_a_step_is_the_derivative_of_the_likelihood_of_clicks(rows: Batch, towers: Towers) -> None:
    def loss(relevance: Floats, of_positions: Floats) -> float:
        clicked = click_probability(towers, relevance, of_positions[rows.place])
        return -float(rows.weight @ (rows.rate * np.log(clicked) + (1 - rows.rate) * np.log1p(-clicked)))

    of_relevance, of_positions, _ = slopes_of(towers, rows)
    np.testing.assert_allclose(of_relevance, slopes(lambda x: loss(x, POSITIONS), RELEVANCE), atol=1e-6)
    np.testing.assert_allclose(of_positions, slopes(lambda x: loss(RELEVANCE, x), POSITIONS), atol=1e-6)


def slopes(loss: Callable[[Floats], float], at: Floats) -> Floats:
    """The derivatives of a loss, by differences."""
    steps = np.eye(len(at)) * STEP
    return np.array([(loss(at + step) - loss(at - step)) / (2 * STEP) for step in steps])


def test_the_adversary_predicts_clicks_from_position_and_position_moves_against_it(rows: Batch) -> None:
    adversary = np.array([0.7, 0.1])

    def error(of_positions: Floats, of_adversary: Floats) -> float:
        left = of_adversary[0] * of_positions[rows.place] + of_adversary[1] - rows.rate
        return float(rows.weight @ left**2)

    _, plain, _ = slopes_of("sum", rows, adversary)
    _, of_positions, of_adversary = slopes_of("sum", rows, adversary, 0.25)
    moved = -0.25 * slopes(lambda x: error(x, adversary), POSITIONS)
    np.testing.assert_allclose(of_positions - plain, moved, atol=1e-6)
    np.testing.assert_allclose(of_adversary, slopes(lambda x: error(POSITIONS, x), adversary), atol=1e-6)


def test_dropout_hides_positions_with_its_chance_and_leaves_their_mean() -> None:
    n_rows = 20_000
    seen = dropout(np.random.default_rng(0), n_rows, LearningOptions(observation_dropout=0.75))
    rows = Batch(np.zeros(n_rows, np.int64), np.full(n_rows, 0.5), np.full(n_rows, 1 / n_rows), seen)
    found, *_ = networks.slopes("sum", np.zeros(n_rows), np.array([0.4]), NONE, rows)
    hidden = found == 0  # 1 / (1 + exp(0)) is the rate
    assert hidden.mean() == pytest.approx(0.75, abs=0.01)
    np.testing.assert_allclose(found[~hidden] * n_rows, sigmoid(np.array([1.6]))[0] - 0.5)


@pytest.mark.slow
def test_the_product_finds_the_propensities_of_a_log_whose_pages_are_shuffled() -> None:
    learned = learn("pal-product", draw(preference=0.0), epochs=60)
    np.testing.assert_allclose(present(learned.propensities), THETA, rtol=0.15)


def test_a_sum_scores_documents_as_if_they_stood_at_the_top(data: LearningData) -> None:
    learned = learn("pal-sum", data, epochs=60)
    rows = np.asarray(present(data.features).rows)
    at_top = data.counts.cell == 0
    expected = (data.counts.impressions * sigmoid(scores(learned, rows))[data.counts.unit_of_entry])[at_top].sum()
    assert expected == pytest.approx(data.counts.clicks[at_top].sum(), rel=0.05)
    assert learned.propensities is None


def test_another_seed_learns_something_else(data: LearningData) -> None:
    first, other = (scores(learn("pal-sum", data, epochs=3, seed=seed), UNSEEN) for seed in (1, 2))
    assert np.abs(first - other).max() > 0


@pytest.mark.slow
def test_queries_are_set_apart_to_stop_by_where_the_user_sets_none_apart(without_position: Learned) -> None:
    assert without_position.report["queries_set_apart_to_stop"] == N_QUERIES // 8
    assert without_position.curve["validation"].null_count() == 0
    held_out = learn("single-tower", draw(held_out=0.3), epochs=25, early_stopping=6)
    assert "queries_set_apart_to_stop" not in held_out.report


def test_what_a_network_cannot_learn_from_is_said(data: LearningData) -> None:
    text = replace(present(data.features), categorical=(1,))
    with pytest.raises(SchemaError, match="'liked' is text"):
        learn("pal-sum", replace(data, features=text))
    with pytest.raises(IdentifiabilityError, match="single query"):
        learn("pal-sum", replace(data, query=np.zeros_like(data.query)))
    assert len(THETA) == data.counts.n_cells
