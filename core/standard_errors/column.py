"""Errors clustered by a column of the log, or by session.

A cluster g holds a part of a stratum's impressions: n_gje of the n_je of stratum j in cell e, with c_gje clicks. With
p_je and the clicks C_j as in the conditional likelihood, and h_gj the share of stratum j's expected clicks in g,

    mu_gje = n_gje / n_je C_j p_je,    r_gje = c_gje - mu_gje,    R_gj = sum_e r_gje,    h_gj = sum_e mu_gje / C_j
    r*_gje = r_gje + ((1 - h_gj)^(-1/2) - 1) / h_gj  mu_gje / C_j  R_gj
    s_g = sum_j sum_e r*_gje (1_e - p_j),    H_g = sum_j sum_e mu_gje (1_e - p_j) (1_e - p_j)'

and everything else as in `cluster_errors`: H = sum_g H_g, leaving one out, effective clusters, intervals. A stratum
that one cluster holds whole adds what it adds there: c_je - C_j p_je.

r* makes up for the attractiveness being fitted to the clusters that share a stratum: by that, residuals lose the share
h_gj of their variance in the direction of mu_gj. It is the square root of that loss, taken off stratum by stratum, as
in Bell & McCaffrey (2002, CR2) with absorbed effects (Pustejovsky & Tipton 2018). Without it errors of logs with few
impressions a stratum are too small by up to the square root of 2.

Scores and information add up over the parts of a log, so that the values of the column may lie in several of them.
A cell that only one cluster was shown in gets no interval.

By session,

    s_g = sum_i w_i (1_{e(i)} - p_j(i)),    H_g = sum_i w_i (diag(p_j(i)) - p_j(i) p_j(i)')

Summed over the sessions of a query these are the query's score and information, and everything else is as in
`cluster_errors`: leaving one out, effective clusters, intervals. Impressions without a click add nothing.

Clicks on one page that exclude or attract each other are seen; two things are not. What sessions of one query share
makes these errors too small: prefer queries where that is possible. And clicks count as Poisson: an impression that
could be clicked and was not adds 0 to the score instead of a little less, which can make the errors too large where
click rates are high. Where a query's pages show the same documents, the clicks of a page nearly cancel, and they are
not: the errors are the spread over simulated logs, within its Monte Carlo error of 9 %, at click rates up to .75.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import add

import narwhals as nw
import numpy as np
import polars as pl

from posbias.core.arrays.count_table import CountTable, Floats, Integers, compress, sum_by_number
from posbias.core.arrays.linalg import Sparse, by_unit_and_cell, gram, in_rows, occurrences
from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.counts.sufficient_statistics import SufficientStatistics, count_units, key_numbers
from posbias.core.schema import CLICK, CLICKS, IMPRESSIONS, SESSION, WEIGHT, Length, with_periods
from posbias.core.standard_errors.cluster import ClusterScores, ClusterSums, LeaveOneOut, WholeInformation, low_and_high
from posbias.core.theta.conditional import ConditionalFit, LinkedCounts, linked_counts

_CLUSTER, _UNIT, _CELL, _SUMS = "posbias_cluster", "posbias_unit", "posbias_cell", "posbias_sums"
_ALL_OF_IT = 1 - 1e-9  # a share of a stratum's clicks that is all of them but for rounding
_NOTHING = 1e-12  # share of a cell's information that is rounding
_BLOCK = 4_000_000  # numbers in the informations of clusters that are kept at a time, 32 MB
_CHUNK = 50_000_000  # impressions whose clusters are summed at a time


@dataclass(frozen=True)
class WholeLog:
    """A conditional fit of a whole log, which its parts are held against."""

    plan: StatisticsPlan
    cells: pl.DataFrame  # the cell columns; a cell's number is its row
    fit: ConditionalFit
    period: Length  # of the periods within which attractiveness was one
    by: tuple[str, ...] = (SESSION,)  # the columns whose values are the clusters

    def scores_of(self, statistics: pl.DataFrame, chunk: int = 0, chunks: int = 1) -> pl.DataFrame:
        """The sums of a part of the log by cluster, or by one chunk of the clusters: `by`, and a column of sums.

        These are s_g, shape (F,), then a_g, shape (F,), then the expected clicks by cell, shape (I,), then
        tr(H^-1 H_g).
        """
        part = _Part.of(self, statistics)
        inverse, free, n_clusters = self.fit.inverse, part.linked.free, part.clusters.height
        directions = np.concatenate([inverse, np.linalg.cholesky(inverse).astype(np.float64)], axis=1)
        n_free, n_cells = len(inverse), len(part.linked.cells)
        # sum_j sum_e mu_gje (q_e - sum_e' p_je' q_e')^2 for each column q
        influence = np.empty((n_clusters, directions.shape[1]))
        for column, of_free in enumerate(directions.T):
            q = np.zeros(n_cells)
            q[free] = of_free
            distance = q[part.cell] - (part.shares @ q)[part.unit]
            influence[:, column] = sum_by_number(part.cluster, part.expected * distance**2, n_clusters)
        by_cell, by_unit = (
            occurrences(part.cluster, number, (n_clusters, size), part.residual)
            for number, size in ((part.cell, n_cells), (part.unit, len(part.linked.units)))
        )
        scores = (by_cell - by_unit @ part.shares).toarray()[:, free]
        expected = occurrences(part.cluster, part.cell, (n_clusters, n_cells), part.expected).toarray()
        leverage = influence[:, n_free:].sum(axis=1, keepdims=True)
        sums = np.concatenate([scores, influence[:, :n_free], expected, leverage], axis=1)
        of_clusters = part.clusters.with_columns(pl.Series(_SUMS, sums, pl.Array(pl.Float64, sums.shape[1])))
        return of_clusters.filter(pl.struct(self.by).hash() % chunks == chunk) if chunks > 1 else of_clusters

    def information_of(self, statistics: pl.DataFrame, chosen: pl.DataFrame) -> Floats:
        """The contribution of a part of the log to H_g of some clusters, shape (G, F, F)."""
        part = _Part.of(self, statistics)
        free, n_cells = part.linked.free, len(part.linked.cells)
        result = np.zeros((chosen.height, len(free), len(free)))
        for row, cluster in enumerate(key_numbers(part.clusters, chosen, self.by).to_list()):
            if cluster is None:
                continue
            of_cluster = slice(*np.searchsorted(part.cluster, [cluster, cluster + 1]).tolist())
            cell, expected = part.cell[of_cluster], part.expected[of_cluster]
            units, unit = np.unique(part.unit[of_cluster], return_inverse=True)
            shares = part.shares[units]
            mixed = gram(occurrences(unit, cell, (len(units), n_cells), expected), shares)
            shares.data *= np.repeat(np.sqrt(np.bincount(unit, expected, len(units))), np.diff(shares.indptr))
            information = np.diag(np.bincount(cell, expected, n_cells)) - mixed - mixed.T + gram(shares)
            result[row] = information[np.ix_(free, free)]
        return result

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
        clicked = _numbered(with_periods(shown.filter(pl.col(CLICK) == 1), unit), units, unit, cells)
        clicked = clicked.with_columns((pl.col(SESSION).rank("dense") - 1).alias(_CLUSTER))
        numbers = (clicked[number].to_numpy().astype(np.int64) for number in (_CLUSTER, _UNIT, _CELL))
        weight = clicked[WEIGHT].cast(pl.Float64).to_numpy() if plan.weighted else None
        return session_sums(self.fit, table, *numbers, weight=weight)


@dataclass(frozen=True)
class _Part:
    """The clusters of a part of a log, row by row of its statistics, in the order of the clusters."""

    linked: LinkedCounts  # the strata that compare cells
    shares: Sparse  # p_j, a matrix of S strata by I cells
    clusters: pl.DataFrame  # the G clusters that have such strata
    cluster: Integers  # of each row, shape (M,), a number among the G
    unit: Integers  # of each row, shape (M,), a number among the S
    cell: Integers  # of each row, shape (M,), a number among the I
    expected: Floats  # mu, shape (M,)
    residual: Floats  # r*, shape (M,)

    @classmethod
    def of(cls, log: WholeLog, statistics: pl.DataFrame) -> "_Part":
        """From the statistics of the part."""
        stratum = log.plan.stratum_columns(log.period)
        units, table = count_units(statistics, log.plan, log.cells, stratum)
        linked = linked_counts(table, log.fit.linkage)
        shares = linked.shares(log.fit.log_theta[linked.cells])
        rows = _numbered(with_periods(statistics, stratum), units[linked.units], stratum, log.cells[linked.cells])
        clusters = rows.select(log.by).unique(maintain_order=True)
        rows = rows.join(clusters.with_row_index(_CLUSTER), on=log.by, nulls_equal=True).sort(_CLUSTER)
        cluster, unit, cell = (rows[name].to_numpy().astype(np.int64) for name in (_CLUSTER, _UNIT, _CELL))
        entry = np.searchsorted(linked.table.entry_keys, unit * linked.table.n_cells + cell)
        share = rows[IMPRESSIONS].to_numpy() / linked.table.impressions[entry] * shares[entry]
        expected = share * linked.unit_clicks[unit]
        residual = rows[CLICKS].to_numpy() - expected
        _, both = np.unique(cluster * max(len(linked.units), 1) + unit, return_inverse=True)
        held, total = np.bincount(both, share)[both], np.bincount(both, residual)[both]
        with np.errstate(divide="ignore", invalid="ignore"):
            lost = np.where(held < _ALL_OF_IT, (1 / np.sqrt(1 - held) - 1) / held, 0.0)
        residual += lost * share * total
        matrix = by_unit_and_cell(linked.table, shares)
        return cls(linked, matrix, clusters, cluster, unit, cell, expected, residual)


def _numbered(rows: pl.DataFrame, units: pl.DataFrame, unit: Sequence[str], cells: pl.DataFrame) -> pl.DataFrame:
    """Rows with the numbers of their units and cells, without those of others."""
    for frame, columns, number in ((units, unit, _UNIT), (cells, cells.columns, _CELL)):
        rows = rows.join(frame.with_row_index(number), on=columns, how="inner", nulls_equal=True)
    return rows


def column_sums(
    statistics: SufficientStatistics, fit: ConditionalFit, period: Length, by: tuple[str, ...]
) -> ClusterSums:
    """The sums over the clusters: `errors_from_sums` makes errors of them.

    Args:
        statistics: that keep the columns apart.
        fit: the estimate from them, by strata of that period.
        period: the length of the periods within which attractiveness was one.
        by: the columns whose values are the clusters. They are summed in chunks of 50 million impressions.
    """
    log = WholeLog(statistics.plan, statistics.cells, fit, period, by)
    whole = WholeInformation(fit.information, fit.inverse)
    n_free, identified = len(whole.inverse), np.flatnonzero(fit.linkage.identified)
    at_once, chunks = max(1, _BLOCK // n_free**2), 1 + int(statistics.cell_totals[0].sum() // _CHUNK)
    of_chunks: list[ClusterSums] = []
    largest, total_expected = np.zeros((2, len(identified)))  # expected clicks by cell: of one cluster, and of all
    for chunk in range(chunks):
        rows = pl.concat(statistics.map_parts(partial(log.scores_of, chunk=chunk, chunks=chunks)))
        clusters = rows.select(by).unique(maintain_order=True)  # of all parts, each once
        values = rows[_SUMS].to_numpy()
        sums = np.zeros((clusters.height, values.shape[1]))
        np.add.at(sums, key_numbers(clusters, rows, by).to_numpy(), values)
        scores, influence, by_cell, leverage = np.split(sums, [n_free, 2 * n_free, -1], axis=1)
        largest = np.maximum(largest, by_cell.max(axis=0, initial=0.0))
        total_expected += by_cell.sum(axis=0)
        low, high = low_and_high(leverage[:, 0])
        outer, alone = scores[low].T @ scores[low], np.zeros(n_free, np.bool_)
        for first in range(0, len(high), at_once):
            some = high[first : first + at_once]
            own = reduce(add, statistics.map_parts(partial(log.information_of, chosen=clusters[some])))
            for cluster, of_cluster in zip(some.tolist(), own, strict=True):
                kept = whole.linked_without(of_cluster, np.arange(n_free), float(leverage[cluster, 0]))
                adjusted = whole.adjusted(of_cluster, np.arange(n_free), kept, scores[cluster])
                outer += np.outer(adjusted, adjusted)
                alone |= ~kept
        of_chunks.append(
            ClusterSums(
                outer=whole.inverse @ outer @ whole.inverse,
                influence=influence.sum(axis=0),
                influence_squared=(influence**2).sum(axis=0),
                clusters_of_cell=(influence > _NOTHING * np.diag(whole.inverse)).sum(axis=0).astype(np.float64),
                n_clusters=clusters.height,
                alone=alone,
            )
        )
    # Free cells that one cluster alone holds, or whose reference it does.
    of_one = np.zeros(len(fit.linkage.identified), np.bool_)
    of_one[identified] = largest >= _ALL_OF_IT * total_expected
    shown_to_one = of_one[fit.free_cells] | of_one[fit.linkage.reference_of[fit.free_cells]]
    sums = reduce(add, of_chunks)
    return replace(sums, alone=sums.alone | shown_to_one)


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
    return sums_of_impressions(fit, linked, session[known], linked_unit, linked_cell, weight, weight)


def sums_of_impressions(
    fit: ConditionalFit,
    linked: LinkedCounts,
    cluster: Integers,
    unit: Integers,
    cell: Integers,
    residual: Floats,
    clicks: Floats,
) -> ClusterSums:
    """The sums over clusters of impressions, s_g = sum residual (1_e - p_j), with the weight C_gj of each unit.

    Args:
        fit: the estimate from the whole log.
        linked: what it was made from.
        cluster: shape (M,), of each impression, any whole numbers.
        unit: shape (M,), its unit, one of the S of `linked`.
        cell: shape (M,), its cell, one of the I of `linked`.
        residual: shape (M,).
        clicks: shape (M,), how often it was clicked.
    """
    clusters, number = np.unique(cluster, return_inverse=True)
    n_clusters, n_units, n_cells = len(clusters), len(linked.units), len(linked.cells)
    table = linked.table
    shares = linked.shares(fit.log_theta[linked.cells])
    places, shape = np.concatenate([unit, n_units + cell]), (n_clusters, n_units + n_cells)
    parts_of_score = in_rows(  # -p_j by their unit, and 1_e by their cell
        np.concatenate([-shares, np.ones(n_cells)]),
        np.concatenate([table.cell, np.arange(n_cells)]),
        np.concatenate([table.start, table.start[-1] + 1 + np.arange(n_cells)]),
        n_cells,
    )
    scores = occurrences(np.tile(number, 2), places, shape, np.tile(residual, 2)) @ parts_of_score
    weight = occurrences(number, unit, (n_clusters, n_units), clicks)
    return LeaveOneOut(fit, ClusterScores(linked, shares, scores, weight, np.ones(n_clusters), clusters)).sums()
