"""The prior of parameters by unit."""

import numpy as np
import pytest

from posbias.core.browsing.beta_binomial import estimate_prior


def test_the_prior_of_many_probabilities_is_found() -> None:
    rng = np.random.default_rng(0)
    probability = rng.beta(2.0, 6.0, 20_000)
    decided = rng.integers(1, 20, 20_000)
    prior = estimate_prior(rng.binomial(decided, probability).astype(float), decided.astype(float))
    assert prior.mean == pytest.approx(0.25, abs=0.01)
    assert prior.strength == pytest.approx(8.0, rel=0.1)


@pytest.mark.parametrize(
    ("favourable", "decided"),
    [([], []), ([0.0], [0.0]), ([0.0] * 50, [3.0] * 50), ([3.0] * 50, [3.0] * 50), ([0.5], [0.5])],
)
def test_counts_that_say_little_give_a_prior_all_the_same(favourable: list[float], decided: list[float]) -> None:
    prior = estimate_prior(np.array(favourable), np.array(decided))
    assert 0 < prior.mean < 1
    assert 0.05 <= prior.strength <= 5000
