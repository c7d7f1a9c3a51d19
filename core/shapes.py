"""Propensity curves of a given shape, for models whose cell is a position: monotone, or a power of the position.

Both maximise the likelihood of the conditional estimate,

    l(beta) = sum_j m_j { sum_e c_je beta_e - C_j log sum_e n_je exp(beta_e) },    beta_ref = 0 in each group of cells

over fewer curves. A group (a context) has a reference and a curve of its own.

    power:     beta_k = -eta x_k,  x_k = log position_k - log position_ref; one eta a group (Joachims et al. 2017)
               score s = -sum_e x_e (c_e - C p_e),  information h = C Var_p(x), per unit
    monotone:  beta_1 >= beta_2 >= ... in the order of positions: beta = -(sum of increments before), increments >= 0

A shape says something where the log does not, and is wrong where it does not hold: each fit comes with a test against
the free estimate.
"""

from dataclasses import dataclass, replace

import numpy as np

from posbias.core.cluster_errors import (
    AGREEING,
    CONFIDENCE,
    ONE_CLUSTER,
    ClusterErrors,
    cluster_errors,
)
from posbias.core.conditional import ConditionalFit, LinkedCounts, fit_conditional, linked_counts
from posbias.core.contrasts import (
    ContrastTest,
    ScoredEstimate,
    conditional_scores,
    difference_test,
    linear_contrast_test,
    linked_members,
    scored_conditional,
    sum_by_cluster,
)
from posbias.core.linkage import Linkage
from posbias.core.numerics import by_unit_and_cell, gram, nonnegative_least_squares, student_quantile
from posbias.core.signatures import CountTable, Flags, Floats, Integers, sum_by_number

SHAPE_ALONE = "the log does not link it: its number rests on the shape alone"
ONE_END = "clicks lie at one end only: no finite slope"
HELD = "the shape holds it at the reference's propensity"

_TOLERANCE = 1e-11  # of a log propensity or of eta, in one step
_ROUNDING = 1e-7  # below it, a step's gain is lost in rounding
_MAX_STEPS = 100
_HALVINGS = 40
_LONGEST_STEP = 4.0
_WHOLE = 1 - 1e-9  # a cluster with this share of the information is the only one


@dataclass(frozen=True)
class ShapedEstimate:
    """A curve of a given shape, one a group of cells.

    Attributes:
        log_theta: shape (K,), log propensity relative to the cell's reference, 0 there; NaN where there is none.
        std_error: shape (K,), of log theta; 0 at the reference, NaN where there is none. Monotone: given the blocks.
        low: shape (K,), lower end of the 95 % interval of theta.
        high: shape (K,), its upper end.
        effective_clusters: shape (K,), what the number's evidence is worth, in equal clusters; NaN at the reference.
        reason: K reasons why a cell has no number or no interval, or why it rests on the shape alone; else None.
        block: shape (K,), monotone: the cell whose number the cell shares, possibly its own. Power: the cell itself.
        eta: shape (K,), power: the severity of the cell's group, NaN where there is none. Monotone: NaN.
        eta_error: shape (K,), its standard error.
        converged: whether the optimum was reached.
        test: of the shape against the free estimate. Power: shape - free, by cell. Monotone: how far the free
            estimate rises from one position to the next, one-sided.
        warning: a sentence where the shape is rejected, else None.
    """

    log_theta: Floats
    std_error: Floats
    low: Floats
    high: Floats
    effective_clusters: Floats
    reason: tuple[str | None, ...]
    block: Integers
    eta: Floats
    eta_error: Floats
    converged: bool
    test: ContrastTest
    warning: str | None

    @property
    def theta(self) -> Floats:
        """Propensity relative to the reference, shape (K,); NaN where there is none."""
        return np.exp(self.log_theta)


def fit_power(
    free: ConditionalFit,
    errors: ClusterErrors,
    table: CountTable,
    linkage: Linkage,
    position_of_cell: Integers,
    unit_of_member: Integers,
    cluster_of_member: Integers,
) -> ShapedEstimate:
    """Fit theta_k = (position_k / position_ref)^-eta, with one eta for each group of cells.

    The whole table counts, also cells that the log does not link with the reference. Errors of eta are CR3 over
    clusters: d_g = s_g / (h - h_g), V = (G - 1)/G sum_g d_g^2, G* = (sum_g h_g)^2 / sum_g h_g^2.

    Args:
        free: the free estimate from `table` and `linkage`.
        errors: its clustered errors.
        table: counts per unit.
        linkage: which cells are identified, and the cells' groups (those of one reference).
        position_of_cell: shape (K,), >= 1.
        unit_of_member: shape (N,), the unit of each member (pair or stratum).
        cluster_of_member: shape (N,), its cluster (query).
    """
    power = _Power(table, linkage, position_of_cell)
    eta, converged = power.maximum()
    slopes = power.errors(eta, unit_of_member, cluster_of_member)
    distance = power.distance
    log_theta = -eta[power.group] * distance
    std_error = slopes.std_error[power.group] * np.abs(distance)
    std_error[(distance == 0) & np.isfinite(log_theta)] = 0.0
    margin = slopes.margin[power.group] * np.abs(distance)
    margin[std_error == 0] = 0.0
    effective = np.where(distance == 0, np.nan, slopes.effective[power.group])
    scored = power.scored(log_theta, std_error, unit_of_member, cluster_of_member)
    test = difference_test(scored, scored_conditional(free, errors, table, linkage, unit_of_member, cluster_of_member))
    with np.errstate(over="ignore"):  # an interval without an upper end has none
        high = np.exp(log_theta + margin)
    return ShapedEstimate(
        log_theta=log_theta,
        std_error=std_error,
        low=np.exp(log_theta - margin),
        high=np.where(np.isinf(high), np.nan, high),
        effective_clusters=effective,
        reason=_power_reasons(log_theta, std_error, slopes.agreeing[power.group], linkage),
        block=np.arange(table.n_cells),
        eta=eta[power.group],
        eta_error=slopes.std_error[power.group],
        converged=converged,
        test=test,
        warning=_power_warning(test, position_of_cell),
    )


def _power_reasons(log_theta: Floats, std_error: Floats, agreeing: Flags, linkage: Linkage) -> tuple[str | None, ...]:
    without = np.isnan(std_error)
    reasons = np.select(
        [np.isnan(log_theta), without & agreeing, without, ~linkage.identified],
        [ONE_END, AGREEING, ONE_CLUSTER, SHAPE_ALONE],
        default="",
    )
    return tuple(str(reason) or None for reason in reasons)


def _power_warning(test: ContrastTest, position_of_cell: Integers) -> str | None:
    if not test.rejected:
        return None
    return (
        f"Propensities do not follow a power of the position: at position {position_of_cell[test.largest]} the power "
        f"says {np.exp(test.difference):.2f} times what the log says without a shape (p = {test.p_value:.2g})."
    )


@dataclass(frozen=True)
class _Slopes:
    """Errors of the etas, half the widths of their intervals, G*, and whether the clusters agree to the last click.

    Each of shape (number of groups,).
    """

    std_error: Floats
    margin: Floats
    effective: Floats
    agreeing: Flags


class _Power:
    """The likelihood of one eta for each group of cells, on the units with a click and two cells."""

    def __init__(self, table: CountTable, linkage: Linkage, position_of_cell: Integers) -> None:
        log_position = np.log(position_of_cell)
        self.distance = log_position - log_position[linkage.reference_of]
        references, self.group = np.unique(linkage.reference_of, return_inverse=True)
        self.n_groups = len(references)
        units = np.flatnonzero((table.entries_of_unit > 1) & (table.sum_by_unit(table.clicks) > 0))
        part = table.take(units)
        clicks = part.sum_by_unit(part.clicks)
        self.links = LinkedCounts(part, np.arange(table.n_cells), units, linkage.reference_of, clicks)
        self.x = self.distance[part.cell]
        self.group_of_unit = self.group[part.cell[part.start[:-1]]]
        self.weight = part.multiplicity * clicks

    def maximum(self) -> tuple[Floats, bool]:
        """The etas, NaN where clicks lie at one end, by Newton's method with step halving; and whether it converged."""
        eta = np.zeros(self.n_groups)
        converged = False
        for _ in range(_MAX_STEPS):
            shares = self.links.shares(-eta[self.group] * self.distance)
            score, information = (self._by_group(values) for values in self.slopes(shares))
            step = np.divide(score, information, out=np.zeros_like(eta), where=self.finite & (information > 0))
            step = self._climbing(shares, np.clip(step, -_LONGEST_STEP, _LONGEST_STEP))
            eta += step
            converged = float(np.abs(step).max()) <= _TOLERANCE
            if converged:
                break
        return np.where(self.finite, eta, np.nan), converged

    @property
    def finite(self) -> Flags:
        """The groups with an optimum: some click lies before the last, and some after the first cell of its unit."""
        part = self.links.table
        clicked = part.sum_by_unit(part.clicks * self.x)
        before = self.links.unit_clicks * part.max_by_unit(self.x) - clicked
        after = clicked + self.links.unit_clicks * part.max_by_unit(-self.x)
        inner = np.stack([before, after]) > _TOLERANCE * self.links.unit_clicks
        return np.logical_and(*(np.bincount(self.group_of_unit[some], minlength=self.n_groups) > 0 for some in inner))

    def slopes(self, shares: Floats) -> tuple[Floats, Floats]:
        """The score and the information of one copy of each unit, each of shape (J,)."""
        part, clicks = self.links.table, self.links.unit_clicks
        mean = part.sum_by_unit(shares * self.x)
        score = clicks * mean - part.sum_by_unit(part.clicks * self.x)
        return score, clicks * part.sum_by_unit(shares * (self.x - part.spread(mean)) ** 2)

    def _climbing(self, shares: Floats, step: Floats) -> Floats:
        """The step, halved in the groups where it would descend."""
        for _ in range(_HALVINGS):
            gains = _gains(self.links, shares, -step[self.group[self.links.table.cell]] * self.x)
            falls = (self._by_group(gains) < 0) & (np.abs(step) > _ROUNDING)
            if not falls.any():
                break
            step = np.where(falls, step / 2, step)
        return step

    def _by_group(self, per_unit: Floats) -> Floats:
        return sum_by_number(self.group_of_unit, self.links.table.multiplicity * per_unit, self.n_groups)

    def errors(self, eta: Floats, unit_of_member: Integers, cluster_of_member: Integers) -> _Slopes:
        """CR3 over the clusters of each group: the clusters of different groups do not mix."""
        scores, informations = self.slopes(self.links.shares(-np.nan_to_num(eta)[self.group] * self.distance))
        unit, cluster = linked_members(self.links, unit_of_member, cluster_of_member)
        _, row = np.unique(cluster, return_inverse=True)
        keys, number = np.unique(row * self.n_groups + self.group_of_unit[unit], return_inverse=True)
        group = keys % self.n_groups
        score = sum_by_number(number, scores[unit], len(keys))
        information = sum_by_number(number, informations[unit], len(keys))
        total = sum_by_number(group, information, self.n_groups)[group]
        alone = information > _WHOLE * total
        change = score / np.where(alone, np.nan, total - information)
        n_clusters = np.bincount(group, minlength=self.n_groups)
        with np.errstate(invalid="ignore", divide="ignore"):  # a group without clusters has no error
            variance = sum_by_number(group, change**2, self.n_groups) * (n_clusters - 1) / n_clusters
            effective = 1 / sum_by_number(group, (information / total) ** 2, self.n_groups)
            agreeing = variance * self._by_group(informations) <= _ROUNDING**2
        variance[~self.finite | (n_clusters == 0) | agreeing] = np.nan
        quantile = student_quantile((1 + CONFIDENCE) / 2, np.maximum(np.minimum(effective, n_clusters - 1), 1.0))
        return _Slopes(
            std_error=np.sqrt(variance),
            margin=quantile * np.sqrt(variance),
            effective=effective,
            agreeing=agreeing,
        )

    def scored(
        self, log_theta: Floats, std_error: Floats, unit_of_member: Integers, cluster_of_member: Integers
    ) -> ScoredEstimate:
        """The curve with its clusters' scores and the response x x' / h."""
        known = np.nan_to_num(log_theta)
        clusters, scores = sum_by_cluster(
            self.links.table,
            conditional_scores(self.links, known),
            *linked_members(self.links, unit_of_member, cluster_of_member),
        )
        information = np.where(self.finite, self._by_group(self.slopes(self.links.shares(known))[1]), np.inf)
        same = self.group[:, np.newaxis] == self.group
        return ScoredEstimate(
            log_theta=log_theta,
            std_error=std_error,
            degrees=np.full(len(log_theta), np.inf),
            clusters=clusters,
            scores=scores,
            response=same * np.outer(self.distance / information[self.group], self.distance),
        )


def fit_monotone(
    free: ConditionalFit,
    errors: ClusterErrors,
    table: CountTable,
    linkage: Linkage,
    position_of_cell: Integers,
    unit_of_member: Integers,
    cluster_of_member: Integers,
) -> ShapedEstimate:
    """Fit the most likely curve that nowhere rises with the position, over the identified cells.

    Cells that the constraint pools form a block and share one number. Errors are those of the conditional estimate from
    the table with the cells of a block added up: given the blocks, and so somewhat too small where chance chose them.
    A cell in its reference's block has the propensity 1 by the constraint alone, and no error.

    Args: as for `fit_power`.
    """
    curve = _Monotone(linked_counts(table, linkage), position_of_cell)
    increments, settled = curve.maximum()
    cells, own = curve.linked.cells, np.arange(table.n_cells)
    block = own.copy()
    block[cells] = cells[curve.blocks(increments)]
    at_reference = linkage.identified & (linkage.reference_of == own)
    held = linkage.identified & (linkage.reference_of == block) & ~at_reference
    moves = linkage.identified & (linkage.reference_of != block)
    numbers = np.full((5, table.n_cells), np.nan)
    if moves.any():
        merged = _merged_table(table, block), _merged_linkage(linkage, block, moves)
        pooled = _numbers(*merged, unit_of_member, cluster_of_member)
        numbers[:, moves] = pooled[:, block[moves]]
    numbers[:, at_reference] = np.array([[0.0], [0.0], [1.0], [1.0], [np.nan]])
    numbers[0, held] = 0.0
    log_theta, std_error, low, high, effective = numbers
    alone = moves & np.isnan(std_error)
    reasons = np.select([held, alone], [HELD, ONE_CLUSTER], default=np.array([text or "" for text in linkage.reason]))
    test = curve.rises(free, errors)
    return ShapedEstimate(
        log_theta=log_theta,
        std_error=std_error,
        low=low,
        high=high,
        effective_clusters=effective,
        reason=tuple(str(reason) or None for reason in reasons),
        block=block,
        eta=np.full(table.n_cells, np.nan),
        eta_error=np.full(table.n_cells, np.nan),
        converged=settled and curve.is_optimal(log_theta[cells]),
        test=test,
        warning=curve.warning(test),
    )


def _merged_linkage(linkage: Linkage, block: Integers, moves: Flags) -> Linkage:
    """Blocks as cells, under the numbers of the cells that stand for them; without groups of one block."""
    stands = block == np.arange(len(block))
    several = np.isin(linkage.reference_of, linkage.reference_of[moves])
    return replace(linkage, identified=linkage.identified & stands & several)


def _merged_table(table: CountTable, block: Integers) -> CountTable:
    """The table with the cells of a block added up; units keep their numbers."""
    keys, number = np.unique(table.unit_of_entry * table.n_cells + block[table.cell], return_inverse=True)
    return CountTable(
        n_cells=table.n_cells,
        start=np.searchsorted(keys, np.arange(table.n_units + 1) * table.n_cells),
        cell=keys % table.n_cells,
        impressions=sum_by_number(number, table.impressions, len(keys)),
        clicks=sum_by_number(number, table.clicks, len(keys)),
        multiplicity=table.multiplicity,
    )


def _numbers(table: CountTable, linkage: Linkage, unit_of_member: Integers, cluster_of_member: Integers) -> Floats:
    """The conditional log theta, its error, its interval's ends and its effective clusters, shape (5, K)."""
    fit = fit_conditional(table, linkage)
    errors = cluster_errors(fit, table, linkage, unit_of_member, cluster_of_member)
    return np.stack([fit.log_theta, errors.std_error, errors.low, errors.high, errors.effective_clusters])


class _Monotone:
    """The likelihood of non-increasing curves on the linked cells, in terms of increments x >= 0: beta = M x.

    Attributes:
        upper: shape (N,), the cell before each increment, in the order of groups and positions.
        lower: shape (N,), the cell after it.
        curve_of: shape (I, N), M: -1 where the cell lies after the increment, in its group.
    """

    def __init__(self, linked: LinkedCounts, position_of_cell: Integers) -> None:
        self.linked = linked
        self.position = position_of_cell[linked.cells]
        group = linked.reference_of
        self.order = np.lexsort((self.position, group))
        self.follows = np.diff(group[self.order]) == 0
        self.upper, self.lower = self.order[:-1][self.follows], self.order[1:][self.follows]
        after = (group[:, np.newaxis] == group[self.lower]) & (
            self.position[:, np.newaxis] >= self.position[self.lower]
        )
        self.curve_of = -after.astype(np.float64)
        self.weight = linked.table.multiplicity * linked.unit_clicks

    def maximum(self) -> tuple[Floats, bool]:
        """The increments of the most likely curve, exactly 0 within a block, and whether they stopped changing.

        Each step maximises l's quadratic expansion under x >= 0, which is a non-negative least squares problem in
        the Cholesky factor of the information, and is halved until l gains.
        """
        increments = np.zeros(len(self.lower))
        for _ in range(_MAX_STEPS):
            shares = self.linked.shares(self.curve_of @ increments)
            gradient, information = self._slopes(shares)
            step = _newton_target(increments, gradient, information) - increments
            largest = float(np.abs(step).max())
            step *= min(1.0, _LONGEST_STEP / max(largest, _LONGEST_STEP))
            for _ in range(_HALVINGS):
                gains = _gains(self.linked, shares, (self.curve_of @ step)[self.linked.table.cell])
                if largest <= _ROUNDING or self.linked.table.multiplicity @ gains > 0:
                    break
                step /= 2
            increments = np.maximum(increments + step, 0.0)
            if largest <= _ROUNDING / 10:
                return increments, True
        return increments, False

    def _slopes(self, shares: Floats) -> tuple[Floats, Floats]:
        """Gradient, shape (N,), and minus the Hessian, shape (N, N), with respect to the increments."""
        table = self.linked.table
        expected = table.spread(self.weight) * shares
        gradient = table.sum_by_cell(table.spread(table.multiplicity) * table.clicks - expected)
        information = -gram(by_unit_and_cell(table, shares * table.spread(np.sqrt(self.weight))))
        information += np.diag(table.sum_by_cell(expected))
        return self.curve_of.T @ gradient, self.curve_of.T @ information @ self.curve_of

    def blocks(self, increments: Floats) -> Integers:
        """The cell that stands for each cell's block, shape (I,): the reference where it is in it, else the first."""
        begins = np.ones(len(self.order), np.bool_)
        begins[1:][self.follows] = increments > 0
        number = np.cumsum(begins) - 1
        stands = self.order[begins]
        is_reference = self.linked.reference_of[self.order] == self.order
        stands[number[is_reference]] = self.order[is_reference]
        block = np.empty_like(self.order)
        block[self.order] = stands[number]
        return block

    def is_optimal(self, beta: Floats) -> bool:
        """Karush, Kuhn and Tucker's conditions: no increment is below 0, and no possible change of one gains."""
        gradient, information = self._slopes(self.linked.shares(beta))
        wanted = gradient / np.diag(information)  # each increment's own Newton step
        increments = beta[self.upper] - beta[self.lower]
        within = np.abs(np.where(increments > 0, wanted, np.maximum(wanted, 0.0))) <= _ROUNDING
        return bool(within.all() and (increments >= 0).all())

    def rises(self, free: ConditionalFit, errors: ClusterErrors) -> ContrastTest:
        """Test whether the free estimate rises from any position to the next."""
        step = np.arange(len(self.lower))
        contrasts = np.zeros((len(step), len(free.log_theta)))
        contrasts[step, self.linked.cells[self.lower]] = 1.0
        contrasts[step, self.linked.cells[self.upper]] = -1.0
        return linear_contrast_test(contrasts, free, errors, alternative="greater")

    def warning(self, test: ContrastTest) -> str | None:
        """What to say where the free estimate rises beyond chance."""
        if not test.rejected:
            return None
        upper, lower = self.position[self.upper[test.largest]], self.position[self.lower[test.largest]]
        return (
            f"Propensities do not fall throughout: from position {upper} to position {lower} they rise by a factor of "
            f"{np.exp(test.difference):.2f} in the log (p = {test.p_value:.2g}), which --shape monotone levels."
        )


def _gains(linked: LinkedCounts, shares: Floats, move: Floats) -> Floats:
    """What each unit adds to l when the log propensities of its entries move, shape (J,), of one of its copies."""
    table = linked.table
    growth = table.sum_by_unit(shares * np.expm1(move))
    return table.sum_by_unit(table.clicks * move) - linked.unit_clicks * np.log1p(growth)


def _newton_target(increments: Floats, gradient: Floats, information: Floats) -> Floats:
    """The x >= 0 that maximises gradient'(x - x0) - (x - x0)' information (x - x0) / 2."""
    scale = 1 / np.sqrt(np.diag(information))
    root = np.linalg.cholesky(information * np.outer(scale, scale)).T.astype(np.float64)
    target = root @ (increments / scale) + np.linalg.solve(root.T, gradient * scale)
    return scale * nonnegative_least_squares(root, target)
