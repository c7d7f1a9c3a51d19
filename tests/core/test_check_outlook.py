"""What is expected of an estimate, and what is said of it."""

import numpy as np
import polars as pl
import pytest
from small_logs import counted, simulated, statistics_of

from posbias.core.check import Outlook, add_facts, advice, log_facts, movement, outlook, reasons_against
from posbias.core.simulation.simulate import SimulationOptions

MEMORY = 2 << 30

LOG = SimulationOptions(n_sessions=6000, n_queries=400, n_positions=4, docs_per_query=8, query_exponent=0.0, seed=1)


def test_a_sample_of_queries_tells_the_errors_of_the_whole_log() -> None:
    log = simulated(LOG).log
    half = statistics_of(log.filter(pl.col("query").hash(1) % 2 == 0))
    whole = statistics_of(log)

    expected = outlook(half, MEMORY, half.n_queries / whole.n_queries)

    assert expected.errors == pytest.approx(outlook(whole, MEMORY).errors, rel=0.25)
    assert np.all(expected.errors < outlook(half, MEMORY).errors)


def test_pairs_that_move_are_counted_one_by_one() -> None:
    log = simulated(LOG).log
    per_pair = log.group_by("query", "doc").agg(
        places=pl.col("position").n_unique(), clicks=pl.col("click").sum(), shown=pl.len()
    )
    moved = per_pair.filter(pl.col("places") > 1)

    found = movement(statistics_of(log).pair_signatures)

    assert (found.pairs, found.moved) == (per_pair.height, moved.height)
    assert found.linking == moved.filter(pl.col("clicks") > 0).height
    assert found.share == pytest.approx(moved["shown"].sum() / log.height)


def test_a_log_without_links_has_a_reason_and_no_errors() -> None:
    fixed = simulated(LOG).log.with_columns(doc="position")

    found = outlook(statistics_of(fixed), MEMORY)

    assert not found.carries
    assert found.reason is not None
    assert len(found.errors) == 0
    assert found.cells["impressions"].to_list() == [6000] * 4


def remarks(log: pl.DataFrame, *, by_cell: bool = False) -> tuple[Outlook, list[str]]:
    statistics, facts = statistics_of(log), add_facts([log_facts(counted(log))])
    found = outlook(statistics, MEMORY)
    moved = movement(statistics.pair_signatures)
    return found, [*advice(facts, moved, [found], by_cell=by_cell).values()]


def test_thin_positions_are_advised_to_be_smoothed_or_left_out() -> None:
    thin = simulated(LOG).log.filter((pl.col("position") < 4) | (pl.col("session") % 60 == 0))

    _, said = remarks(thin)

    assert any(s.startswith("Positions from 4 on have fewer than 100 clicks each") for s in said)
    assert any("leave them out (--max-position 3)" in s for s in said)
    assert any(s.startswith("More different queries narrow the intervals") for s in said)
    assert "--shape smooth" in " ".join(said)
    assert "--shape" not in " ".join(remarks(thin, by_cell=True)[1])  # which is refused beside --cell


def test_a_log_that_lacks_nothing_needs_no_advice() -> None:
    assert remarks(simulated(LOG).log)[1] == []


def test_cells_that_cannot_be_compared_are_a_reason_against_an_estimate() -> None:
    own = pl.when(pl.col("position") == 4).then(pl.col("doc") + 100).otherwise(pl.col("doc"))
    log = simulated(LOG).log.with_columns(doc=own)

    found, said = remarks(log)

    facts = add_facts([log_facts(counted(log))])
    assert "1 of 4 cells cannot be compared with the others" in reasons_against(found, facts)[0]
    assert said[0].startswith("Let the same document appear at different positions")
