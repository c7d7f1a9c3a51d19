"""Intervention harvesting: its optimum by brute force, its errors by the jackknife, its invariances."""

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
from dense import dense_counts
from hypothesis import given, settings
from hypothesis import strategies as st
from small_logs import dense_table, random_pairs

from posbias.core.arrays.count_table import CountTable, Floats, Integers, Members, compress
from posbias.core.arrays.optimize import Limits
from posbias.core.counts.sufficient_statistics import Strata
from posbias.core.estimators import harvesting as errors_module
from posbias.core.estimators.estimate import Estimate
from posbias.core.estimators.harvesting import (
    UNCLICKED_SHARE,
    AllPairsFit,
    fit_allpairs,
    harvest_allpairs,
    interventional_sets,
    sum_clusters_of_pairs,
)
from posbias.core.standard_errors.cluster import ONE_CLUSTER
from posbias.core.theta.conditional import find_linkage, linked_counts


def random_log(seed: int, n_units: int = 60, n_cells: int = 4) -> tuple[CountTable, Integers]:
    """Clicked pairs, and the query of each, with a few large queries."""
    pairs, query = random_pairs(seed, n_units, n_cells)
    clicked = np.flatnonzero(pairs.sum_by_unit(pairs.clicks) > 0)
    return pairs.take(clicked), query[clicked]


def allpairs(table: CountTable, query: Integers, unit_of_member: Integers | None = None) -> Estimate:
    """AllPairs of pairs, or of signatures with the one of each pair."""
    members = np.arange(table.n_units) if unit_of_member is None else unit_of_member
    return harvest_allpairs(Strata(table, Members(members, query)), find_linkage(table))


# The estimates.


def test_noise_free_clicks_give_the_truth_exactly() -> None:
    rng = np.random.default_rng(0)
    truth = np.array([1, 1.6, 0.7, 0.3, 1e-3])
    impressions = rng.integers(1, 30, (40, 5)) * (rng.random((40, 5)) < 0.6)
    clicks = impressions * truth * rng.uniform(0.05, 0.6, (40, 1))
    found = allpairs(dense_table(impressions.astype(float), clicks), np.arange(40))
    assert found.converged
    np.testing.assert_allclose(found.propensity, truth, rtol=1e-9)


def brute_force(table: CountTable) -> tuple[Floats, float]:
    """The published objective, unit by unit, maximised over log theta and log r at once; all cells are identified."""
    dense = dense_counts(table)
    shown = dense[0] > 0
    rate = np.divide(dense[1], dense[0], out=np.zeros_like(dense[0]), where=shown)
    pairs = [(a, b) for a in range(table.n_cells) for b in range(a) if (shown[:, a] & shown[:, b]).any()]

    def loss(parameters: Floats) -> float:
        theta = np.exp(np.append(0, parameters[: table.n_cells - 1]))
        total = 0.0
        for (a, b), logit in zip(pairs, parameters[table.n_cells - 1 :].tolist(), strict=True):
            units = shown[:, a] & shown[:, b]
            r_ab = 1 / (1 + np.exp(-logit)) / max(theta[a], theta[b])
            for cell in (a, b):
                p, clicks = theta[cell] * r_ab, table.multiplicity[units] @ rate[units, cell]
                no_clicks = table.multiplicity[units] @ (1 + UNCLICKED_SHARE - rate[units, cell])
                total -= clicks * np.log(p) + no_clicks * np.log1p(-p)
        return total

    start = np.append(np.zeros(table.n_cells - 1), np.full(len(pairs), -2.0))
    best = import_module("scipy.optimize").minimize(loss, start, method="BFGS", options={"gtol": 1e-5})
    return np.append(0.0, best.x[: table.n_cells - 1]), -float(best.fun)


@pytest.mark.parametrize("seed", range(3))
def test_allpairs_is_the_optimum_of_the_published_objective(seed: int) -> None:
    table, _ = random_log(seed, n_units=25, n_cells=3)
    fit = fit_allpairs(table, find_linkage(table))
    log_theta, objective = brute_force(table)
    assert fit.converged
    found = fit.sets.objective(fit.profile)
    assert found == pytest.approx(objective, rel=1e-9)
    assert found >= objective - 1e-9
    np.testing.assert_allclose(fit.log_theta, log_theta, atol=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_slopes_and_curvatures_are_those_of_finite_differences(seed: int) -> None:
    table, _ = random_log(seed)
    sets = interventional_sets(table, linked_counts(table, find_linkage(table)))
    at = np.random.default_rng(seed).normal(0, 0.5, 4)
    step = 1e-4 * np.eye(4)

    def objective(log_theta: Floats) -> float:
        return sets.objective(sets.profile(log_theta))

    def slope(log_theta: Floats) -> Floats:
        return sets.at_cells(sets.profile(log_theta).flow, 4)

    gradient = [(objective(at + move) - objective(at - move)) / 2e-4 for move in step]
    hessian = [(slope(at + move) - slope(at - move)) / 2e-4 for move in step]
    np.testing.assert_allclose(slope(at), gradient, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(-sets.laplacian(sets.profile(at).conductance, 4), hessian, rtol=1e-5, atol=1e-5)


def test_units_that_were_clicked_each_time_keep_the_optimum_finite() -> None:
    always = np.full((3, 3), 4.0)
    clicks = np.array([[4.0, 4, 4], [4, 4, 4], [4, 4, 1]])
    fit = fit_allpairs(dense_table(always, clicks), find_linkage(dense_table(always, clicks)))
    assert fit.converged
    assert fit.log_theta[1] == pytest.approx(0, abs=1e-12)
    assert fit.log_theta[2] == pytest.approx(np.log(9 / 12), abs=0.01)


@pytest.mark.parametrize("steep", [1e-3, 1e-6, 1e-9])
def test_steep_propensities_converge_to_the_truth(steep: float) -> None:
    rng = np.random.default_rng(4)
    impressions = 10 ** rng.uniform(0, 9, (30, 4)) * (rng.random((30, 4)) < 0.8)
    truth = np.array([1, steep, steep**0.5, 1])
    found = allpairs(dense_table(impressions, impressions * truth * rng.random((30, 1))), np.arange(30))
    assert found.converged
    np.testing.assert_allclose(found.propensity, truth, rtol=1e-7)


def test_running_out_of_iterations_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    table, _ = random_log(2)
    told: list[int] = []
    linkage = find_linkage(table)
    monkeypatch.setattr(errors_module, "_LIMITS", Limits(4.0, 1e-10, max_iterations=1))
    found = fit_allpairs(table, linkage, on_iteration=lambda number, _change: told.append(number))
    assert not found.converged
    assert (told, found.iterations) == ([1], 1)


# Invariances.


def assert_same(found: Estimate, expected: Estimate) -> None:
    np.testing.assert_allclose(np.log(found.propensity), np.log(expected.propensity), rtol=1e-7, atol=1e-9)
    for name in ("std_error", "low", "high", "effective_clusters"):
        np.testing.assert_allclose(
            getattr(found.intervals, name), getattr(expected.intervals, name), rtol=1e-7, atol=1e-9
        )
    assert (found.n_clusters, found.intervals.reason) == (expected.n_clusters, expected.intervals.reason)


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_order_names_of_queries_and_compression_change_nothing(seed: int) -> None:
    pairs, query = random_log(seed, n_units=120)
    expected = allpairs(pairs, query)
    order = np.random.default_rng(seed).permutation(pairs.n_units)
    assert_same(allpairs(pairs.take(order), 1000 - 7 * query[order]), expected)
    table, signature = compress(pairs.take(order))
    assert_same(allpairs(table, query[order], signature), expected)


def test_blocks_of_clusters_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs, query = random_log(7)
    expected = allpairs(pairs, query)
    monkeypatch.setattr(errors_module, "BLOCK", 1)
    assert_same(allpairs(pairs, query), expected)


def test_pairs_without_a_click_change_next_to_nothing() -> None:
    pairs, query = random_log(8)
    dense = np.pad(dense_counts(pairs), ((0, 0), (0, 30), (0, 0)))
    dense[0, pairs.n_units :] = 6
    more = dense_table(dense[0], dense[1])
    members = np.arange(pairs.n_units)
    np.testing.assert_allclose(allpairs(more, query, members).propensity, allpairs(pairs, query).propensity, rtol=0.02)


# Errors.


def jackknife(pairs: CountTable, query: Integers, log_theta: Callable[[CountTable], Floats]) -> Floats:
    """What leaving out each query in turn changes, shape (G, K)."""
    whole = log_theta(pairs)
    return np.array([log_theta(pairs.take(np.flatnonzero(query != g))) - whole for g in np.unique(query)])


@pytest.mark.parametrize("seed", range(4))
def test_leaving_out_a_cluster_is_one_newton_step(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs, query = random_log(seed)
    monkeypatch.setattr(errors_module, "_LEVERAGE", 0.0)
    fit = fit_allpairs(pairs, find_linkage(pairs))

    def newton_step(table: CountTable) -> Floats:
        linked = linked_counts(table, find_linkage(table))
        sets = interventional_sets(table, linked)
        profile = sets.profile(fit.log_theta)
        information = sets.laplacian(profile.conductance, 4)[1:, 1:]
        return np.append(0.0, np.linalg.solve(information, sets.at_cells(profile.flow, 4)[1:]))

    changes = jackknife(pairs, query, newton_step)[:, 1:]
    found = sum_clusters_of_pairs(fit, Members(np.arange(pairs.n_units), query))
    np.testing.assert_allclose(found.outer, changes.T @ changes, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_a_small_cluster_changes_what_its_weight_changes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs, query = random_log(seed)
    linkage = find_linkage(pairs)
    monkeypatch.setattr(errors_module, "_LEVERAGE", np.inf)
    monkeypatch.setattr(errors_module, "_LIMITS", Limits(4.0, 1e-13, stalled=1e-7))

    def weighted(g: int, weight: float) -> Floats:
        multiplicity = np.where(query == g, weight, 1.0)
        return fit_allpairs(replace(pairs, multiplicity=multiplicity), linkage).log_theta

    slopes = np.array([(weighted(g, 1 + 1e-4) - weighted(g, 1 - 1e-4)) / 2e-4 for g in np.unique(query)])[:, 1:]
    found = sum_clusters_of_pairs(fit_allpairs(pairs, linkage), Members(np.arange(pairs.n_units), query))
    np.testing.assert_allclose(found.outer, slopes.T @ slopes, rtol=1e-5, atol=1e-7)


def information_of(fit: AllPairsFit, unit: int) -> Floats:
    """A unit's share of the information, by its share of the clicks of each of its sets."""
    table, total = fit.linked.table, np.zeros((4, 4))
    entries = np.arange(int(table.start[unit]), int(table.start[unit + 1]))
    rate = dict(zip(table.cell[entries].tolist(), table.clicks[entries] / table.impressions[entries], strict=True))
    for number, (a, b) in enumerate(zip(fit.sets.first.tolist(), fit.sets.second.tolist(), strict=True)):
        if a in rate and b in rate:
            clicks = fit.sets.first_clicks[number] + fit.sets.second_clicks[number]
            contrast = np.eye(4)[a] - np.eye(4)[b]
            share = (rate[a] + rate[b]) / clicks
            total += fit.profile.conductance[number] * share * np.outer(contrast, contrast)
    return total[1:, 1:]


def test_effective_clusters_are_the_dense_formula() -> None:
    pairs, query = random_log(3)
    fit = fit_allpairs(pairs, find_linkage(pairs))
    inverse = np.linalg.inv(fit.information)
    own = np.array([information_of(fit, unit) for unit in range(fit.linked.table.n_units)])
    np.testing.assert_allclose(own.sum(axis=0), fit.information, rtol=1e-9)
    member_query = query[fit.linked.units]
    influence = np.array([np.diag(inverse @ own[member_query == g].sum(axis=0) @ inverse) for g in np.unique(query)])
    expected = influence.sum(axis=0) ** 2 / (influence**2).sum(axis=0)
    np.testing.assert_allclose(allpairs(pairs, query).intervals.effective_clusters[1:], expected, rtol=1e-9)


def test_a_cell_that_one_query_alone_identifies_gets_no_interval_and_the_others_do() -> None:
    pairs, query = random_log(13)
    dense = np.pad(dense_counts(pairs), ((0, 0), (0, 1), (0, 1)))
    dense[:, -1] = [[0, 0, 0, 6, 9], [0, 0, 0, 1, 2]]
    found = allpairs(dense_table(dense[0], dense[1]), np.append(query, 999))
    assert found.intervals.reason == (None, None, None, None, ONE_CLUSTER)
    assert np.isnan([found.intervals.std_error[4], found.intervals.low[4], found.intervals.high[4]]).all()
    assert np.isfinite(found.intervals.std_error[:4]).all()
    np.testing.assert_allclose(found.intervals.std_error[1:4], allpairs(pairs, query).intervals.std_error[1:], rtol=0.1)
