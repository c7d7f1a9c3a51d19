"""At unit diagonal, what a matrix is solved or inverted to does not depend on the units of its cells."""

import numpy as np
import pytest

from posbias.core.arrays.count_table import Floats
from posbias.core.arrays.linalg import inverse, pseudo_inverse, solve

UNITS = 10.0 ** np.array([-150, -60, 0, 3, 140])


def well_behaved(size: int) -> Floats:
    rows = np.random.default_rng(0).normal(size=(3 * size, size))
    found: Floats = (rows.T @ rows).astype(np.float64)
    return found


@pytest.fixture
def uneven() -> Floats:
    """A matrix whose cells are 10^290 apart, beyond what it could be inverted as it stands."""
    return well_behaved(5) * np.outer(UNITS, UNITS)


def test_a_solution_is_as_exact_as_with_even_cells(uneven: Floats) -> None:
    wanted = np.arange(1.0, 6.0)
    right = well_behaved(5) @ wanted
    np.testing.assert_allclose(solve(uneven, right * UNITS) * UNITS, wanted, rtol=1e-12)


def test_several_right_sides_are_solved_as_each_alone(uneven: Floats) -> None:
    right = np.random.default_rng(1).normal(size=(5, 3)) * UNITS[:, np.newaxis]
    together = solve(uneven, right)
    assert together.shape == (5, 3)
    np.testing.assert_allclose(together, np.column_stack([solve(uneven, one) for one in right.T]), rtol=1e-12)


def test_an_inverse_is_as_exact_as_with_even_cells_and_symmetric_to_the_last_bit(uneven: Floats) -> None:
    found = inverse(uneven)
    np.testing.assert_allclose(found * np.outer(UNITS, UNITS), np.linalg.inv(well_behaved(5)), rtol=1e-11)
    np.testing.assert_array_equal(found, found.T)


def test_a_pseudo_inverse_leaves_out_the_directions_without_information() -> None:
    links = np.array([[1.0, -1, 0], [-1, 1, 0], [0, 0, 0]])  # compares the first two cells and knows no third
    found = pseudo_inverse(links * 4e-80)
    np.testing.assert_allclose(found, links / 4 / 4e-80, rtol=1e-12, atol=0)


def test_a_pseudo_inverse_takes_a_diagonal_below_0_for_rounding() -> None:
    found = pseudo_inverse(np.array([[2.0, 0], [0, -1e-18]]))
    np.testing.assert_allclose(found, [[0.5, 0], [0, 0]], rtol=1e-14)
