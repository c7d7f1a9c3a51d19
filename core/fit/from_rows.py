"""An estimate that was made from the rows themselves, with their features; and whether repeated pairs say the same."""

from dataclasses import dataclass, replace

import numpy as np

from posbias.core.arrays.count_table import Floats
from posbias.core.arrays.linalg import solve_positive
from posbias.core.counts.sufficient_statistics import SufficientStatistics
from posbias.core.errors import IdentifiabilityError
from posbias.core.estimators import ConditionalEstimator, Estimate, EstimationOptions
from posbias.core.estimators.estimate import FittedCurve
from posbias.core.standard_errors.contrasts import LEVEL, ContrastTest, FittedStrata, contrast_test, pairwise_contrasts


@dataclass(frozen=True)
class FromRows:
    """What a method found in the rows."""

    estimate: Estimate
    moment: Floats | None  # theta by the moment equation, relative to the same references, shape (K,)
    pages: int  # that its trees were grown on
    pages_in_all: int
    score: str | None  # the feature that is the ranker's score, if one is named


@dataclass(frozen=True)
class PairsTest:
    """The estimate from features against the conditional estimate from repeated pairs.

    Two things are tested, each at half of the level: the slope of the log ratio over log position, in which what the
    features do not show adds up, and every cell (Bonferroni). The variances of the two estimates add up: the clicks
    that they share make the difference vary less than that, so that false alarms are rarer than the level.
    """

    slope: float  # by how much log theta falls faster with log position by the features, relative to the pairs
    slope_error: float
    of_slope: ContrastTest
    of_cells: ContrastTest  # of the log ratios of the cells
    pairs: int  # how many link the most of them

    @property
    def p_value(self) -> float:
        """The smaller of the two, times two, at most 1."""
        return min(1.0, 2 * min(self.of_slope.p_value, self.of_cells.p_value))

    @property
    def rejected(self) -> bool:
        """Whether the two differ."""
        return self.p_value < LEVEL


def compare_with_pairs(
    estimate: Estimate, statistics: SufficientStatistics, options: EstimationOptions
) -> PairsTest | None:
    """Compare with what repeated pairs say; None where nothing repeats, or one of the two has no errors."""
    features = estimate.conditional
    if features is None:
        return None
    own = replace(options, reference=(), max_iterations=None, tolerance=None)
    try:
        pairs = ConditionalEstimator().estimate(statistics, statistics.strata(), own, lambda _: None)
    except IdentifiabilityError:
        return None
    return None if pairs.fitted is None else _test(features, pairs.fitted, statistics)


def _test(
    features: FittedCurve | FittedStrata, pairs: FittedStrata, statistics: SufficientStatistics
) -> PairsTest | None:
    """The test of the cells that both know, relative to the references of the pairs."""
    n_cells, reference = statistics.n_cells, pairs.fit.linkage.reference_of
    variance = _covariance(features, n_cells) + _covariance(pairs, n_cells)
    known = np.isfinite(features.fit.log_theta) & np.isfinite(pairs.fit.log_theta) & np.isfinite(np.diag(variance))
    cells = np.flatnonzero(known & known[reference] & (reference != np.arange(n_cells)))
    if not len(cells):
        return None
    contrasts = pairwise_contrasts(reference[cells], cells, n_cells)
    log_ratio = np.nan_to_num(features.fit.log_theta) - np.nan_to_num(pairs.fit.log_theta)
    difference = contrasts @ log_ratio
    covariance = contrasts @ np.where(np.outer(known, known), np.nan_to_num(variance), 0.0) @ contrasts.T
    covariance = covariance + np.diag(np.full(len(cells), 1e-12))  # two cells that agree to the last click
    position = np.log(statistics.position_of_cell)
    direction = position[cells] - position[reference[cells]]
    weighed = solve_positive(covariance, direction)
    information = float(direction @ weighed)
    slope, error = float(difference @ weighed) / max(information, 1e-300), 1 / np.sqrt(max(information, 1e-300))
    degrees = np.minimum(features.errors.degrees, pairs.errors.degrees)[cells]
    fewest = np.array([np.nanmin(degrees, initial=np.inf)])
    return PairsTest(
        slope=slope,
        slope_error=float(error),
        of_slope=contrast_test(np.array([slope]), np.array([error]), fewest),
        of_cells=contrast_test(difference, np.sqrt(np.diag(covariance)), degrees),
        pairs=int(pairs.fit.linkage.linking_pairs[cells].max()),
    )


def _covariance(curve: FittedCurve | FittedStrata, n_cells: int) -> Floats:
    """Of log theta, shape (K, K): 0 at the references, nan where there is no error."""
    found = np.zeros((n_cells, n_cells))
    free = curve.fit.free_cells
    found[np.ix_(free, free)] = curve.errors.covariance
    return found
