"""Joint EM: monotone, the same on signatures as on pairs, the same optimum with and without acceleration."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_logs import dense_table

from posbias.core.arrays.count_table import CountTable, Floats, compress
from posbias.core.arrays.optimize import squarem_cycle
from posbias.core.choices import BetaPrior
from posbias.core.errors import UsageError
from posbias.core.theta.joint import LARGEST, JointFit, JointOptions, fit_joint

NO_PRIOR = BetaPrior(0.5, 0.0)
LIKELIHOOD = JointOptions(NO_PRIOR, NO_PRIOR)


def random_table(seed: int, n_units: int = 40, largest: int = 12) -> CountTable:
    rng = np.random.default_rng(seed)
    impressions = rng.integers(1, largest, (n_units, 4)) * (rng.random((n_units, 4)) < 0.6)
    clicks = rng.binomial(impressions, rng.beta(2, 3, (n_units, 1)) / np.arange(1, 5))
    return dense_table(impressions.astype(float), clicks.astype(float))


def objective(table: CountTable, options: JointOptions, theta: Floats, gamma: Floats) -> float:
    """The objective straight from its definition."""
    click = theta[table.cell] * gamma[table.unit_of_entry]
    likelihood = table.clicks * np.log(click) + (table.impressions - table.clicks) * np.log1p(-click)
    total = float(table.multiplicity @ table.sum_by_unit(likelihood))
    for prior, values, copies in (
        (options.examination_prior, theta, np.ones_like(theta)),
        (options.attractiveness_prior, gamma, table.multiplicity),
    ):
        kernel = prior.mean * np.log(values) + (1 - prior.mean) * np.log1p(-values)
        total += prior.strength * float(copies @ kernel)
    return total


def textbook_step(table: CountTable, options: JointOptions, theta: Floats, gamma: Floats) -> tuple[Floats, Floats]:
    """The E-step and the M-step as the papers write them."""
    t, g = theta[table.cell], gamma[table.unit_of_entry]
    skips = table.impressions - table.clicks
    examined = table.clicks + skips * t * (1 - g) / (1 - t * g)
    attracted = table.clicks + skips * g * (1 - t) / (1 - t * g)
    e, a = options.examination_prior, options.attractiveness_prior
    new_theta = (e.pseudo_clicks + table.sum_by_cell(examined)) / (e.strength + table.sum_by_cell(table.impressions))
    new_gamma = (a.pseudo_clicks + table.sum_by_unit(attracted)) / (a.strength + table.sum_by_unit(table.impressions))
    return np.minimum(new_theta, LARGEST), np.minimum(new_gamma, LARGEST)


@pytest.mark.parametrize("options", [JointOptions(), JointOptions(BetaPrior(0.2, 5), BetaPrior(0.9, 0.3))])
def test_a_plain_fit_takes_the_steps_of_the_textbook(options: JointOptions) -> None:
    table = random_table(0)
    theta, gamma = np.full(4, 0.5), np.full(table.n_units, 0.5)
    for _ in range(20):
        theta, gamma = textbook_step(table, options, theta, gamma)
    fit = fit_joint(table, replace(options, max_iterations=20, tolerance=0, accelerate=False))
    np.testing.assert_allclose(fit.examination, theta, rtol=1e-12)
    np.testing.assert_allclose(fit.attractiveness, gamma, rtol=1e-12)
    assert fit.evaluations == 20
    assert fit.objective == pytest.approx(objective(table, options, theta, gamma), rel=1e-12)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.booleans(), st.sampled_from([0.0, 0.5, 2.0]))
@pytest.mark.slow
def test_the_objective_never_falls(seed: int, accelerate: bool, strength: float) -> None:  # noqa: FBT001 - drawn
    prior = BetaPrior(0.3, strength)
    table = random_table(seed)
    found = [
        fit_joint(
            table, JointOptions(prior, prior, max_iterations=3 * steps, tolerance=0, accelerate=accelerate)
        ).objective
        for steps in range(12)
    ]
    assert (np.diff(found) >= -1e-11 * abs(found[-1])).all()


@pytest.mark.parametrize("options", [JointOptions(), LIKELIHOOD])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.slow
def test_acceleration_reaches_the_plain_optimum_in_far_fewer_steps(seed: int, options: JointOptions) -> None:
    table = random_table(seed, largest=200)
    plain = fit_joint(table, replace(options, accelerate=False, tolerance=1e-13, max_iterations=50_000))
    fast = fit_joint(table, replace(options, tolerance=1e-11))
    assert plain.converged
    assert fast.converged
    assert fast.evaluations < plain.evaluations / 3
    np.testing.assert_allclose(scaled(fast), scaled(plain), atol=1e-7)
    assert fast.objective == pytest.approx(plain.objective, rel=1e-11)


def scaled(fit: JointFit) -> Floats:
    return fit.examination / fit.examination.max()


@pytest.mark.parametrize(
    "options", [JointOptions(), LIKELIHOOD, JointOptions(accelerate=False, tolerance=0, max_iterations=30)]
)
def test_signatures_and_pairs_give_the_same_fit(options: JointOptions) -> None:
    table = random_table(1, n_units=300, largest=3)
    signatures, signature = compress(table)
    assert signatures.n_units < table.n_units
    one_by_one, grouped = fit_joint(table, options), fit_joint(signatures, options)
    np.testing.assert_allclose(scaled(grouped), scaled(one_by_one), rtol=1e-6)
    np.testing.assert_allclose(grouped.attractiveness[signature], one_by_one.attractiveness, atol=1e-4)
    assert grouped.objective == pytest.approx(one_by_one.objective, rel=1e-8)


def test_maximum_likelihood_has_the_closed_form_of_one_pair() -> None:
    table = dense_table(np.array([[10.0, 10.0, 5.0]]), np.array([[6.0, 3.0, 0.0]]))
    fit = fit_joint(table, LIKELIHOOD)
    assert fit.converged
    np.testing.assert_allclose(scaled(fit), [1, 0.5, 0], atol=1e-6)


@pytest.mark.parametrize(
    "options", [JointOptions(), LIKELIHOOD, replace(LIKELIHOOD, accelerate=False, max_iterations=200)]
)
@pytest.mark.parametrize(
    ("impressions", "clicks"),
    [
        ([[5.0, 5.0], [3.0, 0.0]], [[5.0, 5.0], [3.0, 0.0]]),  # every impression clicked
        ([[5.0, 5.0], [3.0, 2.0]], [[0.0, 0.0], [0.0, 0.0]]),  # no click at all
        ([[1e12, 1e12], [1.0, 1.0]], [[1e12, 1e3], [1.0, 0.0]]),
        ([[1e12, 1e12], [1e12, 0.0]], [[1e3, 1.0], [0.0, 0.0]]),
        ([[0.1, 0.3], [1e-5, 1e-5]], [[0.1, 0.05], [0.0, 1e-5]]),
        ([[5.0, 0.0], [3.0, 0.0]], [[1.0, 0.0], [2.0, 0.0]]),  # a cell without impressions
    ],
)
def test_extreme_counts_stay_finite_and_in_range(
    impressions: list[list[float]], clicks: list[list[float]], options: JointOptions
) -> None:
    table = dense_table(np.array(impressions), np.array(clicks))
    with warnings.catch_warnings(), np.errstate(all="raise", under="ignore"):
        fit = fit_joint(table, options)
    for values in (fit.examination, fit.attractiveness):
        assert ((values >= 0) & (values <= LARGEST)).all()
    assert np.isfinite(fit.objective)


def test_too_few_steps_are_reported() -> None:
    told: list[int] = []
    fit = fit_joint(
        random_table(2), JointOptions(max_iterations=6), on_iteration=lambda passes, _change: told.append(passes)
    )
    assert not fit.converged
    assert (fit.iterations, fit.evaluations) == (2, 6)
    assert told == [3, 6]


@pytest.mark.parametrize(("objective", "end"), [(2.0, 0.95), (3.0, 0.95), (1.9, 0.75), (-np.inf, 0.75), (np.nan, 0.75)])
def test_an_extrapolation_that_would_descend_is_not_taken(objective: float, end: float) -> None:
    def step(point: dict[str, Floats]) -> dict[str, Floats]:  # half the way to 1
        return {"x": (1 + point["x"]) / 2}

    point = {"x": np.zeros(1), "fixed": np.ones(1)}
    objectives = iter([2.0, objective])
    before = squarem_cycle(point, step, lambda at: (step(at), next(objectives)), {"x": 1.0}, (0.0, 0.9))
    assert before == 2.0
    assert point == {"x": pytest.approx(end, rel=1e-12), "fixed": 1}


@pytest.mark.parametrize(
    "text", ["0.5", "0.5:", ":2", "a:b", "0:2", "1:2", "0.5:-1", "0.5:inf", "nan:1", "0.5:2:3", ""]
)
def test_a_prior_that_cannot_be_read_is_refused_with_its_value(text: str) -> None:
    with pytest.raises(UsageError, match=r"but is|, not '"):
        BetaPrior.parse(text)


def test_a_prior_is_read_from_its_mean_and_strength() -> None:
    assert BetaPrior.parse("0.25:8") == BetaPrior(0.25, 8.0)
    assert (BetaPrior(0.25, 8.0).pseudo_clicks, BetaPrior(0.25, 8.0).pseudo_skips) == (2.0, 6.0)
