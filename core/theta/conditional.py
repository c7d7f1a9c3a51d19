"""Conditional estimation of examination: fixed-effects Poisson, the default for propensities.

Given a unit's total C_j, its attractiveness drops out of the likelihood of its clicks (Hausman, Hall & Griliches 1984):

    l(beta) = sum_j m_j { sum_e c_je beta_e - C_j log sum_e n_je exp(beta_e) },  beta_e = log theta_e,  beta_ref = 0

Consistent whenever E[c_je] = n_je theta_e gamma_j, whatever the distribution of clicks (Wooldridge 1999), and concave:
there are no starting values, and one finite optimum on the identified cells.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np

from posbias.core.arrays import unit_diagonal
from posbias.core.arrays.count_table import CountTable, Floats, Integers
from posbias.core.arrays.linalg import by_unit_and_cell, gram
from posbias.core.arrays.newton import ENOUGH_ASCENT, ROUNDING, Limits, Proposal, climb
from posbias.core.arrays.threads import at_once
from posbias.core.theta.linkage import NO_CLICKS, Linkage
from posbias.core.theta.linked_counts import LinkedCounts, linked_counts, shares_at

_Found = TypeVar("_Found")

UPPER_TAIL = 0.025
"""Probability left above the upper limit of a cell without clicks: the upper half of a 95 % interval."""

_WARM_UP = 8  # scaling steps before Newton: cheap, monotone from anywhere, and good for orders of magnitude
_LONGEST_STEP = 8.0  # of a log propensity, in one Newton step; keeps exp(step) far from overflow


@dataclass(frozen=True)
class ConditionalFit:
    """The conditional estimate."""

    linkage: Linkage  # which cells are identified
    log_theta: Floats  # shape (K,), log propensity relative to the cell's reference; NaN where not identified, 0 there
    converged: bool  # whether the last Newton step was below the tolerance
    iterations: int  # Newton steps taken
    objective: float  # l at the estimate
    free_cells: Integers  # shape (F,), the identified cells other than the references, ascending
    information: Floats  # shape (F, F), minus the Hessian of l on the free cells

    @property
    def theta(self) -> Floats:
        """Propensity relative to the reference, shape (K,), > 0 and possibly above 1; NaN where not identified."""
        return np.exp(self.log_theta)

    @cached_property
    def inverse(self) -> Floats:
        """The inverse of the information, shape (F, F).

        Raises:
            numpy.linalg.LinAlgError: it is singular.
        """
        return unit_diagonal.inverse(self.information)


def fit_conditional(
    table: CountTable,
    linkage: Linkage,
    *,
    tolerance: float = 1e-12,
    max_iterations: int = 100,
    on_iteration: Callable[[int, float], None] | None = None,
) -> ConditionalFit:
    """Maximise l by Newton's method with step halving, on the identified cells.

    gradient_e = C_e - sum_j m_j C_j p_je;  Hessian = -sum_j m_j C_j (diag(p_j) - p_j p_j').

    With many cells each step is found by conjugate gradients, and only the last Hessian is made.

    Args:
        table: counts per unit (a pair, stratum or signature) and cell.
        linkage: which cells are identified, of the same table.
        tolerance: the largest change of a log propensity that counts as none. A step that no longer shrinks and is
            below 1e-7 is rounding, and counts as none as well.
        max_iterations: Newton steps at most; the result says if they were not enough.
        on_iteration: called after each step with its number and its largest change.
    """
    linked = linked_counts(table, linkage)
    likelihood = Likelihood(linked)
    limits = Limits(_LONGEST_STEP, tolerance, stalled=ROUNDING, max_iterations=max_iterations)
    start = np.zeros(linked.table.n_cells)
    for _ in range(_WARM_UP):
        start = start + likelihood.scaling_step(start)
    summit = climb(likelihood.propose, start, limits, on_iteration)
    beta = summit.at
    log_theta = np.full(table.n_cells, np.nan)
    log_theta[linked.cells] = beta - beta[linked.reference_of]
    _, information = likelihood.slopes(beta)
    return ConditionalFit(
        linkage=linkage,
        log_theta=log_theta,
        converged=summit.converged,
        iterations=summit.iterations,
        objective=likelihood.objective(beta),
        free_cells=linked.cells[linked.free],
        information=information[np.ix_(linked.free, linked.free)],
    )


def upper_limits_without_clicks(fit: ConditionalFit, table: CountTable) -> Floats:
    """The upper 97.5 % limit of theta_e for the cells without clicks.

    Given the clicks C_j of the pairs that link the cell, all of them fell elsewhere with probability
    prod_j (A_j / (A_j + n_je theta_e))^C_j, A_j = sum over identified cells of n theta. The limit makes this .025:

        sum_j m_j C_j log(1 + n_je theta_e / A_j) = -log(.025)

    Returns:
        Shape (K,), relative to the reference; NaN for every other cell.
    """
    limits = np.full(table.n_cells, np.nan)
    for cell, weight, ratio in _without_clicks(fit, table):
        limits[cell] = _log_sum_root(weight, ratio, level=-np.log(UPPER_TAIL))
    return limits


@dataclass(frozen=True)
class Silence:
    """What cells without clicks say against given propensities."""

    # Shape (K,), the probability of no click in the cell, twice (there is another tail); NaN for all cells but those
    # without clicks that have a propensity to be judged by
    p_value: Floats
    expected: Floats  # shape (K,), the clicks that were expected there, sum_j C_j n_je theta_e / A_j; likewise

    @property
    def cells(self) -> Integers:
        """The cells that are judged."""
        return np.flatnonzero(np.isfinite(self.p_value))


def silence_of_cells(fit: ConditionalFit, table: CountTable, theta: Floats) -> Silence:
    """Whether the cells without clicks can have the propensities theta, as their upper limits say it.

    P(no click) = prod_j (A_j / (A_j + n_je theta_e))^C_j, as for `upper_limits_without_clicks`.

    Args:
        fit: the estimate.
        table: what it is from.
        theta: shape (K,), relative to the reference; NaN where there is nothing to judge by.
    """
    p_value, expected = np.full((2, table.n_cells), np.nan)
    for cell, weight, ratio in _without_clicks(fit, table):
        of_pair = ratio * theta[cell]
        p_value[cell] = min(2 * np.exp(-float(weight @ np.log1p(of_pair))), 1.0)
        expected[cell] = float(weight @ of_pair)
    p_value[np.isnan(theta)] = np.nan
    return Silence(p_value, np.where(np.isnan(theta), np.nan, expected))


def _without_clicks(fit: ConditionalFit, table: CountTable) -> Iterator[tuple[int, Floats, Floats]]:
    """Each cell without clicks, with C_j and n_je / A_j of the pairs that link it."""
    linkage = fit.linkage
    without = [number for number, reason in enumerate(linkage.reason) if reason == NO_CLICKS]
    if not without:
        return
    theta = np.where(linkage.identified, np.nan_to_num(fit.theta), 0.0)
    expected = table.sum_by_unit(table.impressions * theta[table.cell])
    clicks = table.sum_by_unit(table.clicks * linkage.identified[table.cell])
    unit = table.unit_of_entry
    for cell in without:
        entries = np.flatnonzero((table.cell == cell) & (clicks[unit] > 0))
        units = unit[entries]
        yield cell, table.multiplicity[units] * clicks[units], table.impressions[entries] / expected[units]


def _log_sum_root(weight: Floats, ratio: Floats, level: float) -> float:
    """The x > 0 with sum weight log(1 + ratio x) = level.

    The sum is concave and increasing, so Newton's steps from a point below the root never pass it.
    """
    root, step = level / float(weight @ ratio), np.inf
    for _ in range(_ROOT_STEPS):
        if not step > _ROOT_PRECISION * root:
            break
        missing = level - float(weight @ np.log1p(ratio * root))
        step = missing / float(weight @ (ratio / (1 + ratio * root)))
        root += step
    return root


_ROOT_STEPS, _ROOT_PRECISION = 200, 1e-13


class Likelihood:
    """The objective on the identified cells, numbered 0 .. I - 1, and the steps that climb it.

    Only differences of beta matter, within the cells of one reference. Here the cell with the most clicks among them
    is the one that stays at 0, not the reference: the rounding of its gradient, the largest of all, then touches no
    other cell.
    """

    def __init__(self, linked: LinkedCounts) -> None:
        self.table = linked.table
        self.weight = linked.table.multiplicity * linked.unit_clicks
        self.cell_clicks = np.zeros(linked.table.n_cells)
        for _, block in linked.table.blocks():
            self.cell_clicks += block.sum_by_cell(block.clicks * block.spread(block.multiplicity))
        by_clicks = np.argsort(-self.cell_clicks, kind="stable")
        _, first, group = np.unique(linked.reference_of[by_clicks], return_index=True, return_inverse=True)
        self.anchor_of = np.empty_like(by_clicks)
        self.anchor_of[by_clicks] = by_clicks[first][group]
        self.free = np.flatnonzero(self.anchor_of != np.arange(linked.table.n_cells))

    def _over_blocks(self, beta: Floats, work: Callable[[CountTable, Floats, Floats], _Found]) -> Iterator[_Found]:
        """What a function makes of each block of the table, the weight of its units and its shares at beta."""

        def of_block(block: tuple[slice, CountTable]) -> _Found:
            units, table = block
            return work(table, self.weight[units], shares_at(table, beta)[0])

        return at_once(of_block, self.table.blocks())

    def objective(self, beta: Floats) -> float:
        """L at beta, shape (I,)."""
        spread = sum(float(self.weight[units] @ shares_at(block, beta)[1]) for units, block in self.table.blocks())
        return float(self.cell_clicks @ beta) - spread

    def gain(self, beta: Floats, step: Floats) -> float:
        """The objective's change along a step, without the cancellation of a difference of objectives."""
        growth = np.expm1(step)

        def lost(block: CountTable, weight: Floats, shares: Floats) -> float:
            return float(weight @ np.log1p(block.sum_by_unit(shares * growth[block.cell])))

        return float(self.cell_clicks @ step) - sum(self._over_blocks(beta, lost))

    def scaling_step(self, beta: Floats) -> Floats:
        """A step of iterative proportional fitting, theta_e <- theta_e C_e / expected C_e: monotone and linear."""
        step = np.log(self.cell_clicks / sum(self._over_blocks(beta, _expected), np.zeros_like(beta)))
        return step - step[self.anchor_of]

    def propose(self, beta: Floats) -> Proposal:
        """Newton's step from beta; a scaling step where rounding hides every gain."""
        step = np.zeros_like(beta)
        if len(self.free) >= unit_diagonal.MANY:
            gradient, step[self.free] = self._step_by_products(beta)
        else:
            gradient, information = self.slopes(beta)
            step[self.free] = unit_diagonal.solve(information[np.ix_(self.free, self.free)], gradient[self.free])

        def falls_short(step: Floats) -> bool:
            return not self.gain(beta, step) >= ENOUGH_ASCENT * float(gradient @ step)

        return Proposal(step, falls_short, instead=lambda: self.scaling_step(beta))

    def _step_by_products(self, beta: Floats) -> tuple[Floats, Floats]:
        """Gradient, shape (I,), and Newton's step, shape (F,), from H v = sum_j w_j (p_j * v - p_j (p_j'v)) alone."""
        shares = shares_at(self.table, beta)[0]
        by_unit = by_unit_and_cell(self.table, shares)
        expected, whole = by_unit.T @ self.weight, np.zeros_like(beta)
        diagonal = self.table.sum_by_cell(self.table.spread(self.weight) * shares * (1 - shares))

        def times(vector: Floats) -> Floats:
            whole[self.free] = vector
            return (expected * whole - by_unit.T @ (self.weight * (by_unit @ whole)))[self.free]

        gradient = self.cell_clicks - expected
        return gradient, unit_diagonal.conjugate_gradients(times, diagonal[self.free], gradient[self.free])

    def slopes(self, beta: Floats) -> tuple[Floats, Floats]:
        """Gradient, shape (I,), and minus the Hessian, shape (I, I), whose rows add up to 0."""
        if len(self.free) >= unit_diagonal.MANY:  # one sparse product instead of dense ones that add up
            expected, coupling = _expected_and_coupling(self.table, self.weight, shares_at(self.table, beta)[0])
            return self.cell_clicks - expected, _laplacian(coupling)
        expected, coupling = np.zeros_like(beta), np.zeros((len(beta), len(beta)))
        for of_block, coupling_of_block in self._over_blocks(beta, _expected_and_coupling):
            expected += of_block
            coupling += coupling_of_block
        return self.cell_clicks - expected, _laplacian(coupling)


def _expected(block: CountTable, weight: Floats, shares: Floats) -> Floats:
    return block.sum_by_cell(shares * block.spread(weight))


def _expected_and_coupling(block: CountTable, weight: Floats, shares: Floats) -> tuple[Floats, Floats]:
    coupling = gram(by_unit_and_cell(block, shares * block.spread(np.sqrt(weight))))
    return _expected(block, weight, shares), coupling


def _laplacian(coupling: Floats) -> Floats:
    """diag(row sums) - coupling: with coupling sum_j w_j p_j p_j' this is sum_j w_j (diag(p_j) - p_j p_j').

    The diagonal adds what couples a cell to the others instead of subtracting two numbers that may nearly agree. It
    takes the place of `coupling`.
    """
    np.fill_diagonal(coupling, 0.0)
    of_cell = coupling.sum(axis=1)
    np.subtract(0.0, coupling, out=coupling)
    np.fill_diagonal(coupling, of_cell)
    return coupling
