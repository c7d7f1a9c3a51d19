"""Optimisation: damped Newton's method for concave functions and in a box, and the acceleration of EM.

From x, Newton's step d leads to the maximum of the quadratic expansion. It is shortened to a longest change of a
coordinate, and halved until the function increases enough: by a share of what its gradient g predicts,
f(x + d) - f(x) >= .0001 g'd (Armijo), or by another criterion of the problem. Source: Nocedal & Wright 2006,
section 3.1.

EM is accelerated by SQUAREM (Varadhan & Roland 2008).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy

from posbias.core.arrays.count_table import Flags, Floats

ENOUGH_ASCENT = 1e-4
"""Sufficient increase, as a share of the increase that the gradient predicts."""

ROUNDING = 1e-7
"""A shorter step changes the function by less than rounding errors: it is taken without a check."""

HALVINGS = 40


Proposal = tuple[Floats, Callable[[Floats], bool | Flags], Callable[[], Floats] | None]
"""Newton's step from a point, shape (P,); a function that returns whether a step increases the objective too little
(for each coordinate, shape (P,), if each has an objective of its own); and the step to take if no halving helps because
rounding hides every increase (None: the last halved step)."""


@dataclass(frozen=True)
class Limits:
    """Stopping rule of an iteration.

    Attributes:
        stalled: a shorter step that is more than half as long as the one before is due to rounding: converged.
    """

    longest_step: float  # largest change of a coordinate in one step
    tolerance: float  # converged if no coordinate changes by more
    stalled: float = 0.0
    max_iterations: int = 100


OnStep = Callable[[int, float], None]
"""Called after each step with its number and its largest change."""


def climb(
    propose: Callable[[Floats], Proposal], start: Floats, limits: Limits, on_iteration: OnStep | None = None
) -> tuple[Floats, bool, int]:
    """Maximise a concave function by damped Newton steps.

    Args:
        propose: Newton's step from a point of shape (P,).
        start: shape (P,), P > 0.
        limits: when to stop.
        on_iteration: called after each step with its number and its largest change.

    Returns:
        The last point, whether it converged, and the number of steps.
    """
    at, change, converged, iteration = start, np.inf, False, 0
    while not converged and iteration < limits.max_iterations:
        iteration += 1
        previous, step = change, _damp(propose(at), limits.longest_step)
        at, change = at + step, _largest(step)
        converged = change <= limits.tolerance or previous / 2 <= change <= limits.stalled
        if on_iteration is not None:
            on_iteration(iteration, change)
    return at, converged, iteration


def _damp(proposal: Proposal, longest: float) -> Floats:
    """Shorten the step to the longest change, and halve it until the increase suffices."""
    step, falls_short, fallback = proposal
    step = step * min(1.0, longest / max(_largest(step), longest))
    if _largest(step) <= ROUNDING:
        return step
    for _ in range(HALVINGS):
        short = falls_short(step)
        if not np.any(short):
            return step
        step = np.where(short, step / 2, step)
    return step if fallback is None else fallback()


def _largest(step: Floats) -> float:
    return float(np.abs(step).max())


Derivatives = tuple[float, Floats, Floats]
"""Value of a function at a point, its gradient, shape (P,), and its Hessian, shape (P, P)."""

_FLATTEST = 1e-10  # least curvature of the quadratic expansion, relative to the largest
_ROUNDING_OF_VALUE = 1e-12  # relative rounding error of the function's value
_BOX = Limits(longest_step=2.0, tolerance=1e-9, stalled=ROUNDING)


def minimize_within(derivatives: Callable[[Floats], Derivatives], start: Floats, limits: Floats) -> Floats:
    """Find a minimum of a smooth function in a box, to the precision of its gradient, by Newton's method.

    A step leads to the minimum in the box of the quadratic expansion with the absolute values of its eigenvalues.

    Args:
        derivatives: of the function, whose values are of the order of 1.
        start: shape (P,).
        limits: lowest and highest value of each parameter, shape (P, 2).

    Returns:
        The minimum, shape (P,).
    """

    @lru_cache(maxsize=1)  # a step that gains enough leads to the point that is looked at next
    def known(at: bytes) -> Derivatives:
        return derivatives(np.frombuffer(at))

    def propose(at: Floats) -> Proposal:
        value, slope, curvature = known(at.tobytes())
        eigenvalues, vectors = np.linalg.eigh(curvature)
        bent = np.sqrt(np.maximum(np.abs(eigenvalues), _FLATTEST * np.abs(eigenvalues).max()))
        target, room = -(slope @ vectors) / bent, limits - at[:, np.newaxis]
        root = bent[:, np.newaxis] * vectors.T
        step = np.asarray(np.linalg.lstsq(root, target, rcond=-1)[0], np.float64)
        if np.any((step < room[:, 0]) | (step > room[:, 1])):  # seldom; to import scipy.optimize takes 0.1 s
            step = scipy.optimize.lsq_linear(root, target, room.T, method="bvls").x

        def falls_short(step: Floats) -> bool:
            gain = value - known((at + step).tobytes())[0]
            return gain < -ENOUGH_ASCENT * float(slope @ step) - _ROUNDING_OF_VALUE * max(1.0, abs(value))

        return step, falls_short, None

    return climb(propose, start, _BOX)[0]


_TINY = 1e-300


def squarem_cycle(
    point: dict[str, Floats],
    step: Callable[[dict[str, Floats]], dict[str, Floats]],
    step_and_objective: Callable[[dict[str, Floats]], tuple[dict[str, Floats], float]],
    copies: Mapping[str, Floats | float],
    bounds: tuple[float, float],
) -> float:
    """Advance a point in place by one cycle of SQUAREM: two steps of EM, an extrapolation, and a step of EM from there.

    From two steps, r = x1 - x0, v = x2 - 2 x1 + x0, extrapolate to x0 - 2 a r + a^2 v, a = -|r| / |v| <= -1 (scheme
    S3). If the objective is lower there than at x1, take x2 instead. Parameters are extrapolated as probabilities: as
    logarithms or logits, values near 0 would determine the length. Arrays are freed as early as possible.

    Args:
        point: x0, several arrays by name; it becomes the new point.
        step: one step of EM from a point.
        step_and_objective: the same, and the objective at the point before it.
        copies: number of parameters that each value of an array represents; arrays that are not named stay.
        bounds: lowest and highest value of a parameter.

    Returns:
        The objective at x1.
    """
    first = step(point)
    second, objective = step_and_objective(first)
    squares = np.zeros(2)
    for name, times in copies.items():
        r = first[name] - point[name]
        v = second[name] - first[name] - r
        squares += (times * r**2).sum(), (times * v**2).sum()
    length = max(1.0, np.sqrt(squares[0] / max(squares[1], _TINY)))
    for name in copies:
        x0, r = point[name], first[name] - point[name]
        point[name] = np.clip(x0 + 2 * length * r + length**2 * (second[name] - first.pop(name) - r), *bounds)
    following, objective_there = step_and_objective(point)
    point.update(following if objective_there >= objective else second)
    return objective
