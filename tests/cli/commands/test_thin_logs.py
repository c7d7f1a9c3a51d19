"""Thin logs on the command line: what weights are made from, the shape `smooth`, and bins against positions."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from workshop import RunPosbias as Run

from posbias.core.simulation.simulate import SimulationOptions, simulate

RICH = SimulationOptions(n_sessions=6_000, n_queries=40, docs_per_query=8, n_positions=5, query_exponent=0.0, seed=3)
THIN = replace(RICH, n_sessions=120, n_queries=40)
STEP = replace(RICH, theta=(1.0, 0.9, 0.8, 0.3, 0.3))


@pytest.fixture
def thin(tmp_path: Path) -> Path:
    simulate(THIN).log.write_parquet(tmp_path / "thin.parquet")
    return tmp_path / "thin.parquet"


def manifest(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "manifest.json").read_text())


@pytest.mark.parametrize(("bins", "hold"), [("1,2,3,4", True), ("1,2,4", True), ("1,3", False)])
def test_bins_are_tested_against_positions(bins: str, hold: bool, run_in_process: Run, tmp_path: Path) -> None:  # noqa: FBT001
    simulate(STEP if hold else RICH).log.write_parquet(tmp_path / "log.parquet")
    if bins == "1,2,4":
        simulate(replace(STEP, theta=(1.0, 0.8, 0.8, 0.3, 0.3))).log.write_parquet(tmp_path / "log.parquet")
    done = run_in_process("fit", "log.parquet", "-o", "out", "--position-bins", bins)
    assert done.returncode == (0 if hold else 1), done.stderr
    test = manifest(tmp_path / "out")["estimate"]["bins_against_free"]
    assert test["rejected"] is not hold
    assert ("the position bins are not rejected" in done.stderr) is hold
    assert ("Propensities differ within a bin" in done.stderr) is not hold
