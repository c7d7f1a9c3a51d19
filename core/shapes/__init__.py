"""Curves of theta over positions: shapes of one curve, and shrinkage of the curves of several contexts.

Shapes maximise the likelihood of the conditional estimate,

    l(beta) = sum_j m_j { sum_e c_je beta_e - C_j log sum_e n_je exp(beta_e) },    beta_ref = 0 in each group of cells

over a smaller set of curves. Each group of cells (a context) has its own reference and its own curve. A shape
interpolates where the log has no information, and is biased where it does not hold: each fit comes with a test against
the free estimate. A shape is a subclass of `CurveShape`, listed in `choices.SHAPES`.
"""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from posbias.core.arrays.count_table import Flags, Floats, Integers
from posbias.core.choices import FREE, SHAPES, Plugin, Room, unknown_name
from posbias.core.standard_errors.cluster import Intervals
from posbias.core.standard_errors.contrasts import ContrastTest, StrataEstimate
from posbias.core.theta.conditional import LinkedCounts, linked_counts

SHAPE_ALONE = "the log does not link it: its number rests on the shape alone"
ONE_END = "clicks lie at one end only: no finite slope"


_ROUNDING = 1e-11  # share of a unit's clicks that is rounding


@dataclass(frozen=True)
class ShapedEstimate:
    """Curves of a given shape, one per group of cells."""

    log_theta: Floats  # shape (K,), relative to the cell's reference, 0 at references; NaN where unknown
    intervals: Intervals  # of theta; monotone: given the blocks
    converged: bool  # whether the optimum was reached
    test: ContrastTest  # against the free estimate; power: shape - free, by cell; monotone: rises of the free estimate
    eta: Floats  # shape (K,), power: the severity of the cell's group, NaN where unknown; other shapes: NaN
    eta_error: Floats  # shape (K,), standard error of eta
    misfit: tuple[int, ...] = ()  # positions of the deciding contrast where the shape is rejected

    tau: float = np.nan  # smooth: posterior mean of tau, the scale of departures from a power of the position
    covariance: Floats | None = None  # shape (K, K), product and power: clustered covariance of log theta
    block: Integers | None = None  # shape (K,), monotone: the cell that represents the cell's block

    @classmethod
    def from_numbers(cls, numbers: Floats, reason: tuple[str | None, ...], **more: Any) -> Self:  # noqa: ANN401 - any field
        """The curves of a shape without eta.

        Args:
            numbers: shape (5, K): log theta, standard error, low and high end of the interval of theta, effective
                clusters.
            reason: of the intervals.
            more: the other fields.
        """
        log_theta, std_error, low, high, effective = numbers
        unknown, intervals = np.full(len(reason), np.nan), Intervals(std_error, low, high, effective, reason)
        return cls(log_theta=log_theta, intervals=intervals, eta=unknown, eta_error=unknown, **more)

    @property
    def theta(self) -> Floats:
        """Propensity relative to the reference, shape (K,); NaN where unknown."""
        return np.exp(self.log_theta)


class CurveShape(Plugin):
    """A family of curves of theta over positions."""

    @abstractmethod
    def fit(self, free: StrataEstimate, position_of_cell: Integers) -> ShapedEstimate:
        """Fit a curve to each group of cells.

        Args:
            free: the free estimate; the cells of one reference are a group.
            position_of_cell: shape (K,), >= 1.
        """


def all_counts(estimate: StrataEstimate) -> LinkedCounts:
    """Counts of all units with a click and two cells, including cells that are not linked to their reference."""
    table = estimate.strata.signatures
    return linked_counts(table, replace(estimate.fit.linkage, identified=np.ones(table.n_cells, np.bool_)))


def in_sloped_group(counts: LinkedCounts, x: Floats) -> Flags:
    """Cells of the groups whose clicks determine a finite slope along x, shape (K,).

    A group needs a unit with a click before its last cell by x, and a unit with a click after its first cell.

    Args:
        counts: as from `all_counts`.
        x: shape (K,).
    """
    table, clicks, group = counts.table, counts.unit_clicks, counts.reference_of
    of_entry, unit_group = x[table.cell], group[table.cell[table.start[:-1]]]
    total = table.sum_by_unit(table.clicks * of_entry)
    before = clicks * table.max_by_unit(of_entry) - total > _ROUNDING * clicks
    after = total + clicks * table.max_by_unit(-of_entry) > _ROUNDING * clicks
    return np.isin(group, unit_group[before]) & np.isin(group, unit_group[after])


def walk_covariance(x: Floats) -> Floats:
    """Covariance of two independent random walks from x = 0, one for x > 0 and one for x < 0, shape (n, n).

        Cov_kl = min(|x_k|, |x_l|) where x_k and x_l have the same sign, else 0

    Args:
        x: log position minus log reference position, shape (n,).
    """
    return np.where(np.outer(x, x) > 0, np.minimum.outer(np.abs(x), np.abs(x)), 0.0)


_SHAPES = Room[CurveShape](SHAPES, "--shape")


def get_shape(name: str) -> CurveShape:
    """Return a shape other than `free` by name.

    Raises:
        UsageError: unknown name.
    """
    if name not in SHAPES:
        raise unknown_name("--shape", name, [FREE, *_SHAPES.names()])
    return _SHAPES.get(name)
