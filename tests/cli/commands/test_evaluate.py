"""`posbias evaluate`: what it writes and says of rankings and of click models, and what it refuses."""

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import polars as pl
import pytest
from command_results import manifest_of, reseal
from workshop import RunPosbias as Run

from posbias.core.simulation.simulate import SimulationOptions, simulate

DONE, WITH_DOUBTS, UNUSABLE = 0, 1, 2
METRICS = [
    *("ranking", "metric", "k", "estimator", "value", "std_error", "ci_low", "ci_high", "std_error_of_theta"),
    *("queries", "hoeffding_bound", "bernstein_bound"),
]
DIFFERENCES = [
    *("ranking", "baseline", "metric", "k", "estimator", "difference", "std_error", "ci_low", "ci_high"),
    *("p_value", "p_value_holm", "verdict"),
]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with logs, scores, a run and judgments."""
    folder = tmp_path_factory.mktemp("evaluate")
    found = simulate(SimulationOptions("pbm", 4_000, 80, 12, 6, days=0, seed=1, ranker_strength=1.5))
    found.log.write_parquet(folder / "log.parquet")
    truth = found.attractiveness
    rng = np.random.default_rng(0)
    noise = pl.Series(rng.standard_normal(truth.height))
    good = truth.select("query", "doc", score=pl.col("attractiveness") + 0.05 * noise)
    good.write_parquet(folder / "good.parquet")
    truth.select("query", "doc", score=-pl.col("attractiveness") + 0.05 * noise).write_csv(folder / "bad.csv")
    good.filter(pl.col("doc") < 9).write_parquet(folder / "some.parquet")
    run = good.select(
        pl.format(
            "{} Q0 {} 0 {} {}",
            "query",
            "doc",
            "score",
            pl.when(pl.col("query") < 40).then(pl.lit("a")).otherwise(pl.lit("b")),
        )
    )
    lines = run.to_series().to_list()
    (folder / "two.run").write_text("\n".join(lines) + "\n")
    (folder / "one.run").write_text("\n".join(line[:-1] + "x" for line in lines) + "\n\n")
    grade = (pl.col("attractiveness") * 4).round().cast(pl.Int64)
    truth.select("query", "doc", relevance=grade).write_csv(folder / "judged.csv")
    judged = truth.select(pl.format("{} 0 {} {}", "query", "doc", grade)).to_series()
    (folder / "judged.qrels").write_text("\n".join(judged) + "\n")
    return folder


@pytest.fixture
def place(drawn: Path, run_in_process: Run) -> Path:
    """Return the folder, with a fit."""
    if not (drawn / "fit").exists():
        run_in_process("fit", "log.parquet", "--no-compare", "-o", "fit", cwd=drawn, code=DONE)
    return drawn


@pytest.fixture
def evaluate(run_in_process: Run, place: Path, tmp_path: Path) -> Callable[..., CompletedProcess[str]]:
    """Return a function that evaluates rankings into tmp_path/out."""

    def run(*words: str, log: str = "log.parquet") -> CompletedProcess[str]:
        out = str(tmp_path / "out")
        return run_in_process("evaluate", log, "--propensities", "fit", *words, "-o", out, "--force", cwd=place)

    return run


def tables(folder: Path) -> tuple[pl.DataFrame, pl.DataFrame, dict[str, Any]]:
    """Return what was written."""
    manifest = manifest_of(folder / "out")
    metrics, differences = (pl.read_parquet(folder / "out" / f"{name}.parquet") for name in ("metrics", "differences"))
    return metrics, differences, manifest


def value_of(metrics: pl.DataFrame, ranking: str, metric: str, estimator: str) -> float:
    """Return one value."""
    return metrics.filter(ranking=ranking, metric=metric, estimator=estimator)["value"].item()


@pytest.mark.slow
def test_ips_finds_the_better_ranking_where_naive_clicks_prefer_the_logs_own(evaluate: Run, tmp_path: Path) -> None:
    done = evaluate("--scores", "good.parquet", "--scores", "bad.csv", "--baseline", "logged")
    assert done.returncode == DONE, done.stderr
    metrics, differences, manifest = tables(tmp_path)

    assert metrics.columns == METRICS
    assert differences.columns == DIFFERENCES
    assert metrics["ranking"].unique(maintain_order=True).to_list() == ["logged", "good", "bad"]
    naive, ips = (
        {name: value_of(metrics, name, "dcg", by) for name in ("logged", "good", "bad")} for by in ("naive", "ips")
    )
    assert naive["logged"] > naive["good"] > naive["bad"]
    assert ips["good"] > ips["logged"] > ips["bad"]
    verdicts = dict(differences.filter(metric="dcg", estimator="snips").select("ranking", "verdict").iter_rows())
    assert verdicts == {"good": "better", "bad": "worse"}
    good, bad = manifest["verdicts"]  # without a position bias, DCG is that of naive clicks
    assert 0 < good["turns_below_ci_low"] < good["turns_below"] < good["turns_below_ci_high"] < 1
    assert (good["verdict"], bad["verdict"], bad["turns_below"]) == ("better", "worse", None)
    assert differences.filter(estimator="naive")["verdict"].null_count() == 4
    assert manifest["command"] == "evaluate"
    compared = next(one for one in manifest["reasons"] if one["code"] == "ranking-compared")
    assert compared["sentence"].startswith("good beats the log's own order: DCG@10 0.")
    assert "good beats the log's own order: DCG@10" in " ".join(done.stderr.split())


@pytest.mark.slow
def test_ranks_that_contradict_scores_or_scores_that_tie_are_named_and_the_option_takes_the_ranks(
    evaluate: Run, place: Path, tmp_path: Path
) -> None:
    ranked = pl.read_parquet(place / "good.parquet").with_columns(
        rank=pl.col("score").rank("ordinal", descending=True).over("query").cast(pl.Int64) - 1
    )
    ranked.with_columns(score=1 - pl.col("score")).write_csv(tmp_path / "distance.csv")
    ranked.with_columns(score=1.0).write_parquet(tmp_path / "tied.parquet")
    part = pl.when(pl.col("rank") < 4).then(0.0).otherwise("score")  # 6 of the 66 pairs of 12 documents
    ranked.with_columns(score=part - pl.col("rank") // 4 * 10, Rank="rank").drop("rank").write_csv(tmp_path / "six.csv")
    ranked.select("query", "doc", score=1.0).write_csv(tmp_path / "without.csv")
    ranked.drop("score").write_csv(tmp_path / "ranks.csv")
    lines = ranked.select(pl.format("{} Q0 {} {} {} x", "query", "doc", "rank", 5 - pl.col("score"))).to_series()
    (tmp_path / "away.trec").write_text("\n".join(lines) + "\n")
    files = [f"--scores={tmp_path / name}" for name in ("distance.csv", "tied.parquet", "six.csv")]
    files.append(f"--rankings={tmp_path / 'away.trec'}")
    done = evaluate(*files, "--scores", str(tmp_path / "without.csv"))
    said = [line for line in done.stderr.splitlines() if "pairs of documents" in line]
    opposite = "ranks and scores order 100% of the pairs of documents of a query in opposite ways"
    same = "of the pairs of documents of a query have the same score, and are in the descending order of their ids."
    for line, name, words in zip(
        said,
        ("distance", "tied", "six", "without", "away"),
        (opposite, f"100% {same} Where ranks", f"9% {same} Where ranks", f"100% {same} Write scores", opposite),
        strict=True,
    ):
        assert line.startswith(f"! {name}: {words}")
    agree = f"--scores=good={place / 'good.parquet'}"
    evaluate(agree)
    good = value_of(tables(tmp_path)[0], "good", "dcg", "ips")
    done = evaluate(*files, "--scores", str(tmp_path / "ranks.csv"), "--order", "rank")
    assert "pairs of documents" not in done.stderr
    metrics = tables(tmp_path)[0]
    for name in ("distance", "tied", "six", "away", "ranks"):
        assert value_of(metrics, name, "dcg", "ips") == pytest.approx(good, rel=1e-12)
    assert "--order rank -o predicted" in " ".join(done.stderr.split())
    done = evaluate(agree, "--order", "rank")
    assert done.returncode == UNUSABLE
    assert "no column is the rank of a document (rank)" in " ".join(done.stderr.split())


def test_whole_scores_that_no_float_tells_apart_keep_their_order(evaluate: Run, place: Path, tmp_path: Path) -> None:
    good = pl.read_parquet(place / "good.parquet")
    small = good.with_columns(score=pl.col("score").rank("ordinal").over("query").cast(pl.Int64))
    large = small.with_columns(score=pl.col("score") + 2**60)
    small.write_parquet(place / "small.parquet")
    large.write_parquet(place / "signed.parquet")
    small.with_columns(score=2**64 - 1 - pl.col("score").max() + pl.col("score").cast(pl.UInt64)).write_parquet(
        place / "unsigned.parquet"
    )
    large.write_csv(place / "text.csv")
    lines = large.select(pl.format("{} Q0 {} 0 {} x", "query", "doc", "score")).to_series()
    (place / "large.run").write_text("\n".join(lines) + "\n")
    names = ("small.parquet", "signed.parquet", "unsigned.parquet", "text.csv")

    done = evaluate(*(word for name in names for word in ("--scores", name)), "--rankings", "large.run")

    assert done.returncode == DONE, done.stderr
    metrics, _, _ = tables(tmp_path)
    values = {name: value_of(metrics, name, "dcg", "ips") for name in ("small", "signed", "unsigned", "text", "large")}
    assert len({*values.values()}) == 1, values
    assert values["small"] > value_of(metrics, "logged", "dcg", "ips")


@pytest.mark.parametrize("judgments", ["judged.csv", "judged.qrels"])
def test_judgments_give_ndcg_and_paired_differences(evaluate: Run, tmp_path: Path, judgments: str) -> None:
    done = evaluate("--scores", "good.parquet", "--scores", "bad.csv", "--judgments", judgments, "-k", "5")
    assert done.returncode == DONE, done.stderr
    metrics, differences, _ = tables(tmp_path)
    good, bad = (value_of(metrics, name, "ndcg", "judgments") for name in ("good", "bad"))
    assert bad < good < 1
    judged = differences.filter(metric="ndcg").row(0, named=True)
    assert (judged["ranking"], judged["verdict"], judged["k"]) == ("bad", "worse", 5)
    assert judged["difference"] == pytest.approx(bad - good)


@pytest.mark.slow
@pytest.mark.parametrize("candidates", ["page", "query"])
def test_the_same_input_gives_the_same_bytes(run_in_process: Run, place: Path, tmp_path: Path, candidates: str) -> None:
    log = pl.read_parquet(place / "log.parquet").with_columns(copies=1 + pl.col("doc") % 3 / 7)
    log.write_parquet(tmp_path / "weighted.parquet")
    words = ("--propensities", "fit", "--scores", "good.parquet", "--rankings", "two.run", "--candidates", candidates)
    found: set[bytes] = set()
    for number in range(3):
        out = tmp_path / str(number)
        run_in_process(
            "evaluate",
            tmp_path / "weighted.parquet",
            "--weight-column",
            "copies",
            *words,
            "-o",
            out,
            cwd=place,
            code=DONE,
        )
        found.add(b"".join((out / name).read_bytes() for name in ("metrics.parquet", "differences.parquet")))
    assert len(found) == 1


@pytest.mark.slow
@pytest.mark.parametrize("candidates", ["page", "query"])
def test_a_log_in_many_buckets_says_the_same(run_in_process: Run, place: Path, tmp_path: Path, candidates: str) -> None:
    log = pl.read_parquet(place / "log.parquet")
    copies = [log.with_columns(pl.col("session") + copy * 10_000) for copy in range(8)]  # too many for 256 MiB at once
    pl.concat(copies).write_parquet(tmp_path / "large.parquet")
    words = ("--propensities", "fit", "--scores", "good.parquet", "--candidates", candidates, "--memory", "256MiB")
    found: list[pl.DataFrame] = []
    for name, path in (("small", place / "log.parquet"), ("large", tmp_path / "large.parquet")):
        run_in_process("evaluate", path, *words, "-o", tmp_path / name, cwd=place, code=DONE)
        found.append(pl.read_parquet(tmp_path / name / "metrics.parquet").drop_nulls("value"))
    assert np.allclose(found[0]["value"], found[1]["value"], rtol=1e-9)
    assert np.allclose(found[0]["std_error"], found[1]["std_error"], rtol=1e-9)


def test_clicks_without_a_propensity_are_told_and_doubted(run_in_process: Run, place: Path, tmp_path: Path) -> None:
    fit = pl.read_parquet(place / "fit" / "propensities.parquet")
    lost = pl.col("position") == 3
    names = ("propensity", "weight_propensity", "examination")
    changed = fit.with_columns(pl.when(~lost).then(pl.col(name)) for name in names)
    folder = tmp_path / "changed"
    folder.mkdir()
    for path in (place / "fit").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    changed.write_parquet(folder / "propensities.parquet")
    reseal(folder)
    words = ("--propensities", folder, "--scores", "good.parquet", "-o", tmp_path / "out")
    done = run_in_process("evaluate", "log.parquet", *words, cwd=place, code=WITH_DOUBTS)
    clicks = pl.read_parquet(place / "log.parquet").filter(position=3)["click"].sum()
    manifest = manifest_of(tmp_path / "out")
    assert manifest["evaluation"]["clicks_without_propensity"] == clicks
    assert "are at positions without a propensity" in " ".join(done.stderr.split())


def test_a_log_without_clicks_says_nothing_of_rankings(run_in_process: Run, place: Path, tmp_path: Path) -> None:
    pl.read_parquet(place / "log.parquet").filter(click=0).write_parquet(tmp_path / "quiet.parquet")
    words = ("--propensities", "fit", "--scores", "good.parquet", "-o", tmp_path / "out")
    done = run_in_process("evaluate", tmp_path / "quiet.parquet", *words, cwd=place, code=WITH_DOUBTS)
    assert "This log says nothing of rankings" in " ".join(done.stderr.split())


@pytest.mark.slow
def test_rankings_meet_logs_whose_ids_have_several_columns(run_in_process: Run, place: Path, tmp_path: Path) -> None:
    halved = {"half": pl.col("query") % 2, "query": pl.format("=q{}", pl.col("query") // 2)}
    for name in ("log.parquet", "good.parquet"):
        pl.read_parquet(place / name).with_columns(**halved).write_parquet(tmp_path / name)
    values: list[list[float]] = []
    for folder, ids in ((place, ()), (tmp_path, ("--query", "query", "--query", "half"))):
        files = ("--propensities", place / "fit", "--scores", "good.parquet", "-o", tmp_path / folder.name / "out")
        run_in_process("evaluate", "log.parquet", *ids, *files, cwd=folder, code=DONE)
        values.append(pl.read_parquet(tmp_path / folder.name / "out" / "metrics.parquet")["value"].to_list())
    assert values[1] == pytest.approx(values[0])


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a position-based log of ten days, and another of documents that it does not have."""
    folder = tmp_path_factory.mktemp("judged")
    found = simulate(SimulationOptions("pbm", 6_000, 40, 12, 6, days=10, seed=1, ranker_strength=1.0))
    found.log.write_parquet(folder / "log.parquet")
    found.log.with_columns(pl.col("doc") + 1000).write_parquet(folder / "unseen.parquet")
    grade = (pl.col("attractiveness") * 4).round().cast(pl.Int64)
    found.attractiveness.select("query", "doc", relevance=grade).write_csv(folder / "judged.csv")
    return folder


def judged(run: Run, days: Path, out: Path, *words: str) -> dict[str, Any]:
    run("evaluate", "log.parquet", *words, "-o", out, cwd=days, code=DONE)
    return manifest_of(out)


def test_a_log_without_clicks_is_said_to_tell_nothing(days: Path, tmp_path: Path, run_in_process: Run) -> None:
    pl.read_parquet(days / "log.parquet").with_columns(click=pl.lit(0)).write_parquet(tmp_path / "none.parquet")
    done = run_in_process("evaluate", "none.parquet", "--models", "rctr,pbm", "-o", "out", cwd=tmp_path)
    assert "the held-out sessions have no click" in done.stdout + done.stderr


@pytest.mark.parametrize(
    "words", [("--split", "time", "--timestamp", "timestamp"), ("--test", "later.parquet"), ("--test-share", "0.5")]
)
def test_sessions_are_held_out_as_asked(
    words: tuple[str, ...], days: Path, tmp_path: Path, run_in_process: Run
) -> None:
    later = pl.read_parquet(days / "log.parquet").with_columns(pl.col("session") + 1_000_000)
    later.write_parquet(days / "later.parquet")
    pages = judged(run_in_process, days, tmp_path / "out", "--models", "dctr,pbm", *words)["pages"]
    share = pages["held_out"]["sessions"] / 6_000
    wanted = {"--split": 0.25, "--test": 1.0, "--test-share": 0.5}[words[0]]
    assert share == pytest.approx(wanted, abs=0.03)
    if words[0] != "--test":
        assert pages["learnt"]["sessions"] + pages["held_out"]["sessions"] == 6_000


@pytest.mark.slow
def test_what_was_not_learnt_is_said(days: Path, tmp_path: Path, run_in_process: Run) -> None:
    log = pl.read_parquet(days / "log.parquet")
    shallow = log.filter(pl.col("position") < log["position"].max())
    for name, learnt in {"docs": log.with_columns(pl.col("doc").cast(pl.String) + "?"), "positions": shallow}.items():
        learnt.with_columns(pl.col("doc").cast(pl.String)).write_parquet(tmp_path / f"{name}.parquet")
    log.with_columns(pl.col("doc").cast(pl.String)).write_parquet(tmp_path / "test.parquet")
    said = dict[str, str]()
    for name in ("docs", "positions"):
        folder = tmp_path / f"out-{name}"
        done = run_in_process(
            *("evaluate", f"{name}.parquet", "--models", "rctr,pbm", "--test", "test.parquet", "-o", folder),
            cwd=tmp_path,
        )
        said[name] = " ".join((done.stdout + done.stderr).split())
    assert "100% of the held-out impressions show documents that models did not learn" in said["docs"]
    assert f"go down to position {log['position'].max()}" in said["positions"]
    assert "did not learn" not in said["positions"]


@pytest.mark.slow
def test_models_are_judged_by_the_same_pages_whatever_they_number_and_however_much_was_never_seen(
    tmp_path: Path, run_in_process: Run
) -> None:
    """Unseen documents have one number: pages that show some are equal to one model and different to another."""
    rng = np.random.default_rng(0)
    n_sessions, length = 4_000, 3
    session = np.repeat(np.arange(n_sessions), length)
    rare = rng.zipf(1.3, n_sessions * length) % 100_000
    position = np.tile(np.arange(1, length + 1), n_sessions)
    click = rng.random(len(session)) < 0.5 / position
    columns = {"session": session, "query": session % 3, "doc": rare * 4 + position, "position": position}
    pl.DataFrame(columns | {"click": click.astype(np.int8)}).write_parquet(tmp_path / "rare.parquet")
    for models in ("dctr,rdctr", "rdctr,dctr", "rdctr"):
        out = tmp_path / models
        run_in_process("evaluate", tmp_path / "rare.parquet", "--models", models, "-o", out, code=DONE)
    both, turned, alone = (
        pl.read_parquet(tmp_path / models / "models.parquet").filter(model="rdctr").row(0)
        for models in ("dctr,rdctr", "rdctr,dctr", "rdctr")
    )
    assert both == turned
    assert both[1:3] == alone[1:3]  # the log-likelihood and its standard error


def test_judgments_add_ndcg_auc_and_the_dependence_on_the_ranker(
    days: Path, tmp_path: Path, run_in_process: Run
) -> None:
    judged(run_in_process, days, tmp_path / "out", "--models", "pbm,dctr,rctr", "--judgments", "judged.csv")
    models = pl.read_parquet(tmp_path / "out" / "models.parquet")
    assert models.columns[:5] == ["ndcg", "auc", "dependence_on_ranker", "dependence_p_value", "model"]
    table = {row["model"]: row for row in models.to_dicts()}
    assert table["pbm"]["auc"] > 0.75
    assert table["pbm"]["ndcg"] > 0.9
    assert table["rctr"]["auc"] is None
    assert table["dctr"]["dependence_p_value"] < 0.05  # what stands high is clicked more, whatever its grade
    assert table["dctr"]["dependence_on_ranker"] < table["pbm"]["dependence_on_ranker"]


@pytest.mark.parametrize(
    ("scale", "models", "said"),
    [
        (400, "pbm,ubm,dbn", "Leave it out: --models pbm,dbn."),
        (400, "ubm", "Use --models pbm."),
        (100_000, "pbm", "the largest position is 600,000"),
    ],
)
def test_positions_that_take_gigabytes_are_refused(
    scale: int, models: str, said: str, days: Path, tmp_path: Path, run_in_process: Run
) -> None:
    pl.read_parquet(days / "log.parquet").with_columns(pl.col("position") * scale).write_parquet(
        tmp_path / "far.parquet"
    )
    done = run_in_process(
        "evaluate", tmp_path / "far.parquet", "--models", models, "-o", tmp_path / "out", code=UNUSABLE
    )
    assert said in " ".join(done.stderr.split())
