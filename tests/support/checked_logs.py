"""A log that needs no option, and what `posbias check` says of logs."""

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import polars as pl

from posbias.core.simulation.simulate import SimulationOptions, simulate

Run = Callable[..., CompletedProcess[str]]

POSITIONS = 5
"""Of the log."""


def good_log() -> pl.DataFrame:
    """A log that needs no option."""
    options = SimulationOptions(
        n_sessions=3000, n_queries=60, n_positions=POSITIONS, docs_per_query=8, query_exponent=0.5, days=3, seed=5
    )
    return simulate(options).log.with_columns(pl.col("doc").cast(pl.String))


def checked(run: Run, *words: str | Path, code: int | None = 0) -> dict[str, Any]:
    """What `check --json` says."""
    done = run("check", *words, "--json")
    assert code in {None, done.returncode}, done.stderr
    return json.loads(done.stdout)
