"""Tests of several contrasts, and of two estimates from the same log, against the formulas written out densely."""

from dataclasses import replace

import numpy as np
import pytest
from dense import by_cluster, scores_and_information
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from small_logs import dense_table, fitted_pairs

from posbias.core.arrays.count_table import Floats, Integers
from posbias.core.arrays.linalg import solve
from posbias.core.standard_errors import contrasts as module
from posbias.core.standard_errors.cluster import ClusterErrors
from posbias.core.standard_errors.contrasts import (
    ScoredEstimate,
    contrast_test,
    correlation_matrix,
    difference_errors,
    difference_test,
    linear_contrast_test,
)
from posbias.core.theta.conditional import ConditionalFit

N_CELLS = 4


def fitted(impressions: Floats, clicks: Floats, query: Integers) -> tuple[ConditionalFit, ClusterErrors]:
    """Of all days together."""
    found = fitted_pairs(dense_table(impressions.sum(axis=1), clicks.sum(axis=1)), query)
    return found.fit, found.errors


def daily_counts(seed: int, n_queries: int, n_days: int = 3, docs: int = 4) -> tuple[Floats, Floats, Integers]:
    """Impressions and clicks, each of shape (pairs, days, cells), and the query of each pair."""
    rng = np.random.default_rng(seed)
    n_pairs = n_queries * docs
    impressions = rng.poisson(2.0, (n_pairs, n_days, N_CELLS))
    clicks = rng.binomial(impressions, rng.beta(2, 3, (n_pairs, 1, 1)) / np.arange(1, N_CELLS + 1))
    return impressions.astype(float), clicks.astype(float), np.arange(n_pairs) // docs


def pooled_and_daily(impressions: Floats, clicks: Floats, query: Integers) -> tuple[ScoredEstimate, ScoredEstimate]:
    n_pairs, n_days, _ = impressions.shape
    pooled = dense_table(impressions.sum(axis=1), clicks.sum(axis=1))
    daily = dense_table(*(counts.reshape(n_pairs * n_days, N_CELLS) for counts in (impressions, clicks)))
    return fitted_pairs(pooled, query).scored(), fitted_pairs(daily, np.repeat(query, n_days)).scored()


def influence(impressions: Floats, clicks: Floats, log_theta: Floats, query: Integers) -> Floats:
    """H^-1 s_g of each query on the cells other than the reference, shape (G, K - 1), with dense matrices."""
    scores, information = scores_and_information(impressions, clicks, np.exp(log_theta))
    return solve(information.sum(axis=0)[1:, 1:], by_cluster(scores, query)[:, 1:].T).T


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 8))
def test_without_correlations_a_contrast_is_rejected_exactly_beyond_the_bonferroni_bound(seed: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    difference, std_error = rng.normal(0, 3, size), rng.uniform(0.5, 2, size)
    degrees = np.full(size, rng.uniform(1, 50))
    found = contrast_test(difference, std_error, degrees)
    bound = stats.t.ppf(1 - 0.05 / (2 * size), degrees[0])  # pyright: ignore[reportUnknownMemberType]
    ratio = np.abs(difference) / std_error
    assert found.rejected == bool(ratio.max() > bound)
    assert found.statistic == ratio.max()
    assert found.largest == ratio.argmax()
    assert (found.difference, found.std_error) == (difference[found.largest], std_error[found.largest])
    np.testing.assert_array_equal(found.p_values < 0.05, ratio > bound)


def test_a_contrast_with_few_degrees_does_not_decide_by_its_size_alone() -> None:
    found = contrast_test(np.array([5.0, 4.0]), np.ones(2), np.array([1.0, 1000.0]))
    assert found.largest == 1
    assert found.degrees == 1000


def test_contrasts_without_an_error_are_left_out() -> None:
    found = contrast_test(np.array([9.0, 1.0, np.nan, 9.0]), np.array([0.0, 1.0, 1.0, np.nan]), np.full(4, 1e9))
    assert found.n_contrasts == 1
    assert found.largest == 1
    assert found.p_value == pytest.approx(2 * stats.norm.sf(1), rel=1e-6)  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    np.testing.assert_array_equal(np.isnan(found.p_values), [True, False, True, True])


def test_no_contrast_rejects_nothing() -> None:
    found = contrast_test(np.zeros(2), np.zeros(2), np.ones(2))
    assert not found.rejected
    assert found.n_contrasts == 0


def test_one_sided_only_rises_count() -> None:
    falls = contrast_test(np.array([-9.0, -5.0]), np.ones(2), np.full(2, 50.0), rises_only=True)
    rises = contrast_test(np.array([-9.0, 5.0]), np.ones(2), np.full(2, 50.0), rises_only=True)
    assert not falls.rejected
    assert rises.rejected
    assert rises.largest == 1


def test_linear_contrasts_are_the_dense_formula() -> None:
    fit, errors = fitted(*daily_counts(3, n_queries=15))
    contrasts = np.array([[0, 1, -1, 0], [1, -0.5, 0, -0.5], [1, 0, 0, 0]], np.float64)
    found = linear_contrast_test(contrasts, fit, errors)
    of_free, b = contrasts[:2, 1:], fit.log_theta[1:]
    sd = np.sqrt(np.diag(of_free @ errors.covariance @ of_free.T))
    degrees = np.where(of_free != 0, errors.degrees[1:], np.inf).min(axis=1)
    correlation = of_free @ errors.covariance @ of_free.T / np.outer(sd, sd)
    expected = contrast_test(of_free @ b, sd, degrees, correlation=correlation)
    assert found.n_contrasts == 2  # the third one compares a reference with nothing
    np.testing.assert_allclose(found.p_values[:2], expected.p_values, rtol=1e-10)
    assert found.degrees == pytest.approx(expected.degrees)
    assert found.degrees <= 14


def test_a_contrast_of_many_cells_has_no_more_degrees_than_clusters_allow() -> None:
    """Each context holds the same 8 queries: their mean rests on 8 queries, however many contexts there are."""
    fit, errors = fitted(*daily_counts(5, n_queries=8))
    found = linear_contrast_test(np.array([[-1, 1 / 3, 1 / 3, 1 / 3]]), fit, errors)
    assert found.degrees == errors.degrees[1:].min() <= 7


def test_a_cell_that_hardly_adds_to_the_variance_does_not_limit_the_degrees() -> None:
    fit, errors = fitted(*daily_counts(5, n_queries=15))
    lonely = replace(errors, degrees=np.append(errors.degrees[:3], 1.0))
    weights = np.array([[0, 1, 0.001, -0.001], [0, 1, 0, -1.0]])
    assert linear_contrast_test(weights[:1], fit, lonely).degrees == errors.degrees[1]
    assert linear_contrast_test(weights[1:], fit, lonely).degrees == 1


def test_linear_contrasts_of_cells_without_an_error_are_left_out() -> None:
    fit, errors = fitted(*daily_counts(4, n_queries=15))
    lost = np.array([False, False, True])
    broken = replace(
        errors,
        std_error=np.append(0, np.where(lost, np.nan, errors.std_error[1:])),
        covariance=np.where(np.logical_or.outer(lost, lost), np.nan, errors.covariance),
    )
    contrasts = np.array([[0, 1, -1, 0], [0, 1, 0, -1]], np.float64)
    found = linear_contrast_test(contrasts, fit, broken)
    np.testing.assert_array_equal(np.isnan(found.p_values), [False, True])
    assert found.p_value == pytest.approx(linear_contrast_test(contrasts[:1], fit, errors).p_value)


def test_the_tail_keeps_its_digits_far_out() -> None:
    found = contrast_test(np.array([30.0]), np.ones(1), np.array([1e9]))
    assert 0 < found.p_value < 1e-190


def test_what_has_no_error_or_an_infinite_one_has_no_correlations() -> None:
    unknown = np.array(
        [[4.0, 3.0, 0, 1, np.nan], [3, 9, 0, 1, np.nan], [0, 0, 0, 0, 0], [1, 1, 0, np.inf, 1], [np.nan] * 5]
    )
    expected = np.eye(5)
    expected[0, 1] = expected[1, 0] = 0.5
    np.testing.assert_allclose(correlation_matrix(unknown), expected)


def test_contrasts_that_say_the_same_count_once() -> None:
    fit, errors = fitted(*daily_counts(3, n_queries=15))
    one = np.array([[0, 1, -1, 0]], np.float64)
    alone, repeated = (linear_contrast_test(np.tile(one, (times, 1)), fit, errors) for times in (1, 9))
    assert repeated.n_contrasts == 9
    assert repeated.p_value < 2 * alone.p_value < 9 * alone.p_value


def test_a_difference_that_two_cells_share_counts_once() -> None:
    """Three cells in the place of one: what they say is known from that one alone."""
    pooled, daily = pooled_and_daily(*daily_counts(1, n_queries=40))
    twin = np.array([0, 1, 1, 1])
    first, second = (
        replace(
            one,
            log_theta=one.log_theta[twin],
            std_error=one.std_error[twin],
            degrees=one.degrees[twin],
            response=one.response[twin],
        )
        for one in (pooled, daily)
    )
    found = difference_test(first, second)
    assert found.n_contrasts == 3
    two = np.array([0, 1])
    alone = contrast_test(
        (first.log_theta - second.log_theta)[two],
        difference_errors(first, second)[0][two],
        np.minimum(first.degrees, second.degrees)[two],
    )
    assert found.p_value == pytest.approx(alone.p_value, rel=0.05)


def dense_errors(impressions: Floats, clicks: Floats, query: Integers) -> tuple[Floats, Floats]:
    """The errors of pooled minus daily by the formula, on the cells other than the reference, and correlations."""
    pooled, daily = pooled_and_daily(impressions, clicks, query)
    first = influence(impressions.sum(axis=1), clicks.sum(axis=1), pooled.log_theta, query)
    by_day = impressions.reshape(-1, N_CELLS), clicks.reshape(-1, N_CELLS)
    second = influence(*by_day, daily.log_theta, np.repeat(query, impressions.shape[1]))
    psi = first - second
    plain = [np.sqrt(np.square(own).sum(axis=0)) for own in (first, second)]
    few_clusters = np.maximum(pooled.std_error[1:] / plain[0], daily.std_error[1:] / plain[1])
    return np.maximum(few_clusters, 1) * np.sqrt(np.square(psi).sum(axis=0)), cosines(psi)


def cosines(psi: Floats) -> Floats:
    length = np.sqrt(np.square(psi).sum(axis=0))
    return psi.T @ psi / np.outer(length, length)


@pytest.fixture(params=["few cells", "many cells"])
def many_cells(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the cells are taken for so many that no correlations are made."""
    many = request.param == "many cells"
    if many:
        monkeypatch.setattr(module, "MOST_CONTRASTS", 1)
    return many


@pytest.mark.parametrize("seed", range(3))
def test_errors_of_a_difference_are_the_dense_formula(seed: int, *, many_cells: bool) -> None:
    order = np.random.default_rng(seed).permutation(60)
    impressions, clicks, query = daily_counts(seed, n_queries=15)
    counts = impressions[order], clicks[order], query[order]
    found, found_correlation = difference_errors(*pooled_and_daily(*counts))
    std_error, correlation = dense_errors(*counts)
    np.testing.assert_allclose(found[1:], std_error, rtol=1e-8)
    assert (found_correlation is None) == many_cells
    if found_correlation is not None:
        np.testing.assert_allclose(found_correlation[1:, 1:], correlation, atol=1e-8)


@pytest.mark.usefixtures("many_cells")
def test_a_query_that_counts_in_one_estimate_only_counts_in_the_difference() -> None:
    impressions, clicks, query = daily_counts(1, n_queries=15)
    impressions[query == 0] = 0
    impressions[query == 0, 0, 0] = impressions[query == 0, 1, 1] = 9  # one cell a day, two in all
    clicks[query == 0] = impressions[query == 0] // 2
    pooled, daily = pooled_and_daily(impressions, clicks, query)
    assert len(pooled.clusters) == len(daily.clusters) + 1
    expected, _ = dense_errors(impressions, clicks, query)
    np.testing.assert_allclose(difference_errors(pooled, daily)[0][1:], expected, rtol=1e-8)


@pytest.mark.usefixtures("many_cells")
def test_an_estimate_does_not_differ_from_itself() -> None:
    impressions, clicks, query = daily_counts(2, n_queries=15)
    pooled, _ = pooled_and_daily(impressions, clicks, query)
    found = difference_test(pooled, pooled)
    assert found.n_contrasts == 0
    assert not found.rejected


def test_clusters_that_agree_exactly_decide_nothing() -> None:
    impressions, clicks, _ = daily_counts(5, n_queries=5)
    twice = np.vstack([impressions, impressions]), np.vstack([clicks, clicks])
    found = difference_test(*pooled_and_daily(*twice, np.repeat([0, 1], len(impressions))))
    assert found.n_contrasts == 0
