"""Products of sparse matrices do not depend on how they are computed, to the last bit."""

import numpy as np
import pytest

from posbias.core.arrays.count_table import Floats
from posbias.core.arrays.linalg import gram, in_rows


def random_matrix(n_columns: int, share: float, seed: int) -> Floats:
    """Values of any sign, of which a share is not 0."""
    random = np.random.default_rng(seed)
    return np.where(random.random((500, n_columns)) < share, random.normal(size=(500, n_columns)), 0.0)


def added_up_by_row(left: Floats, right: Floats) -> Floats:
    """A'B, one row after the other."""
    total = np.zeros((left.shape[1], right.shape[1]))
    for of_left, of_right in zip(left, right, strict=True):
        total += np.outer(of_left, of_right)
    return total


@pytest.mark.parametrize("share", [0.02, 0.3, 1.0])
def test_products_add_up_over_the_rows_in_their_order(share: float) -> None:
    left, right = random_matrix(7, 0.5, seed=1), random_matrix(11, share, seed=2)
    sparse_left, sparse_right = (
        in_rows(rows[rows != 0], np.nonzero(rows)[1], np.append(0, np.cumsum((rows != 0).sum(axis=1))), rows.shape[1])
        for rows in (left, right)
    )

    np.testing.assert_array_equal(gram(sparse_left, sparse_right), added_up_by_row(left, right))
    np.testing.assert_array_equal(gram(sparse_right), added_up_by_row(right, right))
