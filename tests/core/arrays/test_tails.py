"""Pareto k: against the published formulas, weight by weight, and on samples whose shape is known."""

import math

import numpy as np
import pytest

from posbias.core.arrays.tails import tail_index, threshold


def one_by_one(weights: list[float]) -> float:
    """Return k of single weights: the tail of Vehtari et al. (2024), the estimator of Zhang & Stephens (2009)."""
    ordered = sorted(weights)
    tail = int(min(0.2 * len(ordered), math.ceil(3 * math.sqrt(len(ordered)))))
    x = [weight - ordered[-tail - 1] for weight in ordered[-tail:] if weight > ordered[-tail - 1]]
    n, quartile = len(x), x[math.floor(len(x) / 4 + 0.5) - 1]
    m = 30 + math.floor(math.sqrt(n))
    slopes = [1 / x[-1] + (1 - math.sqrt(m / (j - 0.5))) / (3 * quartile) for j in range(1, m + 1)]
    shapes = [sum(math.log(1 - b * one) for one in x) / n for b in slopes]
    likelihoods = [n * (math.log(-b / k) - k - 1) for b, k in zip(slopes, shapes, strict=True)]
    shares = [1 / sum(math.exp(other - own) for other in likelihoods) for own in likelihoods]
    b = sum(slope * share for slope, share in zip(slopes, shares, strict=True))
    return sum(math.log(1 - b * one) for one in x) / n


@pytest.mark.parametrize("seed", range(3))
def test_k_is_that_of_the_published_formulas(seed: int) -> None:
    weights = 1 + np.random.default_rng(seed).pareto(2.5, 400)
    assert tail_index(weights, np.ones(400)) == pytest.approx(one_by_one(weights.tolist()), rel=1e-8)


def test_weights_with_their_counts_say_the_same_as_one_by_one() -> None:
    rng = np.random.default_rng(5)
    distinct, counts = np.sort(1 + rng.pareto(2.0, 400)), rng.integers(0, 6, 400)
    each = np.repeat(distinct, counts)
    shuffled = rng.permutation(400)
    found = tail_index(distinct[shuffled], counts[shuffled].astype(np.float64))
    assert found == pytest.approx(one_by_one(each.tolist()), rel=1e-8)


def test_k_is_not_computed_of_fewer_than_five_different_weights() -> None:
    few = np.array([1.0, 2.0, 4.0, 5.0, 6.0, 7.0, 8.0])
    assert tail_index(few, np.array([9e6, 1.0, 1, 1, 1, 1, 1])) is not None
    assert tail_index(few, np.array([9e6, 0.0, 0, 1, 1, 1, 1])) is None
    assert tail_index(few, np.zeros(7)) is None
    assert tail_index(np.repeat(few, 3), np.repeat([9e6, 0.0, 0, 1, 1, 1, 1], 3)) is None
    assert tail_index(few, np.full(7, 100.0)) is None  # the largest 80 are the same


def test_the_threshold_grows_with_the_number_of_weights() -> None:
    assert threshold(100) == pytest.approx(0.5)
    assert threshold(1000) == pytest.approx(2 / 3)
    assert threshold(1e9) == 0.7
