"""AllPairs intervention harvesting: theta from documents that a changing ranker has shown in several cells.

The interventional set S_ab holds the units that were shown in both cells a and b. A unit's click rate r_je =
c_je / n_je has the mean theta_e gamma_j, so that over one set the click rates of two cells differ by theta alone:

    A_ab = sum_{j in S_ab} m_j r_ja,    M_ab = sum_{j in S_ab} m_j,    E[A_ab] / E[A_ba] = theta_a / theta_b

AllPairs uses every set at once, with one average attractiveness r_ab = r_ba per set, as if each rate were one draw:

    l(theta, r) = sum_{a != b} A_ab log(theta_a r_ab) + (M_ab - A_ab) log(1 - theta_a r_ab)

In (log theta, log r) every term is linear or log(1 - exp(.)), so l is jointly concave: there are no starting values.
Given theta, the best r_ab is a root of a quadratic equation, in closed form; what is left is a concave function of log
theta whose Hessian is minus the Laplacian of a graph, cells being its nodes and sets its edges. Newton's method climbs
it. The optimum is finite exactly on the strongly connected cells (`find_linkage`).

Where every unit of a set was clicked each time, theta_a r_ab = 1 and l has a kink. Every set therefore counts a share
of .001 more units, never clicked: no ratio E[A_ab] / E[A_ba] changes by that, and the optimum stays inside.

Source: Agarwal, Zaitsev, Wang, Li, Najork & Joachims 2019, "Estimating Position Bias without Intrusive Interventions".
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from posbias.core.arrays import linalg, optimize
from posbias.core.arrays.count_table import CountTable, Floats, Integers, sum_by_number
from posbias.core.theta.conditional import Linkage, LinkedCounts, linked_counts

UNCLICKED_SHARE = 1e-3
"""Units without a click that every set counts in addition, as a share of its units."""

_LONGEST_STEP = 4.0  # of a log propensity, in one Newton step
_CANCELLED = 1e-13  # of the objective: a smaller change of it is rounding


@dataclass(frozen=True)
class InterventionalSets:
    """One set of units per two cells that share a clicked one: the edges of a graph on the identified cells."""

    first: Integers  # shape (E,), the lower cell a of each set, numbered 0 .. I - 1 among the identified cells.
    second: Integers  # shape (E,), the higher cell b
    first_clicks: Floats  # shape (E,), A_ab, the sum of the units' click rates in a
    second_clicks: Floats  # shape (E,), A_ba
    units: Floats  # shape (E,), (1 + .001) M_ab

    def profile(self, log_theta: Floats) -> "Profile":
        """Each set at its best r_ab, for log_theta of shape (I,).

        With w = theta_b / theta_a, x = theta_a r solves (A - M x)(1 - w x) + (B - M w x)(1 - x) = 0. The smaller root
        is the one below 1 / max(1, w); its discriminant is written as a sum, which cannot cancel.
        """
        ratio = np.exp(log_theta[self.second] - log_theta[self.first])
        a, b, units = self.first_clicks, self.second_clicks, self.units
        linear = (units + b, ratio * (units + a))
        root = np.sqrt((linear[0] - linear[1]) ** 2 + 4 * ratio * (units - a) * (units - b))
        x = 2 * (a + b) / (linear[0] + linear[1] + root)
        y = ratio * x
        first_curvature = (units - a) * x / (1 - x) ** 2
        second_curvature = (units - b) * y / (1 - y) ** 2
        total = first_curvature + second_curvature
        share = np.divide(first_curvature, total, out=np.full_like(total, 1 / 2), where=total > 0)
        # Both slopes are the flow; the one of the smaller curvature, of the cell with fewer clicks, is rounded less.
        flow = (1 - share) * (a - units * x) / (1 - x) - share * (b - units * y) / (1 - y)
        return Profile(x, y, flow, conductance=share * second_curvature, share=share)

    def at_cells(self, flow: Floats, n_cells: int) -> Floats:
        """The net flow out of each cell: the sum over the sets where it is first, less that where it is second."""
        return sum_by_number(self.first, flow, n_cells) - sum_by_number(self.second, flow, n_cells)

    def laplacian(self, conductance: Floats, n_cells: int) -> Floats:
        """Sum over the sets of conductance (e_a - e_b)(e_a - e_b)', shape (I, I)."""
        coupling = np.zeros((n_cells, n_cells))
        coupling[self.first, self.second] = coupling[self.second, self.first] = conductance
        return np.diag(coupling.sum(axis=1)) - coupling

    def objective(self, profile: "Profile") -> float:
        """The value of l."""
        x, y, a, b = profile.first_probability, profile.second_probability, self.first_clicks, self.second_clicks
        terms = a * np.log(x) + (self.units - a) * np.log1p(-x) + b * np.log(y) + (self.units - b) * np.log1p(-y)
        return float(terms.sum())


@dataclass(frozen=True)
class Profile:
    """The sets at their best r, each array of shape (E,)."""

    first_probability: Floats  # x = theta_a r_ab, in (0, 1)
    second_probability: Floats  # y = theta_b r_ab
    flow: Floats  # the slope of l in log theta_a, which is minus that in log theta_b
    # Minus the curvature of l in log theta_a - log theta_b, W_a W_b / (W_a + W_b), where W_a = (M - A) x / (1 - x)^2
    # is that of cell a's term alone
    conductance: Floats
    share: Floats  # W_a / (W_a + W_b)


@dataclass(frozen=True)
class AllPairsFit:
    """The optimum of l."""

    linked: LinkedCounts  # the part of the table that carries information, and the identified cells' numbers
    sets: InterventionalSets  # the interventional sets
    log_theta: Floats  # shape (I,), on the identified cells, 0 at the references
    profile: Profile  # the sets at the optimum
    information: Floats  # shape (F, F), minus the Hessian on the identified cells other than the references
    converged: bool  # whether the last Newton step was below the tolerance
    iterations: int  # Newton steps taken


def fit_allpairs(
    table: CountTable,
    linkage: Linkage,
    *,
    tolerance: float = 1e-10,
    max_iterations: int = 100,
    on_iteration: Callable[[int, float], None] | None = None,
) -> AllPairsFit:
    """Maximise l by Newton's method with step halving, on the identified cells.

    Args:
        table: counts per unit (a pair, stratum or signature) and cell. Units without a click count in the sets.
        linkage: which cells are identified, of the same table.
        tolerance: the largest change of a log propensity that counts as none. A step that no longer shrinks and is
            below 1e-7 is rounding, and counts as none as well.
        max_iterations: Newton steps at most; the result says if they were not enough.
        on_iteration: called after each step with its number and its largest change.
    """
    linked = linked_counts(table, linkage)
    sets = interventional_sets(table, linked)
    limits = optimize.Limits(_LONGEST_STEP, tolerance, stalled=optimize.ROUNDING, max_iterations=max_iterations)
    start = np.zeros(len(linked.cells))
    log_theta, converged, iterations = optimize.climb(partial(_propose, sets, linked.free), start, limits, on_iteration)
    profile = sets.profile(log_theta)
    information = sets.laplacian(profile.conductance, len(linked.cells))[np.ix_(linked.free, linked.free)]
    return AllPairsFit(linked, sets, log_theta, profile, information, converged, iterations)


def interventional_sets(table: CountTable, linked: LinkedCounts) -> InterventionalSets:
    """The sets of all units, those without a click included, between the identified cells."""
    kept = np.zeros(table.n_cells, np.bool_)
    kept[linked.cells] = True
    inside = table.only_cells(kept)
    root = inside.spread(np.sqrt(inside.multiplicity))
    units = linalg.gram(linalg.by_unit_and_cell(inside, root))[np.ix_(linked.cells, linked.cells)]
    clicked = linked.table
    rates = linalg.by_unit_and_cell(
        clicked, clicked.spread(clicked.multiplicity) * clicked.clicks / clicked.impressions
    )
    shown = linalg.by_unit_and_cell(clicked, np.ones(len(clicked.cell)))
    clicks = linalg.gram(rates, shown)
    first, second = np.nonzero(np.triu(clicks + clicks.T, k=1))
    return InterventionalSets(
        first=first.astype(np.int64),
        second=second.astype(np.int64),
        first_clicks=clicks[first, second],
        second_clicks=clicks[second, first],
        units=(1 + UNCLICKED_SHARE) * units[first, second],
    )


def _propose(sets: InterventionalSets, free: Integers, log_theta: Floats) -> optimize.Proposal:
    """Newton's step from log_theta; enough is a gain that is as promised but for rounding."""
    profile = sets.profile(log_theta)
    n_cells = len(log_theta)
    gradient = sets.at_cells(profile.flow, n_cells)[free]
    information = sets.laplacian(profile.conductance, n_cells)[np.ix_(free, free)]
    step = np.zeros(n_cells)
    step[free] = linalg.solve(information, gradient)
    objective = sets.objective(profile)

    def falls_short(step: Floats) -> bool:
        promised = optimize.ENOUGH_ASCENT * float(gradient @ step[free])
        gain = sets.objective(sets.profile(log_theta + step)) - objective
        return not gain >= promised - _CANCELLED * abs(objective)

    return step, falls_short, None
