"""Linear algebra for information matrices, scaled to unit diagonal, as the information about cells varies widely.

A symmetric matrix A is replaced by B = S A S, where the diagonal matrix S = diag(s) makes B's diagonal 1:

    A x = y  <=>  B (x / s) = s y,    A^-1 = S B^-1 S

With many cells, A^-1 is computed in the memory of B by Cholesky factors.

Importing SciPy's modules takes 0.3 s, which `--help` and most commands do not need: `import scipy` loads none, and each
is loaded at its first use.
"""

from collections.abc import Generator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import numpy as np
import scipy

from posbias.core.arrays.count_table import CountTable, Floats, Integers

NORMAL = 1.959963984540054  # the 97.5 % quantile of the normal distribution
_ROWS = 256  # rows of a matrix that are mirrored at a time
_LEAST_SHARE_OF_DENSE = 1 / 5  # share of nonzeros from which a dense product is faster, in little more memory

Sparse = Any
"""A sparse array of SciPy, which has no types, in row (csr) or column (csc) form."""


def by_unit_and_cell(table: CountTable, values: Floats) -> Sparse:
    """Return the sparse matrix, shape (J, K), with one value per entry of the table.

    The values are not copied: the matrix follows when they change in place.
    """
    return in_rows(values, table.cell, table.start, table.n_cells)


def in_rows(values: Floats, columns: Integers, start: Integers, n_columns: int) -> Sparse:
    """Return the csr matrix whose row i has the values `start[i]:start[i + 1]` in their columns."""
    return scipy.sparse.csr_array((values, columns, start), shape=(len(start) - 1, n_columns), copy=False)


def occurrences(rows: Integers, columns: Integers, shape: tuple[int, int], weight: Floats | None = None) -> Sparse:
    """Return the csr matrix of the number (or total weight) of each (row, column)."""
    values = np.ones(len(rows)) if weight is None else weight
    return scipy.sparse.coo_array((values, (rows, columns)), shape=shape).tocsr()


def gram(left: Sparse, right: Sparse = None) -> Floats:
    """Return A'B of sparse matrices of shapes (J, K) and (J, L) as a dense matrix, shape (K, L); A'A without B.

    If B is dense or not very sparse, the product with a dense B is several times as fast, and the same to the last bit:
    both sum over the rows in their order.
    """
    right = left if right is None else right
    if isinstance(right, np.ndarray):
        return left.T @ right
    if len(right.data) < _LEAST_SHARE_OF_DENSE * right.shape[0] * right.shape[1]:
        return (left.T @ right).toarray()
    return left.T @ right.toarray()


def connected(tails: Integers, heads: Integers, n_nodes: int, *, both_ways: bool) -> Integers:
    """Number the components of a directed graph.

    Args:
        tails: where each edge starts, in 0 .. n_nodes - 1.
        heads: where each edge ends.
        n_nodes: number of nodes.
        both_ways: whether to find strongly connected components; otherwise weakly connected ones.

    Returns:
        The component of each node, shape (n_nodes,).
    """
    connection = "strong" if both_ways else "weak"
    graph = occurrences(tails, heads, (n_nodes, n_nodes))
    return scipy.sparse.csgraph.connected_components(graph, connection=connection)[1].astype(np.int64)


@contextmanager
def preload_scipy() -> Generator[None]:
    """Import the SciPy modules that a fit needs in a thread while the block reads a log, and wait for it at the end.

    It takes 0.3 s. Nothing in the block may import SciPy, so that no thread sees a half-initialised module.
    """
    loading = Thread(target=_load, name="SciPy")
    loading.start()
    try:
        yield
    finally:  # also where reading fails: the next command of the process may import SciPy itself
        loading.join()


def _load() -> None:
    _ = scipy.sparse.csgraph, scipy.special, scipy.linalg


MANY = 500
"""Number of cells from which faster algorithms are used, whose results differ in the last bits."""


def unit_diagonal(matrix: Floats) -> tuple[Floats, Floats]:
    """Scale a symmetric matrix to unit diagonal, B = S A S; the scale s is 0 where the diagonal of A is at most 0.

    Args:
        matrix: A, shape (F, F).

    Returns:
        B, shape (F, F), and s, shape (F,).
    """
    diagonal = np.diag(matrix)
    scale = 1 / np.sqrt(np.where(diagonal > 0, diagonal, np.inf))
    scaled = np.outer(scale, scale)
    scaled *= matrix
    return scaled, scale


def solve(matrix: Floats, right: Floats) -> Floats:
    """Solve A x = y for one right-hand side or several, shape (F,) or (F, C).

    Raises:
        numpy.linalg.LinAlgError: A is singular.
    """
    scaled, scale = unit_diagonal(matrix)
    return (scale * np.linalg.solve(scaled, (scale * right.T).T).T).T


def inverse(matrix: Floats) -> Floats:
    """Return A^-1, symmetric to the last bit.

    Raises:
        numpy.linalg.LinAlgError: A is singular.
    """
    scaled, scale = unit_diagonal(matrix)
    if len(matrix) >= MANY:  # LAPACK's order is Fortran's: no copy is made
        factor, failed = scipy.linalg.lapack.dpotrf(scaled.T, lower=True, clean=False, overwrite_a=True)
        failed = failed or scipy.linalg.lapack.dpotri(factor, lower=True, overwrite_c=True)[1]
        if not failed:
            for first in range(0, len(matrix), _ROWS):
                rows = slice(first, first + _ROWS)
                scaled[rows, :first] = scaled[:first, rows].T
                scaled[rows, rows] = np.triu(scaled[rows, rows]) + np.triu(scaled[rows, rows], k=1).T
            scaled *= np.outer(scale, scale)
            return scaled
        scaled, scale = unit_diagonal(matrix)
    result = np.linalg.inv(scaled) * np.outer(scale, scale)
    return (result + result.T) / 2


def pseudo_inverse(matrix: Floats) -> Floats:
    """Return the pseudo-inverse of A at unit diagonal; 0 in rows and columns whose diagonal is at most 0."""
    scaled, scale = unit_diagonal(matrix)
    inverted: Floats = np.linalg.pinv(scaled, hermitian=True).astype(np.float64)
    return inverted * np.outer(scale, scale)
