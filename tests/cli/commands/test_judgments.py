"""Judgments on the command line: labels, and how sure they are."""

from pathlib import Path

import polars as pl
import pytest
from command_results import reseal
from workshop import RunPosbias as Run

from posbias.core.simulation.simulate import SimulationOptions, simulate


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("judgments") / "log.parquet"
    options = SimulationOptions(n_sessions=3_000, n_queries=60, docs_per_query=8, n_positions=5, seed=2)
    simulate(options).log.write_parquet(path)
    return path


def labels(folder: Path) -> pl.DataFrame:
    return pl.read_parquet(folder / "training" / "rows" / "*.parquet").sort("query", "doc")


def test_a_fit_without_the_covariance_gives_labels_without_errors(
    run_in_process: Run, log: Path, tmp_path: Path
) -> None:
    assert run_in_process("fit", log, "-o", "fit").returncode == 0
    (tmp_path / "fit" / "theta_covariance.parquet").unlink()
    reseal(tmp_path / "fit")
    done = run_in_process("weight", log, "--propensities", "fit", "--layout", "judgments", "-o", "weighted")

    assert done.returncode == 0, done.stderr
    assert labels(tmp_path / "weighted")["label_std_dev"].is_null().all()
