"""Attractiveness gamma of (query, document) pairs given theta: empirical prior, posterior mean and standard deviation.

Under a Beta(a, b) prior, a = s v, b = s (1 - v), a unit's gamma has the posterior density

    gamma^(a - 1) (1 - gamma)^(b - 1) prod_e (theta_e gamma)^c_e (1 - theta_e gamma)^(n_e - c_e),  0 < gamma < 1.

`posterior` integrates it by Gaussian quadrature in u, gamma = u^2, where the spread hardly depends on gamma. The powers
of u and 1 - u from the prior are in the weight of the rule (Gauss-Jacobi; Gauss-Legendre for a = 1/2, b = 1).

* Units with few counts share 64 nodes on [0, 1], so that log(1 - theta_e gamma) is a small table.
* Units with many counts have a posterior narrower than the distance of these nodes: each gets 32 nodes of its own
  around its mode. The log density is computed relative to the mode, which is exact for any number of impressions.

theta gamma is not bounded below 1 as in joint EM: no node has gamma = 1.

`total_std_dev` adds the errors of theta. With posterior mean m and standard deviation sd given theta, and covariance V
of log theta,

    sd_total^2 = sd^2 + g' V g
    g_e = d m / d log theta_e = -(n_e - c_e) theta_e / (1 - theta_e m)^2 sd^2

`estimate_prior` maximises the marginal likelihood of a prior by position. Rankers put better documents higher, so that
the position of a unit is informative about its gamma, less so in the middle, where good and bad documents meet:

    gamma_j ~ Beta(s_b v_b, s_b (1 - v_b)),  b = mean shown position of unit j, sum n k / sum n, rounded

    sum_j m_j log p_j(s_b, v_b) - sum_b (log s_b - log s)^2 / 2 - sum_b (logit v_b - logit m)^2 / 2
        + log m + log(1 - m) - (log(s / 2) / 2)^2 / 2
    p_j(s, v) = integral of Beta(gamma; s v, s (1 - v)) prod_e (theta_e gamma)^c_e (1 - theta_e gamma)^(n_e - c_e)

The first term is the log marginal likelihood. The others weigh as much as a handful of units: they shrink positions of
few units towards s and m, and s and m themselves towards strength 2 and mean 0.5. They also keep the maximum finite:
otherwise the mean would be 0 without a click, and the strength infinite with equal units.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, product

import numpy as np
import scipy

from posbias.core.arrays.count_table import CountTable, Flags, Floats, Integers, sum_rows
from posbias.core.arrays.linalg import by_unit_and_cell
from posbias.core.arrays.optimize import Derivatives, minimize_within
from posbias.core.arrays.threads import thread_map
from posbias.core.choices import BetaPrior

SHARED_NODES = 64
OWN_NODES = 32

# Clicks plus theta-weighted impressions without a click up to which 64 shared nodes are exact to 1e-9
_KNOWS_LITTLE = 100.0
_BLOCK = 1_000_000  # numbers in a block of work: 8 MB, which roughly stay in the cache
_FIRST_REACH = 8.4  # first half-width of the interval of integration, in standard deviations
_DROP = 34.0  # of the log density, from the mode to the ends of that interval: e^-34 = 2e-15
_WIDENINGS = 400  # of the half-width by a quarter at most; a dozen suffice unless counts are extreme
_LARGEST_MODE = 1 - 1e-12  # so that 1 - mode has digits, however many clicks there are
_MODE_STEPS = 100  # Newton steps at most: each halves the distance to the mode at least


def posterior(table: CountTable, propensity: Floats, prior: BetaPrior) -> tuple[Floats, Floats]:
    """Compute the posterior mean and standard deviation of gamma for each unit.

    Args:
        table: counts per unit (a pair or signature) and cell.
        propensity: theta, shape (K,), 0 < theta <= 1; NaN where not identified: counts in such cells are ignored.
        prior: of gamma. Strength 0 means a flat prior, Beta(1, 1): the posterior is then the normalised likelihood.

    Returns:
        Mean and standard deviation, each of shape (J,); those of the prior for units without counts.
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
        u, weight = _jacobi_rule(SHARED_NODES, 2 * a - 1, b - 1)
        gamma, weight = u**2, weight * (1 + u) ** (b - 1)
        moments = np.column_stack([weight, weight * gamma, weight * gamma**2])
        total, first, second = (_likelihood(table.take(units), theta, gamma) @ moments).T
        mean[units] = first / total
        deviation[units] = np.sqrt(np.maximum(second / total - mean[units] ** 2, 0.0))
    for units in _blocks(table.entries_of_unit[much] * OWN_NODES, much):
        mean[units], deviation[units] = _concentrated(table.take(units), theta, a, b)
    return mean, deviation


def _blocks(size: Integers, units: Integers) -> Iterator[Integers]:
    """Split the units into runs of at most about a block's size in total."""
    run = np.cumsum(size) // _BLOCK
    yield from np.split(units, np.flatnonzero(np.diff(run)) + 1) if len(units) else ()


@lru_cache(maxsize=256)
def _jacobi_rule(n_nodes: int, at_zero: float, at_one: float) -> tuple[Floats, Floats]:
    """Gauss-Jacobi rule on [0, 1] for the weight t^at_zero (1 - t)^at_one, both exponents above -1.

    Returns:
        Nodes and weights, each of shape (n_nodes,), which cannot be written to. Exponents 0 and 0 give the
        Gauss-Legendre rule.
    """
    nodes, weights = scipy.special.roots_jacobi(n_nodes, at_one, at_zero)
    rule = (nodes + 1) / 2, weights / 2 ** (at_zero + at_one + 1)
    for values in rule:
        values.setflags(write=False)
    return rule


def posterior_modes(table: CountTable, theta: Floats, a: float, b: float) -> Floats:
    """Return gamma at the mode of each unit's posterior density on the logit scale, shape (J,).

    It is the root of (a + C) - b gamma/(1 - gamma) - sum (n - c) theta gamma/(1 - theta gamma), a concave and
    decreasing function: from a start above the root, Newton's method decreases to the root without passing it.
    """
    theta_there, skips, total = theta[table.cell], table.impressions - table.clicks, a + table.sum_by_unit(table.clicks)
    mode = total / np.maximum(b + table.sum_by_unit(skips * theta_there), total + b)
    mode = np.minimum(mode, _LARGEST_MODE)
    for _ in range(_MODE_STEPS):
        unseen = 1 - theta_there * table.spread(mode)
        rate = theta_there / unseen
        value = total - b * mode / (1 - mode) - mode * table.sum_by_unit(skips * rate)
        step = value / (b / (1 - mode) ** 2 + table.sum_by_unit(skips * rate / unseen))
        mode += np.minimum(step, 0.0)
        np.minimum(mode, _LARGEST_MODE, out=mode)
        if np.all(-step <= 1e-9 * mode * (1 - mode)):
            break
    return mode


def _concentrated(table: CountTable, theta: Floats, a: float, b: float) -> tuple[Floats, Floats]:
    """Compute mean and standard deviation for units with a narrow posterior, by integration around its mode.

    That density's logarithm, (a + C) log gamma + b log(1 - gamma) + sum (n - c) log(1 - theta gamma), is concave in
    gamma for every a, b > 0, so the mode is unique and inside (0, 1). Nodes are placed by their distance from the
    mode, d = u - u_mode; gamma - gamma_mode = d (2 u_mode + d).
    """
    modes, theta_there = posterior_modes(table, theta, a, b), theta[table.cell]
    u_modes, skips, clicks = np.sqrt(modes), table.impressions - table.clicks, table.sum_by_unit(table.clicks)
    rate = theta_there / (1 - theta_there * table.spread(modes))
    own = (a + clicks) / modes**2 + b / (1 - modes) ** 2
    curvature = own + table.sum_by_unit(skips * rate**2)  # minus the second derivative by gamma

    def drop(distance: Floats) -> Floats:
        """Return the decrease of the log density from the mode to a distance from it, shape (U,)."""
        shift = distance * (2 * u_modes + distance)
        entries = table.sum_by_unit(skips * np.log1p(-rate * table.spread(shift)))
        return -(entries + (a + clicks) * np.log1p(shift / modes) + b * np.log1p(-shift / (1 - modes)))

    # Distances from the mode where integration starts and ends, and whether that is at u = 0 and at u = 1
    ends: list[tuple[Floats, Flags]] = []
    for sign, border in ((-1.0, u_modes), (1.0, (1 - modes) / (1 + u_modes))):
        reach = _FIRST_REACH / (2 * u_modes * np.sqrt(curvature))
        for _ in range(_WIDENINGS):
            inside = reach < border
            short = inside & (drop(sign * np.where(inside, reach, border / 2)) < _DROP)
            if not short.any():
                break
            reach[short] *= 1.25
        ends.append((sign * np.minimum(reach, border), reach >= border))
    (lowest, at_zero), (highest, at_one) = ends
    mean, deviation = np.empty_like(modes), np.empty_like(modes)
    for left, right in product((False, True), repeat=2):  # from u = 0 if left, to u = 1 if right
        units = np.flatnonzero((at_zero == left) & (at_one == right))
        if not len(units):
            continue
        node, weight = _jacobi_rule(OWN_NODES, (2 * a - 1) * left, (b - 1) * right)
        mode, u_mode, clicked = (of[units, np.newaxis] for of in (modes, u_modes, clicks))
        low, span = lowest[units], np.outer(highest[units] - lowest[units], node)
        distance = low[:, np.newaxis] + span
        shift = distance * (2 * u_mode + distance)
        entries, start = table.entry_indices(units)
        change = np.repeat(shift, np.diff(start), axis=0)
        change *= -rate[entries, np.newaxis]
        np.log1p(change, out=change)
        change *= skips[entries, np.newaxis]
        log_density = np.add.reduceat(change, start[:-1], axis=0)
        if left:  # near u = 0, 1 + shift / mode = (u / u_mode)^2 would be rounded to 0
            log_density += clicked * 2 * np.log(span / u_mode)
        else:
            log_density += (clicked + a - 1 / 2) * np.log1p(shift / mode)
        log_density += (b - 1) * np.log1p(u_mode + distance if right else -shift / (1 - mode))
        log_density -= log_density.max(axis=1, keepdims=True)
        density = np.exp(log_density) * weight
        density /= density.sum(axis=1, keepdims=True)
        first = (density * shift).sum(axis=1)
        variance = (density * (shift - first[:, np.newaxis]) ** 2).sum(axis=1)
        mean[units], deviation[units] = modes[units] + first, np.sqrt(variance)
    return mean, deviation


_BLOCK_OF_VARIANCES = 4_000_000  # numbers in one dense block of work, 32 MB


def total_std_dev(table: CountTable, examination: Floats, covariance: Floats, mean: Floats, std_dev: Floats) -> Floats:
    """Return the standard deviation of gamma including the errors of theta, shape (J,).

    Args:
        table: counts per unit and cell.
        examination: theta, shape (K,); NaN where not identified.
        covariance: V, shape (K, K).
        mean: of gamma given theta, shape (J,).
        std_dev: of gamma given theta, shape (J,).
    """
    known = np.isfinite(examination)
    total = np.empty_like(std_dev)
    theta = np.where(known, examination, 0.0)

    def add(part: tuple[slice, CountTable]) -> None:
        units, block = part
        of_entry = theta[block.cell]
        slope = -(block.impressions - block.clicks) * of_entry / (1 - of_entry * block.spread(mean[units])) ** 2
        slope *= block.spread(std_dev[units] ** 2)
        rows, moved = by_unit_and_cell(block, slope), np.empty_like(slope)
        height = max(1, _BLOCK_OF_VARIANCES // block.n_cells)
        for first in range(0, block.n_units, height):
            last = min(first + height, block.n_units)
            entries = slice(*block.start[[first, last]].tolist())
            of_units = rows[first:last] @ covariance
            moved[entries] = of_units[block.unit_of_entry[entries] - first, block.cell[entries]]
        total[units] = np.sqrt(std_dev[units] ** 2 + block.sum_by_unit(slope * moved))

    for _ in thread_map(add, table.blocks()):
        pass
    return total


LARGEST_SAMPLE = 10_000
"""Most units from which the prior is estimated: the error of s is then a few percent, which hardly matters."""

LAST_POSITION = 20
"""Units shown further down have the prior of this position."""

STRENGTHS = (0.1, 1000.0)
"""Range of s and s_b, in impressions: from gamma nearly all 0 or 1, to gamma equal to within 0.02."""

MEANS = (1e-4, 1 - 1e-4)
"""Range of m and v_b."""

_BINS = 256  # of gamma, equally wide in arcsin(sqrt(gamma)), where the spread hardly depends on gamma
_STEP = 1e-4  # of log s and logit v in central differences, which are then exact to 1e-8
_MOVES = _STEP * np.array([[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1], [1, 1], [-1, -1]])
_SPREAD_OF_LOG_STRENGTH = 2.0
_FIRST_GUESS = BetaPrior(0.5, 2.0)
_ROUNDING_OF_MEAN = 1e-9  # of a mean position: means of weighted counts that should be k + 1/2 may be slightly below
_FLOOR = 1e-12  # added to the mass of a bin, far above its rounding error: bounds the effect of an outlier


@dataclass(frozen=True)
class AttractivenessPrior:
    """Beta priors with strength and mean by position.

    Attributes:
        strength: s >= 0, in impressions, averaged over all units; used for all positions without `strengths`. 0 means
            a flat prior, whatever the mean.
    """

    strength: float
    mean: float  # 0 < v < 1, averaged over all units; used for all positions without `means`
    positions: tuple[int, ...] = ()  # b, ascending, 1-based
    means: tuple[float, ...] = ()  # v_b, 0 < v_b < 1, one per position
    strengths: tuple[float, ...] = ()  # s_b > 0, one per position; empty if all are `strength`

    def at(self, position: Integers) -> tuple[Floats, Floats]:
        """Return mean and strength at each position: linear between known positions, constant outside them."""
        places, given = self.positions or (1,), ((self.means, self.mean), (self.strengths, self.strength))
        mean, strength = (np.interp(position, places, known or (of_all,) * len(places)) for known, of_all in given)
        return mean, strength


def shown_position(table: CountTable, position_of_cell: Integers) -> Integers:
    """Return the mean position of each unit, sum n k / sum n, rounded half up, shape (J,); 1 without impressions.

    Args:
        table: counts per unit and cell, with or without a propensity.
        position_of_cell: k, shape (K,), 1-based.
    """
    shown = table.sum_by_unit(table.impressions)
    total = table.sum_by_unit(table.impressions * position_of_cell[table.cell])
    mean = np.divide(total, shown, out=np.ones_like(total), where=shown > 0)
    return np.floor(mean + (0.5 + _ROUNDING_OF_MEAN)).astype(np.int64)


def posterior_by_position(
    table: CountTable, propensity: Floats, prior: AttractivenessPrior, position_of_cell: Integers
) -> tuple[Floats, Floats]:
    """Compute the posterior mean and standard deviation of gamma for each unit, under the prior of its position.

    Args:
        table: counts per unit (a pair or signature) and cell.
        propensity: theta, shape (K,), 0 < theta <= 1; NaN where not identified. Counts in such cells enter the mean
            position of a unit only.
        prior: of gamma.
        position_of_cell: shape (K,), 1-based.

    Returns:
        Mean and standard deviation, each of shape (J,); those of the prior for units without counts in identified
        cells.
    """
    mean, deviation = np.empty(table.n_units), np.empty(table.n_units)

    def work(part: tuple[slice, CountTable]) -> None:
        units, block = part
        ends = (prior.positions[0], prior.positions[-1]) if prior.positions else (0, 0)  # beyond them nothing changes
        positions, group = np.unique(np.clip(shown_position(block, position_of_cell), *ends), return_inverse=True)
        means, strengths = (values.tolist() for values in prior.at(positions))
        for number in range(len(positions)):
            members = np.flatnonzero(group == number)
            beta = BetaPrior(means[number], strengths[number])
            mean[units][members], deviation[units][members] = posterior(block.take(members), propensity, beta)

    for _ in thread_map(work, table.blocks()):
        pass
    return mean, deviation


def estimate_prior(table: CountTable, propensity: Floats, position_of_cell: Integers) -> AttractivenessPrior:
    """Estimate the prior by maximising the objective (see the top of this module) on at most `LARGEST_SAMPLE` units.

    Args:
        table: counts per unit (a pair or signature) and cell.
        propensity: theta, shape (K,), 0 < theta <= 1; NaN where not identified.
        position_of_cell: shape (K,), 1-based.

    Returns:
        Strengths in `STRENGTHS` and means in `MEANS` for each rounded mean position, up to `LAST_POSITION`, of units
        with counts in identified cells.
    """
    known = np.isfinite(propensity)
    shown = [sum_rows(known.take(block.cell).astype(np.int64), block.start) for _, block in table.blocks()]
    multiplicity = np.where(np.concatenate([np.empty(0), *shown]) > 0, table.multiplicity, 0.0)
    units, copies = sample_units(multiplicity, LARGEST_SAMPLE)
    sample = table.take(units)
    position = np.minimum(shown_position(sample, position_of_cell), LAST_POSITION)
    order = np.argsort(position, kind="stable")
    inside, theta = sample.take(order).only_cells(known), np.where(known, propensity, 0.0)
    return _Objective(inside, theta, copies[order], position[order]).maximize()


def sample_units(multiplicity: Floats, largest: int) -> tuple[Integers, Floats]:
    """Draw a systematic sample of at most `largest` copies of units.

    Signatures are sorted by a hash of their counts, so that equal distances meet no pattern.

    Returns:
        The numbers of the drawn units, and the number of copies of each.
    """
    before = np.cumsum(multiplicity)
    if not len(before) or before[-1] <= largest:
        units = np.flatnonzero(multiplicity)
        return units, multiplicity[units]
    ticks: Floats = (np.arange(largest) + 0.5) * (before[-1] / largest)
    units, copies = np.unique(np.searchsorted(before, ticks), return_counts=True)
    return units, copies.astype(np.float64)


class _Objective:
    """Objective per unit and its derivatives, in x = (log s, logit m, logit v_1 .. logit v_B, log s_1 .. log s_B).

    Gamma is discretised: p_j = sum_i L_ji P(gamma in bin i), with the likelihood L at the middle of each bin. Bins are
    narrower than any prior in range; a narrower likelihood still identifies its bin, which suffices here. Each unit's
    L is scaled to a maximum of 1, a factor that does not depend on the prior.
    """

    def __init__(self, table: CountTable, theta: Floats, copies: Floats, position: Integers) -> None:
        """Prepare the likelihoods of units, which are sorted by position, and a starting point."""
        self.copies = copies
        self.positions, first = np.unique(position, return_index=True)
        self.rows = [slice(*ends) for ends in pairwise([*first.tolist(), len(position)])]
        middle = np.sin((np.arange(_BINS) + 0.5) * (np.pi / 2 / _BINS)) ** 2
        self.likelihood = _likelihood(table, theta, middle)
        self.edges = np.sin(np.linspace(0, np.pi / 2, _BINS + 1)) ** 2
        # Start from clicks over expected clicks, overall and by position, shrunk to the first guess
        clicks, examined = (
            np.array([(copies * per_unit)[rows].sum() for rows in (slice(None), *self.rows)])
            for per_unit in (table.sum_by_unit(table.clicks), table.sum_by_unit(table.impressions * theta[table.cell]))
        )
        means = (_FIRST_GUESS.pseudo_clicks + clicks) / (_FIRST_GUESS.strength + np.maximum(examined, clicks))
        strengths = np.full(len(means), np.log(_FIRST_GUESS.strength))
        self.start = np.concatenate([strengths[:1], _logit(np.clip(means, *MEANS)), strengths[1:]])

    def maximize(self) -> AttractivenessPrior:
        """Maximise the objective from the starting point."""
        n_groups = len(self.positions)
        of_strength, of_mean = np.log(STRENGTHS), _logit(np.array(MEANS))
        limits = np.array([of_strength, *[of_mean] * (1 + n_groups), *[of_strength] * n_groups])
        optimum = minimize_within(self.derivatives, self.start, limits)
        center, *means = (1 / (1 + np.exp(-optimum[1 : 2 + n_groups]))).tolist()
        base, *log_strengths = optimum[[0, *range(2 + n_groups, len(optimum))]].tolist()
        copies = [float(self.copies[rows].sum()) for rows in self.rows]
        return AttractivenessPrior(
            strength=float(np.exp(np.average(log_strengths, weights=copies) if means else base)),
            mean=float(np.average(means, weights=copies)) if means else center,
            positions=tuple(self.positions.tolist()),
            means=tuple(means),
            strengths=tuple(np.exp(log_strengths).tolist()),
        )

    def derivatives(self, x: Floats) -> Derivatives:
        """Return minus the objective per unit, its gradient and its Hessian."""
        base_strength, base, of_group = x[0], x[1], x[2:]
        of_group, strength_of_group = np.split(of_group, 2)
        deviation, strength_deviation = of_group - base, strength_of_group - base_strength
        mean = 1 / (1 + np.exp(-base))
        far = (base_strength - np.log(_FIRST_GUESS.strength)) / _SPREAD_OF_LOG_STRENGTH
        value = np.log(mean) + np.log1p(-mean) - far**2 / 2
        value -= (deviation @ deviation + strength_deviation @ strength_deviation) / 2
        slope_of_base = [-far / _SPREAD_OF_LOG_STRENGTH + strength_deviation.sum(), 1 - 2 * mean + deviation.sum()]
        slope = np.concatenate([slope_of_base, -deviation, -strength_deviation])
        n_groups = len(of_group)
        bend = -np.eye(len(x))
        bend[0, 0] = -1 / _SPREAD_OF_LOG_STRENGTH**2 - n_groups
        bend[1, 1] = -2 * mean * (1 - mean) - n_groups
        bend[1, 2 : 2 + n_groups] = bend[2 : 2 + n_groups, 1] = 1
        bend[0, 2 + n_groups :] = bend[2 + n_groups :, 0] = 1
        for number, (rows, prior) in enumerate(
            zip(self.rows, self._bin_masses(strength_of_group, of_group), strict=True)
        ):
            mass, *slopes, by_strength_twice, by_both, by_mean_twice = (self.likelihood[rows] @ prior).T
            copies, own = self.copies[rows], [2 + n_groups + number, 2 + number]
            value += copies @ np.log(mass)
            scores = np.array(slopes) / mass
            slope[own] += scores @ copies
            twice = copies @ (np.array([by_strength_twice, by_both, by_both, by_mean_twice]) / mass).T
            bend[np.ix_(own, own)] += twice.reshape(2, 2) - (scores * copies) @ scores.T
        total = max(float(self.copies.sum()), 1.0)
        return -float(value) / total, -slope / total, -bend / total

    def _bin_masses(self, log_strengths: Floats, logit_means: Floats) -> Floats:
        """Return each position's prior mass in the bins, and its derivatives by log s_b and logit v_b.

        Returns:
            Mass, first derivatives (s, v) and second derivatives (ss, sv, vv), shape (B, bins, 6).
        """
        strength = np.exp(log_strengths[:, np.newaxis] + _MOVES[:, 0])
        mean = 1 / (1 + np.exp(-(logit_means[:, np.newaxis] + _MOVES[:, 1])))
        a, b = (strength * mean)[..., np.newaxis], (strength * (1 - mean))[..., np.newaxis]
        mass = np.diff(scipy.special.betainc(a, b, self.edges), axis=-1)
        here, up, down, right, left, both, neither = mass.swapaxes(0, 1)
        second = [up + down - 2 * here, (both + neither - up - down - right - left) / 2 + here, right + left - 2 * here]
        slopes = [(up - down) / (2 * _STEP), (right - left) / (2 * _STEP)]
        return np.stack([here + _FLOOR, *slopes, *(np.array(second) / _STEP**2)], axis=-1)


def _likelihood(table: CountTable, theta: Floats, gamma: Floats) -> Floats:
    """Return the likelihood of each unit at each gamma, relative to its maximum, shape (U, len(gamma))."""
    likelihood = by_unit_and_cell(table, table.impressions - table.clicks) @ np.log1p(-np.outer(theta, gamma))
    likelihood += np.outer(table.sum_by_unit(table.clicks), np.log(gamma))
    likelihood -= likelihood.max(axis=1, keepdims=True)
    return np.exp(likelihood, out=likelihood)


def _logit(probability: Floats) -> Floats:
    return np.log(probability) - np.log1p(-probability)
