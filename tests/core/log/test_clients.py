"""Clients that click like robots are told from people who click much."""

import numpy as np
import polars as pl
import pytest
from present import present

from posbias.core.check import CLIENT, robots_among

POSITIONS, USERS, PAGES = 10, 2000, 20_000
RATES = 0.3 / np.arange(1, POSITIONS + 1) ** 0.8


def counts(seed: int, shape: float, share: float = 0.0, robots: int = 6, rate: float = 0.5) -> pl.DataFrame:
    """Users of Zipf's activity whose rates differ by a gamma, and robots with a share of the clicks."""
    rng = np.random.default_rng(seed)
    activity = 1 / np.arange(1, USERS + 1)
    shown = np.repeat(rng.multinomial(PAGES, activity / activity.sum())[:, None], POSITIONS, 1)
    clicks = rng.binomial(shown, np.minimum(rng.gamma(shape, 1 / shape, (USERS, 1)) * RATES, 1))
    pages = share / (1 - share) * clicks.sum() / (rate * POSITIONS * robots)
    crawled = np.repeat(rng.poisson(pages, robots)[:, None], POSITIONS, 1)
    shown, clicks = np.vstack([shown, crawled]), np.vstack([clicks, rng.binomial(crawled, rate)])
    of, at = np.indices(shown.shape)
    columns = {CLIENT: of.ravel(), "position": at.ravel() + 1, "impressions": shown.ravel(), "clicks": clicks.ravel()}
    return pl.DataFrame(columns).filter(pl.col("impressions") > 0)


@pytest.mark.parametrize("shape", [0.5, 1.0, 3.0])
def test_people_who_differ_are_no_robots(shape: float) -> None:
    assert [robots_among(counts(seed, shape)) for seed in range(20)] == [None] * 20


@pytest.mark.parametrize("rate", [0.5, 1.0])
def test_robots_are_named_with_their_shares(rate: float) -> None:
    for seed in range(10):
        robots = present(robots_among(counts(seed, 1.0, share=0.1, rate=rate)))

        assert set(robots.names) >= {str(USERS + number) for number in range(6)}
        assert robots.clicks == pytest.approx(0.1, abs=0.02)
        assert robots.times > 3


def test_robots_with_few_clicks_and_kinds_of_clients_are_no_matter() -> None:
    assert robots_among(counts(1, 1.0, share=0.005)) is None
    assert robots_among(counts(1, 1.0, share=0.2).with_columns(pl.col(CLIENT) % 5)) is None
