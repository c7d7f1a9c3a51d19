"""Linear algebra at unit diagonal: the information about cells may differ by many orders of magnitude.

A symmetric matrix A is worked on as B = S A S, with the diagonal S that makes B's diagonal 1:

    A x = y  <=>  B (x / s) = s y,    A^-1 = S B^-1 S

With many cells, A^-1 is made in the place of B by Cholesky's factors, and A x = y is solved from products with A alone,
by conjugate gradients on B (Hestenes & Stiefel 1952; Nocedal & Wright 2006, algorithm 5.3).
"""

from collections.abc import Callable

import numpy as np

from posbias.core.arrays.count_table import Floats
from posbias.core.arrays.linalg import invert_positive

MANY = 500
"""Cells from which on time and memory count more than the last bits of what fewer cells gave before."""

_PRECISION = 1e-10  # of x, in the norm of B, relative to its length
_ROUNDS = 4  # times the number of cells: in exact arithmetic one would do


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
    scaled = np.outer(scale, scale)
    scaled *= matrix
    return scaled, scale


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
    if len(matrix) >= MANY:
        found, scale = unit_diagonal(matrix)
        if invert_positive(found):
            found *= np.outer(scale, scale)
            return found
    scaled, scale = unit_diagonal(matrix)
    found = np.linalg.inv(scaled) * np.outer(scale, scale)
    return (found + found.T) / 2


def conjugate_gradients(times: Callable[[Floats], Floats], diagonal: Floats, right: Floats) -> Floats:
    """The x of A x = y, for a positive definite A of which products are known.

    Where rounding ends the iterations early, x is what they have until then: it always leads upwards, x'y >= 0.

    Args:
        times: A v of a vector v, shape (F,).
        diagonal: of A, shape (F,), above 0.
        right: y, shape (F,).
    """
    x, r = np.zeros_like(right), right.copy()
    z = r / diagonal
    p = z
    before = first = float(r @ z)
    for _ in range(_ROUNDS * len(right)):
        change = times(p)
        bent = float(p @ change)
        if not (before > _PRECISION**2 * first and bent > 0):
            break
        x += before / bent * p
        r -= before / bent * change
        z = r / diagonal
        before, last = float(r @ z), before
        p = z + before / last * p
    return x


def pseudo_inverse(matrix: Floats) -> Floats:
    """The inverse on the directions that A says something about; 0 on others and where its diagonal is at most 0."""
    diagonal = np.diag(matrix)
    scaled, scale = _scaled(matrix, np.where(diagonal > 0, diagonal, np.inf))
    found: Floats = np.linalg.pinv(scaled, hermitian=True).astype(np.float64)
    return found * np.outer(scale, scale)
