"""Values that were made of the clicks of a log know the chance in them; those that were known before do not."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
from small_logs import dense_table

from posbias.core.arrays.count_table import Floats, Integers
from posbias.core.evaluation.click_noise import noise_shares, sampled_units, unit_sums

THETA = 1 / np.arange(1, 6)
N_QUERIES, N_DOCUMENTS, N_PAGES = 60, 12, 2_000
QUERY, DOCUMENT = (place.ravel() for place in np.indices((N_QUERIES, N_DOCUMENTS)))


class Sums(NamedTuple):
    """Impressions of pairs, those with theta and its square as weights, and clicks."""

    shown: Floats
    examined: Floats
    squares: Floats
    clicks: Floats


def drawn(seed: int) -> tuple[Floats, "Sums"]:
    """Attractiveness, and pages whose ranker knows most of it."""
    rng = np.random.default_rng(seed)
    attractiveness = 0.6 * rng.beta(1.2, 2, (N_QUERIES, N_DOCUMENTS))
    query = rng.integers(N_QUERIES, size=N_PAGES)
    order = np.argsort(-attractiveness[query] - rng.normal(0, 0.2, (N_PAGES, N_DOCUMENTS)), axis=1)[:, : len(THETA)]
    clicks = rng.random(order.shape) < THETA * attractiveness[query[:, np.newaxis], order]
    pair, cell = query[:, np.newaxis] * N_DOCUMENTS + order, np.broadcast_to(np.arange(len(THETA)), order.shape)
    n, c = (np.zeros((N_QUERIES * N_DOCUMENTS, len(THETA))) for _ in range(2))
    np.add.at(n, (pair, cell), 1)
    np.add.at(c, (pair, cell), clicks)
    return attractiveness.ravel(), Sums(*unit_sums(dense_table(n, c), THETA).T)


def share(value: Floats, clicks: Sums, document: Integers | None = None) -> float:
    """Which share of the chance a value knows."""
    every = sampled_units(QUERY, 1)
    numbers = np.arange(len(QUERY)) if document is None else document
    return float(noise_shares(value[every, np.newaxis], every, np.array(clicks).T, QUERY, numbers)[0])


def test_the_true_attractiveness_and_what_comes_near_it_know_no_chance() -> None:
    for seed in range(20):
        attractiveness, clicks = drawn(seed)
        noisy = attractiveness + np.random.default_rng(seed).normal(0, 0.1, len(attractiveness))
        others = noisy.round(1), clicks.shown, QUERY.astype(float), DOCUMENT.astype(float)
        values = np.column_stack([attractiveness, noisy, *others])
        every = sampled_units(QUERY, 6)
        assert not noise_shares(values, every, np.array(clicks).T, QUERY, np.arange(len(QUERY))).any()


def within_query(rates: Floats) -> Floats:
    """Ranks within queries."""
    return np.argsort(np.argsort(-rates.reshape(N_QUERIES, -1))).ravel().astype(float)


MADE_OF_CLICKS: dict[str, Callable[[Sums], Floats]] = {
    "rate": lambda of: of.clicks / np.maximum(of.shown, 1),
    "smoothed rate": lambda of: (of.clicks + 1) / (of.shown + 10),
    "logarithm": lambda of: np.log(of.clicks / np.maximum(of.shown, 1) + 0.01),
    "clicks": lambda of: of.clicks,
    "corrected rate": lambda of: of.clicks / np.maximum(of.examined, 1e-9),
    "rank by rate": lambda of: within_query(of.clicks / np.maximum(of.shown, 1)),
    "backwards, with gaps": lambda of: np.where(QUERY % 5 > 0, 1 - of.clicks / np.maximum(of.shown, 1), np.nan),
}


@pytest.mark.parametrize("name", MADE_OF_CLICKS)
def test_what_is_made_of_the_clicks_knows_most_of_the_chance_in_them(name: str) -> None:
    assert share(MADE_OF_CLICKS[name](drawn(0)[1]), drawn(0)[1]) > 0.5


def test_a_rate_of_other_clicks_knows_no_chance_and_one_of_half_of_them_some() -> None:
    first, second = drawn(1)[1], drawn(1)[1]
    attractiveness, other = drawn(1)[0], np.random.default_rng(9)
    n = first.examined.round()
    later = Sums(n, n, n, other.binomial(n.astype(np.int64), attractiveness).astype(float))
    assert share(second.clicks / np.maximum(second.shown, 1), later) == 0
    before = other.binomial(n.astype(np.int64), attractiveness).astype(float)
    both = Sums(2 * n, 2 * n, 2 * n, later.clicks + before)
    assert 0.2 < share(before / np.maximum(n, 1), both) < 0.6


def test_a_rate_of_a_document_over_all_its_queries_is_compared_with_all_of_its_clicks() -> None:
    attractiveness, clicks = drawn(2)
    document = np.random.default_rng(0).integers(200, size=len(QUERY))

    def mean(values: Floats, of: Floats) -> Floats:
        return (np.bincount(document, values) / np.maximum(np.bincount(document, of), 1e-9))[document]

    assert share(mean(clicks.clicks, clicks.shown), clicks, document) > 0.5
    assert share(mean(clicks.examined * attractiveness, clicks.examined), clicks, document) == 0


def test_two_pairs_by_hand() -> None:
    # Each of 200 pairs is shown 4 times at the top and clicked once or three times, as its value says: neighbours have
    # the same clicks, so that of S = 2 or 6 clicks, u = -S / 4 but for what 4 impressions can vary less than many.
    c = np.repeat([1.0, 3.0], 100)
    shown = np.full(200, 4.0)
    clicks = Sums(shown, shown, shown, c)
    # v = 4 / 3, q = 1 / 4: u = (2 c (c - 1) v - 2 c^2) / 4 and weights 1 / (S - 1) / v, 50 pairs of each
    u, s = (2 * c * (c - 1) * 4 / 3 - 2 * c**2) / 4, 2 * c
    expected = -(u * 4 / (s - 1) / (4 / 3)).sum() / (s / (s - 1) / (4 / 3)).sum()
    assert share_of(c, clicks) == pytest.approx(expected)


def share_of(value: Floats, clicks: Sums) -> float:
    """The same, of units that are all looked at."""
    every = np.arange(len(value))
    return float(noise_shares(value[:, np.newaxis], every, np.array(clicks).T, every, every)[0])
