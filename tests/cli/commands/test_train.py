"""`posbias train` and `posbias score`: what each learner writes, and what it says of new documents."""

import io
import json
import re
import sys
from contextlib import chdir
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from command_results import contents, invoke, manifest_of, reseal
from patience import ended
from workshop import RunPosbias as Run

import posbias
from posbias.core.choices import LEARNERS
from posbias.core.learners.learning import get_learner
from posbias.core.simulation.simulate import SimulationOptions, simulate

UNUSABLE, DOUBTFUL = 2, 1
FEW = ("--learner-options", "trees=20")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a log, its fit and counts, features that tell attractiveness, and new documents."""
    folder = tmp_path_factory.mktemp("train")
    log = simulate(SimulationOptions("pbm", 20_000, 60, 8, 5, seed=3)).log
    log = log.with_columns(query=pl.format("q{}", "query"), doc=pl.format("d{}", "doc"))
    log.write_parquet(folder / "log.parquet")
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
    ages = pl.Series(rng.integers(0, 50, pairs.height))
    features.select("query", "doc", "length", age=ages).write_parquet(folder / "numbers.parquet")
    run_in(folder, "fit log.parquet -o fit", "collect log.parquet -o counts")
    return folder


def run_in(folder: Path, *commands: str) -> None:
    """Run commands that must succeed."""
    for words in commands:
        with chdir(folder):
            invoke(*words.split())


@pytest.fixture
def ranker(run_in_process: Run, place: Path) -> Path:
    """Return the directory of a trained ranker."""
    out = place / "ranker"
    if not out.exists():
        run_in_process(*train("fit"), "-o", "ranker", cwd=place, code=0)
    return out


def train(fit: str | Path, log: str = "log.parquet", *more: str) -> tuple[str, ...]:
    """The command."""
    words = ("--features", "features.parquet", "--propensities", str(fit), "--learner", "pbm")
    return ("train", log, *words, *FEW, *more)


@pytest.mark.slow
def test_scoring_the_same_documents_gives_the_same_scores_with_posbias_with_the_script_and_with_lightgbm(
    run_in_process: Run, ranker: Path, place: Path, tmp_path: Path
) -> None:
    ours = pl.read_parquet(ranker / "scores.parquet").sort("query", "doc")
    run_in_process("score", "features.parquet", "--model", ranker, "-o", tmp_path / "scored", cwd=place, code=0)
    scored = pl.read_parquet(tmp_path / "scored" / "scores.parquet").sort("query", "doc")
    assert scored.equals(ours)
    script = (sys.executable, str(ranker / "load.py"), "features.parquet")
    printed = ended(script, cwd=place, check=True).stdout
    by_script = pl.read_csv(printed.encode()).sort("query", "doc")
    np.testing.assert_allclose(by_script["score"], ours["score"], atol=1e-12)
    lightgbm: Any = import_module("lightgbm")  # its types are incomplete
    features = pl.read_parquet(place / "features.parquet").sort("query", "doc")
    kinds = json.loads((ranker / "features.json").read_text(encoding="utf-8"))[1]["categories"]
    rows = np.column_stack(
        [features["length"], features["kind"].replace_strict(kinds, range(len(kinds))), features["fresh"]]
    )
    predicted = np.asarray(lightgbm.Booster(model_file=str(ranker / "model.txt")).predict(rows.astype(float)))
    np.testing.assert_allclose(predicted, ours["attractiveness"], atol=1e-12)


@pytest.mark.slow
def test_scoring_by_trees_needs_lightgbm_and_says_how_to_install_it(
    run_in_process: Run, place: Path, ranker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    done = run_in_process(
        "score", "features.parquet", "--model", ranker, "-o", tmp_path / "out", cwd=place, code=UNUSABLE
    )
    assert "a ranker of trees needs lightgbm, which is not installed" in done.stderr
    assert "pip install lightgbm" in done.stderr


@pytest.mark.slow
def test_documents_that_the_log_has_never_shown_are_scored_by_their_features(
    run_in_process: Run, ranker: Path, place: Path, tmp_path: Path
) -> None:
    run_in_process("score", "new.csv", "--model", ranker, "-o", tmp_path / "scored", cwd=place, code=0)
    scored = pl.read_parquet(tmp_path / "scored" / "scores.parquet")
    assert scored.columns == ["doc", "score", "attractiveness"]
    assert scored["doc"].to_list() == pl.read_csv(place / "new.csv")["doc"].to_list()
    rows = pl.DataFrame({"doc": ["x", "y"], "length": [None, 0.5], "kind": ["never seen", None], "fresh": ["1", ""]})
    rows.write_csv(tmp_path / "odd.csv")
    run_in_process("score", tmp_path / "odd.csv", "--model", ranker, "-o", tmp_path / "odd", cwd=place, code=0)
    assert pl.read_parquet(tmp_path / "odd" / "scores.parquet")["score"].is_finite().all()


@pytest.mark.slow
@pytest.mark.parametrize(("missing", "documents"), [("drop", 100), ("nan", None)])
def test_documents_without_features_are_dropped_or_learnt_from_as_they_are(
    run_in_process: Run, place: Path, tmp_path: Path, missing: str, documents: int | None
) -> None:
    words = ("--features", "some.parquet", "--propensities", "fit", "--learner", "pbm", "--missing", missing, *FEW)
    run_in_process("train", "log.parquet", *words, "-o", tmp_path / "out", cwd=place, code=0)
    log = pl.read_parquet(place / "log.parquet")
    kept = log.select("query", "doc").unique()
    if documents is not None:
        kept = pl.read_parquet(place / "some.parquet", columns=["query", "doc"])
        assert kept.height == documents
    scores = pl.read_parquet(tmp_path / "out" / "scores.parquet")
    assert scores.select("query", "doc").sort("query", "doc").equals(kept.sort("query", "doc"))
    manifest = manifest_of(tmp_path / "out")
    assert manifest["clicks"]["learnt"] == log.join(kept, on=["query", "doc"], how="semi")["click"].sum()


@pytest.mark.slow
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
    done = run_in_process(*train(tmp_path / "fit"), "-o", tmp_path / "out", cwd=place, code=DOUBTFUL)
    assert "are at positions without a propensity" in " ".join(done.stderr.split())


FROM_FEATURES = [name for name in LEARNERS if get_learner(name).needs_features]


def learn(name: str, *more: str, log: str = "log.parquet", features: str = "numbers.parquet") -> tuple[str, ...]:
    """The command, with propensities where the learner takes some."""
    theta = ("--propensities", "fit") if get_learner(name).uses_propensities else ()
    limit = (
        ("--learner-options", "never_worse=.99") if name == "auto" else ()
    )  # features that say nothing lose to any order
    return ("train", log, "--features", features, *theta, "--learner", name, *limit, *more)


@pytest.mark.parametrize("name", FROM_FEATURES)
@pytest.mark.slow
def test_every_learner_writes_a_model_that_scores_by_itself(
    run_in_process: Run, place: Path, tmp_path: Path, name: str
) -> None:
    done = run_in_process(*learn(name, "--validation", "0.3"), "-o", tmp_path / "ranker", cwd=place, code=0)
    scores = pl.read_parquet(tmp_path / "ranker" / "scores.parquet")
    run_in_process(
        "score", "numbers.parquet", "--model", tmp_path / "ranker", "-o", tmp_path / "scored", cwd=place, code=0
    )
    joined = scores.join(pl.read_parquet(tmp_path / "scored" / "scores.parquet"), on=["query", "doc"])
    assert joined.height == scores.height > 100
    np.testing.assert_array_equal(joined["score"].to_numpy(), joined["score_right"].to_numpy())
    said = manifest_of(tmp_path / "ranker")["learner"]
    learner = get_learner(name)
    assert (said["name"], said["reference"], said["measure"]) == (name, learner.reference, learner.measure)
    assert f"{learner.measure} " in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    "name", sorted((name for name in FROM_FEATURES if get_learner(name).source == "counts"), key="auto".__eq__)
)
@pytest.mark.slow
def test_statistics_give_the_same_bytes_as_the_log(run_in_process: Run, place: Path, tmp_path: Path, name: str) -> None:
    for log in ("log.parquet", "counts"):
        run_in_process(*learn(name, log=log), "-o", tmp_path / log, cwd=place, code=0)
    of_log, of_counts = ({**contents(tmp_path / log), "manifest.json": b""} for log in ("log.parquet", "counts"))
    assert of_counts == of_log


@pytest.mark.parametrize("name", ["pbm", "logistic", "position-feature", "lambdarank", "ipw-dcg", "dla", "gbrank"])
@pytest.mark.slow
def test_features_on_disk_give_the_same_scores(run_in_process: Run, place: Path, tmp_path: Path, name: str) -> None:
    for folder, memory in (("at-once", "2GiB"), ("parts", "256MiB")):
        run_in_process(*learn(name, "--memory", memory), "-o", tmp_path / folder, cwd=place, code=0)
    one, other = (pl.read_parquet(tmp_path / folder / "scores.parquet") for folder in ("at-once", "parts"))
    assert not one.equals(other)  # it came in several parts
    one, other = one.sort("query", "doc"), other.sort("query", "doc")
    np.testing.assert_allclose(one["score"], other["score"], rtol=0, atol=1e-6)


@pytest.mark.slow
def test_a_feature_that_is_made_of_the_same_clicks_is_named_and_one_of_other_clicks_is_not(
    run_in_process: Run, place: Path, tmp_path: Path
) -> None:
    log = pl.read_parquet(place / "log.parquet")
    rates = log.group_by("query", "doc").agg(ctr_30d=pl.col("click").mean())
    later = simulate(SimulationOptions("pbm", 20_000, 60, 8, 5, seed=3)).attractiveness
    known = later.select(pl.format("q{}", "query"), pl.format("d{}", "doc"), truth="attractiveness")
    known.join(rates, on=("query", "doc")).write_parquet(tmp_path / "both.parquet")
    words = learn("pbm", *FEW, features=str(tmp_path / "both.parquet"))
    done = run_in_process(*words, "-o", tmp_path / "out", cwd=place, code=DOUBTFUL)
    said = " ".join(done.stderr.split())
    assert "Feature 'ctr_30d' was made of the clicks of this log: it follows up to" in said
    assert "Make it of earlier clicks only, or leave it out." in said
    pl.read_parquet(tmp_path / "both.parquet").drop("ctr_30d").write_parquet(tmp_path / "known.parquet")
    words = learn("pbm", *FEW, features=str(tmp_path / "known.parquet"))
    run_in_process(*words, "-o", tmp_path / "without", cwd=place, code=0)


@pytest.mark.slow
def test_the_default_says_what_it_took_and_that_its_ranker_should_not_replace_a_better_order(
    run_in_process: Run, place: Path, tmp_path: Path
) -> None:
    words = ("train", "log.parquet", "--features", "numbers.parquet", "--propensities", "fit", *FEW)
    done = run_in_process(
        *words, "--learner-options", "never_worse=0", "-o", tmp_path / "harm", cwd=place, code=DOUBTFUL
    )
    said = " ".join(done.stderr.split())
    assert "Do not put this ranker in the place of the log's own order" in said
    assert re.search(r"naive clicks by clicks of \d+ queries held out in turn, .*\(95 % interval ", said)
    assert "a query counts by the square root of its impressions" in said
    learner = manifest_of(tmp_path / "harm")["learner"]
    assert (learner["name"], learner["balance"]) == ("auto", "sqrt")
    gain = learner["chosen"]["against"]["log's own order"]
    assert -0.05 < gain["ci_low"] / gain["of"] < 0
    done = run_in_process(*words, "-o", tmp_path / "allowed", cwd=place, code=0)
    assert "Do not put this ranker" not in done.stderr


@pytest.mark.slow
def test_the_rankers_own_score_teaches_and_is_no_feature(run_in_process: Run, place: Path, tmp_path: Path) -> None:
    features = pl.read_parquet(place / "numbers.parquet")
    own = features.with_columns(own=pl.col("length") + pl.col("age") / 50, named=pl.lit("text"))
    own.write_parquet(tmp_path / "own.parquet")
    words = learn("distilled", *FEW, features=str(tmp_path / "own.parquet"))
    run_in_process(*words, "--ranker-score", "own", "-o", tmp_path / "out", cwd=place, code=0)
    learnt = json.loads((tmp_path / "out" / "features.json").read_text(encoding="utf-8"))
    assert [one["name"] for one in learnt] == ["length", "age", "named"]
    run_in_process("score", "numbers.parquet", "--model", tmp_path / "out", "-o", tmp_path / "s", cwd=place, code=2)
    done = run_in_process(*words, "--ranker-score", "named", "-o", tmp_path / "text", cwd=place, code=UNUSABLE)
    assert "--ranker-score named: holds text" in done.stderr


@pytest.mark.slow
def test_options_of_a_learner_mean_the_same_on_the_line_in_a_file_and_in_python(
    run_in_process: Run, place: Path, tmp_path: Path
) -> None:
    words = ("train", "log.parquet", "--features", "numbers.parquet", "--learner", "naive")
    few = ("--learner-options", "trees=3", "--learner-options", "balance=query")
    run_in_process(*words, *few, "-o", tmp_path / "line", cwd=place, code=0)
    (tmp_path / "own.toml").write_text('[train.learner-options]\ntrees = 3\nbalance = "query"\ntau = 2\n')
    run_in_process(*words, "--config", tmp_path / "own.toml", "-o", tmp_path / "file", cwd=place, code=0)
    settings = {"trees": 3, "balance": "query"}
    features, out = place / "numbers.parquet", tmp_path / "python"
    with pytest.warns(UserWarning, match="One query has 21% of the impressions"):
        posbias.train(place / "log.parquet", features=features, learner="naive", learner_options=settings, output=out)
    line, file, python = (manifest_of(tmp_path / of) for of in ("line", "file", "python"))
    assert line["options"]["learner-options"] == file["options"]["learner-options"]
    assert line["options"]["learner-options"].items() >= settings.items()
    assert line["model"] == file["model"] == python["model"]
    with pytest.raises(posbias.PosbiasError, match=r"unknown name; .* Did you mean trees"):
        posbias.train(place / "log.parquet", features=features, learner="naive", learner_options={"tree": 3})
    (tmp_path / "own.toml").write_text("[train.learner-options]\ntrees = 2.5\n")
    done = run_in_process(*words, "--config", tmp_path / "own.toml", "-o", tmp_path / "no", cwd=place, code=UNUSABLE)
    assert "--learner-options trees=2.5: must be a whole number" in done.stderr


def test_gbrank_on_raw_rates_needs_no_fit(run_in_process: Run, place: Path, tmp_path: Path) -> None:
    raw = ("--learner", "gbrank", "--learner-options", "corrected_rates=false")
    words = ("train", "log.parquet", "--features", "numbers.parquet", *raw)
    run_in_process(*words, "-o", tmp_path / "out", cwd=place, code=0)


@pytest.fixture(scope="module")
def placed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("factors")
    simulate(SimulationOptions("pbm", 4_000, 30, 8, 5, seed=3, randomized_share=0.2)).log.write_parquet(
        folder / "log.parquet"
    )
    run_in(folder, "fit log.parquet -o fit")
    return folder


def factorise(run: Run, placed: Path, name: str, into: Path) -> None:
    theta = () if name in {"mf", "cause"} else ("--propensities", "fit")
    where = ("--randomized-where", "policy=random") if name == "cause" else ()
    run(
        "train",
        "log.parquet",
        *theta,
        *where,
        "--learner",
        name,
        "--learner-options",
        "steps=20",
        "-o",
        into,
        cwd=placed,
        code=0,
    )


@pytest.mark.parametrize("name", ["factors", "mf", "propensity-mf", "cause"])
@pytest.mark.slow
def test_factors_score_the_same_again_and_by_their_script(
    run_in_process: Run, placed: Path, tmp_path: Path, name: str
) -> None:
    factorise(run_in_process, placed, name, tmp_path / "model")
    written = pl.read_parquet(tmp_path / "model" / "scores.parquet")
    assert (written["attractiveness"].null_count() == 0) == (name == "factors")
    written.select("query", "doc").write_csv(tmp_path / "rows.csv")
    run_in_process("score", tmp_path / "rows.csv", "--model", tmp_path / "model", "-o", tmp_path / "scored", code=0)
    again = pl.read_parquet(tmp_path / "scored" / "scores.parquet")
    np.testing.assert_array_equal(again["score"], written["score"])
    script = ended((sys.executable, tmp_path / "model" / "load.py", tmp_path / "rows.csv"), check=True)
    np.testing.assert_allclose(pl.read_csv(io.StringIO(script.stdout))["score"], written["score"])


@pytest.mark.slow
def test_unseen_ids_are_scored_by_what_is_known(run_in_process: Run, placed: Path, tmp_path: Path) -> None:
    factorise(run_in_process, placed, "mf", tmp_path / "model")
    rows = pl.DataFrame({"query": ["0", "nobody", "nobody"], "doc": ["nothing", "0", "nothing"]})
    rows.write_parquet(tmp_path / "rows.parquet")
    run_in_process("score", tmp_path / "rows.parquet", "--model", tmp_path / "model", "-o", tmp_path / "scored", code=0)
    found = pl.read_parquet(tmp_path / "scored" / "scores.parquet")["score"].to_numpy()
    with np.load(tmp_path / "model" / "model.npz") as arrays:
        mean, of_query, of_item = (arrays[name] for name in ("mean", "query_bias", "item_bias"))
    of_ids = (pl.read_parquet(tmp_path / "model" / f"{name}.parquet") for name in ("queries", "documents"))
    query, item = (table.to_series().cast(pl.String).index_of("0") for table in of_ids)
    np.testing.assert_allclose(found, [mean + of_query[query], mean + of_item[item], mean])


def test_a_model_of_factors_wants_the_query_and_its_own_ids(run_in_process: Run, placed: Path, tmp_path: Path) -> None:
    factorise(run_in_process, placed, "mf", tmp_path / "model")
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


@pytest.mark.slow
def test_what_was_placed_at_random_decides_what_causal_embeddings_learn(
    run_in_process: Run, placed: Path, tmp_path: Path
) -> None:
    for value in ("random", "ranker"):
        words = ("--learner", "cause", "--learner-options", "steps=20", "--randomized-where", f"policy={value}")
        run_in_process("train", "log.parquet", *words, "-o", tmp_path / value, cwd=placed, code=0)
    one, other = (pl.read_parquet(tmp_path / value / "scores.parquet")["score"] for value in ("random", "ranker"))
    assert not one.equals(other)
