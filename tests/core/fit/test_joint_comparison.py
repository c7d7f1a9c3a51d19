"""Joint EM against the conditional estimate: derivatives, what one pair more would do, false alarms and detection."""

from dataclasses import replace

import numpy as np
import pytest
from dense import dense_counts, scores_and_information
from small_logs import dense_table, fitted_pairs, fitted_strata

from posbias.core.arrays.count_table import CountTable, Floats, Integers, Members, compress, concatenate
from posbias.core.choices import BetaPrior
from posbias.core.counts.sufficient_statistics import Strata
from posbias.core.fit.diagnostics import JointComparison, compare_with_joint, joint_derivatives
from posbias.core.theta.conditional import find_linkage, fit_conditional
from posbias.core.theta.joint import JointOptions, fit_joint

LIKELIHOOD = JointOptions(BetaPrior(0.5, 0.0), BetaPrior(0.5, 0.0), tolerance=1e-13, max_iterations=100_000)
WITH_PRIOR = JointOptions(BetaPrior(0.5, 2.0), BetaPrior(0.3, 3.0), tolerance=1e-13, max_iterations=100_000)


def random_pairs(seed: int, n_pairs: int = 30, mean: float = 8.0, n_cells: int = 4) -> CountTable:
    rng = np.random.default_rng(seed)
    impressions = rng.poisson(mean, (n_pairs, n_cells))
    clicks = rng.binomial(impressions, rng.beta(2, 4, (n_pairs, 1)) * 0.9 / np.arange(1, n_cells + 1))
    return dense_table(impressions.astype(float), clicks.astype(float))


def compared(pairs: CountTable, query: Integers, options: JointOptions) -> JointComparison:
    conditional = fitted_pairs(pairs, query)
    return compare_with_joint(conditional, fit_joint(conditional.strata.signatures, options))


def best_gamma(impressions: Floats, clicks: Floats, theta: Floats, prior: BetaPrior) -> float:
    """Where the derivative by gamma of a pair's log-likelihood, which falls, is 0: by bisection."""
    low, high = 0.0, 1.0
    for _ in range(60):
        gamma = (low + high) / 2
        rises = (clicks.sum() + prior.pseudo_clicks) / gamma
        falls = ((impressions - clicks) * theta / (1 - theta * gamma)).sum() + prior.pseudo_skips / (1 - gamma)
        low, high = (gamma, high) if rises > falls else (low, gamma)
    return low


def profile(theta: Floats, table: CountTable, options: JointOptions) -> float:
    """Log of likelihood times priors, with every gamma at its optimum."""

    def log_prior(prior: BetaPrior, x: float) -> float:
        return prior.pseudo_clicks * np.log(x) + prior.pseudo_skips * np.log1p(-x)

    total = sum(log_prior(options.examination_prior, x) for x in theta.tolist())
    for unit in range(table.n_units):
        rows = slice(int(table.start[unit]), int(table.start[unit + 1]))
        n, c, at = table.impressions[rows], table.clicks[rows], theta[table.cell[rows]]

        if c.sum():
            gamma = best_gamma(n, c, at, options.attractiveness_prior)
            value = float(c @ np.log(at * gamma) + (n - c) @ np.log1p(-at * gamma))
            total += table.multiplicity[unit] * (value + log_prior(options.attractiveness_prior, gamma))
    return total


@pytest.mark.parametrize("options", [LIKELIHOOD, WITH_PRIOR])
def test_score_and_information_are_the_derivatives_of_the_profile_likelihood(options: JointOptions) -> None:
    clicked = random_pairs(1, n_pairs=8, mean=20)
    table = clicked.take(np.flatnonzero(clicked.sum_by_unit(clicked.clicks) > 0))
    joint = fit_joint(table, options)
    score, information = joint_derivatives(joint, table)
    size, step = table.n_cells, 1e-3
    log_theta = np.log(joint.examination)

    def at(*moves: tuple[int, float]) -> float:
        moved = log_theta.copy()
        for cell, distance in moves:
            moved[cell] += distance
        return profile(np.exp(moved), table, options)

    hessian = np.empty((size, size))
    for i in range(size):
        for j in range(size):
            signs = [(a, b) for a in (step, -step) for b in (step, -step)]
            hessian[i, j] = sum(np.sign(a * b) * at((i, a), (j, b)) for a, b in signs) / (4 * step**2)
    np.testing.assert_allclose(information, -hessian, atol=1e-4 * np.abs(hessian).max())
    prior, theta = options.examination_prior, joint.examination
    of_prior = prior.pseudo_clicks - prior.pseudo_skips * theta / (1 - theta)
    np.testing.assert_allclose(table.sum_by_cell(score) + of_prior, 0, atol=1e-4)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("options", [LIKELIHOOD, WITH_PRIOR])
def test_the_error_of_the_difference_is_what_each_pair_moves(options: JointOptions) -> None:
    """An infinitesimal jackknife: each pair's weight raised a little, and both estimates fitted again."""
    table = random_pairs(2, n_pairs=12, mean=25)
    linkage = find_linkage(table)
    each, step = np.arange(table.n_units), 1e-4

    def log_ratio(weight: Floats) -> Floats:
        weighted = replace(table, multiplicity=weight)
        joint = fit_joint(weighted, options).examination
        return np.log(joint / joint[0]) - fit_conditional(weighted, linkage).log_theta

    moves = np.array(
        [(log_ratio(1 + step * (each == j)) - log_ratio(1 - step * (each == j))) / (2 * step) for j in each]
    )
    conditional = fitted_strata(Strata(table, Members(each, each)))
    found = compare_with_joint(conditional, fit_joint(table, options))
    first_order = np.sqrt(np.square(moves).sum(axis=0))[1:]
    plain = np.sqrt(np.square(_conditional_moves(table)).sum(axis=0))[1:]
    np.testing.assert_allclose(found.std_error[1:], first_order * conditional.errors.std_error[1:] / plain, rtol=1e-3)
    np.testing.assert_allclose(found.log_ratio, log_ratio(np.ones(table.n_units)), atol=1e-9)


def _conditional_moves(table: CountTable) -> Floats:
    """H^-1 s_j of each pair, shape (J, K)."""
    fit = fit_conditional(table, find_linkage(table))
    scores, _ = scores_and_information(*dense_counts(table), fit.theta)
    return np.pad(scores[:, 1:] @ np.linalg.inv(fit.information), ((0, 0), (1, 0)))


def test_pairs_that_are_not_among_the_members_count_as_clusters_of_their_own() -> None:
    pairs = random_pairs(3, n_pairs=40, mean=1.0)
    table, signature = compress(pairs)
    links = np.flatnonzero((pairs.sum_by_unit(pairs.clicks) > 0) & (pairs.entries_of_unit > 1))
    query = np.arange(pairs.n_units) // 4
    own = np.where(np.isin(np.arange(pairs.n_units), links), query, 1000 + np.arange(pairs.n_units))
    joint = fit_joint(table, WITH_PRIOR)
    found, expected = (
        compare_with_joint(fitted_strata(Strata(table, Members(signature[members], clusters[members]))), joint)
        for members, clusters in ((links, query), (np.arange(pairs.n_units), own))
    )
    np.testing.assert_allclose(found.std_error, expected.std_error, rtol=1e-9)


def test_pairs_that_say_nothing_change_nothing_without_a_prior() -> None:
    pairs = random_pairs(4)
    idle = dense_table(np.array([[0.0, 9, 0, 0], [8, 8, 8, 8]]), np.array([[0.0, 3, 0, 0], [0, 0, 0, 0]]))
    both = concatenate([pairs, idle])
    query = np.arange(pairs.n_units) // 3
    expected = compared(pairs, query, LIKELIHOOD)
    found = compared(both, np.append(query, [900, 901]), LIKELIHOOD)
    np.testing.assert_allclose(found.log_ratio, expected.log_ratio, atol=1e-5)
    np.testing.assert_allclose(found.std_error, expected.std_error, rtol=1e-3)


def test_cells_that_are_not_identified_are_not_compared() -> None:
    pairs = random_pairs(5)
    wider = replace(pairs, n_cells=6)
    silent = np.array([[5.0, 5, 0, 0, 9, 0]]), np.array([[2.0, 1, 0, 0, 0, 0]])  # a cell that is never clicked
    wider = compress(concatenate([wider, dense_table(*silent)]))[0]
    for options in (JointOptions(), LIKELIHOOD):
        found = compared(wider, np.arange(wider.n_units) // 3, options)
        np.testing.assert_array_equal(np.isnan(found.log_ratio), [False] * 4 + [True] * 2)
        assert found.test.n_contrasts == 3
        assert (found.log_ratio[0], found.std_error[0]) == (0, 0)


def ranked_log(seed: int, n_pairs: int, mean: float) -> tuple[CountTable, Integers]:
    """Pairs of four to a query; the better ones are shown higher."""
    rng = np.random.default_rng(seed)
    gamma = rng.beta(1, 3, n_pairs)
    tilt = np.exp(-(np.arange(5) - 2) * (gamma[:, np.newaxis] - 0.25) * 2)
    impressions = rng.poisson(mean * tilt)
    clicks = rng.binomial(impressions, gamma[:, np.newaxis] * 0.9 / np.arange(1, 6))
    return dense_table(impressions.astype(float), clicks.astype(float)), np.arange(n_pairs) // 4


@pytest.mark.slow
def test_joint_em_is_cleared_on_dense_logs() -> None:
    found = [compared(*ranked_log(seed, n_pairs=120, mean=60), LIKELIHOOD) for seed in range(12)]
    assert not any(comparison.biased for comparison in found)
    assert sum(comparison.test.rejected for comparison in found) <= 2


def test_joint_em_is_found_out_on_sparse_logs() -> None:
    for seed in range(5):
        found = compared(*ranked_log(seed, n_pairs=8000, mean=0.5), JointOptions())
        assert found.biased
        assert found.largest_difference > 0.05


def test_a_significant_difference_that_is_small_is_no_bias() -> None:
    found = compared(*ranked_log(0, n_pairs=4000, mean=0.5), JointOptions())
    assert found.biased
    assert not replace(found, log_ratio=found.log_ratio / 1000).biased


def test_an_estimate_that_did_not_converge_is_not_called_biased() -> None:
    pairs, query = ranked_log(0, n_pairs=4000, mean=0.5)
    found = compared(pairs, query, JointOptions(max_iterations=30))
    assert found.test.rejected
    assert not found.converged
    assert not found.biased


def test_a_theta_at_its_bound_does_not_move() -> None:
    table = random_pairs(6)
    joint = fit_joint(table, JointOptions())
    held = replace(joint, examination=np.where(np.arange(4) == 0, 1 - 1e-6, joint.examination))
    _, information = joint_derivatives(held, table)
    assert not information[0].any()
    assert not information[:, 0].any()
    assert (np.linalg.eigvalsh(information[1:, 1:]) > 0).all()


def test_a_gamma_at_its_bound_does_not_follow() -> None:
    """Its pair's information is then diag(v), without what a free gamma takes away."""
    table = random_pairs(7, n_pairs=1, mean=20)
    joint = fit_joint(table, LIKELIHOOD)
    held = replace(joint, examination=np.full(4, 0.3), attractiveness=np.full(1, 1 - 1e-6))
    _, information = joint_derivatives(held, table)
    value = (table.impressions - table.clicks) * 0.3 / 0.7**2
    np.testing.assert_allclose(information, np.diag(value), rtol=1e-5)
