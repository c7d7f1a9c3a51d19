"""Maximum likelihood under beta_1 >= beta_2 >= ... by position: beta = -(sum of increments above), increments >= 0."""

from dataclasses import replace

import numpy as np
import scipy

from posbias.core.arrays import linalg, optimize
from posbias.core.arrays.count_table import Flags, Floats, Integers
from posbias.core.shapes import SHAPE_ALONE, CurveShape, ShapedEstimate
from posbias.core.standard_errors.cluster import cluster_errors
from posbias.core.standard_errors.contrasts import StrataEstimate, linear_contrast_test, pairwise_contrasts
from posbias.core.theta.conditional import LinkedCounts, fit_conditional, identified_if_monotone, linked_counts

HELD = "the shape holds it at the reference's propensity"

_LIMITS = optimize.Limits(longest_step=4.0, tolerance=optimize.ROUNDING / 10)  # of an increment
_RIDGE = 1e-10  # share of an increment's information; increments without any information stay where they are


class MonotoneShape(CurveShape):
    """Maximum likelihood curve that is nowhere increasing."""

    name = "monotone"

    def fit(self, free: StrataEstimate, position_of_cell: Integers) -> ShapedEstimate:
        """Fit a nowhere increasing curve to each group of cells, over the cells where it is finite and unique.

        These may be more than the identified cells: a position without clicks lies between its neighbours. Cells that
        the constraint pools form a block of equal theta. Errors are those of the conditional estimate from the table
        with the cells of a block added up, given the blocks: somewhat too small, as blocks are estimated. A cell in the
        block of its reference has theta 1 by the constraint, and no error.

        Args: as for `CurveShape.fit`.
        """
        table, free_linkage = free.strata.signatures, free.fit.linkage
        # Bounded cells are not unique where only the order constrains them, between neighbours of different theta.
        # Without them the curve of the other cells is the same.
        bounded = identified_if_monotone(table, free_linkage, position_of_cell)
        while True:
            curve = _Monotone(linked_counts(table, replace(free_linkage, identified=bounded)), position_of_cell)
            increments, resolved, _ = optimize.climb(curve.propose, np.zeros(len(curve.lower)), _LIMITS)
            unique = curve.unique(increments)
            if unique.all():
                break
            bounded[curve.linked.cells[~unique]] = False
        cells, own = curve.linked.cells, np.arange(table.n_cells)
        linkage = replace(free_linkage, identified=np.isin(own, cells))
        block = own.copy()
        block[cells] = cells[curve.blocks(increments)]
        at_reference = linkage.identified & (linkage.reference_of == own)
        held = linkage.identified & (linkage.reference_of == block) & ~at_reference
        moves = linkage.identified & (linkage.reference_of != block)
        numbers = np.full((5, table.n_cells), np.nan)
        reasons: dict[int, str | None] = dict.fromkeys(np.flatnonzero(held).tolist(), HELD)
        if moves.any():
            # Blocks as cells, by the numbers of their representatives; without groups of a single block.
            merged = replace(free.strata, signatures=table.merge_cells(block, table.n_cells))
            several = np.isin(linkage.reference_of, linkage.reference_of[moves])
            representatives = linkage.identified & (block == own) & several
            fit = fit_conditional(merged.signatures, replace(linkage, identified=representatives))
            pooled = cluster_errors(fit, merged)
            by_block = np.stack([fit.log_theta, pooled.std_error, pooled.low, pooled.high, pooled.effective_clusters])
            numbers[:, moves] = by_block[:, block[moves]]
            reasons |= {cell: pooled.reason[int(block[cell])] for cell in np.flatnonzero(moves).tolist()}
        numbers[:, at_reference] = np.array([[0.0], [0.0], [1.0], [1.0], [np.nan]])
        numbers[0, held] = 0.0
        # Test that the free estimate nowhere rises from one identified position to the next.
        order = np.lexsort((position_of_cell, free_linkage.reference_of))
        order = order[free_linkage.identified[order]]
        follows = np.diff(free_linkage.reference_of[order]) == 0
        ends = order[:-1][follows], order[1:][follows]
        test = linear_contrast_test(pairwise_contrasts(*ends, len(own)), free.fit, free.errors, rises_only=True)
        misfit = tuple(int(position_of_cell[cells[test.largest]]) for cells in ends) if test.rejected else ()
        reason = tuple(
            reasons.get(cell) or (SHAPE_ALONE if why and linkage.identified[cell] else why)
            for cell, why in enumerate(free_linkage.reason)
        )
        converged = resolved and curve.is_optimal(numbers[0, cells])
        return ShapedEstimate.from_numbers(numbers, reason, converged=converged, test=test, misfit=misfit, block=block)


class _Monotone:
    """Likelihood of non-increasing curves on the I linked cells, as a function of increments x >= 0: beta = M x.

    Attributes:
        order: shape (I,), cells by group and position.
        follows: shape (I - 1,), whether the next cell in this order is of the same group: N are.
        upper: shape (N,), the cell above each increment.
        lower: shape (N,), the cell below each increment.
        matrix: shape (I, N), M: -1 for the cells below an increment in its group.
        weight: shape (S,), m_j C_j.
    """

    def __init__(self, linked: LinkedCounts, position_of_cell: Integers) -> None:
        self.linked = linked
        position, group = position_of_cell[linked.cells], linked.reference_of
        self.order = np.lexsort((position, group))
        self.follows = np.diff(group[self.order]) == 0
        self.upper, self.lower = self.order[:-1][self.follows], self.order[1:][self.follows]
        below = (group[:, np.newaxis] == group[self.lower]) & (position[:, np.newaxis] >= position[self.lower])
        self.matrix = -below.astype(np.float64)
        self.weight = linked.table.multiplicity * linked.unit_clicks

    def propose(self, increments: Floats) -> optimize.Proposal:
        """Step to the maximum of the quadratic expansion under x >= 0; any gain is enough.

        It solves a non-negative least squares problem in the Cholesky factor of the information (Lawson & Hanson 1974).
        A fraction of the step is feasible, too. Increments without information stay where they are.
        """
        table, shares = self.linked.table, self.linked.shares(self.matrix @ increments)
        gradient, information = self._slopes(shares)

        def falls_short(step: Floats) -> bool:
            move = (self.matrix @ step)[table.cell]
            growth = table.sum_by_unit(shares * np.expm1(move))
            gain = table.sum_by_unit(table.clicks * move) - self.linked.unit_clicks * np.log1p(growth)
            return not table.multiplicity @ gain > 0

        scaled, scale = linalg.unit_diagonal(information + np.diag(np.where(np.diag(information) > 0, 0.0, 1.0)))
        root = np.linalg.cholesky(scaled + _RIDGE * np.eye(len(scaled))).T.astype(np.float64)
        target = root @ (increments / scale) + np.linalg.solve(root.T, gradient * scale)
        if not (np.isfinite(root).all() and np.isfinite(target).all()):
            raise np.linalg.LinAlgError("least squares of numbers that are not finite")
        return scale * scipy.optimize.nnls(root, target)[0] - increments, falls_short, None

    def _slopes(self, shares: Floats) -> tuple[Floats, Floats]:
        """Gradient, shape (N,), and minus the Hessian, shape (N, N), with respect to the increments."""
        table = self.linked.table
        expected = table.spread(self.weight) * shares
        gradient = table.sum_by_cell(table.spread(table.multiplicity) * table.clicks - expected)
        information = -linalg.gram(linalg.by_unit_and_cell(table, shares * table.spread(np.sqrt(self.weight))))
        information += np.diag(table.sum_by_cell(expected))
        return self.matrix.T @ gradient, self.matrix.T @ information @ self.matrix

    def unique(self, increments: Floats) -> Flags:
        """Cells whose beta is unique at the optimum, shape (I,).

        Optimal curves differ only by moves of all cells of a unit together, and cells of equal beta cannot pass each
        other: beta is unique where these constraints link a cell to its reference in both directions.
        """
        table = self.linked.table
        same_unit = np.flatnonzero(np.diff(table.unit_of_entry) == 0)
        first, second, equal = table.cell[same_unit], table.cell[same_unit + 1], increments == 0
        component = linalg.connected(
            np.concatenate([first, second, self.lower[equal]]),
            np.concatenate([second, first, self.upper[equal]]),
            table.n_cells,
            both_ways=True,
        )
        return component == component[self.linked.reference_of]

    def blocks(self, increments: Floats) -> Integers:
        """Representative of each cell's block, shape (I,): the reference if it is in the block, else the first cell."""
        begins = np.ones(len(self.order), np.bool_)
        begins[1:][self.follows] = increments > 0
        number = np.cumsum(begins) - 1
        representative = self.order[begins]
        is_reference = self.linked.reference_of[self.order] == self.order
        representative[number[is_reference]] = self.order[is_reference]
        block = np.empty_like(self.order)
        block[self.order] = representative[number]
        return block

    def is_optimal(self, beta: Floats) -> bool:
        """Check the Karush-Kuhn-Tucker conditions: increments >= 0, and no feasible change of an increment gains."""
        gradient, information = self._slopes(self.linked.shares(beta))
        own = np.diag(information)
        step = np.divide(gradient, own, out=np.zeros_like(gradient), where=own > 0)  # Newton step by coordinate
        increments = beta[self.upper] - beta[self.lower]
        within = np.abs(np.where(increments > 0, step, np.maximum(step, 0.0))) <= optimize.ROUNDING
        return bool(within.all() and (increments >= 0).all())
