"""Conditional maximum likelihood estimation of theta, by the fixed-effects Poisson model, and its identification.

    l(beta) = sum_j m_j { sum_e c_je beta_e - C_j log sum_e n_je exp(beta_e) },  beta_e = log theta_e,  beta_ref = 0

over units j (pairs or strata) with multiplicity m_j, impressions n_je and clicks c_je in cell e, and C_j = sum_e c_je.
The estimate is consistent whenever E[c_je] = n_je theta_e gamma_j, whatever the distribution of clicks (Wooldridge
1999). l is concave, with one finite maximum on the identified cells.

Identification: draw an edge e' -> e between cells if some unit was shown in both and clicked in e. The ratio of two
cells has a finite estimate if and only if both lie in one strongly connected component (Ford 1957; Hunter 2004).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import add
from typing import TypeVar

import numpy as np
import scipy

from posbias.core.arrays import linalg, optimize
from posbias.core.arrays.count_table import CountTable, Flags, Floats, Integers, sum_by_number
from posbias.core.arrays.threads import thread_map
from posbias.core.errors import IdentifiabilityError, printable

NO_CLICKS = "no clicks"
ONE_WAY = "clicks link one way only"
NO_REFERENCE = "the reference asked for is not linked in its context"
NOT_LINKED = "no pair links it to the reference"


@dataclass(frozen=True)
class Linkage:
    """Identification of theta in K cells."""

    # Shape (K,), the reference cell of each cell, one per group (context); in a group without links, its first cell
    reference_of: Integers
    identified: Flags  # shape (K,), whether the cell lies in its reference's strongly connected component
    # K reasons why a cell is not identified, None for an identified cell. `no clicks`: clicked pairs link it to
    # identified cells, but none was clicked in it; `clicks link one way only`: connected to the reference, but not
    # strongly; `no pair links it to the reference`: not connected; `the reference asked for is not linked in its
    # context`.
    reason: tuple[str | None, ...]
    # Shape (K,), number of clicked pairs shown in this cell and in another cell of its component; for a cell without
    # clicks, in this cell and in an identified cell
    linking_pairs: Floats
    linking_clicks: Floats  # shape (K,), clicks of these pairs in that component
    component: Integers  # shape (K,), the smallest cell in the strongly connected component of each cell

    @property
    def references(self) -> Integers:
        """Reference cells, ascending: one per group with a link."""
        return np.unique(self.reference_of[self.identified])

    def comparable(self) -> list[Integers]:
        """Return the strongly connected components of at least two cells, the largest first."""
        groups = [np.flatnonzero(self.component == first) for first in np.unique(self.component[self.component >= 0])]
        return sorted((group for group in groups if len(group) > 1), key=lambda group: (-len(group), int(group[0])))


def find_linkage(
    table: CountTable,
    group_of_cell: Integers | None = None,
    preference: Integers | None = None,
    within: Sequence[str] = (),
    *,
    by_clicks: bool = False,
) -> Linkage:
    """Choose a reference cell per group, and determine which cells are identified relative to it.

    Args:
        table: counts per unit (a pair, stratum or signature) and cell.
        group_of_cell: number of the group (context) of each cell, shape (K,): cells of different groups share no unit,
            and each group has its own reference. By default all cells are one group.
        preference: candidates for the reference, best first; by default all cells, in their order. The reference of a
            group is its first candidate that is linked to another cell.
        within: key columns of a unit other than the pair's, such as the version of the ranker, for the message.
        by_clicks: whether to prefer candidates of the component with the most clicks, before `preference`.

    Raises:
        IdentifiabilityError: there is no click, only one cell, or no candidate is linked to another cell.
    """
    group = np.zeros(table.n_cells, np.int64) if group_of_cell is None else group_of_cell
    preference = np.arange(table.n_cells) if preference is None else preference
    links = table.take(np.flatnonzero(table.links))
    edges = _edges(links)
    component = _components(edges, table.n_cells, both_ways=True)
    size = np.bincount(component, minlength=table.n_cells)[component]
    candidates = preference[size[preference] > 1]
    if by_clicks:
        clicks = links.sum_by_cell(links.spread(links.multiplicity) * links.clicks)
        candidates = candidates[np.argsort(-np.bincount(component, clicks)[component][candidates], kind="stable")]
    if not len(candidates):
        raise IdentifiabilityError(_no_links_message(table, int((size > 1).sum()), within))
    # The first candidate of each cell's group, or its first cell where the group has no candidate:
    # e.g. groups [0, 0, 0, 1, 1], candidates [2, 0] -> [2, 2, 2, 3, 3]
    ordered = np.concatenate([candidates, np.arange(len(group))])
    _, first, number = np.unique(group[ordered], return_index=True, return_inverse=True)
    reference_of: Integers = ordered[first][number[len(candidates) :]]
    has_link = np.isin(reference_of, candidates)
    identified = (component == component[reference_of]) & has_link
    lost = ~has_link & (len(preference) < table.n_cells)
    connection = _components(edges, table.n_cells, both_ways=False)  # weakly connected components

    def linking(block: CountTable) -> tuple[Floats, ...]:
        """Count the linking pairs and clicks of each cell, each of shape (K,).

        Returns:
            The clicked pairs shown in a cell and elsewhere in its component, their clicks in the component, the pairs
            shown in a cell that were clicked in identified cells, and the clicks there.
        """
        _, group = np.unique(block.unit_of_entry * table.n_cells + component[block.cell], return_inverse=True)
        clicks, copies = sum_by_number(group, block.clicks, len(group))[group], block.spread(block.multiplicity)
        pairs = copies * ((np.bincount(group)[group] > 1) & (clicks > 0))
        elsewhere = block.spread(block.sum_by_unit(block.clicks * identified[block.cell]))
        silent = copies * (elsewhere > 0)
        return tuple(map(block.sum_by_cell, (pairs, pairs * clicks, silent, silent * elsewhere)))

    pairs, clicks, silent_pairs, silent_clicks = links.sum_blocks(linking)
    silent = (silent_pairs > 0) & ~identified & ~np.isin(np.arange(table.n_cells), edges[1])  # never clicked
    linked = (connection == connection[reference_of]) & has_link
    reasons = np.select([lost, silent, linked], [NO_REFERENCE, NO_CLICKS, ONE_WAY], default=NOT_LINKED)
    return Linkage(
        reference_of=reference_of,
        identified=identified,
        reason=tuple(None if known else str(reason) for known, reason in zip(identified, reasons, strict=True)),
        linking_pairs=np.where(silent, silent_pairs, pairs),
        linking_clicks=np.where(silent, silent_clicks, clicks),
        component=component,
    )


def identified_if_monotone(table: CountTable, linkage: Linkage, position_of_cell: Integers) -> Flags:
    """Return whether each cell has a finite estimate if theta may not increase with the position, shape (K,).

    The likelihood does not decrease in a direction d of log theta if d_e' <= d_e along each edge e' -> e, and d keeps
    the order if d is nowhere larger at a position than at the position above it: an edge to the position above. A cell
    is therefore bounded on both sides if and only if it lies in the strongly connected component of its reference in
    the graph of both kinds of edges.

    Args:
        table: counts per unit (a pair, stratum or signature) and cell.
        linkage: identification without the order, from the same table.
        position_of_cell: shape (K,).
    """
    links = table.take(np.flatnonzero(table.links))
    order = np.lexsort((position_of_cell, linkage.reference_of))
    same_group = np.diff(linkage.reference_of[order]) == 0
    tails, heads = _edges(links)
    edges = np.concatenate([tails, order[1:][same_group]]), np.concatenate([heads, order[:-1][same_group]])
    component = _components(edges, table.n_cells, both_ways=True)
    size = np.bincount(component, minlength=table.n_cells)[component]
    lost = np.array([reason == NO_REFERENCE for reason in linkage.reason])
    return (component == component[linkage.reference_of]) & (size > 1) & ~lost


def _edges(links: CountTable) -> tuple[Integers, Integers]:
    """Return the tails and heads of the edges between cells: a linking unit was shown in both and clicked in one."""

    def shown_and_clicked(part: tuple[slice, CountTable]) -> linalg.Sparse:
        _, block = part
        clicked = linalg.by_unit_and_cell(block, (block.clicks > 0).astype(np.float64))
        return linalg.by_unit_and_cell(block, np.ones(block.n_entries)).T @ clicked

    empty = scipy.sparse.csr_array((links.n_cells, links.n_cells))
    tails, heads = reduce(add, thread_map(shown_and_clicked, links.blocks()), empty).nonzero()
    return tails.astype(np.int64), heads.astype(np.int64)


def _components(edges: tuple[Integers, Integers], n_cells: int, *, both_ways: bool) -> Integers:
    """Return the smallest cell of each cell's (strongly, if `both_ways`) connected component, shape (K,)."""
    labels = linalg.connected(*edges, n_cells, both_ways=both_ways)
    _, smallest, label = np.unique(labels, return_index=True, return_inverse=True)
    return smallest[label]


def _no_links_message(table: CountTable, n_linked: int, within: Sequence[str]) -> str:
    n_shown = len(np.unique(table.cell))
    if n_shown <= 1:
        return (
            f"The log shows documents in {n_shown} cell(s) (positions) only, so there is nothing to compare. "
            "Position bias needs results at two or more positions."
        )
    if not table.clicks.any():
        return (
            f"The log has no click in any of its {n_shown} cells (positions), so nothing is known about them. "
            "Check which column holds the clicks (--click), or add more days."
        )
    if n_linked:
        return (
            "The requested reference cell (position) cannot be compared with any other one, while "
            f"{n_linked} others can be compared among themselves. Take one of those as the reference."
        )
    keys = " and ".join(map(printable, within))
    nothing = (
        f"No two of the {n_shown} cells (positions) can be compared: that takes documents that were shown at "
        f"both, for the same query{keys and f' and {keys}'}, and clicked at both."
    )
    if keys:
        return (
            f"{nothing} Where the ranker knows {keys}, or has learned from clicks in between, a comparison without it "
            "would take popularity for attention. Swap positions at random on a share of the pages, mark these in a "
            "column, and use --method randomized --randomized-where COLUMN=VALUE (`posbias explore` of an earlier fit "
            "plans the swaps)."
        )
    return (
        f"{nothing} Position swaps would help: let the same document appear at different positions for the same query "
        "now and then (more days, a changed ranker, or a little randomisation), so that it is clicked at both. Where "
        "no document is shown twice for a query, features of the documents serve instead (`posbias fit LOGS --method "
        "features`)."
    )


_UNDERFLOW = 1e-200  # smaller sums may have lost digits


@dataclass(frozen=True)
class LinkedCounts:
    """The part of a table with information about the I identified cells, numbered 0 .. I - 1."""

    table: CountTable  # J units with a click and at least two identified cells
    cells: Integers  # shape (I,), numbers of the identified cells in the whole table, ascending
    units: Integers  # shape (J,), numbers of the units in the whole table
    reference_of: Integers  # shape (I,), the reference of each cell, in 0 .. I - 1
    unit_clicks: Floats  # shape (J,), C_j in identified cells, without multiplicity

    @property
    def free(self) -> Integers:
        """Cells other than the references, in 0 .. I - 1, shape (F,)."""
        return np.flatnonzero(self.reference_of != np.arange(len(self.cells)))

    def shares(self, log_theta: Floats) -> Floats:
        """Return p_je = n_je theta_e / sum_e' n_je' theta_e' of each entry, for log_theta of shape (I,)."""
        return click_shares(self.table, log_theta)[0]


def linked_counts(table: CountTable, linkage: Linkage) -> LinkedCounts:
    """Restrict a table to the identified cells, and to the units with a click and at least two of them."""
    cells = np.flatnonzero(linkage.identified)
    inside = table.only_cells(linkage.identified)
    units = np.flatnonzero(inside.links)
    linked = inside.take(units)  # no copy: the signatures that link cells come first
    if len(cells) < table.n_cells:
        linked = replace(linked, n_cells=len(cells), cell=np.searchsorted(cells, linked.cell))
    return LinkedCounts(
        table=linked,
        cells=cells,
        units=units,
        reference_of=np.searchsorted(cells, linkage.reference_of[cells]),
        unit_clicks=linked.sum_by_unit(linked.clicks),
    )


def click_shares(table: CountTable, log_theta: Floats) -> tuple[Floats, Floats]:
    """Return each entry's share of its unit's expected clicks and each unit's log exposure, without overflow.

    p_je = n_je theta_e / sum_e' n_je' theta_e', shape (R,)        log sum_e n_je theta_e, shape (J,)
    """
    largest = log_theta.max(initial=0.0)
    share = table.impressions * np.exp(log_theta - largest).take(table.cell)
    total = table.sum_by_unit(share)
    if total.min(initial=1.0) < _UNDERFLOW:  # slower: scale by the largest theta of each unit, not of all cells
        exponent = np.log(table.impressions) + log_theta[table.cell]
        largest = table.max_by_unit(exponent)
        share = np.exp(exponent - table.spread(largest))
        total = table.sum_by_unit(share)
    share /= table.spread(total)
    return share, largest + np.log(total)


_Output = TypeVar("_Output")

_ROOT_STEPS, _ROOT_PRECISION = 200, 1e-13

UPPER_TAIL = 0.025
"""Probability above the upper limit of a cell without clicks, as above a 95 % interval."""

# Of conjugate gradients: relative precision, and maximum iterations as a multiple of the number of unknowns (1 in exact
# arithmetic)
_PRECISION, _ROUNDS = 1e-10, 4
_WARM_UP = 8  # scaling steps before Newton's: cheap, monotone from any start, and accurate to an order of magnitude
_LONGEST_STEP = 8.0  # of a log propensity in one Newton step, so that exp(step) does not overflow


@dataclass(frozen=True)
class ConditionalFit:
    """Conditional estimate of theta."""

    linkage: Linkage
    log_theta: Floats  # shape (K,), log propensity, 0 at the reference; NaN where not identified
    converged: bool  # whether the last Newton step was below the tolerance
    iterations: int  # Newton steps taken
    objective: float  # l at the estimate
    free_cells: Integers  # shape (F,), identified cells other than the references, ascending
    information: Floats  # shape (F, F), minus the Hessian of l on the free cells

    @property
    def theta(self) -> Floats:
        """Propensity relative to the reference, shape (K,), > 0 and possibly above 1; NaN where not identified."""
        return np.exp(self.log_theta)

    @cached_property
    def inverse(self) -> Floats:
        """Inverse of the information, shape (F, F).

        Raises:
            numpy.linalg.LinAlgError: the information is singular.
        """
        return linalg.inverse(self.information)


def fit_conditional(
    table: CountTable,
    linkage: Linkage,
    *,
    tolerance: float = 1e-12,
    max_iterations: int = 100,
    on_iteration: optimize.OnStep | None = None,
) -> ConditionalFit:
    """Maximise l by Newton's method with step halving, on the identified cells.

    gradient_e = C_e - sum_j m_j C_j p_je;  Hessian = -sum_j m_j C_j (diag(p_j) - p_j p_j').

    From 500 cells on, steps are computed by conjugate gradients, and only the last Hessian is computed.

    Args:
        table: counts per unit (a pair, stratum or signature) and cell.
        linkage: from the same table.
        tolerance: the fit has converged when no log propensity changes by more than this; or by less than 1e-7 if the
            steps no longer shrink, which is rounding.
        max_iterations: maximum number of Newton steps; `converged` is False if they do not suffice.
        on_iteration: called after each step with its number and its largest change.
    """
    linked = linked_counts(table, linkage)
    likelihood = Likelihood(linked)
    limits = optimize.Limits(_LONGEST_STEP, tolerance, stalled=optimize.ROUNDING, max_iterations=max_iterations)
    start = np.zeros(linked.table.n_cells)
    for _ in range(_WARM_UP):
        start = start + likelihood.scaling_step(start)
    beta, converged, iterations = optimize.climb(likelihood.propose, start, limits, on_iteration)
    log_theta = np.full(table.n_cells, np.nan)
    log_theta[linked.cells] = beta - beta[linked.reference_of]
    _, information = likelihood.slopes(beta)
    return ConditionalFit(
        linkage=linkage,
        log_theta=log_theta,
        converged=converged,
        iterations=iterations,
        objective=likelihood.objective(beta),
        free_cells=linked.cells[linked.free],
        information=information[np.ix_(linked.free, linked.free)],
    )


def upper_limits_without_clicks(fit: ConditionalFit, table: CountTable) -> Floats:
    """Return the upper 97.5 % confidence limit of theta_e for the cells without clicks.

    Given the clicks C_j of the pairs that link the cell, all of them fell elsewhere with probability
    prod_j (A_j / (A_j + n_je theta_e))^C_j, A_j = sum over identified cells of n theta. The limit makes this .025:

        sum_j m_j C_j log(1 + n_je theta_e / A_j) = -log(.025)

    Returns:
        Shape (K,), relative to the reference; NaN for every other cell.
    """
    limits = np.full(table.n_cells, np.nan)
    for cell, weight, ratio in _links_of_silent_cells(fit, table):
        # The sum is concave and increasing, so that Newton's method from below never passes the root.
        level = -np.log(UPPER_TAIL)
        root, step = level / float(weight @ ratio), np.inf
        for _ in range(_ROOT_STEPS):
            if not step > _ROOT_PRECISION * root:
                break
            missing = level - float(weight @ np.log1p(ratio * root))
            step = missing / float(weight @ (ratio / (1 + ratio * root)))
            root += step
        limits[cell] = root
    return limits


@dataclass(frozen=True)
class SilenceTest:
    """Test of given propensities in cells without clicks."""

    # Shape (K,), two-sided: twice the probability of no click in the cell, at most 1; NaN except in cells without
    # clicks that have a given propensity
    p_value: Floats
    expected: Floats  # shape (K,), expected clicks, sum_j C_j n_je theta_e / A_j; NaN where the p-value is

    @property
    def cells(self) -> Integers:
        """Tested cells."""
        return np.flatnonzero(np.isfinite(self.p_value))


def silence_test(fit: ConditionalFit, table: CountTable, theta: Floats) -> SilenceTest:
    """Test whether the cells without clicks can have the propensities theta.

    P(no click) = prod_j (A_j / (A_j + n_je theta_e))^C_j, as for `upper_limits_without_clicks`.

    Args:
        fit: the conditional estimate from `table`.
        table: counts per unit and cell.
        theta: shape (K,), relative to the reference; NaN where a cell is not to be tested.
    """
    p_value, expected = np.full((2, table.n_cells), np.nan)
    for cell, weight, ratio in _links_of_silent_cells(fit, table):
        odds = ratio * theta[cell]
        p_value[cell] = min(2 * np.exp(-float(weight @ np.log1p(odds))), 1.0)
        expected[cell] = float(weight @ odds)
    p_value[np.isnan(theta)] = np.nan
    return SilenceTest(p_value, np.where(np.isnan(theta), np.nan, expected))


def _links_of_silent_cells(fit: ConditionalFit, table: CountTable) -> Iterator[tuple[int, Floats, Floats]]:
    """Yield each cell without clicks, with m_j C_j and n_je / A_j of the units that link it."""
    linkage = fit.linkage
    silent_cells = [number for number, reason in enumerate(linkage.reason) if reason == NO_CLICKS]
    if not silent_cells:
        return
    theta = np.where(linkage.identified, np.nan_to_num(fit.theta), 0.0)
    expected = table.sum_by_unit(table.impressions * theta[table.cell])
    clicks = table.sum_by_unit(table.clicks * linkage.identified[table.cell])
    unit = table.unit_of_entry
    silent = np.flatnonzero(np.isin(table.cell, silent_cells) & (clicks[unit] > 0))
    for cell in silent_cells:
        entries = silent[table.cell[silent] == cell]
        units = unit[entries]
        yield cell, table.multiplicity[units] * clicks[units], table.impressions[entries] / expected[units]


class Likelihood:
    """Objective l on the identified cells, numbered 0 .. I - 1, its derivatives, and the steps of its maximisation.

    Only differences of beta within the cells of one reference matter. Here the cell with the most clicks (the anchor),
    not the reference, is fixed at 0: its gradient has the largest rounding error, which then affects no other cell.
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

    def _over_blocks(self, beta: Floats, work: Callable[[CountTable, Floats, Floats], _Output]) -> Iterator[_Output]:
        """Yield the result of a function for each block of the table, the weights of its units, and p_je at beta."""

        def work_on_block(block: tuple[slice, CountTable]) -> _Output:
            units, table = block
            return work(table, self.weight[units], click_shares(table, beta)[0])

        return thread_map(work_on_block, self.table.blocks())

    def objective(self, beta: Floats) -> float:
        """Return l(beta), for beta of shape (I,)."""
        spread = sum(float(self.weight[units] @ click_shares(block, beta)[1]) for units, block in self.table.blocks())
        return float(self.cell_clicks @ beta) - spread

    def gain(self, beta: Floats, step: Floats) -> float:
        """Return l(beta + step) - l(beta), without the cancellation of that difference."""
        growth = np.expm1(step)

        def lost(block: CountTable, weight: Floats, shares: Floats) -> float:
            return float(weight @ np.log1p(block.sum_by_unit(shares * growth[block.cell])))

        return float(self.cell_clicks @ step) - sum(self._over_blocks(beta, lost))

    def expected(self, beta: Floats) -> Floats:
        """Return the expected clicks of each cell at beta, sum_j m_j C_j p_je, shape (I,)."""
        return sum(self._over_blocks(beta, _expected), np.zeros_like(beta))

    def scaling_step(self, beta: Floats) -> Floats:
        """Return a step of iterative proportional fitting, theta_e <- theta_e C_e / expected C_e, shape (I,).

        Each step raises l; convergence is linear.
        """
        step = np.log(self.cell_clicks / self.expected(beta))
        return step - step[self.anchor_of]

    def propose(self, beta: Floats) -> optimize.Proposal:
        """Propose Newton's step from beta, or a scaling step if rounding hides every gain."""
        step = np.zeros_like(beta)
        if len(self.free) >= linalg.MANY:  # from H v = sum_j w_j (p_j * v - p_j (p_j'v)) alone
            shares = click_shares(self.table, beta)[0]
            by_unit = linalg.by_unit_and_cell(self.table, shares)
            expected, whole = by_unit.T @ self.weight, np.zeros_like(beta)
            diagonal = self.table.sum_by_cell(self.table.spread(self.weight) * shares * (1 - shares))
            gradient, scale = self.cell_clicks - expected, 1 / np.sqrt(diagonal[self.free])

            def times(vector: Floats) -> Floats:
                whole[self.free] = scale * vector
                return scale * (expected * whole - by_unit.T @ (self.weight * (by_unit @ whole)))[self.free]

            solvers, size = scipy.sparse.linalg, len(scale)
            system = solvers.LinearOperator((size, size), matvec=times, dtype=np.float64)
            right, most = scale * gradient[self.free], _ROUNDS * size
            step[self.free] = scale * solvers.cg(system, right, rtol=_PRECISION, maxiter=most)[0]
        else:
            gradient, information = self.slopes(beta)
            step[self.free] = linalg.solve(information[np.ix_(self.free, self.free)], gradient[self.free])
        enough = optimize.ENOUGH_ASCENT * gradient
        return step, lambda step: not self.gain(beta, step) >= float(enough @ step), lambda: self.scaling_step(beta)

    def slopes(self, beta: Floats) -> tuple[Floats, Floats]:
        """Return the gradient, shape (I,), and minus the Hessian, shape (I, I), whose rows add up to 0."""
        if len(self.free) >= linalg.MANY:  # one sparse product instead of a dense one per block
            expected, coupling = _expected_and_coupling(self.table, self.weight, click_shares(self.table, beta)[0])
            return self.cell_clicks - expected, laplacian(coupling)
        expected, coupling = np.zeros_like(beta), np.zeros((len(beta), len(beta)))
        for block_expected, block_coupling in self._over_blocks(beta, _expected_and_coupling):
            expected += block_expected
            coupling += block_coupling
        return self.cell_clicks - expected, laplacian(coupling)


def _expected(block: CountTable, weight: Floats, shares: Floats) -> Floats:
    return block.sum_by_cell(shares * block.spread(weight))


def _expected_and_coupling(block: CountTable, weight: Floats, shares: Floats) -> tuple[Floats, Floats]:
    coupling = linalg.gram(linalg.by_unit_and_cell(block, shares * block.spread(np.sqrt(weight))))
    return _expected(block, weight, shares), coupling


def laplacian(coupling: Floats) -> Floats:
    """Return diag(row sums) - coupling, of one matrix or a stack, shape (..., I, I), written over `coupling`.

    With coupling = sum_j w_j p_j p_j' this is sum_j w_j (diag(p_j) - p_j p_j'). The diagonal is the sum of the
    off-diagonal couplings, which does not cancel as sum_j w_j (p_je - p_je^2) may.
    """
    diagonal = np.arange(coupling.shape[-1], dtype=np.int64)
    coupling[..., diagonal, diagonal] = 0.0
    row_sums = coupling.sum(axis=-1)
    np.subtract(0.0, coupling, out=coupling)
    coupling[..., diagonal, diagonal] = row_sums
    return coupling
