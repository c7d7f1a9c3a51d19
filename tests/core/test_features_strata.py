"""Strata with exposure: the conditional likelihood on them is a Poisson regression, and its errors are clustered."""

from dataclasses import replace

import numpy as np
import pytest

from posbias.core.arrays.count_table import Floats, Integers
from posbias.core.arrays.linalg import solve
from posbias.core.features import QUANTILES, ExposureCounts, ExposureEstimate, ScoredRows, StratumEdges
from posbias.core.standard_errors.cluster import errors_from_sums
from posbias.core.theta.conditional import find_linkage, fit_conditional

N_ROWS, N_STRATA, N_CELLS = 4_000, 6, 4
THETA = np.array([1.0, 0.6, 0.4, 0.25])


@pytest.fixture
def rows() -> ScoredRows:
    draws = np.random.default_rng(0)
    stratum, cell = draws.integers(N_STRATA, size=N_ROWS), draws.integers(N_CELLS, size=N_ROWS)
    exposure = draws.uniform(0.05, 0.15, size=N_ROWS) * (1 + stratum)
    click = (draws.random(N_ROWS) < THETA[cell] * exposure).astype(float)
    return ScoredRows(stratum, cell, exposure, click, draws.integers(1, 4, size=N_ROWS).astype(float))


def fitted(rows: ScoredRows) -> ExposureEstimate:
    context = np.zeros(N_CELLS, np.int64)
    table = ExposureCounts.of(rows, N_STRATA, N_CELLS).table(context)
    return ExposureEstimate(table, fit_conditional(table, find_linkage(table)), context, N_STRATA)


def design_of(rows: ScoredRows) -> Floats:
    """A dummy for each stratum and for each cell but the first, shape (n, S + K - 1)."""
    design = np.zeros((N_ROWS, N_STRATA + N_CELLS))
    design[np.arange(N_ROWS), rows.stratum] = 1.0
    design[np.arange(N_ROWS), N_STRATA + rows.cell] = 1.0
    return np.delete(design, N_STRATA, axis=1)


def poisson_regression(rows: ScoredRows) -> tuple[Floats, Floats]:
    """The coefficients of a weighted Poisson regression, with offset log g, by iterated least squares; its means."""
    design = design_of(rows)
    mean: Floats = np.full(N_ROWS, 0.5)
    coefficients: Floats = np.zeros(N_STRATA + N_CELLS - 1)
    for _ in range(50):
        linear = np.log(mean) - np.log(rows.exposure)
        weight = rows.weight * mean
        working = linear + (rows.click - mean) / mean
        coefficients = solve((design.T * weight) @ design, (design.T * weight) @ working)
        mean = rows.exposure * np.exp(design @ coefficients)
    return coefficients, mean


def test_the_estimate_is_that_of_a_poisson_regression_with_stratum_constants_and_offset(rows: ScoredRows) -> None:
    coefficients, _ = poisson_regression(rows)
    np.testing.assert_allclose(fitted(rows).fit.log_theta[1:], coefficients[N_STRATA:], rtol=0, atol=1e-9)


def brute_force_errors(rows: ScoredRows, cluster: Integers) -> Floats:
    """The sandwich of that regression, clustered, with dense matrices: no correction."""
    design, (_, mean) = design_of(rows), poisson_regression(rows)
    bread = np.linalg.inv((design.T * (rows.weight * mean)) @ design).astype(np.float64)
    scores = design * (rows.weight * (rows.click - mean))[:, np.newaxis]
    by_cluster = np.stack([scores[cluster == one].sum(axis=0) for one in np.unique(cluster).tolist()])
    return np.sqrt(np.diag(bread @ by_cluster.T @ by_cluster @ bread))[N_STRATA:]


def test_errors_are_the_clustered_sandwich_of_that_regression(rows: ScoredRows) -> None:
    cluster, found = np.arange(N_ROWS) // 4, fitted(rows)
    errors = errors_from_sums(found.fit.log_theta, found.fit.free_cells, found.cluster_sums(rows, cluster))
    wanted = brute_force_errors(rows, cluster)
    np.testing.assert_allclose(errors.std_error[1:], wanted, rtol=0.01)  # leaving one out adds up to a percent
    alone = found.cluster_sums(rows, np.arange(N_ROWS))
    assert np.abs(np.diag(alone.covariance) ** 0.5 / wanted - 1).max() > 0.01  # the clusters matter


def test_errors_of_parts_add_up(rows: ScoredRows) -> None:
    found, cluster = fitted(rows), np.arange(N_ROWS) // 5
    whole = found.cluster_sums(rows, cluster)
    half = N_ROWS // 2
    first, second = (
        found.cluster_sums(
            replace(
                rows, **{name: getattr(rows, name)[part] for name in ("stratum", "cell", "exposure", "click", "weight")}
            ),
            cluster[part],
        )
        for part in (slice(0, half), slice(half, N_ROWS))
    )
    np.testing.assert_allclose((first + second).covariance, whole.covariance, rtol=1e-9)


def test_contexts_share_no_stratum(rows: ScoredRows) -> None:
    context = np.array([0, 0, 1, 1])
    counts = ExposureCounts.of(rows, N_STRATA, N_CELLS)
    table = counts.table(context)
    of_entry = context[table.cell]
    np.testing.assert_array_equal(of_entry, table.unit_of_entry // N_STRATA)
    np.testing.assert_allclose(table.sum_by_cell(table.clicks), counts.clicks.sum(axis=0))
    np.testing.assert_allclose(table.sum_by_cell(table.impressions), counts.exposure.sum(axis=0))


def test_strata_hold_rows_of_one_fold_between_the_same_quantiles() -> None:
    draws = np.random.default_rng(1)
    scores, places, fold = draws.normal(size=40_000), draws.normal(size=40_000), draws.integers(2, size=40_000)
    edges = StratumEdges.of(scores, places, fold)
    stratum = edges.stratum(scores, places, fold)
    assert edges.n_strata == 2 * QUANTILES**2
    np.testing.assert_array_equal(stratum // QUANTILES**2, fold)
    by_relevance = np.bincount(stratum // QUANTILES, minlength=2 * QUANTILES)
    np.testing.assert_allclose(by_relevance, np.repeat(np.bincount(fold), QUANTILES) / QUANTILES, rtol=0.01)
    one = stratum == stratum[0]
    assert np.ptp(scores[one]) < np.ptp(scores) / 2
    assert np.ptp(places[one]) < np.ptp(places) / 2


def test_few_rows_make_few_strata() -> None:
    fold = np.repeat([0, 1], 100)
    assert StratumEdges.of(np.arange(200.0), np.arange(200.0), fold).n_strata == 2 * 2**2


def test_new_rows_beyond_all_quantiles_have_a_stratum() -> None:
    fold = np.repeat([0, 1], 100)
    edges = StratumEdges.of(np.arange(200.0), np.arange(200.0), fold)
    beyond = edges.stratum(np.array([-1e9, 1e9]), np.array([-1e9, 1e9]), np.array([0, 1]))
    np.testing.assert_array_equal(beyond, [0, edges.n_strata - 1])
