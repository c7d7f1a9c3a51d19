"""Propensities that the clicks of a log contradict: of another market, or where a ranker knows the user."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from command_results import manifest_of, reseal
from workshop import RunPosbias as Run

from posbias.io.results.conclusions import CAUTION, Reason

DONE, WITH_DOUBTS = 0, 1
CODE = "propensities-of-other-pages"
QUERIES, DOCS, POSITIONS = 80, 15, 9
STEEP, FLAT = (np.arange(1, POSITIONS + 1) ** -power for power in (0.9, 0.3))


def draw_log(seed: int, theta: np.ndarray, *, knows_the_user: bool = False) -> pl.DataFrame:
    """Draw pages of users of two segments, whose taste a ranker may know."""
    random = np.random.default_rng(seed)
    taste = np.random.default_rng(0).uniform(0.05, 0.7, (2, QUERIES, DOCS))
    pages, error = 10_000, np.random.default_rng(9).normal(0, 0.15, (QUERIES, DOCS))
    if not knows_the_user:
        taste[1] = taste[0]
    query, segment = random.integers(0, QUERIES, pages), random.integers(0, 2, pages)
    order = np.argsort(error[query] - taste[segment, query] + random.normal(0, 0.15, (pages, DOCS)), axis=1)[
        :, :POSITIONS
    ]
    clicked = random.random((pages, POSITIONS)) < theta * np.take_along_axis(taste[segment, query], order, axis=1)
    return pl.DataFrame(
        {
            "session": np.repeat(np.arange(pages), POSITIONS),
            "query": np.repeat(query, POSITIONS),
            "doc": order.ravel(),
            "position": np.tile(np.arange(1, POSITIONS + 1), pages),
            "click": clicked.ravel().astype(np.int64),
            "segment": np.repeat(segment, POSITIONS),
        }
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with logs of two markets, and of one whose ranker knows the user, and scores."""
    folder = tmp_path_factory.mktemp("markets")
    for name, log in {
        "first": draw_log(1, STEEP),
        "later": draw_log(2, STEEP),
        "abroad": draw_log(3, FLAT),
        "personal": draw_log(4, STEEP, knows_the_user=True),
    }.items():
        log.write_parquet(folder / f"{name}.parquet")
    scores = draw_log(1, STEEP).select("query", "doc").unique(maintain_order=True)
    scores.with_columns(score=pl.col("doc") * 37 % 11 + pl.col("doc") / 100).write_csv(folder / "new.csv")
    return folder


def doubts(out: Path) -> list[Mapping[str, Any]]:
    """Return the reasons against the propensities of a result."""
    return [reason for reason in manifest_of(out)["reasons"] if reason["code"] == CODE]


COMMANDS = {
    "predict": ("predict", "--scores", "new.csv"),
    "evaluate": ("evaluate", "--scores", "new.csv"),
    "counts": ("weight",),
    "pages": ("weight", "--layout", "session"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_propensities_of_another_market_are_doubted_and_those_of_an_earlier_log_of_this_one_are_not(
    run_in_process: Run, place: Path, tmp_path: Path, command: str
) -> None:
    run_in_process("fit", "first.parquet", "--no-compare", "-o", tmp_path / "fit", cwd=place)
    name, *options = COMMANDS[command]
    for log in ("later", "abroad"):
        words = (f"{log}.parquet", *options, "--propensities", tmp_path / "fit", "-o", tmp_path / log)
        code = WITH_DOUBTS if (name, log) == ("predict", "abroad") else DONE
        run_in_process(name, *words, cwd=place, code=code)
    assert doubts(tmp_path / "later") == []
    (doubt,) = doubts(tmp_path / "abroad")
    position = int(doubt["sentence"].split("position ")[1].split()[0])
    ratio = FLAT[position - 1] / STEEP[position - 1]
    assert ratio > 2
    assert doubt["figures"]["ratio"] == pytest.approx(ratio, rel=0.25)  # the largest of several
    stops = {reason["code"] for reason in manifest_of(tmp_path / "abroad")["reasons"] if reason["severity"] == "stop"}
    assert stops == ({CODE} if name == "predict" else set())


def test_a_table_of_propensities_is_held_against_the_clicks_of_the_log(
    run_in_process: Run, place: Path, tmp_path: Path
) -> None:
    for power, doubted in (("0.9", 0), ("0.3", 1)):
        run_in_process("weight", "later.parquet", "--propensities", f"power:{power}", "-o", tmp_path / power, cwd=place)
        assert len(doubts(tmp_path / power)) == doubted


def test_what_a_fit_doubts_of_itself_is_doubted_of_what_is_made_from_it(
    run_in_process: Run, place: Path, tmp_path: Path
) -> None:
    fit = tmp_path / "fit"
    run_in_process("fit", "first.parquet", "--no-compare", "-o", fit, cwd=place)
    differ = Reason("popular-results-differ", CAUTION, "Position matters less for popular results.")
    reseal(fit, verdict="with care", reasons=[differ])
    run_in_process("weight", "first.parquet", "--propensities", fit, "-o", tmp_path / "out", cwd=place, code=DONE)
    manifest = manifest_of(tmp_path / "out")
    assert manifest["verdict"] == "with care"
    assert "popular results lose clicks with position differently" in manifest["conclusion"]


def test_where_a_ranker_knows_the_user_a_fit_by_segment_gives_weights_but_no_prediction(
    run_in_process: Run, place: Path, tmp_path: Path
) -> None:
    fit, log = tmp_path / "fit", "personal.parquet"
    run_in_process("fit", log, "--stratify", "segment", "--no-compare", "-o", fit, cwd=place)
    run_in_process("weight", log, "--propensities", fit, "-o", tmp_path / "weighted", cwd=place, code=DONE)
    assert doubts(tmp_path / "weighted") == []
    words = ("--propensities", fit, "--scores", "new.csv", "-o", tmp_path / "predicted")
    run_in_process("predict", log, *words, cwd=place, code=WITH_DOUBTS)
    assert len(doubts(tmp_path / "predicted")) == 1
    assert "predictions" not in manifest_of(tmp_path / "predicted")
