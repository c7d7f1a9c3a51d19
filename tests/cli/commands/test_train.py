"""`posbias train` and `posbias score`: a ranker from clicks, and what it says of new documents."""

import json
import subprocess
import sys
from pathlib import Path

import lightgbm
import numpy as np
import polars as pl
import pytest
from command_results import reseal
from workshop import RunPosbias as Run

from posbias.core.simulation.simulate import SimulationOptions, simulate

UNUSABLE, DOUBTFUL = 2, 1
FILES = {
    *("model.txt", "features.json", "load.py", "manifest.json"),
    *("scores.parquet", "learning_curve.parquet", "feature_importance.parquet"),
}
FEW = ("--trees", "20")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a log, features that tell attractiveness, and a table of new documents."""
    folder = tmp_path_factory.mktemp("train")
    drawn = simulate(SimulationOptions("pbm", 20_000, 60, 8, 5, seed=3))
    log = drawn.log.with_columns(query=pl.format("q{}", "query"), doc=pl.format("d{}", "doc"))
    log.write_parquet(folder / "log.parquet")
    log.with_columns(device=pl.col("session") % 2).write_parquet(folder / "devices.parquet")
    pairs = log.select("query", "doc").unique(maintain_order=True)
    rng = np.random.default_rng(0)
    features = pairs.with_columns(
        length=pl.Series(rng.standard_normal(pairs.height)),
        kind=pl.Series(rng.choice(["a", "b", "c"], pairs.height)),
        fresh=pl.Series(rng.random(pairs.height) < 0.5),
    )
    features.write_parquet(folder / "features.parquet")
    features.head(100).write_parquet(folder / "some.parquet")
    features.drop("query").unique("doc").write_csv(folder / "new.csv")
    return folder


@pytest.fixture(scope="module")
def fit(place: Path) -> Path:
    """Return the directory of a fit."""
    command = (sys.executable, "-m", "posbias.cli", "fit", "log.parquet", "-o", "fit")
    subprocess.run(command, cwd=place, check=True, capture_output=True)
    return place / "fit"


@pytest.fixture
def ranker(run_in_process: Run, place: Path, fit: Path) -> Path:
    """Return the directory of a trained ranker."""
    out = place / "ranker"
    if not out.exists():
        done = run_in_process(*train(fit), "-o", "ranker", cwd=place)
        assert done.returncode == 0, done.stderr
    return out


def train(fit: Path, log: str = "log.parquet", *more: str) -> tuple[str, ...]:
    """The command."""
    return ("train", log, "--features", "features.parquet", "--propensities", str(fit), *FEW, *more)


@pytest.mark.slow
def test_scoring_the_same_documents_gives_the_same_scores_with_posbias_with_the_script_and_with_lightgbm(
    run_in_process: Run, ranker: Path, place: Path, tmp_path: Path
) -> None:
    ours = pl.read_parquet(ranker / "scores.parquet").sort("query", "doc")
    done = run_in_process("score", "features.parquet", "--model", ranker, "-o", tmp_path / "scored", cwd=place)
    assert done.returncode == 0, done.stderr
    scored = pl.read_parquet(tmp_path / "scored" / "scores.parquet").sort("query", "doc")
    assert scored.equals(ours)
    script = (sys.executable, str(ranker / "load.py"), "features.parquet")
    printed = subprocess.run(script, cwd=place, check=True, capture_output=True, text=True).stdout
    by_script = pl.read_csv(printed.encode()).sort("query", "doc")
    np.testing.assert_allclose(by_script["score"], ours["score"], atol=1e-12)
    features = pl.read_parquet(place / "features.parquet").sort("query", "doc")
    kinds = json.loads((ranker / "features.json").read_text(encoding="utf-8"))[1]["categories"]
    rows = np.column_stack(
        [features["length"], features["kind"].replace_strict(kinds, range(len(kinds))), features["fresh"]]
    )
    predicted = np.asarray(lightgbm.Booster(model_file=str(ranker / "model.txt")).predict(rows.astype(float)))
    np.testing.assert_allclose(predicted, ours["attractiveness"], atol=1e-12)


@pytest.mark.slow
def test_statistics_give_the_same_bytes_as_the_log_and_a_log_that_does_not_fit_into_memory_the_same_scores(
    run_in_process: Run, place: Path, fit: Path, ranker: Path, tmp_path: Path
) -> None:
    run_in_process("collect", "log.parquet", "-o", tmp_path / "statistics", cwd=place)
    of_statistics = run_in_process(*train(fit, str(tmp_path / "statistics")), "-o", tmp_path / "again", cwd=place)
    assert of_statistics.returncode == 0, of_statistics.stderr
    small = run_in_process(*train(fit), "--memory", "256MiB", "-o", tmp_path / "small", cwd=place)
    assert small.returncode == 0, small.stderr
    ours = pl.read_parquet(tmp_path / "small" / "scores.parquet")
    expected = pl.read_parquet(ranker / "scores.parquet")
    assert not ours.equals(expected)  # it came in several parts
    np.testing.assert_allclose(ours.sort("query", "doc")["score"], expected.sort("query", "doc")["score"], atol=1e-9)
    for file in FILES - {"manifest.json"}:
        assert (tmp_path / "again" / file).read_bytes() == (ranker / file).read_bytes()


def test_scoring_needs_no_lightgbm(
    run_in_process: Run, ranker: Path, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    done = run_in_process("score", "features.parquet", "--model", ranker, "-o", tmp_path / "scored", cwd=place)
    assert done.returncode == 0, done.stderr


def test_documents_that_the_log_has_never_shown_are_scored_by_their_features(
    run_in_process: Run, ranker: Path, place: Path, tmp_path: Path
) -> None:
    done = run_in_process("score", "new.csv", "--model", ranker, "-o", tmp_path / "scored", cwd=place)
    assert done.returncode == 0, done.stderr
    scored = pl.read_parquet(tmp_path / "scored" / "scores.parquet")
    assert scored.columns == ["doc", "score", "attractiveness"]
    assert scored["doc"].to_list() == pl.read_csv(place / "new.csv")["doc"].to_list()
    rows = pl.DataFrame({"doc": ["x", "y"], "length": [None, 0.5], "kind": ["never seen", None], "fresh": ["1", ""]})
    rows.write_csv(tmp_path / "odd.csv")
    done = run_in_process("score", tmp_path / "odd.csv", "--model", ranker, "-o", tmp_path / "odd", cwd=place)
    assert done.returncode == 0, done.stderr
    assert pl.read_parquet(tmp_path / "odd" / "scores.parquet")["score"].is_finite().all()


@pytest.mark.parametrize(("missing", "documents"), [("drop", 100), ("nan", None)])
def test_documents_without_features_are_dropped_or_learnt_from_as_they_are(
    run_in_process: Run, place: Path, fit: Path, tmp_path: Path, missing: str, documents: int | None
) -> None:
    command = ("train", "log.parquet", "--features", "some.parquet", "--propensities", fit, "--missing", missing, *FEW)
    done = run_in_process(*command, "-o", tmp_path / "out", cwd=place)
    assert done.returncode == 0, done.stderr
    log = pl.read_parquet(place / "log.parquet")
    kept = log.select("query", "doc").unique()
    if documents is not None:
        kept = pl.read_parquet(place / "some.parquet", columns=["query", "doc"])
        assert kept.height == documents
    scores = pl.read_parquet(tmp_path / "out" / "scores.parquet")
    assert scores.select("query", "doc").sort("query", "doc").equals(kept.sort("query", "doc"))
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["clicks"]["learnt"] == log.join(kept, on=["query", "doc"], how="semi")["click"].sum()


def test_clicks_in_cells_without_a_propensity_are_left_out_and_said(
    run_in_process: Run, place: Path, tmp_path: Path
) -> None:
    run_in_process("fit", "log.parquet", "--max-position", "3", "-o", tmp_path / "fit", cwd=place)
    table = pl.read_parquet(tmp_path / "fit" / "propensities.parquet")
    unknown = pl.col("position") == 2
    columns = ["propensity", "weight_propensity", "examination", "std_error", "smooth_propensity", "smooth_std_error"]
    changed = table.with_columns(pl.when(~unknown).then(pl.col(name)).alias(name) for name in columns)
    changed.with_columns(identified=pl.col("identified") & ~unknown).write_parquet(
        tmp_path / "fit" / "propensities.parquet"
    )
    reseal(tmp_path / "fit")
    done = run_in_process(*train(tmp_path / "fit"), "-o", tmp_path / "out", cwd=place)
    assert done.returncode == DOUBTFUL, done.stderr
    assert "lie in cells without a propensity" in " ".join(done.stderr.split())
