"""The default learner, and the naive one beside it."""

from dataclasses import replace

import numpy as np
import pytest
from learning_logs import draw, rank_correlation, true_scores

from posbias.core.arrays.count_table import Floats
from posbias.core.learners.boosting import TreeOptions
from posbias.core.learners.data import LearningData
from posbias.core.learners.learner import Learned, LearningOptions
from posbias.core.learners.links import sigmoid
from posbias.core.learners.methods import get_learner
from posbias.core.learners.models import RowModel

OPTIONS = LearningOptions(TreeOptions(trees=60))


def learn(name: str, data: LearningData, options: LearningOptions = OPTIONS) -> Learned:
    return get_learner(name).learn(data, options, lambda: None)


def scores(learned: Learned, rows: Floats) -> Floats:
    assert isinstance(learned.model, RowModel)
    return learned.model.scores(rows)


@pytest.fixture(scope="module")
def data() -> LearningData:
    return draw()


@pytest.fixture(scope="module")
def unseen() -> Floats:
    return np.random.default_rng(9).standard_normal((2_000, 2))


def test_pbm_ranks_documents_that_it_has_not_seen_by_what_clicks_are_drawn_from(
    data: LearningData, unseen: Floats
) -> None:
    found = scores(learn("pbm", data), unseen)
    assert rank_correlation(found, true_scores(unseen)) > 0.97
    assert np.abs(sigmoid(found) - sigmoid(true_scores(unseen))).mean() < 0.06  # on the probability scale


def test_naive_takes_what_the_ranker_likes_for_relevance(data: LearningData, unseen: Floats) -> None:
    naive, corrected = (rank_correlation(scores(learn(name, data), unseen), unseen[:, 1]) for name in ("naive", "pbm"))
    assert naive > corrected + 0.2


def test_cells_without_a_theta_teach_nothing(data: LearningData, unseen: Floats) -> None:
    theta = data.examination.copy()
    theta[-1] = np.nan
    without = replace(data, examination=theta, counts=data.counts.only_cells(np.arange(len(theta)) < len(theta) - 1))
    np.testing.assert_array_equal(
        scores(learn("pbm", replace(data, examination=theta)), unseen), scores(learn("pbm", without), unseen)
    )


def test_learning_stops_once_held_out_queries_fare_no_better() -> None:
    data = draw(held_out=0.3)
    options = LearningOptions(TreeOptions(trees=400), early_stopping=5)
    learned = learn("pbm", data, options)
    best = learned.report["trees"]
    assert best + 5 == learned.curve["round"].max()
    assert learned.curve["validation"].arg_max() == best - 1
    assert data.features is not None
    fewer = learn("pbm", data, LearningOptions(TreeOptions(trees=best)))
    rows = np.asarray(data.features.rows)
    np.testing.assert_allclose(scores(learned, rows), scores(fewer, rows), atol=1e-12)


def test_held_out_queries_are_not_learnt_from() -> None:
    data = draw(held_out=0.3)
    other = replace(
        data,
        counts=replace(data.counts, clicks=np.where(data.held_out[data.counts.unit_of_entry], 0, data.counts.clicks)),
    )
    assert data.features is not None
    rows = np.asarray(data.features.rows)
    np.testing.assert_array_equal(scores(learn("pbm", data), rows), scores(learn("pbm", other), rows))


def test_importance_names_the_feature_that_tells(data: LearningData) -> None:
    importance = learn("pbm", data).importance
    assert importance is not None
    assert importance.sort("gain", descending=True)["feature"][0] == 0
