r"""P-values of several contrasts at once, from their joint distribution: the largest of M correlated statistics.

P-values p_m of single contrasts are turned into normal scores, z_m = Phi^-1(1 - p_m / 2), so that each may have degrees
of freedom of its own. If all contrasts are 0, Z ~ N(0, R) with their correlations R, and what is reported for a
contrast is the probability that any of them shows as much,

    P(max_m |Z_m| >= z) = M p E[1 / number of l with |Z_l| >= z],    Z given Z_m >= z, m each equally often,

or the same without absolute values where only rises count. M p is Bonferroni's bound, and the mean tells what
dependence makes of it. It is taken over draws that are the same in every run, and lies between 1 / M and 1, so that far
out in the tail, too, the result is known to about a percent.

R is estimated from few clusters, and chance correlations would understate the maximum. So they are shrunk,

    (1 - lambda) r_lm,    lambda = sum_{l != m} (1 - r_lm^2)^2 / nu_lm / sum_{l != m} r_lm^2,  at most 1

with the degrees of freedom nu_lm = min(nu_l, nu_m) from which r_lm is known: the sampling variance of the correlations
over their size. With many clusters nothing is shrunk.

Sources: Westfall & Young 1993, Hothorn, Bretz & Westfall 2008 (max-t); Schaefer & Strimmer 2005 (lambda); Naiman &
Wynn 2001 (probability of a union).
"""

import numpy as np

from posbias.core.arrays.count_table import Floats
from posbias.core.arrays.linalg import normal_quantile

MOST_CONTRASTS = 256
"""With more, their correlations are left aside: M p."""

_DRAWS = 4096
_SEED = 19_930_101
_ROUNDS = 3  # of the search for the p-value at a level; the third moves it by less than a percent
_NODES = 8  # p-values at which the probability is computed; between them it is interpolated
_SMALLEST, _LARGEST = 1e-300, 1 - 1e-12  # p-values whose normal scores are finite


def joint_p_values(p_values: Floats, correlation: Floats, degrees: Floats, *, two_sided: bool) -> Floats:
    """The probability that some of M contrasts shows as much as each of them, if all are 0.

    Args:
        p_values: shape (M,), of each contrast by itself, in [0, 1].
        correlation: shape (M, M), estimated.
        degrees: shape (M,), the degrees of freedom that each was estimated with, >= 1.
        two_sided: whether falls count as rises do.

    Returns:
        Shape (M,), at least p_m, at most min(M p_m, 1).
    """
    n_contrasts = len(p_values)
    bound = np.minimum(n_contrasts * p_values, 1.0)
    if not 1 < n_contrasts <= MOST_CONTRASTS:
        return bound
    maximum = _Maximum(shrunk_correlation(correlation, degrees), two_sided=two_sided)
    score = np.log(np.clip(p_values, _SMALLEST, _LARGEST))
    nodes = np.linspace(float(score.min()), float(score.max()), _NODES)
    relative = np.array([maximum.relative_to_bound(float(p)) for p in np.exp(nodes)])
    joint = np.clip(n_contrasts * p_values * np.exp(np.interp(score, nodes, np.log(relative))), p_values, bound)
    order = np.argsort(p_values)
    joint[order] = np.maximum.accumulate(joint[order])  # draws leave it uneven by less than a percent
    return joint


def p_value_at(level: float, correlation: Floats, degrees: Floats, *, two_sided: bool) -> float:
    """The p-value of a single contrast at which the probability over all of them reaches a level.

    Args:
        level: in (0, 1).
        correlation: as for `joint_p_values`.
        degrees: likewise.
        two_sided: likewise.
    """
    n_contrasts = len(degrees)
    p_value = level / n_contrasts
    if 1 < n_contrasts <= MOST_CONTRASTS:
        maximum = _Maximum(shrunk_correlation(correlation, degrees), two_sided=two_sided)
        for _ in range(_ROUNDS):
            p_value = level / (n_contrasts * maximum.relative_to_bound(p_value))
    return p_value


def shrunk_correlation(correlation: Floats, degrees: Floats) -> Floats:
    """Correlations less what chance may have made of them, shape (M, M)."""
    apart = np.where(np.eye(len(correlation), dtype=np.bool_), 0.0, correlation)
    chance = (1 - apart**2) ** 2 / np.minimum.outer(degrees, degrees)
    size = (apart**2).sum()
    share = (chance.sum() - np.trace(chance)) / size if size > 0 else 1.0
    return np.eye(len(correlation)) + (1 - min(share, 1.0)) * apart


class _Maximum:
    """The largest of M normal numbers."""

    def __init__(self, correlation: Floats, *, two_sided: bool) -> None:
        self.correlation = correlation
        self.two_sided = two_sided
        rng = np.random.default_rng(_SEED)
        values, vectors = np.linalg.eigh(correlation)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        self.free = rng.standard_normal((_DRAWS, len(correlation))) @ root.T
        self.given = np.arange(_DRAWS) % len(correlation)  # the number that is beyond the bound, draw by draw
        self.beyond = 1 - rng.random(_DRAWS)  # how far beyond, as a share of the tail, in (0, 1]

    def relative_to_bound(self, p_value: float) -> float:
        """P(some number is as far out as a single one is with probability p) / (M p), at most 1."""
        tail = p_value / 2 if self.two_sided else p_value
        bound = -normal_quantile(np.array([tail]))[0]
        own = -normal_quantile(self.beyond * tail)
        shift = own - self.free[np.arange(_DRAWS), self.given]
        drawn = self.free + shift[:, np.newaxis] * self.correlation[self.given]
        outside = (np.abs(drawn) if self.two_sided else drawn) >= bound
        outside[np.arange(_DRAWS), self.given] = True
        return float((1 / outside.sum(axis=1)).mean())
