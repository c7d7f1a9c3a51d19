"""The plan: which swaps are tried, how pages are dealt out, and whether the predictions hold on simulated pages."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from present import present
from small_logs import statistics_of

from posbias.core.errors import IdentifiabilityError
from posbias.core.estimators.estimate import EstimationOptions
from posbias.core.exploration import (
    MOST_POSITIONS,
    ContextCells,
    DesignInputs,
    Swap,
    candidate_swaps,
    make_plan,
    predict_intervals,
)
from posbias.core.fit.fit import Fit, fit_statistics
from posbias.core.simulation.simulate import SimulationOptions, simulate
from posbias.core.simulation.worlds import random_world

WORLD = SimulationOptions(n_sessions=8_000, docs_per_query=12, n_positions=6, ranker_strength=5.0, query_exponent=0.5)


def fit_of(*logs: pl.DataFrame) -> Fit:
    statistics = statistics_of(pl.concat(logs, how="diagonal"))
    return fit_statistics(statistics, "conditional", EstimationOptions(), compare=False)


def curves_of(fit: Fit) -> list[ContextCells]:
    n_strata = float(present(fit.free.fitted).strata.signatures.multiplicity.sum())
    clusters, shared = fit.estimate.intervals.effective_clusters, present(fit.shared_clicks)
    known = DesignInputs(fit.propensities, (), shared, fit.query_spread, clusters, "shared", n_strata)
    known.check(where="here")
    return known.curves()


def further(seed: int, pages: int, swaps: Sequence[Swap]) -> pl.DataFrame:
    drawn = replace(WORLD, seed=seed + 1_000, n_sessions=pages, swap_share=1.0, swaps=tuple(swaps))
    log = simulate(drawn, random_world(replace(WORLD, seed=seed))).log
    return log.with_columns(pl.col("session") + WORLD.n_sessions)


@pytest.fixture(scope="module")
def log() -> pl.DataFrame:
    return simulate(WORLD).log


@pytest.fixture(scope="module")
def curves(log: pl.DataFrame) -> list[ContextCells]:
    return curves_of(fit_of(log))


@pytest.mark.slow
def test_predicted_errors_are_those_that_are_found_after_the_swaps() -> None:
    swaps = ((1, 5), (2, 6))
    expected_squares, squares = np.zeros(5), np.zeros(5)
    for seed in range(6):
        log = simulate(replace(WORLD, seed=seed)).log
        predicted = predict_intervals(curves_of(fit_of(log)), 0.5, dict.fromkeys(swaps, 0.5))
        found = fit_of(log, further(seed, 4_000, swaps)).estimate.intervals
        expected_squares += predicted.std_error[1:] ** 2
        squares += found.std_error[1:] ** 2
    expected, actual = np.sqrt(expected_squares), np.sqrt(squares)
    np.testing.assert_allclose(expected, actual, rtol=0.15)
    assert expected.mean() == pytest.approx(actual.mean(), rel=0.08)


@pytest.mark.slow
def test_the_plan_makes_the_widest_interval_narrower_than_no_swaps_and_than_every_single_one(
    curves: list[ContextCells],
) -> None:
    plan = make_plan(curves, 4_000)
    assert sum(plan.shares.values()) == pytest.approx(1.0)
    assert plan.planned.badness <= plan.alone[plan.best].badness
    assert plan.planned.largest < 0.8 * plan.unswapped.largest
    badness = [outcome.badness for outcome in plan.alone.values()]
    assert badness == sorted(badness)
    assert len(plan.alone) == 15


@pytest.mark.slow
def test_positions_without_an_interval_are_linked_first(curves: list[ContextCells]) -> None:
    (curve,) = curves
    islands = np.where(np.equal.outer(curve.position <= 3, curve.position <= 3), curve.shared, 0.0)
    unknown = np.where(curve.position <= 3, curve.std_error, np.inf)
    parted = replace(curve, shared=islands, std_error=unknown, width=4 * unknown)
    plan = make_plan([parted], 1_000)
    assert plan.now.badness[0] == 3
    assert plan.unswapped.badness[0] == 3
    assert plan.planned.badness[0] == 0
    assert all(one <= 3 < other for one, other in list(plan.alone)[:9])


def test_of_many_positions_only_pairs_with_a_wide_one_are_tried(curves: list[ContextCells]) -> None:
    (curve,) = curves
    n_cells = MOST_POSITIONS + 10
    wide = np.linspace(0.1, 1.0, n_cells)
    position = np.arange(1, n_cells + 1)
    tried = candidate_swaps([replace(curve, position=position, width=wide)])
    assert (n_cells - 1, n_cells) in tried
    assert (1, n_cells) in tried
    assert (10, 11) not in tried


def test_one_position_has_nothing_to_swap(curves: list[ContextCells]) -> None:
    (curve,) = curves
    with pytest.raises(IdentifiabilityError, match="nothing to swap"):
        make_plan([replace(curve, position=curve.position[:1])], 10)
