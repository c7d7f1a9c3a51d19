"""`fit --method features` and `regression-em`: propensities where no (query, document) pair repeats."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import polars as pl
import pytest
from command_results import Output, invoke
from workshop import RunPosbias as Run

SHOWN, DOCUMENTS = 5, 10
THETA = 1 / np.arange(1.0, SHOWN + 1)
FEATURES = ("--method", "features", "--feature", "price", "--feature", "age")


def draw_log(pages: int, *, unseen: float = 0.0, twice: float = 0.0, seed: int = 0) -> pl.DataFrame:
    """A log whose ranker orders by a score, with noise.

    Args:
        pages: how many.
        unseen: how much the score knows of relevance that `price` and `age` do not show.
        twice: the share of the queries that are asked on two pages.
        seed: of the draws.
    """
    draws = np.random.default_rng(seed)
    query = np.arange(pages)
    again = np.flatnonzero(draws.random(pages // 2) < twice)
    query[pages // 2 + again] = again
    x, hidden = draws.normal(size=(pages, DOCUMENTS, 2))[query], draws.normal(size=(pages, DOCUMENTS))[query]
    relevance = 1 / (1 + np.exp(1 - 1.2 * x[..., 0] - 0.8 * x[..., 1] - unseen * hidden))
    score = 0.7 * x[..., 0] + unseen * hidden
    order = np.argsort(-(score + 0.5 * draws.gumbel(size=score.shape)), axis=1)[:, :SHOWN]
    page, position = np.repeat(np.arange(pages), SHOWN), np.tile(np.arange(SHOWN), pages)
    doc = order.ravel()
    click = draws.random(len(page)) < THETA[position] * relevance[page, doc]
    return pl.DataFrame(
        {
            "session": page,
            "query": query[page],
            "doc": query[page] * DOCUMENTS + doc,
            "position": position + 1,
            "click": click.astype(np.int8),
            "price": x[page, doc, 0],
            "age": x[page, doc, 1],
            "score": score[page, doc],
            "colour": np.where(x[page, doc, 1] > 0, "red", "blue"),
            "device": np.where(page % 2 == 0, "phone", "desk"),
        }
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with logs and a table of features."""
    folder = tmp_path_factory.mktemp("features")
    log = draw_log(3_000)
    log.write_parquet(folder / "log.parquet")
    log.select("doc", "price", "age").write_parquet(folder / "features.parquet")
    draw_log(6_000, unseen=1.5, twice=0.5).write_parquet(folder / "confounded.parquet")
    draw_log(6_000, twice=0.5, seed=1).write_parquet(folder / "repeating.parquet")
    return folder


@pytest.fixture(scope="module")
def fit(place: Path) -> Callable[..., tuple[Output, CompletedProcess[str]]]:
    """Return a function that fits a log of the folder, each command line once."""
    known: dict[tuple[str, ...], CompletedProcess[str]] = {}

    def run(*words: str, log: str = "log.parquet") -> tuple[Output, CompletedProcess[str]]:
        key, out = (log, *words), place / f"out-{len(known)}"
        if key not in known:
            known[key] = invoke("fit", place / log, *words, "-o", out, code=None)
        done = known[key]
        return Output(Path(done.args[-1])), done

    return run


Fit = Callable[..., tuple[Output, CompletedProcess[str]]]


def one_line(done: CompletedProcess[str]) -> str:
    return " ".join(done.stderr.split())


@pytest.mark.slow
def test_a_table_of_features_says_the_same_as_columns_of_the_log(fit: Fit, place: Path) -> None:
    in_log, _ = fit(*FEATURES)
    in_table, _ = fit("--method", "features", "--features", str(place / "features.parquet"))
    assert in_table.propensities.equals(in_log.propensities)


@pytest.mark.slow
def test_buckets_on_disk_say_the_same_as_a_log_in_memory(
    fit: Fit, place: Path, run_in_process: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, _ = fit(*FEATURES)
    monkeypatch.setattr("posbias.io.engines.local._ROWS_THAT_STAY_IN_CACHE", 4_000)
    run_in_process("fit", place / "log.parquet", *FEATURES, "-o", "split")
    split, whole = pl.read_parquet(tmp_path / "split/propensities.parquet"), found.propensities
    difference = np.log(split["propensity"].to_numpy() / whole["propensity"].to_numpy())[1:]
    assert (np.abs(difference) < whole["std_error"].to_numpy()[1:] / 3).all()  # trees of rows in another order
    np.testing.assert_allclose(split["std_error"].to_numpy()[1:], whole["std_error"].to_numpy()[1:], rtol=0.1)


@pytest.mark.slow
def test_pairs_that_repeat_contradict_features_that_do_not_show_what_the_ranker_knows(fit: Fit) -> None:
    found, done = fit(*FEATURES, log="confounded.parquet")
    test = found.manifest["estimate"]["from_rows"]["against_pairs"]
    assert test["rejected"]
    assert test["p_value"] < 0.001
    assert test["slope"] < 0
    assert "contradict the features, by which" in one_line(done)
    assert "propensities fall faster with the position" in one_line(done)
    assert done.returncode == 1


@pytest.mark.slow
def test_a_score_that_is_not_named_is_a_doubt_of_a_size(fit: Fit) -> None:
    hides: dict[int, float] = {}
    for words, code, says in (
        (FEATURES, 1, "Name the score"),
        ((*FEATURES, "--ranker-score", "score"), 0, "its score"),
    ):
        found, done = fit(*words)
        assert done.returncode == code
        error = found.manifest["estimate"]["from_rows"]["hidden_relevance"]["relative_error"]
        assert error == sorted(error)
        assert f"at position {SHOWN} by up to {error[-1]:.0%}" in one_line(done)
        assert says in one_line(done)
        hides[code] = error[-1]
    assert hides[0] < 0.1
    assert hides[1] > 0.25


@pytest.mark.slow
def test_how_much_features_may_hide_before_a_verdict_turns_is_said(
    fit: Fit, place: Path, run_in_process: Run, tmp_path: Path
) -> None:
    log = pl.read_parquet(place / "repeating.parquet")
    scores = log.group_by("query", "doc").agg(score=pl.col("price").first())
    scores.write_parquet(place / "price.parquet")
    for words, command in ((FEATURES, "predict"), ((*FEATURES, "--ranker-score", "score"), "evaluate")):
        fitted = fit(*words)[0]
        hidden = fitted.manifest["estimate"]["from_rows"]["hidden_relevance"]["slope_if_as_strong_as_features"]
        options = ("--propensities", fitted.folder, "--scores", place / "price.parquet")
        run_in_process(command, place / "repeating.parquet", *options, "-o", tmp_path / command, code=None)
        (verdict,) = Output(tmp_path / command).manifest["verdicts"]
        assert ("turns_at_hidden" in verdict) == (hidden > 0)


@pytest.mark.slow
def test_pages_that_are_not_sampled_are_scored(fit: Fit) -> None:
    found, done = fit(*FEATURES, "--sample-pages", "1000")
    section = found.manifest["estimate"]["from_rows"]
    assert 900 < section["pages_learnt_from"] < 1_100
    assert section["pages"] == 3_000
    assert found.manifest["estimate"]["clusters"] == 3_000
    assert "of 3,000 pages (--sample-pages)" in one_line(done)


@pytest.mark.slow
def test_regression_em_stands_beside_for_comparison(fit: Fit) -> None:
    found, done = fit("--method", "regression-em", "--feature", "price", "--feature", "age", "--ranker-score", "score")
    assert done.returncode == 0
    assert found.propensities["std_error"].is_null().all()
    propensity = found.propensities["propensity"].to_numpy()
    assert (np.diff(propensity) < 0).all()
    assert np.abs(propensity / THETA - 1)[1:].mean() < 0.35
    assert found.manifest["estimate"]["from_rows"]["moment_propensity"] is None


@pytest.mark.slow
def test_run_goes_on_to_training_files(place: Path, run_in_process: Run, tmp_path: Path) -> None:
    features = ("--method", "features", "--features", place / "features.parquet")
    run_in_process("run", place / "log.parquet", *features, "--ranker-score", "score", "-o", "result", code=0)
    training = Output(tmp_path / "result").training
    assert training.columns == ["query", "doc", "label", "weight", "price", "age"]
    assert json.loads((tmp_path / "result/manifest.json").read_text())["estimate"]["method"] == "features"


def test_the_extra_that_is_needed_is_named(place: Path, run_in_process: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    done = run_in_process("fit", place / "log.parquet", *FEATURES, "-o", "out", code=2)
    assert "python3 -m pip install lightgbm" in one_line(done)
