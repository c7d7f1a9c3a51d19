"""Pareto k of weights, which shows whether a few large weights dominate a weighted mean; Holm's adjusted p-values.

Of S weights the largest M = min(0.2 S, 3 sqrt S) exceed the next one, u, by x = w - u > 0. Under the generalised Pareto
distribution P(x > t) = (1 + k t / sigma)^(-1 / k), moments up to order 1 / k exist: no variance from k = 1/2 on, no
mean from 1 on. The mean of S weights is usable for k below min(1 - 1 / log10 S, 0.7).

k and b = -k / sigma by the posterior mean of b under a prior from the data (Zhang & Stephens 2009), for N values x:

    b_j = 1 / max x + (1 - sqrt(J / (j - 1/2))) / (3 x*),    x* the first quartile,    J = 30 + [sqrt N],    j = 1 .. J
    k(b) = mean log(1 - b x),    l(b) = N (log(-b / k(b)) - k(b) - 1),    b = sum_j b_j exp l(b_j) / sum_j exp l(b_j)

Source: Vehtari, Simpson, Gelman, Yao & Gabry 2024, Pareto smoothed importance sampling, JMLR 25(72).
"""

import math

import numpy as np

from posbias.core.arrays.count_table import Floats, sum_by_number

FEWEST_WEIGHTS = 5
"""Fewest distinct weights in the tail for which k is computed."""

_LARGEST_THRESHOLD = 0.7
_DECIMALS = 12  # of weights that differ by more than rounding


def tail_index(weight: Floats, count: Floats) -> float | None:
    """Estimate Pareto k; None if the tail has too few distinct weights.

    Args:
        weight: shape (n,); NaN where the count is 0.
        count: number of occurrences of each weight, shape (n,).
    """
    there = count > 0
    weight, at = np.unique(np.round(weight[there], _DECIMALS), return_inverse=True)
    weight, count = weight[::-1], sum_by_number(at, count[there], len(weight))[::-1]
    above = np.cumsum(count)
    size = float(count.sum())
    tail = min(math.floor(0.2 * size), math.ceil(3 * math.sqrt(size)))
    larger = int(np.searchsorted(above, tail, side="right"))  # different weights above the one after the tail
    if larger < FEWEST_WEIGHTS:
        return None
    excess, count = weight[:larger] - weight[larger], count[:larger]
    number = float(count.sum())
    n_slopes = 30 + math.floor(math.sqrt(number))
    quartile = excess[::-1][np.searchsorted(np.cumsum(count[::-1]), math.floor(number / 4 + 0.5))]
    slope = 1 / excess[0] + (1 - np.sqrt(n_slopes / (np.arange(n_slopes) + 0.5))) / (3 * quartile)
    shape = np.log1p(-slope[:, np.newaxis] * excess) @ count / number
    likelihood = number * (np.log(-slope / shape) - shape)
    likely = np.exp(likelihood - likelihood.max())
    return float(np.log1p(-(slope @ likely) / likely.sum() * excess) @ count / number)


def threshold(size: float) -> float:
    """Return the largest Pareto k with which the mean of so many weights is usable."""
    return min(1 - 1 / math.log10(max(size, 2.0)), _LARGEST_THRESHOLD)


def holm(p_values: Floats) -> Floats:
    """Adjust p-values of several tests by Holm's method; NaN stays and is not counted as a test."""
    known = np.flatnonzero(np.isfinite(p_values))
    order = known[np.argsort(p_values[known], kind="stable")]
    steps = len(order) - np.arange(len(order))
    adjusted = np.full(len(p_values), np.nan)
    adjusted[order] = np.minimum(np.maximum.accumulate(p_values[order] * steps), 1.0)
    return adjusted
