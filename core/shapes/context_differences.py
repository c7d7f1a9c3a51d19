"""How far one context's curve leaves that of the others, and what to make of it: the posterior given each tau_c.

    d = y - m,    S = cov(d),    C = cov(e, d),    G = C (S + tau_c^2 W)^-1,    b = y - G d

on the cells that the context has an interval for and the others speak of. On others of the context's cells b is m and
what d says there. In general, with N = S - C and K = (N + tau_c^2 W)(S + tau_c^2 W)^-1, which is I - G where y is
known,

    b = K y + (I - K) m,    var(b) = [K, I - K] cov(y, m) [K, I - K]' + tau_c^2 (I - K) W (I - K)'

S and C have the correlations of the inverse information, in which contexts are independent, with one overdispersion of
y and one of m, and S has the diagonal that the clusters give to d. For notation see `contexts`.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from posbias.core.arrays.count_table import Flags, Floats, Integers

TAU = np.geomspace(1e-3, 10.0, 61)
"""Where tau and tau_c are looked at, per square root of a unit of log position: from 0 to factors of thousands."""

_SAME = 1e-6  # of a standard deviation: a difference that is as small as that is rounding


@dataclass(frozen=True)
class Said:
    """What somebody says of a context's n cells.

    Attributes:
        values: shape (n,); 0 where nothing is said.
        known: shape (n,), where something is said.
        covariance: shape (n, n), of its sampling errors, by the clusters; 0 where nothing is said.
        model: shape (n, n), the same by the inverse information.
    """

    values: Floats
    known: Flags
    covariance: Floats
    model: Floats


@dataclass(frozen=True)
class Difference:
    """One context beside the others.

    Attributes:
        own: what its own data say, y.
        others: what the other contexts say, m.
        shared: shape (n, n), covariance of the errors of y and m by the clusters: from what contexts have in common.
        walk: shape (n, n), W.
    """

    own: Said
    others: Said
    shared: Floats
    walk: Floats

    @cached_property
    def both(self) -> Integers:
        """Cells of which both say something, shape (s,)."""
        return np.flatnonzero(self.own.known & self.others.known)

    @cached_property
    def overdispersion(self) -> tuple[float, float]:
        """Variance of the errors that y and m do not share, each relative to the inverse information, on average."""
        if not len(self.both):
            return 1.0, 1.0
        own, others = (
            float(
                np.mean((np.diag(side.covariance) - np.diag(self.shared))[self.both] / np.diag(side.model)[self.both])
            )
            for side in (self.own, self.others)
        )
        return max(own, 0.0), max(others, 0.0)

    def log_likelihood(self) -> Floats:
        """Of each tau_c of the grid, up to a constant, shape (T,)."""
        if not len(self.both):
            return np.zeros(len(TAU))
        spectrum, rotation = self._axes
        scale = 1 + np.outer(TAU**2, spectrum)
        rotated = rotation @ (self.own.values - self.others.values)[self.both]
        return -(np.log(scale) + rotated**2 / scale).sum(axis=1) / 2

    def posterior(self, weight: Floats) -> tuple[Floats, Floats]:
        """Means and variances of beta, shape (n,) each, over the grid of tau_c with weights of shape (T,).

        NaN where nobody says anything.
        """
        means, variances = (np.array(found) for found in zip(*map(self._given, TAU.tolist()), strict=True))
        mean = weight @ means
        variance = weight @ (variances + (means - mean) ** 2)
        unknown = ~self.own.known & ~self.others.known
        return np.where(unknown, np.nan, mean), np.where(unknown, np.nan, variance)

    def _given(self, tau: float) -> tuple[Floats, Floats]:
        """Means and variances of beta given tau_c."""
        kept = self._kept(tau)
        moved = np.eye(len(kept)) - kept
        variance = _quadratic(kept, self.own.covariance, kept) + _quadratic(moved, self.others.covariance, moved)
        variance += 2 * _quadratic(kept, self.shared, moved) + tau**2 * _quadratic(moved, self.walk, moved)
        return kept @ self.own.values + moved @ self.others.values, variance

    def _kept(self, tau: float) -> Floats:
        """K, shape (n, n); where the others say nothing, what the context says is kept."""
        kept = np.diag((~self.others.known).astype(np.float64))
        spectrum, rotation = self._axes
        served = np.ix_(self.others.known, self.both)
        _, others = self._working
        kept[served] = (others + tau**2 * self.walk)[served] @ (rotation.T / (1 + tau**2 * spectrum)) @ rotation
        return kept

    @cached_property
    def _working(self) -> tuple[Floats, Floats]:
        """C and N, shape (n, n) each."""
        both, by_own = self.both, np.diag(self.own.covariance)
        variance = by_own + np.diag(self.others.covariance) - 2 * np.diag(self.shared)
        of_own, of_others = self.overdispersion
        if of_own + of_others == 0:  # copies
            of_own = of_others = 1.0
        own, others = of_own * self.own.model, of_others * self.others.model
        scale = np.ones(len(variance))
        if len(both):
            found = np.sqrt(np.maximum(variance, _SAME**2 * by_own)[both] / np.diag(own + others)[both])
            scale *= found.mean()
            scale[both] = found
        return own * np.outer(scale, scale), others * np.outer(scale, scale)

    @cached_property
    def _axes(self) -> tuple[Floats, Floats]:
        """lambda, shape (s,), and R, shape (s, s), with R (S + tau^2 W) R' = diag(1 + tau^2 lambda) for every tau."""
        block = np.ix_(self.both, self.both)
        own, others = self._working
        whiten = np.linalg.inv(np.linalg.cholesky((own + others)[block])).astype(np.float64)
        spectrum, axes = np.linalg.eigh(whiten @ self.walk[block] @ whiten.T)
        return np.maximum(spectrum, 0.0), axes.T @ whiten


def _quadratic(left: Floats, middle: Floats, right: Floats) -> Floats:
    """The diagonal of L M R', shape (n,)."""
    return ((left @ middle) * right).sum(axis=1)
