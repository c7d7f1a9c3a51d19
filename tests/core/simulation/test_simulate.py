"""The simulator is what other tests take for the truth: its own logs must follow the model that it states."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from posbias.core.simulation.simulate import (
    SimulationOptions,
    draw_clicks,
    graded_attractiveness,
    simulate,
    true_propensities,
)

PBM = SimulationOptions(n_sessions=60_000, n_queries=30, docs_per_query=12, n_positions=6, seed=7)
UBM = replace(PBM, model="ubm")


def with_truth(options: SimulationOptions) -> pl.DataFrame:
    """Return the impressions with previous_click, and the examination and attractiveness behind them."""
    simulation = simulate(options)
    clicked_position = pl.when(pl.col("click") == 1).then("position").otherwise(0)
    log = simulation.log.with_columns(previous_click=clicked_position.cum_max().shift(1, fill_value=0).over("session"))
    cell = [name for name in ("position", "previous_click") if name in simulation.propensities.columns]
    return log.join(simulation.propensities, on=cell).join(simulation.attractiveness, on=["query", "doc"])


@pytest.mark.parametrize("strength", [0.0, 2.0, np.inf])
@pytest.mark.parametrize("options", [PBM, UBM])
def test_the_log_keeps_the_contract_of_impressions(options: SimulationOptions, strength: float) -> None:
    log = simulate(replace(options, ranker_strength=strength)).log

    assert log["position"].dtype == pl.Int32
    assert log["click"].dtype == pl.Int8
    assert log.height == options.n_sessions * options.n_positions
    assert log.null_count().to_numpy().sum() == 0
    assert set(log["click"].unique()) == {0, 1}
    pages = log.group_by("session").agg(pl.all().n_unique(), low=pl.min("position"), high=pl.max("position"))
    assert pages["query"].unique().to_list() == [1]
    assert pages["doc"].unique().to_list() == [options.n_positions]
    assert pages["position"].unique().to_list() == [options.n_positions]
    assert pages.select("low", "high").unique().rows() == [(1, options.n_positions)]


@pytest.mark.slow
def test_a_stronger_ranker_shows_better_documents_higher() -> None:
    def advantage(strength: float) -> float:
        mean = pl.mean("attractiveness")
        impressions = with_truth(replace(PBM, ranker_strength=strength))
        top, bottom = (impressions.filter(position=at).select(mean).item() for at in (1, PBM.n_positions))
        return float(top - bottom)

    assert abs(advantage(0.0)) < 0.02 < advantage(0.5) < advantage(2.0) < advantage(np.inf)


def test_query_frequency_is_zipfian_and_uniform_at_exponent_zero() -> None:
    def sessions(exponent: float) -> pl.Series:
        log = simulate(replace(PBM, query_exponent=exponent)).log
        return log.filter(position=1).group_by("query").len().sort("query")["len"]

    zipfian, uniform = sessions(1.0), sessions(0.0)
    assert zipfian[0] / zipfian[9] == pytest.approx(10, rel=0.15)
    assert uniform[0] / uniform[9] == pytest.approx(1, rel=0.15)


def test_a_table_of_theta_is_the_truth_in_the_order_of_the_cells() -> None:
    options = SimulationOptions(model="ubm", n_positions=2, theta=(0.8, 0.4, 0.6))

    assert true_propensities(options).rows() == [
        (1, 0, 1.0, 0.8),
        (2, 0, 0.5, 0.4),
        (2, 1, pytest.approx(0.75), 0.6),
    ]


def test_certain_examination_of_certain_attraction_always_clicks() -> None:
    rng = np.random.default_rng(0)
    previous_only = np.array([[1.0, 0.0], [0.0, 1.0]])

    assert draw_clicks(np.ones((3, 2)), np.array([1.0, 0.0]), rng).tolist() == [[1, 0]] * 3
    assert draw_clicks(np.ones((3, 2)), previous_only, rng).tolist() == [[1, 1]] * 3
    assert draw_clicks(np.zeros((3, 2)), np.ones(2), rng).tolist() == [[0, 0]] * 3


def test_graded_attractiveness_runs_from_the_noise_to_one() -> None:
    gamma = graded_attractiveness(np.array([0, 1, 2]), highest=2, noise=0.1)

    np.testing.assert_allclose(gamma, [0.1, 0.4, 1.0])
