"""How far theta may be off, as one covariance of all cells: what everything that is computed from theta inherits.

Which clicks compare which cells: what it takes to say how much more a log would tell if documents stood elsewhere.

A stratum j (a pair, or a pair within a period) has the clicks C_j, which are expected to fall into its cells in the
shares p_je = n_je theta_e / sum over e' of n_je' theta_e'. Shared clicks are

    M_ef = sum_j C_j p_je p_jf

The row sums of M are the expected clicks by cell, and diag(row sums) - M is the information of the conditional
likelihood (`theta.conditional`).

How much theta differs between queries (clusters): the standard deviation tau of a query's own log theta.

A unit is seen with the theta of its own query, however well their mean is known. Under independent deviations with the
standard deviation tau at every cell, the scores s_g of the queries, with their information H_g, have

    E s_gk^2 = a_gk + tau^2 b_gk,    a_gk = (H_g)_kk,    b_gk = (H_g H_g)_kk

so that tau^2 solves  sum_gk b_gk (s_gk^2 - a_gk - tau^2 b_gk) / (a_gk + tau^2 b_gk)^2 = 0, the equation of the normal
likelihood, which is unbiased for other distributions too: a large query counts no more than a middling one.

Sources: Breslow 1984 (extra-Poisson variance); Wedderburn 1974 (quasi-likelihood).
"""

import numpy as np

from posbias.core.arrays.count_table import Floats, Integers, Members, first_of_runs, sum_by_number
from posbias.core.arrays.linalg import MANY, NORMAL, Sparse, by_unit_and_cell, gram, in_rows
from posbias.core.counts.sufficient_statistics import Strata, SufficientStatistics
from posbias.core.estimators.estimate import Estimate
from posbias.core.standard_errors.cluster import ClusterScores, cluster_scores
from posbias.core.standard_errors.contrasts import StrataEstimate
from posbias.core.theta.conditional import linked_counts


def shared_clicks(statistics: SufficientStatistics, estimate: Estimate) -> Floats | None:
    """M of a free estimate, shape (K, K).

    None where theta is not estimated from the clicks of strata, where cells depend on other clicks, and where
    impressions carry weights, so that no further page is worth a known part of them.
    """
    plan = statistics.plan
    if estimate.fitted is None or plan.model.beside_position or plan.weighted:
        return None
    counts, position, strata = statistics.cell_totals, statistics.position_of_cell, estimate.fitted.strata.signatures
    theta = working_theta(estimate.propensity, *counts, position, statistics.context_of_cell)
    shared = np.zeros((strata.n_cells, strata.n_cells))
    for _, block in strata.blocks():
        expected = block.impressions * theta[block.cell]
        of_unit = block.sum_by_unit(expected)
        weight = np.sqrt(block.multiplicity * block.sum_by_unit(block.clicks))
        shared += gram(by_unit_and_cell(block, expected * block.spread(weight / of_unit)))
    return shared


def working_theta(
    propensity: Floats, impressions: Floats, clicks: Floats, position: Integers, context: Integers
) -> Floats:
    """A propensity for every cell: where none is known, as if the documents were those of the nearest known position.

    Args:
        propensity: shape (K,), NaN where not identified.
        impressions: of each cell, shape (K,).
        clicks: on them, shape (K,).
        position: of each cell, shape (K,).
        context: the number of each cell's context, shape (K,); only cells of one context are compared.

    Returns:
        Shape (K,), above 0.
    """
    rate = (clicks + _HALF_A_CLICK) / (impressions + 2 * _HALF_A_CLICK)
    theta = propensity.copy()
    for cell in np.flatnonzero(~np.isfinite(propensity)):
        known = np.flatnonzero(np.isfinite(propensity) & (context == context[cell]))
        if not len(known):
            theta[cell] = rate[cell] / rate[context == context[cell]].max()
            continue
        nearest = known[np.argmin(np.abs(position[known] - position[cell]))]
        theta[cell] = propensity[nearest] * rate[cell] / rate[nearest]
    return theta


_HALF_A_CLICK = 0.5  # so that a cell without clicks has a rate above 0


LARGEST_SAMPLE = 500
"""Queries at most from which tau is estimated: its relative error is then about 5 %."""

LARGEST_SPREAD = 3.0
"""Largest tau: theta of a query then differs from the mean by factors of twenty, more than any log can tell."""

FEWEST_QUERIES = 2
"""Fewest queries: one differs from no other."""

_HALVINGS = 60


def query_spread(fitted: StrataEstimate) -> float:
    """tau, the standard deviation of log theta between queries (clusters); 0 where nothing shows that they differ."""
    scores = cluster_scores(fitted.fit, _sample(fitted))
    squared = [_squared_scores(scores, row) for row in range(scores.n_rows)]
    if len(squared) < FEWEST_QUERIES:
        return 0.0
    squares, by_chance, by_spread = (np.concatenate(part) for part in zip(*squared, strict=True))
    squares = squares * len(squared) / (len(squared) - 1)  # the scores of all queries add up to 0

    def excess(variance: float) -> float:
        expected = by_chance + variance * by_spread
        return float((by_spread * (squares - expected) / expected**2).sum())

    low, high = 0.0, LARGEST_SPREAD**2
    if excess(low) <= 0:
        return 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return float(np.sqrt(low))


def _sample(fitted: StrataEstimate) -> Strata:
    """The strata of every so many-th cluster that counts."""
    signatures, members = fitted.strata.signatures, fitted.strata.members
    counts = np.zeros(signatures.n_units, bool)
    counts[linked_counts(signatures, fitted.fit.linkage).units] = True
    clusters = np.sort(members.cluster[counts[members.unit]])
    clusters = clusters[first_of_runs(clusters)]  # np.unique hashes them, which is slower
    kept = clusters[:: max(-(-len(clusters) // LARGEST_SAMPLE), 1)]
    those = np.flatnonzero(np.isin(members.cluster, kept))
    units, unit = np.unique(members.unit[those], return_inverse=True)
    return Strata(signatures.take(units), Members(unit, members.cluster[those]))


def _squared_scores(scores: ClusterScores, row: int) -> tuple[Floats, Floats, Floats]:
    """s_k^2, a_k and b_k of one cluster, in the cells where it has information."""
    n_cells = len(scores.linked.cells)
    units, weight = _row(scores.weight, row)
    entries, start = scores.linked.table.entries_of(units)
    cell, share = scores.linked.table.cell[entries], scores.shares[entries]
    if n_cells >= MANY:
        by_chance, by_spread = _sparse_moments(cell, share, np.repeat(weight, np.diff(start)), start, n_cells)
    else:
        shares = np.zeros((len(units), n_cells))
        shares[np.repeat(np.arange(len(units)), np.diff(start)), cell] = share
        information = np.diag(weight @ shares) - (shares * weight[:, np.newaxis]).T @ shares
        by_chance, by_spread = np.diag(information), (information**2).sum(axis=1)
    score = np.zeros(n_cells)
    cells, values = _row(scores.scores, row)
    score[cells] = values
    informed = by_chance > 0
    return score[informed] ** 2, by_chance[informed], by_spread[informed]


def _sparse_moments(
    cell: Integers, share: Floats, weight: Floats, start: Integers, n_cells: int
) -> tuple[Floats, Floats]:
    """a_k and b_k of one cluster in all cells, from what its units couple: most of H_g is 0."""
    rows = in_rows(share * np.sqrt(weight), cell, start, n_cells)
    coupling = rows.T @ rows
    row = np.repeat(np.arange(n_cells), np.diff(coupling.indptr))
    own = sum_by_number(cell, weight * share**2, n_cells)
    others = sum_by_number(row, np.where(row == coupling.indices, 0.0, coupling.data**2), n_cells)
    by_chance = sum_by_number(cell, weight * share, n_cells) - own
    return by_chance, by_chance**2 + others


def _row(matrix: Sparse, row: int) -> tuple[Integers, Floats]:
    """Columns and values of a row."""
    of_row = slice(*matrix.indptr[row : row + 2].tolist())
    return matrix.indices[of_row], matrix.data[of_row]


MOST_CELLS = 2_000
"""With more cells the covariance is not made (32 MB): attractiveness then has the errors of counts alone."""


def errors_of_theta(estimate: Estimate) -> tuple[float, Floats | None]:
    """How far the theta under which a unit was seen may be from the estimate.

    Returns:
        tau, 0 also where the method cannot tell; and V + tau^2 I, shape (K, K), of log examination, None where the
        method has no errors, or there are more than `MOST_CELLS` cells.
    """
    spread = 0.0 if estimate.fitted is None else query_spread(estimate.fitted)
    covariance = log_covariance(estimate)
    return spread, None if covariance is None else covariance + spread**2 * np.eye(len(covariance))


def log_covariance(estimate: Estimate) -> Floats | None:
    """V, the covariance of log examination, shape (K, K); None where the method has no errors.

    Standard deviations are how far the intervals reach over z_.975, so that few clusters count; where a cell has
    none, what the counts alone would give. Rows of cells that are not identified are 0. Correlations are those of the
    clustered covariance, that of the free estimate where there is a shape.
    """
    spread = _spread_of_cells(estimate)
    if spread is None or len(spread) > MOST_CELLS:
        return None
    covariance = np.outer(spread, spread) * estimate.correlation
    identified, reference = estimate.linkage.identified, estimate.linkage.reference_of
    order = np.argsort(-np.nan_to_num(estimate.propensity, nan=-np.inf), kind="stable")
    references, first = np.unique(reference[order], return_index=True)  # the largest among those with one reference
    largest = order[first][np.searchsorted(references, reference)][identified]
    covariance[identified] -= covariance[largest]
    covariance[:, identified] -= covariance[:, largest]
    return covariance


def _spread_of_cells(estimate: Estimate) -> Floats | None:
    """Standard deviation of each log propensity, shape (K,); 0 at references and where not identified."""
    intervals, known = estimate.intervals, estimate.linkage.identified
    if not np.isfinite(intervals.std_error).any():
        return None
    with np.errstate(divide="ignore"):
        reach = intervals.reach(np.log(estimate.propensity))
    spread = np.where(np.isfinite(reach), reach / NORMAL, intervals.std_error)
    if estimate.conditional is not None:
        fit = estimate.conditional.fit
        by_counts = np.zeros(len(spread))
        by_counts[fit.free_cells] = np.sqrt(np.diag(fit.inverse))
        spread = np.where(np.isfinite(spread), spread, by_counts)
    return np.where(known, np.nan_to_num(spread, posinf=0.0), 0.0)
