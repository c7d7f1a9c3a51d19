"""Whether theta is the same for documents that are clicked more and less: cross-fitted, from the counts alone.

A factorised model says P(click) = theta_e gamma_j, so that theta_e, estimated from any of a query's documents, is the
same. Which documents are attractive must not be read from the clicks that theta is then estimated from. So the
impressions of each (unit, cell) are split at random into two halves A and B, and with them the clicks,

    n_A = n / 2 (an odd one to either half),    c_A ~ Hypergeometric(c of n, n_A drawn),

which gives two independent logs. One half says how attractive each unit is, by its clicks and those that its query's
units together let expect at its cells, E_j = sum_e n_je theta_e,

    s_j = (C_j + k r_q) / (E_j + k) - mean over the query,    r_q = sum C / sum E,    k = mean r / variance of C_j / E_j

(the mean is by clicks of the other half), and units are put into eight groups by s_j, each of the same clicks, scored
by their mean s. In the other half theta of the groups is compared; then the halves change places. Against the model
stands

    log theta_e + b s_g D_e,    D_e = (1 - theta_e) log(theta_K) / (1 - theta_K),    K the cell of the lowest theta

s being scaled so that the units above 0 lie 1 above the others, and b = 0 is tested (`score_test`), clustered by
query, as groups and halves share queries. At K theta of the high ones is theta_K^b times that of the low ones. b < 0:
attractive documents lose less by position, as under trust bias, or where position and attractiveness add up on the
logit scale. D rises where theta falls: such departures are largest between the first positions, where most clicks are.

What b leaves open of theta depends on why attractive documents would lose less. Where users trust high positions,
P(click) = theta_e (gamma_j + t_e (1 - gamma_j)), each document has a theta of its own, to first order log theta_e + t_e
(1 / gamma_j - 1), and their mean is off by as much. With t_e = t_1 + k D_e, b is the slope of k / gamma on s, and at K

    b log(theta_K) (mean of 1 / gamma - 1) var(s) / cov(1 / gamma, s),    1 / gamma_j = E_j / C_j

is the error of log theta, moments being by clicks, so that those of 1 / gamma are sums of E. gamma is no smaller than
where theta is 1 at its largest. Trust that matters is not small, though, and its error is up to 1.5 times what the
first order says: 1.3 times where it is .1 to .3, on simulated logs. So 1.4 times that is taken.

Sources: Agarwal et al. 2019 (trust bias); Tukey 1949 (one degree of freedom for non-additivity); Chernozhukov et al.
2018 (cross-fitting).
"""

from dataclasses import dataclass, replace

import numpy as np

from posbias.core.arrays.count_table import (
    CountTable,
    Floats,
    Integers,
    Numbers,
    concatenate,
    starts,
    sum_by_number,
    sum_rows,
)
from posbias.core.arrays.members import Members
from posbias.core.counts.sufficient_statistics import Strata
from posbias.core.standard_errors.contrasts import FittedStrata
from posbias.core.standard_errors.score_test import ScoreTest, score_test

N_GROUPS = 8
"""Groups of units by attractiveness."""

MOST_ENTRIES = 1 << 17
"""Counts that are split; in a larger log those of the queries that were shown most."""

LARGEST_COUNT = 10**9
"""Impressions of a unit in a cell from which on no halves are drawn."""

_LEAST_VARIANCE = 1e-4  # of attractiveness within queries, over its squared mean
_ROUNDING = 1e-12
_BEYOND_FIRST_ORDER = 1.4  # the error of theta under trust bias, to that of the first order
_SEED = 20260101
_MIX = np.uint64(0x9E3779B97F4A7C15)


def attractiveness_test(fitted: FittedStrata, group_of_cell: Integers) -> tuple[ScoreTest, float] | None:
    """Compare theta of the units that are clicked more with that of the others of their query.

    Args:
        fitted: the estimate from whole counts.
        group_of_cell: shape (K,), the context of each cell: cells of one share a reference.

    Returns:
        The test of b, and how far theta is off per unit of b if users trust high positions (see above); None where the
        log says nothing about it.
    """
    chosen = most_shown(fitted.strata)
    if not len(chosen.unit):
        return None
    kept = fitted.strata.signatures.only_cells(fitted.fit.linkage.identified).take(chosen.unit.astype(np.int64))
    if kept.impressions.max(initial=0) >= LARGEST_COUNT:
        return None
    theta = np.exp(np.nan_to_num(fitted.fit.log_theta))
    grouped = _grouped(replace(kept, multiplicity=np.ones(kept.n_units)), chosen.cluster, theta)
    if grouped is None:
        return None
    strata, score = grouped
    lowest, cell = float(theta.min()), np.repeat(np.arange(len(theta)), N_GROUPS)
    loss = (1 - theta) * (np.log(lowest) / (1 - lowest) if lowest < 1 else -1.0)  # D
    direction = loss[cell] * np.tile(score, len(theta))
    test = score_test(strata, cell, direction, group_of_cell)
    return None if test is None else (test, _error_of_log_theta(strata.signatures, score, theta))


def _error_of_log_theta(table: CountTable, score: Floats, theta: Floats) -> float:
    """What one unit of b says of theta at K under trust bias, inf where units hardly differ."""
    cell, group = table.cell // N_GROUPS, table.cell % N_GROUPS
    scale = theta / theta.max()
    clicks, expected = (
        sum_by_number(group, values, N_GROUPS) for values in (table.clicks, table.impressions * scale[cell])
    )
    surplus = max(float(expected.sum() / clicks.sum()) - 1, 0.0)
    moved = abs(float(expected @ score))
    if not moved > 0:
        return np.inf
    return _BEYOND_FIRST_ORDER * abs(float(np.log(scale.min()))) * surplus * float(clicks @ score**2) / moved


def most_shown(strata: Strata, most: int = MOST_ENTRIES) -> Members:
    """The members of the queries that were shown most, as many as have so many entries together.

    Their order depends on the counts alone, not on how queries are numbered: by impressions of the query, then by a
    hash of its units, then by unit. The same log gives the same order, however it was read.
    """
    members, table = strata.members, strata.signatures
    if not len(members.unit):
        return members
    first = np.flatnonzero(np.diff(members.cluster, prepend=members.cluster[0] - 1))
    unit, start = members.unit.astype(np.int64), np.append(first, len(members.unit))
    entries = sum_rows(table.entries_of_unit.take(unit), start)
    shown = np.add.reduceat(table.sum_by_unit(table.impressions).take(unit), first)
    mixed = (unit.astype(np.uint64) + np.uint64(1)) * _MIX
    mixed ^= mixed >> np.uint64(29)
    key = sum_rows(mixed * _MIX, start)
    queries = np.lexsort((key, -shown))
    before = np.cumsum(entries[queries]) - entries[queries]
    queries = queries[before < most]
    length = np.diff(start)[queries]
    start = starts(length)
    number = np.repeat(np.arange(len(queries)), length)
    chosen = unit[np.arange(start[-1]) + np.repeat(first[queries] - start[:-1], length)]
    order = np.lexsort((chosen, number))
    return Members(chosen[order], number[order])


def halves(table: CountTable) -> tuple[CountTable, CountTable]:
    """The counts of two random halves of the impressions, with the entries of the table, some of them empty."""
    rng = np.random.default_rng(_SEED)
    impressions, clicks = table.impressions.astype(np.int64), table.clicks.astype(np.int64)
    first = impressions // 2 + (impressions % 2) * rng.integers(0, 2, len(impressions))
    drawn = rng.hypergeometric(clicks, impressions - clicks, first)
    one = replace(table, impressions=first.astype(np.float64), clicks=drawn.astype(np.float64))
    return one, replace(table, impressions=table.impressions - one.impressions, clicks=table.clicks - one.clicks)


@dataclass(frozen=True)
class _Fold:
    """The units of one half, the query of each, how attractive the other half says they are, and their clicks."""

    table: CountTable
    query: Numbers
    attractive: Floats
    clicks: Floats


def _grouped(table: CountTable, query: Numbers, theta: Floats) -> tuple[Strata, Floats] | None:
    """The units of both folds in cells (e, group), and the score of each group, shape (8,).

    None where a half has no click, or no query has two units that differ.
    """
    one, other = halves(table)
    if not (one.clicks.any() and other.clicks.any()):
        return None
    folds = [_fold(half, by, query, theta) for half, by in ((one, other), (other, one))]
    attractive, clicks = (np.concatenate([getattr(fold, name) for fold in folds]) for name in ("attractive", "clicks"))
    if not len(attractive):
        return None
    group = _groups(attractive, clicks)
    both = concatenate([fold.table for fold in folds])
    in_groups = N_GROUPS * both.cell + np.repeat(group, both.entries_of_unit)
    queries = np.concatenate([fold.query for fold in folds])
    strata = Strata(
        replace(both, n_cells=N_GROUPS * both.n_cells, cell=in_groups), Members(np.arange(len(queries)), queries)
    )
    return strata, _scores(group, attractive, clicks)


def _fold(half: CountTable, by: CountTable, query: Numbers, theta: Floats) -> _Fold:
    """The units of a half that link cells, in queries whose units differ."""
    rate = _click_rates(by, query, theta)
    half = _without_empty(half)
    units = np.flatnonzero(half.links)
    clicks, of_query, n_queries = half.sum_by_unit(half.clicks)[units], query[units], int(query.max()) + 1
    usual = sum_by_number(of_query, clicks * rate[units], n_queries) / np.maximum(
        sum_by_number(of_query, clicks, n_queries), 1
    )
    attractive = rate[units] - usual[of_query]
    differ = np.bincount(of_query, np.abs(attractive) > _ROUNDING, minlength=n_queries)[of_query] > 0
    return _Fold(half.take(units[differ]), of_query[differ], attractive[differ], clicks[differ])


def _click_rates(table: CountTable, query: Numbers, theta: Floats) -> Floats:
    """How attractive each unit is, shrunk towards its query, shape (J,)."""
    clicks, expected = table.sum_by_unit(table.clicks), table.sum_by_unit(table.impressions * theta[table.cell])
    n_queries = int(query.max()) + 1
    clicks_of, expected_of = (sum_by_number(query, values, n_queries) for values in (clicks, expected))
    usual = (clicks_of / np.maximum(expected_of, np.finfo(np.float64).tiny))[query]
    mean = clicks.sum() / expected.sum()
    beyond_chance = ((clicks - usual * expected) ** 2 - usual * expected).sum() / (expected**2).sum()
    strength = mean / max(beyond_chance, _LEAST_VARIANCE * mean**2)
    return (clicks + strength * usual) / (expected + strength)


def _groups(attractive: Floats, clicks: Floats) -> Integers:
    """The group of each unit, from the least attractive on, of the same clicks each."""
    order = np.argsort(attractive, kind="stable")
    middle = np.cumsum(clicks[order]) - clicks[order] / 2
    group = np.empty(len(order), np.int64)
    group[order] = np.minimum(middle / clicks.sum() * N_GROUPS, N_GROUPS - 1).astype(np.int64)
    return group


def _scores(group: Integers, attractive: Floats, clicks: Floats) -> Floats:
    """The mean of each group by clicks, scaled so that those above 0 lie 1 above the others, shape (8,)."""
    above = attractive > 0
    apart = np.average(attractive[above], weights=clicks[above]) - np.average(
        attractive[~above], weights=clicks[~above]
    )
    total = sum_by_number(group, clicks, N_GROUPS)
    return sum_by_number(group, clicks * attractive, N_GROUPS) / np.maximum(total, 1) / apart


def _without_empty(table: CountTable) -> CountTable:
    shown = table.impressions > 0
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(shown, dtype=np.int64)])
    counts = table.impressions[shown], table.clicks[shown]
    return CountTable(table.n_cells, before[table.start], table.cell[shown], *counts, table.multiplicity)
