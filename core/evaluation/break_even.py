"""Break-even position bias: the bend of theta at which the sign of a difference turns.

The difference D is estimated with bent propensities, theta_k^s k^rho at position k:

    s      0: no position bias; 1: the estimate; 2: twice as much in log
    rho    > 0: hidden relevance has biased theta downwards at low positions (`HiddenRelevance`)

The sign turns at the zero of D nearest to the estimate. The 95 % confidence set of the zero contains all bends at which
the interval of D contains 0 (Fieller 1954); at power s, errors of log theta are s times as large. Between computed
bends, D and both ends of its interval are interpolated by monotone cubics (Fritsch & Carlson 1980).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from posbias.core.arrays.count_table import Floats

POWERS = (0.0, 0.5, 1.5, 2.0, 3.0)
"""Computed values of s other than 1."""

SHARES = (0.5, 1.0, 2.0)
"""Computed strengths of hidden relevance, in multiples of the known relevance."""

_NUDGE = 1e-9


@dataclass(frozen=True)
class Bend:
    """A bend of theta over position."""

    power: float = 1.0  # s
    slope: float = 0.0  # rho

    def theta(self, theta: Floats, position: Floats) -> Floats:
        """Return theta_k^s k^rho by cell, shape (K,), at the positions of the cells; NaN and 0 are not changed."""
        return np.where(theta > 0, theta**self.power * position**self.slope, theta)


def bends(hidden: float) -> tuple[Bend, ...]:
    """Return the computed bends.

    Args:
        hidden: rho if hidden relevance is as strong as the known relevance; 0 if unknown.
    """
    shares = SHARES if hidden > 0 else ()
    return (*(Bend(power=power) for power in POWERS), *(Bend(slope=share * hidden) for share in shares))


@dataclass(frozen=True)
class Turn:
    """The bend at which the sign turns, on one side of the estimate, with its 95 % confidence set."""

    at: float  # NaN if the sign does not turn within the range
    first: float  # lower end of the confidence set; NaN if the sign is clear on the whole side
    last: float  # upper end of the confidence set


@dataclass(frozen=True)
class BreakEven:
    """The bends at which the sign of a difference turns."""

    estimate: Floats  # the difference and the ends of its 95 % interval, without a bend, shape (3,)
    below: Turn  # of s, in [0, 1)
    above: Turn  # of s, in (1, 3]
    hidden: Turn | None  # of hidden relevance, in (0, 2] multiples of the known relevance; None if unknown

    @property
    def clear(self) -> bool:
        """True if the interval without a bend excludes 0."""
        return bool(self.estimate[1] > 0 or self.estimate[2] < 0)

    @classmethod
    def of(cls, estimate: Sequence[float], bent: Sequence[Sequence[float]]) -> "BreakEven":
        """Compute the turns.

        Args:
            estimate: the difference and the ends of its interval; NaN if unknown.
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
    """Return the turns below and above the origin.

    Args:
        bend: values of s or of hidden relevance, ascending, shape (n,).
        values: the difference and the ends of its interval at each, shape (n, 3).
        origin: the value without a bend.
    """
    unknown = Turn(np.nan, np.nan, np.nan)
    if not (np.isfinite(values).all() and values[:, 0].any()):
        return unknown, unknown
    zeros, *zeros_of_ends = (_zeros(bend, column) for column in values.T)
    edges = np.concatenate(zeros_of_ends)
    (_, low, high), turns = values[bend == origin][0], list[Turn]()
    for sign in (-1.0, 1.0):
        distances = sign * (zeros - origin), sign * (edges - origin)
        zero, edge = (np.min(distance[distance > 0], initial=np.inf) for distance in distances)
        inside = zero  # distance of a point of the confidence set from the origin
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
    """Return the zeros of the monotone cubic interpolation of values at the bends."""
    if (values > 0).all() or (values < 0).all():
        return np.zeros(0)  # without the import of the interpolation, which takes most of the time
    zeros = scipy.interpolate.PchipInterpolator(bend, values).roots(extrapolate=False)
    return zeros[np.isfinite(zeros)]
