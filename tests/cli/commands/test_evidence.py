"""What a result says of the evidence behind it: zeros, randomised rows, clusters, causes, weights."""

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import polars as pl
import pytest

from posbias.core.simulation.simulate import SimulationOptions, simulate

Run = Callable[..., CompletedProcess[str]]

# Users examine every document until they click one: P(seen) falls to .75 at the last position.
CASCADE = SimulationOptions(
    n_sessions=6_000, n_queries=60, docs_per_query=8, n_positions=5, theta=(1.0,) * 5, attractiveness_scale=0.3
)


def first_clicks_only(log: pl.DataFrame) -> pl.DataFrame:
    above = pl.col("click").cum_sum().over("session", order_by="position") - pl.col("click")
    return log.with_columns(click=pl.when(above > 0).then(0).otherwise("click").cast(pl.Int8))


def said(done: CompletedProcess[str]) -> str:
    return " ".join(done.stderr.split())


def manifest(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "manifest.json").read_text())


@pytest.fixture
def cascade(tmp_path: Path) -> Path:
    first_clicks_only(simulate(CASCADE).log).write_parquet(tmp_path / "cascade.parquet")
    return tmp_path / "cascade.parquet"


@pytest.mark.slow
def test_pages_with_one_click_each_are_found_in_the_sample_of_a_large_log(
    run_in_process: Run, cascade: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("posbias.io.engines.local._ROWS_THAT_STAY_IN_CACHE", 10_000)
    for words in ((), ("--cluster", "session")):
        done = run_in_process("fit", cascade, *words, "-o", "out", "--force")
        assert done.returncode == 1
        assert "No page has two clicks: the log keeps one click per page, or users stop at a click." in said(done)


def test_cells_below_a_click_without_clicks_are_evidence(run_in_process: Run, cascade: Path, tmp_path: Path) -> None:
    done = run_in_process("fit", cascade, "--model", "ubm", "-o", "out")
    test = manifest(tmp_path / "out")["estimate"]["previous_click"]

    assert "none of the 10 cells below a click has a click" in said(done)
    assert test["rejected"] is True
    assert test["contrasts"] == 10
    assert test["statistic"] is None


def test_a_position_that_is_never_clicked_is_a_position_effect(run_in_process: Run, tmp_path: Path) -> None:
    log = simulate(SimulationOptions(n_sessions=900, n_queries=40, docs_per_query=6, n_positions=2, eta=0.0)).log
    blind = pl.when(pl.col("position") == 2).then(0).otherwise("click").cast(pl.Int8)
    third = log.filter(pl.col("position") == 1).with_columns(session=pl.col("session") + 10_000, position=3)
    lower = pl.col("position").replace({1: 1, 2: 2, 3: 3}).cast(pl.Int32)
    pl.concat([log.with_columns(click=blind), third], how="vertical_relaxed").with_columns(
        position=lower
    ).write_parquet(tmp_path / "log.parquet")
    done = run_in_process("fit", "log.parquet", "-o", "out")
    table = pl.read_parquet(tmp_path / "out" / "propensities.parquet")

    assert table["reason"][1] == "no clicks"
    assert "no position effect detected" not in said(done)
    assert manifest(tmp_path / "out")["estimate"]["position_effect"]["p_value"] < 1e-6


def test_one_arm_of_a_swap_is_refused_and_nothing_is_written(run_in_process: Run, tmp_path: Path) -> None:
    log = simulate(SimulationOptions(n_sessions=6_000, n_queries=40, docs_per_query=8, n_positions=5)).log
    part = (pl.col("session") % 3 == 0).cast(pl.Int8)
    log.with_columns(arm=part).write_parquet(tmp_path / "log.parquet")
    words = ("--method", "randomized", "--randomized-where", "arm=1@1,4")
    done = run_in_process("fit", "log.parquet", *words, "-o", "out")

    assert done.returncode == 2
    assert "The rows with arm=1@1,4 (--randomized-where) were not placed at random" in said(done)
    assert not (tmp_path / "out").exists()
    assert run_in_process("collect", "log.parquet", *words[2:], "-o", "store").returncode == 0
    assert run_in_process("fit", "store", *words[:2], "-o", "out").returncode == 2


def test_rows_that_were_placed_at_random_are_said_to_stand_so(run_in_process: Run, tmp_path: Path) -> None:
    world = SimulationOptions(n_sessions=6_000, n_queries=40, docs_per_query=8, n_positions=5, randomized_share=0.3)
    simulate(world).log.write_parquet(tmp_path / "log.parquet")
    words = ("--method", "randomized", "--randomized-where", "policy=random")
    done = run_in_process("fit", "log.parquet", *words, "-o", "out")
    section = manifest(tmp_path / "out")["estimate"]["placed_at_random"]

    assert done.returncode == 0, done.stderr
    assert "the rows with policy=random stand as if placed at random (p = " in said(done)
    assert section[0]["queries"] == 40
    assert section[0]["p_value"] > 0.05


def test_verdicts_and_tests_say_on_how_many_clusters_they_rest(run_in_process: Run, tmp_path: Path) -> None:
    world = SimulationOptions(n_sessions=6_000, n_queries=40, docs_per_query=8, n_positions=4, contexts=(0.5, 1.5))
    simulate(world).log.write_parquet(tmp_path / "log.parquet")
    done = run_in_process("fit", "log.parquet", "--context", "device", "-o", "out")
    estimate = manifest(tmp_path / "out")["estimate"]

    assert ", 40 queries)" in said(done)
    for name in ("contexts_differ", "position_effect"):
        assert estimate[name]["clusters"] == estimate["clusters"] == 40


def test_contexts_that_do_not_differ_come_with_the_difference_that_may_have_been_missed(
    run_in_process: Run, tmp_path: Path
) -> None:
    world = SimulationOptions(n_sessions=6_000, n_queries=40, docs_per_query=8, n_positions=4, contexts=(0.8,) * 8)
    simulate(world).log.write_parquet(tmp_path / "log.parquet")
    done = run_in_process("fit", "log.parquet", "--context", "device", "-o", "out")
    found = np.array(manifest(tmp_path / "out")["estimate"]["contexts_found_by_four_of_five"], float).reshape(8, 4)

    assert "propensities do not differ significantly by device" in said(done)
    assert np.isnan(found[:, 0]).all()
    assert (found[:, 1:] > 1).all()
    least, most = np.argmin(found[0, 1:]) + 2, np.argmax(found[0, 1:]) + 2
    factors = f"{found[0, least - 1]:.2f} (position {least}) to {found[0, most - 1]:.2f} (position {most}) for 0, "
    assert f"which four of five such logs show, may have been missed: {factors}" in said(done)
    assert "and 2 more (`contexts_found_by_four_of_five` in manifest.json)." in said(done)


@pytest.mark.parametrize("layout", ["pointwise", "session"])
def test_the_effective_sample_size_of_a_weighted_log_uses_its_weights(
    run_in_process: Run, tmp_path: Path, layout: str
) -> None:
    """Equal weights change nothing; unequal ones make the log worth less, as many copies of a few rows do."""
    log = simulate(SimulationOptions(n_sessions=4_000, n_queries=40, docs_per_query=8, n_positions=4)).log
    rng = np.random.default_rng(0)
    weights = {"none": None, "equal": 3.0, "unequal": pl.Series(rng.choice([0.1, 10.0], log.height))}
    sizes = dict[str, float]()
    for name, weight in weights.items():
        log.with_columns(w=pl.lit(1.0) if weight is None else weight).write_parquet(tmp_path / "log.parquet")
        words = () if weight is None else ("--weight-column", "w")
        done = run_in_process("run", "log.parquet", *words, "--layout", layout, "--no-compare", "-o", name)
        assert done.returncode == 0, done.stderr
        sizes[name] = manifest(tmp_path / name)["weights"]["effective_sample_size"]

    assert sizes["equal"] == pytest.approx(sizes["none"], rel=1e-6)
    assert sizes["unequal"] == pytest.approx(sizes["none"] / 2, rel=0.1)


def test_sums_of_weights_have_no_effective_sample_size(run_in_process: Run, tmp_path: Path) -> None:
    log = simulate(SimulationOptions(n_sessions=2_000, n_queries=40, docs_per_query=8, n_positions=4)).log
    log.with_columns(w=pl.lit(2.0)).write_parquet(tmp_path / "log.parquet")
    assert run_in_process("collect", "log.parquet", "--weight-column", "w", "-o", "store").returncode == 0
    assert run_in_process("fit", "store", "-o", "fit").returncode == 0
    done = run_in_process("weight", "store", "--propensities", "fit", "-o", "weights")

    assert done.returncode == 0, done.stderr
    assert manifest(tmp_path / "weights")["weights"]["effective_sample_size"] is None
