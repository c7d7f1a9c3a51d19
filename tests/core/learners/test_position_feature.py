"""`position-feature`: trees that see the position, and a model file that does not (Guo et al. 2019)."""

from dataclasses import replace
from importlib import import_module
from typing import Any

import lightgbm
import numpy as np
import pytest
from learned import learn, scores, slope
from learning_logs import draw, rank_correlation
from present import present

from posbias.core.learners.models import Forest
from posbias.core.learners.trees import losses_by_entry

TREES, LEAF = 60, 10


def test_it_is_lightgbm_on_every_document_at_every_position_asked_for_position_one() -> None:
    """The same trees by LightGBM's own classifier, on rows of clicks and of skips, which it takes by weight."""
    data = draw()
    counts, documents = data.counts, np.asarray(present(data.features).rows)
    rows = np.column_stack([documents[counts.unit_of_entry], data.position[counts.cell]])
    rate = counts.clicks / counts.impressions  # cross entropy takes rates with weights
    parameters = {
        "objective": "cross_entropy", "learning_rate": 0.1, "num_leaves": 15, "num_threads": 1, "verbose": -1,
        "min_data_in_leaf": round(LEAF * counts.n_entries / counts.n_units), "deterministic": True,
        "force_row_wise": True,
    }  # fmt: skip
    train: Any = import_module("lightgbm").train  # its types are incomplete
    own = train(parameters, lightgbm.Dataset(rows, rate, weight=counts.impressions), TREES)
    at_the_top = np.asarray(own.predict(np.column_stack([documents, np.ones(len(documents))]), raw_score=True))
    found = scores(learn("position-feature", data), documents)
    assert rank_correlation(found, at_the_top) > 0.99
    assert np.abs(found - at_the_top).mean() < 0.05


def test_the_model_file_knows_the_features_alone() -> None:
    model = learn("position-feature", draw()).model
    assert isinstance(model, Forest)
    assert lightgbm.Booster(model_str=model.text).feature_name() == ["telling", "liked"]


def test_a_feature_may_have_the_name_of_the_position() -> None:
    data = draw()
    named = replace(data, features=replace(present(data.features), names=("position", "position_")))
    model = learn("position-feature", named).model
    assert isinstance(model, Forest)
    assert lightgbm.Booster(model_str=model.text).feature_name() == ["position", "position_"]


def test_the_report_says_how_much_the_position_explained() -> None:
    learned = learn("position-feature", draw())
    assert present(learned.importance)["feature"].to_list() == [0, 1]
    assert 0.05 < learned.report["share_of_gain_of_position"] < 1


def test_the_gradient_is_the_derivative_of_the_log_likelihood() -> None:
    data = draw()
    loss, shown = losses_by_entry(data)[0], data.counts.impressions.sum()
    at = np.random.default_rng(0).standard_normal(data.counts.n_entries)
    for number in range(3):
        wanted = -slope(loss.per_impression, at, number) * shown
        assert loss.gradients(at)[0][number] == pytest.approx(wanted, abs=1e-5)
