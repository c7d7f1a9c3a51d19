"""The prior of parameters by unit."""

import numpy as np
import pytest

from posbias.core.models import page_matrices
from posbias.core.models.page_matrices import Floats, estimate_beta_prior


def test_the_prior_of_many_probabilities_is_found() -> None:
    rng = np.random.default_rng(0)
    probability = rng.beta(2.0, 6.0, 20_000)
    trials = rng.integers(1, 20, 20_000)
    prior = estimate_beta_prior(rng.binomial(trials, probability).astype(float), trials.astype(float), None)
    assert prior.mean == pytest.approx(0.25, abs=0.01)
    assert prior.strength == pytest.approx(8.0, rel=0.1)


@pytest.mark.parametrize(
    ("successes", "trials"),
    [([], []), ([0.0], [0.0]), ([0.0] * 50, [3.0] * 50), ([3.0] * 50, [3.0] * 50), ([0.5], [0.5])],
)
def test_counts_that_say_little_give_a_prior_all_the_same(successes: list[float], trials: list[float]) -> None:
    prior = estimate_beta_prior(np.array(successes), np.array(trials), None)
    assert 0 < prior.mean < 1
    assert 0.05 <= prior.strength <= 5000


def counted(n: int) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(3)
    trials = rng.gamma(2.0, 5.0, n)
    return trials * rng.beta(2.0, 6.0, n), trials


def test_the_order_of_units_does_not_change_the_prior() -> None:
    successes, trials = counted(50_000)
    prior, order = estimate_beta_prior(successes, trials, None), np.random.default_rng(4).permutation(50_000)
    other = estimate_beta_prior(successes[order], trials[order], None)
    assert other.mean == pytest.approx(prior.mean, rel=1e-10)
    assert other.strength == pytest.approx(prior.strength, rel=1e-10)


def test_a_unit_that_stands_for_several_counts_as_often() -> None:
    successes, trials = counted(2000)
    times = np.random.default_rng(5).integers(1, 5, 2000)
    once = estimate_beta_prior(successes, trials, times.astype(float))
    all_units = estimate_beta_prior(np.repeat(successes, times), np.repeat(trials, times), None)
    assert once.mean == pytest.approx(all_units.mean, rel=1e-10)
    assert once.strength == pytest.approx(all_units.strength, rel=1e-10)


def test_units_of_about_the_same_counts_stand_for_each_other_without_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    successes, trials = counted(5000)
    in_cells = estimate_beta_prior(successes, trials, None)
    monkeypatch.setattr(page_matrices, "_STEP", 5e-3)
    apart = estimate_beta_prior(successes, trials, None)
    assert in_cells.mean == pytest.approx(apart.mean, rel=1e-3)
    assert in_cells.strength == pytest.approx(apart.strength, rel=1e-3)
