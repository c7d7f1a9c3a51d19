"""`position-feature`: trees that see the position, and a model file that does not (Guo et al. 2019)."""

from dataclasses import replace
from importlib import import_module
from typing import Any

import lightgbm
import numpy as np
import pytest
from learned import learn, scores, slope
from learning_logs import draw, rank_correlation, true_scores

from posbias.core.arrays.count_table import CountTable, Floats
from posbias.core.learners.data import Features
from posbias.core.learners.forest import Forest
from posbias.core.learners.methods.position_feature import ClickRates, DocumentsAtPositions
from posbias.core.learners.models import TreeModel

TREES, LEAF = 60, 10


def test_it_is_lightgbm_on_every_document_at_every_position_asked_for_position_one() -> None:
    """The same trees by LightGBM's own classifier, on rows of clicks and of skips, which it takes by weight."""
    data = draw()
    assert data.features is not None
    counts = data.counts
    rows = np.column_stack([np.asarray(data.features.rows)[counts.unit_of_entry], data.position[counts.cell]])
    rate = counts.clicks / counts.impressions  # cross entropy takes rates with weights
    parameters = {
        "objective": "cross_entropy", "learning_rate": 0.1, "num_leaves": 15, "num_threads": 1, "verbose": -1,
        "min_data_in_leaf": round(LEAF * counts.n_entries / counts.n_units), "deterministic": True,
        "force_row_wise": True,
    }  # fmt: skip
    train: Any = import_module("lightgbm").train  # its types are incomplete
    own = train(parameters, lightgbm.Dataset(rows, rate, weight=counts.impressions), TREES)
    documents = np.asarray(data.features.rows)
    at_the_top = np.asarray(own.predict(np.column_stack([documents, np.ones(len(documents))]), raw_score=True))
    found = scores(learn("position-feature", data), documents)
    assert rank_correlation(found, at_the_top) > 0.99
    assert np.abs(found - at_the_top).mean() < 0.05


def test_the_model_file_knows_the_features_alone() -> None:
    model = learn("position-feature", draw()).model
    assert isinstance(model, TreeModel)
    assert lightgbm.Booster(model_str=model.forest.text).feature_name() == ["telling", "liked"]
    assert Forest(model.forest.text).scores(np.zeros((3, 2))).shape == (3,)


def test_the_position_takes_up_what_naive_takes_for_relevance() -> None:
    data, rows = draw(), np.random.default_rng(9).standard_normal((2_000, 2))
    naive, corrected = (
        rank_correlation(scores(learn(name, data), rows), rows[:, 1]) for name in ("naive", "position-feature")
    )
    assert naive > corrected + 0.1
    assert rank_correlation(scores(learn("position-feature", data), rows), true_scores(rows)) > 0.95


def test_a_feature_may_have_the_name_of_the_position() -> None:
    data = draw()
    assert data.features is not None
    named = replace(data, features=replace(data.features, names=("position", "position_")))
    model = learn("position-feature", named).model
    assert isinstance(model, TreeModel)
    assert lightgbm.Booster(model_str=model.forest.text).feature_name() == ["position", "position_"]


def test_the_report_says_how_much_the_position_explained() -> None:
    learned = learn("position-feature", draw())
    assert learned.importance is not None
    assert learned.importance["feature"].to_list() == [0, 1]
    assert 0.05 < learned.report["share_of_gain_of_position"] < 1


def test_the_gradient_is_the_derivative_of_the_log_likelihood() -> None:
    counts = CountTable.from_dense(np.array([[5.0, 2.0], [0.0, 3.0]]), np.array([[1.0, 2.0], [0.0, 0.0]]))
    loss, at = ClickRates(counts), np.array([0.3, -1.0, 2.0])
    for number in range(3):
        wanted = -slope(loss.per_impression, at, number) * 10
        assert loss.gradients(at)[0][number] == pytest.approx(wanted, abs=1e-8)


class Once:
    """Rows that can be read in runs only, as those on disk are quickly."""

    def __init__(self, rows: Floats) -> None:
        self.rows, self.single = rows, 0

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, wanted: object) -> Floats:
        self.single += not isinstance(wanted, slice)
        return np.asarray(self.rows[wanted])  # type: ignore[index]


def test_documents_are_read_in_runs() -> None:
    rows = Once(np.arange(20.0).reshape(10, 2))
    document = np.repeat(np.arange(10), 3)
    found = DocumentsAtPositions(Features(rows, ("a", "b")), document, np.tile([1, 2, 3], 10))
    assert found[6:12].tolist() == [[4, 5, 1], [4, 5, 2], [4, 5, 3], [6, 7, 1], [6, 7, 2], [6, 7, 3]]
    assert rows.single == 0
    assert found[np.array([29, 0])].tolist() == [[18, 19, 3], [0, 1, 1]]


def test_held_out_queries_are_followed_and_not_learnt_from() -> None:
    data = draw(held_out=0.3)
    learned = learn("position-feature", data)
    assert learned.curve["validation"].null_count() == 0
    changed = replace(
        data,
        counts=replace(data.counts, clicks=np.where(data.held_out[data.counts.unit_of_entry], 0, data.counts.clicks)),
    )
    rows = np.random.default_rng(9).standard_normal((50, 2))
    np.testing.assert_array_equal(scores(learned, rows), scores(learn("position-feature", changed), rows))
