"""Standard errors clustered by session (one results page shown once): they need the log, not only the statistics.

With the clicks i of session g, on unit j(i) in cell e(i) and with weight w_i (1 where the log has none),

    s_g = sum_i w_i (1_{e(i)} - p_j(i)),    H_g = sum_i w_i (diag(p_j(i)) - p_j(i) p_j(i)')

Summed over the sessions of a query these are the query's score and information, and everything else is as in
`cluster_errors`: leaving one out, effective clusters, intervals. Impressions without a click add nothing.

Clicks on one page that exclude or attract each other are seen; two things are not. What sessions of one query share
makes these errors too small: prefer queries where that is possible. And clicks count as Poisson: an impression that
could be clicked and was not adds 0 to the score instead of a little less, which can make the errors too large where
click rates are high. Where a query's pages show the same documents, the clicks of a page nearly cancel, and they are
not: the errors are the spread over simulated logs, within its Monte Carlo error of 9 %, at click rates up to .75.

A part of the log that holds whole sessions and whole strata is summed by itself; the sums of the parts add up.
"""

from dataclasses import dataclass

import narwhals as nw
import numpy as np
import polars as pl

from posbias.core.arrays.compression import compress
from posbias.core.arrays.count_table import CountTable, Floats, Integers
from posbias.core.arrays.linalg import Sparse, counted, in_rows, sparse_product
from posbias.core.counts.plan import StatisticsPlan
from posbias.core.counts.sufficient_statistics import count_units
from posbias.core.periods import Length, with_periods
from posbias.core.schema import CLICK, SESSION, WEIGHT
from posbias.core.standard_errors.leave_one_out import ClusterScores, ClusterSums, LeaveOneOut
from posbias.core.theta.conditional import ConditionalFit
from posbias.core.theta.linked_counts import LinkedCounts, linked_counts


def session_sums(
    fit: ConditionalFit,
    table: CountTable,
    session: Integers,
    unit: Integers,
    cell: Integers,
    weight: Floats | None = None,
) -> ClusterSums:
    """The sums over the sessions of one part: add those of all parts, and `errors_from_sums` makes errors of them.

    Args:
        fit: the estimate from the whole log.
        table: the part's counts per stratum, with cells numbered as in the fit.
        session: shape (M,), the session of each clicked impression, any whole numbers; a session lies in one part.
        unit: shape (M,), its stratum, a row of `table`.
        cell: shape (M,), its cell.
        weight: shape (M,), > 0, of each clicked impression; by default 1.
    """
    signatures, signature = compress(table)
    linked = linked_counts(signatures, fit.linkage)
    number = np.full(signatures.n_units, -1)
    number[linked.units] = np.arange(len(linked.units))
    known = (number[signature[unit]] >= 0) & fit.linkage.identified[cell]
    weight = np.ones(len(unit))[known] if weight is None else weight[known]
    linked_unit, linked_cell = number[signature[unit[known]]], np.searchsorted(linked.cells, cell[known])
    _, cluster = np.unique(session[known], return_inverse=True)
    n_sessions = int(cluster.max(initial=-1)) + 1
    shares = linked.shares(fit.log_theta[linked.cells])
    clicks_on_unit = counted(cluster, linked_unit, (n_sessions, len(linked.units)), weight)
    n_rows = len(linked.units) + len(linked.cells)
    parts = counted(
        np.tile(cluster, 2),
        np.concatenate([linked_unit, len(linked.units) + linked_cell]),
        (n_sessions, n_rows),
        np.tile(weight, 2),
    )
    scores = sparse_product(parts, parts_of_score(linked, shares))
    return LeaveOneOut(fit, ClusterScores(linked, shares, scores, clicks_on_unit, np.ones(n_sessions))).sums()


def parts_of_score(linked: LinkedCounts, shares: Floats) -> Sparse:
    """What clicks add to a score: -p_j by their unit, S rows, and 1_e by their cell, I rows."""
    table, n_cells = linked.table, len(linked.cells)
    return in_rows(
        np.concatenate([-shares, np.ones(n_cells)]),
        np.concatenate([table.cell, np.arange(n_cells)]),
        np.concatenate([table.start, table.start[-1] + 1 + np.arange(n_cells)]),
        n_cells,
    )


_SESSION, _UNIT, _CELL = "posbias_session", "posbias_unit", "posbias_cell"


@dataclass(frozen=True)
class FittedLog:
    """A conditional fit of a whole log, which its parts are held against."""

    plan: StatisticsPlan
    cells: pl.DataFrame  # the cell columns; a cell's number is its row
    fit: ConditionalFit
    period: Length  # of the periods within which attractiveness was one

    def sums_of(self, impressions: pl.LazyFrame) -> ClusterSums:
        """The sums over the sessions of a part that holds whole sessions and whole queries; sums of parts add up.

        Args:
            impressions: canonical impressions of the part.
        """
        plan, cells = self.plan, self.cells
        unit = plan.stratum_columns(self.period)
        shown = plan.with_cells(nw.from_native(impressions)).to_native().collect(engine="streaming")
        statistics = plan.count(nw.from_native(impressions)).to_native().sort(plan.keys).collect(engine="streaming")
        units, table = count_units(statistics, plan, cells, unit)
        clicked = with_periods(shown.filter(pl.col(CLICK) == 1), unit)
        for frame, columns, number in (
            (clicked.select(SESSION).unique().sort(SESSION), [SESSION], _SESSION),
            (units, list(unit), _UNIT),
            (cells, cells.columns, _CELL),
        ):
            clicked = clicked.join(frame.with_row_index(number), on=columns, how="inner", nulls_equal=True)
        numbers = (clicked[number].to_numpy().astype(np.int64) for number in (_SESSION, _UNIT, _CELL))
        weight = clicked[WEIGHT].cast(pl.Float64).to_numpy() if plan.weighted else None
        return session_sums(self.fit, table, *numbers, weight=weight)
