"""Where `monotone` has a number: on small random logs, exactly where linear programs find it finite and unique."""

from importlib import import_module

import numpy as np
import pytest
from small_logs import dense_table, fitted_pairs

from posbias.core.arrays.count_table import Flags, Floats, Integers
from posbias.core.errors import IdentifiabilityError
from posbias.core.shapes import SHAPE_ALONE
from posbias.core.shapes.monotone import MonotoneShape
from posbias.core.standard_errors.contrasts import StrataEstimate

SEEDS = range(40)


def small_log(seed: int) -> tuple[Floats, Floats]:
    """A few pairs at three to six positions, most of which nothing links."""
    rng = np.random.default_rng(seed)
    shape = int(rng.integers(3, 9)), int(rng.integers(3, 7))
    impressions = rng.poisson(1.1, shape)
    return impressions.astype(float), rng.binomial(impressions, 0.35).astype(float)


def fitted(impressions: Floats, clicks: Floats) -> StrataEstimate:
    return fitted_pairs(dense_table(impressions, clicks), np.arange(len(impressions)))


def extremes(rows: list[Floats], limits: list[float], fixed: list[Floats], n: int) -> tuple[Floats, Floats]:
    """The least and the largest value of each coordinate in -1 .. 1 with rows d <= limits and fixed d = 0."""
    linprog = import_module("scipy.optimize").linprog
    found = np.zeros((2, n))
    for side, sign in enumerate((1.0, -1.0)):
        for k in range(n):
            goal = sign * np.eye(n)[k]
            solved = linprog(
                goal, A_ub=np.array(rows), b_ub=limits, A_eq=np.array(fixed), b_eq=np.zeros(len(fixed)), bounds=(-1, 1)
            )
            found[side, k] = sign * solved.fun
    return found[0], found[1]


def falls(n: int) -> list[Floats]:
    """Rows of d_(k + 1) - d_k, at most 0 where a direction nowhere rises."""
    return [np.eye(n)[k + 1] - np.eye(n)[k] for k in range(n - 1)]


def bounded(impressions: Floats, clicks: Floats, reference: int) -> Flags:
    """Cells that no direction moves along which the likelihood of curves that nowhere rise does not fall."""
    n = impressions.shape[1]
    eye = np.eye(n)
    rows = [eye[f] - eye[e] for j in range(len(clicks)) for e in np.flatnonzero(clicks[j]) for f in range(n)
            if f != e and impressions[j, f] > 0]  # fmt: skip
    rows += falls(n)
    low, high = extremes(rows, [0.0] * len(rows), [eye[reference]], n)
    return np.maximum(-low, high) < 1e-6


def best_curve(impressions: Floats, clicks: Floats, reference: int) -> Floats:
    """One of the best curves that nowhere rise, by SLSQP over increments."""
    minimize = import_module("scipy.optimize").minimize
    total = clicks.sum(axis=1)
    clicked, n = total > 0, impressions.shape[1]
    after = -np.tri(n, n - 1, -1)

    def loss(increments: Floats) -> tuple[float, Floats]:
        beta = after @ increments
        size = impressions[clicked] * np.exp(beta)
        shares = size / size.sum(axis=1, keepdims=True)
        value = total[clicked] @ np.log(size.sum(axis=1)) - (clicks @ beta).sum()
        return float(value), after.T @ (total[clicked] @ shares - clicks.sum(axis=0))

    options = {"ftol": 1e-14, "maxiter": 500}
    limits = [(0, 12)] * (n - 1)
    found = minimize(loss, np.full(n - 1, 0.3), jac=True, method="SLSQP", bounds=limits, options=options)
    beta = after @ found.x
    return beta - beta[reference]


def unique(impressions: Floats, clicks: Floats, curve: Floats, reference: int) -> Flags:
    """Cells that cannot move from a best curve while every pair's clicks stay as likely as they are."""
    n = impressions.shape[1]
    eye = np.eye(n)
    fixed = [eye[reference]]
    for shown in impressions[clicks.sum(axis=1) > 0] > 0:
        cells = np.flatnonzero(shown)
        fixed += [eye[cells[0]] - eye[cell] for cell in cells[1:]]
    slack = -np.diff(curve)
    low, high = extremes(falls(n), np.where(slack < 1e-5, 0.0, slack).tolist(), fixed, n)
    return np.maximum(-low, high) < 1e-6


def restricted(impressions: Floats, clicks: Floats, cells: Integers) -> tuple[Floats, Floats]:
    return impressions[:, cells], clicks[:, cells]


def finite_and_unique(impressions: Floats, clicks: Floats, reference: int) -> tuple[Integers, Floats]:
    """The cells where the best curve is finite and unique, and its values there."""
    cells = np.flatnonzero(bounded(impressions, clicks, reference))
    part = restricted(impressions, clicks, cells)
    anchor = int(np.searchsorted(cells, reference))
    curve = best_curve(*part, anchor)
    known = unique(*part, curve, anchor)
    return cells[known], curve[known]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.slow_after(7)
def test_a_cell_has_a_number_exactly_where_the_best_curve_is_finite_and_unique(seed: int) -> None:
    impressions, clicks = small_log(seed)
    try:
        free = fitted(impressions, clicks)
    except IdentifiabilityError:
        return  # nothing can be compared, which is an error whatever the shape
    n, reference = int(impressions.shape[1]), int(free.fit.linkage.references[0])
    found = MonotoneShape().fit(free, np.arange(1, n + 1))
    expected, curve = finite_and_unique(impressions, clicks, reference)
    np.testing.assert_array_equal(np.flatnonzero(np.isfinite(found.log_theta)), expected)
    np.testing.assert_allclose(found.log_theta[expected], curve, atol=2e-3)
    by_order = [reason for cell, reason in enumerate(found.intervals.reason) if not free.fit.linkage.identified[cell]]
    assert None not in by_order
    assert found.converged


def test_a_position_that_nothing_links_has_the_number_of_neighbours_that_agree() -> None:
    """Positions 2 and 4 are pooled, so that 3, which no clicked pair was shown at, lies between equal numbers."""
    impressions = np.array([[9.0, 9, 0, 9]] * 2)
    clicks = np.array([[6.0, 2, 0, 4], [4.0, 2, 0, 4]])
    found = MonotoneShape().fit(fitted(impressions, clicks), np.arange(1, 5))
    np.testing.assert_array_equal(found.log_theta[1:], found.log_theta[1])
    assert found.intervals.reason[2] == SHAPE_ALONE
    clicks[:, 3] = 1
    apart = MonotoneShape().fit(fitted(impressions, clicks), np.arange(1, 5))
    assert np.isnan(apart.log_theta[2])
    assert np.isfinite(apart.log_theta[[1, 3]]).all()
