"""Detect features that were computed from the clicks of the same log, and so contain their noise (leakage).

A unit i (a pair of query and document, or a document) is shown n_ie times in cells e and clicked c_i times, where
E[c_i] = m_i gamma_i, m_i = sum_e n_ie theta_e. With s_i = sum_e n_ie theta_e^2 and any known factors e_i,

    y_i = e_i c_i / m_i,     b_i = y_i^2 (1 - 1 / c_i) v_i,     v_i = 1 / (1 - s_i / m_i^2)

are unbiased for e_i gamma_i and its square. For two units that were not clicked on the same pages,

    E[b_i + b_j - 2 y_i y_j] = (e_i gamma_i - e_j gamma_j)^2 >= 0

unless the two were selected by their clicks. This holds for neighbours in the order of a feature that existed before
the clicks: it is 0 for the true relevance, and larger for other features. If a feature was computed from the clicks,
neighbours have equal y, and the sum is about minus the variance of the clicks.

e_i is 1, m_i / n_i and m_i, for features from corrected clicks, click rates and clicks; neighbours are taken among all
units, and within queries, as features may be ranks within a query. With a_i = e_i / m_i, S = c_i + c_j,
q = a_i a_j / (a_i + a_j)^2 and u = (b_i + b_j - 2 y_i y_j) / (a_i + a_j)^2, given S and equal means the variance of u
is at most 2 q^2 S (S - 1) v, v = max(v_i, v_j), and u = -q S if the feature contains all noise. With optimal weights,
the share of the noise in the feature is estimated by

    share = - sum u / (q (S - 1) v) / I,    I = sum S / ((S - 1) v),    z = share sqrt(I / 2)
"""

from collections.abc import Iterator
from statistics import NormalDist

import numpy as np

from posbias.core.arrays.count_table import CountTable, Floats, Hashes, Integers, sum_by_number

MOST_UNITS, MOST_VALUES = 1 << 16, 1 << 24
"""Largest numbers of units, and of feature values of units, in the tests."""

_FALSE = 0.001  # rate of logs with a false detection
_TESTS = 6  # per feature
# Smallest share that counts: clicks of a page are correlated by users who click readily, which within a query looks
# like a share of .1
_LEAST = 0.2
_SEED = 3


def unit_sums(counts: CountTable, theta: Floats) -> Floats:
    """Return n, m, s and c of each unit, shape (D, 4); counts have no weights."""
    n, examined = counts.impressions, theta[counts.cell]
    return np.column_stack([counts.sum_by_unit(each) for each in (n, n * examined, n * examined**2, counts.clicks)])


def sampled_units(query: Integers, n_features: int) -> Integers:
    """Return the units of a random sample of queries, ascending; of all queries in a small log."""
    share = min(MOST_UNITS, MOST_VALUES / max(n_features, 1)) / max(len(query), 1)
    drawn = np.random.default_rng(_SEED).random(int(query.max(initial=-1)) + 1) < share
    return np.flatnonzero(drawn[query])


def noise_shares(values: Floats, at: Integers, sums: Floats, query: Integers, document: Hashes | Integers) -> Floats:
    """Estimate the share of the noise of clicks in each feature, shape (F,); 0 if small or not significant.

    Args:
        values: features of the sampled units, shape (n, F); NaN if missing.
        at: indices of the sampled units, shape (n,).
        sums: `unit_sums` of all pairs of query and document, shape (D, 4).
        query: number of the query of each pair, shape (D,).
        document: number of the document of each pair, shape (D,). A feature that is equal in all pairs of a document is
            compared with the sum of their clicks.
    """
    rng, limit = np.random.default_rng(_SEED), NormalDist().inv_cdf(1 - _FALSE / (_TESTS * max(values.shape[1], 1)))
    _, item = np.unique(document, return_inverse=True)
    items, first, index = np.unique(item[at], return_index=True, return_inverse=True)
    by_document = np.column_stack([sum_by_number(item, column, int(item.max()) + 1) for column in sums.T])[items]
    shares = np.zeros(values.shape[1])
    for number, value in enumerate(values.T):
        if len(items) < len(at) and np.array_equal(value, value[first][index], equal_nan=True):
            tests = _tests(value[first], by_document, query[at][first], rng, (False,))
        else:
            tests = _tests(value, sums[at], query[at], rng, (False, True))
        shares[number] = max((share for share, z in tests if z > limit and share > _LEAST), default=0.0)
    return shares


def _tests(
    value: Floats, sums: Floats, query: Integers, rng: np.random.Generator, within_query: tuple[bool, ...]
) -> Iterator[tuple[float, float]]:
    """Yield share and z for neighbours among all units (False) and within queries (True), and for each factor e_i."""
    known = np.isfinite(value) & (sums[:, 0] > 0) & (sums[:, 1] ** 2 >= 2 * sums[:, 2])
    value, query, (shown, examined, squares, clicks) = value[known], query[known], sums[known].T
    inflation = 1 / (1 - squares / examined**2)
    for within in within_query:
        i, j = _neighbours(value, query, rng, within=within)
        several = clicks[i] + clicks[j] > 1
        i, j = i[several], j[several]
        c, d = clicks[i], clicks[j]
        weight = 1 / ((c + d - 1) * np.maximum(inflation[i], inflation[j]))
        information = float(((c + d) * weight).sum())
        for factor in (1 / examined, 1 / shown, np.ones(len(value))) if information else ():
            a, b = factor[i], factor[j]
            u = a * a * c * (c - 1) * inflation[i] + b * b * d * (d - 1) * inflation[j] - 2 * a * b * c * d
            share = -float((u * weight / (a * b)).sum()) / information
            yield share, share * (information / 2) ** 0.5


def _neighbours(value: Floats, query: Integers, rng: np.random.Generator, *, within: bool) -> tuple[Integers, Integers]:
    """Return disjoint pairs of neighbours in the order of a feature, of the same query or of two; ties are random."""
    order = np.lexsort((rng.random(len(value)), value, query if within else np.zeros(len(value))))
    same_query = query[order[:-1]] == query[order[1:]]
    rank = np.arange(len(order))
    if within:
        rank -= np.maximum.accumulate(np.where(np.append(True, ~same_query)[: len(order)], rank, 0))
    first = np.flatnonzero((rank[:-1] % 2 == 0) & (same_query == within))
    return order[first], order[first + 1]
