"""How far one context's curve leaves that of the others: the estimate that borrows, and an interval for that context.

    d = y - m,    S = cov(d),    C = cov(e, d),    G = C (S + tau_c^2 W)^-1,    b = y - G d

on the cells that the context has an interval for and the others speak of. On others of the context's cells b is m and
what d says there. In general, with N = S - C and K = (N + tau_c^2 W)(S + tau_c^2 W)^-1, which is I - G where y is
known, b = K y + (I - K) m, with K averaged over tau_c. S and C have the correlations of the inverse information, in
which contexts are independent, with one overdispersion of y and one of m, and S has the diagonal that the clusters give
to d.

The error of b depends on how far this context leaves the others, which its own data alone can say. So its interval is
that of y, moved towards m: with sigma the standard deviation of y,

    low = min(y - p sigma, max(m, y - q sigma)),    high = max(y + p sigma, min(m, y + q sigma)),    p < z_.975 < q

It extends as far as m, but never beyond q. Where beta > m, it misses beta if y is below it by p sigma or above it by
q sigma; where beta < m, the other way round. With Phi(-p) + Phi(-q) = .05 it covers 95 % of the time for every beta,
close to m or far from it, if y and m are independent. With the correlation rho > 0 of their errors, from what contexts
share, it covers least at beta = E m, and p is the solution of

    Phi(-p) + Phi(-q) + 2 T(p, r) - 2 T(q, r) = .05,    r = rho / sqrt(1 - rho^2)

with Owen's T: z_.975 at rho = 1, where nothing is to be gained. No interval that covers every beta can be much shorter.

Sources: Pratt 1961 (q = infinity: the shortest interval at beta = m, .84 of that of y); Yu & Hoff 2018 (intervals of
groups that borrow and cover in each group); Armstrong, Kolesar & Plagborg-Moller 2022 (intervals about b that cover on
average over groups, and less in one that differs). For notation see `contexts`.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from posbias.core.arrays.count_table import Flags, Floats, Integers
from posbias.core.arrays.linalg import normal_quantile, normal_tail, owens_t

TAU = np.geomspace(1e-3, 10.0, 61)
"""Where tau and tau_c are looked at, per square root of a unit of log position: from 0 to factors of thousands."""

_SAME = 1e-6  # of a standard deviation: a difference that is as small as that is rounding

_MISSED = 0.05
_MISSED_BEYOND_OTHERS = 0.01  # beta lies between m and y, and the interval, extended to q, still does not reach it
_HALVINGS = 40  # of the bracket of p


@dataclass(frozen=True)
class Said:
    """What somebody says of a context's n cells."""

    values: Floats  # shape (n,); 0 where nothing is said
    known: Flags  # shape (n,), where something is said
    variance: Floats  # shape (n,), of its sampling errors, by the clusters; 0 where nothing is said
    model: Floats  # shape (n, n), their covariance by the inverse information


@dataclass(frozen=True)
class Difference:
    """One context beside the others."""

    own: Said  # what its own data say, y
    others: Said  # what the other contexts say, m
    shared: Floats  # shape (n,), covariance of the errors of y and m by the clusters: from what contexts have in common
    walk: Floats  # shape (n, n), W

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
            float(np.mean((side.variance - self.shared)[self.both] / np.diag(side.model)[self.both]))
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
        """Means b of beta, and the share of m in each, shape (n,), over the grid of tau_c with weights of shape (T,).

        NaN where nobody says anything.
        """
        kept = self._kept(weight)
        mean = kept @ self.own.values + self.others.values - kept @ self.others.values
        known = self.own.known | self.others.known
        return np.where(known, mean, np.nan), np.where(known, 1 - np.diag(kept), np.nan)

    def interval(self, mean: Floats) -> tuple[Floats, Floats]:
        """Ends of the 95 % interval of beta that holds whatever beta is, shape (n,) each; NaN without an own interval.

        Args:
            mean: shape (n,), b; in the rare case that it lies outside, the interval extends to it.
        """
        own = np.where(self.own.known, self.own.values, np.nan)
        others = np.where(self.others.known, self.others.values, own)
        sd = np.sqrt(self.own.variance)
        of_both = sd * np.sqrt(self.others.variance)
        rho = np.divide(self.shared, of_both, out=np.ones_like(sd), where=self.others.known & (of_both > 0))
        least, most = _reach(rho) * sd, -normal_quantile(np.array(_MISSED_BEYOND_OTHERS)) * sd
        low = np.minimum(own - least, np.maximum(others, own - most))
        high = np.maximum(own + least, np.minimum(others, own + most))
        return np.minimum(low, mean), np.maximum(high, mean)

    def _kept(self, weight: Floats) -> Floats:
        """K, shape (n, n); where the others say nothing, what the context says is kept."""
        kept = np.diag((~self.others.known).astype(np.float64))
        spectrum, rotation = self._axes
        by_tau = weight / (1 + np.outer(spectrum, TAU**2))
        served = np.ix_(self.others.known, self.both)
        _, others = self._working
        of_noise, of_walk = by_tau.sum(axis=1), by_tau @ TAU**2
        kept[served] = others[served] @ (rotation.T * of_noise) @ rotation
        kept[served] += self.walk[served] @ (rotation.T * of_walk) @ rotation
        return kept

    @cached_property
    def _working(self) -> tuple[Floats, Floats]:
        """C and N, shape (n, n) each."""
        both, by_own = self.both, self.own.variance
        variance = by_own + self.others.variance - 2 * self.shared
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


def _reach(rho: Floats) -> Floats:
    """p, of the shape of rho: how far the interval reaches from y at least, in standard deviations."""
    rho = np.clip(rho, 0.0, 1.0 - np.finfo(np.float64).eps)
    slope = rho / np.sqrt(1 - rho**2)
    most = -normal_quantile(np.array(_MISSED_BEYOND_OTHERS))
    beyond = _MISSED_BEYOND_OTHERS - 2 * owens_t(most, slope)
    low = np.broadcast_to(-normal_quantile(np.array(_MISSED - _MISSED_BEYOND_OTHERS)), rho.shape)
    high = np.broadcast_to(-normal_quantile(np.array(_MISSED / 2)), rho.shape)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        missed = normal_tail(middle) + 2 * owens_t(middle, slope) + beyond
        low, high = np.where(missed > _MISSED, middle, low), np.where(missed > _MISSED, high, middle)
    return high
