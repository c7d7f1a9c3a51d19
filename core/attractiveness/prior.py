"""A prior of attractiveness that depends on the position, estimated from the log (empirical Bayes).

The ranker puts better documents higher, so the position where a unit is shown says something about its gamma, and in
the middle, where good and bad ones meet, less than at the top:

    gamma_j ~ Beta(s_b v_b, s_b (1 - v_b)),  b = mean shown position of unit j, sum n k / sum n, rounded

Base strength s, base mean m, the strengths s_b and the means v_b are found together, as the maximum of

    sum_j m_j log p_j(s_b, v_b) - sum_b (log s_b - log s)^2 / 2 - sum_b (logit v_b - logit m)^2 / 2
        + log m + log(1 - m) - (log(s / 2) / 2)^2 / 2
    p_j(s, v) = integral of Beta(gamma; s v, s (1 - v)) prod_e (theta_e gamma)^c_e (1 - theta_e gamma)^(n_e - c_e)

The first term is the marginal likelihood. The others weigh as much as a handful of units: they pull positions with few
units towards s and m, and a log that says nothing towards mean 0.5 and strength 2. They also keep everything finite:
without a click the mean would otherwise run to 0, and with equal units the strength to infinity.

This prior is for gamma only. Theta never sees it: gamma and position are confounded, so that it would be biased.

Sources: Efron & Morris 1973, Morris 1983 (empirical Bayes); Griffiths 1973 (strength of a beta-binomial by likelihood).
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from posbias.core.arrays.count_table import CountTable, Floats, Integers, sum_rows
from posbias.core.arrays.linalg import beta_distribution, by_unit_and_cell, minimize_within
from posbias.core.arrays.threads import at_once
from posbias.core.attractiveness.posterior import posterior
from posbias.core.priors import BetaPrior

LARGEST_SAMPLE = 10_000
"""Units at most from which the prior is estimated: s is then known to a few percent, finer than predictions notice."""

LAST_POSITION = 20
"""Units shown further down share the mean of this position."""

STRENGTHS = (0.1, 1000.0)
"""Range of s and s_b, in impressions: from gamma nearly all 0 or 1, to gamma equal to within 0.02."""

MEANS = (1e-4, 1 - 1e-4)
"""Range of m and v_b."""

_BINS = 256  # of gamma, equally wide in arcsin(sqrt(gamma)), where the spread hardly depends on gamma
_STEP = 1e-4  # of log s and logit v in central differences, which are then exact to 1e-8
_SPREAD_OF_LOG_STRENGTH = 2.0
_FIRST_GUESS = BetaPrior(0.5, 2.0)
_FLOOR = 1e-12  # of the mass of a bin, far above its rounding: an outlier costs at most a factor of that


@dataclass(frozen=True)
class AttractivenessPrior:
    """Beta priors, their strength and mean by position.

    Attributes:
        strength: s >= 0, in impressions, of all units together; of each where there are no strengths by position. 0
            means a flat prior, whatever the mean.
    """

    strength: float
    mean: float  # 0 < v < 1, of all units together; of each where there are no means by position
    positions: tuple[int, ...] = ()  # b, ascending, 1-based
    means: tuple[float, ...] = ()  # v_b, 0 < v_b < 1, one for each of the positions
    strengths: tuple[float, ...] = ()  # s_b > 0, likewise; empty where the strength is the same at all positions

    @classmethod
    def from_beta(cls, prior: BetaPrior) -> "AttractivenessPrior":
        """The same prior at every position."""
        return cls(prior.strength, prior.mean)

    def mean_at(self, position: Integers) -> Floats:
        """The mean at each position, same shape: linear between known positions, constant beyond the outer ones."""
        if not self.positions:
            return np.full(len(position), self.mean)
        return np.interp(position, self.positions, self.means)

    def strength_at(self, position: Integers) -> Floats:
        """The strength at each position, same shape; between and beyond known positions as for the mean."""
        if not self.strengths:
            return np.full(len(position), self.strength)
        return np.interp(position, self.positions, self.strengths)


def shown_position(table: CountTable, position_of_cell: Integers) -> Integers:
    """Rounded mean position where each unit was shown, sum n k / sum n, shape (J,).

    Args:
        table: counts per unit and cell; every cell counts, with a propensity or not.
        position_of_cell: k, shape (K,), 1-based.
    """
    shown = table.sum_by_unit(table.impressions)
    total = table.sum_by_unit(table.impressions * position_of_cell[table.cell])
    mean = np.divide(total, shown, out=np.ones_like(total), where=shown > 0)
    return np.floor(mean + 0.5).astype(np.int64)


def posterior_by_position(
    table: CountTable, propensity: Floats, prior: AttractivenessPrior, position_of_cell: Integers
) -> tuple[Floats, Floats]:
    """Posterior mean and standard deviation of gamma for each unit, under the prior of its position.

    Args:
        table: counts per unit (a pair or signature) and cell.
        propensity: theta, shape (K,), 0 < theta <= 1; NaN where not identified. Counts in such cells say nothing
            about gamma, but where they were counted still chooses the prior.
        prior: of gamma.
        position_of_cell: shape (K,), 1-based.

    Returns:
        Mean and standard deviation, each of shape (J,). Without a count in an identified cell they are the prior's.
    """
    mean, deviation = np.empty(table.n_units), np.empty(table.n_units)

    def work(part: tuple[slice, CountTable]) -> None:
        units, block = part
        ends = (prior.positions[0], prior.positions[-1]) if prior.positions else (0, 0)  # beyond them nothing changes
        positions, group = np.unique(np.clip(shown_position(block, position_of_cell), *ends), return_inverse=True)
        means, strengths = prior.mean_at(positions).tolist(), prior.strength_at(positions).tolist()
        for number in range(len(positions)):
            those = np.flatnonzero(group == number)
            beta = BetaPrior(means[number], strengths[number])
            mean[units][those], deviation[units][those] = posterior(block.take(those), propensity, beta)

    for _ in at_once(work, table.blocks()):
        pass
    return mean, deviation


def estimate_prior(table: CountTable, propensity: Floats, position_of_cell: Integers) -> AttractivenessPrior:
    """The prior that maximises the objective above, on at most `LARGEST_SAMPLE` units.

    Args:
        table: counts per unit (a pair or signature) and cell.
        propensity: theta, shape (K,), 0 < theta <= 1; NaN where not identified.
        position_of_cell: shape (K,), 1-based.

    Returns:
        A prior with strengths in `STRENGTHS`, means in `MEANS`, and one of each for each rounded shown position, up to
        `LAST_POSITION`, of the units that have a count in an identified cell.
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
    """Every so many-th of all copies of all units, up to `largest`: which units, and how many of them each.

    Signatures are in the order of a hash of their counts, so that equal distances meet no pattern.
    """
    before = np.cumsum(multiplicity)
    if not len(before) or before[-1] <= largest:
        units = np.flatnonzero(multiplicity)
        return units, multiplicity[units]
    ticks: Floats = (np.arange(largest) + 0.5) * (before[-1] / largest)
    units, copies = np.unique(np.searchsorted(before, ticks), return_counts=True)
    return units, copies.astype(np.float64)


class _Objective:
    """The objective per unit, and its slope, in x = (log s, logit m, logit v_1 .. logit v_B, log s_1 .. log s_B).

    Gamma is discrete here: p_j = sum_i L_ji P(gamma in bin i), with the likelihood L in the middle of each bin. Bins
    are narrower than any prior in range, and a likelihood that is narrower still says "in this bin", all that the
    prior needs; each unit's largest L is 1, a factor that does not depend on the prior.
    """

    def __init__(self, table: CountTable, theta: Floats, copies: Floats, position: Integers) -> None:
        """Take units with their copies, sorted by position."""
        self.copies = copies
        self.positions, first = np.unique(position, return_index=True)
        self.rows = [slice(*ends) for ends in pairwise([*first.tolist(), len(position)])]
        self.likelihood = _likelihood(table, theta)
        self.start = self._start(table, theta)
        self.edges = np.sin(np.linspace(0, np.pi / 2, _BINS + 1)) ** 2

    def maximize(self) -> AttractivenessPrior:
        """Climb from the moments."""
        n_groups = len(self.positions)
        of_strength, of_mean = np.log(STRENGTHS), _logit(np.array(MEANS))
        limits = np.array([of_strength, *[of_mean] * (1 + n_groups), *[of_strength] * n_groups])
        found = minimize_within(self.loss_and_slope, self.start, limits)
        center, *means = (1 / (1 + np.exp(-found[1 : 2 + n_groups]))).tolist()
        base, *log_strengths = found[[0, *range(2 + n_groups, len(found))]].tolist()
        copies = [float(self.copies[rows].sum()) for rows in self.rows]
        return AttractivenessPrior(
            strength=float(np.exp(np.average(log_strengths, weights=copies) if means else base)),
            mean=float(np.average(means, weights=copies)) if means else center,
            positions=tuple(self.positions.tolist()),
            means=tuple(means),
            strengths=tuple(np.exp(log_strengths).tolist()),
        )

    def loss_and_slope(self, x: Floats) -> tuple[float, Floats]:
        """Minus the objective divided by the number of units, and its slope, shape (2 + 2 B,)."""
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
        priors = self._bin_masses(strength_of_group, of_group)
        for number, (rows, prior) in enumerate(zip(self.rows, priors, strict=True)):
            mass, by_strength, by_mean = (self.likelihood[rows] @ prior).T
            copies = self.copies[rows]
            value += copies @ np.log(mass)
            slope[2 + number] += copies @ (by_mean / mass)
            slope[2 + n_groups + number] += copies @ (by_strength / mass)
        total = max(float(self.copies.sum()), 1.0)
        return -float(value) / total, -slope / total

    def _bin_masses(self, log_strengths: Floats, logit_means: Floats) -> Floats:
        """Each group's prior in the bins and its slopes by log s_b and logit v_b, shape (B, bins, 3)."""
        change = _STEP * np.array([[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1]])
        strength = np.exp(log_strengths[:, np.newaxis] + change[:, 0])
        mean = 1 / (1 + np.exp(-(logit_means[:, np.newaxis] + change[:, 1])))
        a, b = (strength * mean)[..., np.newaxis], (strength * (1 - mean))[..., np.newaxis]
        mass = np.diff(beta_distribution(a, b, self.edges), axis=-1)
        by_strength, by_mean = (mass[:, 1::2] - mass[:, 2::2]).swapaxes(0, 1) / (2 * _STEP)
        return np.stack([mass[:, 0] + _FLOOR, by_strength, by_mean], axis=-1)

    def _start(self, table: CountTable, theta: Floats) -> Floats:
        """Clicks by expected clicks, overall and by position, the first guess worth two impressions."""
        clicks, examined = (
            np.array([(self.copies * per_unit)[rows].sum() for rows in (slice(None), *self.rows)])
            for per_unit in (table.sum_by_unit(table.clicks), table.sum_by_unit(table.impressions * theta[table.cell]))
        )
        means = (_FIRST_GUESS.pseudo_clicks + clicks) / (_FIRST_GUESS.strength + np.maximum(examined, clicks))
        strengths = np.full(len(means), np.log(_FIRST_GUESS.strength))
        return np.concatenate([strengths[:1], _logit(np.clip(means, *MEANS)), strengths[1:]])


def _likelihood(table: CountTable, theta: Floats) -> Floats:
    """Likelihood of each unit in the middle of each bin, relative to its largest, shape (U, bins)."""
    gamma = np.sin((np.arange(_BINS) + 0.5) * (np.pi / 2 / _BINS)) ** 2
    likelihood = by_unit_and_cell(table, table.impressions - table.clicks) @ np.log1p(-np.outer(theta, gamma))
    likelihood += np.outer(table.sum_by_unit(table.clicks), np.log(gamma))
    likelihood -= likelihood.max(axis=1, keepdims=True)
    return np.exp(likelihood, out=likelihood)


def _logit(probability: Floats) -> Floats:
    return np.log(probability) - np.log1p(-probability)
