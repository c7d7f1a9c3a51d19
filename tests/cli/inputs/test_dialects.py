"""Text files of other dialects on the command line: nothing is applied by itself, and what to say is said."""

import shlex
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from command_results import manifest_of
from workshop import RunPosbias as Run

from posbias.core.simulation.simulate import SimulationOptions, simulate

LOG = simulate(SimulationOptions("pbm", 200, 10, 4, 3)).log.select("session", "query", "doc", "position", "click")
DAYS = LOG.with_columns(day=pl.lit("05.01.2026 13:00"))

STOPPED: list[tuple[Callable[[Path], object], str, str]] = [
    (lambda path: path.write_text("session, query, doc, position, click\n"), "", "blanks"),
    (lambda path: path.write_bytes(LOG.write_csv().encode().replace(b"doc", b"d\xe9c")), "", "--encoding"),
    (DAYS.write_csv, "--timestamp day", "--timestamp-format '%d.%m.%Y %H:%M'"),
    (lambda path: DAYS.with_columns(day=pl.lit("01/02/2026")).write_csv(path), "--timestamp day", "%m/%d/%Y"),
]


def counted(folder: Path) -> object:
    """What statistics count."""
    return manifest_of(folder / "out")["statistics"]


@pytest.mark.parametrize(("write", "options", "said"), STOPPED)
def test_a_log_of_another_dialect_stops_with_the_option_to_say(
    run_in_process: Run, tmp_path: Path, write: Callable[[Path], object], options: str, said: str
) -> None:
    write(tmp_path / "log.csv")

    refused = run_in_process("collect", "log.csv", *options.split(), "-o", "out", code=2)

    assert said in refused.stderr
    assert not (tmp_path / "out").exists()


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
