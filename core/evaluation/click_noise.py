"""Which values of documents were made of the clicks of the same log: they know what is chance in them.

A unit i (a pair of query and document, or a document) is shown n_ie times in cells e and clicked c_i times, where
E[c_i] = m_i gamma_i, m_i = sum_e n_ie theta_e. With s_i = sum_e n_ie theta_e^2 and any known factors e_i,

    y_i = e_i c_i / m_i,     b_i = y_i^2 (1 - 1 / c_i) v_i,     v_i = 1 / (1 - s_i / m_i^2)

are unbiased for e_i gamma_i and its square. For two units that were not clicked on the same pages,

    E[b_i + b_j - 2 y_i y_j] = (e_i gamma_i - e_j gamma_j)^2 >= 0

as long as it was not their clicks that brought them together. So it is for pairs of neighbours in the order of a value
that was known before: the true relevance has 0, any other value more. Where a value was made of the clicks, neighbours
have the same y, and the sum is about minus the variance of the clicks: the value knows their chance.

e_i is 1, m_i / n_i and m_i, for values made of corrected clicks, click rates and clicks; neighbours are those of all
units, and those within a query, as values may be ranks within a query. With a_i = e_i / m_i, S = c_i + c_j,
q = a_i a_j / (a_i + a_j)^2 and u = (b_i + b_j - 2 y_i y_j) / (a_i + a_j)^2, given S and equal means u has a variance
of at most 2 q^2 S (S - 1) v, v = max(v_i, v_j), and is -q S where the value knows all. With the weights that tell both
apart best,

    share = - sum u / (q (S - 1) v) / I,    I = sum S / ((S - 1) v),    z = share sqrt(I / 2)
"""

from collections.abc import Iterator
from statistics import NormalDist

import numpy as np

from posbias.core.arrays.count_table import CountTable, Floats, Hashes, Integers, sum_by_number

MOST_UNITS, MOST_VALUES = 1 << 16, 1 << 24
"""Units, and values of all their features, that are looked at; more would say the same."""

_FALSE = 0.001  # share of the logs on which a value that was known before is taken for one made of clicks
_TESTS = 6  # of a value
# Share of the chance in clicks that a value knows at least: users who click more readily than others make clicks of a
# page go together, which within a query looks like .1
_LEAST = 0.2
_SEED = 3


def sums_of_units(counts: CountTable, theta: Floats) -> Floats:
    """n, m, s and c of each unit, shape (D, 4); of counts without weights."""
    n, of_cell = counts.impressions, theta[counts.cell]
    return np.column_stack([counts.sum_by_unit(each) for each in (n, n * of_cell, n * of_cell**2, counts.clicks)])


def sampled_units(query: Integers, n_values: int) -> Integers:
    """The units that are looked at, ascending: those of some queries where there are many."""
    share = min(MOST_UNITS, MOST_VALUES / max(n_values, 1)) / max(len(query), 1)
    drawn = np.random.default_rng(_SEED).random(int(query.max(initial=-1)) + 1) < share
    return np.flatnonzero(drawn[query])


def shares_of_noise(values: Floats, at: Integers, sums: Floats, query: Integers, document: Hashes | Integers) -> Floats:
    """Which share of the chance in clicks each value knows; 0 where it may know nothing.

    Args:
        values: of the sampled units, shape (n, F); nan where there is none.
        at: numbers of these, shape (n,).
        sums: of all pairs of query and document; see `sums_of_units`.
        query: a number for the query of each pair, shape (D,).
        document: a number for the document of each pair, shape (D,). A value that is the same for all pairs of a
            document is compared with their clicks together.
    """
    rng, limit = np.random.default_rng(_SEED), NormalDist().inv_cdf(1 - _FALSE / (_TESTS * max(values.shape[1], 1)))
    _, item = np.unique(document, return_inverse=True)
    seen, one_of, of_seen = np.unique(item[at], return_index=True, return_inverse=True)
    of_documents = np.column_stack([sum_by_number(item, of, int(item.max()) + 1) for of in sums.T])[seen]
    shares = np.zeros(values.shape[1])
    for number, value in enumerate(values.T):
        if len(seen) < len(at) and np.array_equal(value, value[one_of][of_seen], equal_nan=True):
            tests = _tests(value[one_of], of_documents, query[at][one_of], rng, (False,))
        else:
            tests = _tests(value, sums[at], query[at], rng, (False, True))
        shares[number] = max((share for share, z in tests if z > limit and share > _LEAST), default=0.0)
    return shares


def _tests(
    value: Floats, sums: Floats, query: Integers, rng: np.random.Generator, orders: tuple[bool, ...]
) -> Iterator[tuple[float, float]]:
    """Share and z, for neighbours of all units (False) or within queries (True), and each of the factors."""
    known = np.isfinite(value) & (sums[:, 0] > 0) & (sums[:, 1] ** 2 >= 2 * sums[:, 2])
    value, query, (shown, examined, squares, clicks) = value[known], query[known], sums[known].T
    inflation = 1 / (1 - squares / examined**2)
    for within in orders:
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
    """Units two by two in the order of a value, each once; equal values in any order."""
    order = np.lexsort((rng.random(len(value)), value, query if within else np.zeros(len(value))))
    same = query[order[:-1]] == query[order[1:]]
    place = np.arange(len(order))
    if within:
        place -= np.maximum.accumulate(np.where(np.append(True, ~same)[: len(order)], place, 0))
    first = np.flatnonzero((place[:-1] % 2 == 0) & (same == within))
    return order[first], order[first + 1]
