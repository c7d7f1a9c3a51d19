"""The likelihood of clicks as a loss of scores."""

import numpy as np
import pytest
from learning_logs import THETA, draw

from posbias.core.learners.learning import ClickLikelihood, sigmoid


def test_the_gradient_is_the_derivative_of_the_log_likelihood() -> None:
    data = draw()
    loss = ClickLikelihood(data.counts, data.theta)
    scores = np.random.default_rng(1).standard_normal(data.n_documents)
    gradient, _ = loss.gradients(scores)
    shown = data.counts.impressions.sum()
    step = 1e-5
    for document in (0, 7, 100, 333):
        up, down = scores.copy(), scores.copy()
        up[document] += step
        down[document] -= step
        slope = -(loss.per_impression(up) - loss.per_impression(down)) * shown / (2 * step)
        assert gradient[document] == pytest.approx(slope, rel=1e-5, abs=1e-4)


def test_where_everything_is_examined_it_is_logistic_regression() -> None:
    data = draw()
    loss = ClickLikelihood(data.counts, np.ones(len(THETA)))
    scores = np.random.default_rng(1).standard_normal(data.n_documents)
    gradient, hessian = loss.gradients(scores)
    shown, clicked = (data.counts.sum_by_unit(counts) for counts in (data.counts.impressions, data.counts.clicks))
    np.testing.assert_allclose(gradient, shown * sigmoid(scores) - clicked, atol=1e-9)
    np.testing.assert_allclose(hessian, np.maximum(shown * sigmoid(scores) * sigmoid(-scores), 1e-6), atol=1e-9)


def test_at_the_start_as_many_clicks_are_expected_as_there_are() -> None:
    data = draw()
    loss = ClickLikelihood(data.counts, data.theta)
    expected = sigmoid(np.array([loss.start()])) * (data.counts.impressions * data.theta[data.counts.cell]).sum()
    assert expected[0] == pytest.approx(data.counts.clicks.sum())
