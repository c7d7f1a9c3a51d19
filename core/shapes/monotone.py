"""The most likely curve that nowhere rises with the position.

beta_1 >= beta_2 >= ... in the order of positions: beta = -(sum of increments before), increments >= 0
"""

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
_STAY = 1e-10  # share of an increment's information that holds it where it is: some the log does not speak of


class MonotoneShape(CurveShape):
    """The most likely curve that nowhere rises."""

    name = "monotone"

    def fit(self, free: StrataEstimate, position_of_cell: Integers) -> ShapedEstimate:
        """Fit the most likely curve that nowhere rises, over the cells where it is finite and unique.

        Those may be more than the identified ones: a position without clicks lies between its neighbours. Cells that
        the constraint pools form a block and share one number. Errors are those of the conditional estimate from the
        table with the cells of a block added up: given the blocks, and so somewhat too small where chance chose them. A
        cell in its reference's block has the propensity 1 by the constraint alone, and no error.

        Args: as for `CurveShape.fit`.
        """
        table, by_log = free.strata.signatures, free.fit.linkage
        # Bounded cells may still float: where nothing but the order holds them, they may lie anywhere between
        # neighbours that differ. Without them the curve of the others is the same. Increments are exactly 0 in a block.
        bounded = identified_if_monotone(table, by_log, position_of_cell)
        while True:
            curve = _Monotone(linked_counts(table, replace(by_log, identified=bounded)), position_of_cell)
            increments, resolved, _ = optimize.climb(curve.propose, np.zeros(len(curve.lower)), _LIMITS)
            unique = curve.unique(increments)
            if unique.all():
                break
            bounded[curve.linked.cells[~unique]] = False
        cells, own = curve.linked.cells, np.arange(table.n_cells)
        linkage = replace(by_log, identified=np.isin(own, cells))
        block = own.copy()
        block[cells] = cells[curve.blocks(increments)]
        at_reference = linkage.identified & (linkage.reference_of == own)
        held = linkage.identified & (linkage.reference_of == block) & ~at_reference
        moves = linkage.identified & (linkage.reference_of != block)
        numbers = np.full((5, table.n_cells), np.nan)
        without_error: dict[int, str | None] = dict.fromkeys(np.flatnonzero(held).tolist(), HELD)
        if moves.any():
            # Blocks as cells, under the numbers of the cells that stand for them; without groups of one block.
            merged = replace(free.strata, signatures=table.merge_cells(block, table.n_cells))
            several = np.isin(linkage.reference_of, linkage.reference_of[moves])
            of_blocks = replace(linkage, identified=linkage.identified & (block == own) & several)
            fit = fit_conditional(merged.signatures, of_blocks)
            pooled = cluster_errors(fit, merged)
            of_block = np.stack([fit.log_theta, pooled.std_error, pooled.low, pooled.high, pooled.effective_clusters])
            numbers[:, moves] = of_block[:, block[moves]]
            without_error |= {cell: pooled.reason[int(block[cell])] for cell in np.flatnonzero(moves).tolist()}
        numbers[:, at_reference] = np.array([[0.0], [0.0], [1.0], [1.0], [np.nan]])
        numbers[0, held] = 0.0
        # Does the free estimate rise from any position to the next one that it has, and where does it rise most?
        order = np.lexsort((position_of_cell, by_log.reference_of))
        order = order[by_log.identified[order]]
        follows = np.diff(by_log.reference_of[order]) == 0
        ends = order[:-1][follows], order[1:][follows]
        test = linear_contrast_test(pairwise_contrasts(*ends, len(own)), free.fit, free.errors, rises_only=True)
        misfit = tuple(int(position_of_cell[cells[test.largest]]) for cells in ends) if test.rejected else ()
        unlinked = [
            SHAPE_ALONE if here and why else why for here, why in zip(linkage.identified, by_log.reason, strict=True)
        ]
        reason = tuple(without_error.get(cell) or why for cell, why in enumerate(unlinked))
        converged = resolved and curve.is_optimal(numbers[0, cells])
        return ShapedEstimate.of(numbers, reason, converged=converged, test=test, misfit=misfit, block=block)


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

    def propose(self, increments: Floats) -> optimize.Proposal:
        """The step to the maximum of the quadratic expansion under x >= 0; enough is any gain.

        That is a non-negative least squares problem in the Cholesky factor of the information (Lawson & Hanson 1974); a
        part of the way there no increment is below 0, either. Where nothing speaks, the increment stays.
        """
        table, shares = self.linked.table, self.linked.shares(self.curve_of @ increments)
        gradient, information = self._slopes(shares)

        def falls_short(step: Floats) -> bool:
            move = (self.curve_of @ step)[table.cell]
            growth = table.sum_by_unit(shares * np.expm1(move))
            gain = table.sum_by_unit(table.clicks * move) - self.linked.unit_clicks * np.log1p(growth)
            return not table.multiplicity @ gain > 0

        scaled, scale = linalg.unit_diagonal(information + np.diag(np.where(np.diag(information) > 0, 0.0, 1.0)))
        root = np.linalg.cholesky(scaled + _STAY * np.eye(len(scaled))).T.astype(np.float64)
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
        return self.curve_of.T @ gradient, self.curve_of.T @ information @ self.curve_of

    def unique(self, increments: Floats) -> Flags:
        """The cells that cannot move from this curve without loss or a rise, shape (I,).

        Cells of one unit only move together, and past no neighbour that they have reached: a cell stays where such ties
        lead from it to its reference and back.
        """
        table = self.linked.table
        tied = np.flatnonzero(np.diff(table.unit_of_entry) == 0)
        first, second, stopped = table.cell[tied], table.cell[tied + 1], increments == 0
        component = linalg.connected(
            np.concatenate([first, second, self.lower[stopped]]),
            np.concatenate([second, first, self.upper[stopped]]),
            table.n_cells,
            both_ways=True,
        )
        return component == component[self.linked.reference_of]

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
        own = np.diag(information)
        step = np.divide(gradient, own, out=np.zeros_like(gradient), where=own > 0)  # its own Newton step
        increments = beta[self.upper] - beta[self.lower]
        within = np.abs(np.where(increments > 0, step, np.maximum(step, 0.0))) <= optimize.ROUNDING
        return bool(within.all() and (increments >= 0).all())
