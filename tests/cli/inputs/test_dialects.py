"""Text files of other dialects on the command line: nothing is applied by itself, and what to say is said."""

import shlex
from pathlib import Path

import polars as pl
import pytest
from command_results import manifest_of
from workshop import RunPosbias as Run

from posbias.core.simulation.simulate import SimulationOptions, simulate

LOG = simulate(SimulationOptions("pbm", 200, 10, 4, 3)).log.select("session", "query", "doc", "position", "click")


def counted(folder: Path) -> object:
    """What statistics count."""
    return manifest_of(folder / "out")["statistics"]


def test_the_command_to_try_reads_the_log(run_in_process: Run, tmp_path: Path) -> None:
    LOG.write_csv(tmp_path / "log.csv", separator=";")
    refused = run_in_process("collect", "log.csv", "-o", "out")

    run_in_process(*shlex.split(refused.stderr.partition("Try: posbias ")[2].splitlines()[0]), code=0)


@pytest.mark.parametrize("in_parquet", [False, True])
def test_the_dialect_is_that_of_the_clicks_as_well_unless_they_have_types(
    run_in_process: Run,
    tmp_path: Path,
    in_parquet: bool,  # noqa: FBT001
) -> None:
    text = LOG.cast(pl.String)
    clicks = text.with_columns(hit=pl.when(pl.col("click") == "1").then(pl.lit("ja")).otherwise(pl.lit("nein")))
    clicks = clicks.select("session", "doc", "hit")
    LOG.write_csv(tmp_path / "plain.csv")
    text.drop("click").write_csv(tmp_path / "shown.csv", separator=";")
    name = "clicks.parquet" if in_parquet else "clicks.csv"
    clicks.write_parquet(tmp_path / name) if in_parquet else clicks.write_csv(tmp_path / name, separator=";")
    run_in_process("collect", "plain.csv", "-o", "out", code=0)
    plain = counted(tmp_path)

    words = f"shown.csv --clicks {name} --separator ; --clicks-click hit --true ja --false nein"
    run_in_process("collect", *words.split(), "-o", "out", "--force", code=0)

    assert counted(tmp_path) == plain
