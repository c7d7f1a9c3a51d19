"""`posbias train` and `posbias score`: a ranker from clicks, and what it says of new documents."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import lightgbm
import numpy as np
import polars as pl
import pytest
from command_results import reseal

from posbias.core.simulation.simulate import SimulationOptions, simulate

Run = Callable[..., CompletedProcess[str]]
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
def test_a_ranker_comes_with_its_scores_its_features_and_how_it_was_learnt(ranker: Path, place: Path) -> None:
    assert {path.name for path in ranker.iterdir()} == FILES
    scores = pl.read_parquet(ranker / "scores.parquet")
    pairs = pl.read_parquet(place / "log.parquet").select("query", "doc").unique()
    assert scores.select("query", "doc").sort("query", "doc").equals(pairs.sort("query", "doc"))
    np.testing.assert_allclose(scores["attractiveness"], 1 / (1 + np.exp(-scores["score"].to_numpy())), atol=1e-12)
    assert pl.read_parquet(ranker / "learning_curve.parquet")["training"].is_sorted()
    importance = pl.read_parquet(ranker / "feature_importance.parquet")
    assert set(importance["feature"]) == {"length", "kind", "fresh"}
    assert importance["gain"].is_sorted(descending=True)


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


def test_the_counts_of_contexts_add_up_by_document(run_in_process: Run, place: Path, tmp_path: Path) -> None:
    by_device = ("devices.parquet", "--context", "device")
    assert run_in_process("fit", *by_device, "-o", tmp_path / "fit", cwd=place).returncode == 0
    command = (*train(tmp_path / "fit", *by_device), "-o", tmp_path / "out")
    done = run_in_process(*command, cwd=place)
    assert done.returncode == 0, done.stderr
    scores = pl.read_parquet(tmp_path / "out" / "scores.parquet")
    assert scores.select("query", "doc").is_unique().all()
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["clicks"]["learnt"] == pl.read_parquet(place / "log.parquet")["click"].sum()


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


WRONG = {
    "no features": (("train", "log.parquet", "--propensities", "fit"), "learns from features. Name them: --features"),
    "no propensities": (("train", "log.parquet", "--features", "features.parquet"), "needs propensities"),
    "no held-out queries": (
        ("train", "log.parquet", "--features", "features.parquet", "--propensities", "fit", "--early-stopping", "5"),
        "--early-stopping needs held-out queries",
    ),
    "no such learner": (
        ("train", "log.parquet", "--features", "features.parquet", "--propensities", "fit", "--learner", "magic"),
        "--learner magic: unknown name; choose from pbm",
    ),
    "propensities without an effect": (
        (*("train", "log.parquet", "--features", "features.parquet"), "--learner", "naive", "--propensity", "fitted"),
        "--propensity fitted: has no effect here: --learner naive takes no propensities",
    ),
    "a share of negatives": (
        ("train", "log.parquet", "--features", "features.parquet", "--propensities", "fit", "--negative-share", "0"),
        "--negative-share 0: must be above 0 and at most 1",
    ),
    "negatives of a learner that knows none": (
        (
            *("train", "log.parquet", "--propensities", "fit", "--learner", "factors"),
            *("--negative-share", "0.5"),
        ),
        "--negative-share 0.5: has no effect here: it applies only to --learner pbm, naive, position-feature",
    ),
    "a margin penalty": (
        (
            *("train", "log.parquet", "--features", "features.parquet", "--propensities", "fit"),
            *("--learner", "gbrank", "--margin-penalty", "0.5"),
        ),
        "--margin-penalty 0.5: must be at least 0 and below 0.5, where tau grows without end",
    ),
    "a learning rate": (
        ("train", "log.parquet", "--features", "features.parquet", "--propensities", "fit", "--learning-rate", "2"),
        "--learning-rate 2: must be above 0 and at most 1",
    ),
    "lacking features": (
        ("train", "log.parquet", "--features", "some.parquet", "--propensities", "fit"),
        "has no features for",
    ),
    "no query to learn from": (
        ("train", "log.parquet", "--features", "features.parquet", "--propensities", "fit", "--validation", "0.9999"),
        "no query is left to learn from",
    ),
    "a fit as a model": (("score", "features.parquet", "--model", "fit"), "fit: holds no model"),
    "no model": (("score", "features.parquet", "--model", "nowhere"), "nowhere: is not there"),
    "a column too few": (("score", "log.parquet", "--model", "ranker"), "has no column 'length' and 2 more"),
    "no document": (("score", "nameless.csv", "--model", "ranker"), "no column says which document a row is about"),
    "text for a number": (("score", "text.csv", "--model", "ranker"), "'length' holds 'long', and was numbers"),
    "no row": (("score", "empty.csv", "--model", "ranker"), "there is no row to score"),
    "a model that was changed": (("score", "features.parquet", "--model", "changed"), "model.txt has"),
    "a model with a bit that was flipped": (
        ("score", "features.parquet", "--model", "flipped"),
        "model.txt: is damaged: its bytes are not those that were written",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_done_is_said_and_nothing_is_written(
    run_in_process: Run, place: Path, fit: Path, ranker: Path, tmp_path: Path, name: str
) -> None:
    words, expected = WRONG[name]
    (place / "nameless.csv").write_text("length,kind,fresh\n1,a,1\n", encoding="utf-8")
    (place / "text.csv").write_text("doc,length,kind,fresh\nx,long,a,1\n", encoding="utf-8")
    (place / "empty.csv").write_text("doc,length,kind,fresh\n", encoding="utf-8")
    changed = place / "changed"
    changed.mkdir(exist_ok=True)
    flipped = place / "flipped"
    flipped.mkdir(exist_ok=True)
    for path in ranker.iterdir():
        content = path.read_bytes()
        (changed / path.name).write_bytes(content + b"\n" if path.name == "model.txt" else content)
        bit = content.replace(b"leaf_value=0.0", b"leaf_value=0.1", 1) if path.name == "model.txt" else content
        (flipped / path.name).write_bytes(bit)
    assert fit.exists()
    done = run_in_process(*words, "-o", tmp_path / "out", cwd=place)
    assert done.returncode == UNUSABLE, done.stderr
    assert expected in " ".join(done.stderr.split())
    assert not (tmp_path / "out").exists()
