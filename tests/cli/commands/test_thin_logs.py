"""Thin logs on the command line: what weights are made from, the shape `smooth`, and bins against positions."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
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


def table(folder: Path) -> pl.DataFrame:
    return pl.read_parquet(folder / "propensities.parquet")


def test_weights_of_a_thin_log_come_from_the_smooth_curve_and_the_summary_and_the_manifest_say_so(
    run_in_process: Run, thin: Path, tmp_path: Path
) -> None:
    done = run_in_process("run", thin, "-o", "out", "--layout", "session")
    assert done.returncode == 0, done.stderr
    said, fitted = manifest(tmp_path / "out"), table(tmp_path / "out")
    uncertain = fitted.filter(pl.col("std_error") > 0.25)["position"].to_list()
    assert uncertain
    assert said["weights_from"] == {"propensity": "smooth", "largest_std_error": 0.25, "smooth_at": uncertain}
    assert f"at {len(uncertain)} of 5 positions the smooth curve is used" in done.stderr
    rows = pl.read_parquet(tmp_path / "out" / "training" / "rows" / "part-*.parquet")
    weighs = rows.filter(pl.col("click") == 1).select("position", pl.col("weight")).unique().sort("position")
    clicked = fitted.filter(pl.col("position").is_in(weighs["position"].implode()))
    assert weighs["weight"].to_list() == pytest.approx((1 / clicked["weight_propensity"]).to_list(), rel=1e-12)
    by_curve = fitted.filter(pl.col("position").is_in(uncertain))
    assert by_curve["weight_propensity"].equals(by_curve["smooth_propensity"], check_names=False)


def test_a_fit_without_the_columns_of_a_smooth_curve_is_weighed_as_it_was_fitted(
    run_in_process: Run, thin: Path, tmp_path: Path
) -> None:
    assert run_in_process("fit", thin, "-o", "fit", "--model", "ubm").returncode in {0, 1}
    done = run_in_process("weight", thin, "--propensities", "fit", "-o", "out")
    assert done.returncode in {0, 1}, done.stderr
    assert manifest(tmp_path / "out")["weights_from"]["smooth_at"] == []


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
