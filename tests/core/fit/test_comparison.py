"""Contrasts of curves: what is compared with what, how sure it is, and what one side lacks."""

import numpy as np
import polars as pl
import pytest

from posbias.core.fit.comparison import (
    Curves,
    SavedCurve,
    change,
    change_table,
    curves_by_fit,
    day_table,
    differences_from_others,
    large_changes,
)

CELLS = pl.DataFrame({"position": [1, 2, 3]}, schema={"position": pl.Int32})


def curves(first: list[float], second: list[float], error: float = 0.1, shared: float = 0.0) -> Curves:
    """Two curves relative to position 1; their errors have the covariance `shared` cell by cell."""
    own = np.diag([0.0, error**2, error**2])
    between = np.diag([0.0, shared, shared])
    return Curves(
        np.log(np.array([first, second])),
        np.block([[own, between], [between, own]]),
        np.full((2, 3), 1e6),
        np.zeros(3, np.int64),
        np.isfinite(np.array([first, second])),
    )


def test_a_change_is_the_ratio_with_the_errors_of_both() -> None:
    given = curves([1.0, 0.5, 0.4], [1.0, 0.6, 0.4])
    found = change(given)

    np.testing.assert_allclose(found.difference, [0.0, np.log(1.2), 0.0], atol=1e-12)
    np.testing.assert_allclose(found.std_error, [0.0, 0.1 * np.sqrt(2), 0.1 * np.sqrt(2)])
    assert found.test.n_contrasts == 2
    assert found.test.p_value >= change_table(CELLS, given, found)["p_value"][1]


def test_what_two_curves_share_makes_a_difference_surer() -> None:
    alone, together = (change(curves([1.0, 0.5, 0.4], [1.0, 0.6, 0.4], shared=shared)) for shared in (0.0, 0.009))

    assert together.std_error[1] == pytest.approx(np.sqrt(2 * 0.01 - 2 * 0.009))
    assert together.test.p_value < 0.01
    assert alone.test.p_value > 0.2


def test_the_same_function_of_the_counts_has_no_error_and_no_test() -> None:
    found = change(curves([1.0, 0.5, 0.4], [1.0, 0.5, 0.4], shared=0.01))

    assert found.std_error.tolist() == [0.0, 0.0, 0.0]
    assert (found.test.n_contrasts, found.test.p_value, found.test.rejected) == (0, 1.0, False)


def test_curves_are_relative_to_the_first_cell_that_both_know() -> None:
    given = curves([1.0, 0.5, 0.4], [np.nan, 1.0, 0.8])
    given.covariance[3, :] = given.covariance[:, 3] = np.nan
    references = given.references()
    rebased = given.relative_to(references)
    found = change(rebased)

    assert references.tolist() == [1, 1, 1]
    np.testing.assert_allclose(np.exp(rebased.log_theta), [[2.0, 1.0, 0.8], [np.nan, 1.0, 0.8]])
    np.testing.assert_allclose(rebased.std_error[0], [0.1, 0.0, 0.1 * np.sqrt(2)])
    assert np.isnan(found.difference[0])
    assert found.difference[2] == pytest.approx(0.0)


def test_every_context_has_a_reference_of_its_own() -> None:
    given = Curves(
        np.zeros((2, 4)), np.zeros((8, 8)), np.full((2, 4), np.nan), np.array([0, 0, 1, 1]), np.ones((2, 4), np.bool_)
    )

    assert given.references().tolist() == [0, 0, 2, 2]


def test_a_day_is_compared_with_the_mean_of_the_others_by_precision() -> None:
    errors = np.array([0.1, 0.2, 0.3])
    covariance = np.zeros((6, 6))
    covariance[np.arange(1, 6, 2), np.arange(1, 6, 2)] = errors**2
    log_theta = np.array([[0.0, -1.0], [0.0, -2.0], [0.0, -4.0]])
    given = Curves(log_theta, covariance, np.full((3, 2), 1e6), np.zeros(2, np.int64), np.ones((3, 2), np.bool_))
    found = differences_from_others(given)

    weights = errors[1:] ** -2 / (errors[1:] ** -2).sum()
    assert found.difference[1] == pytest.approx(-1.0 - weights @ [-2.0, -4.0])
    assert found.std_error[1] == pytest.approx(np.sqrt(0.01 + weights**2 @ errors[1:] ** 2))
    assert np.isnan(found.difference[0])
    table = day_table(CELLS[:2], pl.Series(["x", "y", "z"]), given, found)
    assert table["reason"].null_count() == 6
    assert table.filter(pl.col("position") == 1)["change"].to_list() == [0.0] * 3


def test_a_cell_that_one_side_lacks_says_so() -> None:
    given = curves([1.0, 0.5, np.nan], [1.0, 0.6, 0.4])
    given.covariance[2, :] = given.covariance[:, 2] = np.nan
    found = change(given)
    table = change_table(CELLS, given, found)

    assert table["reason"].to_list() == [None, None, "not shown in a"]
    assert table["propensity_b"].to_list() == [1.0, pytest.approx(0.6), pytest.approx(0.4)]
    assert table["ratio"].to_list()[2] is None


def test_a_change_beyond_a_limit_counts_only_where_it_is_sure() -> None:
    sure, unsure = (
        change_table(CELLS, given, change(given))
        for given in (curves([1, 0.5, 0.4], [1, 0.7, 0.2], error=error) for error in (0.01, 1.0))
    )

    assert large_changes(sure, 0.3)["position"].to_list() == [2, 3]
    assert large_changes(sure, 0.5)["position"].to_list() == [3]
    assert large_changes(unsure, 0.3).height == 0


def test_fits_keep_their_own_correlations_and_are_independent_of_each_other() -> None:
    table = CELLS.with_columns(propensity=pl.Series([1.0, 0.5, 0.4]), std_error=pl.Series([0.0, 0.1, 0.2]))
    relative = np.array([[0.01, 0.01], [0.01, 0.04]])  # a correlation of a half
    examined = np.zeros((3, 3))
    examined[1:, 1:] = relative
    covariance = CELLS.with_columns(covariance=pl.Series((examined + 0.3**2 * np.eye(3)).tolist()))
    fit = SavedCurve(table, covariance, 0.3, [None, 8.04, 20.0], 12)
    found = curves_by_fit([fit, fit], CELLS, ())

    assert found.covariance.shape == (6, 6)
    np.testing.assert_allclose(found.std_error, [[0.0, 0.1, 0.2]] * 2)
    assert (found.covariance[:3, 3:] == 0).all()
    assert found.degrees[0, 1:].tolist() == [8.04, 11.0]
