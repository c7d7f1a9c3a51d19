"""Theta as a curve over positions, and over contexts: free, of a given shape, or shrunk.

They start from the free estimate and its covariance; none reads the counts of a log anew. A shape is a class
below `CurveShape`. A line in `choices` names it.

Shapes maximise the likelihood of the conditional estimate,

    l(beta) = sum_j m_j { sum_e c_je beta_e - C_j log sum_e n_je exp(beta_e) },    beta_ref = 0 in each group of cells

over fewer curves. A group (a context) has a reference and a curve of its own. A shape says something where the log does
not, and is wrong where it does not hold: each fit comes with a test against the free estimate.
"""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from posbias.core.arrays.count_table import CountTable, Flags, Floats, Integers
from posbias.core.choices import FREE, SHAPES, Plugin, Room, unknown_name
from posbias.core.standard_errors.cluster import Intervals
from posbias.core.standard_errors.contrasts import ContrastTest, StrataEstimate
from posbias.core.theta.conditional import Linkage, LinkedCounts, linked_counts

SHAPE_ALONE = "the log does not link it: its number rests on the shape alone"
ONE_END = "clicks lie at one end only: no finite slope"


_INNER = 1e-11  # share of a unit's clicks that lies before its last cell, or after its first


@dataclass(frozen=True)
class ShapedEstimate:
    """A curve of a given shape, one a group of cells."""

    log_theta: Floats  # shape (K,), relative to the cell's reference, 0 there; NaN where there is none
    intervals: Intervals  # how sure it is; monotone: given the blocks
    converged: bool  # whether the optimum was reached
    test: ContrastTest  # against the free estimate; power: shape - free, by cell; monotone: how far that one rises
    eta: Floats  # shape (K,), power: the severity of the cell's group, NaN where there is none; other shapes: NaN
    eta_error: Floats  # shape (K,), its standard error
    misfit: tuple[int, ...] = ()  # the positions that say most against the shape where it is rejected; else none

    tau: float = np.nan  # smooth: how far the curve leaves a power of the position
    covariance: Floats | None = None  # shape (K, K), product: of the errors of log theta, as far as clusters say
    block: Integers | None = None  # shape (K,), monotone: the cell whose number the cell shares, possibly its own

    @classmethod
    def of(cls, numbers: Floats, reason: tuple[str | None, ...], **more: Any) -> Self:  # noqa: ANN401 - any field
        """The curve of a shape without eta.

        Args:
            numbers: shape (5, K): log theta, its standard error, the ends of the interval of theta, effective clusters.
            reason: of the cells.
            more: the other fields.
        """
        log_theta, std_error, low, high, effective = numbers
        unknown, intervals = np.full(len(reason), np.nan), Intervals(std_error, low, high, effective, reason)
        return cls(log_theta=log_theta, intervals=intervals, eta=unknown, eta_error=unknown, **more)

    @property
    def theta(self) -> Floats:
        """Propensity relative to the reference, shape (K,); NaN where there is none."""
        return np.exp(self.log_theta)


class CurveShape(Plugin):
    """An assumption about theta as a function of the position."""

    @abstractmethod
    def fit(self, free: StrataEstimate, position_of_cell: Integers) -> ShapedEstimate:
        """Fit the shape, to each group of cells a curve of its own.

        Args:
            free: the free estimate; the cells of one reference are a group.
            position_of_cell: shape (K,), >= 1.
        """


def counts_of_all_cells(table: CountTable, linkage: Linkage) -> LinkedCounts:
    """The units with a click and two cells, also those that the log does not link with the reference."""
    return linked_counts(table, replace(linkage, identified=np.ones(table.n_cells, np.bool_)))


def units_with_slope(counts: LinkedCounts, x: Floats) -> tuple[Flags, Flags]:
    """The units in which some click lies before the last, and those in which one lies after the first cell by x.

    Args:
        counts: with R entries.
        x: shape (R,), where each entry lies.
    """
    part = counts.table
    clicked = part.sum_by_unit(part.clicks * x)
    before = counts.unit_clicks * part.max_by_unit(x) - clicked
    after = clicked + counts.unit_clicks * part.max_by_unit(-x)
    return before > _INNER * counts.unit_clicks, after > _INNER * counts.unit_clicks


def walk_covariance(x: Floats) -> Floats:
    """Covariance at tau = 1 of random walks that start at x = 0, one on each side of it, shape (n, n).

        Cov_kl = min(|x_k|, |x_l|) where x_k and x_l have the same sign, else 0

    Args:
        x: log position minus log reference position, shape (n,).
    """
    return np.where(np.outer(x, x) > 0, np.minimum.outer(np.abs(x), np.abs(x)), 0.0)


_SHAPES = Room[CurveShape](SHAPES, "--shape")


def get_shape(name: str) -> CurveShape:
    """The shape of that name, other than `free`.

    Raises:
        UsageError: there is none.
    """
    if name not in SHAPES:
        raise unknown_name("--shape", name, [FREE, *_SHAPES.names()])
    return _SHAPES.get(name)
