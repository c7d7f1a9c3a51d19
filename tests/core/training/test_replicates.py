"""Replicate weights: other propensities that the log allows as well, as often as their errors say."""

import numpy as np
import polars as pl
import pytest

from posbias.core.training.weights import (
    WeightOptions,
    click_weights,
    draw_propensities,
    relative_covariance,
    replicate_names,
    weight_columns,
)

THETA = np.array([1.0, 0.6, 0.3, np.nan])


def table(std_error: list[float | None], **contexts: list[str]) -> pl.DataFrame:
    """The propensity table of four positions."""
    theta = pl.Series(THETA, nan_to_null=True)
    return pl.DataFrame({**contexts, "position": [1, 2, 3, 4]}).with_columns(
        propensity=theta, std_error=pl.Series(std_error, dtype=pl.Float64)
    )


def test_draws_vary_and_go_together_as_the_covariance_says() -> None:
    covariance = np.array([[0, 0, 0, 0], [0, 0.04, 0.018, 0], [0, 0.018, 0.09, 0], [0, 0, 0, 0]])
    drawn = np.log(draw_propensities(THETA, covariance, 40_000)[:, :3] / THETA[:3])
    assert np.abs(drawn.mean(axis=0)).max() < 0.005
    np.testing.assert_allclose(np.cov(drawn.T), covariance[:3, :3], atol=0.002)
    assert (drawn[:, 0] == 0).all()


def test_draws_are_the_same_in_every_run_and_more_of_them_begin_alike() -> None:
    covariance = np.diag([0, 0.04, 0.09, 0])
    few, many = draw_propensities(THETA, covariance, 3), draw_propensities(THETA, covariance, 5)
    np.testing.assert_array_equal(few, many[:3])
    assert np.isnan(many[:, 3]).all()


def test_the_reference_does_not_vary_whichever_cell_the_examination_is_relative_to() -> None:
    relative = np.array([[0, 0, 0, 0], [0, 0.04, 0.018, 0], [0, 0.018, 0.09, 0], [0, 0, 0, 0]])
    to_second = np.eye(4)
    to_second[:3, 1] -= 1
    examination = to_second @ relative @ to_second.T + 0.5 * np.eye(4)  # relative to position 2, and a spread by query
    error = [0.0, 0.2, 0.3, None]
    found = relative_covariance(table(error), examination, np.array([0.0, 0.2, 0.3, np.nan]))
    np.testing.assert_allclose(found[:3, :3], relative[:3, :3], atol=1e-12)


def test_each_context_has_its_own_reference() -> None:
    rows = table([0.0, 0.2, 0.0, 0.3], device=["phone", "phone", "tablet", "tablet"]).with_columns(
        position=pl.Series([1, 2, 1, 2]), propensity=pl.Series([1.0, 0.5, 1.0, 0.7])
    )
    shared = np.zeros((4, 4))
    shared[:2, :2], shared[2:, 2:] = [[0.01, 0], [0, 0.04]], [[0, 0], [0, 0.09]]
    found = relative_covariance(rows, shared, np.array([0.0, 0.2, 0.0, 0.3]), ["device"])
    np.testing.assert_allclose(np.diag(found), [0, 0.05, 0, 0.09])
    np.testing.assert_allclose(found[:2, 2:], 0, atol=1e-12)


def test_cells_of_several_columns_have_one_reference() -> None:
    rows = table([0.0, 0.2, 0.3, 0.3], block=["none", "none", "answer", "answer"]).with_columns(
        position=pl.Series([1, 2, 1, 2]), propensity=pl.Series([1.0, 0.5, 0.4, 0.3])
    )
    relative = np.diag([0.0, 0.04, 0.09, 0.09])
    relative[2, 3] = relative[3, 2] = 0.06
    to_third = np.eye(4) - np.eye(4)[2]  # the covariance relative to the third cell, with a spread on its diagonal
    examination = to_third @ relative @ to_third.T + 0.5 * np.eye(4)
    found = relative_covariance(rows, examination, np.array([0.0, 0.2, 0.3, 0.3]))
    np.testing.assert_allclose(found, relative, atol=1e-12)


def test_a_cell_that_is_smoothed_varies_by_the_error_of_the_curve() -> None:
    covariance = np.array([[0, 0, 0, 0], [0, 0.04, 0.018, 0], [0, 0.018, 0.09, 0], [0, 0, 0, 0]])
    found = relative_covariance(table([0.0, 0.2, 0.3, None]), covariance, np.array([0.0, 0.2, 0.1, 0.5]))
    np.testing.assert_allclose(np.sqrt(np.diag(found)), [0, 0.2, 0.1, 0.5])
    assert found[1, 2] / 0.2 / 0.1 == pytest.approx(0.018 / 0.2 / 0.3)


@pytest.mark.parametrize("normalize", [False, True])
def test_replicate_weights_are_clipped_and_scaled_like_the_weights(*, normalize: bool) -> None:
    cells = pl.DataFrame({"position": [1, 2, 3, 4]})
    clicks = np.array([40.0, 20.0, 10.0, 5.0])
    options = WeightOptions(min_propensity=0.2, self_normalize=normalize)
    other = np.array([[1.0, 0.5, 0.1, np.nan], THETA])
    found = click_weights(cells, THETA, clicks * 5, clicks, options, replicates=other)
    expected = np.array([1.0, 2.0, 5.0])
    factor = clicks[:3].sum() / (clicks[:3] @ expected) if normalize else 1.0
    np.testing.assert_allclose(found.replicates[0, :3], expected * factor)
    np.testing.assert_allclose(found.replicates[1], found.weight)
    assert np.isnan(found.replicates[:, 3]).all()


def test_columns_of_weights_are_told_from_others_by_their_names() -> None:
    names = ["group", "weight", *replicate_names(2), "weight_3", "replicate_weight_x"]
    assert weight_columns(names) == ["weight", "replicate_weight_1", "replicate_weight_2"]
