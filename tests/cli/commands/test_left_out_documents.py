"""Judgments: a document without one is left out, counted and said; none is a silent 0."""

from pathlib import Path

import polars as pl
import pytest
from command_results import Output
from workshop import RunPosbias as Run

from posbias.core.simulation.simulate import SimulationOptions, simulate

ELSEWHERE = 3  # documents that are shown only where no position has a propensity


@pytest.fixture(scope="module")
def log() -> pl.DataFrame:
    """Return a log on two devices, with documents that are shown nowhere else at a position that nothing links."""
    log = simulate(SimulationOptions("pbm", 600, 10, 5, 4, contexts=(1.0, 0.5), seed=3)).log
    alone = log.filter(pl.col("position") == 1).head(ELSEWHERE)
    number = pl.int_range(100, 100 + ELSEWHERE, dtype=pl.Int32)
    moved = alone.with_columns(doc=number, position=pl.lit(9, pl.Int32), click=pl.lit(0, pl.Int8))
    return pl.concat([log, moved])


@pytest.mark.parametrize("words", ["", "--context device", "--validation 0.3", "--rate coec"])
def test_documents_without_a_judgment_are_counted_and_said(
    run_in_process: Run, tmp_path: Path, log: pl.DataFrame, words: str
) -> None:
    log.write_parquet(tmp_path / "log.parquet")

    done = run_in_process("run", "log.parquet", "--layout", "judgments", *words.split(), "-o", "out")

    assert done.returncode in (0, 1), done.stderr
    assert f"warning: {ELSEWHERE} documents have no judgment and are left out" in done.stderr
    assert Output(tmp_path / "out").manifest["documents_left_out"] == ELSEWHERE
    files = [path for split in ("training", "validation") for path in (tmp_path / "out" / split).rglob("*.parquet")]
    rows = pl.concat([pl.read_parquet(path) for path in files])
    assert rows.height == log.select("query", "doc").n_unique() - ELSEWHERE
    assert rows["label"].is_finite().all()
