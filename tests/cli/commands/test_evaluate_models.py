"""`posbias evaluate --models`: what it writes and says, and what it refuses."""

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import polars as pl
import pytest

from posbias.core.models import click_model_names
from posbias.core.simulation.simulate import SimulationOptions, simulate

Run = Callable[..., CompletedProcess[str]]
DONE, UNUSABLE = 0, 2


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a position-based log of ten days, and another of documents that it does not have."""
    folder = tmp_path_factory.mktemp("judged")
    found = simulate(SimulationOptions("pbm", 6_000, 40, 12, 6, days=10, seed=1, ranker_strength=1.0))
    found.log.write_parquet(folder / "log.parquet")
    found.log.with_columns(pl.col("doc") + 1000).write_parquet(folder / "unseen.parquet")
    grade = (pl.col("attractiveness") * 4).round().cast(pl.Int64)
    found.attractiveness.select("query", "doc", relevance=grade).write_csv(folder / "judged.csv")
    found.log.head(6).write_parquet(folder / "one-page.parquet")
    return folder


def judged(run: Run, place: Path, out: Path, *words: str) -> dict[str, Any]:
    done = run("evaluate", "log.parquet", *words, "-o", out, cwd=place)
    assert done.returncode == DONE, done.stderr
    return json.loads((out / "manifest.json").read_text())


def test_all_models_are_judged_and_the_true_one_is_not_beaten(place: Path, tmp_path: Path, run_in_process: Run) -> None:
    manifest = judged(run_in_process, place, tmp_path / "out", "--models", "all")
    table = pl.read_parquet(tmp_path / "out" / "models.parquet")
    assert set(table["model"]) == set(click_model_names())
    assert table["log_likelihood"].is_sorted(descending=True)
    assert manifest["models"] == [
        {name: value for name, value in row.items() if value is not None} for row in table.iter_rows(named=True)
    ]
    (pbm,) = table.filter(model="pbm").to_dicts()
    assert not pbm["significant"]
    (gctr,) = table.filter(model="gctr").to_dicts()
    assert gctr["significant"]
    assert gctr["perplexity"] > pbm["perplexity"] > 1


def test_the_number_of_threads_changes_no_byte(place: Path, tmp_path: Path, run_posbias: Run) -> None:
    for threads in ("1", "2"):
        judged(run_posbias, place, tmp_path / threads, "--models", "pbm,ubm,tpbm,dcm,dbn", "--threads", threads)
    for name in ("models", "parameters", "calibration", "perplexity_by_position"):
        one, two = (tmp_path / threads / f"{name}.parquet" for threads in ("1", "2"))
        assert one.read_bytes() == two.read_bytes()


def test_spaces_between_names_do_not_matter(place: Path, tmp_path: Path, run_in_process: Run) -> None:
    manifest = judged(run_in_process, place, tmp_path / "out", "--models", "rctr, pbm")
    assert [row["model"] for row in manifest["models"]] == ["pbm", "rctr"]


def test_a_log_without_clicks_is_said_to_tell_nothing(place: Path, tmp_path: Path, run_in_process: Run) -> None:
    pl.read_parquet(place / "log.parquet").with_columns(click=pl.lit(0)).write_parquet(tmp_path / "none.parquet")
    done = run_in_process("evaluate", "none.parquet", "--models", "rctr,pbm", "-o", "out", cwd=tmp_path)
    assert "the held-out sessions have no click" in done.stdout + done.stderr


def test_impressions_of_a_page_must_weigh_the_same(place: Path, tmp_path: Path, run_in_process: Run) -> None:
    log = pl.read_parquet(place / "log.parquet").with_columns(w=pl.col("position").cast(pl.Float64))
    log.write_parquet(tmp_path / "weighted.parquet")
    done = run_in_process(
        *("evaluate", "weighted.parquet", "--models", "rctr,pbm", "--weight-column", "w", "-o", "out"), cwd=tmp_path
    )
    assert done.returncode == UNUSABLE
    assert "give all impressions of a page one weight" in done.stderr


def test_json_holds_the_models_best_first(place: Path, tmp_path: Path, run_in_process: Run) -> None:
    done = run_in_process(
        *("evaluate", "log.parquet", "--models", "rctr,pbm", "--json", "-o", tmp_path / "out"), cwd=place
    )
    models = json.loads(done.stdout)["models"]
    assert [model["model"] for model in models] == ["pbm", "rctr"]
    assert {"log_likelihood", "perplexity", "std_error"} <= set(models[0])


def test_a_winner_is_named_only_where_the_difference_is_more_than_chance(
    place: Path, tmp_path: Path, run_in_process: Run
) -> None:
    clear = judged(run_in_process, place, tmp_path / "clear", "--models", "pbm,gctr")
    assert clear["verdicts"] == ["pbm predicts held-out clicks best, by more than chance."]
    (even,) = judged(run_in_process, place, tmp_path / "even", "--models", "pbm,ubm")["verdicts"]
    assert "no model is named best" in even


@pytest.mark.parametrize(
    "words", [("--split", "time", "--timestamp", "timestamp"), ("--test", "later.parquet"), ("--test-share", "0.5")]
)
def test_sessions_are_held_out_as_asked(
    words: tuple[str, ...], place: Path, tmp_path: Path, run_in_process: Run
) -> None:
    later = pl.read_parquet(place / "log.parquet").with_columns(pl.col("session") + 1_000_000)
    later.write_parquet(place / "later.parquet")
    pages = judged(run_in_process, place, tmp_path / "out", "--models", "dctr,pbm", *words)["pages"]
    share = pages["held_out"]["sessions"] / 6_000
    wanted = {"--split": 0.25, "--test": 1.0, "--test-share": 0.5}[words[0]]
    assert share == pytest.approx(wanted, abs=0.03)
    if words[0] != "--test":
        assert pages["learnt"]["sessions"] + pages["held_out"]["sessions"] == 6_000


def test_the_log_that_models_were_fitted_to_does_not_judge_them(
    place: Path, tmp_path: Path, run_in_process: Run
) -> None:
    done = run_in_process(
        *("evaluate", "log.parquet", "--models", "rctr,pbm", "--test", "log.parquet", "-o", tmp_path / "out"), cwd=place
    )
    assert done.returncode == UNUSABLE
    assert "would be judged by clicks that they know" in " ".join(done.stderr.split())


def test_what_was_not_learnt_is_said(place: Path, tmp_path: Path, run_in_process: Run) -> None:
    log = pl.read_parquet(place / "log.parquet")
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


def test_documents_that_were_never_seen_get_the_mean_of_the_prior(
    place: Path, tmp_path: Path, run_in_process: Run
) -> None:
    judged(run_in_process, place, tmp_path / "out", "--models", "dctr,gctr", "--test", "unseen.parquet")
    table = pl.read_parquet(tmp_path / "out" / "models.parquet")
    prior = pl.read_parquet(tmp_path / "out" / "parameters.parquet").filter(model="dctr")["prior_mean"].item()
    rate = pl.read_parquet(place / "log.parquet")["click"].cast(pl.Float64).mean()
    assert table.filter(model="dctr")["calibration_error"].item() == pytest.approx(abs(prior - rate), abs=1e-9)


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
        done = run_in_process("evaluate", tmp_path / "rare.parquet", "--models", models, "-o", out)
        assert done.returncode == DONE, done.stderr
    both, turned, alone = (
        pl.read_parquet(tmp_path / models / "models.parquet").filter(model="rdctr").row(0)
        for models in ("dctr,rdctr", "rdctr,dctr", "rdctr")
    )
    assert both == turned
    assert both[1:3] == alone[1:3]  # the log-likelihood and its standard error


def test_judgments_add_ndcg_auc_and_the_dependence_on_the_ranker(
    place: Path, tmp_path: Path, run_in_process: Run
) -> None:
    judged(run_in_process, place, tmp_path / "out", "--models", "pbm,dctr,rctr", "--judgments", "judged.csv")
    table = {row["model"]: row for row in pl.read_parquet(tmp_path / "out" / "models.parquet").to_dicts()}
    assert table["pbm"]["auc"] > 0.75
    assert table["pbm"]["ndcg"] > 0.9
    assert table["rctr"]["auc"] is None
    assert table["dctr"]["dependence_p_value"] < 0.05  # what stands high is clicked more, whatever its grade
    assert table["dctr"]["dependence_on_ranker"] < table["pbm"]["dependence_on_ranker"]


def test_the_same_log_in_several_parts_gives_the_same_measures(
    place: Path, tmp_path: Path, run_in_process: Run
) -> None:
    judged(run_in_process, place, tmp_path / "whole", "--models", "pbm,dbn,rdctr", "--quiet")
    log = pl.read_parquet(place / "log.parquet")
    log.sample(fraction=1.0, shuffle=True, seed=3).write_parquet(tmp_path / "shuffled.parquet")
    done = run_in_process(
        *("evaluate", tmp_path / "shuffled.parquet", "--models", "pbm,dbn,rdctr", "-o", tmp_path / "parts"),
    )
    assert done.returncode == DONE
    one, other = (pl.read_parquet(tmp_path / name / "models.parquet") for name in ("whole", "parts"))
    for column in ("log_likelihood", "perplexity", "conditional_perplexity", "rate_error"):
        assert one[column].to_list() == pytest.approx(other[column].to_list(), rel=1e-6)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--models", "pbm,nothing"), "unknown name; choose from"),
        (("--models", "pbm,nothing"), ", all."),
        (("--models", "pbm,pbm"), "names a model twice"),
        (("--models", "pbm,"), "a name is missing beside a comma"),
        (("--models", "pbm,all"), "`all` stands alone"),
        (("--models", "pbm", "--test-share", "1"), "--test-share 1: must be above 0 and below 1"),
        (("--models", "pbm", "--split", "time"), "--split time needs a column of dates or times"),
        (("--models", "pbm", "--scores", "scores.csv"), "has no effect here: click models are judged by pages"),
        (("--models", "pbm", "--propensities", "fit"), "has no effect here"),
        (("--models", "pbm", "--test", "nothing.parquet"), "nothing.parquet"),
        (
            (
                "--samples",
                "50",
            ),
            "has no effect here: it is about click models",
        ),
        ((), "nothing to evaluate"),
    ],
)
def test_what_cannot_be_judged_is_refused(
    words: tuple[str, ...], said: str, place: Path, tmp_path: Path, run_in_process: Run
) -> None:
    done = run_in_process("evaluate", "log.parquet", *words, "-o", tmp_path / "out", cwd=place)
    assert done.returncode == UNUSABLE
    assert said in " ".join(done.stderr.split())
    assert not (tmp_path / "out").exists()


def test_a_log_of_one_page_leaves_nothing_to_learn_or_to_judge_by(
    place: Path, tmp_path: Path, run_in_process: Run
) -> None:
    done = run_in_process("evaluate", "one-page.parquet", "--models", "pbm", "-o", tmp_path / "out", cwd=place)
    assert done.returncode == UNUSABLE
    assert "no session is" in " ".join(done.stderr.split())


def test_logs_whose_ids_are_of_two_types_are_not_judged_by_each_other(
    place: Path, tmp_path: Path, run_in_process: Run
) -> None:
    text = pl.read_parquet(place / "log.parquet").with_columns(pl.col("query", "doc").cast(pl.String))
    text.write_parquet(tmp_path / "text.parquet")
    for one, other in ((place / "log.parquet", tmp_path / "text.parquet"), ("text.parquet", place / "log.parquet")):
        done = run_in_process(
            *("evaluate", one, "--models", "pbm", "--test", other, "-o", tmp_path / "out"), cwd=tmp_path
        )
        assert done.returncode == UNUSABLE
        assert "the ids of the query are" in " ".join(done.stderr.split())
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("scale", "models", "said"),
    [
        (400, "pbm,ubm,dbn", "Leave it out: --models pbm,dbn."),
        (400, "ubm", "Use --models pbm."),
        (100_000, "pbm", "the largest position is 600,000"),
    ],
)
def test_positions_that_take_gigabytes_are_refused(
    scale: int, models: str, said: str, place: Path, tmp_path: Path, run_in_process: Run
) -> None:
    pl.read_parquet(place / "log.parquet").with_columns(pl.col("position") * scale).write_parquet(
        tmp_path / "far.parquet"
    )
    done = run_in_process("evaluate", tmp_path / "far.parquet", "--models", models, "-o", tmp_path / "out")
    assert done.returncode == UNUSABLE
    assert said in " ".join(done.stderr.split())


@pytest.mark.slow
def test_pages_far_down_are_judged(place: Path, tmp_path: Path, run_in_process: Run) -> None:
    log = pl.read_parquet(place / "log.parquet")
    log.with_columns(pl.col("position") * 1_500).write_parquet(tmp_path / "far.parquet")
    values: list[float] = []
    for name in (place / "log.parquet", tmp_path / "far.parquet"):
        out = tmp_path / Path(name).stem
        done = run_in_process("evaluate", name, "--models", "pbm,dbn", "--samples", "20", "-o", out)
        assert done.returncode == DONE, done.stderr
        values += pl.read_parquet(out / "models.parquet")["log_likelihood"].to_list()
    assert values[:2] == pytest.approx(values[2:], rel=1e-9)


def test_statistics_hold_no_pages(place: Path, tmp_path: Path, run_in_process: Run) -> None:
    run_in_process("collect", "log.parquet", "-o", tmp_path / "counts", cwd=place)
    done = run_in_process("evaluate", tmp_path / "counts", "--models", "pbm", "-o", tmp_path / "out")
    assert done.returncode == UNUSABLE
    assert "click models are evaluated on pages" in " ".join(done.stderr.split())
