"""Contexts: the posterior against dense conditioning, whom shrinkage moves, its error and coverage, and the test."""

from dataclasses import replace

import numpy as np
import pytest

from posbias.core.arrays.compression import compress
from posbias.core.arrays.count_table import CountTable, Floats, Integers
from posbias.core.arrays.members import Members
from posbias.core.counts.sufficient_statistics import Strata
from posbias.core.shapes import contexts as module
from posbias.core.shapes.contexts import ShrunkContexts, compare_contexts, shrink_contexts
from posbias.core.standard_errors.cluster import ClusterErrors, cluster_errors
from posbias.core.theta.conditional import ConditionalFit, fit_conditional
from posbias.core.theta.linkage import Linkage, find_linkage

Z = 1.959963984540054
Estimates = tuple[ConditionalFit, ClusterErrors, Integers]


def inverse_of(matrix: Floats) -> Floats:
    return np.linalg.inv(matrix).astype(np.float64)


def estimates(
    log_theta: Floats, covariance: Floats, first: tuple[int, ...] | None = None, degrees: float = 1e6
) -> Estimates:
    """Free estimates of C contexts with K positions each, as a log would give them.

    Args:
        log_theta: shape (C, K), 0 at the reference.
        covariance: of the free cells.
        first: the index of each context's reference.
        degrees: effective clusters of each cell.
    """
    n_contexts, size = int(log_theta.shape[0]), int(log_theta.shape[1])
    context = np.repeat(np.arange(n_contexts), size)
    reference_of = context * size + np.repeat(first or (0,) * n_contexts, size)
    cells = np.arange(n_contexts * size)
    free = np.flatnonzero(reference_of != cells)
    sd = np.zeros(len(cells))
    sd[free] = np.sqrt(np.diag(covariance))
    b = log_theta.ravel()
    ones = np.ones(len(cells))
    linkage = Linkage(reference_of, ones > 0, (None,) * len(cells), ones, ones, reference_of)
    fit = ConditionalFit(linkage, b, True, 1, 0.0, free, inverse_of(covariance))
    effective = np.where(reference_of == cells, np.nan, degrees)
    errors = ClusterErrors(
        std_error=sd,
        low=np.exp(b - Z * sd),
        high=np.exp(b + Z * sd),
        effective_clusters=effective,
        degrees=effective,
        n_clusters=10**7,
        reason=(None,) * len(cells),
        covariance=covariance,
    )
    return fit, errors, np.tile(np.arange(1, size + 1), n_contexts)


def family(seed: int, tau: float, noise: tuple[float, ...], size: int = 6) -> tuple[Floats, Floats, Floats]:
    """Truth and estimates, each of shape (C, K), of contexts with the given noise, and the covariance."""
    rng = np.random.default_rng(seed)
    x = np.log(np.arange(1, size + 1))
    steps = rng.normal(0, tau * np.sqrt(np.diff(x)), (len(noise), size - 1))
    truth = -0.8 * x + np.pad(np.cumsum(steps, axis=1), ((0, 0), (1, 0)))
    block = 0.5 * np.eye(size - 1) + 0.5  # the reference's noise is in all of a context's cells
    covariance: Floats = np.kron(np.diag(np.square(noise)), block).astype(np.float64)
    errors = rng.multivariate_normal(np.zeros(len(covariance)), covariance).reshape(len(noise), size - 1)
    return truth, truth + np.pad(errors, ((0, 0), (1, 0))), covariance


def shrunk(log_theta: Floats, covariance: Floats) -> ShrunkContexts:
    return shrink_contexts(*estimates(log_theta, covariance))


@pytest.mark.parametrize("tau", [0.01, 0.3, 2.0])
def test_the_posterior_given_tau_is_dense_conditioning_with_a_vague_prior(
    tau: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_TAU", np.array([tau]))
    _, b, covariance = family(1, 0.2, (0.05, 0.3, 0.1), size=5)
    found = shrunk(b, covariance)
    x = np.log(np.arange(2, 6))
    walk = np.kron(np.eye(3), tau**2 * np.minimum.outer(x, x))
    prior = walk + np.kron(np.ones((3, 3)), 1e4 * np.eye(4))
    posterior = inverse_of(inverse_of(covariance) + inverse_of(prior))
    mean, variance = posterior @ np.linalg.solve(covariance, b[:, 1:].ravel()), np.diag(posterior)
    free = np.flatnonzero(np.arange(15) % 5)
    np.testing.assert_allclose(found.log_theta[free], mean, atol=1e-4)
    np.testing.assert_allclose(found.intervals.std_error[free], np.sqrt(variance), rtol=1e-3)
    assert found.tau == pytest.approx(tau)
    np.testing.assert_allclose(
        found.intervals.high / np.exp(found.log_theta), np.exp(Z * found.intervals.std_error), rtol=1e-12
    )


def test_a_reference_between_positions_parts_the_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The deviations on both sides of position 3 are independent, and mu is relative to it."""
    tau = 0.4
    monkeypatch.setattr(module, "_TAU", np.array([tau]))
    covariance = np.diag(np.linspace(0.01, 0.2, 8))
    b = -np.log(np.arange(1, 6)) + np.random.default_rng(0).normal(0, 0.2, (2, 5))
    b -= np.stack([b[0, [0] * 5], b[1, [2] * 5]])
    found = shrink_contexts(*estimates(b, covariance, first=(0, 2)))
    place, reference = np.array([1, 2, 3, 4, 0, 1, 3, 4]), np.repeat([0, 2], 4)
    x = np.log((place + 1) / (reference + 1))
    design = np.eye(5)[place] - np.eye(5)[reference]
    walk = np.zeros((8, 8))
    for i in range(8):
        for j in range(8):
            if reference[i] == reference[j] and x[i] * x[j] > 0:
                walk[i, j] = tau**2 * min(abs(x[i]), abs(x[j]))
    posterior = inverse_of(inverse_of(covariance) + inverse_of(walk + 1e4 * design @ design.T))
    free = np.array([1, 2, 3, 4, 5, 6, 8, 9])
    mean = posterior @ np.linalg.solve(covariance, b.ravel()[free])
    np.testing.assert_allclose(found.log_theta[free], mean, atol=1e-4)
    np.testing.assert_allclose(found.intervals.std_error[free], np.sqrt(np.diag(posterior)), rtol=1e-3)


def test_the_variance_counts_that_tau_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    _, b, covariance = family(11, 0.3, (0.1, 0.4))

    def given(*tau: float) -> ShrunkContexts:
        monkeypatch.setattr(module, "_TAU", np.array(tau))
        return shrunk(b, covariance)

    low, high, both = given(0.02), given(1.0), given(0.02, 1.0)
    share = (both.tau - 0.02) / 0.98
    mean = (1 - share) * low.log_theta + share * high.log_theta
    square = (1 - share) * (low.intervals.std_error**2 + low.log_theta**2) + share * (
        high.intervals.std_error**2 + high.log_theta**2
    )
    assert 0.05 < share < 0.95
    np.testing.assert_allclose(both.log_theta, mean, atol=1e-10)
    np.testing.assert_allclose(both.intervals.std_error**2, square - mean**2, atol=1e-10)


def test_tau_is_weighed_by_its_likelihood_and_a_half_cauchy_prior() -> None:
    _, b, covariance = family(2, 0.4, (0.1, 0.1, 0.1), size=4)
    y, x = b[:, 1:].ravel(), np.log(np.arange(2, 5))
    design = np.kron(np.ones((3, 1)), np.eye(3))
    tau = np.geomspace(1e-3, 10, 61)
    log_weight = np.empty(61)
    for i, value in enumerate([float(value) for value in tau]):
        inverse = inverse_of(covariance + np.kron(np.eye(3), value**2 * np.minimum.outer(x, x)))
        precision = design.T @ inverse @ design
        residual = y - design @ (inverse_of(precision) @ (design.T @ inverse @ y))
        log_weight[i] = (np.linalg.slogdet(inverse)[1] - np.linalg.slogdet(precision)[1]) / 2
        log_weight[i] += np.log(value / (1 + value**2)) - residual @ inverse @ residual / 2
    weight = np.exp(log_weight - log_weight.max())
    assert shrunk(b, covariance).tau == pytest.approx(float(weight @ tau / weight.sum()), rel=1e-8)


def test_contexts_with_much_data_stay_and_contexts_with_little_go_to_the_shared_curve() -> None:
    _, b, covariance = family(3, 0.3, (0.002, 0.002, 0.002, 0.002, 0.002, 3.0))
    found = shrunk(b, covariance)
    own, moved = b.reshape(6, 6), found.log_theta.reshape(6, 6) - b
    assert np.abs(moved[:5]).max() < 0.005
    shared = own[:5].mean(axis=0)
    assert np.abs(found.log_theta.reshape(6, 6)[5] - shared)[1:].max() < 0.3 * np.abs(own[5] - shared)[1:].max()
    assert (found.intervals.std_error.reshape(6, 6)[5, 1:] < 1).all()


def test_a_context_without_information_has_the_error_of_a_new_context() -> None:
    """With the others known exactly, it is tau sqrt(x) for a new one, and that of their mean."""
    _, b, covariance = family(4, 0.3, (0.001,) * 8 + (100.0,))
    found = shrunk(b, covariance)
    x = np.log(np.arange(2, 7))
    np.testing.assert_allclose(
        found.intervals.std_error.reshape(9, 6)[8, 1:], found.tau * np.sqrt(x * (1 + 1 / 8)), rtol=0.2
    )


def test_contexts_that_agree_come_out_as_their_mean() -> None:
    found = [shrunk(*family(seed, 0.0, (0.1,) * 6)[1:]) for seed in range(20)]
    free = [family(seed, 0.0, (0.1,) * 6)[1] for seed in range(20)]
    spread = np.mean([shape.log_theta.reshape(6, 6).std(axis=0)[1:].mean() for shape in found])
    assert spread < 0.25 * np.mean([b.std(axis=0)[1:].mean() for b in free])


@pytest.mark.parametrize("tau", [0.15, 0.4])
def test_the_squared_error_is_below_that_of_free_and_of_pooled_estimates(tau: float) -> None:
    noise = (0.05, 0.1, 0.2, 0.4, 0.4)
    squares = np.zeros(3)
    weight = 1 / np.square(np.array(noise))[:, np.newaxis]
    for seed in range(30):
        truth, b, covariance = family(seed, tau, noise)
        pooled = (weight * b).sum(axis=0) / weight.sum()
        curves = (shrunk(b, covariance).log_theta.reshape(b.shape), b, pooled)
        squares += [np.square(curve - truth)[:, 1:].mean() for curve in curves]
    assert squares[0] < 0.95 * squares[1:].min()


@pytest.mark.parametrize(("tau", "noise"), [(0.1, (0.05, 0.1, 0.3)), (0.3, (0.1, 0.3))])
def test_intervals_cover_as_often_as_they_say(tau: float, noise: tuple[float, ...]) -> None:
    covered: list[float] = []
    for seed in range(60):
        truth, b, covariance = family(seed, tau, noise)
        found = shrunk(b, covariance)
        true_theta = np.exp(truth.ravel())
        inside = (found.intervals.low <= true_theta) & (true_theta <= found.intervals.high)
        covered.append(float(inside.reshape(truth.shape)[:, 1:].mean()))
    assert 0.92 <= np.mean(covered) <= 0.98


def test_one_context_keeps_its_free_estimate() -> None:
    _, b, covariance = family(5, 0.0, (0.2,))
    fit, errors, position = estimates(b, covariance)
    found = shrink_contexts(fit, errors, position)
    np.testing.assert_allclose(found.log_theta, fit.log_theta, atol=1e-9)
    np.testing.assert_allclose(found.intervals.std_error, errors.std_error, rtol=1e-8)
    np.testing.assert_allclose(found.intervals.high, errors.high, rtol=1e-8)


def test_references_stay_at_one() -> None:
    found = shrunk(*family(6, 0.2, (0.1, 0.2))[1:])
    at_reference = slice(None, None, 6)
    for values, expected in (
        (found.log_theta, 0),
        (found.intervals.std_error, 0),
        (found.intervals.low, 1),
        (found.intervals.high, 1),
    ):
        np.testing.assert_array_equal(values[at_reference], expected)


def test_contexts_with_other_references_share_the_same_curve() -> None:
    """Exactly the same curve, once relative to position 1 and once to position 3, with little noise."""
    x = -np.log(np.arange(1, 6))
    covariance = 1e-6 * np.eye(8)
    fit, errors, position = estimates(np.stack([x, x - x[2]]), covariance, first=(0, 2))
    found = shrink_contexts(fit, errors, position)
    np.testing.assert_allclose(found.log_theta, fit.log_theta, atol=1e-6)
    assert found.tau < 0.02


def test_a_cell_without_an_interval_takes_what_the_others_say() -> None:
    _, b, covariance = family(7, 0.0, (0.01, 0.01, 0.01))
    fit, errors, position = estimates(b, covariance)
    lost = np.arange(18) == 9  # position 4 of the second context
    free = lost[fit.free_cells]
    broken = replace(
        errors,
        std_error=np.where(lost, np.nan, errors.std_error),
        low=np.where(lost, np.nan, errors.low),
        high=np.where(lost, np.nan, errors.high),
        covariance=np.where(np.logical_or.outer(free, free), np.nan, covariance),
    )
    off = replace(fit, log_theta=np.where(lost, 5.0, fit.log_theta))
    found = shrink_contexts(off, broken, position)
    assert found.log_theta[9] == pytest.approx(-0.8 * np.log(4), abs=0.05)
    assert 0 < found.intervals.std_error[9] < 0.2
    test = compare_contexts(off, broken, position)
    assert np.isnan(test.p_values[9])
    assert not test.rejected


def test_a_position_that_no_interval_speaks_of_has_no_number() -> None:
    _, b, covariance = family(8, 0.0, (0.1, 0.1))
    fit, errors, position = estimates(b, covariance)
    lost = position == 6
    broken = replace(errors, low=np.where(lost, np.nan, errors.low), high=np.where(lost, np.nan, errors.high))
    found = shrink_contexts(fit, broken, position)
    np.testing.assert_array_equal(np.isnan(found.log_theta), lost)
    np.testing.assert_array_equal(np.isnan(found.intervals.high), lost)


def test_contrasts_are_the_dense_formula() -> None:
    _, b, covariance = family(9, 0.2, (0.1, 0.2, 0.3), size=4)
    covariance = covariance + 0.002  # contexts share queries
    degrees = 12.0
    fit, errors, position = estimates(b, covariance, degrees=degrees)
    clicks = np.repeat([3.0, 2.0, 1.0], 4)
    found = compare_contexts(replace(fit, linkage=replace(fit.linkage, linking_clicks=clicks)), errors, position)
    assert found.n_contrasts == 9
    context, place = divmod(found.largest, 4)
    row = np.zeros((3, 4))
    row[:, place] = -np.array([3, 2, 1]) / 6
    row[context, place] += 1
    row = row[:, 1:].ravel()
    assert found.difference == pytest.approx(row @ b[:, 1:].ravel())
    assert found.std_error == pytest.approx(np.sqrt(row @ covariance @ row))
    parts = row**2 * np.diag(covariance)
    assert found.degrees == pytest.approx(degrees * parts.sum() ** 2 / (parts**2).sum())


def test_of_two_contexts_each_position_is_compared_once() -> None:
    _, b, covariance = family(10, 0.2, (0.1, 0.2))
    fit, errors, position = estimates(b, covariance)
    found = compare_contexts(fit, errors, position)
    assert found.n_contrasts == 5
    assert found.largest < 6


def test_contexts_with_other_references_are_not_compared() -> None:
    x = -np.log(np.arange(1, 6))
    fit, errors, position = estimates(np.stack([x, x - x[2]]), 1e-6 * np.eye(8), first=(0, 2))
    assert compare_contexts(fit, errors, position).n_contrasts == 0


def contextual_log(seed: int, second: tuple[float, ...], n_queries: int = 20) -> Estimates:
    """Two contexts with the same queries, documents and attractiveness, whose sessions differ in theta only."""
    rng = np.random.default_rng(seed)
    n_pairs = n_queries * 4
    gamma = rng.beta(2, 3, (n_pairs, 1))
    zeros = np.zeros((n_pairs, 4))
    impressions = [rng.poisson(mean, (n_pairs, 4)) for mean in (6.0, 2.0)]
    clicks = [
        rng.binomial(n, gamma * theta) for n, theta in zip(impressions, (1 / np.arange(1, 5), second), strict=True)
    ]
    dense = [np.block([[parts[0], zeros], [zeros, parts[1]]]) for parts in (impressions, clicks)]
    table, signature = compress(CountTable.from_dense(dense[0].astype(float), dense[1].astype(float)))
    linkage = find_linkage(table, np.repeat([0, 1], 4))
    fit = fit_conditional(table, linkage)
    query = np.tile(np.arange(n_pairs) // 4, 2)
    errors = cluster_errors(fit, Strata(table, Members(signature, query)))
    return fit, errors, np.tile(np.arange(1, 5), 2)


def test_contexts_of_one_curve_are_rarely_said_to_differ() -> None:
    logs = [contextual_log(seed, tuple(1 / np.arange(1, 5))) for seed in range(30)]
    assert sum(compare_contexts(*log).rejected for log in logs) <= 4  # chance of more: 2 %


def test_contexts_of_other_curves_are_told_apart_and_hardly_shrunk() -> None:
    log = contextual_log(1, (1.0, 0.9, 0.8, 0.8), n_queries=200)
    assert compare_contexts(*log).p_value < 0.001
    found = shrink_contexts(*log)
    assert found.tau > 0.2
    assert np.abs(found.log_theta - log[0].log_theta).max() < 0.1


def test_one_query_has_nothing_to_shrink_with() -> None:
    fit, errors, position = contextual_log(2, (1.0, 0.5, 0.4, 0.3), n_queries=1)
    assert np.isnan(errors.high[fit.free_cells]).all()
    found = shrink_contexts(fit, errors, position)
    assert np.isnan(found.log_theta[fit.free_cells]).all()
    assert compare_contexts(fit, errors, position).n_contrasts == 0
