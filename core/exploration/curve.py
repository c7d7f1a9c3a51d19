r"""How wide the intervals of theta will be after further pages on which the documents of two positions are swapped.

On every page that takes part, the documents at positions i and j change places with probability 1/2 (RandPair and
swap interventions; Joachims, Swaminathan & Schnabel 2017). The other positions are shown as ever. With S strata of
expected clicks a_s by cell, the conditional likelihood has the information

    F(a) = sum_s diag(a_s) - a_s a_s' / |a_s|,    |a_s| = sum_e a_se

N further pages, r times those of the log, add r a_s; on a share w of them half of the documents of i stand at j:

    b_s = (1 + r) a_s + d_s,    d_si = -r w a_si / 2,    d_sj = + r w (a_si / 2) theta_j / theta_i    (and j with i)

Of a_s only the shared clicks M = sum_s a_s a_s' / |a_s| are known (`core.fit.shared_clicks`). The strata that are
shown at i stand for each other: clicked there A_i = sum_e M_ie times, they have the mean profile a = A_i M_i. / M_ii,
so that

    I_after = (1 + r) F + sum_{g = i, j} phi [F((1 + r) a_g + d_g) - F((1 + r) a_g)],    F = diag(M 1) - M

phi = 1 - strata / impressions is the chance that a further impression finds its stratum known (Good 1953): a document
that was never shown elsewhere compares nothing. Where further pages have strata of their own, as with periods, r a_g
takes the place of (1 + r) a_g. In a fit of randomised rows, strata are queries, and further pages add

    I_after = F + n_i n_j / (n_i + n_j) (e_i - e_j)(e_i - e_j)',    n_i = N w (c_i + c_j theta_i / theta_j) / 2

with c the click rates. A cell's variance v = (I^-1)_ee is scaled to what the fit found, V (clustered): by the design
effect V / v of now. The part of V that further pages of the same queries do not change, because queries differ, stays:
q = tau^2 / G, with the spread tau between queries and the effective number G of them.

    V_after = q + (V - q) v_after / v
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from posbias.core.arrays.count_table import Flags, Floats, Integers
from posbias.core.arrays.linalg import connected

Strata = Literal["shared", "apart", "randomized"]
"""Whether further pages add to the strata of the log, have strata of their own, or are randomised rows of queries."""

Swap = tuple[int, int]
"""Two positions, the smaller one first."""

NORMAL = 1.959963984540054
"""97.5 % quantile."""

_LARGEST_CONSTANT_PART = 0.9  # of a variance: something is always learnt from more clicks
_LEAST_LINK = 1e-9  # shared clicks that are rounding


@dataclass(frozen=True)
class Curve:
    """The cells of one context, and what is known of them: each array of shape (K,) unless it says otherwise."""

    position: Integers  # ascending
    theta: Floats  # a propensity for every cell, above 0
    impressions: Floats  # in the log
    clicks: Floats
    shared: Floats  # M, shape (K, K)
    std_error: Floats  # of log propensity; infinite where it has none
    width: Floats  # of the 95 % interval of log propensity; likewise
    constant: Floats  # q, the part of the variance that stays
    reference: int  # the index of the cell that the others are compared with
    strata: Strata  # what becomes of further pages
    known_strata: float  # phi

    @property
    def pages(self) -> float:
        """Pages of the log, by the position that most of them show."""
        return float(self.impressions.max(initial=0.0))

    @cached_property
    def _expected(self) -> Floats:
        """A, the expected clicks by cell."""
        return self.shared.sum(axis=1)

    @cached_property
    def _profiles(self) -> Floats:
        """a_g, the expected clicks by cell of the strata that are shown at g, shape (K, K)."""
        own = np.diag(self.shared)
        scale = np.divide(self._expected, own, out=np.zeros_like(own), where=own > 0)
        return self.shared * scale[:, np.newaxis]

    @cached_property
    def information(self) -> Floats:
        """F, that of the log, shape (K, K)."""
        return np.diag(self._expected) - self.shared

    @cached_property
    def _variance(self) -> Floats:
        """V, that of now by the model, infinite where a cell is not compared with the reference."""
        return variances(self.information, self.reference)

    @cached_property
    def _usual_design_effect(self) -> float:
        """The median over the cells; one without an interval counts as 1, so that a doubtful one decides nothing."""
        known = np.isfinite(self.std_error) & np.isfinite(self._variance) & (self._variance > 0)
        effect = np.divide(self.std_error**2, self._variance, out=np.ones_like(self.std_error), where=known)
        return float(np.median(np.delete(effect, self.reference))) if len(effect) > 1 else 1.0

    def std_errors_after(self, growth: float, swaps: Mapping[Swap, float]) -> Floats:
        """The standard errors of log propensity after further pages; infinite where there is none.

        Args:
            growth: r, further pages relative to those of the log.
            swaps: the share of the further pages on which two positions are swapped half of the time.
        """
        after = variances(self._information_after(growth, swaps), self.reference)
        now, found = self._variance, self.std_error**2
        constant = np.minimum(self.constant, _LARGEST_CONSTANT_PART * np.where(np.isfinite(found), found, np.inf))
        known = np.isfinite(found) & np.isfinite(now) & (now > 0)
        ratio = np.divide(after, now, out=np.ones_like(after), where=known)
        scaled = constant + (np.where(known, found, constant) - constant) * np.where(known, ratio, 1.0)
        unscaled = self._usual_design_effect * after + constant
        variance = np.where(known, np.minimum(scaled, np.where(known, found, np.inf)), unscaled)
        variance[self.reference] = 0.0
        return np.sqrt(variance)

    def widths(self, std_error: Floats) -> Floats:
        """The widths of 95 % intervals of log propensity with these standard errors.

        An interval of few degrees of freedom is wider by a factor, which comes nearer to the usual one as the variance
        falls.
        """
        known = np.isfinite(self.width) & (self.std_error > 0) & np.isfinite(std_error)
        factor = np.divide(self.width, self.std_error, out=np.full_like(std_error, 2 * NORMAL), where=known)
        usual = float(np.median(np.delete(factor, self.reference))) if len(factor) > 1 else 2 * NORMAL
        left = np.divide(std_error**2, self.std_error**2, out=np.zeros_like(std_error), where=known)
        return (usual + (factor - usual) * np.minimum(left, 1.0)) * std_error

    def _information_after(self, growth: float, swaps: Mapping[Swap, float]) -> Floats:
        moves = [(*cells, share) for swap, share in swaps.items() if (cells := self._cells_of(swap)) is not None]
        if self.strata == "randomized":
            return self.information + sum(
                (self._randomized(one, other, growth * self.pages * share) for one, other, share in moves),
                np.zeros_like(self.shared),
            )
        change = np.zeros_like(self.shared)
        for one, other, share in moves:
            for origin, target in ((one, other), (other, one)):
                moved = growth * share * self._together(one, other, origin) * self._expected[origin] / 2
                change[origin, origin] -= moved
                change[origin, target] += moved * self.theta[target] / self.theta[origin]
        rows = np.unique([cell for one, other, _ in moves for cell in (one, other)]).astype(np.int64)
        before = self._profiles[rows] * (growth if self.strata == "apart" else 1 + growth)
        gain = information_of(before + change[rows]) - information_of(before)
        return (1 + growth) * self.information + self.known_strata * gain

    def _cells_of(self, swap: Swap) -> tuple[int, int] | None:
        """The cells of two positions; None where the context lacks one."""
        one, other = (np.flatnonzero(self.position == position) for position in swap)
        return (int(one[0]), int(other[0])) if len(one) and len(other) else None

    def _together(self, one: int, other: int, at: int) -> float:
        """Of the pages that show a position, the share that shows both."""
        return float(min(self.impressions[one], self.impressions[other]) / max(self.impressions[at], 1e-300))

    def _randomized(self, one: int, other: int, pages: float) -> Floats:
        """What swaps on so many pages add where strata are queries."""
        rate = self.clicks / np.maximum(self.impressions, 1e-300)
        shown = pages * min(self.impressions[one], self.impressions[other]) / max(self.pages, 1e-300)
        odds = self.theta[one] / self.theta[other]
        clicks = np.zeros((1, len(self.theta)))
        clicks[0, one] = shown * (rate[one] + rate[other] * odds) / 2
        clicks[0, other] = shown * (rate[other] + rate[one] / odds) / 2
        return information_of(clicks)


def information_of(expected: Floats) -> Floats:
    """F of the conditional likelihood, shape (K, K).

    Args:
        expected: clicks by stratum and cell, shape (S, K).
    """
    total = expected.sum(axis=1)
    root = np.divide(1.0, np.sqrt(total), out=np.zeros_like(total), where=total > 0)
    scaled = expected * root[:, np.newaxis]
    return np.asarray(np.diag(expected.sum(axis=0)) - scaled.T @ scaled)


def variances(information: Floats, reference: int) -> Floats:
    """Variance of each cell's log propensity relative to the reference, shape (K,): 0 there, infinite if not linked."""
    variance = np.full(len(information), np.inf)
    variance[reference] = 0.0
    others = np.flatnonzero(_linked(information, reference) & (np.arange(len(information)) != reference))
    if len(others):
        part = information[np.ix_(others, others)]
        scale = np.sqrt(np.diag(part))
        inverse = np.linalg.pinv(part / np.outer(scale, scale), hermitian=True)
        variance[others] = np.diag(inverse) / scale**2
    return variance


def _linked(information: Floats, reference: int) -> Flags:
    tails, heads = np.nonzero(-information > _LEAST_LINK)
    component = connected(tails.astype(np.int64), heads.astype(np.int64), len(information), both_ways=False)
    return component == component[reference]
