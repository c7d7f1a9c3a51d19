"""Pairs of documents of one query whose click rates differ significantly.

    raw:        p_i = c_i / n_i against p_j = c_j / n_j, p = (c_i + c_j) / (n_i + n_j):
                z = (p_i - p_j) / sqrt(p (1 - p) (1 / n_i + 1 / n_j))
    corrected:  c_i of c_i + c_j clicks, where equal attractiveness would have each be one of i with probability
                E_i / (E_i + E_j),  E = sum_k n_k theta_k:  the exact two-sided binomial test

Raw rates differ because documents stood at different positions; corrected ones compare clicks with examinations. Both
levels hold for a single pair. Over all pairs of a log, "bonferroni" bounds the chance of any false one, "fdr" the
expected share of false ones among those found (Benjamini & Hochberg 1995).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from posbias.core.arrays.count_table import Flags, Floats, Integers, starts
from posbias.core.choices import MultipleTests

_BLOCK = 1 << 18  # pairs that are tested at a time


@dataclass(frozen=True)
class RatePairs:
    """Pairs of documents.

    Attributes:
        higher: the documents with the higher click rate, shape (P,).
        lower: the others, shape (P,).
        n_tested: how many pairs there were.
    """

    higher: Integers
    lower: Integers
    n_tested: int


def significant_pairs(
    query: Integers,
    clicks: Floats,
    exposure: Floats,
    *,
    corrected: bool,
    level: float,
    multiple_tests: MultipleTests,
) -> RatePairs:
    """The pairs of documents of a query whose click rates differ.

    Args:
        query: of each document, ascending, shape (D,).
        clicks: c, shape (D,).
        exposure: n, or E where rates are corrected, shape (D,). Documents without any are in no pair.
        corrected: which test.
        level: in (0, 1), below which a p-value counts as significant.
        multiple_tests: what the level is about.
    """
    shown = np.flatnonzero(exposure > 0)
    test = clicks_differ if corrected else rates_differ
    found: list[tuple[Integers, Integers, Floats]] = []
    n_tested = 0
    for first, second in _pairs(query[shown]):
        one, other = shown[first], shown[second]
        p_value, one_is_higher = test(clicks[one], exposure[one], clicks[other], exposure[other])
        n_tested += len(one)
        kept = p_value < level
        higher, lower = np.where(one_is_higher, one, other), np.where(one_is_higher, other, one)
        found.append((higher[kept], lower[kept], p_value[kept]))
    higher, lower, p_value = (np.concatenate(parts) for parts in zip(_NOTHING, *found, strict=True))
    kept = p_value < _threshold(p_value, n_tested, level, multiple_tests)
    return RatePairs(higher[kept], lower[kept], n_tested)


_NOTHING = (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))


def _pairs(query: Integers) -> Iterator[tuple[Integers, Integers]]:
    """All pairs of documents of a query, each once, some at a time."""
    numbers = np.arange(len(query))
    end = np.searchsorted(query, query, side="right")
    later = end - numbers - 1
    before = starts(later)
    first = 0
    while first < len(query):
        last = int(np.searchsorted(before, int(before[first]) + _BLOCK, side="right")) - 1
        last = max(last, first + 1)
        one = np.repeat(numbers[first:last], later[first:last])
        yield one, one + 1 + np.arange(len(one)) - (before[one] - before[first])
        first = last


def rates_differ(one: Floats, of_one: Floats, other: Floats, of_other: Floats) -> tuple[Floats, Flags]:
    """The two-sided p-value of equal raw click rates, and whether the first is the higher one, shapes (P,)."""
    pooled = (one + other) / (of_one + of_other)
    error = np.sqrt(np.maximum(pooled * (1 - pooled), 0.0) * (1 / of_one + 1 / of_other))
    difference = one / of_one - other / of_other
    z = np.divide(difference, error, out=np.zeros_like(difference), where=error > 0)
    return 2 * _special().ndtr(-np.abs(z)), difference > 0


def clicks_differ(one: Floats, of_one: Floats, other: Floats, of_other: Floats) -> tuple[Floats, Flags]:
    """The two-sided p-value of clicks that split as exposure does, and whether the first has more, shapes (P,).

    Sums of weights take the place of numbers of clicks as they are: the incomplete beta function goes between them.
    """
    chance = of_one / (of_one + of_other)
    special = _special()
    at_most = np.where(other > 0, special.betainc(np.maximum(other, _TINY), one + 1, 1 - chance), 1.0)
    at_least = np.where(one > 0, special.betainc(np.maximum(one, _TINY), other + 1, chance), 1.0)
    return np.minimum(1.0, 2 * np.minimum(at_most, at_least)), at_least < at_most


_TINY = 1e-300


def _threshold(p_value: Floats, n_tested: int, level: float, multiple_tests: MultipleTests) -> float:
    """Below which p-values count.

    Args:
        p_value: those below the level, shape (P,).
        n_tested: number of all p-values.
        level: of the tests together.
        multiple_tests: how it allows for many.
    """
    if multiple_tests == "none" or not len(p_value):
        return level
    if multiple_tests == "bonferroni":
        return level / n_tested
    ordered = np.sort(p_value)
    below = np.flatnonzero(ordered <= level * np.arange(1, len(ordered) + 1) / n_tested)
    return float(np.nextafter(ordered[below[-1]], np.inf)) if len(below) else 0.0


def _special() -> Any:  # noqa: ANN401 - a module, imported late
    return import_module("scipy.special")
