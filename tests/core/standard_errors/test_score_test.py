"""Score tests: what they are by their formulas, and how they behave at the edges."""

import numpy as np
import pytest
from dense import by_cluster, dense_counts, scores_and_information
from present import present
from small_logs import dense_table

from posbias.core.arrays.count_table import Floats, Members
from posbias.core.arrays.linalg import solve
from posbias.core.counts.sufficient_statistics import Strata
from posbias.core.standard_errors.contrasts import direction_test, score_test
from posbias.core.theta.conditional import find_linkage, fit_conditional


def strata_of(impressions: Floats, clicks: Floats, docs_per_query: int = 4) -> Strata:
    table = dense_table(impressions, clicks)
    return Strata(table, Members(np.arange(table.n_units), np.arange(table.n_units) // docs_per_query))


def drawn(theta: Floats, seed: int, n_units: int = 80) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(seed)
    impressions = rng.integers(5, 60, (n_units, len(theta))).astype(float)
    gamma = rng.beta(2, 4, (n_units, 1))
    return impressions, rng.binomial(impressions.astype(np.int64), gamma * theta).astype(float)


# Cells (0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1) of a model with three.
FINER_CELL, DIRECTION = np.repeat(np.arange(3), 2), np.tile([0.0, 1.0], 3)
FINER = FINER_CELL, DIRECTION, np.zeros(3, np.int64)


def test_the_statistic_is_what_its_formulas_say_with_each_cluster_left_out_by_hand() -> None:
    strata = strata_of(*drawn(np.repeat([0.9, 0.6, 0.3], 2), 1))
    found = present(score_test(strata, *FINER))

    clusters = strata.members.cluster.astype(np.int64)
    impressions, clicks = dense_counts(strata.signatures)
    merged = dense_table(impressions.reshape(-1, 3, 2).sum(axis=2), clicks.reshape(-1, 3, 2).sum(axis=2))
    theta = fit_conditional(merged, find_linkage(merged)).theta[FINER_CELL]
    scores, information = scores_and_information(impressions, clicks, theta)
    model = np.eye(3)[FINER_CELL][:, 1:]
    whole = information.sum(axis=0)
    explained = solve(model.T @ whole @ model, model.T @ whole @ DIRECTION)
    along = DIRECTION - (model * explained).sum(axis=1)
    of_cluster, weight = by_cluster(scores @ along, clusters), by_cluster(information @ along @ along, clusters)
    delta = of_cluster.sum() / weight.sum()
    without = np.array([np.delete(of_cluster, g).sum() / np.delete(weight, g).sum() for g in range(20)])
    std_error = np.sqrt(19 / 20 * ((without - delta) ** 2).sum())  # the jackknife, around the whole

    assert found.clusters == 20
    np.testing.assert_allclose(found.difference_of_logs, delta, rtol=1e-6)
    np.testing.assert_allclose(found.std_error, std_error, rtol=1e-6)
    np.testing.assert_allclose(found.degrees, min(weight.sum() ** 2 / (weight**2).sum(), 19), rtol=1e-6)


def test_a_difference_within_the_models_cells_is_found_with_its_sign() -> None:
    theta = np.array([0.9, 0.7, 0.6, 0.45, 0.3, 0.23])  # 25 % less in the second half of each cell
    found = present(score_test(strata_of(*drawn(theta, 2)), *FINER))

    assert found.p_value < 1e-3
    assert found.difference_of_logs == pytest.approx(np.log(0.76), abs=0.1)
    assert found.observed_clicks < found.expected_clicks


def test_cells_without_a_click_are_evidence() -> None:
    impressions, clicks = drawn(np.array([0.9, 0.0, 0.6, 0.0, 0.3, 0.0]), 3)
    found = present(score_test(strata_of(impressions, clicks), *FINER))

    assert found.observed_clicks == 0
    assert found.p_value < 1e-6


def test_within_units_theta_drops_out() -> None:
    """Each unit in one cell of the model: whatever theta of that cell, the test is the same as with it fitted."""
    rng = np.random.default_rng(4)
    impressions = rng.integers(5, 60, (60, 2)).astype(float)
    clicks = rng.binomial(impressions.astype(np.int64), 0.3 * rng.random((60, 1))).astype(float)
    direction = np.array([0.0, 1.0])
    scaled = present(direction_test(strata_of(7 * impressions, clicks), direction))
    plain = present(direction_test(strata_of(impressions, clicks), direction))

    assert plain.statistic == pytest.approx(scaled.statistic)


def test_where_few_clicks_are_expected_chance_rejects_no_more_often_than_the_level() -> None:
    """Some four clicks are expected in the rare cell of 60 queries, and often there is none or one."""
    rng = np.random.default_rng(6)
    impressions = np.tile([2_000.0, 20.0], (60, 1))
    shown, p_values, rare = impressions.astype(np.int64), list[float](), list[float]()
    for _ in range(400):
        clicks = rng.binomial(shown, 0.0035).astype(float)
        found = present(direction_test(strata_of(impressions, clicks, 1), np.array([0.0, 1.0])))
        p_values.append(found.p_value)
        rare.append(found.observed_clicks)

    assert min(rare) == 0
    assert np.mean(np.array(p_values) < 0.05) < 0.06
    assert np.mean(np.array(p_values) < 0.01) < 0.015


@pytest.mark.parametrize("docs_per_query", [80, 1000])
def test_one_cluster_says_nothing(docs_per_query: int) -> None:
    assert score_test(strata_of(*drawn(np.full(6, 0.5), 5), docs_per_query), *FINER) is None


def test_clusters_that_agree_to_the_last_click_say_nothing() -> None:
    impressions, clicks = np.full((4, 6), 50.0), np.tile([20.0, 10.0, 8.0, 8.0, 4.0, 4.0], (4, 1))
    assert score_test(strata_of(impressions, clicks, 2), *FINER) is None


def test_nothing_is_said_where_nothing_links_two_cells() -> None:
    impressions = np.zeros((6, 6))
    impressions[:, 0] = 10.0
    assert score_test(strata_of(impressions, impressions / 2), *FINER) is None
