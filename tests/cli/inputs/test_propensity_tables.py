"""Propensities that were edited, or are one's own: what cannot be one is one error that names the row."""

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from command_results import manifest_of, reseal
from polars.testing import assert_frame_equal
from workshop import RunPosbias as Run

from posbias.core.simulation.simulate import SimulationOptions, simulate

Edit = Callable[[pl.DataFrame], pl.DataFrame]
TABLE = "propensities.parquet"


@pytest.fixture
def fitted(run_in_process: Run, tmp_path: Path) -> Path:
    """Return the propensity table of a fit, beside the log that it is from."""
    simulate(SimulationOptions(n_sessions=300, n_queries=5, docs_per_query=5, n_positions=4)).log.write_parquet(
        tmp_path / "log.parquet"
    )
    run_in_process("fit", "log.parquet", "-o", "fit", "--quiet", code=0)
    return tmp_path / "fit" / TABLE


def third(column: str, value: float | None) -> Edit:
    """An edit of the third row."""
    there = pl.int_range(pl.len()) == 2
    return lambda table: table.with_columns(pl.when(there).then(value).otherwise(pl.col(column)).alias(column))


def test_a_cell_without_a_propensity_stays_legal(run_in_process: Run, fitted: Path) -> None:
    for name in ("propensity", "weight_propensity", "examination"):
        third(name, None)(pl.read_parquet(fitted)).write_parquet(fitted)
    reseal(fitted.parent)

    done = run_in_process("weight", "log.parquet", "--propensities", "fit", "-o", "out", code=(0, 1))

    assert "without a propensity" in done.stderr


@pytest.mark.slow
def test_a_power_and_the_table_that_it_stands_for_mean_the_same_to_every_command(
    run_in_process: Run, fitted: Path, tmp_path: Path
) -> None:
    assert fitted.exists()
    pl.DataFrame({"position": [4, 3, 2, 1], "propensity": [1 / k**0.8 for k in (4, 3, 2, 1)]}).write_csv(
        tmp_path / "own.csv"
    )
    log = pl.read_parquet(tmp_path / "log.parquet")
    log.select("query", "doc", score=pl.col("doc").hash(1) % 7).unique().write_parquet(tmp_path / "list.parquet")
    commands = {
        "weight": (("--layout", "session"), "training/rows/*.parquet"),
        "train": (
            ("--learner", "factors", "--learner-options", "steps=5", "--learner-options", "regularization=1"),
            "scores.parquet",
        ),
        "evaluate": (("--scores", "list.parquet"), "metrics.parquet"),
    }
    for command, (words, files) in commands.items():
        tables: list[pl.DataFrame] = []
        for name in ("power:0.8", "own.csv"):
            into = f"{command} {name[0]}"
            done = run_in_process(command, "log.parquet", "--propensities", name, "-o", into, *words, code=0)
            assert f"propensities of {name} are given, not estimated: neither their errors nor" in " ".join(
                done.stderr.split()
            )
            said = manifest_of(tmp_path / into)
            assert (said["propensities"], list(said["own_propensities"]["files"])) == (
                name,
                [] if name == "power:0.8" else ["own.csv"],
            )
            tables.append(pl.read_parquet(tmp_path / into / files))
        assert_frame_equal(*tables, rel_tol=1e-12)
        if command == "weight":
            clicked = tables[0].filter(pl.col("click") == 1)
            assert clicked["weight"].to_list() == pytest.approx((clicked["position"] ** 0.8).to_list())
