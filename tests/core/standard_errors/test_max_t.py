"""P-values of several contrasts at once, against what is known of the largest of several numbers."""

import numpy as np
import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st

from posbias.core.arrays.count_table import Floats
from posbias.core.standard_errors.contrasts import (
    MOST_CONTRASTS,
    joint_p_values,
    max_t,
    shrunk_correlation,
    single_p_value,
)

MANY = 1e9  # degrees of freedom with which correlations are known


def joint(p_values: Floats, correlation: Floats, degrees: float = MANY, *, two_sided: bool = True) -> Floats:
    return joint_p_values(p_values, max_t(correlation, np.full(len(p_values), degrees), two_sided=two_sided))


def alike(size: int, correlation: float) -> Floats:
    return correlation + (1 - correlation) * np.eye(size)


@pytest.mark.parametrize("two_sided", [True, False])
@pytest.mark.parametrize("p_value", [1e-200, 1e-8, 0.001, 0.02, 0.3])
def test_independent_contrasts_reject_as_often_as_one_of_several_does(p_value: float, two_sided: bool) -> None:  # noqa: FBT001
    found = joint(np.full(10, p_value), np.eye(10), two_sided=two_sided)
    np.testing.assert_allclose(found, -np.expm1(10 * np.log1p(-p_value)), rtol=0.015)


@pytest.mark.parametrize("p_value", [1e-200, 0.001, 0.3])
def test_contrasts_that_are_one_reject_as_often_as_one(p_value: float) -> None:
    np.testing.assert_allclose(joint(np.full(10, p_value), np.ones((10, 10))), p_value)


@pytest.mark.parametrize("two_sided", [True, False])
@pytest.mark.slow
def test_correlated_contrasts_reject_as_often_as_the_largest_of_a_million_draws(two_sided: bool) -> None:  # noqa: FBT001
    correlation = 0.7 ** np.abs(np.subtract.outer(np.arange(9), np.arange(9)))
    drawn = np.random.default_rng(1).standard_normal((10**6, 9)) @ np.linalg.cholesky(correlation).T
    p_values = np.geomspace(0.0005, 0.9, 9)
    alone = scipy.special.stdtr(np.full(9, np.inf), -(np.abs(drawn) if two_sided else drawn)) * (2 if two_sided else 1)
    expected = (alone.min(axis=1)[:, np.newaxis] <= p_values).mean(axis=0)
    np.testing.assert_allclose(joint(p_values, correlation, two_sided=two_sided), expected, rtol=0.03)


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.95, 1.0])
@pytest.mark.parametrize("size", [1, 8, MOST_CONTRASTS + 1])
def test_the_p_value_at_a_level_is_the_one_whose_joint_p_value_it_is(size: int, correlation: float) -> None:
    bound_ratio = max_t(alike(size, correlation), np.full(size, MANY), two_sided=True)
    found = single_p_value(0.05, size, bound_ratio)
    np.testing.assert_allclose(joint_p_values(np.full(size, found), bound_ratio), 0.05, rtol=0.01)


def test_falls_that_come_with_rises_count_in_a_two_sided_test_only() -> None:
    opposite = np.array([[1.0, -1.0], [-1.0, 1.0]])
    p_values = np.full(2, 0.01)
    np.testing.assert_allclose(joint(p_values, opposite), 0.01)
    np.testing.assert_allclose(joint(p_values, opposite, two_sided=False), 0.02)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 12))
def test_a_joint_p_value_lies_between_the_single_one_and_bonferronis_and_keeps_their_order(
    seed: int, size: int
) -> None:
    rng = np.random.default_rng(seed)
    p_values = rng.random(size) ** rng.integers(1, 20)
    loadings = rng.standard_normal((size, 3))
    found = joint(p_values, np.corrcoef(loadings).reshape(size, size), 20.0, two_sided=bool(seed % 2))
    assert (p_values <= found).all()
    assert (found <= np.minimum(size * p_values, 1)).all()
    assert (np.diff(found[np.argsort(p_values)]) >= 0).all()


def test_one_contrast_keeps_its_own_p_value() -> None:
    assert joint(np.array([0.03]), np.ones((1, 1))).tolist() == [0.03]
    assert joint(np.array([0.0, 1.0]), np.eye(2)).tolist() == [0.0, 1.0]


def test_more_contrasts_than_are_drawn_take_bonferronis_bound() -> None:
    size = MOST_CONTRASTS + 1
    np.testing.assert_allclose(joint(np.full(size, 1e-4), np.ones((size, size))), 1e-4 * size)


def test_correlations_that_are_known_are_not_shrunk() -> None:
    np.testing.assert_allclose(shrunk_correlation(alike(4, 0.5), np.full(4, MANY)), alike(4, 0.5), rtol=1e-6)


def test_correlations_no_larger_than_chance_makes_them_are_taken_for_none() -> None:
    chance = alike(4, 0.3)
    np.testing.assert_array_equal(shrunk_correlation(chance, np.full(4, 5.0)), np.eye(4))


@pytest.mark.slow
def test_chance_correlations_of_few_clusters_do_not_make_a_test_too_sharp() -> None:
    """6 clusters, 30 contrasts: by the correlations as they come, some 9 % of true hypotheses would be rejected."""
    rng = np.random.default_rng(1000)
    clusters, size, logs = 6, 30, 150
    few = clusters - 1.0
    rejected, unshrunk = 0, 0
    for _ in range(logs):
        psi = rng.standard_normal((clusters, size))
        t = np.abs(psi.mean(axis=0)) / (psi.std(axis=0, ddof=1) / np.sqrt(clusters))
        p_values = 2 * scipy.special.stdtr(np.full(size, few), -t)
        correlation: Floats = np.corrcoef(psi.T).reshape(size, size)
        rejected += joint(p_values, correlation, few).min() < 0.05
        unshrunk += joint(p_values, correlation).min() < 0.05
    assert rejected <= 0.07 * logs
    assert unshrunk > rejected
