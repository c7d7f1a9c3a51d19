"""Input that is odd but happens: unset variables, names with patterns in them, results among the logs, other types."""

import json
from pathlib import Path

import polars as pl
import pytest
from workshop import RunPosbias

from posbias.core.simulation.simulate import SimulationOptions, simulate


@pytest.fixture
def frame() -> pl.DataFrame:
    """A small log that works."""
    return simulate(SimulationOptions(n_sessions=300, n_queries=5, docs_per_query=5, n_positions=4, seed=4)).log


@pytest.fixture
def log(frame: pl.DataFrame, tmp_path: Path) -> Path:
    """The same on disk."""
    path = tmp_path / "log.parquet"
    frame.write_parquet(path)
    return path


def test_files_whose_ids_only_128_bits_hold_are_refused(
    run_in_process: RunPosbias, frame: pl.DataFrame, tmp_path: Path
) -> None:
    for name, dtype in {"a": pl.Int64, "b": pl.UInt64}.items():
        frame.with_columns(pl.int_range(pl.len()).cast(dtype).alias("doc")).write_parquet(tmp_path / f"{name}.parquet")
    done = run_in_process("run", tmp_path / "a.parquet", tmp_path / "b.parquet", "-o", tmp_path / "out")
    assert done.returncode == 2
    said = " ".join(done.stderr.split())
    assert "'doc' holds Int64" in said
    assert "Write the files with the same type" in said


def test_a_result_among_the_logs_is_not_read_as_a_log(run_in_process: RunPosbias, log: Path, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    log.rename(logs / log.name)

    first = run_in_process("run", logs, "-o", logs / "out")
    again = run_in_process("run", logs, "-o", logs / "out", "--force")

    assert (first.returncode, again.returncode) == (0, 0), again.stderr
    assert json.loads((logs / "out" / "manifest.json").read_text())["rows"]["read"] == 1200


def test_a_name_that_looks_like_a_pattern_is_a_name(
    run_in_process: RunPosbias, frame: pl.DataFrame, tmp_path: Path
) -> None:
    frame.write_ndjson(tmp_path / "a[1] *?.ndjson")

    assert run_in_process("fit", "a[1] *?.ndjson", "-o", "out").returncode == 0


def test_folders_of_a_partitioned_log_are_decoded(
    run_in_process: RunPosbias, frame: pl.DataFrame, tmp_path: Path
) -> None:
    for name, folder in (("q 0", "query=q%200"), (None, "query=__HIVE_DEFAULT_PARTITION__")):
        (tmp_path / "logs" / folder).mkdir(parents=True)
        some = frame.filter(pl.col("query") == (0 if name else 1)).drop("query")
        some.write_parquet(tmp_path / "logs" / folder / "part.parquet")

    done = run_in_process("fit", "logs", "-o", "out", "--on-bad-rows", "drop", "--max-bad-rows", "1")

    assert done.returncode == 0, done.stderr
    assert pl.read_parquet(tmp_path / "out" / "attractiveness.parquet")["query"].unique().to_list() == ["q 0"]
    assert "because the query is missing" in done.stderr


def test_statistics_of_one_table_and_of_two_add_up(
    run_in_process: RunPosbias, frame: pl.DataFrame, tmp_path: Path
) -> None:
    first, second = frame.filter(pl.col("session") < 150), frame.filter(pl.col("session") >= 150)
    first.write_parquet(tmp_path / "first.parquet")
    second.drop("click").write_parquet(tmp_path / "shown.parquet")
    clicked = second.filter(pl.col("click") == 1).select("session", "doc")
    stray = pl.DataFrame({"session": [9999], "doc": [1]}, schema=clicked.schema)
    pl.concat([clicked, stray]).write_parquet(tmp_path / "clicks.parquet")
    assert run_in_process("collect", "first.parquet", "-o", "s1").returncode == 0
    assert run_in_process("collect", "shown.parquet", "--clicks", "clicks.parquet", "-o", "s2").returncode == 0

    done = run_in_process("fit", "s1", "s2", "-o", "out")

    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "out" / "manifest.json").read_text())["rows"]
    lost = {"clicks on a page that was not recorded": 1}
    clicks = {"read": clicked.height + 1, "joined": clicked.height, "repeated": 0, "lost": lost, "by_position": {}}
    assert rows == {"read": 1200, "used": 1200, "clicks": clicks, "rejected": {}}
