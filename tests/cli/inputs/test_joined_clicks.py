"""Clicks that count on pages where they were not made: told by the key that they were joined by."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from command_results import Run, manifest_of

from posbias.core.simulation.simulate import SimulationOptions, simulate

CODE = "clicks-joined-to-several-pages"
DAYS = pl.date(2026, 1, 5) + pl.duration(days=pl.col("session") // 500)


@pytest.fixture(scope="module")
def log() -> pl.DataFrame:
    """Return pages of 60 users on four days; a user has few queries, and comes back for them."""
    pages = simulate(SimulationOptions(n_sessions=2000, n_queries=20, n_positions=6, query_exponent=0, seed=4)).log
    user = np.random.default_rng(5).integers(0, 3, 2000).repeat(6) + 3 * pages["query"]
    return pages.with_columns(user=user, date=DAYS)


def stated(run: Run, folder: Path, log: pl.DataFrame, code: int) -> dict[str, str] | None:
    """The fault that `collect` states of a log."""
    log.write_parquet(folder / "log.parquet")
    run("collect", "log.parquet", "-o", "out", code=code)
    return next((reason for reason in manifest_of(folder / "out")["reasons"] if reason["code"] == CODE), None)


@pytest.mark.parametrize(
    ("key", "named"),
    [
        (("user", "doc"), "user and document"),
        (("user", "query", "doc", "date"), "user, day and document"),
        (("query", "doc", "date"), "query, day and document"),
    ],
)
def test_clicks_that_were_joined_to_all_pages_of_a_key_stop_and_the_key_is_named(
    run_in_process: Run, tmp_path: Path, log: pl.DataFrame, key: Sequence[str], named: str
) -> None:
    joined = log.with_columns(pl.col("click").max().over(key))

    fault = stated(run_in_process, tmp_path, joined, code=1)

    assert fault is not None
    assert fault["severity"] == "stop"
    assert f"joined to pages by {named}." in fault["sentence"]


def test_users_who_come_back_and_pages_that_are_logged_twice_join_no_clicks(
    run_in_process: Run, tmp_path: Path, log: pl.DataFrame
) -> None:
    twice = pl.concat([log, log.with_columns(pl.col("session") + 10_000)])

    assert stated(run_in_process, tmp_path, twice, code=0) is None


@pytest.mark.parametrize(("of_pages", "found"), [(True, True), (False, False)])
def test_days_of_sorted_rows_are_times_of_pages_and_days_of_documents_are_not(
    run_in_process: Run, tmp_path: Path, log: pl.DataFrame, *, of_pages: bool, found: bool
) -> None:
    many = pl.concat([log.with_columns(session=pl.col("session") + 10_000 * number) for number in range(4)])
    day = pl.col("date") if of_pages else pl.date(2026, 1, 5) + pl.duration(days=pl.col("doc").hash(1) % 4)
    rows = many.with_columns(date=day).drop("session", "user")
    (rows.sort("date", maintain_order=True) if of_pages else rows).write_parquet(tmp_path / "log.parquet")

    done = run_in_process("collect", "log.parquet", "-o", "out")

    assert ("times: read from column 'date'" in done.stderr) == found
