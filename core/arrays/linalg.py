"""The SciPy routines that posbias uses, typed, and imported only when one is called.

Importing SciPy takes 0.2 s, which `--help` and most of the commands would pay for nothing.

Newton's method on concave functions, damped: no step is too long, and none is taken that does not gain.

From x, Newton's step d leads to the maximum of the quadratic expansion. It is cut to a longest change, and halved until
the function gains enough: a share of what its slope g promises, f(x + d) - f(x) >= .0001 g'd (Armijo), or anything at
all, as its problem says. Source: Nocedal & Wright 2006, section 3.1.

Both kinds of EM are accelerated by SQUAREM (Varadhan & Roland 2008): `extrapolated`.

Linear algebra at unit diagonal: the information about cells may differ by many orders of magnitude.

A symmetric matrix A is worked on as B = S A S, with the diagonal S that makes B's diagonal 1:

    A x = y  <=>  B (x / s) = s y,    A^-1 = S B^-1 S

With many cells, A^-1 is made in the place of B by Cholesky's factors, and A x = y is solved from products with A alone,
by conjugate gradients on B (Hestenes & Stiefel 1952; Nocedal & Wright 2006, algorithm 5.3).
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from threading import Thread
from typing import Protocol, Self, cast

import numpy as np

from posbias.core.arrays.count_table import CountTable, Flags, Floats, Integers

NORMAL = 1.959963984540054  # the 97.5 % quantile of the normal distribution
_ROWS = 256  # of a matrix, that are mirrored at a time
_LEAST_SHARE_OF_DENSE = 1 / 5  # of values that are not 0, from which on a dense product is faster in not much more room


class Sparse(Protocol):
    """The part of SciPy's interface of a sparse array that is used, in row (csr) or column (csc) form."""

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


def polygamma(order: int, x: Floats) -> Floats:
    """The slope of log Gamma at x > 0 (order 0, digamma), or the slope of that (order 1, trigamma)."""
    special = import_module("scipy.special")
    return cast("Floats", special.polygamma(order, x) if order else special.psi(x))


def beta_quantile(a: Floats, b: Floats, probability: float) -> Floats:
    """The x with P(X <= x) = probability for each X ~ Beta(a, b), a, b > 0."""
    return cast("Floats", import_module("scipy.special").betaincinv(a, b, probability))


@contextmanager
def loaded_meanwhile() -> Generator[None]:
    """Load what a fit needs of SciPy in a thread, while the block reads a log; at its end all is there.

    Importing it takes 0.3 s. Nothing in the block may import SciPy, so that no thread sees half of a module.
    """
    loading = Thread(target=_load, name="SciPy")
    loading.start()
    try:
        yield
    finally:  # also where reading fails: the next command of the process may import SciPy itself
        loading.join()


def _load() -> None:
    import_module("scipy.sparse.csgraph")
    import_module("scipy.special")
    import_module("scipy.linalg")
    import_module("scipy.optimize")


ENOUGH_ASCENT = 1e-4
"""Share of the gain promised by the slope that is enough."""

ROUNDING = 1e-7
"""A step below it gains less than rounding loses: it is taken as it is."""

HALVINGS = 40


Proposal = tuple[Floats, Callable[[Floats], bool | Flags], Callable[[], Floats] | None]
"""Newton's step from a point, shape (P,); whether a step along it gains too little: one answer, or one for each
coordinate where each has a function of its own, shape (P,); and the step to take where no halving helps because
rounding hides every gain, the shortest by default."""


@dataclass(frozen=True)
class Limits:
    """Stopping rule of an iteration.

    Attributes:
        stalled: a step below it that is more than half as long as the one before shows rounding, and counts as none.
    """

    longest_step: float  # of a coordinate, in one step
    tolerance: float  # the largest change of a coordinate that counts as none
    stalled: float = 0.0
    max_iterations: int = 100  # steps at most


OnStep = Callable[[int, float], None]
"""Is called after each step with its number and its largest change."""


def climb(
    propose: Callable[[Floats], Proposal], start: Floats, limits: Limits, on_iteration: OnStep | None = None
) -> tuple[Floats, bool, int]:
    """The maximum of a concave function.

    Args:
        propose: Newton's step from a point of shape (P,).
        start: shape (P,), P > 0.
        limits: when to stop.
        on_iteration: called after each step with its number and its largest change.

    Returns:
        Where the climb ended, whether the last step counted as none, and the steps taken.
    """
    at, change, converged, iteration = start, np.inf, False, 0
    while not converged and iteration < limits.max_iterations:
        iteration += 1
        previous, step = change, _damped(propose(at), limits.longest_step)
        at, change = at + step, _largest(step)
        converged = change <= limits.tolerance or previous / 2 <= change <= limits.stalled
        if on_iteration is not None:
            on_iteration(iteration, change)
    return at, converged, iteration


def _damped(proposal: Proposal, longest: float) -> Floats:
    """The step cut to its longest change, and halved where and until it gains enough."""
    step, falls_short, instead = proposal
    step = step * min(1.0, longest / max(_largest(step), longest))
    if _largest(step) <= ROUNDING:
        return step
    for _ in range(HALVINGS):
        short = falls_short(step)
        if not np.any(short):
            return step
        step = np.where(short, step / 2, step)
    return step if instead is None else instead()


def _largest(step: Floats) -> float:
    return float(np.abs(step).max())


Derivatives = tuple[float, Floats, Floats]
"""Of a function at a point: its value, its slope, shape (P,), and its second derivatives, shape (P, P)."""

_FLATTEST = 1e-10  # curvature of a step, relative to the largest one
_ROUNDING_OF_VALUE = 1e-12  # of a function of the order of 1: what is gained or lost below it is rounding
_BOX = Limits(longest_step=2.0, tolerance=1e-9, stalled=ROUNDING)


def minimize_within(derivatives: Callable[[Floats], Derivatives], start: Floats, limits: Floats) -> Floats:
    """A minimum of a smooth function in a box, to the precision of its slope, by Newton's method.

    A step leads to the minimum in the box of the quadratic expansion, of whose eigenvalues the sizes count.

    Args:
        derivatives: of the function, whose values are of the order of 1.
        start: shape (P,).
        limits: lowest and highest value of each parameter, shape (P, 2).

    Returns:
        The minimum, shape (P,).
    """
    least_squares = import_module("scipy.optimize").lsq_linear

    def propose(at: Floats) -> Proposal:
        value, slope, curvature = derivatives(at)
        eigenvalues, vectors = np.linalg.eigh(curvature)
        bent = np.sqrt(np.maximum(np.abs(eigenvalues), _FLATTEST * np.abs(eigenvalues).max()))
        target, room = -(slope @ vectors) / bent, limits - at[:, np.newaxis]
        step = cast("Floats", least_squares(bent[:, np.newaxis] * vectors.T, target, room.T, method="bvls").x)

        def falls_short(step: Floats) -> bool:
            gain = value - derivatives(at + step)[0]
            return gain < -ENOUGH_ASCENT * float(slope @ step) - _ROUNDING_OF_VALUE * max(1.0, abs(value))

        return step, falls_short, None

    return climb(propose, start, _BOX)[0]


def extrapolated(
    start: Sequence[Floats],
    first: Sequence[Floats],
    second: Sequence[Floats],
    square: Sequence[Callable[[Floats], float]],
) -> Iterator[Floats]:
    """x0 - 2 a r + a^2 v from two steps of EM, r = x1 - x0, v = x2 - 2 x1 + x0, a = -|r| / |v| <= -1 (SQUAREM's S3).

    On the scale of probabilities: on that of logarithms or logits the values that run to 0 rule the length.

    Args:
        start: x0, in several arrays.
        first: x1.
        second: x2.
        square: the squared length of a change of each array, in which what stands for several counts as often.
    """
    squares = np.zeros(2)
    for x0, x1, x2, squared in zip(start, first, second, square, strict=True):
        r = x1 - x0
        squares += squared(r), squared(x2 - x1 - r)
    length = max(1.0, np.sqrt(squares[0] / max(squares[1], _TINY)))
    for x0, x1, x2 in zip(start, first, second, strict=True):
        r = x1 - x0
        yield x0 + 2 * length * r + length**2 * (x2 - x1 - r)


_TINY = 1e-300

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
        result, scale = unit_diagonal(matrix)
        if invert_positive(result):
            result *= np.outer(scale, scale)
            return result
    scaled, scale = unit_diagonal(matrix)
    result = np.linalg.inv(scaled) * np.outer(scale, scale)
    return (result + result.T) / 2


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
    inverted: Floats = np.linalg.pinv(scaled, hermitian=True).astype(np.float64)
    return inverted * np.outer(scale, scale)
