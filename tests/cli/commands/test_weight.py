"""`posbias weight`: judgments, replicates of weights, and what is left out."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from command_results import Output, reseal
from workshop import RunPosbias as Run

from posbias.core.simulation.simulate import SimulationOptions, simulate

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


@pytest.mark.slow_after(2)
@pytest.mark.parametrize("layout", ["pointwise", "clicked-group", "session", "pairs"])
def test_replicates_scatter_around_the_weight_as_the_errors_of_theta_say(
    run_in_process: Run, place: Path, tmp_path: Path, layout: str
) -> None:
    out = tmp_path / "out"
    run_in_process(
        "run", place / "log.parquet", "--layout", layout, "--layout-options", "replicates=40", "-o", out, code=0
    )
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
@pytest.mark.slow
def test_trainers_files_are_the_same_and_replicates_stand_in_the_rows_beside(
    run_in_process: Run, place: Path, tmp_path: Path, form: str
) -> None:
    shared = ("run", place / "log.parquet", "--features", place / "features.parquet", "--format", form)
    for name, more in (("plain", ()), ("more", ("--layout-options", "replicates=3"))):
        run_in_process(*shared, "--layout", "clicked-group", *more, "-o", tmp_path / name, code=0)
    for path in (tmp_path / "plain" / "training").iterdir():
        if path.is_file():
            assert path.read_bytes() == (tmp_path / "more" / "training" / path.name).read_bytes(), path.name
    assert set(NAMES[:3]) <= set(read(tmp_path / "more").columns)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("judgments") / "log.parquet"
    options = SimulationOptions(n_sessions=3_000, n_queries=60, docs_per_query=8, n_positions=5, seed=2)
    simulate(options).log.write_parquet(path)
    return path


def labels(folder: Path) -> pl.DataFrame:
    return pl.read_parquet(folder / "training" / "rows" / "*.parquet").sort("query", "doc")


@pytest.mark.slow
def test_a_fit_without_the_covariance_gives_labels_without_errors(
    run_in_process: Run, log: Path, tmp_path: Path
) -> None:
    run_in_process("fit", log, "--no-compare", "-o", "fit", code=0)
    (tmp_path / "fit" / "theta_covariance.parquet").unlink()
    reseal(tmp_path / "fit")
    run_in_process("weight", log, "--propensities", "fit", "--layout", "judgments", "-o", "weighted", code=0)

    assert labels(tmp_path / "weighted")["label_std_dev"].is_null().all()


ELSEWHERE = 3  # documents that are shown only where no position has a propensity


@pytest.fixture(scope="module")
def partly() -> pl.DataFrame:
    """Return a log on two devices, with documents that are shown nowhere else at a position that nothing links."""
    partly = simulate(SimulationOptions("pbm", 600, 10, 5, 4, contexts=(1.0, 0.5), seed=3)).log
    alone = partly.filter(pl.col("position") == 1).head(ELSEWHERE)
    number = pl.int_range(100, 100 + ELSEWHERE, dtype=pl.Int32)
    moved = alone.with_columns(doc=number, position=pl.lit(9, pl.Int32), click=pl.lit(0, pl.Int8))
    return pl.concat([partly, moved])


@pytest.mark.parametrize("words", ["", "--context device", "--validation 0.3", "--layout-options rate=coec"])
def test_documents_without_a_judgment_are_counted_and_said(
    run_in_process: Run, tmp_path: Path, partly: pl.DataFrame, words: str
) -> None:
    partly.write_parquet(tmp_path / "log.parquet")

    done = run_in_process(
        "run", "log.parquet", "--layout", "judgments", *words.split(), "--no-compare", "-o", "out", code=(0, 1)
    )

    assert f"! {ELSEWHERE} documents have no judgment and are left out" in done.stderr
    assert Output(tmp_path / "out").manifest["documents_left_out"] == ELSEWHERE
    files = [path for split in ("training", "validation") for path in (tmp_path / "out" / split).rglob("*.parquet")]
    rows = pl.concat([pl.read_parquet(path) for path in files])
    assert rows.height == partly.select("query", "doc").n_unique() - ELSEWHERE
    assert rows["label"].is_finite().all()
