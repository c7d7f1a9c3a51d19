"""Newton's method on concave functions, damped: no step is too long, and none is taken that does not gain.

From x, Newton's step d leads to the maximum of the quadratic expansion. It is cut to a longest change, and halved until
the function gains enough: a share of what its slope g promises, f(x + d) - f(x) >= .0001 g'd (Armijo), or anything at
all, as its problem says. Source: Nocedal & Wright 2006, section 3.1.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from posbias.core.arrays.count_table import Flags, Floats

ENOUGH_ASCENT = 1e-4
"""Share of the gain promised by the slope that is enough."""

ROUNDING = 1e-7
"""A step below it gains less than rounding loses: it is taken as it is."""

HALVINGS = 40


@dataclass(frozen=True)
class Proposal:
    """Newton's step from a point, and what to make of it.

    Attributes:
        falls_short: whether a step along it gains too little: one answer, or one for each coordinate where each has a
            function of its own, shape (P,).
        instead: the step to take where no halving helps because rounding hides every gain; by default the shortest.
    """

    step: Floats  # shape (P,)
    falls_short: Callable[[Floats], bool | Flags]
    instead: Callable[[], Floats] | None = None


@dataclass(frozen=True)
class Limits:
    """When to stop.

    Attributes:
        stalled: a step below it that is more than half as long as the one before shows rounding, and counts as none.
    """

    longest_step: float  # of a coordinate, in one step
    tolerance: float  # the largest change of a coordinate that counts as none
    stalled: float = 0.0
    max_iterations: int = 100  # steps at most


@dataclass(frozen=True)
class Summit:
    """Where the climb ended."""

    at: Floats  # shape (P,)
    converged: bool  # whether the last step counted as none
    iterations: int  # steps taken


def climb(
    propose: Callable[[Floats], Proposal],
    start: Floats,
    limits: Limits,
    on_iteration: Callable[[int, float], None] | None = None,
) -> Summit:
    """The maximum of a concave function.

    Args:
        propose: Newton's step from a point of shape (P,).
        start: shape (P,), P > 0.
        limits: when to stop.
        on_iteration: called after each step with its number and its largest change.
    """
    at, change, converged, iteration = start, np.inf, False, 0
    while not converged and iteration < limits.max_iterations:
        iteration += 1
        previous, step = change, _damped(propose(at), limits.longest_step)
        at, change = at + step, _largest(step)
        converged = change <= limits.tolerance or previous / 2 <= change <= limits.stalled
        if on_iteration is not None:
            on_iteration(iteration, change)
    return Summit(at, converged, iteration)


def _damped(proposal: Proposal, longest: float) -> Floats:
    """The step cut to its longest change, and halved where and until it gains enough."""
    step = proposal.step * min(1.0, longest / max(_largest(proposal.step), longest))
    if _largest(step) <= ROUNDING:
        return step
    for _ in range(HALVINGS):
        short = proposal.falls_short(step)
        if not np.any(short):
            return step
        step = np.where(short, step / 2, step)
    return step if proposal.instead is None else proposal.instead()


def _largest(step: Floats) -> float:
    return float(np.abs(step).max())
