"""The estimators on whole logs: contexts, references, randomised rows, click rates."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from small_logs import PBM, UBM, simulated, statistics_of

from posbias.core.arrays.count_table import Floats
from posbias.core.attractiveness import AttractivenessPrior
from posbias.core.choices import BetaPrior, RandomizedRows
from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.counts.sufficient_statistics import SufficientStatistics
from posbias.core.errors import IdentifiabilityError, UsageError
from posbias.core.estimators import get_estimator
from posbias.core.estimators.estimate import Estimate, EstimationOptions
from posbias.core.fit.fit import fit_statistics
from posbias.core.simulation.simulate import SimulationOptions
from posbias.core.theta.conditional import NO_REFERENCE

DENSE = SimulationOptions(n_sessions=20_000, n_queries=30, docs_per_query=10, n_positions=6, seed=5)


def estimate(
    statistics: SufficientStatistics,
    method: str = "conditional",
    options: EstimationOptions = EstimationOptions(),  # noqa: B008 - frozen
) -> Estimate:
    return get_estimator(method).estimate(statistics, statistics.strata(), options, lambda _: None)


def numbered_sessions(log: pl.DataFrame, first: int) -> pl.DataFrame:
    return log.with_columns(pl.col("session") + first)


def uniform_log(theta: Floats, *, n_sessions: int = 30_000, seed: int = 3) -> pl.DataFrame:
    """Pages in random order."""
    options = replace(
        DENSE, n_sessions=n_sessions, n_positions=len(theta), ranker_strength=0.0, theta=tuple(theta), seed=seed
    )
    return simulated(options).log


@pytest.mark.parametrize(
    ("method", "shape"),
    [*(("conditional", shape) for shape in ("free", "monotone")), ("allpairs", "free"), ("conditional", "power")],
)
def test_contexts_are_fitted_side_by_side_as_if_each_were_alone(method: str, shape: str) -> None:
    world = replace(DENSE, n_sessions=5_000, n_queries=20)
    desktop = simulated(replace(world, theta=(1.0, 0.9, 0.95, 0.3, 0.4, 0.35))).log
    phone = simulated(replace(world, eta=1.5, seed=6)).log
    phone = phone.with_columns(pl.col("query") + 10**6, device=pl.lit(None, pl.String))
    log = pl.concat([desktop.with_columns(device=pl.lit("desktop")), numbered_sessions(phone, 10**6)])
    options = EstimationOptions(shape=shape, shrink="none")
    statistics = statistics_of(log, replace(PBM, context=("device",)))
    together = fit_statistics(statistics, method, options, compare=False).estimate

    assert statistics.cells.rows() == [(k, device) for device in (None, "desktop") for k in range(1, 7)]
    assert together.linkage.references.tolist() == [0, 6]
    for first, of_context in ((0, phone), (6, desktop)):
        alone = fit_statistics(statistics_of(of_context), method, options, compare=False).estimate
        for found, expected in ((together, alone), (together.intervals, alone.intervals)):
            for name in {"propensity", "examination", "std_error", "low", "high", "effective_clusters"} & {*dir(found)}:
                ours, theirs = getattr(found, name)[first : first + 6], getattr(expected, name)
                np.testing.assert_allclose(ours, theirs, rtol=1e-9, err_msg=name)


@pytest.mark.parametrize("method", ["conditional", "joint", "ctr"])
def test_another_reference_divides_every_propensity_by_its_own(method: str) -> None:
    statistics = statistics_of(simulated(DENSE).log)
    first, third = (estimate(statistics, method, EstimationOptions(reference=cell)) for cell in ((), (3,)))

    np.testing.assert_allclose(third.propensity, first.propensity / first.propensity[2], rtol=1e-9)
    assert third.linkage.references.tolist() == [2]


def test_a_reference_of_the_user_browsing_model_names_the_previous_click_too() -> None:
    statistics = statistics_of(simulated(replace(DENSE, model="ubm")).log, UBM)
    found = estimate(statistics, options=EstimationOptions(reference=(3, 1)))

    assert statistics.cells.row(int(found.linkage.references[0])) == (3, 1)


@pytest.mark.parametrize(("reference", "message"), [((9,), "positions run from 1 to 6"), ((1, 0), r"has 1 number")])
def test_a_reference_that_is_not_there_is_an_error_that_says_what_is(reference: tuple[int, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        estimate(statistics_of(simulated(DENSE).log), options=EstimationOptions(reference=reference))


def test_click_rates_are_relative_to_the_first_cell_with_a_click_and_have_no_errors() -> None:
    log = pl.DataFrame(
        {"query": 1, "doc": range(8), "position": [1, 1, 2, 2, 2, 2, 3, 3], "click": [0, 0, 1, 0, 1, 0, 1, 0]}
    )
    found = estimate(statistics_of(log), "ctr")

    np.testing.assert_allclose(found.propensity, [np.nan, 1.0, 1.0])
    assert found.intervals.reason == ("no clicks", None, None)
    assert np.isnan(found.intervals.std_error).all()


def test_click_rates_need_a_click() -> None:
    log = pl.DataFrame({"query": 1, "doc": range(4), "position": [1, 1, 2, 2], "click": 0})
    with pytest.raises(IdentifiabilityError, match="has a click"):
        estimate(statistics_of(log), "ctr")


def randomized_plan(*rows: str) -> StatisticsPlan:
    return replace(PBM, randomized=tuple(map(RandomizedRows.parse, rows)))


def marked(log: pl.DataFrame, number: int) -> pl.DataFrame:
    """The rows under the number of the description of randomised rows that they fit."""
    return log.with_columns(randomized=pl.lit(number, pl.UInt8))


def test_randomised_rows_give_the_ratios_of_their_click_rates_whatever_the_other_rows_say() -> None:
    theta = np.array([1.0, 0.7, 0.5, 0.4])
    random = uniform_log(theta)
    ranked = simulated(replace(DENSE, n_positions=4, theta=(1.0, 0.1, 0.1, 0.1))).log
    log = pl.concat([marked(random, 1), marked(numbered_sessions(ranked, 10**6), 0)])
    found = estimate(statistics_of(log, randomized_plan("policy=random")), "randomized")

    rate = random.group_by("position").agg(pl.mean("click")).sort("position")["click"].to_numpy()
    np.testing.assert_allclose(found.propensity, rate / rate[0], rtol=1e-9)
    assert np.all(np.abs(np.log(found.propensity / theta))[1:] < 4 * found.intervals.std_error[1:])
    assert np.all(found.intervals.low <= found.intervals.high)


def test_short_random_pages_of_poor_queries_do_not_bias_randomised_estimates() -> None:
    theta = np.array([1.0, 0.7, 0.5, 0.4])
    log = uniform_log(theta, n_sessions=60_000).filter((pl.col("query") % 2 == 0) | (pl.col("position") <= 2))
    poor = log.with_columns(click=pl.when(pl.col("query") % 2 == 0).then("click").otherwise(0))
    poor = poor.with_columns(pl.col("click").cast(pl.Int8))
    found = estimate(statistics_of(marked(poor, 1), randomized_plan("policy=random")), "randomized")
    naive = estimate(statistics_of(poor), "ctr")

    np.testing.assert_allclose(found.propensity, theta, rtol=0.05)
    assert naive.propensity[2] > 1.5 * theta[2]


def test_swap_experiments_are_chained_over_the_positions_that_they_share() -> None:
    theta = np.array([1.0, 0.6, 0.3])
    log = uniform_log(theta)
    swaps = [
        marked(log.filter(pl.col("session") % 2 == 0, pl.col("position").is_in([1, 2])), 1),
        marked(log.filter(pl.col("session") % 2 == 1, pl.col("position").is_in([2, 3])), 2),
    ]
    plan = randomized_plan("swap=a@1,2", "swap=b@2,3")
    found = estimate(statistics_of(pl.concat(swaps), plan), "randomized")

    np.testing.assert_allclose(found.propensity, theta, rtol=0.05)
    assert found.linkage.identified.all()


def test_randomised_estimates_without_a_row_that_fits_are_an_error() -> None:
    statistics = statistics_of(marked(simulated(DENSE).log, 0), randomized_plan("policy=random"))
    with pytest.raises(IdentifiabilityError, match="no row has policy=random"):
        estimate(statistics, "randomized")


@pytest.mark.parametrize(("plan", "message"), [(PBM, "--randomized-where policy=random"), (UBM, "--model pbm")])
def test_randomised_estimates_say_what_they_need(plan: StatisticsPlan, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        get_estimator("randomized").check(plan)


def test_joint_em_estimates_one_attractiveness_per_stratum() -> None:
    first = simulated(DENSE).log.with_columns(segment=pl.lit(1))
    second = numbered_sessions(simulated(replace(DENSE, seed=9)).log, 10**6).with_columns(segment=pl.lit(2))
    log = pl.concat([first, second])
    by_segment = estimate(statistics_of(log, replace(PBM, strata=("segment",))), "joint")
    as_pairs = log.with_columns(pl.col("doc") + 1_000 * pl.col("segment"))
    renamed = estimate(statistics_of(as_pairs), "joint")

    np.testing.assert_allclose(by_segment.propensity, renamed.propensity, rtol=1e-6)
    assert by_segment.attractiveness is None  # it would be that of strata, not of pairs


def test_a_context_without_the_reference_says_so() -> None:
    log = simulated(DENSE).log.with_columns(device=pl.lit("desktop"))
    phone = simulated(replace(DENSE, seed=8)).log.filter(pl.col("position") > 2)
    both = pl.concat([log, numbered_sessions(phone, 10**6).with_columns(device=pl.lit("phone"))])
    statistics = statistics_of(both, replace(PBM, context=("device",)))
    for method in ("conditional", "ctr"):
        found = estimate(statistics, method, EstimationOptions(reference=(2,)))
        assert set(found.intervals.reason[6:]) == {NO_REFERENCE}
        assert found.linkage.identified.tolist() == [True] * 6 + [False] * 4


def test_the_prior_of_joint_em_is_the_one_that_was_asked_for() -> None:
    options = EstimationOptions(attractiveness_prior=BetaPrior(0.05, 50.0))
    fit = fit_statistics(statistics_of(simulated(DENSE).log), "joint", options)

    assert fit.prior == AttractivenessPrior(50.0, 0.05)


def test_a_monotone_shape_keeps_the_upper_limit_of_a_cell_without_clicks() -> None:
    log = simulated(DENSE).log.filter((pl.col("position") < 6) | (pl.col("session") < 900))  # few may be all without
    log = log.with_columns(click=pl.when(pl.col("position") == 6).then(0).otherwise("click"))
    statistics = statistics_of(log.with_columns(pl.col("click").cast(pl.Int8)))
    free, shaped = (
        fit_statistics(statistics, "conditional", EstimationOptions(shape=shape), compare=False).estimate
        for shape in ("free", "monotone")
    )

    assert np.isfinite(free.intervals.high[5])
    assert shaped.intervals.high[5] == free.intervals.high[5]


def test_a_cell_that_one_pair_alone_identifies_is_said_to_be_one_pairs() -> None:
    log = simulated(DENSE).log.filter((pl.col("position") < 6) | ((pl.col("query") == 0) & (pl.col("doc") == 0)))
    found = fit_statistics(statistics_of(log), "conditional", EstimationOptions(cluster="pair"), compare=False).estimate

    assert found.intervals.reason[5] == "one pair alone identifies it"
    assert np.isnan(found.intervals.std_error[5])
