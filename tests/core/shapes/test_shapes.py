"""Curves of a given shape: brute-force optima, errors over queries, where the log is silent, and the tests."""

import numpy as np
import pytest
from dense import by_cluster, log_likelihood, scores_and_information
from scipy import stats
from small_logs import dense_table, fitted_pairs, side_by_side

from posbias.core.arrays.count_table import Floats, Integers
from posbias.core.arrays.optimize import Limits
from posbias.core.shapes import ONE_END, SHAPE_ALONE, CurveShape, ShapedEstimate
from posbias.core.shapes.linear import PowerShape
from posbias.core.shapes.monotone import HELD, MonotoneShape
from posbias.core.shapes.smooth import SmoothShape
from posbias.core.standard_errors.cluster import IDENTICAL_CLUSTERS, ONE_CLUSTER
from posbias.core.standard_errors.contrasts import StrataEstimate
from posbias.core.theta.conditional import NO_CLICKS, find_linkage, fit_conditional

POWER = tuple(1 / np.arange(1, 6))
Fitted = tuple[StrataEstimate, Integers]


def counts(
    seed: int, theta: tuple[float, ...] = POWER, n_pairs: int = 60, mean: float = 5.0, n_queries: int = 15
) -> tuple[Floats, Floats, Integers]:
    """Impressions and clicks, each of shape (J, K), and the query of each pair, some of them large."""
    rng = np.random.default_rng(seed)
    impressions = rng.poisson(mean, (n_pairs, len(theta))) * (rng.random((n_pairs, len(theta))) < 0.7)
    clicks = rng.binomial(impressions, rng.beta(2, 3, (n_pairs, 1)) * np.array(theta) / max(theta))
    return impressions.astype(float), clicks.astype(float), rng.integers(0, n_queries, n_pairs)


def statistics(
    impressions: Floats, clicks: Floats, query: Integers, position: Integers | None = None, n_contexts: int = 1
) -> Fitted:
    free = fitted_pairs(dense_table(impressions, clicks), query, n_contexts)
    positions = np.tile(np.arange(1, impressions.shape[1] // n_contexts + 1, dtype=np.int64), n_contexts)
    return free, positions if position is None else position


def power(*arguments: object) -> ShapedEstimate:
    return PowerShape().fit(*statistics(*arguments))  # pyright: ignore[reportArgumentType]


def monotone(*arguments: object) -> ShapedEstimate:
    return MonotoneShape().fit(*statistics(*arguments))  # pyright: ignore[reportArgumentType]


def best_eta(impressions: Floats, clicks: Floats, position: Integers) -> float:
    """By golden section."""
    low, high, ratio = -5.0, 5.0, (np.sqrt(5) - 1) / 2
    x = np.log(position)
    for _ in range(80):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        if log_likelihood(impressions, clicks, -left * x) > log_likelihood(impressions, clicks, -right * x):
            high = right
        else:
            low = left
    return low


@pytest.mark.parametrize("seed", range(4))
def test_eta_is_the_brute_force_optimum(seed: int) -> None:
    impressions, clicks, query = counts(seed)
    found = power(impressions, clicks, query)
    assert found.converged
    assert found.eta[0] == pytest.approx(best_eta(impressions, clicks, np.arange(1, 6)), abs=1e-6)
    np.testing.assert_allclose(found.log_theta, -found.eta * np.log(np.arange(1, 6)), atol=1e-14)


def test_errors_of_eta_are_the_formula_over_queries() -> None:
    impressions, clicks, query = counts(2, n_queries=40, n_pairs=120)
    found = power(impressions, clicks, query)
    x = np.log(np.arange(1, 6))
    scores, informations = scores_and_information(impressions, clicks, found.theta)
    score, information = by_cluster(scores @ -x, query), by_cluster(informations @ x @ x, query)
    assert score.sum() == pytest.approx(0, abs=1e-8)
    rest, n_queries = information.sum() - information, int((information > 0).sum())
    assert found.eta_error[0] == pytest.approx(np.sqrt((1 - 1 / n_queries) * np.sum((score / rest) ** 2)), rel=1e-10)
    effective = information.sum() ** 2 / np.sum(information**2)
    np.testing.assert_allclose(found.intervals.effective_clusters[1:], effective, rtol=1e-10)
    np.testing.assert_allclose(found.intervals.std_error, x * found.eta_error, atol=1e-14)
    quantile = np.log(found.intervals.high / found.intervals.low)[1:] / 2 / found.intervals.std_error[1:]
    np.testing.assert_allclose(quantile, stats.t.ppf(0.975, effective), rtol=1e-10)  # pyright: ignore[reportUnknownMemberType]


@pytest.mark.parametrize("shape", [PowerShape(), SmoothShape()], ids=lambda shape: shape.name)
def test_queries_that_agree_to_the_last_click_give_no_interval_of_width_0(shape: CurveShape) -> None:
    impressions, clicks, _ = counts(16, n_pairs=20)
    found = shape.fit(*statistics(np.tile(impressions, (2, 1)), np.tile(clicks, (2, 1)), np.repeat([0, 1], 20)))
    assert found.intervals.reason == (None, *[IDENTICAL_CLUSTERS] * 4)
    assert np.isnan(found.intervals.high[1:]).all()
    assert np.isnan(found.eta_error).all()


def test_a_power_says_something_where_the_log_says_nothing() -> None:
    impressions, clicks, query = counts(3)
    impressions[:, 3] = 0
    impressions[:5, 3] = 1  # shown, and never clicked
    clicks[:, 3] = 0
    impressions[:, 4] = clicks[:, 4] = 0  # never shown
    found = power(impressions, clicks, query)
    assert found.intervals.reason == (None, None, None, SHAPE_ALONE, SHAPE_ALONE)
    assert found.theta[4] == pytest.approx(5 ** -found.eta[4])
    assert np.isfinite(found.intervals.high).all()
    assert found.eta[0] == pytest.approx(best_eta(impressions, clicks, np.arange(1, 6)), abs=1e-6)
    assert found.test.n_contrasts == 2


@pytest.mark.parametrize(("shown", "clicked"), [((0, 1, 2, 3, 4), None), ((1, 3), 1), ((1, 3), 3)])
def test_a_context_of_single_cells_or_with_clicks_at_one_end_has_no_slope(
    shown: tuple[int, ...], clicked: int | None
) -> None:
    impressions, clicks, query = counts(4, n_pairs=40)
    other = np.zeros((10, 5))
    if clicked is None:
        other[np.arange(10), np.arange(10) % 5] = 4  # a document stands at one position
    else:
        other[:, shown] = 4
    other_clicks = other / 2 if clicked is None else np.where(np.arange(5) == clicked, other / 2, 0)
    both = side_by_side(impressions, other), side_by_side(clicks, other_clicks)
    found = power(*both, np.concatenate([query, np.arange(10)]), None, 2)
    assert found.converged
    assert found.intervals.reason == (None,) * 5 + (ONE_END,) * 5
    assert np.isnan([found.log_theta[5:], found.eta[5:]]).all()
    np.testing.assert_allclose(found.log_theta[:5], power(impressions, clicks, query).log_theta, atol=1e-9)


@pytest.mark.parametrize("shape", [PowerShape(), SmoothShape()], ids=lambda shape: shape.name)
def test_one_query_leaves_the_curve_without_an_error(shape: CurveShape) -> None:
    impressions, clicks, query = counts(5)
    found = shape.fit(*statistics(impressions, clicks, np.zeros_like(query)))
    assert np.isfinite(found.log_theta).all()
    assert found.intervals.reason == (None,) + (ONE_CLUSTER,) * 4
    assert np.isnan(found.intervals.high[1:]).all()


@pytest.mark.parametrize("seed", range(6))
def test_monotone_is_the_best_of_all_ways_to_pool_neighbours(seed: int) -> None:
    """Brute force over the 16 ways to join neighbouring cells: the best curve among those that nowhere rise."""
    pairs = np.repeat(np.arange(60), 1 + np.arange(60) % 2)  # every second one stands twice
    impressions, clicks, query = counts(seed, (1.0, 0.9, 0.95, 0.6, 0.7))
    impressions, clicks, query = impressions[pairs], clicks[pairs], query[pairs]
    found = monotone(impressions, clicks, query)
    assert found.converged
    best = -np.inf
    for joined in range(16):
        block = np.cumsum([0, *(1 - (joined >> i) % 2 for i in range(4))])
        curve = np.zeros(5)
        if block[-1]:
            merged = [
                np.stack([part[:, block == b].sum(axis=1) for b in range(block[-1] + 1)], 1)
                for part in (impressions, clicks)
            ]
            table = dense_table(merged[0], merged[1])
            curve = fit_conditional(table, find_linkage(table)).log_theta[block]
        if (np.diff(curve) <= 0).all():
            best = max(best, log_likelihood(impressions, clicks, curve))
    assert log_likelihood(impressions, clicks, found.log_theta) == pytest.approx(best, abs=1e-8)
    assert (np.diff(found.log_theta) <= 0).all()


def test_a_curve_that_falls_by_itself_stays_as_it_is() -> None:
    impressions, clicks, query = counts(8, (1.0, 0.6, 0.4, 0.25, 0.15), n_pairs=300)
    free, _ = statistics(impressions, clicks, query)
    fit, errors = free.fit, free.errors
    found = monotone(impressions, clicks, query)
    assert (np.diff(fit.log_theta) < 0).all()
    np.testing.assert_allclose(found.log_theta, fit.log_theta, atol=1e-9)
    np.testing.assert_allclose(found.intervals.std_error, errors.std_error, rtol=1e-8)
    np.testing.assert_array_equal(found.block, np.arange(5))
    assert found.test.p_value > 0.99
    assert found.misfit == ()


def test_cells_of_a_block_share_the_number_and_the_error_of_their_sum() -> None:
    impressions, clicks, query = counts(9, (1.0, 0.4, 0.8, 0.2, 0.1), n_pairs=200)
    found = monotone(impressions, clicks, query)
    np.testing.assert_array_equal(found.block, [0, 1, 1, 3, 4])
    summed = [
        np.stack([part[:, 0], part[:, 1] + part[:, 2], part[:, 3], part[:, 4]], 1) for part in (impressions, clicks)
    ]
    free, _ = statistics(summed[0], summed[1], query)
    fit, errors = free.fit, free.errors
    for values, of_block in (
        (found.log_theta, fit.log_theta),
        (found.intervals.std_error, errors.std_error),
        (found.intervals.low, errors.low),
        (found.intervals.effective_clusters, errors.effective_clusters),
    ):
        np.testing.assert_allclose(values, of_block[[0, 1, 1, 2, 3]], atol=1e-9)
    assert found.test.rejected
    assert found.misfit == (2, 3)


def test_a_cell_held_at_the_reference_has_no_error() -> None:
    impressions, clicks, query = counts(10, (0.5, 0.9, 0.3, 0.2, 0.1), n_pairs=200)
    found = monotone(impressions, clicks, query)
    assert found.intervals.reason == (None, HELD, None, None, None)
    np.testing.assert_array_equal(found.theta[:2], 1)
    assert (found.intervals.std_error[0], np.isnan(found.intervals.std_error[1])) == (0, True)


def test_a_flat_context_leaves_the_other_as_it_is() -> None:
    rising, falling = counts(11, (0.1, 0.2, 0.3, 0.5, 0.9), n_pairs=100), counts(12, n_pairs=100)
    both = (side_by_side(*counts) for counts in zip(rising[:2], falling[:2], strict=True))
    found = monotone(*both, np.concatenate([rising[2], falling[2]]), None, 2)
    np.testing.assert_array_equal(found.theta[:5], 1)
    assert found.intervals.reason[:5] == (None, HELD, HELD, HELD, HELD)
    np.testing.assert_allclose(found.log_theta[5:], monotone(*falling).log_theta, atol=1e-9)


def test_a_block_that_holds_a_reference_below_the_first_position_is_held_at_it() -> None:
    """Cells 0 .. 3 at positions 2, 1, 3, 4: the reference, cell 0, is pooled with the position above it."""
    impressions, clicks, query = counts(17, (0.9, 0.5, 0.3, 0.2), n_pairs=200)
    found = monotone(impressions, clicks, query, np.array([2, 1, 3, 4]))
    assert found.intervals.reason == (None, HELD, None, None)
    np.testing.assert_array_equal(found.theta[:2], 1)
    np.testing.assert_array_equal(found.block, [0, 0, 2, 3])
    in_order = monotone(impressions[:, [1, 0, 2, 3]], clicks[:, [1, 0, 2, 3]], query)
    np.testing.assert_allclose(found.log_theta, in_order.log_theta, atol=1e-9)
    assert found.intervals.std_error[3] == pytest.approx(in_order.intervals.std_error[3], rel=1e-7)


def test_a_curve_that_is_not_the_optimum_is_not_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    def stay(_root: Floats, target: Floats) -> tuple[Floats, float]:
        return np.zeros(len(target)), 0.0

    monkeypatch.setattr("scipy.optimize.nnls", stay)
    found = monotone(*counts(18, n_pairs=200))
    np.testing.assert_array_equal(found.theta, 1)
    assert not found.converged


def test_positions_rule_and_not_the_numbers_of_cells() -> None:
    impressions, clicks, query = counts(12, (1.0, 0.7, 0.75, 0.3, 0.4))
    expected = monotone(impressions, clicks, query)
    turned = monotone(impressions[:, ::-1], clicks[:, ::-1], query, np.arange(5, 0, -1))  # position 5 is the reference
    np.testing.assert_allclose(
        turned.log_theta[::-1] - turned.log_theta[-1], expected.log_theta - expected.log_theta[0], atol=1e-8
    )
    by_power = power(impressions[:, ::-1], clicks[:, ::-1], query, np.arange(5, 0, -1))
    assert by_power.eta[0] == pytest.approx(power(impressions, clicks, query).eta[0], abs=1e-9)


def test_a_position_without_clicks_is_held_by_the_next_one_and_the_last_is_left_out() -> None:
    impressions, clicks, query = counts(13)
    clicks[:, [2, 4]] = 0
    found = monotone(impressions, clicks, query)
    assert found.intervals.reason == (None, None, SHAPE_ALONE, None, NO_CLICKS)
    assert found.log_theta[2] == found.log_theta[3]
    assert np.isnan(found.log_theta[4])


def test_a_steep_curve_is_reached_from_a_flat_start() -> None:
    impressions, clicks, query = counts(14, (1.0, 1e-2, 1e-2, 1e-3, 1e-3), n_pairs=300, mean=200)
    found = monotone(impressions, clicks, query)
    assert found.converged
    assert (np.diff(found.log_theta) <= 0).all()
    assert found.theta[1] == pytest.approx(1e-2, rel=0.3)


def test_another_curve_is_not_taken_for_a_power() -> None:
    found = power(*counts(1, (1.0, 0.9, 0.8, 0.2, 0.2), n_pairs=400))
    assert found.test.rejected
    assert len(found.misfit) == 1


def test_no_room_to_climb_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    for limits in ("linear._LIMITS", "monotone._LIMITS"):
        monkeypatch.setattr(f"posbias.core.shapes.{limits}", Limits(4.0, 1e-11, max_iterations=1))
    assert not power(*counts(1)).converged
    assert not monotone(*counts(1)).converged
