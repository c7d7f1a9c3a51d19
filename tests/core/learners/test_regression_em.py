"""`regression-em`: sampled labels, trees, and theta from expected examination (Wang et al. 2018)."""

from dataclasses import replace

import numpy as np
import pytest
from learned import learn, scores
from learning_logs import THETA, UNSEEN, draw, rank_correlation, true_scores
from present import present
from small_logs import dense_table

from posbias.core.arrays.count_table import CountTable, Floats
from posbias.core.learners.learning import sigmoid
from posbias.core.learners.trees import SampledLabels, expected_examination

NOW = np.array([1.0, 0.6, 0.3])


@pytest.fixture
def counts() -> CountTable:
    impressions = np.array([[4.0, 0.0, 2.0], [3.0, 5.0, 0.0], [2.5, 1.0, 1.5]])
    clicks = np.array([[2.0, 0.0, 1.0], [0.0, 2.0, 0.0], [1.5, 0.0, 0.5]])
    return dense_table(impressions, clicks)


def test_theta_is_the_mean_of_what_the_paper_expects(counts: CountTable) -> None:
    gamma = np.array([0.5, 0.2, 0.7])
    total, shown = np.zeros(3), np.zeros(3)
    for unit, cell, n, c in zip(counts.unit_of_entry, counts.cell, counts.impressions, counts.clicks, strict=True):
        examined = NOW[cell] * (1 - gamma[unit]) / (1 - NOW[cell] * gamma[unit])  # P(E = 1 | c = 0), equation 1
        total[cell] += c + (n - c) * examined
        shown[cell] += n
    np.testing.assert_allclose(expected_examination(counts, NOW, gamma), total / shown)


def test_labels_are_drawn_from_what_the_paper_expects(counts: CountTable) -> None:
    at = np.array([0.0, -1.0, 0.8])
    gamma = sigmoid(at)
    labels = SampledLabels(counts, NOW, seed=0)
    shown = counts.sum_by_unit(counts.impressions)
    drawn = np.array([shown * gamma - labels.gradients(at)[0] for _ in range(4_000)])
    by_entry = counts.spread(gamma)
    theta = NOW[counts.cell]
    relevant = by_entry * (1 - theta) / (1 - theta * by_entry)  # P(R = 1 | c = 0)
    wanted = counts.sum_by_unit(counts.clicks + (counts.impressions - counts.clicks) * relevant)
    np.testing.assert_allclose(drawn.mean(axis=0), wanted, atol=0.06)
    assert (drawn.std(axis=0) > 0.2).all()  # drawn, not expected
    whole = drawn[:, :2]  # documents with whole numbers of impressions
    np.testing.assert_allclose(whole, np.round(whole), atol=1e-9)


def test_at_the_top_where_all_is_examined_no_label_is_drawn() -> None:
    counts = dense_table(np.array([[8.0], [3.0]]), np.array([[2.0], [1.0]]))
    at = np.zeros(2)
    gradient, _ = SampledLabels(counts, np.ones(1), seed=0).gradients(at)
    np.testing.assert_allclose(gradient, [8 / 2 - 2, 3 / 2 - 1])


def test_it_finds_propensities_and_relevance_of_a_log_that_mixes_positions() -> None:
    learned = learn("regression-em", draw())
    theta = present(learned.propensities)
    assert theta[0] == 1
    assert np.abs(theta / THETA - 1).mean() < 0.15
    rows = UNSEEN
    assert rank_correlation(scores(learned, rows), true_scores(rows)) > 0.95


def test_a_cell_that_is_not_shown_has_no_propensity() -> None:
    data = draw()
    without = replace(data, counts=data.counts.only_cells(np.arange(5) != 3))
    found = present(learn("regression-em", without).propensities)
    assert np.isfinite(found).tolist() == [True, True, True, False, True]


def test_the_seed_draws_the_labels() -> None:
    data = draw()

    def found(seed: int) -> Floats:
        return scores(learn("regression-em", data, seed=seed), np.zeros((1, 2)))

    assert found(1) == found(1)
    assert found(1) != found(2)
