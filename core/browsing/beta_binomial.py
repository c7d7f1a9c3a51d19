"""The prior of many probabilities, estimated from how often each was decided for and against.

    sum_j log [ B(s v + f_j, s (1 - v) + d_j - f_j) / B(s v, s (1 - v)) ] - (log(s / 2) / 2)^2 / 2 + log v + log(1 - v)

at its maximum. The last terms weigh as much as a handful of units and keep a log that says little at mean 0.5 and
strength 2; f_j and d_j need not be whole.

Sources: Griffiths 1973; Efron & Morris 1973.
"""

from dataclasses import dataclass

import numpy as np

from posbias.core.arrays.linalg import Floats, Integers, digamma, log_beta, minimize_within
from posbias.core.priors import BetaPrior

_FINEST, _STEP = 0.05, 0.05
"""Units whose log(f + finest) and log(a + finest) are as near as a step stand for each other. Counts of some twenty are
still told apart, and each cell has the mean of its counts, so that the digamma function is off by a ten-thousandth; a
log gives some ten thousand cells at most, however large it is."""

_UNITS_AT_ONCE = 1 << 20
STRENGTHS = (0.05, 5000.0)
MEANS = (1e-4, 1 - 1e-4)
_SPREAD_OF_LOG_STRENGTH = 2.0


@dataclass(frozen=True)
class _Cells:
    """Units of about the same counts, shape (cells,) each: how many they are, and the means of their counts."""

    units: Floats
    favourable: Floats
    against: Floats


def estimate_prior(favourable: Floats, decided: Floats, multiplicity: Floats | None) -> BetaPrior:
    """The Beta prior by marginal likelihood. Neither the order of units nor how they are numbered changes it.

    Args:
        favourable: f, shape (J,).
        decided: d >= f, shape (J,).
        multiplicity: how many units each stands for, shape (J,); None: one.
    """
    times = np.broadcast_to(1.0, decided.shape) if multiplicity is None else multiplicity
    cells = _cells(favourable, np.maximum(decided - favourable, 0.0), times)
    m, f, against = cells.units, cells.favourable, cells.against

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


def _cells(favourable: Floats, against: Floats, multiplicity: Floats) -> _Cells:
    """Those units that anything is known of."""
    highest = int(_place(np.array([favourable.max(initial=0), against.max(initial=0)])).max())
    sums = np.zeros((3, (highest + 1) ** 2))
    for start in range(0, len(favourable), _UNITS_AT_ONCE):
        some = slice(start, start + _UNITS_AT_ONCE)
        f, a, m = favourable[some], against[some], multiplicity[some] * (favourable[some] + against[some] > 0)
        place = _place(f) * (highest + 1) + _place(a)
        sums += np.stack([np.bincount(place, of_unit, minlength=sums.shape[1]) for of_unit in (m, m * f, m * a)])
    units, f, a = sums[:, sums[0] > 0]
    return _Cells(units, f / units, a / units)


def _place(counts: Floats) -> Integers:
    return (np.log1p(counts / _FINEST) / _STEP).astype(np.int64)
