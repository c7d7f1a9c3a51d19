"""Joint maximum likelihood estimation of examination theta and attractiveness gamma by EM.

P(click) = theta_e gamma_j. E-step, for an impression without a click (a click implies both events):

    P(E = 1 | c = 0) = theta (1 - gamma) / (1 - theta gamma),  P(A = 1 | c = 0) = gamma (1 - theta) / (1 - theta gamma)

M-step: means of the expected events, with Beta priors of mean v and strength s. With
w_je = (n - c) / (1 - gamma_j theta_e), both steps are one pass over the entries:

    1 - gamma_j' = (s (1 - v) + (1 - gamma_j) sum_e w_je) / (s + sum_e n_je)
    1 - theta_e' = (s (1 - v) + (1 - theta_e) sum_j m_j w_je) / (s + sum_j m_j n_je)

Accelerated by SQUAREM (Varadhan & Roland 2008). Theta and gamma are identified up to a common factor only, and on
sparse logs the estimate of theta is inconsistent (Neyman & Scott 1948): it serves for comparison and is not the
default. Sources: Dempster, Laird & Rubin 1977; Dupret & Piwowarski 2008; Wang et al. 2018.
"""

from dataclasses import dataclass

import numpy as np
import scipy

from posbias.core.arrays.count_table import CountTable, Floats
from posbias.core.arrays.linalg import by_unit_and_cell
from posbias.core.arrays.optimize import OnStep, squarem_cycle
from posbias.core.choices import BetaPrior

START = 0.5
LARGEST = 1 - 1e-6
"""Upper bound of theta and gamma: theta gamma = 1 would divide by zero."""

_TINY = 1e-300  # extrapolations stay above 0, which EM could not leave
_THETA, _GAMMA = "theta", "gamma"
_CYCLE = 3  # steps in one cycle of SQUAREM


@dataclass(frozen=True)
class JointOptions:
    """Options of the joint estimate."""

    examination_prior: BetaPrior = BetaPrior(0.5, 2.0)  # of every theta_e; strength 0 is maximum likelihood
    attractiveness_prior: BetaPrior = BetaPrior(0.5, 2.0)  # of every gamma_j
    max_iterations: int = 5_000  # most EM steps, each a pass over the entries; a cycle of SQUAREM has three
    # Converged if a step (or a cycle of SQUAREM) changes no theta by more than this share of the largest theta, and
    # the objective by no more than this share of itself; 0 for `max_iterations` steps
    tolerance: float = 1e-8
    accelerate: bool = True  # by SQUAREM, which reaches the same optimum in far fewer steps


@dataclass(frozen=True)
class JointFit:
    """Joint estimate, on an arbitrary scale: only ratios of theta are identified."""

    # Shape (K,), theta in (0, 1 - 1e-6]; a cell without impressions has the prior's mean, 0.5 without a prior
    examination: Floats
    attractiveness: Floats  # shape (J,), gamma in [0, 1 - 1e-6]
    converged: bool  # whether the tolerance was reached; False if it is 0
    iterations: int  # steps, or cycles of SQUAREM
    evaluations: int  # passes over the entries
    options: JointOptions
    objective: float  # log-likelihood (without the binomials' constants) plus the log of the priors' kernels


def fit_joint(
    table: CountTable,
    options: JointOptions | None = None,
    *,
    start: Floats | None = None,
    on_iteration: OnStep | None = None,
) -> JointFit:
    """Maximise the objective by EM, from theta = gamma = 0.5 unless a start is given.

        sum_j m_j sum_e { c log(theta gamma) + (n - c) log(1 - theta gamma) }
        + sum over parameters x of s (v log x + (1 - v) log(1 - x))

    Args:
        table: counts per unit (a pair or signature) and cell.
        options: by default priors of 0.5:2, accelerated, until convergence.
        start: initial theta, shape (K,), in (0, 1); each gamma then starts at clicks over expected clicks.
        on_iteration: called after each step or cycle with the passes so far and the change of theta, relative to the
            largest theta.
    """
    options = options or JointOptions()
    problem, prior = _Problem(table, options), options.attractiveness_prior
    point = {_THETA: np.full(table.n_cells, START), _GAMMA: np.full(table.n_units, START)}
    if start is not None:
        clicks = prior.pseudo_clicks + problem.unit_clicks
        total = prior.strength + table.sum_by_unit(table.impressions * start[table.cell])
        gamma = np.divide(clicks, total, out=np.full_like(total, START), where=total > 0)
        point = {_THETA: start, _GAMMA: np.clip(gamma, 0.0, LARGEST)}
    accelerated = options.accelerate and options.max_iterations >= _CYCLE
    steps = _CYCLE if accelerated else 1
    objective, converged, cycles = -np.inf, False, 0
    copies = {_THETA: 1.0, _GAMMA: table.multiplicity}
    while not converged and steps * (cycles + 1) <= options.max_iterations:
        theta, before = point[_THETA], objective
        if accelerated:
            objective = squarem_cycle(point, problem.step, problem.step_and_objective, copies, (_TINY, LARGEST))
        elif options.tolerance > 0:
            point, objective = problem.step_and_objective(point)
        else:
            point = problem.step(point)
        # Relative to the largest theta, as a common factor is not identified
        before_step, after = (values / max(values.max(), _TINY) for values in (theta, point[_THETA]))
        change = float(np.abs(after - before_step).max())
        gain = abs(objective - before) / max(abs(objective), _TINY) if np.isfinite(objective) else np.inf
        converged = options.tolerance > 0 and max(change, gain) <= options.tolerance
        cycles += 1
        if on_iteration is not None:
            on_iteration(steps * cycles, change)
    _, objective = problem.step_and_objective(point)
    return JointFit(point[_THETA], point[_GAMMA], converged, cycles, steps * cycles, options, objective)


_Point = dict[str, Floats]
"""Theta, shape (K,), and gamma, shape (J,)."""


class _Problem:
    """EM steps and objective on one table; work arrays of the size of the entries are reused between steps."""

    def __init__(self, table: CountTable, options: JointOptions) -> None:
        self.table = table
        self.priors = (options.examination_prior, options.attractiveness_prior)
        self.lengths = table.entries_of_unit
        self.multiplicity = table.multiplicity
        self.skips = table.impressions - table.clicks
        copies = table.spread(table.multiplicity)
        self.unit_clicks = table.sum_by_unit(table.clicks)
        self.cell_clicks = table.sum_by_cell(table.clicks * copies)
        self.cell_impressions = table.sum_by_cell(table.impressions * copies)
        self.unit_impressions = table.sum_by_unit(table.impressions)
        self.complement = np.empty_like(table.impressions)
        self.weights = by_unit_and_cell(table, np.empty_like(table.impressions))

    def step(self, point: _Point) -> _Point:
        """Return the point after one E-step and M-step."""
        theta, gamma = point[_THETA], point[_GAMMA]
        np.take(theta, self.table.cell, out=self.complement, mode="clip")  # three times as fast as "raise" with `out`
        self.complement *= np.repeat(gamma, self.lengths)
        np.subtract(1.0, self.complement, out=self.complement)
        np.divide(self.skips, self.complement, out=self.weights.data)
        by_cell = self.weights.T @ self.multiplicity
        by_unit = self.weights @ np.ones(self.table.n_cells)
        examination, attractiveness = self.priors
        return {
            _THETA: _average(examination, theta, by_cell, self.cell_clicks, self.cell_impressions),
            _GAMMA: _average(attractiveness, gamma, by_unit, self.unit_clicks, self.unit_impressions),
        }

    def step_and_objective(self, point: _Point) -> tuple[_Point, float]:
        """Return the point after one step, and the objective before the step."""
        following = self.step(point)
        theta, gamma, (examination, attractiveness) = point[_THETA], point[_GAMMA], self.priors
        np.log(self.complement, out=self.complement)
        self.complement *= self.skips
        without_click = float(self.multiplicity @ self.table.sum_by_unit(self.complement))
        objective = (
            without_click
            + float(scipy.special.xlogy(self.cell_clicks, theta).sum())
            + float(self.multiplicity @ scipy.special.xlogy(self.unit_clicks, gamma))
            + float(_log_prior(examination, theta).sum())
            + float(self.multiplicity @ _log_prior(attractiveness, gamma))
        )
        return following, objective


def _average(prior: BetaPrior, old: Floats, weight: Floats, clicks: Floats, impressions: Floats) -> Floats:
    """Return the M-step for theta or gamma from the sums of w (`weight`).

    As every click implies the event, no mean is below the click rate; this bound restores the digits of small values
    that 1 - (1 - x) loses. Parameters without impressions and prior do not change.
    """
    total = prior.strength + impressions
    known = np.where(total > 0, total, 1.0)
    average = 1 - (prior.pseudo_skips + (1 - old) * weight) / known
    average = np.clip(average, (prior.pseudo_clicks + clicks) / known, LARGEST)
    return np.where(total > 0, average, old)


def _log_prior(prior: BetaPrior, probability: Floats) -> Floats:
    """Return s (v log x + (1 - v) log(1 - x)), 0 for strength 0."""
    log_clicks = scipy.special.xlogy(prior.pseudo_clicks, probability)
    return log_clicks + scipy.special.xlog1py(prior.pseudo_skips, -probability)
