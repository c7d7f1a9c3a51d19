"""Whether theta is the same for documents that are clicked more and less: cross-fitted, from the counts alone.

A factorised model says P(click) = theta_e gamma_j, so that theta_e, estimated from any of a query's documents, is the
same. Which documents are attractive must not be read from the clicks that theta is then estimated from. So the
impressions of each (unit, cell) are split at random into two halves A and B, and with them the clicks,

    n_A = n / 2 (an odd one to either half),    c_A ~ Hypergeometric(c of n, n_A drawn),

which gives two independent logs. In one half, a unit is high if it has more clicks than its query's units together
would let expect at its cells, C_j > E_j sum C / sum E with E_j = sum_e n_je theta_e, else low. In the other half theta
of the high ones is held against that of the low ones; then the halves change places. Against the model stands

    theta_e^(1 + b/2) for the high ones, theta_e^(1 - b/2) for the low ones

and b = 0 is tested (`score_test`), clustered by query, as both groups and both halves share queries. b < 0: attractive
documents lose less by position, as under trust bias, or where position and attractiveness add up on the logit scale.

Sources: Tukey 1949 (one degree of freedom for non-additivity); Chernozhukov et al. 2018 (cross-fitting).
"""

from dataclasses import replace

import numpy as np

from posbias.core.arrays.count_table import (
    CountTable,
    Flags,
    Floats,
    Hashes,
    Integers,
    Numbers,
    concatenate,
    starts,
    sum_by_number,
)
from posbias.core.arrays.members import Members
from posbias.core.counts.sufficient_statistics import Strata
from posbias.core.standard_errors.contrasts import FittedStrata
from posbias.core.standard_errors.score_test import FinerCells, ScoreTest, score_test

MOST_ENTRIES = 1 << 17
"""Counts that are split; in a larger log those of the queries that were shown most."""

LARGEST_COUNT = 10**9
"""Impressions of a unit in a cell from which on no halves are drawn."""

_SEED = 20260101
_MIX = np.uint64(0x9E3779B97F4A7C15)


def attractiveness_test(fitted: FittedStrata, group_of_cell: Integers) -> ScoreTest | None:
    """Compare theta of the units that are clicked more with that of the others of their query.

    Args:
        fitted: the estimate from whole counts.
        group_of_cell: shape (K,), the context of each cell: cells of one share a reference.

    Returns:
        The test of b, whose `difference` is b; None where the log says nothing about it.
    """
    chosen = most_shown(fitted.strata)
    if not len(chosen.unit):
        return None
    kept = fitted.strata.signatures.only_cells(fitted.fit.linkage.identified).take(chosen.unit.astype(np.int64))
    if kept.impressions.max(initial=0) >= LARGEST_COUNT:
        return None
    log_theta = np.nan_to_num(fitted.fit.log_theta)
    grouped = _grouped(replace(kept, multiplicity=np.ones(kept.n_units)), chosen.cluster, np.exp(log_theta))
    cell = np.repeat(np.arange(len(log_theta)), 2)
    direction = log_theta[cell] * np.tile([-0.5, 0.5], len(log_theta))
    return score_test(grouped, FinerCells(cell, direction, group_of_cell))


def most_shown(strata: Strata, most: int = MOST_ENTRIES) -> Members:
    """The members of the queries that were shown most, as many as have so many entries together.

    Their order depends on the counts alone, not on how queries are numbered: by impressions of the query, then by a
    hash of its units, then by unit. The same log gives the same order, however it was read.
    """
    members, table = strata.members, strata.signatures
    if not len(members.unit):
        return members
    first = np.flatnonzero(np.diff(members.cluster, prepend=members.cluster[0] - 1))
    unit = members.unit.astype(np.int64)
    entries = np.add.reduceat(table.entries_of_unit[unit], first)
    shown = np.add.reduceat(table.sum_by_unit(table.impressions)[unit], first)
    key = np.add.reduceat(_mixed(unit), first)
    queries = np.lexsort((key, -shown))
    before = np.cumsum(entries[queries]) - entries[queries]
    queries = queries[before < most]
    length = np.diff(np.append(first, len(unit)))[queries]
    start = starts(length)
    number = np.repeat(np.arange(len(queries)), length)
    chosen = unit[np.arange(start[-1]) + np.repeat(first[queries] - start[:-1], length)]
    order = np.lexsort((chosen, number))
    return Members(chosen[order], number[order])


def _mixed(unit: Integers) -> Hashes:
    mixed = (unit.astype(np.uint64) + np.uint64(1)) * _MIX
    mixed ^= mixed >> np.uint64(29)
    return mixed * _MIX


def halves(table: CountTable) -> tuple[CountTable, CountTable]:
    """The counts of two random halves of the impressions, with the entries of the table, some of them empty."""
    rng = np.random.default_rng(_SEED)
    impressions, clicks = table.impressions.astype(np.int64), table.clicks.astype(np.int64)
    first = impressions // 2 + (impressions % 2) * rng.integers(0, 2, len(impressions))
    drawn = rng.hypergeometric(clicks, impressions - clicks, first)
    return _with(table, first, drawn), _with(table, impressions - first, clicks - drawn)


def _with(table: CountTable, impressions: Integers, clicks: Integers) -> CountTable:
    counts = impressions.astype(np.float64), clicks.astype(np.float64)
    return CountTable(table.n_cells, table.start, table.cell, *counts, table.multiplicity)


def _grouped(table: CountTable, query: Numbers, theta: Floats) -> Strata:
    """Both folds: units of one half, in cells (e, low) or (e, high) by what the other half says."""
    one, other = halves(table)
    folds = [_fold(half, by, query, theta) for half, by in ((one, other), (other, one))]
    queries = np.concatenate([of_fold for _, of_fold in folds])
    return Strata(concatenate([fold for fold, _ in folds]), Members(np.arange(len(queries)), queries))


def _fold(half: CountTable, by: CountTable, query: Numbers, theta: Floats) -> tuple[CountTable, Numbers]:
    """The units of a half that link cells, in queries that have both high and low ones, and their queries."""
    high = _clicked_more(by, query, theta)
    half = _without_empty(half)
    links, n_queries = half.links, int(query.max()) + 1
    both = np.ones(n_queries, np.bool_)
    for group in (high, ~high):
        both &= np.bincount(query[links & group], minlength=n_queries) > 0
    units = np.flatnonzero(links & both[query])
    kept = half.take(units)
    cell = 2 * kept.cell + np.repeat(high[units], kept.entries_of_unit)
    return replace(kept, n_cells=2 * half.n_cells, cell=cell), query[units]


def _clicked_more(table: CountTable, query: Numbers, theta: Floats) -> Flags:
    """The units with more clicks than expected, were all units of their query equally attractive, shape (J,)."""
    clicks, expected = table.sum_by_unit(table.clicks), table.sum_by_unit(table.impressions * theta[table.cell])
    n_queries = int(query.max()) + 1
    clicks_of, expected_of = (sum_by_number(query, values, n_queries)[query] for values in (clicks, expected))
    return clicks * expected_of > clicks_of * expected


def _without_empty(table: CountTable) -> CountTable:
    shown = table.impressions > 0
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(shown, dtype=np.int64)])
    counts = table.impressions[shown], table.clicks[shown]
    return CountTable(table.n_cells, before[table.start], table.cell[shown], *counts, table.multiplicity)
