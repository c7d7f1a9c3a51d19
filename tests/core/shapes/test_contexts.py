"""Contexts: the means against dense conditioning, whom shrinkage moves, coverage in each context, and the test."""

from dataclasses import replace

import numpy as np
import pytest
import scipy

from posbias.core.arrays.count_table import Floats, Integers
from posbias.core.shapes import contexts as differences
from posbias.core.shapes import contexts as module
from posbias.core.shapes.contexts import ShrunkContexts, compare_contexts, shrink_contexts
from posbias.core.standard_errors.cluster import ClusterErrors
from posbias.core.theta.conditional import ConditionalFit, Linkage

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


def given(monkeypatch: pytest.MonkeyPatch, *tau: float) -> None:
    """Let every tau and tau_c be one of these."""
    for room in (module, differences):
        monkeypatch.setattr(room, "TAU", np.array(tau))


@pytest.mark.parametrize("tau", [0.01, 0.3, 2.0])
def test_of_two_contexts_the_mean_given_tau_is_dense_conditioning(tau: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The prior: any curve at all for the other context, and a walk of this one away from it."""
    given(monkeypatch, tau)
    _, b, covariance = family(1, 0.2, (0.05, 0.3), size=5)
    found = shrunk(b, covariance)
    x = np.log(np.arange(2, 6))
    walk = tau**2 * np.minimum.outer(x, x)
    vague = 1e4 * np.eye(4)
    for context, rows in ((0, slice(0, 4)), (1, slice(4, 8))):
        prior = np.kron(np.ones((2, 2)), vague)
        prior[rows, rows] += walk
        posterior = inverse_of(inverse_of(covariance) + inverse_of(prior + 1e-9 * np.eye(8)))
        mean = (posterior @ np.linalg.solve(covariance, b[:, 1:].ravel()))[rows]
        cells = slice(5 * context + 1, 5 * context + 5)
        np.testing.assert_allclose(found.log_theta[cells], mean, atol=1e-4)
        assert found.tau_of_cell[cells] == pytest.approx(np.full(4, tau))


def test_a_reference_between_positions_parts_the_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The deviations on both sides of position 3 are independent, and the shared curve is relative to it."""
    tau = 0.4
    given(monkeypatch, tau)
    covariance = np.diag(np.linspace(0.01, 0.2, 8))
    b = -np.log(np.arange(1, 6)) + np.random.default_rng(0).normal(0, 0.2, (2, 5))
    b -= np.stack([b[0, [0] * 5], b[1, [2] * 5]])
    found = shrink_contexts(*estimates(b, covariance, first=(0, 2)))
    place, reference = np.array([1, 2, 3, 4, 0, 1, 3, 4]), np.repeat([0, 2], 4)
    x = np.log((place + 1) / (reference + 1))
    design = np.eye(5)[place] - np.eye(5)[reference]
    walk = np.zeros((8, 8))
    for i in range(4, 8):
        for j in range(4, 8):
            if x[i] * x[j] > 0:
                walk[i, j] = tau**2 * min(abs(x[i]), abs(x[j]))
    posterior = inverse_of(inverse_of(covariance) + inverse_of(walk + 1e4 * design @ design.T + 1e-9 * np.eye(8)))
    mean = posterior @ np.linalg.solve(covariance, b.ravel()[[1, 2, 3, 4, 5, 6, 8, 9]])
    np.testing.assert_allclose(found.log_theta[[5, 6, 8, 9]], mean[4:], atol=1e-4)


def test_the_mean_counts_that_tau_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    _, b, covariance = family(11, 0.3, (0.1, 0.4))

    def found(*tau: float) -> ShrunkContexts:
        given(monkeypatch, *tau)
        return shrunk(b, covariance)

    low, high, both = found(0.02), found(1.0), found(0.02, 1.0)
    share = (both.tau_of_cell - 0.02) / 0.98
    assert 0.05 < share[1] < 0.95
    for name in ("log_theta", "borrowed_of_cell"):
        mean = (1 - share) * getattr(low, name) + share * getattr(high, name)
        np.testing.assert_allclose(getattr(both, name), mean, atol=1e-10)


def test_of_two_contexts_tau_is_weighed_by_the_likelihood_of_their_difference() -> None:
    """Given tau, tau_c is Student's t with 3 degrees of freedom at that scale; tau is half-Cauchy."""
    _, b, covariance = family(2, 0.4, (0.1, 0.1), size=4)
    x, tau = np.log(np.arange(2, 5)), differences.TAU
    change = b[0, 1:] - b[1, 1:]
    likelihood = np.empty(len(tau))
    for i, t in enumerate(tau.tolist()):
        spread = covariance[:3, :3] + covariance[3:, 3:] + t**2 * np.minimum.outer(x, x)
        likelihood[i] = np.exp(-change @ inverse_of(spread) @ change / 2) / np.sqrt(np.linalg.det(spread))
    prior = tau / (1 + (tau / tau[:, np.newaxis]) ** 2 / 3) ** 2
    prior /= prior.sum(axis=1, keepdims=True)
    of_tau = tau / (1 + tau**2)
    local = (of_tau / of_tau.sum()) @ prior * likelihood
    found = shrunk(b, covariance)
    np.testing.assert_allclose(found.tau_of_cell, local @ tau / local.sum(), rtol=1e-8)
    common = of_tau * (prior @ likelihood)  # two likelihoods of one difference, each counted as half of one
    assert found.tau == pytest.approx(float(common @ tau / common.sum()), rel=1e-8)


def test_a_context_without_an_interval_learns_from_the_others_how_alike_contexts_are() -> None:
    _, b, covariance = family(3, 0.0, (0.02, 0.02, 0.1))
    fit, errors, position = estimates(b, covariance)
    lost = np.arange(18) >= 12
    found = shrink_contexts(fit, replace(errors, high=np.where(lost, np.nan, errors.high)), position)
    assert np.abs(found.log_theta - np.tile(b[:2].mean(axis=0), 3))[lost].max() < 0.05
    np.testing.assert_array_equal(found.borrowed_of_cell[lost], 1.0)
    assert np.isnan(found.intervals.high[13:]).all()  # nothing says how far this one is from the others


def test_copies_of_a_context_add_no_information() -> None:
    """Each copy has the same errors: the covariance of all contexts says so, and the intervals stay those of one."""
    _, b, covariance = family(12, 0.0, (0.2,))
    fit, errors, position = estimates(np.repeat(b, 4, axis=0), np.kron(np.eye(4), covariance).astype(np.float64))
    copied = replace(errors, covariance=np.kron(np.ones((4, 4)), covariance))
    found = shrink_contexts(fit, copied, position)
    np.testing.assert_allclose(found.log_theta, fit.log_theta, atol=1e-6)
    np.testing.assert_allclose(found.intervals.high, errors.high, rtol=1e-4)


def test_errors_that_contexts_share_do_not_average_out() -> None:
    _, b, _ = family(13, 0.0, (0.1,) * 6)
    own, shared = 0.1**2 * (0.5 * np.eye(5) + 0.5), 0.3**2 * (0.5 * np.eye(5) + 0.5)
    covariance = np.kron(np.eye(6), own) + np.kron(np.ones((6, 6)), shared)
    assert width_to_free(b, covariance).min() > 0.99


def test_more_cells_than_clusters_are_no_obstacle() -> None:
    """The covariance of 20 cells over 4 clusters has rank 3."""
    _, b, covariance = family(14, 0.2, (0.1, 0.2, 0.3, 0.4))
    spread = np.random.default_rng(0).normal(size=(3, 20))
    few = spread.T @ spread
    scale = np.sqrt(np.diag(covariance) / np.diag(few))
    fit, errors, position = estimates(b, covariance)
    found = shrink_contexts(fit, replace(errors, covariance=few * np.outer(scale, scale)), position)
    assert np.isfinite(found.log_theta).all()
    assert (found.intervals.std_error[fit.free_cells] > 0).all()


def test_a_small_context_that_differs_keeps_its_own_curve() -> None:
    """Five large contexts agree; one strength for all would take the sixth, off by 8 of its errors, with them."""
    x = np.log(np.arange(1, 7))
    _, b, covariance = family(15, 0.0, (0.02,) * 5 + (0.1,))
    b[5] -= 0.45 * x
    found = shrunk(b, covariance).log_theta.reshape(6, 6)
    assert np.abs(found[5] - b[5]).max() < 0.1
    assert found[:5].std(axis=0)[1:].mean() < 0.6 * b[:5].std(axis=0)[1:].mean()


def test_contexts_with_much_data_stay_and_contexts_with_little_go_to_the_shared_curve() -> None:
    _, b, covariance = family(3, 0.3, (0.002, 0.002, 0.002, 0.002, 0.002, 3.0))
    found = shrunk(b, covariance)
    own, moved = b.reshape(6, 6), found.log_theta.reshape(6, 6) - b
    assert np.abs(moved[:5]).max() < 0.005
    shared = own[:5].mean(axis=0)
    assert np.abs(found.log_theta.reshape(6, 6)[5] - shared)[1:].max() < 0.3 * np.abs(own[5] - shared)[1:].max()
    assert (found.borrowed_of_cell.reshape(6, 6)[:5] < 0.01).all()
    assert (found.borrowed_of_cell.reshape(6, 6)[5] > 0.9).all()


def width_to_free(log_theta: Floats, covariance: Floats) -> Floats:
    """Widths of intervals of log theta relative to the free ones, shape (C, K - 1)."""
    fit, errors, position = estimates(log_theta, covariance)
    found = shrink_contexts(fit, errors, position).intervals
    relative = np.log(found.high / found.low)[fit.free_cells] / np.log(errors.high / errors.low)[fit.free_cells]
    return np.asarray(relative.reshape(len(log_theta), -1))


def test_an_interval_is_shorter_where_the_others_agree_and_hardly_longer_where_they_do_not() -> None:
    _, b, covariance = family(16, 0.0, (0.01,) * 5 + (0.2,))
    for apart, width in ((0.0, 2 * 1.7507), (1.0, 1.7507 + 2.3263)):
        b[5, 1:] = b[:5, 1:].mean(axis=0) + apart
        np.testing.assert_allclose(width_to_free(b, covariance)[5], width / (2 * Z), rtol=1e-4)


@pytest.mark.slow_after(7)
@pytest.mark.parametrize("rho", [0.0, 0.3, 0.8, -0.4])
@pytest.mark.parametrize("others", [0.05, 1.0])
@pytest.mark.parametrize("apart", [0.0, 0.4, 2.0, 10.0])
def test_the_interval_of_a_context_covers_it_however_far_it_is_from_the_others(
    rho: float, others: float, apart: float
) -> None:
    """Over 10,000 evenly spread errors of a context at 0, with sd 1, and of the others, with correlation rho."""
    number = np.arange(10_000)
    own: Floats = scipy.special.ndtri((number + 0.5) / len(number))
    independent: Floats = scipy.special.ndtri((number + 0.5) * (np.sqrt(5) - 1) / 2 % 1)
    given_own = others * (rho * own + np.sqrt(1 - rho**2) * independent)
    everywhere, none = np.ones(own.shape, np.bool_), np.empty((0, 0))
    low, high = differences.Difference(
        own=differences.Evidence(own, everywhere, np.ones(own.shape), none),
        others=differences.Evidence(apart + given_own, everywhere, np.full(own.shape, others**2), none),
        shared=np.full(own.shape, rho * others),
        walk=none,
    ).interval(own)
    covered = np.mean((low <= 0) & (high >= 0))
    assert 0.948 <= covered <= (0.952 if rho == 0 else 0.972)


def test_one_context_keeps_its_free_estimate() -> None:
    _, b, covariance = family(5, 0.0, (0.2,))
    fit, errors, position = estimates(b, covariance)
    found = shrink_contexts(fit, errors, position)
    np.testing.assert_allclose(found.log_theta, fit.log_theta, atol=1e-9)
    np.testing.assert_allclose(found.intervals.std_error, errors.std_error, rtol=1e-8)
    np.testing.assert_allclose(found.intervals.high, errors.high, rtol=1e-8)


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
    assert np.isnan([found.intervals.std_error[9], found.intervals.low[9], found.intervals.high[9]]).all()
    test = compare_contexts(off, broken, position)
    assert np.isnan(test.p_values[9])
    assert not test.rejected


def test_without_any_interval_there_is_nothing_to_shrink_with_or_to_compare() -> None:
    _, b, covariance = family(8, 0.0, (0.1, 0.1))
    fit, errors, position = estimates(b, covariance)
    broken = replace(errors, high=np.full(12, np.nan))
    assert np.isnan(shrink_contexts(fit, broken, position).log_theta[fit.free_cells]).all()
    nothing = replace(broken, std_error=np.full(12, np.nan), covariance=np.full_like(covariance, np.nan))
    assert compare_contexts(fit, nothing, position).n_contrasts == 0


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
    weight = np.array([3.0, 2.0, 1.0])
    weight[context] = 0.0
    row[:, place] = -weight / weight.sum()
    row[context, place] = 1
    row = row[:, 1:].ravel()
    assert found.difference == pytest.approx(row @ b[:, 1:].ravel())
    assert found.std_error == pytest.approx(np.sqrt(row @ covariance @ row))
    assert found.degrees == degrees


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


@pytest.mark.slow
def test_four_of_five_logs_show_a_difference_of_the_size_that_is_said_to_be_found() -> None:
    _, b, covariance = family(17, 0.0, (0.05, 0.2), size=4)
    errors = np.random.default_rng(2).multivariate_normal(np.zeros(6), covariance, 200).reshape(200, 2, 3)
    size = compare_contexts(*estimates(b, covariance)).detectable
    np.testing.assert_array_equal(np.isnan(size), [True, False, False, False, *[True] * 4])
    for place in (1, 3):
        found = 0
        for error in errors:
            b[:, 1:] = error
            b[0, place] += size[place]
            found += compare_contexts(*estimates(b, covariance)).rejected
        assert 0.76 <= found / len(errors) <= 0.86
