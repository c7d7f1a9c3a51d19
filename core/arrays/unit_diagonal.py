"""Linear algebra at unit diagonal: the information about cells may differ by many orders of magnitude.

A symmetric matrix A is worked on as B = S A S, with the diagonal S that makes B's diagonal 1:

    A x = y  <=>  B (x / s) = s y,    A^-1 = S B^-1 S
"""

import numpy as np

from posbias.core.arrays.count_table import Floats


def unit_diagonal(matrix: Floats) -> tuple[Floats, Floats]:
    """A symmetric matrix scaled to unit diagonal, and the scale.

    Args:
        matrix: A, shape (F, F), its diagonal above 0.

    Returns:
        B, shape (F, F), and s, shape (F,).
    """
    return _scaled(matrix, np.diag(matrix))


def _scaled(matrix: Floats, diagonal: Floats) -> tuple[Floats, Floats]:
    scale = 1 / np.sqrt(diagonal)
    return matrix * np.outer(scale, scale), scale


def solve(matrix: Floats, right: Floats) -> Floats:
    """The x of A x = y, for one y or several, shape (F,) or (F, C).

    Raises:
        numpy.linalg.LinAlgError: A is singular.
    """
    scaled, scale = unit_diagonal(matrix)
    return (scale * np.linalg.solve(scaled, (scale * right.T).T).T).T


def inverse(matrix: Floats) -> Floats:
    """A^-1, symmetric to the last bit.

    Raises:
        numpy.linalg.LinAlgError: A is singular.
    """
    scaled, scale = unit_diagonal(matrix)
    found = np.linalg.inv(scaled) * np.outer(scale, scale)
    return (found + found.T) / 2


def pseudo_inverse(matrix: Floats) -> Floats:
    """The inverse on the directions that A says something about; 0 on others and where its diagonal is at most 0."""
    diagonal = np.diag(matrix)
    scaled, scale = _scaled(matrix, np.where(diagonal > 0, diagonal, np.inf))
    found: Floats = np.linalg.pinv(scaled, hermitian=True).astype(np.float64)
    return found * np.outer(scale, scale)
