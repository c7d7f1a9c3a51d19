"""The smooth curve: its optimum, free where the log is rich, a power where it is thin, honest where it says nothing."""

from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
from dense import log_likelihood, scores_and_information
from small_logs import dense_table, fitted_pairs, fitted_strata, side_by_side

from posbias.core.arrays.count_table import Floats, Integers
from posbias.core.shapes import ONE_END, SHAPE_ALONE
from posbias.core.shapes import smooth as module
from posbias.core.shapes.linear import PowerShape
from posbias.core.shapes.smooth import SmoothShape
from posbias.core.standard_errors.contrasts import StrataEstimate

POWER: Floats = (1 / np.arange(1, 7)).astype(np.float64)
BUMPY = np.array([1.0, 0.5, 0.7, 0.25, 0.4, 0.2])
POSITIONS = np.arange(1, 7)


def counts(seed: int, theta: Floats, n_pairs: int, mean: float) -> tuple[Floats, Floats]:
    """Impressions, most of them at one position, and clicks, each of shape (pairs, K)."""
    rng = np.random.default_rng(seed)
    home = np.arange(n_pairs) % len(theta)
    shown: Floats = mean * (0.85 * np.eye(len(theta))[home] + 0.15 / len(theta))
    impressions = np.asarray(rng.poisson(shown), np.int64)
    clicks = np.asarray(rng.binomial(impressions, rng.beta(1, 2, (n_pairs, 1)) * theta), np.int64)
    return impressions.astype(np.float64), clicks.astype(np.float64)


def fitted(impressions: Floats, clicks: Floats, query: Integers | None = None, n_contexts: int = 1) -> StrataEstimate:
    pairs = dense_table(impressions, clicks)
    return fitted_pairs(pairs, np.arange(len(impressions)) // 6 if query is None else query, n_contexts)


def roughness() -> Floats:
    """R: beta' R beta is -2 log density of the walk's increments along log position, less what a slope explains."""
    lengths = np.diff(np.log(POSITIONS))
    steps = np.diff(np.eye(len(POSITIONS)), axis=0)
    off_slope: Floats = steps - np.outer(lengths, steps.sum(axis=0)) / lengths.sum()
    return off_slope.T @ (off_slope / lengths[:, np.newaxis])


def _independent(_: object) -> float:
    """The spread of independent clicks."""
    return 1.0


@pytest.mark.parametrize("tau", [0.05, 0.5])
def test_the_curve_given_tau_is_the_optimum_of_the_penalised_likelihood(
    tau: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_TAU", np.array([tau]))
    monkeypatch.setattr(module, "_SLOPE", 0.0)
    monkeypatch.setattr("posbias.core.shapes.smooth._Curves._overdispersion", _independent)
    impressions, clicks = counts(1, BUMPY, 300, 3)
    found = SmoothShape().fit(fitted(impressions, clicks), POSITIONS)

    precision = roughness() / tau**2

    def loss(free: Floats) -> tuple[float, Floats]:
        beta = np.append(0.0, free)
        gradient = scores_and_information(impressions, clicks, np.exp(beta))[0].sum(axis=0)
        value = log_likelihood(impressions, clicks, beta)
        return float(beta @ precision @ beta) / 2 - value, (precision @ beta - gradient)[1:]

    minimize = import_module("scipy.optimize").minimize
    best = minimize(loss, np.log(POWER[1:]), jac=True, method="BFGS", options={"gtol": 1e-9})
    np.testing.assert_allclose(loss(found.log_theta[1:])[1], 0, atol=1e-6)
    np.testing.assert_allclose(found.log_theta[1:], best.x, atol=1e-8)
    assert found.tau == pytest.approx(tau)


def test_with_many_clicks_it_is_the_free_estimate_with_its_intervals() -> None:
    free = fitted(*counts(2, BUMPY, 3000, 400))
    found = SmoothShape().fit(free, POSITIONS)
    assert found.converged
    np.testing.assert_allclose(found.log_theta, free.fit.log_theta, atol=0.15 * free.errors.std_error.max())
    np.testing.assert_allclose(found.intervals.std_error[1:], free.errors.std_error[1:], rtol=0.05)
    np.testing.assert_allclose(found.intervals.high, free.errors.high, rtol=0.01)


@pytest.mark.parametrize("theta", [POWER, BUMPY], ids=["power", "bumpy"])
@pytest.mark.slow
def test_on_thin_logs_it_is_hardly_worse_than_the_better_of_free_and_power_and_covers(theta: Floats) -> None:
    errors, covered = list[Floats](), list[float]()
    for seed in range(30):
        free = fitted(*counts(seed, theta, 600, 3))
        found = SmoothShape().fit(free, POSITIONS)
        curves = np.stack([free.fit.log_theta, PowerShape().fit(free, POSITIONS).log_theta, found.log_theta])
        errors.append((curves - np.log(theta))[:, 1:])
        inside = (found.intervals.low <= theta) & (theta <= found.intervals.high)
        covered.append(float(inside[1:].mean()))
    of_free, of_power, of_smooth = np.sqrt(np.mean(np.square(errors), axis=(0, 2)))
    assert of_smooth < 1.1 * min(of_free, of_power)
    assert of_smooth < 0.97 * max(of_free, of_power)
    assert 0.88 <= np.mean(covered) <= 1


def test_a_cell_that_the_log_does_not_link_follows_its_neighbours_with_a_wider_interval() -> None:
    impressions, clicks = counts(3, POWER, 600, 10)
    clicks[:, 3] = 0
    impressions[np.arange(600) % 6 != 3, 3] = 0
    impressions[:, 3] *= impressions[:, [0, 1, 2, 4, 5]].sum(axis=1) == 0  # alone on its pairs
    free = fitted(impressions, clicks)
    found = SmoothShape().fit(free, POSITIONS)
    assert not free.fit.linkage.identified[3]
    assert found.intervals.reason == (None, None, None, SHAPE_ALONE, None, None)
    assert found.log_theta[4] - 0.3 < found.log_theta[3] < found.log_theta[2] + 0.3
    width = np.log(found.intervals.high / found.intervals.low)
    assert width[3] > width[[2, 4]].mean()


def test_a_cell_with_clicks_nowhere_counts_as_what_it_is() -> None:
    """Shown often beside clicked cells and never clicked: its number lies below that of its neighbours."""
    impressions, clicks = counts(4, POWER, 600, 10)
    clicks[:, 3] = 0
    found = SmoothShape().fit(fitted(impressions, clicks), POSITIONS)
    assert found.theta[3] < 0.7 * min(found.theta[2], found.theta[4])
    assert np.isfinite(found.intervals.high[3])


def test_copies_of_a_log_in_the_same_queries_add_no_information() -> None:
    impressions, clicks = counts(5, BUMPY, 300, 4)
    once, copied = (SmoothShape().fit(fitted(n * impressions, n * clicks), POSITIONS) for n in (1, 12))
    np.testing.assert_allclose(copied.log_theta, once.log_theta, atol=0.05)
    np.testing.assert_allclose(copied.intervals.std_error[1:], once.intervals.std_error[1:], rtol=0.1)


def test_sums_of_small_weights_lose_no_information() -> None:
    free = fitted(*counts(5, BUMPY, 300, 4))
    table = free.strata.signatures
    light = replace(table, impressions=0.01 * table.impressions, clicks=0.01 * table.clicks)
    found = SmoothShape().fit(fitted_strata(replace(free.strata, signatures=light)), POSITIONS)
    np.testing.assert_allclose(found.log_theta, SmoothShape().fit(free, POSITIONS).log_theta, atol=0.05)


def test_contexts_have_curves_of_their_own_and_one_without_a_slope_has_none() -> None:
    impressions, clicks = counts(7, POWER, 300, 6)
    other = np.zeros((20, 6))
    other[:, [1, 3]] = 4
    clicked = np.where(np.arange(6) == 1, other / 2, 0)
    together = SmoothShape().fit(
        fitted(side_by_side(impressions, other), side_by_side(clicks, clicked), np.arange(320) // 6, 2),
        np.tile(POSITIONS, 2),
    )
    alone = SmoothShape().fit(fitted(impressions, clicks), POSITIONS)
    np.testing.assert_allclose(together.log_theta[:6], alone.log_theta, atol=1e-6)
    assert together.intervals.reason[6:] == (ONE_END,) * 6
    assert np.isnan(together.log_theta[6:]).all()
