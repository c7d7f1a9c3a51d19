"""`posbias explore`: what it writes, how the pages of its plan are read afterwards, and which fits it refuses."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from command_results import manifest_of, reseal
from workshop import RunPosbias as Run

WORLD = "--queries 60 --docs-per-query 10 --positions 5 --ranker-strength 5 --seed 3 --days 0"
FILES = {"documents.parquet", "manifest.json", "swaps.parquet", "widths.parquet"}


@pytest.fixture
def world(run_in_process: Run, tmp_path: Path) -> Path:
    """Return a directory with a log and a fit of it."""
    run_in_process("simulate", *WORLD.split(), "--sessions", "5000", "-o", "sim", "--quiet", code=0)
    run_in_process("fit", "sim/log.parquet", "-o", "fit", "--quiet", "--no-compare", code=0)
    return tmp_path


@pytest.mark.slow
def test_the_same_fit_gives_the_same_bytes_and_piece_by_piece_the_same_documents(
    run_in_process: Run, world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "same"):
        run_in_process("explore", "fit", "-o", name, "--top", "3", "--quiet", code=0)
    monkeypatch.setattr("posbias.io.jobs.exploring._ROWS_AT_ONCE", 7)
    run_in_process("explore", "fit", "-o", "pieces", "--top", "3", "--quiet", code=0)
    for name in FILES:
        assert (world / "one" / name).read_bytes() == (world / "same" / name).read_bytes()
    one, pieces = (pl.read_parquet(world / folder / "documents.parquet") for folder in ("one", "pieces"))
    assert one.equals(pieces)


@pytest.mark.slow
def test_positions_that_nothing_links_have_an_infinite_width_now_and_a_finite_one_after(
    run_in_process: Run, tmp_path: Path
) -> None:
    run_in_process("simulate", *WORLD.split(), "--sessions", "4000", "-o", "sim", "--quiet")
    log = pl.read_parquet(tmp_path / "sim" / "log.parquet")
    lower = pl.col("position") > 3
    log.with_columns(doc=pl.when(lower).then(pl.col("doc") + 100).otherwise("doc")).write_parquet(
        tmp_path / "parted.parquet"
    )
    run_in_process("fit", "parted.parquet", "-o", "fit", "--quiet", "--no-compare", code=1)
    done = run_in_process("explore", "fit", "-o", "plan", "--pages", "2000", "--json", code=0)
    widths = pl.read_parquet(tmp_path / "plan" / "widths.parquet")
    assert widths["width"].is_infinite().to_list() == [False, False, False, True, True]
    assert widths["width_without_swaps"].is_infinite().sum() == 2
    assert widths["width_with_plan"].is_finite().all()
    said = json.loads(done.stdout)["swaps"]
    assert said["largest_width"]["now"] is None
    assert said["without_interval"] == {"now": 2, "with_plan": 0}
    assert any(one <= 3 < other for one, other in (entry["positions"] for entry in said["plan"]))


@pytest.mark.slow
def test_a_fit_that_did_not_converge_makes_a_plan_with_a_warning_and_exit_code_1(
    run_in_process: Run, world: Path
) -> None:
    reseal(world / "fit", estimate=manifest_of(world / "fit")["estimate"] | {"converged": False})
    done = run_in_process("explore", "fit", "-o", "plan", code=1)
    assert "The fit is not finished" in done.stderr
    assert (world / "plan" / "swaps.parquet").exists()


@pytest.mark.slow
def test_swaps_of_randomised_rows_are_added_to_those_that_there_are(run_in_process: Run, tmp_path: Path) -> None:
    world = (*WORLD.split(), "--sessions", "5000", "--randomized-share", ".3")
    run_in_process("simulate", *world, "-o", "sim", "--quiet")
    where = ("--method", "randomized", "--randomized-where", "policy=random")
    run_in_process("fit", "sim/log.parquet", *where, "-o", "fit", "--quiet", code=0)
    done = run_in_process("explore", "fit", "-o", "plan", "--pages", "3000", code=0)
    said = " ".join(done.stderr.split())
    assert "posbias fit LOGS NEW_LOG --method randomized --randomized-where policy=random --randomized-where" in said
    widths = pl.read_parquet(tmp_path / "plan" / "widths.parquet")
    np.testing.assert_allclose(widths["width_without_swaps"], widths["width"])
    assert (widths["width_with_plan"][1:] < widths["width"][1:]).all()
