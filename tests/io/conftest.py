"""What tests of reading and counting share: a small log with known shape, and the command line in this process."""

import os
from pathlib import Path

import polars as pl
import pytest
from command_results import Output, Posbias, Refused, Run, invoke

from posbias.core.simulation.simulate import SimulationOptions, simulate

DONE = (0, 1)  # 1: done, with doubts


@pytest.fixture
def posbias(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Posbias:
    """Return a function that runs a command, in this process, and returns what it wrote.

    It runs in an empty working directory and without POSBIAS_* settings, which would answer for flags.
    """
    for name in [name for name in os.environ if name.startswith("POSBIAS_")]:
        monkeypatch.delenv(name)
    empty = tmp_path / "working-directory"
    empty.mkdir()
    monkeypatch.chdir(empty)
    number = iter(range(1_000))

    def run(command: str, *arguments: object) -> Output:
        folder = tmp_path / f"output-{next(number)}"
        invoke(command, *arguments, "-o", folder, code=DONE)
        return Output(folder)

    return run


@pytest.fixture
def refused(run_in_process: Run, tmp_path: Path) -> Refused:
    """Return a function that runs a command which cannot be done, in this process: exit code 2, and no result `out`."""

    def run(*words: object) -> str:
        done = run_in_process(*words, "-o", tmp_path / "out")
        assert done.returncode == 2, done.stdout + done.stderr
        assert not (tmp_path / "out").exists()
        return done.stderr

    return run


@pytest.fixture(scope="session")
def log() -> pl.DataFrame:
    """Return 400 pages of 4 positions; queries are text with leading zeros, documents and sessions Int64."""
    options = SimulationOptions(n_sessions=400, n_queries=6, docs_per_query=6, n_positions=4, seed=11)
    frame = simulate(options).log
    return frame.with_columns(
        query=pl.format("0{}", "query"), doc=pl.col("doc").cast(pl.Int64) + 100, session=pl.col("session") + 1
    )
