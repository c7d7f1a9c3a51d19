"""Counts from 1 to 10^12, click rates from 10^-9 to 1, fractions, theta above 1: numbers stay numbers."""

import json
from dataclasses import replace

import msgspec
import numpy as np
import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from present import present

from posbias.core.arrays.count_table import Floats
from posbias.core.choices import BetaPrior
from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.counts.sufficient_statistics import SufficientStatistics, compress_part, merge_parts
from posbias.core.errors import IdentifiabilityError, UsageError
from posbias.core.estimators.estimate import EstimationOptions
from posbias.core.fit.fit import Fit, fit_statistics
from posbias.core.models import get_model
from posbias.io.fits.saved_fit import estimate_section

PBM = StatisticsPlan(get_model("pbm"))
FRACTIONS = replace(PBM, weighted=True)
METHODS = ["conditional", "joint", "allpairs", "ctr"]
FITS: dict[str, tuple[str, EstimationOptions]] = {
    **{method: (method, EstimationOptions()) for method in METHODS},
    **{shape: ("conditional", EstimationOptions(shape=shape)) for shape in ("power", "monotone")},
    "bootstrap": ("conditional", EstimationOptions(bootstrap=100)),
    "pair": ("conditional", EstimationOptions(cluster="pair")),
}
THETA = np.array([1.0, 1.4, 0.3, 0.02])


def statistics_of(
    impressions: Floats, clicks: Floats, plan: StatisticsPlan, docs_per_query: int = 4
) -> SufficientStatistics:
    """Statistics of dense counts, each of shape (pairs, positions)."""
    pair, cell = np.nonzero(impressions)
    counts = pl.DataFrame(
        {
            "query": pair // docs_per_query,
            "doc": pair % docs_per_query,
            "position": (cell + 1).astype(np.int32),
            "impressions": impressions[pair, cell],
            "clicks": clicks[pair, cell],
        }
    )
    if not plan.weighted:
        counts = counts.with_columns(pl.col("impressions", "clicks").cast(pl.Int64))
    return merge_parts([compress_part(counts.sort(plan.keys), plan)], plan)


def dense_statistics() -> SufficientStatistics:
    """Sixty documents at four positions, of which some were always clicked, and some never."""
    rng = np.random.default_rng(1)
    impressions = np.floor(300 ** rng.random((60, 4)))
    probability = np.minimum(0.5 * rng.beta(1, 1, (60, 1)) * THETA / THETA.max(), 1.0)
    clicks = rng.binomial(impressions.astype(np.int64), probability).astype(float)
    clicks[:6], clicks[6:12] = impressions[:6], 0.0
    return statistics_of(impressions, clicks, PBM)


DENSE = dense_statistics()


def check(fit: Fit) -> None:
    """Everything that is said is a number in its range."""
    estimate, identified = fit.estimate, fit.estimate.linkage.identified
    assert np.isfinite(estimate.propensity[identified]).all()
    assert (estimate.propensity[identified] > 0).all()
    assert np.isnan(estimate.propensity[~identified]).all()
    examination = estimate.examination[identified]
    assert ((examination > 0) & (examination <= 1)).all()
    assert ((fit.attractiveness >= 0) & (fit.attractiveness <= 1)).all()
    known = np.isfinite(estimate.intervals.std_error)
    assert (estimate.intervals.low[known] <= estimate.propensity[known] * (1 + 1e-9)).all()
    assert not (estimate.intervals.high[known] < estimate.propensity[known] * (1 - 1e-9)).any()
    assert fit.propensities.height == fit.statistics.n_cells
    assert estimate_section(fit)["cells_identified"] == identified.sum()


@pytest.mark.parametrize("name", FITS)
@pytest.mark.parametrize("largest", [1e2, 1e12, 1e6])
@pytest.mark.parametrize("rate", [1e-9, 1e-3, 0.7])
@pytest.mark.slow_after(12)
def test_any_size_of_counts_and_rates(name: str, largest: float, rate: float) -> None:
    rng = np.random.default_rng(17)
    impressions = np.floor(largest ** rng.random((80, 4)))
    probability = np.minimum(rate * rng.beta(2, 2, (80, 1)) * THETA / THETA.max(), 1.0)
    clicks = rng.binomial(impressions.astype(np.int64), probability).astype(float)
    clicks[:8] = np.minimum(clicks[:8] + 1, impressions[:8])  # so that something is linked, however rare clicks are

    check(fit_statistics(statistics_of(impressions, clicks, PBM), *FITS[name], compare=name in METHODS))


@pytest.mark.parametrize("method", METHODS)
def test_every_impression_clicked(method: str) -> None:
    impressions = np.floor(10 ** (3 * np.random.default_rng(5).random((40, 4))))
    fit = fit_statistics(statistics_of(impressions, impressions, PBM), method, EstimationOptions(), compare=True)

    check(fit)
    np.testing.assert_allclose(fit.estimate.propensity, 1.0, rtol=1e-3)  # joint EM's prior moves it a little


@pytest.mark.parametrize("method", ["conditional", "allpairs"])
@pytest.mark.parametrize("scale", [1e-12, 1e-3, 1.0, 1e9])
def test_fractional_counts_without_noise_give_theta_exactly_also_above_1(method: str, scale: float) -> None:
    rng = np.random.default_rng(2)
    impressions = scale * (0.5 + 20 * rng.random((60, 4)))
    clicks = impressions * THETA * rng.beta(2, 5, (60, 1)) / THETA.max()
    fit = fit_statistics(statistics_of(impressions, clicks, FRACTIONS), method, EstimationOptions(), compare=False)

    check(fit)
    np.testing.assert_allclose(fit.estimate.propensity, THETA, rtol=1e-5)


def test_counts_multiplied_by_a_million_change_no_estimate() -> None:
    rng = np.random.default_rng(4)
    impressions = rng.integers(1, 30, (60, 4)).astype(float)
    clicks = rng.binomial(impressions.astype(np.int64), 0.3 * THETA / THETA.max()).astype(float)
    once, often = (
        fit_statistics(statistics_of(factor * impressions, factor * clicks, PBM), "conditional", EstimationOptions())
        for factor in (1.0, 1e6)
    )

    np.testing.assert_allclose(often.estimate.propensity, once.estimate.propensity, rtol=1e-9)
    np.testing.assert_allclose(often.estimate.intervals.std_error, once.estimate.intervals.std_error, rtol=1e-6)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    logit=st.floats(-40, 40),
    log_strength=st.floats(-16, 9.1),
    method=st.sampled_from(["conditional", "joint"]),
    of=st.sampled_from([("attractiveness",), ("examination",), ("attractiveness", "examination")]),
)
@example(logit=6.9, log_strength=-6, method="conditional", of=("attractiveness",))  # 0.999:1e-6
@example(logit=-13.8, log_strength=0.1, method="conditional", of=("attractiveness",))  # a hair of a click
@example(logit=-20.7, log_strength=3.1, method="conditional", of=("attractiveness",))
@example(logit=0, log_strength=-5.6, method="joint", of=("attractiveness", "examination"))
@pytest.mark.slow
def test_any_prior_is_refused_or_gives_numbers(
    logit: float, log_strength: float, method: str, of: tuple[str, ...]
) -> None:
    try:
        prior = BetaPrior(float(1 / (1 + np.exp(-logit))), 10**log_strength)
    except UsageError:
        return

    usual = EstimationOptions()
    options = replace(
        usual,
        attractiveness_prior=prior if "attractiveness" in of else None,
        examination_prior=prior if "examination" in of else usual.examination_prior,
    )
    fit = fit_statistics(DENSE, method, options, compare=True)

    check(fit)
    assert np.isfinite(fit.attractiveness).all()
    assert np.isfinite(fit.std_dev).all() or method == "joint"
    assert np.isfinite(present(fit.joint).propensity).all()


def test_a_prior_that_is_worth_nothing_is_refused_however_small_its_numbers() -> None:
    for mean, strength in ((0.999, 1e-6), (1e-300, 1e-300), (0.5, 1e-9)):
        with pytest.raises(UsageError, match="give it strength 0 instead"):
            BetaPrior(mean, strength)


@pytest.mark.parametrize("name", [*reversed(FITS)])
@pytest.mark.parametrize("widest", [20, 300, 12])
@pytest.mark.slow_after(4)
def test_weights_however_unequal_give_numbers_or_are_refused(name: str, widest: int) -> None:
    for seed in range(3):
        rng = np.random.default_rng(seed)
        impressions = 10 ** rng.uniform(-widest, widest, (40, 4))
        clicks = impressions * (rng.random((40, 4)) < 0.5) * rng.choice([1, 1e-9, 0.5], (40, 4))
        statistics = statistics_of(impressions, clicks, FRACTIONS)

        try:
            fit = fit_statistics(statistics, *FITS[name], compare=name in METHODS)
        except IdentifiabilityError:
            continue

        check(fit)
        assert json.dumps(msgspec.to_builtins(estimate_section(fit)), allow_nan=False)
