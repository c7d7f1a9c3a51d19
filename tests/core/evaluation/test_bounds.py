"""Finite-sample bounds: by hand, and that they hold."""

import math

import numpy as np
import polars as pl
import pytest

from posbias.core.evaluation.clicked import CellWeights
from posbias.core.evaluation.estimates import empirical_bernstein, hoeffding, largest_gain

CONFIDENCE = 0.9


def test_the_bounds_are_those_of_the_papers() -> None:
    assert hoeffding(0.5, 200, 2.0, 0.95, 3) == pytest.approx(0.5 - 2 * math.sqrt(math.log(60) / 400))
    log = math.log(120)
    expected = 0.5 - math.sqrt(2 * 0.1 * log / 200) - 7 * 2 * log / (3 * 199)
    assert empirical_bernstein(0.5, 0.1, 200, 2.0, 0.95, 3) == pytest.approx(expected)
    assert math.isnan(empirical_bernstein(0.5, 0.1, 1, 2.0, 0.95, 3))


def test_the_largest_gain_takes_every_position_once_with_its_largest_weight() -> None:
    cells = pl.DataFrame({"position": [1, 2, 2, 3], "previous_click": [0, 0, 1, 0]})
    weights = CellWeights(cells, np.array([1.0, 0.5, 0.8, 0.05]), 0.1)
    assert largest_gain(weights, 2) == pytest.approx(10 + 2 / math.log2(3))
    assert largest_gain(weights, 10) == pytest.approx(10 + 2 / math.log2(3) + 1 / 2)


@pytest.mark.parametrize("shape", [(0.02, 5.0), (1.0, 1.0), (5.0, 0.1)])
def test_the_bounds_hold_as_often_as_they_say(shape: tuple[float, float]) -> None:
    rng = np.random.default_rng(4)
    draws, largest = 3.0 * rng.beta(*shape, size=(2000, 100)), 3.0
    true, mean, variance = 3.0 * shape[0] / sum(shape), draws.mean(axis=1), draws.var(axis=1, ddof=1)
    held = {
        "hoeffding": [hoeffding(m, 100, largest, CONFIDENCE, 1) <= true for m in mean],
        "bernstein": [
            empirical_bernstein(m, v, 100, largest, CONFIDENCE, 1) <= true for m, v in zip(mean, variance, strict=True)
        ],
    }
    assert {name: np.mean(hits) >= CONFIDENCE for name, hits in held.items()} == {"hoeffding": True, "bernstein": True}
    if shape == (1.0, 1.0):  # neither is so wide that it says nothing
        assert hoeffding(mean.mean(), 100, largest, CONFIDENCE, 1) > 0.5 * true
