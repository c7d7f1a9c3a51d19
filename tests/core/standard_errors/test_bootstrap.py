"""The bootstrap: the formula written out densely, its coverage, and how it stands to the sandwich."""

import numpy as np
import pytest
from dense import by_cluster, dense_counts, scores_and_information
from small_logs import dense_table, strata_of

from posbias.core.arrays.count_table import CountTable, Floats, Integers
from posbias.core.arrays.linalg import inverse
from posbias.core.counts.sufficient_statistics import Strata
from posbias.core.standard_errors import cluster as module
from posbias.core.standard_errors.cluster import ClusterErrors, bootstrap, cluster_errors
from posbias.core.theta.conditional import ConditionalFit, find_linkage, fit_conditional

THETA = np.array([1.0, 0.6, 0.4])


def random_log(seed: int, n_queries: int, impressions: int, shock: float = 0.0) -> tuple[CountTable, Integers]:
    """Pairs of three documents per query, query sizes by Zipf's law, and the query of each."""
    rng = np.random.default_rng(seed)
    size = impressions / np.arange(1, n_queries + 1)
    counts = rng.poisson(np.repeat(size / (size.sum() * 9) * impressions, 3)[:, np.newaxis], (3 * n_queries, 3))
    theta = THETA * np.exp(shock * rng.standard_normal((n_queries, 3)) - shock**2 / 2)
    chance = np.minimum(np.repeat(theta, 3, axis=0) * rng.beta(2, 4, (3 * n_queries, 1)), 1)
    return dense_table(counts.astype(float), rng.binomial(counts, chance).astype(float)), np.arange(3 * n_queries) // 3


def fitted(pairs: CountTable, query: Integers) -> tuple[ConditionalFit, Strata]:
    strata = strata_of(pairs, query)
    return fit_conditional(strata.signatures, find_linkage(strata.signatures)), strata


def bootstrapped(pairs: CountTable, query: Integers, replicates: int = 400, seed: int = 0) -> ClusterErrors:
    return bootstrap(*fitted(pairs, query), replicates, seed)


def test_the_same_seed_gives_the_same_numbers_and_another_one_others() -> None:
    log = random_log(1, 200, 4000, shock=0.5)
    first, again, other = (bootstrapped(*log, replicates=60, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.high, again.high)
    assert np.any(first.high != other.high)


@pytest.mark.parametrize("n_queries", [8, 200])
def test_the_quantile_is_that_of_the_dense_formula(n_queries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LEVERAGE", 0.0)  # every query one by one, as below
    pairs, query = random_log(1, n_queries, 4000, shock=0.5)
    fit, strata = fitted(pairs, query)
    score, information = (
        by_cluster(of_pairs[:, 1:], query) for of_pairs in scores_and_information(*dense_counts(pairs), fit.theta)
    )
    tells = information.any(axis=(1, 2))
    score, information = score[tells], information[tells][:, :, 1:]
    n_clusters = len(score)
    response = inverse(fit.information)
    without = np.linalg.inv(fit.information - information).astype(np.float64)
    adjusted = (without @ score[:, :, np.newaxis])[:, :, 0] @ fit.information
    signs = np.where(np.random.default_rng(4).random((n_clusters, 99)) < 0.5, -1.0, 1.0)
    statistics: list[Floats] = []
    for number in range(99):
        sign = signs[:, number]
        moved = response @ (sign @ adjusted)
        again = sign[:, np.newaxis] * adjusted - information @ moved
        change = (without @ again[:, :, np.newaxis])[:, :, 0]
        statistics.append(np.abs(moved) / np.sqrt((n_clusters - 1) / n_clusters * (change**2).sum(axis=0)))
    found = bootstrap(fit, strata, 99, 4)
    sandwich = cluster_errors(fit, strata)
    quantile = np.sort(statistics, axis=0)[94]  # the 95th of 99
    wanted = np.maximum(quantile * sandwich.std_error[1:], np.log(sandwich.high / fit.theta)[1:])
    np.testing.assert_allclose(np.log(found.high / fit.theta)[1:], wanted, rtol=1e-8)
    np.testing.assert_allclose(np.log(fit.theta / found.low)[1:], wanted, rtol=1e-8)
    assert np.any(quantile * sandwich.std_error[1:] == wanted)


def test_clusters_with_hardly_any_leverage_can_be_taken_together(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs, query = random_log(2, 2000, 40_000, shock=0.5)
    together = bootstrapped(pairs, query, replicates=400)
    monkeypatch.setattr(module, "_LEVERAGE", 0.001)
    apart = bootstrapped(pairs, query, replicates=400)
    np.testing.assert_allclose(together.std_error, apart.std_error, rtol=0.01)
    np.testing.assert_allclose(np.log(together.high)[1:], np.log(apart.high)[1:], atol=0.1 * apart.std_error.max())


def test_blocks_of_clusters_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs, query = random_log(3, 300, 20_000, shock=0.5)
    whole = bootstrapped(pairs, query, replicates=99)
    monkeypatch.setattr(module, "_MEMBERS", 700)
    np.testing.assert_allclose(bootstrapped(pairs, query, replicates=99).high, whole.high, rtol=1e-12)


def test_it_never_narrows_the_sandwichs_interval_and_keeps_its_errors() -> None:
    wider: list[Floats] = []
    for seed in range(10):
        pairs, query = random_log(seed, 12, 4000, shock=0.5)
        found, sandwich = bootstrapped(pairs, query, replicates=99), cluster_errors(*fitted(pairs, query))
        np.testing.assert_array_equal(found.covariance, sandwich.covariance)
        wider.append(np.log(found.high / found.low)[1:] / np.log(sandwich.high / sandwich.low)[1:])
    assert np.min(wider) >= 1 - 1e-12
    assert 1 < np.mean(wider) < 1.5


def test_two_queries_have_one_degree_of_freedom() -> None:
    clicks = np.array([[200.0, 100.0], [200.0, 40.0]])
    found = bootstrapped(dense_table(np.full((2, 2), 500.0), clicks), np.arange(2), replicates=60)
    half_width = np.log(found.high / found.low)[1] / 2
    np.testing.assert_allclose(half_width / found.std_error[1], 12.706204736432095)
