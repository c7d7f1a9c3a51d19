"""`posbias predict`: what it writes and says of rankings, from a log and from statistics, and what it refuses."""

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import polars as pl
import pytest
from command_results import manifest_of
from polars.testing import assert_frame_equal
from workshop import RunPosbias as Run

from posbias.core.simulation.simulate import SimulationOptions, simulate

DONE, WITH_DOUBTS, UNUSABLE = 0, 1, 2
COLUMNS = [
    *("ranking", "clicks_per_page", "difference", "std_error", "ci_low", "ci_high"),
    *("new_queries_ci_low", "new_queries_ci_high", "relative_difference", "unsupported_share"),
    *("bound_low", "bound_high", "pages_per_arm", "ubm_difference", "ubm_relative_difference"),
]
Predict = Callable[..., CompletedProcess[str]]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a log, scores and runs."""
    folder = tmp_path_factory.mktemp("predict")
    found = simulate(SimulationOptions("pbm", 4_000, 80, 12, 6, days=4, seed=1, ranker_strength=1.5))
    found.log.write_parquet(folder / "log.parquet")
    truth = found.attractiveness
    noise = pl.Series(np.random.default_rng(0).standard_normal(truth.height))
    good = truth.select("query", "doc", score=pl.col("attractiveness") + 0.05 * noise)
    good.write_parquet(folder / "good.parquet")
    truth.select("query", "doc", score=-pl.col("attractiveness") + 0.05 * noise).write_csv(folder / "bad.csv")
    good.filter(pl.col("query") < 40).write_parquet(folder / "some.parquet")
    pl.concat([good, good.filter(pl.col("doc") < 2).with_columns(doc=pl.col("doc") + 1000, score=9.0)]).write_parquet(
        folder / "fresh.parquet"
    )
    early = found.log.filter(pl.col("timestamp") < pl.datetime(2026, 1, 7)).group_by("query", "doc")
    early.agg(score=pl.col("click").sum() / (pl.len() + 2)).write_parquet(folder / "learned.parquet")
    lines = good.select(pl.format("{} Q0 {} 0 {} x", "query", "doc", "score")).to_series()
    (folder / "one.run").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def place(drawn: Path, run_in_process: Run) -> Path:
    """Return the folder, with a fit and statistics."""
    if not (drawn / "store").exists():
        run_in_process("fit", "log.parquet", "--no-compare", "-o", "fit", cwd=drawn, code=DONE)
        words = ("collect", "log.parquet", "--timestamp", "timestamp", "-o")
        run_in_process(*words, "store", cwd=drawn, code=DONE)
        run_in_process(*words, "by_click", "--model", "ubm", cwd=drawn, code=DONE)
    return drawn


@pytest.fixture
def predict(run_in_process: Run, place: Path, tmp_path: Path) -> Predict:
    """Return a function that predicts rankings into tmp_path/out."""

    def run(*words: str, log: str = "log.parquet", out: str = "out") -> CompletedProcess[str]:
        where = ("-o", str(tmp_path / out), "--force")
        return run_in_process("predict", log, "--propensities", "fit", *words, *where, cwd=place)

    return run


def said(done: CompletedProcess[str]) -> str:
    """Return what was printed, on one line."""
    return " ".join(done.stderr.split())


@pytest.mark.slow
def test_the_better_ranking_is_predicted_to_get_more_clicks(predict: Predict, place: Path, tmp_path: Path) -> None:
    done = predict("--scores", "good.parquet", "--scores", "bad.csv", "--rankings", "one.run")
    assert done.returncode == DONE, done.stderr
    table = pl.read_parquet(tmp_path / "out" / "predictions.parquet")
    assert table.columns == COLUMNS
    assert table["ranking"].to_list() == ["good", "bad", "one"]
    good, bad, one = table.rows(named=True)
    assert good["ci_low"] > 0 > bad["ci_high"]
    assert good["clicks_per_page"] - good["difference"] == pytest.approx(bad["clicks_per_page"] - bad["difference"])
    assert {name: value for name, value in one.items() if name != "ranking"} == pytest.approx(
        {name: value for name, value in good.items() if name != "ranking"}, rel=1e-9
    )
    top = pl.read_parquet(tmp_path / "out" / "predictions_by_part.parquet").row(0, named=True)
    assert (top["ranking"], top["part"]) == ("good", "top 3")
    assert top["difference"] > good["difference"] > 0
    assert "good: +" in said(done)
    assert "An A/B test needs about" in said(done)
    manifest = manifest_of(tmp_path / "out")
    assert manifest["command"] == "predict"
    assert [entry["name"] for entry in manifest["rankings"]] == ["good", "bad", "one"]
    pages = (
        pl.read_parquet(place / "log.parquet").group_by("session").agg(pl.col("click").sum().cast(pl.Int64))["click"]
    )
    counted = {"pages": 4_000, "clicks": pages.sum(), "squared_clicks": (pages**2).sum(), "clicked": (pages > 0).sum()}
    assert manifest["prediction"]["pages_counted"] == counted


@pytest.mark.slow
def test_how_far_a_verdict_holds_is_the_same_on_disk_and_stands_in_the_report(
    predict: Predict, run_in_process: Run, tmp_path: Path
) -> None:
    verdicts = list[list[dict[str, Any]]]()
    for memory in ("2GiB", "256MiB"):
        done = predict("--scores", "good.parquet", "--scores", "bad.csv", "--memory", memory)
        verdicts.append(manifest_of(tmp_path / "out")["verdicts"])
    assert_frame_equal(*map(pl.DataFrame, verdicts), rel_tol=1e-9)
    good, bad = verdicts[0]
    assert (good["ranking"], good["other"], good["verdict"]) == ("good", "the log's own order", "better")
    assert bad["verdict"] == "worse"
    assert "good stays ahead of the log's own order at any position bias from" in said(done)
    report = tmp_path / "report.html"
    run_in_process("report", tmp_path / "out", "-o", report, code=DONE)
    assert "the estimated position bias: so far good stays ahead of" in report.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("memory", ["2GiB", pytest.param("256MiB", marks=pytest.mark.slow)])
def test_statistics_say_the_same_as_their_log(predict: Predict, tmp_path: Path, memory: str) -> None:
    words = ("--scores", "good.parquet", "--scores", "fresh.parquet", "--memory", memory)
    tables = list[pl.DataFrame]()
    for source in ("log.parquet", "store", "by_click"):
        done = predict(*words, log=source)
        assert done.returncode == DONE, done.stderr
        tables.append(pl.read_parquet(tmp_path / "out" / "predictions.parquet"))
    assert_frame_equal(tables[0], tables[2], rel_tol=1e-9, abs_tol=1e-12)
    assert_frame_equal(tables[0].select(COLUMNS[:-2]), tables[1].select(COLUMNS[:-2]), rel_tol=1e-9, abs_tol=1e-12)


@pytest.mark.slow
def test_contexts_have_predictions_of_their_own_and_a_report_shows_what_changes(
    run_in_process: Run, place: Path, tmp_path: Path
) -> None:
    device = pl.when(pl.col("session") % 3 == 0).then(pl.lit("phone")).otherwise(pl.lit("desktop"))
    pl.read_parquet(place / "log.parquet").with_columns(device=device).write_parquet(tmp_path / "log.parquet")
    run_in_process("fit", "log.parquet", "--context", "device", "--no-compare", "-o", "fit", cwd=tmp_path)
    scores = str(place / "good.parquet")
    run_in_process(
        "predict", "log.parquet", "--propensities", "fit", "--scores", scores, "-o", "out", cwd=tmp_path, code=DONE
    )
    parts = pl.read_parquet(tmp_path / "out" / "predictions_by_part.parquet")
    assert parts["part"].to_list() == ["top 3", "device=desktop", "device=phone"]
    assert parts.filter(pl.col("part") != "top 3")["pages"].sum() == 4_000
    changed = manifest_of(tmp_path / "out")["predictions"][0]["changed_queries"]
    assert len(changed) == 20
    assert {len(query["after"]) for query in changed} == {6}
    pytest.importorskip("vl_convert")
    run_in_process("report", "out", "-o", "report.html", cwd=tmp_path, code=DONE)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Queries that good changes most" in page
    assert "The clicks that new rankings would get" in page


@pytest.mark.slow
def test_classes_of_queries_have_predictions_of_their_own(run_in_process: Run, place: Path, tmp_path: Path) -> None:
    kind = pl.when(pl.col("query") % 3 > 0).then(pl.format("k{}", pl.col("query") % 3))
    log = pl.read_parquet(place / "log.parquet").with_columns(kind=kind, half=pl.col("session") % 2)
    log.write_parquet(tmp_path / "log.parquet")
    words = ("--propensities", str(place / "fit"), "--scores", str(place / "good.parquet"), "--force", "-o", "out")
    run_in_process("collect", "log.parquet", "--stratify", "kind", "-o", "store", cwd=tmp_path, code=DONE)
    tables = list[pl.DataFrame]()
    for source in ("store", "log.parquet"):
        done = run_in_process("predict", source, *words, "--by", "kind", cwd=tmp_path, code=DONE)
        tables.append(pl.read_parquet(tmp_path / "out" / "predictions_by_part.parquet"))
    assert_frame_equal(*tables, rel_tol=1e-9)
    classes = tables[0].filter(pl.col("part") != "top 3")
    assert classes["part"].to_list() == ["kind=k1", "kind=k2", "kind=missing"]
    assert classes["pages"].sum() == 4_000
    whole = pl.read_parquet(tmp_path / "out" / "predictions.parquet")["difference"].item()
    gained = classes.select(pl.col("difference") * pl.col("pages")).sum().item()
    assert gained / 4_000 == pytest.approx(whole, rel=1e-9)
    assert "by kind ranking kind pages difference" in said(done)
    for by, says in (
        ("half", "--by half: pages of query 0 have '0' and '1'"),
        ("query", "--by query: this name means something else"),
        ("shop", "there is no column 'shop' (--for-each or --by)"),
    ):
        done = run_in_process("predict", "log.parquet", *words, "--by", by, cwd=tmp_path, code=UNUSABLE)
        assert says in said(done)
    done = run_in_process("predict", "store", *words, "--by", "half", cwd=tmp_path, code=UNUSABLE)
    assert "Collect with --stratify half, or give the logs" in said(done)


def test_documents_that_were_never_shown_are_counted_and_bounded(predict: Predict, tmp_path: Path) -> None:
    done = predict("--scores", "fresh.parquet")
    assert done.returncode == DONE, done.stderr
    row = pl.read_parquet(tmp_path / "out" / "predictions.parquet").row(0, named=True)
    assert row["unsupported_share"] > 0.3
    assert row["bound_low"] < row["difference"] < row["bound_high"]
    assert "was never shown for its query: no click can speak for it" in said(done)


def test_queries_without_scores_are_left_out_and_named(predict: Predict, tmp_path: Path) -> None:
    done = predict("--scores", "some.parquet", "--scores", "good.parquet")
    assert done.returncode == DONE, done.stderr
    assert "some has scores for the queries of" in said(done)
    some, good = manifest_of(tmp_path / "out")["rankings"]
    assert 0 < some["pages"] < good["pages"] == 4_000


def test_a_ranking_with_lists_for_few_queries_of_a_large_log_is_predicted_from_all_of_them(
    predict: Predict, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = pl.read_parquet(place / "good.parquet").filter(pl.col("query") < 2)
    few.write_parquet(place / "few.parquet")
    predict("--scores", "few.parquet", out="all")
    monkeypatch.setattr("posbias.io.predictions._SAMPLED_IMPRESSIONS", 40)  # of 24,000
    done = predict("--scores", "few.parquet")
    assert done.returncode in {DONE, WITH_DOUBTS}, done.stderr
    of_all, of_some = (pl.read_parquet(tmp_path / name / "predictions.parquet") for name in ("all", "out"))
    assert_frame_equal(of_some, of_all)


@pytest.mark.slow
def test_one_query_is_predicted_without_others_like_it_and_a_log_without_clicks_is_refused(
    run_in_process: Run, predict: Predict, place: Path, tmp_path: Path
) -> None:
    log = pl.read_parquet(place / "log.parquet")
    log.filter(pl.col("query") == 0).write_parquet(place / "one.parquet")
    log.with_columns(click=pl.lit(0)).write_parquet(place / "none.parquet")
    done = predict("--scores", "good.parquet", log="one.parquet")
    assert done.returncode == DONE, done.stderr
    row = pl.read_parquet(tmp_path / "out" / "predictions.parquet").row(0, named=True)
    assert row["ci_low"] < row["difference"] < row["ci_high"]
    assert (row["new_queries_ci_low"], row["new_queries_ci_high"]) == (None, None)
    assert "unknown" in said(done)
    run_in_process("report", str(tmp_path / "out"), "-o", str(tmp_path / "report.html"), code=DONE)
    done = predict("--scores", "good.parquet", log="none.parquet")
    assert done.returncode == UNUSABLE
    assert "no impression was clicked" in said(done)


@pytest.mark.slow
def test_the_user_browsing_model_stands_beside_the_position_based_model(
    run_in_process: Run, predict: Predict, place: Path, tmp_path: Path
) -> None:
    run_in_process("fit", "log.parquet", "--model", "ubm", "--no-compare", "-o", "browsing", cwd=place, code=DONE)
    done = predict("--scores", "good.parquet", "--details")
    row = pl.read_parquet(tmp_path / "out" / "predictions.parquet").row(0, named=True)
    assert row["ci_low"] < row["ubm_difference"] < row["ci_high"]
    assert row["ubm_difference"] != row["difference"]
    assert f"The user browsing model says {row['ubm_relative_difference']:+.1%}, the position-based" in said(done)
    words = ("--propensities", "browsing", "--scores", "good.parquet", "-o", str(tmp_path / "other"))
    for source in ("log.parquet", "by_click"):
        done = run_in_process("predict", source, *words, "--force", cwd=place, code=DONE)
        other = pl.read_parquet(tmp_path / "other" / "predictions.parquet").row(0, named=True)
        assert other["difference"] == pytest.approx(row["difference"], rel=1e-6)
        assert other["ubm_difference"] == pytest.approx(row["ubm_difference"], rel=1e-6)
    assert "Propensities of positions are fitted to these pages" in said(done)
    done = predict("--scores", "good.parquet", log="store")
    assert (
        "The prediction is not compared with the user browsing model: it needs to know which results above were clicked"
        in said(done)
    )


@pytest.mark.slow
def test_a_ranking_that_has_learned_from_half_of_the_pages_is_found_out(predict: Predict, place: Path) -> None:
    for log, words in (("log.parquet", ["--timestamp", "timestamp"]), ("store", [])):
        done = predict("--scores", "learned.parquet", "--scores", "good.parquet", *words, log=log)
        assert done.returncode == WITH_DOUBTS, done.stderr
        assert "learned has probably learned from these clicks: pages before 2026-01-07 put it" in said(done)
        assert "do not rely on good" not in said(done)
    assert (place / "learned.parquet").exists()


def test_the_danger_of_pages_that_it_has_learned_from_is_named_unless_they_are_ruled_out(predict: Predict) -> None:
    danger = "A ranking that has learned from the clicks of these pages is predicted far too well"
    assert danger in said(predict("--scores", "good.parquet"))
    done = predict("--scores", "good.parquet", "--trained-until", "2026-01-04", log="store")
    assert done.returncode == DONE, done.stderr
    assert danger not in said(done)


@pytest.mark.slow
def test_a_cascade_is_refused(run_in_process: Run, tmp_path: Path) -> None:
    made = simulate(SimulationOptions("dbn", 8_000, 80, 12, 6, days=0, seed=1, ranker_strength=1.5))
    made.log.write_parquet(tmp_path / "log.parquet")
    made.attractiveness.select("query", "doc", score="attractiveness").write_parquet(tmp_path / "good.parquet")
    run_in_process("fit", "log.parquet", "--no-compare", "-o", "fit", cwd=tmp_path)
    run_in_process("collect", "log.parquet", "--model", "ubm", "-o", "store", cwd=tmp_path)
    for source in ("store", "log.parquet"):
        words = (source, "--propensities", "fit", "--scores", "good.parquet", "-o", "out", "--force")
        done = run_in_process("predict", *words, cwd=tmp_path, code=WITH_DOUBTS)
        assert "Clicks on a page depend on each other" in said(done)
        assert "for good, a click model that allows for that (--model ubm) predicts +" in said(done)
    assert "An A/B test needs" not in said(done)
    manifest = manifest_of(tmp_path / "out")
    assert manifest["prediction"]["slope"]["rejects"]
    assert manifest["prediction"]["slope"]["slope"] < 0.6


@pytest.mark.slow
def test_clicks_that_make_others_likelier_are_refused_and_both_models_named(
    run_in_process: Run, tmp_path: Path
) -> None:
    made = simulate(SimulationOptions("ubm", 8_000, 80, 12, 6, days=0, seed=1, ranker_strength=1.5))
    made.log.write_parquet(tmp_path / "log.parquet")
    made.attractiveness.select("query", "doc", score="attractiveness").write_parquet(tmp_path / "good.parquet")
    run_in_process("fit", "log.parquet", "--no-compare", "-o", "fit", cwd=tmp_path)
    words = ("log.parquet", "--propensities", "fit", "--scores", "good.parquet", "-o", "out")
    done = run_in_process("predict", *words, cwd=tmp_path, code=WITH_DOUBTS)
    assert "where a click makes further clicks likelier, better results bring clicks" in said(done)
    assert "Click models disagree on good by more than the interval (position-based +" in said(done)


def test_without_pages_or_days_the_check_is_said_to_be_missing(
    predict: Predict, place: Path, run_in_process: Run
) -> None:
    run_in_process("collect", "log.parquet", "-o", "without_days", "--force", cwd=place)
    done = predict("--scores", "good.parquet", log="without_days")
    assert done.returncode == DONE, done.stderr
    assert "Whether pages with better results get as many more clicks as predicted is not checked" in said(done)


def test_click_models_are_compared_on_the_positions_whose_propensity_is_known(
    run_in_process: Run, place: Path, tmp_path: Path
) -> None:
    known = pl.read_parquet(place / "fit" / "propensities.parquet").filter(~pl.col("position").is_in([2, 3]))
    known.select("position", "propensity").write_csv(tmp_path / "known.csv")
    words = ("--propensities", tmp_path / "known.csv", "--scores", "bad.csv", "-o", tmp_path / "out")
    run_in_process("predict", "log.parquet", *words, cwd=place, code=WITH_DOUBTS)
    row = pl.read_parquet(tmp_path / "out" / "predictions.parquet").row(0, named=True)
    assert row["ci_low"] < row["ubm_difference"] < row["ci_high"]
    stops = {reason["code"] for reason in manifest_of(tmp_path / "out")["reasons"] if reason["severity"] == "stop"}
    assert stops == {"clicks-without-propensity"}
