"""`posbias simulate`: a log and its truth on disk, the same bytes for the same seed, refusals in words."""

import hashlib
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from command_results import manifest_of
from polars.testing import assert_frame_equal
from workshop import RunPosbias

from posbias.core.simulation.simulate import SimulationOptions, simulate

SMALL = ("simulate", "--sessions", "400", "--queries", "20", "--docs-per-query", "12", "--positions", "4")
EVERYTHING = (
    *("--model", "ubm", "--days", "3", "--feedback-strength", "1", "--segments", "2", "--device", ".5"),
    *("--device", "1", "--depth", ".9", "--readiness", ".5,1.5", "--attractiveness-scale", ".5", "--theta-shock", ".1"),
    *("--randomized-share", ".2", "--swap", "1-3", "--swap", "2-3", "--swap-share", ".2", "--score-weight", ".8"),
)
CELLS = ("--cells", "row=1,.6,.3", "--cells", "ad=.4,.2:.7", "--cells", "answer=.3:.5,.6,.8,.9")
FILES = ["attractiveness_truth.parquet", "log.parquet", "manifest.json", "truth.parquet"]


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    """Return labels of nine queries with five documents and one with two, as CSV under other names."""
    rows = [(f"q{query}", f"d{doc}", doc % 3, doc * 0.5) for query in range(10) for doc in range(5 if query else 2)]
    table = pl.DataFrame(rows, schema=["query_id", "doc_id", "grade", "feature"], orient="row")
    table.write_csv(tmp_path / "labels.csv")
    return tmp_path / "labels.csv"


@pytest.mark.parametrize("more", [(), EVERYTHING, CELLS], ids=["plain", "everything", "cells"])
def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(
    run_in_process: RunPosbias, tmp_path: Path, more: tuple[str, ...]
) -> None:
    made: list[dict[str, str]] = []
    for seed in ("5", "5", "6"):
        run_in_process(*SMALL, *more, "--seed", seed, "-o", "out", "--force", code=0)
        made.append(digests(tmp_path / "out"))
    one, same, other = made

    assert sorted(one) == FILES
    assert one == same
    assert one["log.parquet"] != other["log.parquet"]
    assert one["attractiveness_truth.parquet"] != other["attractiveness_truth.parquet"]


def test_what_is_written_is_what_the_simulator_draws(run_in_process: RunPosbias, tmp_path: Path) -> None:
    options = SimulationOptions(
        n_sessions=400,
        n_queries=20,
        docs_per_query=12,
        n_positions=4,
        query_exponent=0.0,
        contexts=(0.5, (1.0, 0.8, 0.4, 0.2)),
        depth=(0.0, 1.0, 0.0, 2.0),
        ranker_strength=np.inf,
        attractiveness_shape=(2.0, 3.0),
        swap_share=0.5,
        swaps=((1, 3),),
        seed=9,
    )
    world = "--query-exponent 0 --attractiveness 2:3 --ranker-strength inf --days 0 --seed 9"
    users = "--device .5 --device 1,.8,.4,.2 --depth 0,1,0,2 --swap 1-3 --swap-share .5"
    run_in_process(*SMALL, *world.split(), *users.split(), "-o", "out", code=0)
    drawn = simulate(options)

    assert_frame_equal(pl.read_parquet(tmp_path / "out" / "log.parquet"), drawn.log)
    assert_frame_equal(pl.read_parquet(tmp_path / "out" / "truth.parquet"), drawn.propensities)
    assert_frame_equal(pl.read_parquet(tmp_path / "out" / "attractiveness_truth.parquet"), drawn.attractiveness)


def test_a_log_of_several_blocks_is_written_whole(
    run_in_process: RunPosbias, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("posbias.core.simulation.simulate.SCORES_PER_BLOCK", 600)
    run_in_process(*SMALL, "-o", "out", code=0)
    log = pl.read_parquet(tmp_path / "out" / "log.parquet")

    assert log["session"].to_list() == [session for session in range(400) for _ in range(4)]


def test_cells_are_columns_of_the_log_and_of_the_truth_by_their_plain_names(
    run_in_process: RunPosbias, tmp_path: Path
) -> None:
    done = run_in_process(*SMALL, *CELLS, "--days", "0", "-o", "out", code=0)
    log, truth = (pl.read_parquet(tmp_path / "out" / name) for name in ("log.parquet", "truth.parquet"))
    cell = ["row", "ad", "answer", "position"]

    assert log.columns == ["session", "query", "doc", "position", "click", "row", "ad", "answer"]
    assert truth.columns == ["position", "row", "ad", "answer", "propensity", "examination"]
    assert_frame_equal(log.select(cell).unique().sort(cell), truth.select(cell).sort(cell))
    assert "posbias run out/log.parquet --cell row --cell ad --cell answer -o result" in done.stderr
    (row,) = [line.split() for line in done.stderr.splitlines() if line.split()[:4] == ["1", "false", "true", "2"]]
    shown = log.filter(row=1, ad=False, answer=True, position=2)
    assert row[4:6] == [f"{shown.height:,}", str(shown["click"].sum())]
    assert row[7] == "0.300"  # .5 at position 2, times .6 below an answer, relative to pages without one


@pytest.mark.slow
@pytest.mark.parametrize("weights", [".2:1", ".5"])
def test_a_log_of_team_drafts_is_compared_by_the_command_that_is_named(
    run_in_process: RunPosbias, tmp_path: Path, weights: str
) -> None:
    done = run_in_process(*SMALL, "--interleave", weights, "--users", "300", "-o", "out", code=0)
    ranks = "--rank-a rank_a --rank-b rank_b " * (":" in weights)  # the same ranker twice: no ranks differ
    command = f"posbias interleave out/log.parquet --team team {ranks}--user user -o verdict"

    assert command in done.stderr
    run_in_process(*command.split()[1:], code=(0, 1, 3))
    verdict = pl.read_parquet(tmp_path / "verdict" / "verdict.parquet")
    assert (verdict["difference"] < -0.1).all() is (":" in weights)


# --- other click models ---------------------------------------------------------------------------------------


# --- labels ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranker", [(), ("--ranker", "weak", "--ranker-queries", "3")], ids=["label", "weak"])
def test_a_log_from_labels_shows_their_documents_and_says_what_was_left_out(
    run_in_process: RunPosbias, tmp_path: Path, labels: Path, ranker: tuple[str, ...]
) -> None:
    arguments = ("simulate", "--labels", labels, "--positions", "4", "--sessions", "900", *ranker)
    done = run_in_process(*arguments, "-o", "out", code=0)
    log = pl.read_parquet(tmp_path / "out" / "log.parquet")
    truth = pl.read_parquet(tmp_path / "out" / "attractiveness_truth.parquet")
    manifest = manifest_of(tmp_path / "out")

    assert "1 of 10 queries are left out: they have fewer than 4 labelled documents" in done.stderr
    assert manifest["labels"] == {"queries": 9, "queries_left_out": 1, "docs": 45}
    assert list(manifest["sources"].values()) == [str(labels)]
    assert set(log["query"]) == {f"q{number}" for number in range(1, 10)}
    assert set(log["doc"]) == {f"d{number}" for number in range(5)}
    assert truth["attractiveness"].round(6).unique().sort().to_list() == [0.1, 0.4, 1.0]


def test_labels_are_not_overwritten(run_in_process: RunPosbias, tmp_path: Path, labels: Path) -> None:
    run_in_process("simulate", "--labels", labels, "--positions", "4", "-o", tmp_path, "--force", cwd=Path("/"), code=2)

    assert labels.is_file()
