"""`logistic`: regression on standardised features, with position or without."""

from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from learned import learn, scores, slope
from learning_logs import THETA, draw
from present import present

from posbias.core.arrays.count_table import Floats
from posbias.core.errors import SchemaError
from posbias.core.learners import networks
from posbias.core.learners.learning import Features, LearningData
from posbias.core.learners.models import NetworkModel
from posbias.core.learners.networks import Regression, mean_and_scale


def features(data: LearningData) -> Floats:
    return np.asarray(present(data.features).rows)


@pytest.mark.parametrize("with_position", [True, False])
def test_it_is_the_regression_of_scikit_learn_on_one_row_per_document_and_position(*, with_position: bool) -> None:
    data = draw()
    counts, rows = data.counts, features(data)
    standardised = np.clip((rows - rows.mean(axis=0)) / rows.std(axis=0), -5, 5)
    inputs = standardised[counts.unit_of_entry]
    if with_position:
        inputs = np.column_stack([inputs, np.eye(len(THETA))[counts.cell]])
    sklearn: Any = import_module("sklearn.linear_model")  # no types
    own = sklearn.LogisticRegression(C=1.0, max_iter=1_000, tol=1e-10).fit(
        np.concatenate([inputs, inputs]),
        np.repeat([1, 0], len(inputs)),
        np.concatenate([counts.clicks, counts.impressions - counts.clicks]),
    )
    wanted = standardised @ own.coef_[0, :2] + own.intercept_[0] + (own.coef_[0, 2] if with_position else 0.0)
    found = scores(learn("logistic", data, position_feature=with_position), rows)
    np.testing.assert_allclose(found, wanted, atol=2e-4)


@pytest.mark.parametrize("with_position", [True, False])
def test_the_derivatives_are_those_of_the_loss(*, with_position: bool) -> None:
    data = draw(held_out=0.3)
    regression = Regression(data, with_position)
    at = np.random.default_rng(0).standard_normal(len(regression.start()))
    found = regression.at(at)
    for number in range(len(at)):
        assert found.gradient[number] == pytest.approx(slope(lambda w: regression.at(w).loss, at, number), rel=1e-6)
        for other in range(len(at)):
            bend = slope(lambda w, other=other: float(regression.at(w).gradient[other]), at, number)
            assert found.hessian[number, other] == pytest.approx(bend, rel=1e-5, abs=1e-3)


def test_learning_ends_where_the_loss_is_flat() -> None:
    data = draw()
    curve = learn("logistic", data).curve
    assert curve.height < 12
    assert curve["training"].is_sorted()


def test_scores_are_those_of_the_first_position() -> None:
    """A log of one document everywhere: the score is the logit of its click rate at position 1."""
    data = draw()
    same = replace(data, features=Features(np.zeros((data.n_documents, 2)), ("a", "b")))
    counts = data.counts
    shown, clicked = (counts.sum_by_cell(values) for values in (counts.impressions, counts.clicks))
    found = scores(learn("logistic", same), np.zeros((1, 2)))
    assert found[0] == pytest.approx(np.log(clicked[0] / (shown[0] - clicked[0])), abs=0.01)  # but for the ridge


def test_the_model_is_linear_and_runs_of_documents_do_not_change_it(monkeypatch: pytest.MonkeyPatch) -> None:
    data = draw(held_out=0.3)
    whole = learn("logistic", data).model
    monkeypatch.setattr(networks, "_RUN", 17)
    in_runs = learn("logistic", data).model
    assert isinstance(whole, NetworkModel)
    assert isinstance(in_runs, NetworkModel)
    assert [weight.shape for weight in whole.weights] == [(2, 1)]
    np.testing.assert_allclose(whole.weights[0], in_runs.weights[0], rtol=1e-6)


def test_early_stopping_keeps_the_round_in_which_held_out_queries_fared_best() -> None:
    data = draw(held_out=0.5)
    learned = learn("logistic", data, early_stopping=1)
    assert learned.report["rounds"] == learned.curve["round"][int(np.argmax(learned.curve["validation"].to_numpy()))]


def test_text_is_refused_by_its_name() -> None:
    data = draw()
    text = replace(data, features=Features(features(data), ("price", "colour"), (1,)))
    with pytest.raises(SchemaError, match="'colour' is text"):
        learn("logistic", text)


def test_missing_infinite_and_constant_features_do_no_harm() -> None:
    data = draw()
    rows = np.column_stack([features(data), np.full(data.n_documents, 7.0), np.full(data.n_documents, np.nan)])
    rows[::7, 0] = np.nan
    rows[3, 1] = np.inf
    found = scores(learn("logistic", replace(data, features=Features(rows, ("a", "b", "c", "d")))), rows)
    assert np.isfinite(found).all()


def test_means_and_scales_are_those_of_the_values_that_are_there() -> None:
    rows = np.array([[1.0, 5.0, np.nan], [3.0, 5.0, 2.0], [100.0, 100.0, 100.0], [np.nan, 5.0, 4.0]])
    mean, scale = mean_and_scale(rows, np.array([True, True, False, True]))
    np.testing.assert_allclose(mean, [2, 5, 3])
    np.testing.assert_allclose(scale, [1, 1, 1])
