"""`posbias evaluate --models`: what it writes and says, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from workshop import RunPosbias as Run

from posbias.core.simulation.simulate import SimulationOptions, simulate

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


def test_a_log_of_one_page_leaves_nothing_to_learn_or_to_judge_by(
    place: Path, tmp_path: Path, run_in_process: Run
) -> None:
    done = run_in_process("evaluate", "one-page.parquet", "--models", "pbm", "-o", tmp_path / "out", cwd=place)
    assert done.returncode == UNUSABLE
    assert "no session is" in " ".join(done.stderr.split())


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
