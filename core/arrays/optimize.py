"""Newton's method on concave functions, minima in a box, and the acceleration of EM.

Newton's method is damped: no step is too long, and none is taken that does not gain. From x, its step d leads to the
maximum of the quadratic expansion. It is cut to a longest change, and halved until the function gains enough: a share
of what its slope g promises, f(x + d) - f(x) >= .0001 g'd (Armijo), or anything at all, as its problem says. Source:
Nocedal & Wright 2006, section 3.1.

EM is accelerated by SQUAREM (Varadhan & Roland 2008).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy

from posbias.core.arrays.count_table import Flags, Floats

ENOUGH_ASCENT = 1e-4
"""Share of the gain promised by the slope that is enough."""

ROUNDING = 1e-7
"""A step below it gains less than rounding loses: it is taken as it is."""

HALVINGS = 40


Proposal = tuple[Floats, Callable[[Floats], bool | Flags], Callable[[], Floats] | None]
"""Newton's step from a point, shape (P,); whether a step along it gains too little: one answer, or one for each
coordinate where each has a function of its own, shape (P,); and the step to take where no halving helps because
rounding hides every gain, the shortest by default."""


@dataclass(frozen=True)
class Limits:
    """Stopping rule of an iteration.

    Attributes:
        stalled: a step below it that is more than half as long as the one before shows rounding, and counts as none.
    """

    longest_step: float  # of a coordinate, in one step
    tolerance: float  # the largest change of a coordinate that counts as none
    stalled: float = 0.0
    max_iterations: int = 100  # steps at most


OnStep = Callable[[int, float], None]
"""Is called after each step with its number and its largest change."""


def climb(
    propose: Callable[[Floats], Proposal], start: Floats, limits: Limits, on_iteration: OnStep | None = None
) -> tuple[Floats, bool, int]:
    """The maximum of a concave function.

    Args:
        propose: Newton's step from a point of shape (P,).
        start: shape (P,), P > 0.
        limits: when to stop.
        on_iteration: called after each step with its number and its largest change.

    Returns:
        Where the climb ended, whether the last step counted as none, and the steps taken.
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
    """The step cut to its longest change, and halved where and until it gains enough."""
    step, falls_short, instead = proposal
    step = step * min(1.0, longest / max(_largest(step), longest))
    if _largest(step) <= ROUNDING:
        return step
    for _ in range(HALVINGS):
        short = falls_short(step)
        if not np.any(short):
            return step
        step = np.where(short, step / 2, step)
    return step if instead is None else instead()


def _largest(step: Floats) -> float:
    return float(np.abs(step).max())


Derivatives = tuple[float, Floats, Floats]
"""Of a function at a point: its value, its slope, shape (P,), and its second derivatives, shape (P, P)."""

_FLATTEST = 1e-10  # curvature of a step, relative to the largest one
_ROUNDING_OF_VALUE = 1e-12  # of a function of the order of 1: what is gained or lost below it is rounding
_BOX = Limits(longest_step=2.0, tolerance=1e-9, stalled=ROUNDING)


def minimize_within(derivatives: Callable[[Floats], Derivatives], start: Floats, limits: Floats) -> Floats:
    """A minimum of a smooth function in a box, to the precision of its slope, by Newton's method.

    A step leads to the minimum in the box of the quadratic expansion, of whose eigenvalues the sizes count.

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
    """Put a point where a cycle of SQUAREM leads: three steps of EM, the last one from an extrapolation.

    From two steps, r = x1 - x0, v = x2 - 2 x1 + x0, to x0 - 2 a r + a^2 v, a = -|r| / |v| <= -1 (scheme S3), unless the
    objective is lower there than at x1: then x2 is taken. On the scale of probabilities: on that of logarithms or
    logits the values that run to 0 rule the length. The arrays of the point are let go as early as possible.

    Args:
        point: x0, in several arrays, by name; it becomes the new point.
        step: one step of EM from a point.
        step_and_objective: the same, and the objective at the point before it.
        copies: how many parameters each value of an array stands for; other arrays of the point stay.
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
