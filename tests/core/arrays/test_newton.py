"""Damped Newton: it arrives from afar, no step is too long or descends, and it says where it did not arrive."""

from collections.abc import Callable

import numpy as np
import pytest

from posbias.core.arrays.count_table import Flags, Floats
from posbias.core.arrays.optimize import HALVINGS, Derivatives, Limits, Proposal, climb, minimize_within

LIMITS = Limits(longest_step=4.0, tolerance=1e-12)


def proposals_of_poisson(at: Floats) -> Proposal:
    """Of x - exp(x), whose Newton steps from far below 0 are as long as exp(-x)."""

    def falls_short(step: Floats) -> bool:
        return bool((step - np.exp(at) * np.expm1(step)).sum() < 0)

    return (1 - np.exp(at)) / np.exp(at), falls_short, None


def proposals_of_hyperbola(at: Floats) -> Proposal:
    """Of -sqrt(1 + x^2), from whose flanks Newton's full steps lead ever further away: x -> -x^3."""

    def falls_short(step: Floats) -> Flags:
        return np.hypot(1, at + step) > np.hypot(1, at)

    return -at - at**3, falls_short, None


def visited(propose: Callable[[Floats], Proposal], start: Floats) -> list[Floats]:
    points: list[Floats] = []

    def seen(at: Floats) -> Proposal:
        points.append(at)
        return propose(at)

    _, converged, _ = climb(seen, start, LIMITS)
    assert converged
    return points


@pytest.mark.parametrize("start", [-30.0, -1.0, 20.0])
def test_the_maximum_is_found_from_afar(start: float) -> None:
    at, converged, _ = climb(proposals_of_poisson, np.array([start]), LIMITS)
    assert converged
    np.testing.assert_allclose(at, 0, atol=1e-12)


def test_no_step_is_longer_than_the_longest() -> None:
    points = np.array(visited(proposals_of_poisson, np.array([-30.0])))[:, 0]
    steps = np.abs(np.diff(points))
    assert steps.max() == pytest.approx(4)
    assert len(steps) > 7


def test_a_step_that_would_descend_is_halved() -> None:
    points = np.array(visited(proposals_of_hyperbola, np.array([2.5])))[:, 0]
    assert (np.abs(points[1:]) < np.abs(points[:-1])).all()


def test_a_coordinate_with_a_function_of_its_own_is_halved_alone() -> None:
    alone = [visited(proposals_of_hyperbola, np.array([start])) for start in (0.1, 1.2)]
    together = visited(proposals_of_hyperbola, np.array([0.1, 1.2]))
    np.testing.assert_array_equal(together[1], [alone[0][1][0], alone[1][1][0]])
    assert together[1][1] > -(1.2**3)  # halved, and the other one is not:
    assert together[1][0] == 0.1 + (-0.1 - 0.1**3)


def test_where_no_halving_gains_the_other_step_is_taken() -> None:
    tried: list[float] = []

    def propose(at: Floats) -> Proposal:
        def falls_short(step: Floats) -> bool:
            tried.append(float(step[0]))
            return True

        return 1 - at, falls_short, lambda: (1 - at) / 8

    at, _, _ = climb(propose, np.zeros(1), Limits(4.0, 1e-12, max_iterations=1))
    assert at == 1 / 8
    assert tried == [0.5**number for number in range(HALVINGS)]


def test_without_another_step_the_shortest_is_taken() -> None:
    at, _, _ = climb(lambda at: (1 - at, lambda _: True, None), np.zeros(1), Limits(4.0, 0.0, max_iterations=1))
    assert at == 0.5**HALVINGS


def test_running_out_of_steps_is_said_and_each_step_is_told() -> None:
    told: list[int] = []

    def tell(number: int, change: float) -> None:
        told.append(number)
        assert change == pytest.approx(4)

    limits = Limits(4.0, 1e-12, max_iterations=2)
    _, converged, iterations = climb(proposals_of_poisson, np.array([-30.0]), limits, tell)
    assert not converged
    assert iterations == 2
    assert told == [1, 2]


@pytest.mark.parametrize(("stalled", "converged"), [(0.0, False), (1e-7, True)])
def test_a_small_step_that_no_longer_shrinks_is_rounding_only_where_that_is_said(
    *, stalled: float, converged: bool
) -> None:
    limits = Limits(4.0, 1e-12, stalled)
    found = climb(lambda at: (np.full_like(at, 3e-9), lambda _: False, None), np.zeros(1), limits)
    assert found[1:] == (converged, 2 if converged else 100)


def wells(at: Floats) -> Derivatives:
    """(x^2 - 1)^2 + (y - x)^2: two wells, at (1, 1) and (-1, -1), and a saddle between them."""
    x, y = at
    slope = np.array([4 * x * (x**2 - 1) - 2 * (y - x), 2 * (y - x)])
    return float((x**2 - 1) ** 2 + (y - x) ** 2), slope, np.array([[12 * x**2 - 2, -2], [-2, 2]])


@pytest.mark.parametrize(
    ("start", "limits", "minimum"),
    [
        ((3.0, -3.0), ((-9, 9), (-9, 9)), (1, 1)),
        ((-0.1, 0.2), ((-9, 9), (-9, 9)), (-1, -1)),  # between the wells the quadratic expansion has no minimum
        ((3.0, 3.0), ((-9, 9), (-9, 0.5)), (0.8846461771193157, 0.5)),  # the real root of 4 x^3 - 2 x - 1
        ((3.0, 3.0), ((2, 3), (-9, 1)), (2, 1)),
        ((2.0, 1.0), ((2, 3), (1, 4)), (2, 2)),
        ((2.0, 1.0), ((2, 3), (-4, 1)), (2, 1)),
    ],
)
def test_a_minimum_in_a_box_is_found_to_nine_digits(
    start: tuple[float, float], limits: tuple[tuple[float, float], tuple[float, float]], minimum: tuple[float, float]
) -> None:
    found = minimize_within(wells, np.array(start), np.array(limits, float))
    np.testing.assert_allclose(found, minimum, rtol=1e-9)
