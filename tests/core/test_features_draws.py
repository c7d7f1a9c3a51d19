"""Folds and samples of pages depend on the id and the seed alone."""

import numpy as np
import polars as pl
import pytest

from posbias.core.features import fold_numbers, in_sample, session_draws

SESSIONS = pl.Series(range(20_000))


def test_folds_are_halves_and_samples_are_as_large_as_they_should_be() -> None:
    draws = session_draws(SESSIONS, seed=0)
    assert np.bincount(fold_numbers(draws))[0] == pytest.approx(10_000, abs=300)
    chosen = in_sample(draws, 0.3)
    assert chosen.sum() == pytest.approx(6_000, abs=300)
    assert fold_numbers(draws)[chosen].mean() == pytest.approx(0.5, abs=0.03)  # a sample holds both
    assert (chosen <= in_sample(draws, 0.4)).all()


def test_a_page_has_its_fold_wherever_it_is_read() -> None:
    shuffled = SESSIONS.sample(fraction=1, shuffle=True, seed=1)
    own = dict(zip(SESSIONS.to_list(), session_draws(SESSIONS, 5).tolist(), strict=True))
    assert session_draws(shuffled, 5).tolist() == [own[page] for page in shuffled.to_list()]


@pytest.mark.parametrize("seed", [1, 10**12, 2**70])
def test_another_seed_draws_other_pages(seed: int) -> None:
    first, second = in_sample(session_draws(SESSIONS, 0), 0.5), in_sample(session_draws(SESSIONS, seed), 0.5)
    assert (first & second).mean() == pytest.approx(0.25, abs=0.02)
