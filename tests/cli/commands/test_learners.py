"""The learners of `posbias train` on the command line: what each writes, and what it is refused."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from workshop import RunPosbias as Run

from posbias.core.learners.learners import get_learner, learner_names
from posbias.core.simulation.simulate import SimulationOptions, simulate

FROM_FEATURES = [name for name in learner_names() if get_learner(name).needs_features]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a log, features of numbers, and a fit."""
    folder = tmp_path_factory.mktemp("learners")
    log = simulate(SimulationOptions("pbm", 20_000, 60, 8, 5, seed=3)).log
    log = log.with_columns(query=pl.format("q{}", "query"), doc=pl.format("d{}", "doc"))
    log.with_columns(device=pl.col("session") % 2).write_parquet(folder / "log.parquet")
    pairs = log.select("query", "doc").unique(maintain_order=True)
    rng = np.random.default_rng(0)
    features = pairs.with_columns(
        length=pl.Series(rng.standard_normal(pairs.height)), age=pl.Series(rng.integers(0, 50, pairs.height))
    )
    features.write_parquet(folder / "features.parquet")
    features.with_columns(colour=pl.Series(rng.choice(["red", "blue"], pairs.height))).write_parquet(
        folder / "coloured.parquet"
    )
    for words in ("fit log.parquet -o fit", "collect log.parquet -o counts"):
        command = (sys.executable, "-m", "posbias.cli", *words.split())
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder


def train(name: str, *more: str, log: str = "log.parquet", features: str = "features.parquet") -> tuple[str, ...]:
    """The command, with propensities where the learner takes some."""
    theta = ("--propensities", "fit") if get_learner(name).uses_propensities else ()
    return ("train", log, "--features", features, *theta, "--learner", name, *more)


@pytest.mark.parametrize("name", FROM_FEATURES)
@pytest.mark.slow_after(1)
def test_every_learner_writes_a_model_that_scores_by_itself(
    run_in_process: Run, place: Path, tmp_path: Path, name: str
) -> None:
    done = run_in_process(*train(name, "--validation", "0.3"), "-o", tmp_path / "ranker", cwd=place)
    assert done.returncode == 0, done.stderr
    scores = pl.read_parquet(tmp_path / "ranker" / "scores.parquet")
    again = run_in_process(
        "score", "features.parquet", "--model", tmp_path / "ranker", "-o", tmp_path / "scored", cwd=place
    )
    assert again.returncode == 0, again.stderr
    joined = scores.join(pl.read_parquet(tmp_path / "scored" / "scores.parquet"), on=["query", "doc"])
    assert joined.height == scores.height > 100
    np.testing.assert_array_equal(joined["score"].to_numpy(), joined["score_right"].to_numpy())
    said = json.loads((tmp_path / "ranker" / "manifest.json").read_text(encoding="utf-8"))["learner"]
    learner = get_learner(name)
    assert (said["name"], said["reference"], said["measure"]) == (name, learner.reference, learner.measure)
    assert f"{learner.measure} " in " ".join(done.stderr.split())


@pytest.mark.parametrize("name", [name for name in FROM_FEATURES if get_learner(name).source == "counts"])
@pytest.mark.slow_after(3)
def test_statistics_give_the_same_model_as_the_log(run_in_process: Run, place: Path, tmp_path: Path, name: str) -> None:
    for number, log in enumerate(("log.parquet", "counts")):
        done = run_in_process(*train(name, log=log), "-o", tmp_path / str(number), cwd=place)
        assert done.returncode == 0, done.stderr
    one, other = (pl.read_parquet(tmp_path / str(number) / "scores.parquet") for number in range(2))
    assert one.equals(other)


@pytest.mark.parametrize("name", ["logistic", "position-feature", "lambdarank", "ipw-dcg", "dla", "gbrank"])
@pytest.mark.slow_after(1)
def test_features_on_disk_give_the_same_scores(run_in_process: Run, place: Path, tmp_path: Path, name: str) -> None:
    for folder, memory in (("at-once", "2GiB"), ("parts", "256MiB")):
        done = run_in_process(*train(name, "--memory", memory), "-o", tmp_path / folder, cwd=place)
        assert done.returncode == 0, done.stderr
    one, other = (pl.read_parquet(tmp_path / folder / "scores.parquet") for folder in ("at-once", "parts"))
    assert not one.equals(other)  # it came in several parts
    one, other = one.sort("query", "doc"), other.sort("query", "doc")
    np.testing.assert_allclose(one["score"], other["score"], rtol=0, atol=1e-6)


def test_gbrank_on_raw_rates_needs_no_fit(run_in_process: Run, place: Path, tmp_path: Path) -> None:
    words = ("train", "log.parquet", "--features", "features.parquet", "--learner", "gbrank", "--raw-rates")
    done = run_in_process(*words, "-o", tmp_path / "out", cwd=place)
    assert done.returncode == 0, done.stderr
