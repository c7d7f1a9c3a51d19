"""Whether randomised rows were placed at random: false alarms, detection, and what is refused."""

from dataclasses import replace
from typing import Literal

import numpy as np
import polars as pl
import pytest
from small_logs import PBM, statistics_of

from posbias.core.choices import RandomizedRows
from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.errors import IdentifiabilityError
from posbias.core.estimators.methods import PlacementTest, check_placements, placement_tests
from posbias.core.schema import RANDOMIZED
from posbias.core.simulation.simulate import SimulationOptions, simulate

WORLD = SimulationOptions(n_sessions=4_000, n_queries=20, docs_per_query=8, n_positions=5, query_exponent=0.5)
SWAP = RandomizedRows("arm", "swap", (1, 4))
PAGES = RandomizedRows("policy", "random")

Arm = Literal["both", "moved", "not moved"]


def swapped(seed: int, arm: Arm, options: SimulationOptions = WORLD) -> pl.DataFrame:
    """A log of which a third of the pages took part in a swap of positions 1 and 4, and the rows that are marked."""
    log = simulate(replace(options, seed=seed)).log
    rng = np.random.default_rng(seed)
    sessions = log["session"].unique().sort()
    drawn = pl.DataFrame({"session": sessions, "lot": rng.random(len(sessions)), "coin": rng.random(len(sessions))})
    moved, position = pl.col("coin") < 0.5, pl.col("position")
    takes_part = pl.col("lot") < 1 / 3
    there = position.replace({1: 4, 4: 1})
    marked = takes_part & position.is_in([1, 4])
    if arm != "both":
        marked &= moved if arm == "moved" else ~moved
    return log.join(drawn, on="session").with_columns(
        pl.when(takes_part & moved).then(there).otherwise(position).alias("position"),
        marked.cast(pl.UInt8).alias(RANDOMIZED),
    )


def shuffled(seed: int, options: SimulationOptions = WORLD) -> pl.DataFrame:
    log = simulate(replace(options, seed=seed, randomized_share=0.3)).log
    return log.with_columns((pl.col("policy") == "random").cast(pl.UInt8).alias(RANDOMIZED))


def marked_as(marked: RandomizedRows) -> StatisticsPlan:
    return replace(PBM, randomized=(marked,))


def judged(rows: pl.DataFrame, marked: RandomizedRows = SWAP, parts: int = 1) -> PlacementTest:
    return placement_tests(statistics_of(rows, marked_as(marked), parts))[0]


@pytest.mark.slow
def test_random_placement_is_seldom_doubted_and_not_refused() -> None:
    found = [judged(swapped(seed, "both")) for seed in range(30)]
    found += [judged(shuffled(seed), PAGES) for seed in range(30)]

    assert sum(test.p_value < 0.05 for test in found) <= 7  # 3 are expected; 8 or more would be 1 in 100
    assert not any(test.refused for test in found)


@pytest.mark.parametrize("arm", ["moved", "not moved"])
@pytest.mark.parametrize("ranker_strength", [1.0, np.inf])
def test_one_arm_of_a_swap_is_refused(arm: Arm, ranker_strength: float) -> None:
    for seed in range(5):
        statistics = statistics_of(swapped(seed, arm, replace(WORLD, ranker_strength=ranker_strength)), marked_as(SWAP))
        with pytest.raises(IdentifiabilityError, match="Mark all rows that took part"):
            check_placements(statistics)


def test_rows_that_the_ranker_placed_are_refused() -> None:
    log = simulate(WORLD).log.with_columns((pl.col("session") % 3 == 0).cast(pl.UInt8).alias(RANDOMIZED))
    with pytest.raises(IdentifiabilityError, match="were not placed at random"):
        check_placements(statistics_of(log, marked_as(PAGES)))


def test_a_position_that_was_named_and_holds_no_row_is_said() -> None:
    rows = swapped(0, "both").filter((pl.col("position") != 4) | (pl.col(RANDOMIZED) == 0))
    with pytest.raises(IdentifiabilityError, match="none is at position 4"):
        check_placements(statistics_of(rows, marked_as(SWAP)))


def test_pages_of_unequal_length_are_no_reason_to_refuse() -> None:
    """Short pages of some queries, and pages that were cut whatever they showed."""
    for seed in range(10):
        rows = shuffled(seed, replace(WORLD, depth=0.7))
        rows = rows.filter((pl.col("query") % 3 > 0) | (pl.col("position") <= 2))
        assert not judged(rows, PAGES).refused


def test_documents_that_are_shown_once_say_nothing() -> None:
    rows = pl.DataFrame(
        {"session": [0, 0, 1, 1], "query": [0, 0, 1, 1], "doc": [1, 2, 1, 2], "position": [1, 4, 1, 4], "click": 1}
    ).with_columns(pl.lit(1, pl.UInt8).alias(RANDOMIZED))
    found = judged(rows)

    assert (found.documents, found.p_value, found.refused) == (0, 1.0, False)


def test_the_parts_of_a_log_say_what_the_whole_says() -> None:
    rows = swapped(3, "moved")
    whole, parts = (judged(rows, parts=number) for number in (1, 4))

    assert parts.p_value == pytest.approx(whole.p_value, rel=1e-9)
    assert parts.correlation == pytest.approx(whole.correlation, rel=1e-9)
    assert (parts.documents, parts.queries) == (whole.documents, whole.queries)


def test_the_excess_is_that_of_all_pairs_of_rows() -> None:
    """From the counts as from the rows: each pair of rows of one document, scored -1 and 1."""
    rows = swapped(4, "both").filter(pl.col(RANDOMIZED) == 1)
    score = rows.with_columns(z=pl.when(pl.col("position") == 1).then(-1.0).otherwise(1.0))
    pairs = score.join(score, on=["query", "doc"]).filter(pl.col("session") != pl.col("session_right"))
    expected = pairs.select((pl.col("z") * pl.col("z_right")).mean()).item()

    assert judged(rows).correlation == pytest.approx(expected, rel=1e-9)
