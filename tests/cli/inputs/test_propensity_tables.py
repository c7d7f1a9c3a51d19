"""`weight` takes propensities that somebody may have edited: what no fit says is one error that names the row."""

import os
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import polars as pl
import pytest
from command_results import reseal

from posbias.core.simulation.simulate import SimulationOptions, simulate

Run = Callable[..., CompletedProcess[str]]
Edit = Callable[[pl.DataFrame], pl.DataFrame]
TABLE = "propensities.parquet"


@pytest.fixture
def fitted(run_in_process: Run, tmp_path: Path) -> Path:
    """Return the propensity table of a fit, beside the log that it is from."""
    simulate(SimulationOptions(n_sessions=300, n_queries=5, docs_per_query=5, n_positions=4)).log.write_parquet(
        tmp_path / "log.parquet"
    )
    assert run_in_process("fit", "log.parquet", "-o", "fit", "--quiet").returncode == 0
    return tmp_path / "fit" / TABLE


def third(column: str, value: float | None) -> Edit:
    """An edit of the third row."""
    there = pl.int_range(pl.len()) == 2
    return lambda table: table.with_columns(pl.when(there).then(value).otherwise(pl.col(column)).alias(column))


EDITS: dict[str, tuple[Edit, str]] = {
    "negative": (third("propensity", -0.5), "row 3 has a propensity that is not between 1e-30 and 1e+30"),
    "zero": (third("propensity", 0.0), "row 3 has a propensity"),
    "infinite": (third("propensity", float("inf")), "row 3 has a propensity"),
    "no number": (third("propensity", float("nan")), "row 3 has a propensity"),
    "absurd": (third("propensity", 1e200), "row 3 has a propensity"),
    "examination above 1": (third("examination", 1.5), "row 3 has an examination"),
    "no examination": (third("examination", float("nan")), "row 3 has an examination"),
    "weights apart": (third("weight_propensity", 0.5), "row 3 has a weight_propensity that is neither of its"),
    "no position": (third("position", None), "row 3 has no position"),
    "position 0": (
        lambda table: table.with_columns(position=pl.col("position") - 1),
        "row 1 has no position: position 0,",
    ),
    "repeated": (lambda table: pl.concat([table, table.head(2)]), "row 5 repeats a cell: position 1,"),
    "text": (lambda table: table.with_columns(pl.col("propensity").cast(pl.String)), "holds String instead of numbers"),
    "fractions": (lambda table: table.with_columns(pl.col("position") + 0.5), "holds Float64 instead of whole numbers"),
    "columns gone": (lambda table: table.drop("examination"), "has no column 'examination'"),
    "cells gone": (lambda table: table.drop("position"), "has no column 'position'"),
}


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.slow_after(6)
def test_a_propensity_table_that_no_fit_wrote_is_refused_by_row(
    run_in_process: Run, fitted: Path, tmp_path: Path, edit: str
) -> None:
    change, says = EDITS[edit]
    change(pl.read_parquet(fitted)).write_parquet(fitted)
    reseal(fitted.parent)

    done = run_in_process("weight", "log.parquet", "--propensities", "fit", "-o", "out")

    assert done.returncode == 2, done.stderr
    assert f"fit/{TABLE}: " in done.stderr
    assert says in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_cell_without_a_propensity_stays_legal(run_in_process: Run, fitted: Path) -> None:
    for name in ("propensity", "weight_propensity", "examination"):
        third(name, None)(pl.read_parquet(fitted)).write_parquet(fitted)
    reseal(fitted.parent)

    done = run_in_process("weight", "log.parquet", "--propensities", "fit", "-o", "out")

    assert done.returncode in (0, 1), done.stderr
    assert "without a propensity" in done.stderr


def test_a_pipe_in_place_of_the_table_does_not_block(run_in_process: Run, fitted: Path) -> None:
    fitted.unlink()
    os.mkfifo(fitted)

    done = run_in_process("weight", "log.parquet", "--propensities", "fit", "-o", "out")

    assert done.returncode == 2
    assert f"{TABLE} cannot be read (it is a FIFO, not a plain file)" in done.stderr
