"""The SciPy routines that posbias uses, typed, and imported only when one is called.

Importing SciPy takes 0.2 s, which `--help` and most of the commands would pay for nothing.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from threading import Thread
from typing import Protocol, Self, cast

import numpy as np

from posbias.core.arrays.count_table import CountTable, Floats, Integers

_ROWS = 256  # of a matrix, that are mirrored at a time
_LEAST_SHARE_OF_DENSE = 1 / 5  # of values that are not 0, from which on a dense product is faster in not much more room


class Sparse(Protocol):
    """What is used of a SciPy sparse array in row (csr) or column (csc) form."""

    data: Floats
    indices: Integers
    indptr: Integers
    shape: tuple[int, int]

    @property
    def T(self) -> Self:  # noqa: N802 - SciPy's name
        """The transpose, without a copy."""
        ...

    def __matmul__(self, other: Floats) -> Floats:
        """The product with a dense matrix or vector."""
        ...

    def __getitem__(self, rows: Integers | slice) -> Self:
        """Some of the rows, in row form."""
        ...

    def toarray(self) -> Floats:
        """The dense matrix."""
        ...


def by_unit_and_cell(table: CountTable, values: Floats) -> Sparse:
    """The matrix, shape (J, K), that holds one value per entry of the table.

    The values are not copied: the matrix follows when they change in place.
    """
    sparse = import_module("scipy.sparse")
    shape = (table.n_units, table.n_cells)
    return cast("Sparse", sparse.csr_array((values, table.cell, table.start), shape=shape, copy=False))


def in_rows(values: Floats, columns: Integers, start: Integers, n_columns: int) -> Sparse:
    """The matrix, in row form, whose row i holds the values `start[i]:start[i + 1]` in their columns."""
    sparse = import_module("scipy.sparse")
    return cast("Sparse", sparse.csr_array((values, columns, start), shape=(len(start) - 1, n_columns), copy=False))


def counted(rows: Integers, columns: Integers, shape: tuple[int, int], weight: Floats | None = None) -> Sparse:
    """How often each (row, column) occurs, or its total weight, in row form."""
    sparse = import_module("scipy.sparse")
    values = np.ones(len(rows)) if weight is None else weight
    return cast("Sparse", sparse.coo_array((values, (rows, columns)), shape=shape).tocsr())


def sparse_product(left: Sparse, right: Sparse) -> Sparse:
    """The product of two sparse matrices, in row form."""
    return cast("Sparse", left @ cast("Floats", right))


def sparse_sum(one: Sparse, other: Sparse) -> Sparse:
    """The sum of two sparse matrices, in the form of the first."""
    return cast("Sparse", cast("Floats", one) + cast("Floats", other))


def nonzero(matrix: Sparse) -> tuple[Integers, Integers]:
    """Row and column of each value that is not 0."""
    rows, columns, _ = import_module("scipy.sparse").find(matrix)
    return cast("Integers", rows.astype(np.int64)), cast("Integers", columns.astype(np.int64))


def gram(rows: Sparse) -> Floats:
    """A'A of a sparse matrix A of shape (J, K), dense, shape (K, K)."""
    return cross(rows, rows)


def cross(left: Sparse, right: Sparse) -> Floats:
    """A'B of sparse matrices of shapes (J, K) and (J, L), dense, shape (K, L).

    Where B is not very sparse, A'B with the dense B is several times as fast. The sums are the same to the last bit:
    each adds up over the rows in their order.
    """
    if len(right.data) < _LEAST_SHARE_OF_DENSE * right.shape[0] * right.shape[1]:
        return sparse_product(left.T, right).toarray()
    return left.T @ right.toarray()


def solve_positive(matrix: Floats, right: Floats) -> Floats:
    """Solve with a symmetric positive definite matrix, by Cholesky's factors.

    Raises:
        numpy.linalg.LinAlgError: it is not positive definite.
    """
    linalg = import_module("scipy.linalg")
    return cast("Floats", linalg.cho_solve(linalg.cho_factor(matrix, lower=True, overwrite_a=True), right))


def invert_positive(matrix: Floats) -> bool:
    """Put the inverse of a symmetric positive definite matrix in its place, symmetric to the last bit.

    Returns:
        Whether it is positive definite; else the matrix holds nothing of use.
    """
    lapack = import_module("scipy.linalg.lapack")
    factor, failed = lapack.dpotrf(matrix.T, lower=True, clean=False, overwrite_a=True)  # in Fortran's order, no copy
    failed = failed or lapack.dpotri(factor, lower=True, overwrite_c=True)[1]
    for first in range(0, len(matrix), _ROWS):
        rows = slice(first, first + _ROWS)
        matrix[rows, :first] = matrix[:first, rows].T
        matrix[rows, rows] = np.triu(matrix[rows, rows]) + np.triu(matrix[rows, rows], k=1).T
    return not failed


def connected(tails: Integers, heads: Integers, n_nodes: int, *, both_ways: bool) -> Integers:
    """Number the components of a directed graph.

    Args:
        tails: where each edge starts, in 0 .. n_nodes - 1.
        heads: where each edge ends.
        n_nodes: number of nodes.
        both_ways: strong components, whose nodes reach each other along the edges; else directions do not count.

    Returns:
        The component of each node, shape (n_nodes,).
    """
    csgraph = import_module("scipy.sparse.csgraph")
    connection = "strong" if both_ways else "weak"
    graph = counted(tails, heads, (n_nodes, n_nodes))
    _, labels = csgraph.connected_components(graph, directed=True, connection=connection)
    return cast("Integers", labels.astype(np.int64))


def student_quantile(probability: float, degrees: Floats) -> Floats:
    """Quantile of Student's t for each number of degrees of freedom, which need not be whole."""
    return cast("Floats", import_module("scipy.special").stdtrit(degrees, probability))


def student_tail(statistic: Floats, degrees: Floats) -> Floats:
    """P(T > statistic) of Student's t for each number of degrees of freedom, exact far out in the tail."""
    return cast("Floats", import_module("scipy.special").stdtr(degrees, -statistic))


def normal_quantile(probability: Floats) -> Floats:
    """Quantile of the standard normal distribution, exact far out in the lower tail."""
    return cast("Floats", import_module("scipy.special").ndtri(probability))


def normal_tail(statistic: Floats) -> Floats:
    """P(Z > statistic) of the standard normal distribution, exact far out in the tail."""
    return cast("Floats", import_module("scipy.special").ndtr(-statistic))


def owens_t(height: Floats, slope: Floats) -> Floats:
    """Owen's T(h, a): P(Z > h, 0 < Z' < a Z) of independent standard normal Z and Z'."""
    return cast("Floats", import_module("scipy.special").owens_t(height, slope))


def chi_square_tail(statistic: float, degrees: float) -> float:
    """P(X > statistic) of a chi-square, whose degrees of freedom need not be whole; 1 below 0."""
    return float(import_module("scipy.special").gammaincc(degrees / 2, max(statistic, 0.0) / 2))


def nonnegative_least_squares(matrix: Floats, target: Floats) -> Floats:
    """The x >= 0 that minimises |matrix x - target|, shape (columns,) (Lawson & Hanson 1974).

    Raises:
        numpy.linalg.LinAlgError: a number is infinite, or none.
    """
    if not (np.isfinite(matrix).all() and np.isfinite(target).all()):
        raise np.linalg.LinAlgError("least squares of numbers that are not finite")
    return cast("Floats", import_module("scipy.optimize").nnls(matrix, target)[0])


@lru_cache(maxsize=256)
def jacobi_rule(n_nodes: int, at_zero: float, at_one: float) -> tuple[Floats, Floats]:
    """Gauss-Jacobi rule on [0, 1] for the weight t^at_zero (1 - t)^at_one, both exponents above -1.

    Returns:
        Nodes and weights, each of shape (n_nodes,), which cannot be written to. Exponents 0 and 0 give the
        Gauss-Legendre rule.
    """
    nodes, weights = import_module("scipy.special").roots_jacobi(n_nodes, at_one, at_zero)
    rule = (nodes + 1) / 2, weights / 2 ** (at_zero + at_one + 1)
    for values in rule:
        values.setflags(write=False)
    return rule


def beta_distribution(a: Floats, b: Floats, x: Floats) -> Floats:
    """P(X <= x) for X ~ Beta(a, b), a, b > 0 and 0 <= x <= 1, broadcast."""
    return cast("Floats", import_module("scipy.special").betainc(a, b, x))


def log_beta(a: Floats, b: Floats) -> Floats:
    """The logarithm of the Beta function B(a, b), a, b > 0, broadcast."""
    return cast("Floats", import_module("scipy.special").betaln(a, b))


def digamma(x: Floats) -> Floats:
    """The slope of log Gamma at x > 0."""
    return cast("Floats", import_module("scipy.special").psi(x))


def beta_quantile(a: Floats, b: Floats, probability: float) -> Floats:
    """The x with P(X <= x) = probability for each X ~ Beta(a, b), a, b > 0."""
    return cast("Floats", import_module("scipy.special").betaincinv(a, b, probability))


def minimize_within(loss_and_slope: Callable[[Floats], tuple[float, Floats]], start: Floats, limits: Floats) -> Floats:
    """The minimum of a smooth function in a box, by L-BFGS-B (Byrd, Lu, Nocedal & Zhu 1995).

    Args:
        loss_and_slope: the function's value, of the order of 1, and its slope, shape (P,).
        start: shape (P,).
        limits: lowest and highest value of each parameter, shape (P, 2).

    Returns:
        The minimum, shape (P,).
    """
    minimize = import_module("scipy.optimize").minimize
    options = {"ftol": 1e-8, "gtol": 1e-5}
    found = minimize(loss_and_slope, start, method="L-BFGS-B", jac=True, bounds=limits, options=options)
    return cast("Floats", found.x)


@contextmanager
def loaded_meanwhile() -> Generator[None]:
    """Load what a fit needs of SciPy in a thread, while the block reads a log; at its end all is there.

    Importing it takes 0.3 s. Nothing in the block may import SciPy, so that no thread sees half of a module.
    """
    loading = Thread(target=_load, name="SciPy")
    loading.start()
    yield
    loading.join()


def _load() -> None:
    import_module("scipy.sparse.csgraph")
    import_module("scipy.special")
    import_module("scipy.linalg")
    import_module("scipy.optimize")
