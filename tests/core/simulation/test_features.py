"""What real logs have beyond a model and a ranker: each feature of the simulator does what it says, and no more."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal
from present import present
from small_logs import simulated

from posbias.core.simulation.options import CellColumn
from posbias.core.simulation.simulate import (
    Ranker,
    SimulationOptions,
    draw_sessions,
    simulate,
    simulate_blocks,
    true_attractiveness,
    true_propensities,
)
from posbias.core.simulation.worlds import JudgementOptions, judged_world, random_world, theta_shocks, usable_judgements

PLAIN = SimulationOptions(n_sessions=40_000, n_queries=30, docs_per_query=12, n_positions=6, seed=7)
FIXED = replace(PLAIN, ranker_strength=np.inf)
SWAPS = replace(FIXED, swap_share=0.5, swaps=((1, 5), (2, 3)))
LEARNING = replace(PLAIN, days=6, ranker_strength=0.0, feedback_strength=6.0, query_exponent=0.0)
EVERYTHING = replace(
    PLAIN,
    attractiveness_scale=0.5,
    score_weight=0.7,
    theta_shock=0.1,
    contexts=(1.0, (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)),
    readiness=(0.5, 1.5),
    depth=0.9,
    segments=3,
    days=5,
    feedback_strength=1.0,
    randomized_share=0.2,
    swap_share=0.2,
    swaps=((1, 4),),
)
ANSWER = CellColumn("answer", (0.45, 0.6, 0.7, 0.8, 0.9, 0.95), (0.6, 0.3))
GRID = replace(PLAIN, n_positions=3, cell_columns=(CellColumn("row", (1.0, 0.7, 0.4)),), attractiveness_scale=0.9)
CELLS = replace(
    GRID,
    contexts=(1.0, 0.3),
    cell_columns=(*GRID.cell_columns, CellColumn("ad", (0.5,), (0.3,)), replace(ANSWER, factors=(0.3, 0.6, 0.9))),
)
STANDARD_ERRORS = 5.0  # none of a few dozen cells strays that far by chance


def with_truth(options: SimulationOptions) -> pl.DataFrame:
    """Return the impressions with examination and attractiveness beside them."""
    drawn = simulated(options)
    log = drawn.log.with_columns(
        previous_click=(pl.col("position") * pl.col("click")).cum_max().shift(1, fill_value=0).over("session")
    )
    cell, pair = (
        [name for name in truth.columns if name in log.columns] for truth in (drawn.propensities, drawn.attractiveness)
    )
    return log.join(drawn.propensities, on=cell, how="left").join(drawn.attractiveness, on=pair, how="left")


def largest_deviation(impressions: pl.DataFrame, *cell: str) -> float:
    """Return how far a cell's clicks stray from the sum of theta * gamma, in standard errors, at most."""
    p = pl.col("examination") * pl.col("attractiveness")
    z = (pl.col("click") - p).sum() / (p * (1 - p)).sum().sqrt()
    return float(impressions.group_by(*cell).agg(z=z.abs())["z"].to_numpy().max())


def pages(log: pl.DataFrame) -> pl.DataFrame:
    """Return one row per session, with the documents in the order of their positions."""
    return log.sort("session", "position").group_by("session", maintain_order=True).agg("query", "doc")


# --- the same log as ever -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"days": 3},
        {"segments": 2, "segment_difference": 0.0},
        {"contexts": (1.0, 1.0)},
        {"depth": 1.0},
        {"readiness": (1.0, 1.0)},
        {"interleave": (1.0,)},
        {"users": 300},
        {"cell_columns": (CellColumn("ad", (1.0,), (0.4, 0.2)), CellColumn("list", (1.0,)))},
    ],
    ids=str,
)
def test_a_feature_that_makes_no_difference_leaves_every_page_and_click_as_it_was(change: dict[str, object]) -> None:
    plain = simulated(PLAIN).log
    with_feature = simulated(replace(PLAIN, **change)).log  # pyright: ignore[reportArgumentType]

    assert_frame_equal(with_feature.select(plain.columns), plain)


def test_blocks_are_the_whole_log_and_small_with_every_feature(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posbias.core.simulation.simulate.SCORES_PER_BLOCK", 12_000)
    blocks = list(simulate_blocks(EVERYTHING))

    assert max(block.height for block in blocks) <= 12_000 // PLAIN.docs_per_query * PLAIN.n_positions
    assert max(block["timestamp"].dt.date().n_unique() for block in blocks) == 1  # the ranker learns at midnight
    log = pl.concat(blocks)
    assert_frame_equal(log, simulated(EVERYTHING).log)
    assert log["session"].unique().to_list() == list(range(EVERYTHING.n_sessions))
    assert log.columns == [*simulated(PLAIN).log.columns, "timestamp", "segment", "device", "policy", "experiment"]


# --- the contract of logs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("strength", [0.0, 2.0, np.inf])
@pytest.mark.parametrize("options", [PLAIN, replace(PLAIN, model="ubm")])
def test_the_log_keeps_the_contract_of_impressions(options: SimulationOptions, strength: float) -> None:
    log = simulated(replace(options, ranker_strength=strength)).log

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
        impressions = with_truth(replace(PLAIN, ranker_strength=strength))
        top, bottom = (impressions.filter(position=at).select(mean).item() for at in (1, PLAIN.n_positions))
        return float(top - bottom)

    assert abs(advantage(0.0)) < 0.02 < advantage(0.5) < advantage(2.0) < advantage(np.inf)


def test_query_frequency_is_zipfian_and_uniform_at_exponent_zero() -> None:
    def sessions(exponent: float) -> pl.Series:
        log = simulated(replace(PLAIN, query_exponent=exponent)).log
        return log.filter(position=1).group_by("query").len().sort("query")["len"]

    zipfian, uniform = sessions(1.0), sessions(0.0)
    assert zipfian[0] / zipfian[9] == pytest.approx(10, rel=0.15)
    assert uniform[0] / uniform[9] == pytest.approx(1, rel=0.15)


def test_a_table_of_theta_is_the_truth_in_the_order_of_the_cells() -> None:
    options = SimulationOptions(model="ubm", n_positions=2, theta=(0.8, 0.4, 0.6))

    assert true_propensities(options).rows() == [(1, 0, 1.0, 0.8), (2, 0, 0.5, 0.4), (2, 1, pytest.approx(0.75), 0.6)]


# --- clicks follow the truth ----------------------------------------------------------------------------------


CELLS_OF_WORLDS: dict[str, tuple[SimulationOptions, tuple[str, ...]]] = {
    "PBM": (PLAIN, ("position", "previous_click")),
    "queries": (PLAIN, ("query",)),
    "UBM": (replace(PLAIN, model="ubm", ranker_strength=0.0), ("position", "previous_click")),
    "contexts": (replace(PLAIN, contexts=(0.5, (1.0, 0.3, 0.9, 0.2, 0.4, 0.1))), ("position", "device")),
    "UBM contexts": (replace(PLAIN, model="ubm", contexts=(0.5, 2.0)), ("position", "previous_click", "device")),
    "segments": (replace(PLAIN, segments=3, segment_difference=1.0), ("position", "segment")),
    "readiness": (replace(PLAIN, readiness=(0.3, 1.7), attractiveness_scale=0.5), ("position",)),
    "depth": (replace(PLAIN, depth=0.8), ("position",)),
    "noise": (replace(PLAIN, score_weight=0.3), ("position",)),
    "random": (replace(PLAIN, randomized_share=0.5), ("position", "policy")),
    "swaps": (SWAPS, ("position", "experiment")),
    "learning": (LEARNING, ("position",)),
    "block": (replace(PLAIN, cell_columns=(ANSWER,)), ("position", "answer")),
    "grid": (replace(GRID, theta=tuple(1 - 0.1 * slot for slot in range(9)), depth=0.9), ("position", "row")),
    "cells": (CELLS, ("position", "row", "ad", "answer", "device")),
    "all": (replace(EVERYTHING, theta_shock=0.0), ("position", "device", "segment", "policy", "experiment")),
}


@pytest.mark.slow_after(3)
@pytest.mark.parametrize("name", CELLS_OF_WORLDS)
def test_clicks_follow_theta_times_gamma_with_every_feature(name: str) -> None:
    options, cell = CELLS_OF_WORLDS[name]
    impressions = with_truth(options)

    assert impressions["examination"].null_count() + impressions["attractiveness"].null_count() == 0
    assert largest_deviation(impressions, *cell) < STANDARD_ERRORS


def test_the_truth_of_each_context_is_relative_to_its_own_first_position() -> None:
    options = SimulationOptions(n_positions=2, contexts=(1.0, (0.8, 0.2)))

    assert true_propensities(options).rows(named=True) == [
        {"position": 1, "device": 0, "propensity": 1.0, "examination": 1.0},
        {"position": 2, "device": 0, "propensity": 0.5, "examination": 0.5},
        {"position": 1, "device": 1, "propensity": 1.0, "examination": 0.8},
        {"position": 2, "device": 1, "propensity": 0.25, "examination": 0.2},
    ]


def test_the_truth_of_cells_is_theta_by_hand_relative_to_the_most_frequent_pages() -> None:
    lists, block = CellColumn("list", (1.0, 0.5)), CellColumn("ad", (0.4, 0.6), (0.7,))
    options = SimulationOptions(n_sessions=500, n_positions=2, theta=(1.0, 0.5), cell_columns=(block, lists))
    truth = simulated(options).propensities

    assert truth.columns == ["position", "list", "ad", "propensity", "examination"]
    assert truth.sort("ad", "list", "position")["examination"].to_list() == pytest.approx(
        [1.0, 0.5, 0.5, 0.25, 0.4, 0.3, 0.2, 0.15]
    )
    np.testing.assert_allclose(truth["propensity"], truth["examination"] / 0.4)
    rare = simulated(replace(options, cell_columns=(replace(block, share=(0.3,)), lists))).propensities
    np.testing.assert_allclose(rare["propensity"], truth["examination"])


def test_pages_of_lists_show_each_slot_once_from_the_best_document_on() -> None:
    options = replace(GRID, ranker_strength=np.inf, n_sessions=300)
    log, score = simulated(options).log, random_world(options).score[0]

    first = log.filter(session=0)
    assert first.select("row", "position").rows() == [(row, position) for row in (1, 2, 3) for position in (1, 2, 3)]
    assert first["doc"].to_list() == np.argsort(-score[first["query"][0]])[:9].tolist()
    assert log.group_by("session").agg(pl.struct("row", "position").n_unique())["row"].unique().to_list() == [9]
    assert log.schema["row"] == pl.Int32


def test_blocks_are_shown_on_their_share_of_the_pages_which_differs_by_query() -> None:
    def shares(*share: float) -> pl.Series:
        columns = (replace(ANSWER, share=share),)
        world = replace(PLAIN, n_queries=200, query_exponent=0.0, cell_columns=columns)
        pages = simulated(world).log.filter(position=1)
        return pages.group_by("query").agg(pl.mean("answer"))["answer"]

    even, uneven = shares(0.6), shares(0.6, 0.3)
    assert even.mean() == pytest.approx(0.6, abs=0.02)
    assert uneven.mean() == pytest.approx(0.6, abs=STANDARD_ERRORS * 0.3 / 200**0.5)
    assert even.std() == pytest.approx((0.6 * 0.4 / 200) ** 0.5, rel=0.3)  # chance alone, of 200 pages each
    assert uneven.std() == pytest.approx(0.3, rel=0.2)


@pytest.mark.slow
def test_two_clicks_on_a_page_are_as_frequent_as_readiness_makes_them() -> None:
    options = replace(PLAIN, attractiveness_scale=0.5, eta=0.3)

    def excess(readiness: tuple[float, ...]) -> float:
        page = with_truth(replace(options, readiness=readiness)).filter(pl.col("position") <= 2)
        p = (pl.col("examination") * pl.col("attractiveness")).product()
        both = page.group_by("session").agg(clicked=pl.col("click").product(), p=p)
        return float(both.select(pl.col("clicked").sum() / pl.col("p").sum()).item())

    assert excess((1.0,)) == pytest.approx(1, abs=0.1)
    assert excess((0.3, 1.7)) == pytest.approx((0.3**2 + 1.7**2) / 2, abs=0.15)


def test_shocks_of_theta_spread_queries_as_asked_and_leave_the_mean() -> None:
    shocks = present(theta_shocks(replace(PLAIN, theta_shock=0.4), 20_000))
    assert shocks.mean() == pytest.approx(1, abs=0.01)
    assert np.log(shocks).std() == pytest.approx(0.4, abs=0.01)


# --- what stands where ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("weight", [1.0, 0.6])
def test_position_is_the_true_rank_of_the_score(weight: float) -> None:
    options = replace(FIXED, score_weight=weight, segments=2)
    log, world = simulated(options).log, random_world(options)
    score = world.attractiveness if weight == 1 else world.score

    segment, query, doc = (log[name].to_numpy() for name in ("segment", "query", "doc"))
    own = score[segment, query, doc]
    better = (score[segment, query] > own[:, None]).sum(axis=1)
    np.testing.assert_array_equal(log["position"], better + 1)


def test_pages_end_early_with_the_probability_asked_for_and_are_the_same_until_then() -> None:
    whole, geometric = simulated(PLAIN).log, simulated(replace(PLAIN, depth=0.8)).log
    shown = geometric.group_by("position").len().sort("position")["len"].to_numpy() / PLAIN.n_sessions
    kept = whole.join(geometric, on=["session", "position"], how="semi")

    np.testing.assert_allclose(shown, 0.8 ** np.arange(6), atol=0.02)
    assert_frame_equal(geometric, kept)


def test_pages_end_where_the_weights_say() -> None:
    log = simulated(replace(PLAIN, depth=(0.0, 1.0, 0.0, 0.0, 0.0, 3.0))).log
    depth = log.group_by("session").len()["len"]

    assert set(depth) == {2, 6}
    assert (depth == 2).mean() == pytest.approx(0.25, abs=0.02)


def test_randomised_pages_show_the_top_documents_in_uniform_order_and_the_others_are_as_they_were() -> None:
    log, plain = simulated(replace(FIXED, randomized_share=0.5)).log, simulated(FIXED).log
    random, ranked = log.filter(policy="random"), log.filter(policy="ranker")

    assert random["session"].n_unique() / FIXED.n_sessions == pytest.approx(0.5, abs=0.02)
    columns = ["session", "query", "doc", "position"]
    assert_frame_equal(ranked.select(columns), plain.join(ranked, on="session", how="semi").select(columns))
    top = plain.select("query", "doc").unique()
    assert_frame_equal(random.select("query", "doc").unique(), top, check_row_order=False)
    share = 1 / FIXED.n_positions
    counts = (
        random.group_by("query", "doc", "position")
        .len()
        .join(random.group_by("query", "doc").len("n"), on=["query", "doc"])
    )
    z = (counts["len"] - share * counts["n"]) / (share * (1 - share) * counts["n"]).sqrt()
    assert counts.height == top.height * FIXED.n_positions
    assert float(np.abs(z.to_numpy()).max()) < STANDARD_ERRORS
    assert float((z**2).mean()) == pytest.approx(1, abs=0.15)  # pyright: ignore[reportArgumentType]


def test_a_swap_experiment_swaps_its_two_positions_half_of_the_time_and_nothing_else() -> None:
    swapped, plain = simulated(SWAPS).log, simulated(FIXED).log
    both = swapped.select("session", "position", "doc", "experiment").with_columns(before=plain["doc"])
    moved = both.filter(pl.col("doc") != pl.col("before"))

    assert moved["experiment"].null_count() == 0
    for name, one, other in (("swap 1-5", 1, 5), ("swap 2-3", 2, 3)):
        members = both.filter(experiment=name)
        assert members["session"].n_unique() / SWAPS.n_sessions == pytest.approx(0.25, abs=0.02)
        of_these = moved.filter(experiment=name)
        assert of_these["session"].n_unique() / members["session"].n_unique() == pytest.approx(0.5, abs=0.02)
        assert set(of_these["position"]) == {one, other}
        first, second = (of_these.filter(position=at).sort("session") for at in (one, other))
        assert first["doc"].equals(second["before"])
        assert first["before"].equals(second["doc"])


def test_timestamps_rise_evenly_over_the_days() -> None:
    log = simulated(replace(PLAIN, days=4)).log
    by_day = log.filter(position=1).group_by(pl.col("timestamp").dt.date()).len()

    assert log["timestamp"].dtype == pl.Datetime("us")
    assert log["timestamp"].is_sorted()
    assert by_day["len"].to_list() == [PLAIN.n_sessions // 4] * 4


# --- team drafts and users ------------------------------------------------------------------------------------

DRAFTS = replace(PLAIN, n_sessions=2_000, n_positions=5, interleave=(0.5, 0.8))


@pytest.mark.parametrize("strength", [1.0, np.inf])
@pytest.mark.parametrize("labelled", [False, True])
def test_each_pick_of_a_team_draft_is_the_best_document_left_in_rounds_of_a_fair_coin(
    strength: float, *, labelled: bool
) -> None:
    options = replace(DRAFTS, ranker_strength=strength, segments=2)
    rows = [(query, doc, (query + doc) % 4) for query in range(12) for doc in range(5 + query)]
    labels = pl.DataFrame(rows, schema=["query", "doc", "label"], orient="row")
    world = judged_world(usable_judgements(labels, 5), options, JudgementOptions()) if labelled else None
    log = simulate(options, world).log

    pages = log.group_by("session", maintain_order=True).agg("team", "rank_a", "rank_b")
    team, *ranks = (np.array(pages[name].to_list()) for name in ("team", "rank_a", "rank_b"))
    own = np.where(team == "A", *ranks)
    for place in range(5):  # as many better ones above as there are
        above = np.where(team[:, [place]] == "A", *ranks)[:, :place] if place else np.empty((len(own), 0))
        np.testing.assert_array_equal((above < own[:, [place]]).sum(axis=1), own[:, place] - 1)
    assert (team[:, [0, 2]] != team[:, [1, 3]]).all()
    first = team[:, ::2] == "B"
    np.testing.assert_allclose(first.mean(axis=0), 0.5, atol=STANDARD_ERRORS * 0.5 / len(first) ** 0.5)
    assert abs(np.corrcoef(first.T)[np.triu_indices(3, 1)]).max() < STANDARD_ERRORS / len(first) ** 0.5
    assert (ranks[0] != ranks[1]).mean() > 0.2


def test_the_same_ranker_twice_ranks_alike_and_a_better_one_is_clicked_more() -> None:
    for weights in ((0.4,), (1.0, 1.0)):
        same = simulated(replace(DRAFTS, interleave=weights)).log
        assert same["rank_a"].equals(same["rank_b"].alias("rank_a"))
    clicks = (
        simulated(replace(DRAFTS, interleave=(0.2, 1.0), ranker_strength=np.inf))
        .log.group_by("team")
        .agg(pl.sum("click"))
    )
    worse, better = clicks.sort("team")["click"]
    assert better > 1.2 * worse


def test_users_come_back_and_keep_their_segment_device_and_readiness() -> None:
    ready = replace(PLAIN, readiness=(0.0, 2.0), attractiveness_scale=0.5)
    log = simulated(replace(ready, users=8_000, segments=3, contexts=(0.5, 1.5))).log
    traits = [pl.n_unique("session", "segment", "device"), pl.sum("click")]
    users = log.group_by("user").agg(traits)

    assert users["session"].mean() == pytest.approx(5 / (1 - np.exp(-5)), rel=0.005)
    assert users.select("segment", "device").unique().rows() == [(1, 1)]
    never_ready = users.filter(pl.col("session") >= 5)["click"] == 0
    assert never_ready.mean() == pytest.approx(0.5, abs=STANDARD_ERRORS * 0.5 / len(never_ready) ** 0.5)


# --- segments -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("difference", [0.0, 0.3, 1.0])
def test_segments_differ_in_the_share_of_documents_asked_for(difference: float) -> None:
    truth = true_attractiveness(replace(PLAIN, n_queries=300, segments=3, segment_difference=difference))
    first, *others = (truth.filter(segment=segment)["attractiveness"] for segment in range(3))

    for other in others:
        assert (other != first).mean() == pytest.approx(difference, abs=0.03)
        assert other.mean() == pytest.approx(first.mean(), abs=0.02)


# --- a ranker that learns -------------------------------------------------------------------------------------


def by_day(options: SimulationOptions) -> pl.DataFrame:
    """Return the mean position and the click rate of each document, day by day, with its attractiveness."""
    impressions = with_truth(options).with_columns(day=pl.col("timestamp").dt.ordinal_day())
    means = [pl.mean("position"), pl.mean("click"), pl.first("attractiveness"), pl.len()]
    return impressions.group_by("day", "query", "doc").agg(means).with_columns(pl.col("day") - pl.col("day").min() + 1)


def test_what_was_clicked_yesterday_stands_higher_today_and_the_first_day_knows_nothing() -> None:
    days = by_day(LEARNING)
    first, second = days.filter(day=1), days.filter(day=2)
    both = first.join(second, on=["query", "doc"], suffix="_next")

    assert abs(first.select(pl.corr("position", "attractiveness")).item()) < 0.12
    assert both.select(pl.corr("click", "position_next")).item() < -0.5
    rise = (pl.col("position") - pl.col("position_next")).mean()
    often, seldom = both.filter(pl.col("click") > 0.2), both.filter(pl.col("click") < 0.1)
    assert often.select(rise).item() > 0.3 > -0.1 > seldom.select(rise).item()


def test_a_ranker_learns_from_each_segment_by_itself() -> None:
    impressions = with_truth(replace(LEARNING, segments=2, segment_difference=1.0, n_queries=10))
    last = impressions.filter(pl.col("timestamp").dt.ordinal_day() == pl.col("timestamp").dt.ordinal_day().max())
    truth = true_attractiveness(replace(LEARNING, segments=2, segment_difference=1.0, n_queries=10))
    other = truth.with_columns(segment=1 - pl.col("segment")).rename({"attractiveness": "of_the_other"})
    seen = last.join(other, on=["query", "doc", "segment"])

    assert seen.select(pl.corr("position", "attractiveness")).item() < -0.4
    assert abs(seen.select(pl.corr("position", "of_the_other")).item()) < 0.15


def test_a_ranker_does_not_learn_from_clicks_that_were_not_shown() -> None:
    options = SimulationOptions(
        n_queries=1, docs_per_query=3, n_positions=3, days=2, ranker_strength=0.0, feedback_strength=50.0
    )
    nothing, number = np.zeros(3000, dtype=np.int64), np.arange(3000)
    sessions = replace(draw_sessions(options, number, nothing, 0, np.zeros((1, 0))), depth=nothing + 1)
    ranker = Ranker(options, random_world(options))
    ranker.observe(sessions, np.tile([0, 1, 2], (3000, 1)), np.tile(np.array([0, 1, 1], dtype=np.int8), (3000, 1)))
    ranker.update(1)
    first = ranker.rank(sessions, np.random.default_rng(0))[:, 0]

    np.testing.assert_allclose(np.bincount(first) / 3000, 1 / 3, atol=0.05)
