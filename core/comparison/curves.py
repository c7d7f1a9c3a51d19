"""Curves over the same cells, and tests of what differs between them.

S curves over K cells give b, the S K log propensities, with one covariance V of all their errors. In each group of
cells that can be compared (a context) all curves are made relative to one cell r, the first that most of them know:
b_sk - b_sr. A contrast of cell k is

    two curves     D_k  = b_2k - b_1k
    a day's curve  D_sk = b_sk - sum_{t != s} w_t b_tk,    w_t proportional to 1 / var(b_tk)

with the variance L V L', the degrees of freedom of its worst notable part, and Student's t. All contrasts together are
judged by the largest of them (`max_t`).

Curves from the same queries are not independent. Where V comes from one fit of all counts, with a context for each
curve, it is clustered by query over all curves (CR3), and what a query does to several of them counts. Where the curves
are two fits, their covariance is not known and is taken as 0. Queries that both hold, and clicks that both count, make
the two err alike: the covariance is positive, var(D) is overstated, and the test finds a change less often.
Sources: see `standard_errors.contrasts` and `standard_errors.max_t`.
"""

from dataclasses import dataclass, replace

import numpy as np

from posbias.core.arrays.count_table import Flags, Floats, Integers
from posbias.core.arrays.linalg import student_quantile, student_tail
from posbias.core.standard_errors.contrasts import ContrastTest, contrast_test, correlation_of
from posbias.core.standard_errors.leave_one_out import CONFIDENCE

MOST_VALUES = 2_000
"""With more propensities, of all curves together, their covariance is not made (32 MB)."""

_NOTABLE = 0.01  # share of a contrast's variance from which on a part limits the degrees of freedom
_MOST_DEGREES = 1e9
_ROUNDING = 1e-6  # a difference whose error is this small a share of the errors it is made of has none


@dataclass(frozen=True)
class Curves:
    """Several curves.

    Attributes:
        log_theta: shape (S, K); NaN where not known.
        covariance: shape (S K, S K), of the errors; NaN beside what has no error, 0 beside the references.
        degrees: shape (S, K), degrees of freedom of the errors; NaN where there is none.
        group: shape (K,): cells of one number can be compared with each other.
        present: shape (S, K), whether the cell was shown at all.
        correlated: whether correlations within a curve are known.
    """

    log_theta: Floats
    covariance: Floats
    degrees: Floats
    group: Integers
    present: Flags
    correlated: bool = True

    @property
    def shape(self) -> tuple[int, int]:
        """S and K."""
        n_curves, n_cells = self.log_theta.shape
        return n_curves, n_cells

    @property
    def std_error(self) -> Floats:
        """Shape (S, K)."""
        with np.errstate(invalid="ignore"):
            return np.sqrt(np.diag(self.covariance)).reshape(self.shape)

    def references(self) -> Integers:
        """The cell that each cell is compared with, shape (K,): of its group, the first that most curves know."""
        known = (np.isfinite(self.log_theta) & np.isfinite(self.std_error)).sum(axis=0)
        chosen = np.empty(len(self.group), np.int64)
        for group in np.unique(self.group):
            cells = np.flatnonzero(self.group == group)
            chosen[cells] = cells[np.argmax(known[cells])]
        return chosen

    def relative_to(self, references: Integers) -> "Curves":
        """The same relative to these cells; not known where the reference is not."""
        n_curves, n_cells = self.shape
        chosen = (np.arange(n_curves)[:, np.newaxis] * n_cells + references).ravel()
        log_theta = self.log_theta - self.log_theta[:, references]
        whole = self.covariance
        covariance = whole - whole[chosen] - whole[:, chosen] + whole[np.ix_(chosen, chosen)]
        own, of_reference = self.std_error**2, self.std_error[:, references] ** 2
        with np.errstate(invalid="ignore"):
            limits = of_reference > _NOTABLE * (own + of_reference)
        degrees = np.where(limits, np.fmin(self.degrees, self.degrees[:, references]), self.degrees)
        return replace(self, log_theta=log_theta, covariance=covariance, degrees=degrees)


@dataclass(frozen=True)
class Differences:
    """What was found of M contrasts.

    Attributes:
        difference: shape (M,), of log propensities; NaN where it is not known.
        std_error: shape (M,); NaN where it is not known.
        margin: shape (M,), half the width of the 95 % interval of the difference.
        p_value: shape (M,), of each by itself; NaN without an error.
        test: of all of them.
    """

    difference: Floats
    std_error: Floats
    margin: Floats
    p_value: Floats
    test: ContrastTest

    @property
    def low(self) -> Floats:
        """The lower end of the interval, shape (M,)."""
        return self.difference - self.margin

    @property
    def high(self) -> Floats:
        """Its upper end, shape (M,)."""
        return self.difference + self.margin


def change(curves: Curves) -> Differences:
    """The second of two curves minus the first, cell by cell, M = K."""
    _, n_cells = curves.shape
    each = np.eye(n_cells)
    return _differences(np.hstack([-each, each]), curves)


def from_others(curves: Curves) -> Differences:
    """Each curve minus what the others say together, M = S K, curve by curve."""
    n_curves, n_cells = curves.shape
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = np.nan_to_num(curves.std_error**-2.0, posinf=0.0)
    contrasts = np.eye(n_curves * n_cells)
    for cell in range(n_cells):
        at = np.arange(n_curves) * n_cells + cell
        for curve in range(n_curves):
            weight = precision[:, cell].copy()
            weight[curve] = 0.0
            if weight.sum() > 0:
                contrasts[at[curve], at] -= weight / weight.sum()
            else:
                contrasts[at[curve], at[curve]] = np.nan
    return _differences(contrasts, curves)


def _differences(contrasts: Floats, curves: Curves) -> Differences:
    log_theta = curves.log_theta.ravel()
    error = curves.std_error.ravel()
    involved = np.nan_to_num(contrasts, nan=1.0) != 0
    known = ~(involved & ~np.isfinite(log_theta)).any(axis=1) & np.isfinite(contrasts).all(axis=1)
    sure = known & ~(involved & ~np.isfinite(error)).any(axis=1)
    rows = np.nan_to_num(contrasts)
    covariance = rows @ np.nan_to_num(curves.covariance) @ rows.T
    variance = np.maximum(np.diag(covariance), 0.0)
    parts = rows**2 * np.nan_to_num(error) ** 2
    notable = parts > _NOTABLE * parts.sum(axis=1, keepdims=True)
    degrees = np.where(notable, np.nan_to_num(curves.degrees.ravel(), nan=1.0), np.inf).min(axis=1)
    degrees = np.clip(degrees, 1.0, _MOST_DEGREES)
    difference = np.where(known, rows @ np.nan_to_num(log_theta), np.nan)
    std_error = np.sqrt(variance)
    std_error[variance < _ROUNDING**2 * parts.sum(axis=1)] = 0.0  # both are the same function of the counts
    std_error = np.where(sure, std_error, np.nan)
    correlation = correlation_of(covariance) if curves.correlated else None
    test = contrast_test(difference, std_error, degrees, correlation=correlation)
    margin = student_quantile((1 + CONFIDENCE) / 2, degrees) * std_error
    with np.errstate(divide="ignore", invalid="ignore"):
        alone = np.minimum(2 * student_tail(np.abs(difference) / std_error, degrees), 1.0)
    return Differences(difference, std_error, margin, np.where(std_error > 0, alone, np.nan), test)
