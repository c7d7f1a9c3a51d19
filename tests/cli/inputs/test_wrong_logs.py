"""Logs whose every row is fine, and that still cannot carry an estimate, are refused by all commands that read them."""

import json
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from workshop import Workshop, assert_refused, attempt

from posbias.core.simulation.simulate import SimulationOptions, simulate

LAST_CLICK = pl.col("position").filter(pl.col("click") == 1).max().over("session")


@pytest.fixture(scope="module")
def shown() -> pl.DataFrame:
    """Return a log of everything that was shown."""
    return simulate(SimulationOptions(n_sessions=1500, n_queries=20, n_positions=5, docs_per_query=8, seed=3)).log


def written(workshop: Workshop, log: pl.DataFrame, name: str = "log.parquet") -> Path:
    """A log in the workshop."""
    path = workshop.folder / name
    log.write_parquet(path)
    return path


def commands(workshop: Workshop, shown: pl.DataFrame, *, weight: bool = True) -> list[tuple[str | Path, ...]]:
    """Every command that reads logs, up to its input."""
    fit = workshop.folder / "fit"
    assert workshop.run("fit", written(workshop, shown, "shown.parquet"), "-o", fit).returncode == 0
    weighing = [("weight", "--propensities", fit), ("weight", "--propensities", fit, "--layout", "session")]
    return [("run",), ("fit",), ("collect",), ("fit", "--model", "ubm"), *(weighing if weight else ())]


@pytest.mark.slow
def test_a_log_of_clicks_only_is_refused_by_every_command(workshop: Workshop, shown: pl.DataFrame) -> None:
    log = shown.filter(pl.col("click") == 1)
    path = written(workshop, log)
    says = (
        f"{path}: {log.height:,} of {log.height:,} impressions are clicked",
        "Log every result that was shown, with 0 in",
    )
    for command in commands(workshop, shown):
        assert_refused(attempt(workshop, *command, path), workshop, *says)
    as_json = attempt(workshop, "fit", path, "--json")
    assert says[1] in json.loads(as_json.stdout)["error"]["message"]
    as_json.stdout = ""
    assert_refused(as_json, workshop, *says)
    without_sessions = written(workshop, log.drop("session"), "sessionless.parquet")
    assert_refused(attempt(workshop, "fit", without_sessions), workshop, f"of {log.height:,} impressions are clicked")


def test_a_table_of_clicks_of_which_every_row_counts_is_named_where_all_rows_are_clicked(
    workshop: Workshop, shown: pl.DataFrame
) -> None:
    clicks = written(workshop, shown.select("session", "doc"), "clicks.parquet")
    log = written(workshop, shown.drop("click"))
    says = (f"{shown.height:,} of {shown.height:,} impressions are clicked", f"Each row of {clicks} counts as a click")
    assert_refused(attempt(workshop, "fit", log, "--clicks", clicks), workshop, *says)


@pytest.mark.slow
@pytest.mark.parametrize("with_pages_without_click", [True, False])
def test_pages_down_to_their_last_click_are_refused_by_every_command(
    workshop: Workshop, shown: pl.DataFrame, *, with_pages_without_click: bool
) -> None:
    last = LAST_CLICK.fill_null(99) if with_pages_without_click else LAST_CLICK
    log = shown.filter(pl.col("position") <= last)
    told = log.filter(pl.len().over("session") > 1, pl.col("click").sum().over("session") > 0)["session"].n_unique()
    path = written(workshop, log)
    says = (f"{path}: {told:,} of {told:,} pages with a click end on a click", "down to the last result that was shown")
    for command in commands(workshop, shown):
        assert_refused(attempt(workshop, *command, path), workshop, *says)


SILENT = {
    "the top": (pl.col("position") == 1, "--click-ranks 0"),
    "between others": (pl.col("position") == 3, "positions 2 and 4"),
    "the end": (pl.col("position") >= 4, "Leave these positions out: --max-position 3"),
}


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("where", SILENT)
def test_a_position_of_thousands_of_impressions_without_a_click_stops_a_fit_and_is_said_by_check(
    workshop: Workshop, shown: pl.DataFrame, where: str
) -> None:
    silent, says = SILENT[where]
    more = pl.concat([shown, shown.with_columns(pl.col("session") + 10_000)])
    path = written(workshop, more.with_columns(click=pl.when(silent).then(0).otherwise("click")))
    at = more.filter(silent)["position"].min()

    for words in (("fit",), ("run",), ("fit", "--model", "ubm")):
        done = attempt(workshop, *words, path)
        assert_refused(done, workshop, f"clicks at position {at} are missing: it has 3,000 impressions and none", says)
    checked = json.loads(workshop.run("check", path, "--json").stdout)
    assert checked["carries_estimate"] is False
    assert says in checked["reasons"][0]["sentence"]
    if where == "the end":
        assert workshop.run("fit", path, "--max-position", "3", "-o", workshop.folder / "cut").returncode == 0


@pytest.mark.slow
def test_positions_that_may_have_no_click_do_not_stop_a_fit(workshop: Workshop, shown: pl.DataFrame) -> None:
    steep = SimulationOptions(n_sessions=1500, n_queries=20, n_positions=30, docs_per_query=30, eta=2.0, seed=4)
    long_pages = simulate(replace(steep, attractiveness_scale=0.3)).log
    assert (long_pages.group_by("position").agg(pl.col("click").sum())["click"] == 0).any()
    fixed = shown.filter(pl.col("query") == 0).with_columns(doc=pl.col("position"))
    junk = pl.concat([fixed.with_columns(pl.col("session") + 10_000 * n, query=pl.lit(n, pl.Int32)) for n in range(9)])
    one_document = junk.with_columns(
        click=pl.when((pl.col("query") == 0) & (pl.col("position") == 3)).then(0).otherwise("click")
    )

    for log in (long_pages, one_document):
        done = attempt(workshop, "fit", written(workshop, log))
        assert "are missing" not in done.stderr


# --- results of posbias ---------------------------------------------------------------------------------------
