"""Predicted intervals: the information of swaps, what does not change, and what is not known now."""

from dataclasses import replace

import numpy as np
import pytest

from posbias.core.arrays.count_table import Floats
from posbias.core.exploration import ContextCells, conditional_information, variances

N_CELLS = 4
THETA = np.array([1.0, 0.6, 0.4, 0.2])


def curve_of(expected: Floats, **changes: object) -> ContextCells:
    """A curve of strata with these expected clicks, shape (S, K), whose errors are those of the model."""
    clicks = expected.sum(axis=0)
    shared = (expected.T / expected.sum(axis=1)) @ expected
    std_error = np.sqrt(variances(conditional_information(expected), 0))
    curve = ContextCells(
        position=np.arange(1, N_CELLS + 1),
        theta=THETA,
        impressions=np.full(N_CELLS, 1_000.0),
        clicks=clicks,
        shared=shared,
        std_error=std_error,
        width=4 * std_error,
        constant=np.zeros(N_CELLS),
        reference=0,
        strata="shared",
        known_strata=1.0,
        curve=np.zeros(N_CELLS, np.int64),
    )
    return replace(curve, **changes)


def at_home() -> Floats:
    """Strata that are shown at one position, 300 examined clicks each: nothing compares positions."""
    return np.diag(300 * THETA)


def everywhere() -> Floats:
    """Strata that are shown at every position alike."""
    return np.tile(100 * THETA, (3, 1))


def swapped(expected: Floats, growth: float, one: int, other: int) -> Floats:
    """The same strata after further pages on which two positions are swapped half of the time, counted out."""
    after = (1 + growth) * expected
    for origin, target in ((one, other), (other, one)):
        moved = growth * expected[:, origin] / 2
        after[:, origin] -= moved
        after[:, target] += moved * THETA[target] / THETA[origin]
    return after


@pytest.mark.parametrize("growth", [0.1, 1.0, 10.0])
def test_the_information_of_a_swap_is_that_of_the_pages_counted_out(growth: float) -> None:
    linked = np.concatenate([at_home(), [[20.0, 12, 8, 4]]])  # so little that profiles are still those at home
    for expected in (everywhere(), linked):
        found = curve_of(expected).std_errors_after(growth, {(2, 4): 1.0})
        counted = np.sqrt(variances(conditional_information(swapped(expected, growth, 1, 3)), 0))
        np.testing.assert_allclose(found, counted, rtol=0.05)


def test_a_swap_moves_documents_within_each_curve_of_a_context() -> None:
    """Two blocks of pages: what is shown at one position of a block goes to the other position of that block."""
    theta = np.concatenate([THETA, THETA / 2])
    expected = np.tile(100 * theta, (3, 1))
    counted = np.hstack([swapped(part, 1.0, 1, 3) for part in np.split(expected, 2, axis=1)])
    curve = curve_of(
        expected,
        position=np.tile(np.arange(1, N_CELLS + 1), 2),
        theta=theta,
        impressions=np.full(2 * N_CELLS, 1_000.0),
        constant=np.zeros(2 * N_CELLS),
        curve=np.repeat([0, 1], N_CELLS),
    )
    found = curve.std_errors_after(1.0, {(2, 4): 1.0})
    np.testing.assert_allclose(found, np.sqrt(variances(conditional_information(counted), 0)), rtol=0.05)
    assert curve.pages == 2_000


def test_without_swaps_errors_fall_as_the_square_root_of_the_pages() -> None:
    curve = curve_of(everywhere())
    np.testing.assert_allclose(curve.std_errors_after(3.0, {}), curve.std_error / 2)


def test_what_is_not_compared_now_is_compared_once_it_is_swapped() -> None:
    curve = curve_of(at_home())
    assert np.isinf(curve.std_error[1:]).all()
    assert np.isinf(curve.std_errors_after(1.0, {})[1:]).all()
    after = curve.std_errors_after(1.0, {(1, 2): 0.5, (2, 4): 0.5})
    assert np.isfinite(after[[0, 1, 3]]).all()
    assert np.isinf(after[2])
    assert np.isfinite(curve.widths(after)[3])


def test_errors_are_scaled_by_the_design_effect_of_the_fit() -> None:
    curve = curve_of(everywhere())
    wider = replace(curve, std_error=3 * curve.std_error)
    swaps = {(1, 4): 1.0}
    np.testing.assert_allclose(wider.std_errors_after(0.5, swaps), 3 * curve.std_errors_after(0.5, swaps))


def test_differences_between_queries_stay_however_many_pages_there_are() -> None:
    constant = np.full(N_CELLS, 0.0004)
    after = curve_of(everywhere(), constant=constant).std_errors_after(1e9, {(1, 4): 1.0})
    np.testing.assert_allclose(after[1:], 0.02, rtol=1e-3)


def test_documents_that_are_not_seen_again_make_a_swap_worth_less() -> None:
    curve = curve_of(np.concatenate([at_home(), everywhere()]))
    errors = [replace(curve, known_strata=share).std_errors_after(0.5, {(1, 4): 1.0})[3] for share in (1.0, 0.5, 0.0)]
    assert errors[0] < errors[1] < errors[2]
    assert errors[2] == pytest.approx(curve.std_errors_after(0.5, {})[3])


def test_pages_with_strata_of_their_own_tell_less_than_those_that_share_the_old_ones() -> None:
    curve = curve_of(np.concatenate([at_home(), everywhere()]))
    apart = replace(curve, strata="apart")
    swaps = {(1, 4): 1.0}
    assert apart.std_errors_after(0.5, swaps)[3] > curve.std_errors_after(0.5, swaps)[3]
    assert apart.std_errors_after(0.5, swaps)[3] < curve.std_errors_after(0.5, {})[3]


def test_swaps_of_randomised_rows_add_the_information_of_two_click_rates() -> None:
    curve = curve_of(everywhere(), strata="randomized")
    pages = 500.0
    rate = curve.clicks / curve.impressions
    first = pages * (rate[0] + rate[3] / THETA[3]) / 2
    fourth = first * THETA[3]
    gain = np.zeros((N_CELLS, N_CELLS))
    gain[np.ix_([0, 3], [0, 3])] = first * fourth / (first + fourth) * np.array([[1, -1], [-1, 1]])
    expected = np.sqrt(variances(curve.information + gain, 0))
    np.testing.assert_allclose(curve.std_errors_after(0.5, {(1, 4): 1.0}), expected)


def test_a_context_without_a_position_gains_nothing_of_its_swap() -> None:
    curve = curve_of(everywhere())
    np.testing.assert_array_equal(curve.std_errors_after(0.5, {(1, 9): 1.0}), curve.std_errors_after(0.5, {}))


def test_a_position_that_few_pages_show_is_swapped_on_few() -> None:
    curve = curve_of(np.concatenate([at_home(), everywhere()]))
    rare = replace(curve, impressions=np.array([1_000.0, 1_000, 1_000, 100]))
    swaps = {(1, 4): 1.0}
    assert rare.std_errors_after(0.5, swaps)[3] > curve.std_errors_after(0.5, swaps)[3]


def test_one_doubtful_interval_does_not_widen_those_that_are_not_known() -> None:
    curve = curve_of(at_home())
    doubtful = replace(curve, shared=curve.shared + 0.01, std_error=np.array([0.0, 90.0, np.inf, np.inf]))
    swaps = {(1, 3): 0.5, (1, 4): 0.5}
    plain = replace(doubtful, std_error=np.array([0.0, np.inf, np.inf, np.inf]))
    np.testing.assert_allclose(doubtful.std_errors_after(1, swaps)[2:], plain.std_errors_after(1, swaps)[2:])
