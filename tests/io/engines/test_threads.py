"""Threads change how long a run takes, and not a byte of what it writes."""

import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from command_results import Posbias
from patience import ended
from workshop import RunPosbias

from posbias.core.simulation.simulate import SimulationOptions, simulate

TINY_MEMORY = 600_000  # bytes: some ten buckets for the log below


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a log with ids of both kinds."""
    log = simulate(SimulationOptions(n_sessions=500, n_queries=25, docs_per_query=8, n_positions=5, seed=4)).log
    file = tmp_path / "log.parquet"
    log.with_columns(pl.format("query {}", "query").alias("query")).write_parquet(file)
    return file


@pytest.mark.parametrize(
    "asked", [("run", "--no-compare"), ("run", "--model", "ubm", "--layout", "session"), ("collect",)], ids=" ".join
)
@pytest.mark.slow
def test_the_same_bytes_with_any_number_of_threads(
    path: Path, posbias: Posbias, monkeypatch: pytest.MonkeyPatch, asked: tuple[str, ...]
) -> None:
    monkeypatch.setattr("posbias.cli.work.execution.parse_memory", lambda _: TINY_MEMORY)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    written = list[dict[Path, bytes]]()
    for threads in (1, 2, 5):
        for module in ("core.arrays.threads", "io.engines.local"):
            monkeypatch.setattr(f"posbias.{module}.n_threads", lambda threads=threads: threads)
        folder = posbias(asked[0], path, *asked[1:]).folder
        files = (file for file in folder.rglob("*") if file.is_file() and file.name != "manifest.json")
        written.append({file.relative_to(folder): file.read_bytes() for file in files})
    assert written[0]
    assert written[0] == written[1] == written[2]


@pytest.mark.slow
def test_row_groups_do_not_depend_on_threads(tmp_path: Path) -> None:
    script = f"""
import polars as pl
from pathlib import Path
from posbias.io.results.tables import sink_table
sink_table(pl.LazyFrame({{"x": range(600_000)}}), Path({str(tmp_path)!r}) / f"{{pl.thread_pool_size()}}.parquet")
"""
    for threads in ("1", "5"):
        subprocess.run((sys.executable, "-c", script), check=True, env=os.environ | {"POLARS_MAX_THREADS": threads})
    assert (tmp_path / "1.parquet").read_bytes() == (tmp_path / "5.parquet").read_bytes()


@pytest.mark.slow
def test_the_option_is_heard_before_polars_is_loaded(path: Path) -> None:
    script = """
import sys
from posbias.cli.main import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
import polars
print(polars.thread_pool_size())
"""
    words = (sys.executable, "-c", script, "check", str(path), "--threads", "3", "--quiet")
    done = ended(words, cwd=path.parent)
    assert done.stdout.splitlines()[-1] == "3", done.stderr


@pytest.mark.parametrize("threads", ["0", "1025", "1000000", "9" * 5000, "many"])
def test_a_variable_says_no_number_of_threads_that_the_option_does_not_take(
    run_in_process: RunPosbias, path: Path, threads: str
) -> None:
    done = run_in_process("fit", path, "-o", "out", POLARS_MAX_THREADS=threads, code=2)
    assert done.stderr.startswith(f"posbias: error: POLARS_MAX_THREADS={threads}: is no number from 1 to 1024. ")
