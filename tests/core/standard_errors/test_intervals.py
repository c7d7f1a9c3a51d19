"""Intervals: of a method without errors, and of one that falls back on another where it has none."""

import numpy as np

from posbias.core.standard_errors.intervals import Intervals


def test_a_method_without_errors_keeps_the_reasons() -> None:
    found = Intervals.unknown((None, "no clicks"))
    assert np.isnan([found.std_error, found.low, found.high, found.effective_clusters]).all()
    assert found.reason == (None, "no clicks")


def test_where_there_is_no_error_everything_is_the_other_ones() -> None:
    nan = np.nan
    low, high = np.array([1, 0.4, nan]), np.array([1, 0.6, nan])
    own = Intervals(np.array([0, 0.1, nan]), low, high, np.full(3, nan), (None, None, None))
    wider = np.array([1, 0.3, nan]), np.array([1, 0.7, 0.9])
    other = Intervals(np.array([0, 0.2, nan]), *wider, np.array([nan, 5, nan]), (None, "a", "b"))
    found = own.or_else(other)
    np.testing.assert_array_equal(found.std_error, [0, 0.1, nan])
    np.testing.assert_array_equal(found.low, [1, 0.4, nan])
    np.testing.assert_array_equal(found.high, [1, 0.6, 0.9])  # the limit of a cell without clicks stays
    assert found.reason == (None, None, "b")
