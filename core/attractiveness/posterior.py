"""Posterior mean and standard deviation of attractiveness, given the propensities.

Under a Beta(a, b) prior, a = s v, b = s (1 - v), a unit's gamma has the posterior density

    gamma^(a - 1) (1 - gamma)^(b - 1) prod_e (theta_e gamma)^c_e (1 - theta_e gamma)^(n_e - c_e),  0 < gamma < 1.

It is integrated by Gaussian quadrature in u, gamma = u^2, where the spread hardly depends on gamma, with the powers of
u and 1 - u that the prior brings at 0 and 1 in the rule's weight (Gauss-Jacobi; Gauss-Legendre for a = 1/2, b = 1).

* Units that know little share 64 nodes on [0, 1]: log(1 - theta_e gamma) is then a small table.
* Units that know much have a posterior narrower than the nodes' distance: each gets 32 nodes of its own around its
  mode. Everything is computed as a difference from the mode, which stays exact for any number of impressions.

Section 1's bound of theta gamma at 1 - 1e-6 is not needed here: no node has gamma = 1, and the bound would move a mean
by less than 1e-6.
"""

from collections.abc import Iterator

import numpy as np

from posbias.core.arrays.count_table import CountTable, Flags, Floats, Integers
from posbias.core.arrays.linalg import by_unit_and_cell, jacobi_rule
from posbias.core.priors import BetaPrior

SHARED_NODES = 64
OWN_NODES = 32

# Clicks plus theta-weighted impressions without a click: up to here 64 shared nodes are exact to 1e-9.
_KNOWS_LITTLE = 100.0
_BLOCK = 1_000_000  # numbers in one block of work: 8 MB, about what stays in a cache
_FIRST_REACH = 8.4  # of the nodes around the mode, in standard deviations
_DROP = 34.0  # of the log density, from the mode to where integration stops: e^-34 = 2e-15
_WIDENINGS = 400  # of the reach by a quarter; a dozen suffice unless the counts leave the range of numbers
_LARGEST_MODE = 1 - 1e-12  # so that 1 - mode keeps digits, however many clicks there are
_MODE_STEPS = 100  # Newton's steps: quadratic near the mode, and halving the way to it from far off


def posterior(table: CountTable, propensity: Floats, prior: BetaPrior) -> tuple[Floats, Floats]:
    """Posterior mean and standard deviation of gamma for each unit.

    Args:
        table: counts per unit (a pair or signature) and cell.
        propensity: theta, shape (K,), 0 < theta <= 1; NaN where not identified. Counts in such cells say nothing.
        prior: of gamma. Strength 0 means a flat prior, Beta(1, 1): the posterior is then the likelihood, its mode the
            maximum-likelihood estimate.

    Returns:
        Mean and standard deviation, each of shape (J,). Without any count they are the prior's.
    """
    known = np.isfinite(propensity)
    table, theta = table.only_cells(known), np.where(known, propensity, 0.0)
    a, b = (prior.pseudo_clicks, prior.pseudo_skips) if prior.strength > 0 else (1.0, 1.0)
    mean = np.full(table.n_units, a / (a + b))
    deviation = np.full(table.n_units, np.sqrt(a * b / (a + b + 1)) / (a + b))
    knowledge = table.sum_by_unit(table.clicks + (table.impressions - table.clicks) * theta.take(table.cell))
    shown = table.entries_of_unit > 0
    knows_little = knowledge + prior.strength <= _KNOWS_LITTLE
    little = np.flatnonzero(shown & knows_little)
    much = np.flatnonzero(shown & ~knows_little)
    for units in _blocks(np.full(len(little), SHARED_NODES), little):
        mean[units], deviation[units] = _on_shared_nodes(table.take(units), theta, a, b)
    for units in _blocks(table.entries_of_unit[much] * OWN_NODES, much):
        mean[units], deviation[units] = _Concentrated(table.take(units), theta, a, b).moments()
    return mean, deviation


def _blocks(size: Integers, units: Integers) -> Iterator[Integers]:
    """Split the units into runs of at most about a block's size in total."""
    run = np.cumsum(size) // _BLOCK
    yield from np.split(units, np.flatnonzero(np.diff(run)) + 1) if len(units) else ()


def _on_shared_nodes(table: CountTable, theta: Floats, a: float, b: float) -> tuple[Floats, Floats]:
    u, weight = jacobi_rule(SHARED_NODES, 2 * a - 1, b - 1)
    gamma = u**2
    skips = by_unit_and_cell(table, table.impressions - table.clicks)
    log_density = skips @ np.log1p(-np.outer(theta, gamma))
    log_density += np.outer(table.sum_by_unit(table.clicks), np.log(gamma))
    log_density -= log_density.max(axis=1, keepdims=True)
    np.exp(log_density, out=log_density)
    weight = weight * (1 + u) ** (b - 1)
    total, first, second = (log_density @ np.column_stack([weight, weight * gamma, weight * gamma**2])).T
    mean = first / total
    return mean, np.sqrt(np.maximum(second / total - mean**2, 0.0))


class _Concentrated:
    """Units whose posterior is narrow, integrated around the mode of its density on the logit scale.

    That density's logarithm, (a + C) log gamma + b log(1 - gamma) + sum (n - c) log(1 - theta gamma), is concave in
    gamma for every a, b > 0, so the mode is unique and inside (0, 1). Nodes are placed by their distance from the
    mode, d = u - u_mode; gamma - gamma_mode = d (2 u_mode + d).
    """

    def __init__(self, table: CountTable, theta: Floats, a: float, b: float) -> None:
        self.table = table
        self.a, self.b = a, b
        self.theta = theta[table.cell]
        self.skips = table.impressions - table.clicks
        self.clicks = table.sum_by_unit(table.clicks)
        self.mode = self._find_mode()
        self.u_mode = np.sqrt(self.mode)
        self.rate = self.theta / (1 - self.theta * table.spread(self.mode))

    def moments(self) -> tuple[Floats, Floats]:
        """Mean and standard deviation of gamma."""
        low, high, at_zero, at_one = self._range()
        mean, deviation = np.empty_like(self.mode), np.empty_like(self.mode)
        for left in (False, True):
            for right in (False, True):
                units = np.flatnonzero((at_zero == left) & (at_one == right))
                if len(units):
                    ends = low[units], high[units]
                    mean[units], deviation[units] = self._integrate(units, *ends, left=left, right=right)
        return mean, deviation

    def _find_mode(self) -> Floats:
        """The root of (a + C) - b gamma/(1 - gamma) - sum (n - c) theta gamma/(1 - theta gamma).

        That function is concave and falls, and the start is beyond the root: Newton's steps come down to it without
        passing it.
        """
        table, total = self.table, self.a + self.clicks
        mode = total / np.maximum(self.b + table.sum_by_unit(self.skips * self.theta), total + self.b)
        mode = np.minimum(mode, _LARGEST_MODE)
        for _ in range(_MODE_STEPS):
            rate = self.theta / (1 - self.theta * table.spread(mode))
            value = total - self.b * mode / (1 - mode) - mode * table.sum_by_unit(self.skips * rate)
            slope = self.b / (1 - mode) ** 2 + table.sum_by_unit(
                self.skips * rate / (1 - self.theta * table.spread(mode))
            )
            step = value / slope
            mode += np.minimum(step, 0.0)
            np.minimum(mode, _LARGEST_MODE, out=mode)
            if np.all(-step <= 1e-9 * mode * (1 - mode)):
                break
        return mode

    def _range(self) -> tuple[Floats, Floats, Flags, Flags]:
        """Distances from the mode where integration starts and ends, and whether that is at u = 0 and at u = 1."""
        own = (self.a + self.clicks) / self.mode**2 + self.b / (1 - self.mode) ** 2
        curvature = own + self.table.sum_by_unit(self.skips * self.rate**2)  # minus the second derivative by gamma
        unit = _FIRST_REACH / (2 * self.u_mode * np.sqrt(curvature))
        ends: list[tuple[Floats, Flags]] = []
        for sign, border in ((-1.0, self.u_mode), (1.0, (1 - self.mode) / (1 + self.u_mode))):
            reach = unit.copy()
            for _ in range(_WIDENINGS):
                inside = reach < border
                short = inside & (self._drop(sign * np.where(inside, reach, border / 2)) < _DROP)
                if not short.any():
                    break
                reach[short] *= 1.25
            ends.append((sign * np.minimum(reach, border), reach >= border))
        (low, at_zero), (high, at_one) = ends
        return low, high, at_zero, at_one

    def _drop(self, distance: Floats) -> Floats:
        """How far the log density has fallen at a distance from the mode, shape (U,)."""
        shift = distance * (2 * self.u_mode + distance)
        entries = self.table.sum_by_unit(self.skips * np.log1p(-self.rate * self.table.spread(shift)))
        ends = (self.a + self.clicks) * np.log1p(shift / self.mode) + self.b * np.log1p(-shift / (1 - self.mode))
        return -(entries + ends)

    def _integrate(
        self, units: Integers, low: Floats, high: Floats, *, left: bool, right: bool
    ) -> tuple[Floats, Floats]:
        """Mean and standard deviation over [low, high], which starts at u = 0 if left and ends at u = 1 if right."""
        a_weight, b_weight = (2 * self.a - 1) * left, (self.b - 1) * right
        node, weight = jacobi_rule(OWN_NODES, a_weight, b_weight)
        mode, u_mode = self.mode[units, np.newaxis], self.u_mode[units, np.newaxis]
        distance = low[:, np.newaxis] + np.outer(high - low, node)
        shift = distance * (2 * u_mode + distance)
        table = self.table.take(units)
        entries, _ = self.table.entries_of(units)
        change = np.repeat(shift, table.entries_of_unit, axis=0)
        change *= -self.rate[entries, np.newaxis]
        np.log1p(change, out=change)
        change *= self.skips[entries, np.newaxis]
        log_density = np.add.reduceat(change, table.start[:-1], axis=0)
        if left:  # from u = 0 on, near which 1 + shift / mode = (u / u_mode)^2 would be rounded to 0
            u = np.outer(high - low, node)
            log_density += self.clicks[units, np.newaxis] * 2 * np.log(u / u_mode)
        else:
            log_density += (self.clicks[units, np.newaxis] + self.a - 1 / 2) * np.log1p(shift / mode)
        if right:
            log_density += (self.b - 1) * np.log1p(u_mode + distance)
        else:
            log_density += (self.b - 1) * np.log1p(-shift / (1 - mode))
        log_density -= log_density.max(axis=1, keepdims=True)
        density = np.exp(log_density) * weight
        density /= density.sum(axis=1, keepdims=True)
        first = (density * shift).sum(axis=1)
        variance = (density * (shift - first[:, np.newaxis]) ** 2).sum(axis=1)
        return self.mode[units] + first, np.sqrt(variance)
