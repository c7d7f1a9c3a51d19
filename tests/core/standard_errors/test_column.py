"""Errors clustered by a column of the log, and by query and column at once."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from small_logs import PBM, simulated, statistics_of

from posbias.core.arrays.count_table import Floats
from posbias.core.counts.sufficient_statistics import SufficientStatistics
from posbias.core.estimators.estimate import EstimationOptions
from posbias.core.estimators.methods import ConditionalEstimator
from posbias.core.fit.fit import fit_statistics
from posbias.core.simulation.simulate import SimulationOptions, simulate
from posbias.core.standard_errors import column as module
from posbias.core.standard_errors.cluster import ONE_CLUSTER, ClusterSums, errors_from_sums, sum_clusters
from posbias.core.standard_errors.column import column_sums
from posbias.core.theta.conditional import ConditionalFit

BY_USER = replace(PBM, clusters=("user",))
WORLD = SimulationOptions(
    n_sessions=1_500, n_queries=60, docs_per_query=8, n_positions=5, query_exponent=0.5, attractiveness_scale=0.5
)


def with_users(log: pl.DataFrame, n_users: int, seed: int = 0) -> pl.DataFrame:
    """Each page seen by one of some users."""
    user = np.random.default_rng(seed).integers(0, n_users, log["session"].n_unique())
    return log.with_columns(user=pl.Series(user)[log["session"]])


def conditional(statistics: SufficientStatistics) -> ConditionalFit:
    fitted = (
        ConditionalEstimator().estimate(statistics, statistics.strata(), EstimationOptions(), lambda _: None).fitted
    )
    assert fitted is not None
    return fitted.fit


def sums_by(statistics: SufficientStatistics, fit: ConditionalFit, *by: str) -> ClusterSums:
    return column_sums(statistics, fit, "none", by)


def assert_same(one: ClusterSums, other: ClusterSums) -> None:
    scale = float(np.abs(one.outer).max())
    np.testing.assert_allclose(one.outer, other.outer, rtol=1e-8, atol=1e-10 * scale)
    np.testing.assert_allclose(one.influence, other.influence, rtol=1e-8)
    np.testing.assert_allclose(one.influence_squared, other.influence_squared, rtol=1e-8)
    np.testing.assert_array_equal(one.clusters_of_cell, other.clusters_of_cell)
    np.testing.assert_array_equal(one.alone, other.alone)
    assert one.n_clusters == other.n_clusters


@pytest.mark.parametrize("n_queries", [6, 60])
def test_clusters_that_are_queries_are_those_of_the_errors_by_query(n_queries: int) -> None:
    log = simulate(replace(WORLD, n_queries=n_queries)).log.with_columns(user=pl.col("query") + 5)
    statistics = statistics_of(log, BY_USER)
    fit = conditional(statistics)

    by_query = sum_clusters(fit, statistics.strata())
    assert_same(sums_by(statistics, fit, "user"), by_query)
    assert_same(sums_by(statistics, fit, "query", "user"), by_query)


@pytest.mark.parametrize("n_users", [4, 300])
def test_the_values_of_a_column_may_lie_in_several_parts(n_users: int) -> None:
    log = with_users(simulated(WORLD).log, n_users)
    whole = statistics_of(log, BY_USER)
    fit = conditional(whole)

    assert_same(sums_by(statistics_of(log, BY_USER, 5), fit, "user"), sums_by(whole, fit, "user"))


def test_a_column_may_have_any_name() -> None:
    log = with_users(simulated(WORLD).log, 12)
    statistics = statistics_of(log, BY_USER)
    fit = conditional(statistics)
    renamed = statistics_of(log.rename({"user": "sums"}), replace(PBM, clusters=("sums",)))

    assert_same(sums_by(renamed, fit, "sums"), sums_by(statistics, fit, "user"))


@pytest.mark.slow
def test_chunks_of_clusters_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    statistics = statistics_of(with_users(simulated(WORLD).log, 100), BY_USER)
    fit = conditional(statistics)
    whole = sums_by(statistics, fit, "user")
    monkeypatch.setattr(module, "_CHUNK", 1_000)
    monkeypatch.setattr(module, "_BLOCK", 40)

    assert_same(sums_by(statistics, fit, "user"), whole)


def dense_sums(log: pl.DataFrame, fit: ConditionalFit) -> tuple[Floats, Floats]:
    """Score and information of each user by the equations, impression by impression, shapes (G, F) and (G, F, F)."""
    n_users, theta = int(log["user"].max()) + 1, fit.theta  # pyright: ignore[reportArgumentType]
    scores, informations = np.zeros((n_users, 5)), np.zeros((n_users, 5, 5))
    for _, pair in log.group_by("query", "doc"):
        cell, click = pair["position"].to_numpy() - 1, pair["click"].to_numpy().astype(float)
        user = pair["user"].to_numpy()
        share = theta[cell] / theta[cell].sum()
        p = np.bincount(cell, share, 5)
        for one in np.unique(user):
            own = user == one
            residual = click[own] - share[own] * click.sum()
            held = share[own].sum()
            if held < 1 - 1e-9:
                residual = residual + ((1 - held) ** -0.5 - 1) / held * share[own] * residual.sum()
            distance = np.eye(5)[cell[own]] - p
            scores[one] += residual @ distance
            informations[one] += click.sum() * (distance.T * share[own]) @ distance
    return scores[:, 1:], informations[:, 1:, 1:]


@pytest.mark.parametrize("n_users", [5, 80])
def test_the_sums_are_those_of_the_equations(n_users: int) -> None:
    log = with_users(simulate(replace(WORLD, n_sessions=400)).log, n_users)
    statistics = statistics_of(log, BY_USER)
    fit = conditional(statistics)
    scores, informations = dense_sums(log, fit)
    np.testing.assert_allclose(informations.sum(axis=0), fit.information, rtol=1e-8)

    inverse = np.linalg.inv(fit.information)
    leverage = np.einsum("kl,glk->g", inverse, informations)
    rest = np.where((leverage < 0.01)[:, np.newaxis, np.newaxis], fit.information, fit.information - informations)
    changes = np.linalg.solve(rest, scores[:, :, np.newaxis])[:, :, 0]
    found = sums_by(statistics, fit, "user")

    np.testing.assert_allclose(found.outer, changes.T @ changes, rtol=1e-7, atol=1e-12)
    influence = np.einsum("kl,glm,mk->gk", inverse, informations, inverse)
    np.testing.assert_allclose(found.influence, influence.sum(axis=0), rtol=1e-8)
    np.testing.assert_allclose(found.influence_squared, (influence**2).sum(axis=0), rtol=1e-8)


def test_a_cell_that_one_user_alone_identifies_has_no_interval() -> None:
    log = with_users(simulated(WORLD).log, 8).filter((pl.col("position") < 5) | (pl.col("user") == 7))
    statistics = statistics_of(log, BY_USER)
    fit = conditional(statistics)
    errors = errors_from_sums(fit.log_theta, fit.free_cells, sums_by(statistics, fit, "user"))

    assert errors.reason[4] == ONE_CLUSTER
    assert np.isnan(errors.std_error[4])
    assert (errors.std_error[1:4] > 0).all()


def two_way(statistics: SufficientStatistics, fit: ConditionalFit) -> tuple[ClusterSums, ClusterSums, ClusterSums]:
    by_query = sum_clusters(fit, statistics.strata())
    return by_query, sums_by(statistics, fit, "user"), sums_by(statistics, fit, "query", "user")


def test_two_ways_are_the_sum_of_both_less_what_they_share_and_never_less_than_one() -> None:
    statistics = statistics_of(with_users(simulated(WORLD).log, 12), BY_USER)
    fit = conditional(statistics)
    sums = by_query, by_user, by_both = two_way(statistics, fit)
    found = errors_from_sums(fit.log_theta, fit.free_cells, sums)
    ways = np.diag(by_query.covariance), np.diag(by_user.covariance)
    plain = ways[0] + ways[1] - np.diag(by_both.covariance)

    np.testing.assert_allclose(np.diag(found.covariance), np.maximum(plain, np.maximum(*ways)), rtol=1e-6)
    assert np.linalg.eigvalsh(found.covariance).min() > -1e-12
    np.testing.assert_array_equal(found.degrees[fit.free_cells], np.minimum(by_query.degrees, by_user.degrees))
    assert found.n_clusters == 12


@pytest.mark.slow
def test_a_fit_of_statistics_with_clusters_is_clustered_both_ways_unless_it_says_otherwise() -> None:
    statistics = statistics_of(with_users(simulated(WORLD).log, 12), BY_USER)
    found = {
        cluster: fit_statistics(statistics, "conditional", EstimationOptions(cluster=cluster), compare=False).estimate
        for cluster in (None, "query", "column", "two-way")
    }

    assert [estimate.errors_by for estimate in found.values()] == ["two-way", "query", "column", "two-way"]
    assert found["column"].n_clusters == found[None].n_clusters == 12
    np.testing.assert_array_equal(found[None].intervals.std_error, found["two-way"].intervals.std_error)
    assert (found[None].intervals.std_error[1:] >= found["query"].intervals.std_error[1:] * (1 - 1e-9)).all()
    for estimate in found.values():
        np.testing.assert_array_equal(estimate.propensity, found[None].propensity)
