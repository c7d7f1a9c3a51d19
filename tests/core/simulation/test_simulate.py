"""The simulator is what other tests take for the truth: its own logs must follow the model that it states."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from posbias.core.errors import UsageError
from posbias.core.simulation.simulate import (
    SimulationOptions,
    draw_clicks,
    graded_attractiveness,
    simulate,
    simulate_blocks,
    true_propensities,
)

PBM = SimulationOptions(n_sessions=60_000, n_queries=30, docs_per_query=12, n_positions=6, seed=7)
UBM = replace(PBM, model="ubm")
STANDARD_ERRORS = 5.0  # of a cell's click rate; none of a few dozen cells strays that far by chance


def with_truth(options: SimulationOptions) -> pl.DataFrame:
    """Return the impressions with previous_click, and the examination and attractiveness behind them."""
    simulation = simulate(options)
    clicked_position = pl.when(pl.col("click") == 1).then("position").otherwise(0)
    log = simulation.log.with_columns(previous_click=clicked_position.cum_max().shift(1, fill_value=0).over("session"))
    cell = [name for name in ("position", "previous_click") if name in simulation.propensities.columns]
    return log.join(simulation.propensities, on=cell).join(simulation.attractiveness, on=["query", "doc"])


def largest_deviation(impressions: pl.DataFrame, *cell: str) -> float:
    """Return how far a cell's clicks stray from the sum of theta * gamma, in standard errors, at most."""
    p = pl.col("examination") * pl.col("attractiveness")
    z = (pl.col("click") - p).sum() / (p * (1 - p)).sum().sqrt()
    return float(impressions.group_by(*cell).agg(z=z.abs())["z"].to_numpy().max())


@pytest.mark.parametrize("options", [PBM, UBM])
def test_the_same_seed_draws_the_same_log_and_another_seed_another(options: SimulationOptions) -> None:
    first, again, other = simulate(options), simulate(options), simulate(replace(options, seed=8))

    assert first.log.equals(again.log)
    assert first.attractiveness.equals(again.attractiveness)
    assert not first.log.equals(other.log)
    assert not first.attractiveness.equals(other.attractiveness)


def test_streamed_blocks_are_the_whole_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posbias.core.simulation.simulate.SCORES_PER_BLOCK", 12_000)
    blocks = list(simulate_blocks(PBM))

    assert len(blocks) == 60
    assert pl.concat(blocks).equals(simulate(PBM).log)
    assert pl.concat(blocks)["session"].unique().to_list() == list(range(PBM.n_sessions))


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


@pytest.mark.parametrize("strength", [0.0, 1.0])
def test_pbm_clicks_follow_theta_times_gamma_at_every_position_and_for_every_query(strength: float) -> None:
    impressions = with_truth(replace(PBM, ranker_strength=strength))

    assert largest_deviation(impressions, "position") < STANDARD_ERRORS
    assert largest_deviation(impressions, "position", "previous_click") < STANDARD_ERRORS
    assert largest_deviation(impressions, "query") < STANDARD_ERRORS


def test_ubm_clicks_follow_theta_times_gamma_in_every_cell() -> None:
    impressions = with_truth(replace(UBM, ranker_strength=0.0))

    assert impressions.select("position", "previous_click").n_unique() == len(UBM.cells)
    assert largest_deviation(impressions, "position", "previous_click") < STANDARD_ERRORS


def test_under_a_random_ranker_click_rates_fall_as_the_propensities_do() -> None:
    simulation = simulate(replace(PBM, ranker_strength=0.0))
    rate = simulation.log.group_by("position").agg(pl.mean("click")).sort("position")["click"].to_numpy()

    np.testing.assert_allclose(rate / rate[0], simulation.propensities["propensity"], rtol=0.1)


@pytest.mark.slow
def test_a_stronger_ranker_shows_better_documents_higher() -> None:
    def advantage(strength: float) -> float:
        mean = pl.mean("attractiveness")
        impressions = with_truth(replace(PBM, ranker_strength=strength))
        top, bottom = (impressions.filter(position=at).select(mean).item() for at in (1, PBM.n_positions))
        return float(top - bottom)

    assert abs(advantage(0.0)) < 0.02 < advantage(0.5) < advantage(2.0) < advantage(np.inf)


def test_an_infinitely_strong_ranker_always_shows_the_same_perfect_order() -> None:
    impressions = with_truth(replace(PBM, ranker_strength=np.inf))
    descent = pl.col("attractiveness").diff().over("session", order_by="position")

    assert impressions.select("query", "position", "doc").n_unique() == PBM.n_queries * PBM.n_positions
    assert impressions.select(descent.max()).item() < 0


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


@pytest.mark.parametrize(
    ("change", "demand"),
    [
        ({"n_sessions": 0}, "n_sessions"),
        ({"docs_per_query": 3}, "docs_per_query"),
        ({"eta": -1.0}, "eta"),
        ({"theta": (1.0, 0.5)}, "theta has 6 values"),
        ({"theta": (1.0, 0.5, 0.4, 0.3, 0.2, 1.2)}, r"theta lies in \[1e-12, 1\]"),
        ({"attractiveness_shape": (0.0, 1.0)}, "attractiveness_shape"),
        ({"attractiveness_scale": 0.0}, "attractiveness_scale"),
        ({"seed": -1}, "seed"),
        ({"model": "unknown"}, "model"),
    ],
)
def test_an_impossible_world_is_refused_and_said_why(change: dict[str, object], demand: str) -> None:
    with pytest.raises(UsageError, match=demand):
        replace(PBM, **change)  # pyright: ignore[reportArgumentType]


def test_certain_examination_of_certain_attraction_always_clicks() -> None:
    rng = np.random.default_rng(0)
    previous_only = np.array([[1.0, 0.0], [0.0, 1.0]])

    assert draw_clicks(np.ones((3, 2)), np.array([1.0, 0.0]), rng).tolist() == [[1, 0]] * 3
    assert draw_clicks(np.ones((3, 2)), previous_only, rng).tolist() == [[1, 1]] * 3
    assert draw_clicks(np.zeros((3, 2)), np.ones(2), rng).tolist() == [[0, 0]] * 3


def test_graded_attractiveness_runs_from_the_noise_to_one() -> None:
    gamma = graded_attractiveness(np.array([0, 1, 2]), highest=2, noise=0.1)

    np.testing.assert_allclose(gamma, [0.1, 0.4, 1.0])
