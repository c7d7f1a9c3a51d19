"""Sums of rows are exact, whatever way they are taken."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posbias.core.arrays.count_table import first_of_runs, reduce_rows, starts, sum_rows

SETTINGS = settings(max_examples=80, deadline=None, derandomize=True)
ROWS = st.lists(st.lists(st.integers(0, 2**64 - 1), max_size=4), min_size=1, max_size=8)


@SETTINGS
@given(ROWS)
def test_whole_numbers_are_added_up_modulo_2_to_the_64(rows: list[list[int]]) -> None:
    values = np.array([value for row in rows for value in row], np.uint64)
    found = sum_rows(values, starts(np.array([len(row) for row in rows])))
    assert found.dtype == np.uint64
    assert found.tolist() == [sum(row) % 2**64 for row in rows]


@pytest.mark.parametrize("lengths", [[2, 0, 3], [1, 2, 1], [0], [3]])
def test_rows_are_reduced_with_and_without_empty_ones(lengths: list[int]) -> None:
    values = np.arange(sum(lengths), dtype=np.float64)
    rows = np.split(values, np.cumsum(lengths)[:-1])
    found = reduce_rows(np.add, values, starts(np.array(lengths)), empty=-1.0)
    assert found.tolist() == [row.sum() if len(row) else -1.0 for row in rows]


@pytest.mark.parametrize(("values", "first"), [([], []), ([4], [0]), ([7, 7, 5, 7], [0, 2, 3]), ([1, 1], [0])])
def test_runs_of_equal_values(values: list[int], first: list[int]) -> None:
    assert first_of_runs(np.array(values, np.uint64)).tolist() == first
