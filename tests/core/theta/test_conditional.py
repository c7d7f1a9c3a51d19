"""Conditional estimation: its derivatives, its optimum, its invariances, and counts of any size."""

import numpy as np
import pytest
from dense import dense_counts, log_likelihood
from small_logs import dense_table

from posbias.core.arrays.count_table import CountTable, Floats
from posbias.core.theta import conditional as module
from posbias.core.theta.conditional import (
    ConditionalFit,
    find_linkage,
    fit_conditional,
    linked_counts,
    upper_limits_without_clicks,
)


def random_table(seed: int, n_units: int = 40, n_cells: int = 4, *, fractional: bool = False) -> CountTable:
    """A dense log in which every cell is identified."""
    rng = np.random.default_rng(seed)
    impressions = rng.integers(1, 30, (n_units, n_cells)) * (rng.random((n_units, n_cells)) < 0.7)
    theta = 1 / np.arange(1, n_cells + 1)
    clicks = rng.binomial(impressions, rng.beta(2, 3, (n_units, 1)) * theta)
    scale = rng.random((n_units, 1)) if fractional else np.ones((n_units, 1))
    return dense_table(impressions * scale, clicks * scale)


def fit(table: CountTable) -> ConditionalFit:
    return fit_conditional(table, find_linkage(table))


@pytest.mark.parametrize("seed", range(5))
def test_gradient_vanishes_and_information_is_minus_the_hessian_by_finite_differences(seed: int) -> None:
    table = random_table(seed, fractional=seed % 2 == 1)
    counts, found = dense_counts(table), fit(table)
    size = len(found.free_cells)
    step = 1e-3

    def at(*moves: tuple[int, float]) -> float:
        log_theta = found.log_theta.copy()
        for which, distance in moves:
            log_theta[found.free_cells[which]] += distance
        return log_likelihood(*counts, log_theta)

    gradient = [(at((k, step)) - at((k, -step))) / (2 * step) for k in range(size)]
    hessian = [
        [
            (
                at((i, step), (j, step))
                - at((i, step), (j, -step))
                - at((i, -step), (j, step))
                + at((i, -step), (j, -step))
            )
            / (4 * step**2)
            for j in range(size)
        ]
        for i in range(size)
    ]
    scale = np.abs(found.information).max()
    np.testing.assert_allclose(gradient, 0, atol=1e-5 * scale)
    np.testing.assert_allclose(found.information, -np.array(hessian), atol=1e-5 * scale)
    alone = (counts[0] > 0).sum(axis=1) < 2
    of_others = log_likelihood(counts[0][alone], counts[1][alone], found.log_theta)
    assert found.objective == pytest.approx(log_likelihood(*counts, found.log_theta) - of_others, rel=1e-12)


def test_it_reaches_the_fixed_point_of_iterative_proportional_fitting() -> None:
    table = random_table(11)
    linked = linked_counts(table, find_linkage(table))
    part = linked.table
    theta = np.ones(part.n_cells)
    for _ in range(3000):
        gamma = linked.unit_clicks / part.sum_by_unit(part.impressions * theta[part.cell])
        theta = part.sum_by_cell(part.clicks) / part.sum_by_cell(part.impressions * part.spread(gamma))
        theta /= theta[linked.reference_of]
    np.testing.assert_allclose(fit(table).theta[linked.cells], theta, rtol=1e-10)


@pytest.mark.parametrize("scale", [1e-12, 1e-3, 1e12])
def test_a_common_scale_of_all_counts_changes_nothing(scale: float) -> None:
    table = random_table(4)
    scaled = CountTable(4, table.start, table.cell, table.impressions * scale, table.clicks * scale, table.multiplicity)
    found = fit(scaled)
    assert found.converged
    np.testing.assert_allclose(found.theta, fit(table).theta, rtol=1e-9)


@pytest.mark.parametrize(
    ("impressions", "clicks"),
    [
        ([[1e12, 1e12, 1.0]], [[1e12, 1e3, 1.0]]),
        ([[1.0, 1e12, 1e12]], [[1.0, 1.0, 1e12]]),
        ([[1e12, 1e12, 1e12]], [[1e3, 1e12, 1e3]]),
        ([[1e12, 1e12, 1.0]], [[1e12, 1.0, 1e-12]]),
    ],
)
def test_extreme_counts_and_rates_keep_their_closed_form(
    impressions: list[list[float]], clicks: list[list[float]]
) -> None:
    table = dense_table(np.array(impressions), np.array(clicks))
    found = fit(table)
    rate = np.array(clicks[0]) / np.array(impressions[0])
    assert found.converged
    np.testing.assert_allclose(found.theta, rate / rate[0], rtol=1e-7)


@pytest.mark.parametrize("steep", [1.0, 1e-3, 1e-6, 1e-9])
def test_the_start_does_not_matter(steep: float, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    impressions = 10 ** rng.uniform(0, 12, (30, 4))
    clicks = impressions * rng.random((30, 1)) * np.array([1, steep, steep**0.5, 1]) * rng.uniform(0.5, 1, (30, 4))
    table = dense_table(impressions, clicks)
    warm = fit(table)
    monkeypatch.setattr("posbias.core.theta.conditional._WARM_UP", 0)
    cold = fit(table)
    assert warm.converged
    assert cold.converged
    np.testing.assert_allclose(cold.theta, warm.theta, rtol=1e-7)


def test_where_no_newton_step_gains_a_scaling_step_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    table = random_table(5)
    expected = fit(table).theta
    monkeypatch.setattr("posbias.core.arrays.optimize.HALVINGS", 0)
    np.testing.assert_allclose(fit(table).theta, expected, rtol=1e-8)


def test_a_weak_link_between_heavy_groups_is_resolved() -> None:
    impressions = np.array([[1e9, 1e9, 0, 0], [0, 0, 1e9, 1e9], [0, 2, 2, 0]], np.float64)
    clicks = np.array([[4e8, 2e8, 0, 0], [0, 0, 3e8, 1e8], [0, 1, 1, 0]], np.float64)
    found = fit(dense_table(impressions, clicks))
    assert found.converged
    np.testing.assert_allclose(found.theta, [1, 1 / 2, 1 / 2, 1 / 6], rtol=1e-6)


def test_the_unidentified_part_stays_null_and_does_not_disturb_the_rest() -> None:
    impressions = np.array([[10, 10, 0, 0], [0, 0, 10, 10], [0, 5, 5, 0]], np.float64)
    clicks = np.array([[4, 2, 0, 0], [0, 0, 3, 1], [0, 2, 0, 0]], np.float64)
    found = fit(dense_table(impressions, clicks))
    np.testing.assert_allclose(found.theta, [1, 0.5, np.nan, np.nan])
    assert found.information.shape == (1, 1)


def test_running_out_of_iterations_is_reported() -> None:
    table = random_table(3)
    told: list[int] = []
    found = fit_conditional(
        table, find_linkage(table), max_iterations=1, on_iteration=lambda number, _change: told.append(number)
    )
    assert not found.converged
    assert told == [1]


def test_the_upper_limit_leaves_the_given_probability_of_no_click() -> None:
    impressions = np.array([[10, 10, 6], [20, 30, 15], [0, 0, 7]], np.float64)
    clicks = np.array([[4, 2, 0], [9, 6, 0], [0, 0, 3]], np.float64)
    table = dense_table(impressions, clicks)
    linkage = find_linkage(table)
    found = fit_conditional(table, linkage)
    limit = upper_limits_without_clicks(found, table)
    expected = impressions[:2, :2] @ found.theta[:2]
    no_click: Floats = (expected / (expected + impressions[:2, 2] * limit[2])) ** clicks[:2].sum(axis=1)
    assert float(np.prod(no_click)) == pytest.approx(0.025, rel=1e-10)
    assert np.isnan(limit[:2]).all()


def test_shares_are_the_same_on_both_ways_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(8)
    table = dense_table(rng.integers(1, 9, (30, 4)).astype(float), np.zeros((30, 4)))
    beta = np.array([0.0, -1.0, -20.0, 3.0])
    fast_way = module.click_shares(table, beta)
    monkeypatch.setattr(module, "_UNDERFLOW", np.inf)
    for fast, slow in zip(fast_way, module.click_shares(table, beta), strict=True):
        np.testing.assert_allclose(fast, slow, rtol=1e-13)


def test_a_unit_in_cells_of_vanishing_theta_only_still_has_shares() -> None:
    table = dense_table(np.array([[0.0, 2.0, 6.0], [1.0, 1.0, 0.0]]), np.zeros((2, 3)))
    share, log_sum = module.click_shares(table, np.array([0.0, -900.0, -900.0]))
    np.testing.assert_allclose(share[:2], [0.25, 0.75], rtol=1e-12)
    np.testing.assert_allclose(log_sum[0], np.log(8) - 900, rtol=1e-12)
