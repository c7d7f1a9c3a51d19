"""Rows that were split as numbers are the rows of the log: which ones fit, and which are faulty, tells nowhere else."""

from pathlib import Path

import polars as pl
import pytest
from command_results import Posbias

from posbias.core.simulation.simulate import SimulationOptions, simulate
from posbias.io.engines import local
from posbias.io.log.click_log import Log

TINY_MEMORY = 600_000  # bytes: some ten buckets for the logs below
LARGE = 2**62


def of_integers() -> pl.DataFrame:
    options = SimulationOptions(n_sessions=500, n_queries=25, docs_per_query=8, n_positions=5, seed=4)
    log = simulate(options).log
    return log.with_columns(device=pl.col("session") % 3, day=pl.format("2026-01-0{}", pl.col("session") % 2 + 1))


def in_the_middle(log: pl.DataFrame, **values: pl.Expr) -> pl.DataFrame:
    """With some values of the rows that are neither first nor last."""
    at = pl.int_range(pl.len())
    inside = (at >= 100) & (at < pl.len() - 100)
    return log.with_columns(pl.when(inside).then(value).otherwise(name).alias(name) for name, value in values.items())


LARGE_DOCS = pl.when(pl.col("doc") % 5 == 0).then(pl.col("doc") + LARGE).otherwise("doc")
MISSING_DOCS = pl.when(pl.col("session") % 40 == 0).then(None).otherwise("doc")
LOGS = {
    "all fit": of_integers(),
    "some do not fit": in_the_middle(of_integers(), doc=LARGE_DOCS),
    "some are faulty": in_the_middle(of_integers(), doc=MISSING_DOCS),
    "text sessions": of_integers().with_columns(pl.format("page {}", "session").alias("session")),
    "large sessions": of_integers().with_columns(pl.col("session") + LARGE),
    "sessions that grow": in_the_middle(of_integers(), session=pl.col("session") + LARGE),
}
ASKED = {
    "pbm": ("run", "--no-compare", "--on-bad-rows", "drop"),
    "ubm": ("run", "--model", "ubm", "--layout", "session", "--on-bad-rows", "drop"),
    "strata": ("fit", "--context", "device", "--timestamp", "day", "--max-position", "4", "--on-bad-rows", "drop"),
    "bins": ("collect", "--position-bins", "1,2,4", "--on-bad-rows", "drop"),
}


@pytest.fixture
def seen_at_the_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posbias.cli.work.execution.parse_memory", lambda _: TINY_MEMORY)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    monkeypatch.setattr(local, "_SEEN_ROWS", 50)
    monkeypatch.setattr("posbias.io.engines.engine.SAMPLED_ROWS", 500)  # so that most sessions are not kept


@pytest.mark.usefixtures("seen_at_the_ends")
@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("log", LOGS)
@pytest.mark.slow
def test_the_bytes_are_those_of_buckets_of_columns(
    log: str, asked: str, posbias: Posbias, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log.parquet"
    LOGS[log].write_parquet(path)
    made, choose_bit_fields = list[object](), local.choose_bit_fields

    def noted(of: Log) -> object:
        made.append(choose_bit_fields(of))
        return made[-1]

    monkeypatch.setattr(local, "choose_bit_fields", noted)
    as_numbers = written(posbias, path, asked)
    assert len(made) == 1
    assert made[0] is not None
    monkeypatch.setattr(local, "choose_bit_fields", lambda _: None)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    assert as_numbers == written(posbias, path, asked)


@pytest.mark.slow_after(1)
@pytest.mark.usefixtures("seen_at_the_ends")
@pytest.mark.parametrize("log", LOGS)
def test_every_row_is_counted_once(log: str, posbias: Posbias, tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    LOGS[log].write_parquet(path)
    found = posbias("collect", path, "--on-bad-rows", "drop").manifest
    assert found["rows"]["read"] == LOGS[log].height
    assert found["rows"]["used"] == LOGS[log].drop_nulls().height


def written(posbias: Posbias, path: Path, asked: str) -> dict[Path, bytes]:
    """All files of a result but the manifest, which says when."""
    command, *options = ASKED[asked]
    folder = posbias(command, path, *options).folder
    files = [file for file in folder.rglob("*") if file.is_file() and file.name != "manifest.json"]
    assert files
    return {file.relative_to(folder): file.read_bytes() for file in files}
