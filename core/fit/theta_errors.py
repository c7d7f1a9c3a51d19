"""How far theta may be off, as one covariance of all cells: what everything that is computed from theta inherits."""

from dataclasses import dataclass

import numpy as np

from posbias.core.arrays.count_table import Floats, Integers
from posbias.core.estimators.estimate import Estimate
from posbias.core.standard_errors.query_spread import query_spread

MOST_CELLS = 2_000
"""With more cells the covariance is not made (32 MB): attractiveness then has the errors of counts alone."""

_NORMAL = 1.959963984540054  # 97.5 % quantile


@dataclass(frozen=True)
class ThetaErrors:
    """How far the theta under which a unit was seen may be from the estimate.

    Attributes:
        covariance: V + tau^2 I, shape (K, K), of log examination; None where the method has no errors, or there are
            more than `MOST_CELLS` cells.
    """

    query_spread: float  # tau >= 0; 0 also where the method cannot tell
    covariance: Floats | None

    @classmethod
    def of(cls, estimate: Estimate) -> "ThetaErrors":
        """The errors of an estimate."""
        spread = 0.0 if estimate.fitted is None else query_spread(estimate.fitted)
        covariance = log_covariance(estimate)
        return cls(spread, None if covariance is None else covariance + spread**2 * np.eye(len(covariance)))


def log_covariance(estimate: Estimate) -> Floats | None:
    """V, the covariance of log examination, shape (K, K); None where the method has no errors.

    Standard deviations are how far the intervals reach over z_.975, so that few clusters count; where a cell has
    none, what the counts alone would give. Rows of cells that are not identified are 0. Correlations are those of the
    clustered covariance, that of the free estimate where there is a shape.
    """
    spread = _spread_of_cells(estimate)
    if spread is None or len(spread) > MOST_CELLS:
        return None
    relative = np.outer(spread, spread) * estimate.correlation
    identified = np.flatnonzero(estimate.linkage.identified)
    to_largest = np.eye(len(spread))
    to_largest[identified, _largest_of(estimate)[identified]] -= 1.0
    return np.asarray(to_largest @ relative @ to_largest.T)


def _spread_of_cells(estimate: Estimate) -> Floats | None:
    """Standard deviation of each log propensity, shape (K,); 0 at references and where not identified."""
    intervals, known = estimate.intervals, estimate.linkage.identified
    if not np.isfinite(intervals.std_error).any():
        return None
    with np.errstate(divide="ignore"):
        reach = intervals.reach(np.log(estimate.propensity))
    spread = np.where(np.isfinite(reach), reach / _NORMAL, intervals.std_error)
    if estimate.conditional is not None:
        fit = estimate.conditional.fit
        by_counts = np.zeros(len(spread))
        by_counts[fit.free_cells] = np.sqrt(np.diag(fit.inverse))
        spread = np.where(np.isfinite(spread), spread, by_counts)
    return np.where(known, np.nan_to_num(spread, posinf=0.0), 0.0)


def _largest_of(estimate: Estimate) -> Integers:
    """The cell with the largest propensity among those with the same reference, shape (K,)."""
    order = np.argsort(-np.nan_to_num(estimate.propensity, nan=-np.inf), kind="stable")
    reference = estimate.linkage.reference_of
    references, first = np.unique(reference[order], return_index=True)
    return order[first][np.searchsorted(references, reference)]
