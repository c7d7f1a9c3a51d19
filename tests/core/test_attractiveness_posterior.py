"""The posterior of attractiveness: against high-precision integrals, closed forms and itself."""

import numpy as np
import pytest
from small_logs import dense_table

from posbias.core import attractiveness
from posbias.core.arrays.count_table import CountTable, Floats, compress
from posbias.core.attractiveness import posterior
from posbias.core.choices import BetaPrior

# impressions, clicks, theta, prior mean, prior strength, posterior mean, standard deviation: by mpmath, 40 digits.
PRECISE: list[tuple[list[float], list[float], list[float], float, float, float, float]] = [
    ([3], [1], [1.0], 0.5, 2, 0.4, 0.2),
    ([1], [0], [0.3], 0.5, 2, 0.47058823529411764, 0.28717291207601586),
    ([5, 7], [0, 0], [0.6, 0.2], 0.1, 3.0, 0.04316617349520585, 0.07405539899770469),
    ([40, 60], [12, 9], [1.0, 0.4], 0.5, 2, 0.33066869121229736, 0.05973546818682325),
    ([60, 80], [60, 0], [1.0, 1e-09], 0.3, 1.5, 0.9829268292468122, 0.016386178377505337),
    ([1000000.0], [0], [1.0], 0.5, 2, 9.99998000004e-07, 9.999970000085e-07),
    ([1000000.0], [1000000.0], [1.0], 0.5, 2, 0.999999000002, 9.999970000085e-07),
    ([1000000.0], [1000000.0], [1.0], 0.9, 1.0, 0.9999999000001, 3.1622727586459076e-07),
    (
        [1000000000000.0, 1000000000000.0],
        [300000000000.0, 100000000000.0],
        [1.0, 0.33],
        0.5,
        2,
        0.3006180512904525,
        4.089963500392926e-07,
    ),
    ([1000000000000.0], [1000], [1e-09], 0.5, 2, 0.9753391950525916, 0.018507379299804998),
    ([1000000000000.0], [700], [1e-06], 0.2, 1.0, 0.0007002001401374529, 2.6461297773962016e-05),
    ([1000000000000.0], [3], [1.0], 0.5, 2, 3.999999999992e-12, 1.999999999991e-12),
    ([1000000000000.0], [1000000000000.0], [1.0], 0.5, 2, 0.999999999999, 9.99999999997e-13),
    ([300], [100], [0.2], 0.5, 2, 0.9815487688937524, 0.017789627778999215),
    ([300, 200], [0, 0], [1.0, 0.5], 0.05, 1.0, 0.0001247290305510643, 0.0005571666553919155),
    ([5000], [4999], [1.0], 0.5, 2, 0.9996001599360256, 0.0002826448398896051),
    ([101, 50], [50, 3], [0.7, 0.1], 0.5, 1.0, 0.7090479268854658, 0.07035556804216772),
    ([100000.0], [30000.0], [0.3], 0.5, 2, 0.9961535680417939, 0.0029043116401983094),
    ([800], [560], [0.7], 0.5, 2, 0.9811478767885905, 0.014322754668118727),
    ([90, 20], [45, 10], [1.0, 0.5], 0.3, 1.5, 0.5297620553175348, 0.049126081708702196),
    ([0.3], [0.1], [0.9], 0.5, 2, 0.49242145717444563, 0.2802326887306304),
    ([2000], [1], [0.9], 0.05, 1, 0.000583043433027703, 0.0005687007371515518),
]


def one(impressions: list[float], clicks: list[float], theta: list[float], prior: BetaPrior) -> tuple[float, float]:
    table = dense_table(np.array([impressions]), np.array([clicks]))
    mean, deviation = posterior(table, np.array(theta), prior)
    return float(mean[0]), float(deviation[0])


@pytest.mark.parametrize(("impressions", "clicks", "theta", "mean", "strength", "expected", "deviation"), PRECISE)
def test_moments_are_those_of_high_precision_integration(
    impressions: list[float],
    clicks: list[float],
    theta: list[float],
    mean: float,
    strength: float,
    expected: float,
    deviation: float,
) -> None:
    found = one(impressions, clicks, theta, BetaPrior(mean, strength))
    assert found[0] == pytest.approx(expected, rel=1e-8)
    assert found[1] == pytest.approx(deviation, rel=1e-7)


def test_without_a_count_in_an_identified_cell_the_prior_remains_exactly() -> None:
    table = dense_table(np.array([[0.0, 5.0], [0.0, 0.0]]), np.array([[0.0, 2.0], [0.0, 0.0]]))
    prior = BetaPrior(0.3, 4)
    mean, deviation = posterior(table, np.array([1.0, np.nan]), prior)
    np.testing.assert_array_equal(mean, [0.3, 0.3])
    np.testing.assert_allclose(deviation, np.sqrt(0.3 * 0.7 / 5), rtol=1e-15)


def test_cells_without_a_propensity_say_nothing() -> None:
    prior = BetaPrior(0.5, 2)
    assert one([9.0, 7.0], [3.0, 6.0], [0.5, np.nan], prior) == one([9.0], [3.0], [0.5], prior)


def test_strength_zero_is_a_flat_prior() -> None:
    counts = [9.0, 7.0], [3.0, 1.0], [1.0, 0.5]
    assert one(*counts, BetaPrior(0.2, 0)) == one(*counts, BetaPrior(0.5, 2))


def random_table(seed: int) -> CountTable:
    rng = np.random.default_rng(seed)
    impressions = np.ceil(10 ** rng.uniform(-1, 4, (400, 3))) * (rng.random((400, 3)) < 0.7)
    clicks = rng.binomial(impressions.astype(np.int64), rng.beta(1, 2, (400, 1)) * [1, 0.5, 0.2])
    return dense_table(impressions, clicks.astype(float))


@pytest.mark.parametrize("prior", [BetaPrior(0.5, 2), BetaPrior(0.1, 1.5)])
def test_both_rules_agree_where_they_meet(prior: BetaPrior, monkeypatch: pytest.MonkeyPatch) -> None:
    theta = np.array([1, 0.5, 0.2])
    table = random_table(0)
    knowledge = table.sum_by_unit(table.clicks + (table.impressions - table.clicks) * theta[table.cell])
    middling = table.take(np.flatnonzero((knowledge > 2) & (knowledge < 100)))
    shared = posterior(middling, theta, prior)
    monkeypatch.setattr(attractiveness, "_KNOWS_LITTLE", 0.0)
    own = posterior(middling, theta, prior)
    np.testing.assert_allclose(shared[0], own[0], rtol=1e-6)
    np.testing.assert_allclose(shared[1], own[1], rtol=1e-5)


def test_the_size_of_the_blocks_and_compression_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    theta, prior = np.array([1, 0.5, 0.2]), BetaPrior(0.3, 2)
    table = random_table(1)
    expected = posterior(table, theta, prior)
    signatures, signature = compress(table)
    of_signatures = posterior(signatures, theta, prior)
    monkeypatch.setattr(attractiveness, "_BLOCK", 1000)
    small: tuple[Floats, Floats] = posterior(table, theta, prior)
    for whole, grouped, blocked in zip(expected, of_signatures, small, strict=True):
        np.testing.assert_allclose(grouped[signature], whole, rtol=1e-12)
        np.testing.assert_allclose(blocked, whole, rtol=1e-12)


@pytest.mark.parametrize("prior", [BetaPrior(0.5, 2), BetaPrior(0.1, 1.5), BetaPrior(0.9, 30)])
def test_the_mode_on_the_logit_scale_is_the_fixed_point_of_em_with_theta_held(prior: BetaPrior) -> None:
    theta = np.array([1, 0.5, 0.2])
    table = random_table(2)
    table = table.take(np.flatnonzero(table.entries_of_unit))
    skips, total = table.impressions - table.clicks, prior.strength + table.sum_by_unit(table.impressions)
    gamma = np.full(table.n_units, 0.5)
    for _ in range(3_000):
        per_entry, examined = table.spread(gamma), theta[table.cell]
        attracted = table.clicks + skips * per_entry * (1 - examined) / (1 - examined * per_entry)
        gamma = (prior.pseudo_clicks + table.sum_by_unit(attracted)) / total
    found = attractiveness.posterior_modes(table, theta, prior.pseudo_clicks, prior.pseudo_skips)
    np.testing.assert_allclose(found, gamma, rtol=1e-6)
