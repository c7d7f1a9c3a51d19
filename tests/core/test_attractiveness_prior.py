"""The estimated prior of attractiveness: against high-precision integrals, known truth, and logs that say nothing."""

import numpy as np
import pytest
from small_logs import dense_table

from posbias.core import attractiveness as attractiveness_prior
from posbias.core.arrays.count_table import CountTable, Floats, compress
from posbias.core.attractiveness import (
    LAST_POSITION,
    MEANS,
    STRENGTHS,
    AttractivenessPrior,
    estimate_prior,
    posterior,
    posterior_by_position,
    shown_position,
)
from posbias.core.choices import BetaPrior

THETA = np.array([1.0, 0.5, 0.2])
POSITION = np.arange(1, 4)
# Prior strength and mean: the first one is what the others are compared with.
PRIORS = [(2.0, 0.5), (3.0, 0.35), (0.3, 0.1), (0.5, 0.9), (30.0, 0.2), (100.0, 0.3)]
# impressions, clicks, log marginal likelihood under each prior (without the factors of theta): by mpmath, 40 digits.
UNITS: list[tuple[list[float], list[float], list[float]]] = [
    ([1, 0, 0], [0, 0, 0], [-0.693147, -0.430783, -0.105361, -2.302585, -0.223144, -0.356675]),
    ([0, 0, 1], [0, 0, 1], [-0.693147, -1.049822, -2.302585, -0.105361, -1.609438, -1.203973]),
    ([3, 2, 5], [1, 1, 0], [-4.172291, -4.03598, -6.342279, -6.092632, -4.023742, -3.616062]),
    ([100, 50, 20], [30, 2, 3], [-78.054338, -77.688163, -80.158638, -80.106594, -77.032919, -76.23488]),
    ([0, 50, 30], [0, 20, 7], [-26.565394, -27.515255, -28.136902, -25.96844, -36.040713, -35.726369]),
]


def objective_of(table: CountTable, position: list[int]) -> attractiveness_prior._Objective:  # pyright: ignore[reportPrivateUsage]
    return attractiveness_prior._Objective(  # pyright: ignore[reportPrivateUsage]
        table, THETA, table.multiplicity, np.array(position)
    )


def logit(probability: float) -> float:
    return float(np.log(probability / (1 - probability)))


@pytest.mark.parametrize(("impressions", "clicks", "log_marginal_likelihood"), UNITS)
def test_the_objective_is_that_of_high_precision_integration(
    impressions: list[float], clicks: list[float], log_marginal_likelihood: list[float]
) -> None:
    """Up to a constant of the unit, which no prior moves: differences to the first prior are compared."""
    table = dense_table(np.array([impressions]), np.array([clicks]))
    objective = objective_of(table, [1])

    def found(strength: float, mean: float) -> float:
        loss, *_ = objective.derivatives(np.array([np.log(strength), 0.0, logit(mean), np.log(strength)]))
        weak = np.log(1 / 4) - (np.log(strength / 2) / 2) ** 2 / 2 - logit(mean) ** 2 / 2
        return -loss - float(weak)

    differences = [found(*prior) - found(*PRIORS[0]) for prior in PRIORS]
    expected = np.array(log_marginal_likelihood) - log_marginal_likelihood[0]
    np.testing.assert_allclose(differences, expected, atol=3e-3)


def test_slope_and_second_derivatives_are_those_of_the_objective() -> None:
    impressions = np.array([unit[0] for unit in UNITS])
    clicks = np.array([unit[1] for unit in UNITS])
    table = dense_table(impressions, clicks)
    objective = objective_of(table, [1, 1, 2, 2, 3])
    step = 1e-5
    for x in (
        np.array([0.7, 0.0, -1.0, 0.3, -2.0, 0.5, 1.0, 2.0]),
        np.array([3.0, -1.5, -1.0, -2.0, 1.0, 2.0, 4.0, 3.0]),
    ):
        _, slope, curvature = objective.derivatives(x)
        moved = [(objective.derivatives(x + move), objective.derivatives(x - move)) for move in step * np.eye(len(x))]
        numeric = [(up[0] - down[0]) / (2 * step) for up, down in moved]
        np.testing.assert_allclose(slope, numeric, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(curvature, [(up[1] - down[1]) / (2 * step) for up, down in moved], atol=1e-5)


def drawn(n_units: int, gamma: Floats, shown: tuple[int, int], seed: int = 0) -> CountTable:
    rng = np.random.default_rng(seed)
    impressions = rng.integers(*shown, (n_units, 3)).astype(np.float64)
    clicks = rng.binomial(impressions.astype(np.int64), gamma[:, np.newaxis] * THETA).astype(np.float64)
    return dense_table(impressions, clicks)


@pytest.mark.parametrize(
    ("shape", "shown", "n_units"),
    [
        ((1, 2), (0, 3), 50_000),
        ((1, 2), (5, 50), 3_000),
        ((1, 2), (10_000, 1_000_000), 3_000),
        ((0.1, 0.9), (0, 5), 50_000),
        ((30, 60), (5, 50), 10_000),
    ],
)
def test_strength_and_mean_are_recovered(shape: tuple[float, float], shown: tuple[int, int], n_units: int) -> None:
    gamma = np.random.default_rng(1).beta(*shape, n_units)
    table, _ = compress(drawn(n_units, gamma, shown))
    prior = estimate_prior(table, THETA, np.ones(3, np.int64))
    assert prior.strength == pytest.approx(sum(shape), rel=0.1)
    assert prior.means == pytest.approx([shape[0] / sum(shape)], abs=0.01)
    assert prior.mean == pytest.approx(prior.means[0])


def test_means_by_position_are_recovered_and_few_units_lean_on_the_others() -> None:
    """Each unit stands at one position; the third has a single unit, without a click."""
    rng = np.random.default_rng(2)
    truth, size = (0.6, 0.2, 0.4), (4_000, 4_000, 1)
    place = np.repeat(np.arange(3), size)
    gamma = rng.beta(4 * np.array(truth)[place], 4 * (1 - np.array(truth)[place]))
    impressions = 20.0 * (place[:, np.newaxis] == np.arange(3))
    clicks = rng.binomial(impressions.astype(np.int64), gamma[:, np.newaxis] * THETA).astype(np.float64)
    clicks[-1] = 0
    prior = estimate_prior(dense_table(impressions, clicks), THETA, POSITION)
    assert prior.positions == (1, 2, 3)
    assert prior.means[:2] == pytest.approx(truth[:2], abs=0.02)
    assert prior.strength == pytest.approx(4, rel=0.1)
    assert 0.1 < prior.means[2] < 0.4
    assert prior.mean == pytest.approx(0.4, abs=0.02)


def test_strengths_by_position_are_recovered() -> None:
    """Documents in the middle differ from each other more than those at the top."""
    rng = np.random.default_rng(7)
    truth = (60.0, 3.0, 10.0)
    place = np.repeat(np.arange(3), 3_000)  # all are in the sample that the prior is estimated from
    strength = np.array(truth)[place]
    gamma = rng.beta(0.3 * strength, 0.7 * strength)
    impressions = 100.0 * (place[:, np.newaxis] == np.arange(3))
    clicks = rng.binomial(impressions.astype(np.int64), gamma[:, np.newaxis] * THETA).astype(np.float64)
    prior = estimate_prior(dense_table(impressions, clicks), THETA, POSITION)
    assert prior.strengths == pytest.approx(truth, rel=0.15)
    assert prior.strength == pytest.approx(float(np.prod(prior.strengths) ** (1 / 3)))
    np.testing.assert_allclose(prior.at(np.array([1, 2, 3]))[1], prior.strengths)


NUMBERS = np.random.default_rng(6).integers(0, 30, (300, 3)).astype(np.float64)
HALF_AND_HALF = NUMBERS * (np.arange(300) % 2)[:, np.newaxis]
EXTREME: dict[str, tuple[Floats, Floats, Floats]] = {
    "no click": (NUMBERS, 0 * NUMBERS, THETA),
    "all clicked": (NUMBERS, NUMBERS, THETA),
    "all clicked, all examined": (NUMBERS, NUMBERS, np.ones(3)),
    "gamma 0 or 1": (NUMBERS, HALF_AND_HALF, np.ones(3)),
    "equal units": (np.full((300, 3), 1e4), np.tile(3e3 * THETA, (300, 1)), THETA),
    "one unit": (np.array([[3.0, 4, 0]]), np.array([[1.0, 0, 0]]), THETA),
    "one unit that knows all": (np.array([[1e12, 0, 0]]), np.array([[3e11, 0, 0]]), THETA),
    "nothing known": (NUMBERS, HALF_AND_HALF, np.full(3, np.nan)),
    "no unit": (np.zeros((0, 3)), np.zeros((0, 3)), THETA),
    "tiny theta": (NUMBERS, 0.1 * NUMBERS, np.array([1, 1e-3, 1e-9])),
    "clicks beyond theta": (NUMBERS, NUMBERS, np.array([1e-9, 1e-9, 1])),
    "hardly any weight": (1e-6 * NUMBERS, 3e-7 * NUMBERS, THETA),
}


@pytest.mark.parametrize("name", EXTREME)
def test_any_table_gives_a_prior_in_range_and_a_posterior(name: str) -> None:
    impressions, clicks, theta = EXTREME[name]
    table = dense_table(impressions, clicks)
    with np.errstate(divide="raise", invalid="raise", over="raise"):
        prior = estimate_prior(table, theta, POSITION)
        mean, deviation = posterior_by_position(table, theta, prior, POSITION)
    rounding = 1e-9
    assert STRENGTHS[0] * (1 - rounding) <= prior.strength <= STRENGTHS[1] * (1 + rounding)
    assert all(MEANS[0] - rounding <= value <= MEANS[1] + rounding for value in (prior.mean, *prior.means))
    assert np.all((mean > 0) & (mean <= 1) & (deviation >= 0))


def test_a_log_that_says_nothing_leaves_the_first_guess() -> None:
    table = dense_table(*EXTREME["nothing known"][:2])
    prior = estimate_prior(table, np.full(3, np.nan), POSITION)
    assert (prior.strength, prior.mean) == pytest.approx((2, 0.5))
    assert prior.positions == prior.means == ()


def test_without_a_click_gamma_is_thought_small_and_equal_units_give_a_strong_prior() -> None:
    priors = {
        name: estimate_prior(dense_table(*EXTREME[name][:2]), EXTREME[name][2], POSITION)
        for name in ("no click", "all clicked", "gamma 0 or 1", "equal units")
    }
    assert priors["no click"].mean < 0.01
    assert priors["all clicked"].mean > 0.99
    assert priors["gamma 0 or 1"].strength < 0.2
    assert priors["equal units"].strength > 500
    assert priors["equal units"].mean == pytest.approx(0.3, abs=0.01)


def test_compression_the_order_of_units_and_units_that_know_nothing_change_nothing() -> None:
    rng = np.random.default_rng(7)
    table = drawn(5_000, rng.beta(1, 2, 5_000), (0, 3))
    theta = np.array([1.0, 0.5, np.nan])
    expected = estimate_prior(table, theta, POSITION)
    signatures, _ = compress(table)
    informed = table.take(np.flatnonzero(table.only_cells(np.isfinite(theta)).entries_of_unit))
    for other in (signatures, table.take(rng.permutation(5_000)), informed):
        prior = estimate_prior(other, theta, POSITION)
        assert prior.positions == expected.positions
        found = (prior.strength, prior.mean, *prior.means)
        assert found == pytest.approx((expected.strength, expected.mean, *expected.means), rel=1e-3)


def test_large_tables_are_sampled_in_proportion_to_multiplicity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attractiveness_prior, "LARGEST_SAMPLE", 1000)
    multiplicity = np.array([2e6, 0.0, 1e6, *[1.0] * 1_000_000])
    units, copies = attractiveness_prior.sample_units(multiplicity, attractiveness_prior.LARGEST_SAMPLE)
    assert copies.sum() == 1000
    assert units[:2].tolist() == [0, 2]
    assert copies[:2].tolist() == [500, 250]
    assert np.all(copies[2:] == 1)


def test_a_sample_gives_nearly_the_prior_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    table, _ = compress(drawn(20_000, np.random.default_rng(8).beta(1, 2, 20_000), (0, 12)))
    whole = estimate_prior(table, THETA, POSITION)
    monkeypatch.setattr(attractiveness_prior, "LARGEST_SAMPLE", 4_000)
    sampled = estimate_prior(table, THETA, POSITION)
    assert sampled.strength == pytest.approx(whole.strength, rel=0.15)
    assert sampled.mean == pytest.approx(whole.mean, abs=0.02)
    assert sampled != whole


def test_the_shown_position_is_the_rounded_mean_over_impressions_in_every_cell() -> None:
    """Cells of two contexts: positions 1 to 3 on one device, 1 to 2 on another."""
    position_of_cell = np.array([1, 2, 3, 1, 2])
    impressions = np.array([[1.0, 0, 0, 1, 0], [0, 0, 3, 1, 0], [0, 1, 1, 0, 0], [0, 0, 0, 1, 0.9]])
    table = dense_table(impressions, 0 * impressions)
    assert shown_position(table, position_of_cell).tolist() == [1, 3, 3, 1]


def test_a_mean_that_is_half_a_position_is_rounded_up_whatever_the_weights_of_its_impressions() -> None:
    weights = np.outer(0.9 ** np.arange(50), np.arange(1, 8)).ravel().astype(np.float64)
    impressions = np.outer(weights, [1, 0, 1 / 3, 2 / 3]).astype(np.float64)
    table = dense_table(impressions, 0 * impressions)
    assert set(shown_position(table, np.array([1, 2, 3, 3])).tolist()) == {2}
    assert set(shown_position(table, np.array([1, 2, 2, 2])).tolist()) == {2}


def test_the_prior_is_a_maximum_to_nine_digits_wherever_the_climb_starts() -> None:
    table = drawn(3_000, np.random.default_rng(9).beta(0.6, 1.4, 3_000), (0, 12))
    objective = objective_of(table, sorted([1, 2, 3] * 1_000))
    expected = objective.maximize()
    for start in (np.full(8, 2.0), np.array([-2.0, 1, -1, 1, 2, 5, 6, -1])):
        objective.start = start
        prior = objective.maximize()
        found, values = ((p.strength, p.mean, *p.means, *p.strengths) for p in (prior, expected))
        assert found == pytest.approx(values, rel=1e-9)


def test_last_bits_of_weights_move_no_digit_of_the_prior_also_where_it_is_that_of_a_sample() -> None:
    rng = np.random.default_rng(0)
    impressions = rng.integers(0, 6, (20_000, 3)) * 0.9 ** rng.integers(0, 9, (20_000, 3))
    probability = rng.beta(1, 2, (20_000, 1)) * THETA
    towards = impressions * rng.choice([0.5, 1, 2], impressions.shape)
    moved = np.nextafter(impressions, towards).astype(np.float64)
    tables = [dense_table(counts, 0.2 * counts * probability) for counts in (impressions, moved)]
    before, after = (estimate_prior(compress(table)[0], THETA, POSITION) for table in tables)
    found, values = ((p.strength, p.mean, *p.means, *p.strengths) for p in (after, before))
    assert found == pytest.approx(values, rel=1e-9)


def test_a_plain_prior_gives_the_plain_posterior() -> None:
    table = drawn(500, np.full(500, 0.4), (0, 80))
    found = posterior_by_position(table, THETA, AttractivenessPrior(4, 0.3), POSITION)
    np.testing.assert_array_equal(found, posterior(table, THETA, BetaPrior(0.3, 4)))


def test_each_unit_has_the_prior_of_its_position_also_where_nothing_is_identified() -> None:
    prior = AttractivenessPrior(4.0, 0.5, positions=(1, 2, 3), means=(0.6, 0.5, 0.2))
    impressions = np.array([[5.0, 0, 0], [0, 5, 0], [0, 0, 5], [1, 0, 100]])
    table = dense_table(impressions, 0.2 * impressions)
    theta = np.array([1.0, 0.5, np.nan])
    mean, deviation = posterior_by_position(table, theta, prior, POSITION)
    for unit, prior_mean in enumerate((0.6, 0.5, 0.2, 0.2)):
        expected = posterior(table.take(np.array([unit])), theta, BetaPrior(prior_mean, 4.0))
        assert (mean[unit], deviation[unit]) == (expected[0][0], expected[1][0])
    assert mean[2] == 0.2


def test_the_mean_between_and_beyond_known_positions_follows_their_neighbours() -> None:
    prior = AttractivenessPrior(4.0, 0.5, positions=(2, 3, 5), means=(0.6, 0.5, 0.3))
    np.testing.assert_allclose(prior.at(np.array([1, 2, 4, 5, 90]))[0], [0.6, 0.6, 0.4, 0.3, 0.3])
    np.testing.assert_array_equal(AttractivenessPrior(4.0, 0.25).at(np.array([1, 7]))[0], [0.25, 0.25])


def test_positions_far_down_share_one_mean() -> None:
    n_cells = LAST_POSITION + 15
    table = dense_table(9 * np.eye(n_cells), 3 * np.eye(n_cells))
    prior = estimate_prior(table, np.ones(n_cells), np.arange(1, n_cells + 1))
    assert prior.positions == tuple(range(1, LAST_POSITION + 1))
