"""`posbias export`: the files for each engine, what is refused, and answers of engines held against the ranker."""

import json
import os
import subprocess
from contextlib import chdir
from pathlib import Path
from typing import Any, get_args

import numpy as np
import polars as pl
import pytest
from command_results import invoke, manifest_of
from workshop import RunPosbias as Run

import posbias
from posbias.core.choices import ServingEngine
from posbias.core.serving import formats
from posbias.core.serving.splits import NumberSplit
from posbias.io.jobs.exporting import open_ranker
from posbias.io.options import ServingOptions
from posbias.io.training.rankers import encoded

pytestmark = pytest.mark.slow  # LightGBM starts in a process of its own
ENGINES: tuple[ServingEngine, ...] = get_args(ServingEngine)
UNUSABLE, DOUBTFUL = 2, 1
FILES = {
    "opensearch": {"featureset.json", "model.json", "search.json"},
    "elasticsearch-ltr": {"featureset.json", "model.json", "search.json"},
    "elasticsearch": {"model.json", "search.json"},
    "solr": {"store.json", "model.json"},
    "vespa": {"posbias.profile", "models/posbias.json"},
}
MARKED = {"elasticsearch": "model.json", "solr": "store.json", "vespa": "posbias.profile"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a ranker of features that are numbers, lack values, or are text; and their table."""
    folder = tmp_path_factory.mktemp("export")
    rng = np.random.default_rng(0)
    n = 240
    docs = pl.DataFrame({"doc": [f"d{i}" for i in range(n)], "query": [f"q{i % 12}" for i in range(n)]})
    features = docs.select(
        "doc",
        length=pl.Series(rng.normal(size=n).astype(np.float32)),
        price=pl.Series(np.where(rng.random(n) < 0.3, np.nan, rng.exponential(size=n)).astype(np.float32)).fill_nan(
            None
        ),
        color=pl.Series(rng.choice(['red, "dark"', "blue", "green"], n)),
    )
    features.write_parquet(folder / "features.parquet")
    log = docs.join(pl.DataFrame({"page": list(range(6))}), how="cross").sort("query", "page")
    log = log.with_columns(position=pl.int_range(pl.len()).over("query", "page") + 1).join(features, on="doc")
    worth = pl.col("length") + pl.col("color").eq("blue") * 2 + pl.col("price").is_null() * 2
    chance = pl.Series(rng.random(log.height))
    log = log.with_columns(click=(worth / 4 > chance).cast(pl.Int8), session=pl.format("{}-{}", "query", "page"))
    log.select("session", "query", "doc", "position", "click").write_parquet(folder / "log.parquet")
    train = "train log.parquet --learner naive --features features.parquet --learner-options trees=12 -o ranker --quiet"
    with chdir(folder):
        invoke(*train.split())
    return folder


def exported(run: Run, place: Path, out: Path, engine: str, *more: str, code: int = 0) -> dict[str, Any]:
    """Export, and return the manifest."""
    run("export", "ranker", "--engine", engine, *more, "-o", out, "--quiet", cwd=place, code=code)
    return manifest_of(out)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_export_has_its_requests_a_mapping_of_names_and_a_page_and_agrees_with_the_ranker(
    run_in_process: Run, place: Path, tmp_path: Path, engine: ServingEngine
) -> None:
    codes = ["--categories", "codes"] if engine == "vespa" else []
    manifest = exported(run_in_process, place, tmp_path / "out", engine, *codes)
    files = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert files == FILES[engine] | {"send.sh", "features.json", "README.md", "manifest.json"}
    content = {name: (tmp_path / "out" / name).read_text(encoding="utf-8") for name in files}
    for name in (name for name in files if name.endswith(".json")):
        json.loads(content[name])
    assert {name for name in files if "FIELD_OF_" in content[name]} == {
        MARKED.get(engine, "featureset.json"),
        *("README.md", "send.sh"),
    }
    mapping = json.loads(content["features.json"])
    marked = content[MARKED.get(engine, "featureset.json")]
    assert all(one["name"] in marked for one in mapping)
    assert {one["feature"] for one in mapping} == {"length", "price", "color"}
    assert [one["kind"] for one in mapping][:2] == ["number", "number"]
    agreed = manifest["export"]["agreement"]["at_limits"]
    assert agreed["holds"]
    assert agreed["rows"] == 4000
    assert len(content["README.md"].splitlines()) < 40
    exported(run_in_process, place, tmp_path / "same", engine, *codes)
    for name in files - {"manifest.json"}:  # whose next command names the folder
        assert (tmp_path / "same" / name).read_bytes() == (tmp_path / "out" / name).read_bytes()


@pytest.mark.parametrize("engine", ENGINES)
def test_the_script_sends_the_requests_once_fields_are_in_place_of_the_marks(
    run_in_process: Run, place: Path, tmp_path: Path, engine: str
) -> None:
    out, tools = tmp_path / "out", tmp_path / "tools"
    exported(run_in_process, place, out, engine, *(["--categories", "codes"] if engine == "vespa" else []))
    tools.mkdir()
    for name in ("curl", "vespa"):
        (tools / name).write_text(f'#!/bin/sh\necho "{name} $@" >> "{tmp_path}/sent"\necho answer\n', encoding="utf-8")
        (tools / name).chmod(0o700)
    (tmp_path / "app" / "schemas" / "shop").mkdir(parents=True)
    given = {"ENGINE": "http://engine:1", "INDEX": "shop", "APP": str(tmp_path / "app")}
    settings = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}"}

    def send(**more: str) -> subprocess.CompletedProcess[str]:
        words = ["/bin/sh", str(out / "send.sh")]
        return subprocess.run(words, env=settings | more, capture_output=True, text=True, check=False)

    assert "ENGINE=http://HOST" in send().stderr
    marked = out / MARKED.get(engine, "featureset.json")
    refused = send(**given)
    assert refused.returncode == 1
    assert "put a field in place of each FIELD_OF_ first" in refused.stderr
    assert not (tmp_path / "sent").exists()
    marked.write_text(marked.read_text(encoding="utf-8").replace("FIELD_OF_", ""), encoding="utf-8")
    done = send(**given)
    assert done.returncode == 0, done.stderr
    sent = (tmp_path / "sent").read_text(encoding="utf-8")
    posted = [name for name in FILES[engine] if "/" not in name and not name.endswith("profile")]
    assert all(f"@{name}" in sent for name in posted)
    assert "http://engine:1/" in sent
    assert (out / "response.json").read_text(encoding="utf-8").strip().endswith("answer")
    if engine == "vespa":
        assert (tmp_path / "app" / "models" / "posbias.json").exists()


def answer_of(place: Path, engine: ServingEngine, version: str | None = None, *, wrong: str = "") -> dict[str, Any]:
    """The answer of an engine to the request of an export, with 30 documents."""
    ranker = open_ranker(place / "ranker", ServingOptions(engine, version, "sets" if engine != "vespa" else "codes"))
    model, names = ranker.model, ranker.model.ensemble.names
    table = pl.read_parquet(place / "features.parquet").head(30)
    logged = model.rows(encoded(table, ranker.features))
    if wrong == "feature":
        logged[:, names.index("length")] += 1
    if wrong == "nothing":
        logged[:, names.index("length")] = np.nan
    seen = logged.copy()
    if wrong == "missing":
        model = model._replace(target=model.target._replace(missing="right"))
        seen[:, [*model.ensemble.sets]] = np.nan_to_num(seen[:, [*model.ensemble.sets]])
    scores = model.scores(seen) + model.lift + (3.5 if wrong == "shifted" else 0)
    hits = list[dict[str, Any]]()
    for doc, score, row in zip(table["doc"], scores.tolist(), logged.tolist(), strict=True):
        values = dict(zip(names, row, strict=True))
        there = {name: value for name, value in values.items() if not np.isnan(value)}
        match engine:
            case "vespa":
                of = {
                    f"rankingExpression({name})": None if np.isnan(value) else value for name, value in values.items()
                }
                hits.append({"id": f"id:shop:shop::{doc}", "relevance": score, "fields": {"matchfeatures": of}})
            case "solr":
                listed = ",".join(f"{name}={value}" for name, value in values.items())
                hits.append({"id": doc, "score": score, "[features]": listed})
            case "elasticsearch":
                of = [{"description": f"feature value for [{name}]", "value": value} for name, value in there.items()]
                hits.append({"_id": doc, "_score": score, "_explanation": {"description": "rescored", "details": of}})
            case _:
                of = [{"name": name, **({"value": there[name]} if name in there else {})} for name in names]
                hits.append({"_id": doc, "_score": score, "fields": {"_ltrlog": [{"log": of}]}})
    if engine == "vespa":
        return {"root": {"children": hits}}
    return {"response": {"docs": hits}} if engine == "solr" else {"hits": {"hits": hits}}


def smoked(
    run: Run, place: Path, folder: Path, answer: object, engine: str, *more: str
) -> tuple[int, dict[str, Any], str]:
    (folder / "response.json").write_text(json.dumps(answer), encoding="utf-8")
    codes = ["--categories", "codes"] if engine == "vespa" else []
    words = ("--engine", engine, *codes, *more, "--smoke", folder / "response.json", "-o", folder / "smoked")
    done = run("export", "ranker", *words, cwd=place)
    manifest = folder / "smoked" / "manifest.json"
    return done.returncode, json.loads(manifest.read_text()) if manifest.exists() else {}, done.stderr


@pytest.mark.parametrize("engine", ENGINES)
def test_an_answer_that_agrees_is_good_and_its_features_are_those_of_the_table(
    run_in_process: Run, place: Path, tmp_path: Path, engine: ServingEngine
) -> None:
    answer = answer_of(place, engine)
    code, manifest, said = smoked(run_in_process, place, tmp_path, answer, engine, "--features", "features.parquet")
    assert code == 0, said
    assert manifest["verdict"] == "good"
    assert (manifest["export"]["hits"], manifest["export"]["swapped"], manifest["export"]["features"]) == (30, 0, [])


@pytest.mark.parametrize(
    ("wrong", "exit_code", "words"),
    [
        ("missing", DOUBTFUL, "All that differ lack 'price'"),
        ("feature", DOUBTFUL, "1 feature of the engine differs from the table: 'length'"),
        ("nothing", DOUBTFUL, "'length' has no value in any of 30 hits"),
        ("shifted", 0, "opensearch adds 3.5 to each score"),
    ],
)
def test_an_answer_that_differs_says_how(
    run_in_process: Run, place: Path, tmp_path: Path, wrong: str, exit_code: int, words: str
) -> None:
    answer = answer_of(place, "opensearch", wrong=wrong)
    code, _, said = smoked(run_in_process, place, tmp_path, answer, "opensearch", "--features", "features.parquet")
    assert code == exit_code
    assert words in " ".join(said.split())


@pytest.mark.parametrize(
    "answer", ["", [], {}, {"hits": {"hits": []}}, {"hits": {"hits": [{"_id": "d1", "_score": 1}]}}, {"hits": 3}]
)
def test_what_is_no_answer_with_features_is_refused_and_nothing_is_written(
    run_in_process: Run, place: Path, tmp_path: Path, answer: object
) -> None:
    code, manifest, said = smoked(run_in_process, place, tmp_path, answer, "opensearch")
    assert (code, manifest) == (UNUSABLE, {})
    assert "response.json" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--engine vespa", """the feature 'color' has the text 'red, "dark"', and vespa would not read"""),
        (
            "--engine opensearch --engine-version 2.11",
            "reads a missing value as 0, and the ranker tells them apart for",
        ),
    ],
)
def test_what_cannot_be_carried_is_refused_by_name_and_nothing_is_written(
    run_in_process: Run, place: Path, tmp_path: Path, words: str, said: str
) -> None:
    done = run_in_process("export", "ranker", *words.split(), "-o", tmp_path / "out", cwd=place, code=UNUSABLE)
    assert said in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_default_for_missing_values_stands_in_the_requests_of_the_features_that_need_it(
    run_in_process: Run, place: Path, tmp_path: Path
) -> None:
    words = ("--engine-version", "2.11", "--missing-default", "1e30")
    manifest = exported(run_in_process, place, tmp_path / "out", "opensearch", *words)
    assert [*manifest["export"]["defaults"]] == ["price"]
    features = json.loads((tmp_path / "out" / "featureset.json").read_text(encoding="utf-8"))["featureset"]["features"]
    factors = [one["template"].get("function_score", {}).get("field_value_factor", {}) for one in features]
    assert [factor.get("missing") for factor in factors][:2] == [None, float(np.float32(1e30))]


def test_features_that_an_engine_rounds_are_counted_by_the_rows_of_a_table(
    run_in_process: Run, place: Path, tmp_path: Path
) -> None:
    ranker = open_ranker(place / "ranker", ServingOptions("opensearch"))
    roots = [tree for tree in ranker.ensemble.trees if isinstance(tree, NumberSplit) and abs(tree.limit) < 1e30]
    limit, feature = roots[0].limit, ranker.ensemble.names[roots[0].feature]
    value = (
        limit if float(np.float32(limit)) > limit else float(np.nextafter(limit, np.inf))
    )  # a single beyond the limit
    beside = {"doc": "a", "length": 0.5, "price": 1.0, "color": "blue"} | {feature: value}
    pl.DataFrame([beside]).write_parquet(tmp_path / "beside.parquet")
    table = ("--features", str(tmp_path / "beside.parquet"))
    manifest = exported(run_in_process, place, tmp_path / "out", "opensearch", *table)
    assert manifest["export"]["agreement"]["features"]["holds"]
    assert "features-rounded" in [one["code"] for one in manifest["reasons"]]
    exact = exported(run_in_process, place, tmp_path / "exact", "vespa", "--categories", "codes", *table)
    assert "features-rounded" not in [one["code"] for one in exact["reasons"]]


def test_an_engine_that_would_score_otherwise_ends_with_exit_code_1(
    run_in_process: Run, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "single_above", formats.single_below)  # values at a limit go the other way
    manifest = exported(run_in_process, place, tmp_path / "out", "opensearch", code=DOUBTFUL)
    assert manifest["reasons"][0]["code"] == "engine-scores-differ"
    assert manifest["export"]["agreement"]["at_limits"]["other_leaves"] > 100


def test_an_export_is_a_result_like_others_from_python_shown_and_reported(place: Path, tmp_path: Path) -> None:
    result = posbias.export(place / "ranker", engine="elasticsearch", name="shop_7", output=tmp_path / "out")
    assert result.verdict == "good"
    assert result.manifest["export"]["name"] == "shop_7"
    assert "written for elasticsearch" in invoke("show", tmp_path / "out").stdout
    posbias.report(tmp_path / "out", output=tmp_path / "page.html")
    assert "A ranker for a search engine" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_ranker_that_was_trained_for_an_engine_needs_no_default_and_no_row_of_training_changes_leaf(
    run_in_process: Run, place: Path, tmp_path: Path
) -> None:
    rows = pl.read_parquet(place / "features.parquet").select("doc", pl.col("length", "price") / 3.0)
    rows.write_parquet(tmp_path / "doubles.parquet")
    train = ("train", place / "log.parquet", "--learner", "naive", "--learner-options", "trees=12")
    table = ("--features", tmp_path / "doubles.parquet")
    run_in_process(*train, *table, "--for", "opensearch", "-o", tmp_path / "ranker", code=0)
    for version in ("2.11", "3.2", "3.8"):
        words = ("--engine", "opensearch", "--engine-version", version, *table)
        run_in_process("export", tmp_path / "ranker", *words, "-o", tmp_path / version, code=0)
        manifest = manifest_of(tmp_path / version)
        assert manifest["verdict"] == "good"
        assert "features-rounded" not in [one["code"] for one in manifest["reasons"]]
        assert manifest["export"]["agreement"]["features"]["holds"]
    text = ("--features", place / "features.parquet")
    done = run_in_process(*train, *text, "--for", "solr", "-o", tmp_path / "text", code=UNUSABLE)
    assert "--for solr: 'color' is text" in done.stderr
    done = run_in_process("train", place / "log.parquet", "--learner", "mf", "--for", "solr", "-o", "x", code=UNUSABLE)
    assert "--learner mf makes none" in " ".join(done.stderr.split())
