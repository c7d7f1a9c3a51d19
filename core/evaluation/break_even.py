"""How far a verdict holds: the position bias at which the sign of a difference turns.

D is a difference as it is estimated with bent propensities, theta_k^s k^rho for position k:

    s      0: no position bias; 1: the estimate; 2: twice as much in log
    rho    > 0: relevance that the fit could not see has made theta too low further down (`HiddenRelevance`)

The verdict turns at the zero of D that is nearest to the estimate. The 95 % confidence set of that zero holds every
bend at which the interval of D holds 0 (Fieller 1954); errors of log theta are s times as large there. Between the
bends that are computed, D and both ends of its interval are monotone cubics (Fritsch & Carlson 1980).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from posbias.core.arrays.count_table import Floats

POWERS = (0.0, 0.5, 1.5, 2.0, 3.0)
"""Values of s that are computed beside 1."""

SHARES = (0.5, 1.0, 2.0)
"""Hidden relevance that is computed, in multiples of the relevance that is known."""

_NUDGE = 1e-9


@dataclass(frozen=True)
class Bend:
    """A bend of the curve."""

    power: float = 1.0  # s
    slope: float = 0.0  # rho

    def theta(self, theta: Floats, position: Floats) -> Floats:
        """Theta of cells at some positions, bent; shape (K,)."""
        return np.where(theta > 0, theta**self.power * position**self.slope, theta)


def bends(hidden: float) -> tuple[Bend, ...]:
    """All bends that are computed.

    Args:
        hidden: rho if hidden relevance were as strong as the known one; 0 where that is not known.
    """
    shares = SHARES if hidden > 0 else ()
    return (*(Bend(power=power) for power in POWERS), *(Bend(slope=share * hidden) for share in shares))


@dataclass(frozen=True)
class Turn:
    """A bend at which the sign turns, on one side of the estimate."""

    at: float  # NaN where it does not turn within the range
    first: float  # and last of the 95 % confidence set; NaN where the sign is clear on the whole side
    last: float


@dataclass(frozen=True)
class BreakEven:
    """How far a verdict holds."""

    estimate: Floats  # the difference and the ends of its 95 % interval, without a bend
    below: Turn  # of s, in [0, 1)
    above: Turn  # of s, in (1, 3]
    hidden: Turn | None  # in multiples of the known relevance, in (0, 2]; None where that is not known

    @property
    def clear(self) -> bool:
        """True if the interval without a bend excludes 0."""
        return bool(self.estimate[1] > 0 or self.estimate[2] < 0)

    @classmethod
    def of(cls, estimate: Sequence[float], bent: Sequence[Sequence[float]]) -> "BreakEven":
        """Find where the sign turns.

        Args:
            estimate: the difference and the ends of its interval; NaN where they are not known.
            bent: the same for each of `bends`.
        """
        values, number = np.array([estimate, *bent]), len(POWERS)
        order = np.argsort(by_power := np.array([1.0, *POWERS]))
        below, above = _turns(by_power[order], values[: number + 1][order], 1.0)
        hidden = None
        if len(bent) > number:
            hidden = _turns(np.array([0.0, *SHARES]), values[[0, *range(number + 1, len(values))]], 0.0)[1]
        return cls(values[0], below, above, hidden)


def _turns(bend: Floats, values: Floats, origin: float) -> tuple[Turn, Turn]:
    """The turns below and above the origin, from values of shape (number of bends, 3)."""
    unknown = Turn(np.nan, np.nan, np.nan)
    if not (np.isfinite(values).all() and values[:, 0].any()):
        return unknown, unknown
    zeros, *ends_at_0 = (_zeros(bend, of) for of in values.T)
    edges = np.concatenate(ends_at_0)
    (_, low, high), turns = values[bend == origin][0], list[Turn]()
    for sign in (-1.0, 1.0):
        zero, edge = (np.min(of[of > 0], initial=np.inf) for of in (sign * (zeros - origin), sign * (edges - origin)))
        inside = zero  # how far away a point of the confidence set is
        if not np.isfinite(zero):
            inside = edge + _NUDGE if low > 0 or high < 0 else 0.0
        if not np.isfinite(inside):
            turns.append(unknown)
            continue
        at = origin + sign * inside
        ends = np.max(edges[edges < at], initial=bend[0]), np.min(edges[edges > at], initial=bend[-1])
        turns.append(Turn(float(at) if np.isfinite(zero) else np.nan, *map(float, ends)))
    return turns[0], turns[1]


def _zeros(bend: Floats, values: Floats) -> Floats:
    """The zeros of the monotone cubics through some values."""
    if (values > 0).all() or (values < 0).all():
        return np.zeros(0)  # importing the interpolation takes longer than all the rest
    zeros = scipy.interpolate.PchipInterpolator(bend, values).roots(extrapolate=False)
    return zeros[np.isfinite(zeros)]
