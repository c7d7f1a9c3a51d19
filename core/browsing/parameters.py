"""Parameters of a click model, by unit or shared, and the prior that is estimated from how often each was decided."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from posbias.core.arrays.linalg import digamma, log_beta, minimize_within
from posbias.core.browsing.batch import Floats, Integers
from posbias.core.priors import BetaPrior

_FINEST, _STEP = 0.05, 0.05
"""Units whose log(f + finest) and log(a + finest) are as near as a step stand for each other. Counts of some twenty are
still told apart, and each cell has the mean of its counts, so that the digamma function is off by a ten-thousandth; a
log gives some ten thousand cells at most, however large it is."""

_UNITS_AT_ONCE = 1 << 20
STRENGTHS = (0.05, 5000.0)
MEANS = (1e-4, 1 - 1e-4)
_SPREAD_OF_LOG_STRENGTH = 2.0


def estimate_prior(favourable: Floats, decided: Floats, multiplicity: Floats | None) -> BetaPrior:
    """The Beta prior by marginal likelihood. Neither the order of units nor how they are numbered changes it.

    Args:
        favourable: f, shape (J,).
        decided: d >= f, shape (J,).
        multiplicity: how many units each stands for, shape (J,); None: one.
    """
    times = np.broadcast_to(1.0, decided.shape) if multiplicity is None else multiplicity
    m, f, against = _cells(favourable, np.maximum(decided - favourable, 0.0), times)

    def loss_and_slope(at: Floats) -> tuple[float, Floats]:
        v, s = 1 / (1 + np.exp(-at[0])), np.exp(at[1])
        a, b = np.array([s * v]), np.array([s * (1 - v)])
        likelihood = m @ (log_beta(a + f, b + against) - log_beta(a, b))
        of_all = digamma(a + b + f + against) - digamma(a + b)
        by_a, by_b = m @ (digamma(a + f) - digamma(a) - of_all), m @ (digamma(b + against) - digamma(b) - of_all)
        by_logit = s * v * (1 - v) * (by_a - by_b) + 1 - 2 * v
        by_log_strength = s * v * by_a + s * (1 - v) * by_b - np.log(s / 2) / _SPREAD_OF_LOG_STRENGTH**2
        value = likelihood + np.log(v) + np.log(1 - v) - (np.log(s / 2) / _SPREAD_OF_LOG_STRENGTH) ** 2 / 2
        return -float(value) / scale, -np.array([by_logit, by_log_strength]) / scale

    scale = max(float(m.sum()), 1.0)
    rate = float(np.clip((m @ f + 0.5) / (m @ (f + against) + 1), *MEANS))
    means = np.array(MEANS)
    limits = np.array([np.log(means / (1 - means)), np.log(STRENGTHS)])
    found = minimize_within(loss_and_slope, np.array([np.log(rate / (1 - rate)), np.log(2.0)]), limits)
    return BetaPrior(float(1 / (1 + np.exp(-found[0]))), float(np.exp(found[1])))


def _cells(favourable: Floats, against: Floats, multiplicity: Floats) -> tuple[Floats, Floats, Floats]:
    """Units of about the same counts, shape (cells,) each: how many they are, and the means of their counts."""
    highest = int(_place(np.array([favourable.max(initial=0), against.max(initial=0)])).max())
    sums = np.zeros((3, (highest + 1) ** 2))
    for start in range(0, len(favourable), _UNITS_AT_ONCE):
        some = slice(start, start + _UNITS_AT_ONCE)
        f, a, m = favourable[some], against[some], multiplicity[some] * (favourable[some] + against[some] > 0)
        place = _place(f) * (highest + 1) + _place(a)
        sums += np.stack([np.bincount(place, of_unit, minlength=sums.shape[1]) for of_unit in (m, m * f, m * a)])
    units, f, a = sums[:, sums[0] > 0]
    return units, f / units, a / units


def _place(counts: Floats) -> Integers:
    return (np.log1p(counts / _FINEST) / _STEP).astype(np.int64)


Shape = Literal["unit", "one", "position", "position and previous click"]
"""What a parameter differs by: units, nothing, the position k (at index k), or k and the last click above (k, k')."""


@dataclass(frozen=True)
class Parameter:
    """One probability of a click model."""

    name: str  # in the paper's words: attractiveness, satisfaction, examination, continuation
    shape: Shape  # what it differs by
    start: float = 0.5  # where EM starts
    prior: BetaPrior | None = None  # of a parameter by unit that the log cannot tell unless others are given

    def dimensions(self, n_units: int, n_positions: int) -> tuple[int, ...]:
        """The shape of its array: (J + 1,), (), (K + 1,) or (K + 1, K + 1)."""
        by_position = n_positions + 1
        return {
            "unit": (n_units + 1,),
            "one": (),
            "position": (by_position,),
            "position and previous click": (by_position, by_position),
        }[self.shape]


Parameters = Mapping[str, Floats]
"""Values in [0, 1] by the name of a parameter. By unit, shape (J + 1,): the last is that of units never seen. By
position, shape (K + 1,), index k for position k; whoever asks for one below K gets that of K."""


@dataclass(frozen=True)
class Ratio:
    """What a batch says of one parameter: the expected number of times it was decided, and of those in its favour."""

    favourable: Floats  # shape (N, L)
    decided: Floats  # shape (N, L), >= favourable

    def times(self, weight: Floats) -> "Ratio":
        """Both as often as a weight says, shape (N, L)."""
        return Ratio(weight * self.favourable, weight * self.decided)


def at_position(values: Floats, position: Integers) -> Floats:
    """Values by position, shape (K + 1,), at positions of any shape; those beyond K get the value of K."""
    return values[np.minimum(position, len(values) - 1)]


def of_rows(ratio: Ratio, x: Floats) -> Ratio:
    """What each row adds to f and to f + a, which may be less than nothing.

    Args:
        ratio: f_i and d_i, shape (N, L).
        x: the parameter of each row, in (0, 1), likewise.
    """
    certain = np.floor(ratio.favourable)
    hidden = ratio.favourable - certain
    slope = hidden / x - (ratio.decided - ratio.favourable) / (1 - x)
    favourable = x**2 * slope * ((1 - x) * slope + 1) + certain
    against = (1 - x) ** 2 * slope * (x * slope - 1)
    return Ratio(favourable, favourable + against)


def of_units(sums: Ratio, x: Floats) -> Ratio:
    """The effective counts f and f + a.

    Args:
        sums: of `of_rows`, by unit.
        x: the parameter by unit.
    """
    f, a = sums.favourable, sums.decided - sums.favourable
    slope = f / x - a / (1 - x)
    favourable = np.where(f < 0, 0.0, np.where(a < 0, slope * x, f))
    against = np.where(a < 0, 0.0, np.where(f < 0, -slope * (1 - x), a))
    return Ratio(favourable, favourable + against)
