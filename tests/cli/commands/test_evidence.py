"""What a result says of the evidence behind it: zeros, randomised rows, clusters, causes, weights."""

import json
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import polars as pl
import pytest
from workshop import RunPosbias as Run

from posbias.core.simulation.simulate import SimulationOptions, simulate

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


def test_sums_of_weights_have_no_effective_sample_size(run_in_process: Run, tmp_path: Path) -> None:
    log = simulate(SimulationOptions(n_sessions=2_000, n_queries=40, docs_per_query=8, n_positions=4)).log
    log.with_columns(w=pl.lit(2.0)).write_parquet(tmp_path / "log.parquet")
    assert run_in_process("collect", "log.parquet", "--weight-column", "w", "-o", "store").returncode == 0
    assert run_in_process("fit", "store", "-o", "fit").returncode == 0
    done = run_in_process("weight", "store", "--propensities", "fit", "-o", "weights")

    assert done.returncode == 0, done.stderr
    assert manifest(tmp_path / "weights")["weights"]["effective_sample_size"] is None
