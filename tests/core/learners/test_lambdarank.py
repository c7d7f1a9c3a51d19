"""`lambdarank`: LightGBM's own, on the grades that the layout of judgments gives."""

from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import polars as pl
import pytest
from dense import dense_counts
from learned import learn, scores
from learning_logs import THETA, draw
from present import present
from small_logs import dense_table

from posbias.core.attractiveness import estimate_prior, posterior_by_position
from posbias.core.errors import SchemaError
from posbias.core.learners.learning import LearningData
from posbias.core.learners.trees import Graded, graded
from posbias.core.training.layout import DocumentSums, JudgmentsLayout
from posbias.core.training.weights import WeightOptions, click_weights


def layout_grades(data: LearningData) -> list[int]:
    """What `weight --layout judgments` writes."""
    counts, theta = data.counts, data.theta
    cells = pl.DataFrame({"position": data.position})
    totals = (counts.sum_by_cell(counts.impressions), counts.sum_by_cell(counts.clicks))
    weights = click_weights(cells, theta, *totals, WeightOptions())
    prior = estimate_prior(counts, theta, data.position)
    posterior = theta, *posterior_by_position(counts, theta, prior, data.position)
    sums = DocumentSums.of_signatures(counts, weights, WeightOptions(), lambda: posterior)
    pairs = pl.DataFrame(
        {"query": data.query, "doc": np.arange(data.n_documents), "signature": np.arange(data.n_documents)}
    )
    terms, rows_of = JudgmentsLayout().by_document(sums)
    return rows_of(pairs, terms)["grade"].to_list()


def test_documents_have_the_grades_of_the_layout_of_judgments() -> None:
    data = draw()
    found = graded(data)[0].grade
    wanted = layout_grades(data)
    assert (found == np.array(wanted)).mean() > 0.99  # sums in another order may round across a border
    assert len(set(wanted)) == 5


def test_it_is_lightgbm_on_these_grades() -> None:
    data = draw()
    shown = np.flatnonzero(data.counts.entries_of_unit > 0)
    grades = graded(data)[0].grade
    features = np.asarray(present(data.features).rows)
    parameters = {
        "objective": "lambdarank", "learning_rate": 0.1, "num_leaves": 15, "min_data_in_leaf": 10, "seed": 0,
        "lambdarank_norm": False, "num_threads": 1, "verbose": -1, "deterministic": True, "force_row_wise": True,
    }  # fmt: skip
    sizes = np.unique(data.query[shown], return_counts=True)[1]
    lightgbm: Any = import_module("lightgbm")  # its types are incomplete
    dataset = lightgbm.Dataset(features, np.zeros(len(features)), params=parameters).subset(shown.tolist()).construct()
    dataset.set_label(grades).set_group(sizes)  # with the bins of all documents
    own = lightgbm.train(parameters, dataset, 60)
    np.testing.assert_allclose(scores(learn("lambdarank", data), features), own.predict(features), rtol=0, atol=1e-12)


def test_ndcg_is_what_it_is_by_hand() -> None:
    graded = Graded(np.arange(6), np.array([0, 0, 0, 3, 3, 7]), np.array([0, 2, 1, 0, 0, 1]))
    at = np.array([3.0, 2.0, 1.0, 0.0, 1.0, 5.0])
    found = 3 / np.log2(3) + 1 / np.log2(4)
    best = 3 / np.log2(2) + 1 / np.log2(3)
    assert graded.per_impression(at) == pytest.approx((found / best + 1) / 2)  # the query without a grade is left out


def test_documents_that_no_cell_with_a_propensity_has_shown_are_not_graded() -> None:
    data = draw()
    first_query = (np.arange(data.n_documents) < 8)[:, np.newaxis]
    impressions, clicks = dense_counts(data.counts)
    at_the_top = np.arange(len(THETA)) == 0
    only_there = [np.where(first_query & ~at_the_top, 0, values) for values in (impressions, clicks)]
    nowhere = [np.where(first_query, 0, values) for values in (impressions, clicks)]
    assert only_there[0][:8].any()
    rows = np.random.default_rng(9).standard_normal((50, 2))
    found = [
        scores(
            learn(
                "lambdarank",
                replace(data, counts=dense_table(*values), examination=np.where(at_the_top, np.nan, THETA)),
            ),
            rows,
        )
        for values in (only_there, nowhere)
    ]
    np.testing.assert_array_equal(found[0], found[1])


def test_a_query_of_more_documents_than_lightgbm_ranks_is_an_error_that_says_so() -> None:
    with pytest.raises(SchemaError, match="a query has 10,001 documents"):
        Graded(*np.zeros((3, 10_001), np.int64))
