"""Rankers that learn from clicks, on the command line: periods, versions, and the stores that keep them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from workshop import RunPosbias as Run

from posbias.core.simulation.simulate import SimulationOptions, simulate
from posbias.io.results.manifest import checksum_of_content


def estimate_in(folder: Path) -> dict[str, Any]:
    """What the manifest says about the estimate."""
    return json.loads((folder / "manifest.json").read_text())["estimate"]


def propensities(folder: Path) -> pl.DataFrame:
    """The table of cells."""
    return pl.read_parquet(folder / "propensities.parquet")


@pytest.fixture(scope="module")
def learning(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of a ranker that takes note of clicks four times a day, and of its version."""
    options = SimulationOptions(
        n_sessions=12_000, n_queries=100, n_positions=4, days=10, feedback_strength=4.0, updates_per_day=4
    )
    path = tmp_path_factory.mktemp("learning") / "log.parquet"
    log = simulate(replace(options, attractiveness_scale=0.5)).log
    version = pl.col("timestamp").dt.truncate("6h").dt.strftime("%m%d-%H")
    log.with_columns(version=version).write_parquet(path)
    return path


def test_the_version_of_the_ranker_answers_a_ranker_that_learns_within_the_day(
    run_in_process: Run, learning: Path, tmp_path: Path
) -> None:
    words = ("--timestamp", "timestamp", "--period-column", "version")
    done = run_in_process("fit", learning, *words, "-o", "out")

    assert done.returncode == 0, done.stderr
    assert estimate_in(tmp_path / "out")["period"]["survives"] == "none"
    assert propensities(tmp_path / "out")["propensity"].to_list() == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4], rel=0.15)
    assert run_in_process("collect", learning, *words, "-o", "store").returncode == 0
    assert run_in_process("fit", "store", "--period-column", "version", "-o", "again").returncode == 0
    assert propensities(tmp_path / "again").equals(propensities(tmp_path / "out"))
    refused = run_in_process("fit", "store", "--period-column", "other", "-o", "no")
    assert refused.returncode == 2
    assert "--period-column other" in refused.stderr


@pytest.mark.slow
def test_a_store_of_quarters_of_an_hour_says_what_the_log_says(
    run_in_process: Run, learning: Path, tmp_path: Path
) -> None:
    assert run_in_process("collect", learning, "--timestamp", "timestamp", "-o", "store").returncode == 0
    assert pl.read_parquet(tmp_path / "store" / "*.parquet").schema["period"] == pl.Datetime("us")
    for choice in ("auto", "none", "week", "day", "hour"):
        kept = run_in_process("fit", "store", "--period", choice, "-o", "kept", "--force")
        whole = run_in_process(
            "fit", learning, "--timestamp", "timestamp", "--period", choice, "-o", "whole", "--force"
        )
        assert kept.returncode == whole.returncode == (1 if choice == "auto" else 0), kept.stderr
        assert propensities(tmp_path / "kept").equals(propensities(tmp_path / "whole"))


def test_statistics_of_the_version_before_are_read_and_merged(
    run_in_process: Run, learning: Path, tmp_path: Path
) -> None:
    log = pl.read_parquet(learning)
    half = pl.col("timestamp") < log["timestamp"].median()
    for name, rows in (("early", half), ("late", ~half)):
        log.filter(rows).write_parquet(tmp_path / f"{name}.parquet")
        words = ("--timestamp", "timestamp", "--period", "day", "-o", name)
        assert run_in_process("collect", f"{name}.parquet", *words).returncode == 0
    assert run_in_process("collect", "early", "late", "-o", "now").returncode == 0
    manifest = tmp_path / "early" / "manifest.json"
    before = json.loads(manifest.read_text())
    before |= {"version": 4, "counted": before["counted"] | {"period": True}}
    manifest.write_text(json.dumps(before | {"checksum": checksum_of_content(before)}))

    assert run_in_process("collect", "early", "late", "-o", "both").returncode == 0
    for store in ("now", "both"):
        assert run_in_process("fit", store, "--period", "day", "-o", f"{store} fitted").returncode == 0
    assert propensities(tmp_path / "now fitted").equals(propensities(tmp_path / "both fitted"))
