"""Learners without features on the command line."""

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from command_results import reseal
from workshop import RunPosbias as Run

from posbias.core.simulation.simulate import SimulationOptions, simulate


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("factors")
    simulate(SimulationOptions("pbm", 4_000, 30, 8, 5, seed=3, randomized_share=0.2)).log.write_parquet(
        folder / "log.parquet"
    )
    command = (sys.executable, "-m", "posbias.cli", "fit", "log.parquet", "-o", "fit")
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder


def train(run: Run, place: Path, name: str, into: Path) -> None:
    theta = () if name in {"mf", "cause"} else ("--propensities", "fit")
    marked = ("--randomized-where", "policy=random") if name == "cause" else ()
    done = run("train", "log.parquet", *theta, *marked, "--learner", name, "--steps", "20", "-o", into, cwd=place)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["factors", "mf", "propensity-mf", "cause"])
@pytest.mark.slow
def test_factors_score_the_same_again_and_by_their_script(
    run_in_process: Run, place: Path, tmp_path: Path, name: str
) -> None:
    train(run_in_process, place, name, tmp_path / "model")
    written = pl.read_parquet(tmp_path / "model" / "scores.parquet")
    assert (written["attractiveness"].null_count() == 0) == (name == "factors")
    written.select("query", "doc").write_csv(tmp_path / "rows.csv")
    done = run_in_process("score", tmp_path / "rows.csv", "--model", tmp_path / "model", "-o", tmp_path / "scored")
    assert done.returncode == 0, done.stderr
    again = pl.read_parquet(tmp_path / "scored" / "scores.parquet")
    np.testing.assert_array_equal(again["score"], written["score"])
    script = subprocess.run(
        (sys.executable, tmp_path / "model" / "load.py", tmp_path / "rows.csv"),
        check=True,
        capture_output=True,
        text=True,
    )
    np.testing.assert_allclose(pl.read_csv(io.StringIO(script.stdout))["score"], written["score"])


def test_unseen_ids_are_scored_by_what_is_known(run_in_process: Run, place: Path, tmp_path: Path) -> None:
    train(run_in_process, place, "mf", tmp_path / "model")
    rows = pl.DataFrame({"query": ["0", "nobody", "nobody"], "doc": ["nothing", "0", "nothing"]})
    rows.write_parquet(tmp_path / "rows.parquet")
    done = run_in_process("score", tmp_path / "rows.parquet", "--model", tmp_path / "model", "-o", tmp_path / "scored")
    assert done.returncode == 0, done.stderr
    found = pl.read_parquet(tmp_path / "scored" / "scores.parquet")["score"].to_numpy()
    with np.load(tmp_path / "model" / "model.npz") as arrays:
        mean, of_query, of_item = (arrays[name] for name in ("mean", "query_bias", "item_bias"))
    np.testing.assert_allclose(found, [mean + of_query[0], mean + of_item[0], mean])


def test_a_model_of_factors_wants_the_query_and_its_own_ids(run_in_process: Run, place: Path, tmp_path: Path) -> None:
    train(run_in_process, place, "mf", tmp_path / "model")
    rows = tmp_path / "rows.csv"
    rows.write_text("doc\n1\n")
    words = ("score", rows, "--model", tmp_path / "model", "-o", tmp_path / "scored")
    done = run_in_process(*words)
    assert (done.returncode, "--query" in done.stderr) == (2, True)
    pl.DataFrame({"query": [1]}).write_parquet(tmp_path / "model" / "queries.parquet")
    done = run_in_process(*words)
    assert (done.returncode, "queries.parquet has" in done.stderr) == (2, True)
    reseal(tmp_path / "model")
    done = run_in_process(*words)
    assert (done.returncode, "factors of other queries" in done.stderr) == (2, True)
    assert not (tmp_path / "scored").exists()


def test_what_was_placed_at_random_decides_what_causal_embeddings_learn(
    run_in_process: Run, place: Path, tmp_path: Path
) -> None:
    for value in ("random", "ranker"):
        words = ("--learner", "cause", "--steps", "20", "--randomized-where", f"policy={value}")
        done = run_in_process("train", "log.parquet", *words, "-o", tmp_path / value, cwd=place)
        assert done.returncode == 0, done.stderr
    one, other = (pl.read_parquet(tmp_path / value / "scores.parquet")["score"] for value in ("random", "ranker"))
    assert not one.equals(other)
