"""Clustered errors: the formula written out densely, its invariances, and what one query identifies."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from dense import by_cluster, dense_counts, scores_and_information
from scipy import stats
from small_logs import dense_table, random_pairs, strata_of

from posbias.core.arrays import linalg
from posbias.core.arrays.count_table import CountTable, Floats, Integers, Members, compress, concatenate
from posbias.core.counts.sufficient_statistics import Strata
from posbias.core.fit import propensities as spread_module
from posbias.core.fit.propensities import query_spread
from posbias.core.standard_errors import cluster as module
from posbias.core.standard_errors.cluster import (
    IDENTICAL_CLUSTERS,
    ONE_CLUSTER,
    ClusterErrors,
    cluster_errors,
    errors_from_sums,
    pair_errors,
    sum_clusters,
)
from posbias.core.standard_errors.contrasts import StrataEstimate
from posbias.core.theta.conditional import ConditionalFit, find_linkage, fit_conditional


@pytest.fixture(autouse=True, params=["one by one", "together"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave clusters out one by one, as where there are few cells, and together, as where there are many."""
    if request.param == "together":
        monkeypatch.setattr(module, "_MANY_CELLS", 1)
        monkeypatch.setattr(module, "MANY", 1)
        monkeypatch.setattr(module, "_CLUSTERS", 5)


def merge(tables: list[CountTable]) -> tuple[CountTable, list[Integers]]:
    """The tables compressed together, and the signature of each unit of each of them."""
    borders = np.cumsum([table.n_units for table in tables])[:-1]
    merged, signature = compress(concatenate(list(tables)))
    return merged, np.split(signature, borders)


def fitted(table: CountTable) -> ConditionalFit:
    return fit_conditional(table, find_linkage(table))


def errors_of(pairs: CountTable, cluster: Integers) -> ClusterErrors:
    strata = strata_of(pairs, cluster)
    return cluster_errors(fitted(strata.signatures), strata)


@dataclass(frozen=True)
class Dense:
    """On the free cells: V and G*; and G."""

    covariance: Floats
    effective: Floats
    n_clusters: int

    @property
    def std_error(self) -> Floats:
        """Of log theta."""
        return np.sqrt(np.diag(self.covariance))


def by_the_formula(pairs: CountTable, query: Integers, threshold: float) -> Dense:
    """Everything, pair by pair with dense matrices; every cell must be identified.

    Where leaving a query out cuts cells off, the pseudo-inverse leaves them out, and only them.
    """
    fit = fitted(pairs)
    scores, information = (
        by_cluster(of_pairs[:, 1:], query) for of_pairs in scores_and_information(*dense_counts(pairs), fit.theta)
    )
    tells = information.any(axis=(1, 2))
    scores, information = scores[tells], information[tells][:, :, 1:]
    whole: Floats = information.sum(axis=0)
    response = np.linalg.inv(whole).astype(np.float64)
    outer: Floats = np.zeros_like(whole)
    influence: list[Floats] = []
    for score, own in zip(scores, information, strict=True):
        reduced = whole if np.trace(response @ own) < threshold else whole - own
        change: Floats = np.linalg.pinv(reduced, rcond=1e-10, hermitian=True) @ score
        outer += np.outer(change, change)
        influence.append(np.diag(response @ own @ response))
    total: Floats = np.sum(influence, axis=0)
    informative = (np.array(influence) > 1e-12 * total).sum(axis=0)
    factor = np.sqrt((informative - 1) / informative)
    assert fit.linkage.identified.all()
    return Dense(
        covariance=outer * np.outer(factor, factor),
        effective=total**2 / np.sum(np.square(influence), axis=0),
        n_clusters=len(scores),
    )


@pytest.mark.parametrize("threshold", [0.01, 0.3, 0.0])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.slow_after(12)
def test_errors_are_the_dense_formula(seed: int, threshold: float, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs, query = random_pairs(seed)
    monkeypatch.setattr(module, "_LEVERAGE", threshold)
    monkeypatch.setattr(module, "_BLOCK", 1)  # one column at a time
    found = errors_of(pairs, query)
    expected = by_the_formula(pairs, query, threshold)
    off_diagonal = ~np.eye(3, dtype=bool)
    np.testing.assert_allclose(found.covariance[off_diagonal], expected.covariance[off_diagonal], rtol=1e-8)
    assert (found.std_error[0], found.low[0], found.high[0]) == (0, 1, 1)
    np.testing.assert_allclose(found.std_error[1:], expected.std_error, rtol=1e-8)
    np.testing.assert_allclose(np.sqrt(np.diag(found.covariance)), expected.std_error, rtol=1e-8)
    np.testing.assert_allclose(found.effective_clusters[1:], expected.effective, rtol=1e-8)
    assert found.n_clusters == expected.n_clusters
    fit = fitted(pairs)
    quantile = stats.t.ppf(0.975, np.maximum(expected.effective, 1))  # pyright: ignore[reportUnknownMemberType]
    margin = quantile * expected.std_error
    np.testing.assert_allclose(np.log(found.high / fit.theta)[1:], margin, rtol=1e-7)
    np.testing.assert_allclose(np.log(fit.theta / found.low)[1:], margin, rtol=1e-7)


def test_parts_that_share_no_query_can_be_summed_one_by_one() -> None:
    pairs, query = random_pairs(5)
    table, signature = compress(pairs)
    fit = fitted(table)
    whole = cluster_errors(fit, Strata(table, Members(signature, query)))
    low, high = query < 3, query >= 3
    parts = errors_from_sums(
        fit.log_theta,
        fit.free_cells,
        sum_clusters(fit, Strata(table, Members(signature[low], query[low])))
        + sum_clusters(fit, Strata(table, Members(signature[high], query[high]))),
    )
    np.testing.assert_allclose(parts.std_error, whole.std_error, rtol=1e-10)
    assert parts.n_clusters == whole.n_clusters


@pytest.mark.parametrize("seed", range(3))
def test_errors_by_pair_from_signatures_are_those_with_every_pair_a_cluster(seed: int) -> None:
    rng = np.random.default_rng(seed)
    impressions = rng.integers(0, 3, (400, 3)).astype(float)
    pairs = dense_table(impressions, rng.binomial(impressions.astype(int), [0.6, 0.4, 0.3]).astype(float))
    table, signature = compress(pairs)
    fit = fitted(table)
    expected = cluster_errors(fit, Strata(table, Members(signature, np.arange(400))))
    found = pair_errors(fit, table)
    assert table.n_units < 200
    assert found.n_clusters == expected.n_clusters
    for name in ("std_error", "low", "high", "effective_clusters", "covariance"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-10)


def test_a_pair_that_alone_identifies_a_cell_leaves_it_without_interval_by_pair() -> None:
    pairs, _ = random_pairs(6)
    bridge = dense_table(np.array([[0, 9.0, 0, 0, 8.0]]), np.array([[0, 4.0, 0, 0, 1.0]]))
    once, _ = merge([replace(pairs, n_cells=5), bridge])
    twice, _ = merge([replace(pairs, n_cells=5), bridge, bridge])
    reasons = [pair_errors(fitted(table), table).reason for table in (once, twice)]
    assert reasons == [(None, None, None, None, ONE_CLUSTER), (None,) * 5]


def test_a_cell_that_one_query_alone_identifies_gets_no_interval_and_the_others_do() -> None:
    pairs, query = random_pairs(7)
    bridge = dense_table(
        np.array([[0, 9.0, 0, 0, 8.0], [5.0, 0, 0, 0, 4.0]]), np.array([[0, 4.0, 0, 0, 1.0], [2.0, 0, 0, 0, 2.0]])
    )
    wider = replace(pairs, n_cells=5)
    table, (of_pairs, of_bridge) = merge([wider, bridge])
    fit = fitted(table)
    signature = np.concatenate([of_pairs, of_bridge])
    clusters = np.concatenate([query, [999, 999]])
    found = cluster_errors(fit, Strata(table, Members(signature, clusters)))
    every_pair = replace(table.take(signature), multiplicity=np.ones(len(signature)))
    assert found.reason == (None, None, None, None, ONE_CLUSTER)
    assert np.isnan([found.std_error[4], found.low[4], found.high[4]]).all()
    assert np.isfinite(found.std_error[:4]).all()
    expected = by_the_formula(every_pair, clusters, 0.01)
    np.testing.assert_allclose(found.std_error[1:4], expected.std_error[:3], rtol=1e-8)


def test_one_query_identifies_nothing_with_an_error() -> None:
    pairs, query = random_pairs(8)
    found = errors_of(pairs, np.zeros_like(query))
    assert found.reason == (None, ONE_CLUSTER, ONE_CLUSTER, ONE_CLUSTER)
    assert found.n_clusters == 1
    assert np.isnan(found.std_error[1:]).all()


def test_two_queries_leave_one_degree_of_freedom() -> None:
    rng = np.random.default_rng(0)
    impressions = np.full((20, 3), 500.0)
    propensity = np.array([[0.5, 0.3, 0.2], [0.5, 0.45, 0.35]])[np.arange(20) // 10]
    table = dense_table(impressions, rng.binomial(500, propensity).astype(float))
    fit = fitted(table)

    errors = cluster_errors(fit, Strata(table, Members(np.arange(20), np.arange(20) // 10)))

    assert errors.n_clusters == 2
    assert np.all(errors.effective_clusters[1:] > 1)
    half_width = np.log(errors.high / errors.low)[1:] / 2
    np.testing.assert_allclose(half_width / errors.std_error[1:], 12.706204736432095)


@pytest.mark.parametrize("n_queries", [2, 12])
def test_queries_that_agree_to_the_last_click_give_no_interval_instead_of_one_of_width_0(n_queries: int) -> None:
    impressions, clicks = np.full((n_queries, 2), 10.0), np.tile([4.0, 2.0], (n_queries, 1))
    errors = errors_of(dense_table(impressions, clicks), np.arange(n_queries))

    assert errors.reason == (None, IDENTICAL_CLUSTERS)
    assert np.isnan([errors.std_error[1], errors.low[1], errors.high[1]]).all()


def test_clusters_that_know_nothing_of_a_cell_do_not_count_for_it() -> None:
    rng = np.random.default_rng(5)
    impressions = np.zeros((60, 3))
    impressions[:, 0] = impressions[:20, 1] = impressions[20:, 2] = 30  # no query compares cells 1 and 2
    clicks = rng.binomial(impressions.astype(int), [0.4, 0.3, 0.2]).astype(float)
    both = errors_of(dense_table(impressions, clicks), np.arange(60))
    first = dense_table(impressions[:20, :2], clicks[:20, :2])
    alone = errors_of(first, np.arange(20))
    assert (both.n_clusters, alone.n_clusters) == (60, 20)
    np.testing.assert_allclose(both.std_error[1], alone.std_error[1], rtol=1e-8)
    np.testing.assert_allclose(both.high[1], alone.high[1], rtol=1e-8)


@pytest.mark.parametrize("members_at_once", [1, 7, 40])
def test_errors_do_not_depend_on_how_many_members_are_worked_on_at_a_time(
    members_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs, query = random_pairs(7)
    unlinked = dense_table(np.array([[0, 0, 0, 0, 9.0]] * 3), np.array([[0, 0, 0, 0, 4.0]] * 3))
    table, (of_pairs, of_unlinked) = merge([replace(pairs, n_cells=5), unlinked])
    fit = fitted(table)
    unit = np.concatenate([of_pairs, of_unlinked])
    cluster = np.concatenate([query, np.arange(3) + query.max() + 1])  # the last blocks hold nothing that is linked
    order = np.argsort(cluster, kind="stable")
    members = Members(unit[order], cluster[order])
    whole = cluster_errors(fit, Strata(table, members))
    monkeypatch.setattr("posbias.core.standard_errors.cluster._MEMBERS", members_at_once)
    monkeypatch.setattr("posbias.core.arrays.count_table._BLOCK", members_at_once)
    again = fitted(table)
    found = cluster_errors(again, Strata(table, members))
    np.testing.assert_allclose(again.log_theta, fit.log_theta, atol=1e-10)
    np.testing.assert_allclose(found.covariance, whole.covariance, rtol=1e-8)
    np.testing.assert_allclose(found.degrees, whole.degrees, rtol=1e-8)
    assert found.n_clusters == whole.n_clusters


def long_lists(seed: int, n_cells: int, n_queries: int = 12) -> tuple[CountTable, Integers]:
    """Documents that stand a few positions up or down each time, on lists that queries end at depths of their own.

    The last query alone reaches the last positions.
    """
    rng = np.random.default_rng(seed)
    impressions, clicks = np.zeros((2, n_queries * n_cells, n_cells))
    depth = [*rng.integers(n_cells // 4, n_cells - 20, n_queries - 1).tolist(), n_cells]
    for query in range(n_queries):
        rate = rng.beta(2, 3, n_cells)
        for _ in range(12):
            shown = np.argsort(np.arange(n_cells) + rng.normal(0, 3, n_cells))[: depth[query]]
            cell = np.arange(depth[query], dtype=np.int64)
            impressions[query * n_cells + shown, cell] += 1
            clicks[query * n_cells + shown, cell] += rng.random(depth[query]) < rate[shown] * (cell + 1) ** -0.2
    return dense_table(impressions, clicks), np.repeat(np.arange(n_queries), n_cells)


@pytest.mark.parametrize("together", [5, 64])
def test_conjugate_gradients_give_many_cells_what_dense_matrices_give_them(
    monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    pairs, query = long_lists(seed=3, n_cells=180)
    strata = Strata(pairs, Members(np.arange(pairs.n_units), query))
    found: list[tuple[ConditionalFit, ClusterErrors, Floats, float, Floats]] = []
    for many in (10**9, 1):
        for of in (linalg, spread_module, module):
            monkeypatch.setattr(of, "MANY", many)
        monkeypatch.setattr(module, "_MANY_CELLS", many)
        monkeypatch.setattr(module, "_CLUSTERS", together)
        fit = fitted(pairs)
        errors = cluster_errors(fit, strata)
        found.append((fit, errors, fit.inverse, query_spread(StrataEstimate(strata, fit, errors)), errors.covariance))
    dense, sparse = found
    assert ONE_CLUSTER in dense[1].reason
    assert dense[1].reason == sparse[1].reason
    assert dense[0].converged
    assert sparse[0].converged
    np.testing.assert_allclose(sparse[0].log_theta, dense[0].log_theta, rtol=0, atol=1e-8)
    for of_sparse, of_dense in (
        *((getattr(sparse[1], name), getattr(dense[1], name)) for name in ("std_error", "low", "high", "degrees")),
        *zip(sparse[2:], dense[2:], strict=True),
    ):
        np.testing.assert_allclose(of_sparse, of_dense, rtol=1e-8, atol=1e-12)
