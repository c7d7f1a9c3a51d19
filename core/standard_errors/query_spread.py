"""How much theta differs between queries (clusters): the standard deviation tau of a query's own log theta.

A unit is seen with the theta of its own query, however well their mean is known. Under independent deviations with the
standard deviation tau at every cell, the scores s_g of the queries, with their information H_g, have

    E s_gk^2 = a_gk + tau^2 b_gk,    a_gk = (H_g)_kk,    b_gk = (H_g H_g)_kk

so that tau^2 solves  sum_gk b_gk (s_gk^2 - a_gk - tau^2 b_gk) / (a_gk + tau^2 b_gk)^2 = 0, the equation of the normal
likelihood, which is unbiased for other distributions too: a large query counts no more than a middling one.

Sources: Breslow 1984 (extra-Poisson variance); Wedderburn 1974 (quasi-likelihood).
"""

import numpy as np

from posbias.core.arrays.count_table import Floats, Integers, sum_by_number
from posbias.core.arrays.linalg import Sparse, in_rows, sparse_product
from posbias.core.arrays.members import Members
from posbias.core.arrays.unit_diagonal import MANY
from posbias.core.counts.sufficient_statistics import Strata
from posbias.core.standard_errors.cluster import cluster_scores
from posbias.core.standard_errors.contrasts import FittedStrata
from posbias.core.standard_errors.leave_one_out import ClusterScores
from posbias.core.theta.linked_counts import linked_counts

LARGEST_SAMPLE = 500
"""Queries at most from which tau is estimated: its relative error is then about 5 %."""

LARGEST_SPREAD = 3.0
"""Of tau: theta of a query then differs from the mean by factors of twenty, more than any log can tell."""

FEWEST_QUERIES = 2
"""One query differs from no other."""

_HALVINGS = 60


def query_spread(fitted: FittedStrata) -> float:
    """tau, the standard deviation of log theta between queries (clusters); 0 where nothing shows that they differ."""
    scores = cluster_scores(fitted.fit, _sample(fitted))
    found = [_squared_scores(scores, row) for row in range(scores.n_rows)]
    if len(found) < FEWEST_QUERIES:
        return 0.0
    squares, by_chance, by_spread = (np.concatenate(part) for part in zip(*found, strict=True))
    squares = squares * len(found) / (len(found) - 1)  # the scores of all queries add up to 0

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


def _sample(fitted: FittedStrata) -> Strata:
    """The strata of every so many-th cluster that counts."""
    signatures, members = fitted.strata.signatures, fitted.strata.members
    counts = np.zeros(signatures.n_units, bool)
    counts[linked_counts(signatures, fitted.fit.linkage).units] = True
    clusters = np.unique(members.cluster[counts[members.unit]])
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
    coupling = sparse_product(rows.T, rows)
    row = np.repeat(np.arange(n_cells), np.diff(coupling.indptr))
    own = sum_by_number(cell, weight * share**2, n_cells)
    others = sum_by_number(row, np.where(row == coupling.indices, 0.0, coupling.data**2), n_cells)
    by_chance = sum_by_number(cell, weight * share, n_cells) - own
    return by_chance, by_chance**2 + others


def _row(matrix: Sparse, row: int) -> tuple[Integers, Floats]:
    """Columns and values of a row."""
    of_row = slice(*matrix.indptr[row : row + 2].tolist())
    return matrix.indices[of_row], matrix.data[of_row]
