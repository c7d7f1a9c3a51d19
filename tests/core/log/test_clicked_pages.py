"""Whether a log knows second clicks."""

import numpy as np
import polars as pl

from posbias.core.log.clicked_pages import ClickedPages
from posbias.core.log.impressions import pages
from posbias.core.simulation.simulate import SimulationOptions, simulate

WORLD = SimulationOptions(n_sessions=3_000, n_queries=50, docs_per_query=10, n_positions=6)


def counted(log: pl.DataFrame) -> ClickedPages:
    return ClickedPages.of(pages(log.lazy()))


def first_clicks_only(log: pl.DataFrame) -> pl.DataFrame:
    above = pl.col("click").cum_sum().over("session", order_by="position") - pl.col("click")
    return log.with_columns(click=pl.when(above > 0).then(0).otherwise("click").cast(pl.Int8))


def test_logs_of_first_clicks_are_found_and_others_are_not() -> None:
    for seed in range(5):
        log = simulate(SimulationOptions(n_sessions=3_000, n_queries=50, docs_per_query=10, seed=seed)).log
        assert not counted(log).only_first_clicks
        assert counted(first_clicks_only(log)).only_first_clicks


def test_what_is_expected_is_what_independent_clicks_make() -> None:
    """Pages that are all alike; where they differ there are more pages with several clicks."""
    rng = np.random.default_rng(0)
    rows = pl.DataFrame({"session": np.repeat(np.arange(20_000), 5), "query": 1, "doc": np.tile(np.arange(5), 20_000)})
    rows = rows.with_columns(position=pl.col("doc") + 1, click=pl.Series(rng.random(100_000) < 0.06).cast(pl.Int8))
    found = counted(rows)
    assert abs(found.several / found.expected_several - 1) < 0.1
    log = simulate(WORLD).log
    assert counted(log).several > counted(log).expected_several


def test_pages_of_one_row_and_pages_with_few_clicks_say_nothing() -> None:
    one_row = pl.DataFrame({"session": range(5_000), "query": 1, "doc": 1, "position": 1, "click": 1})
    few = first_clicks_only(simulate(SimulationOptions(n_sessions=200, attractiveness_scale=0.05)).log)
    nobody = simulate(WORLD).log.with_columns(click=pl.lit(0, pl.Int8))

    for log in (one_row, few, nobody):
        assert not counted(log).only_first_clicks
