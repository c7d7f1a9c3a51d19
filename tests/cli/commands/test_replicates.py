"""`--replicates`: training files with weights that vary with the errors of the propensities."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from workshop import RunPosbias as Run

from posbias.core.simulation.simulate import SimulationOptions, simulate

UNUSABLE = 2
NAMES = [f"replicate_weight_{number}" for number in range(1, 41)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a log, and features."""
    folder = tmp_path_factory.mktemp("replicates")
    log = simulate(SimulationOptions("pbm", 3_000, 40, 6, 4, seed=5)).log
    log.write_parquet(folder / "log.parquet")
    pairs = log.select("query", "doc").unique(maintain_order=True)
    pairs.with_row_index("length").write_parquet(folder / "features.parquet")
    pairs.with_row_index("replicate_weight_3").write_parquet(folder / "taken.parquet")
    return folder


def read(folder: Path) -> pl.DataFrame:
    """Read the rows of a training set."""
    return pl.read_parquet(folder / "training" / "rows")


@pytest.mark.parametrize("layout", ["pointwise", "clicked-group", "session", "pairs"])
def test_replicates_scatter_around_the_weight_as_the_errors_of_theta_say(
    run_in_process: Run, place: Path, tmp_path: Path, layout: str
) -> None:
    out = tmp_path / "out"
    result = run_in_process("run", place / "log.parquet", "--layout", layout, "--replicates", "40", "-o", out)
    assert result.returncode == 0, result.stderr
    rows, theta = read(out), pl.read_parquet(out / "propensities.parquet")
    if layout == "session":
        clicked = rows.filter(pl.col("click") == 1, pl.col("position") == 3)
        scatter = np.log(clicked.select(NAMES).head(1).to_numpy() * clicked["propensity"][0])
        error = theta.filter(pl.col("position") == 3)["std_error"].item()
        assert 0.7 * error < scatter.std() < 1.5 * error
        first = rows.filter(pl.col("click") == 1, pl.col("position") == 1)
        assert (first.select(NAMES).to_numpy() == 1).all()
    totals = rows.select(pl.col("weight", *NAMES).sum()).to_numpy()[0]
    assert np.ptp(totals[1:]) > 0
    assert abs(np.log(totals[1:] / totals[0]).mean()) < 0.1


@pytest.mark.parametrize("form", ["lightgbm", "xgboost", "catboost"])
@pytest.mark.slow_after(1)
def test_trainers_files_are_the_same_and_replicates_stand_in_the_rows_beside(
    run_in_process: Run, place: Path, tmp_path: Path, form: str
) -> None:
    shared = ("run", place / "log.parquet", "--features", place / "features.parquet", "--format", form)
    for name, more in (("plain", ()), ("more", ("--replicates", "3"))):
        result = run_in_process(*shared, "--layout", "clicked-group", *more, "-o", tmp_path / name)
        assert result.returncode == 0, result.stderr
    for path in (tmp_path / "plain" / "training").iterdir():
        if path.is_file():
            assert path.read_bytes() == (tmp_path / "more" / "training" / path.name).read_bytes(), path.name
    assert set(NAMES[:3]) <= set(read(tmp_path / "more").columns)


def test_a_feature_cannot_be_called_like_a_replicate(run_in_process: Run, place: Path, tmp_path: Path) -> None:
    options = ("--features", place / "taken.parquet", "--replicates", "3")
    result = run_in_process("run", place / "log.parquet", *options, "-o", tmp_path / "out")
    assert result.returncode == UNUSABLE
    assert "'replicate_weight_3' has a name that is reserved" in result.stderr
