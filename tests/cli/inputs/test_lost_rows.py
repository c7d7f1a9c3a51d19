"""What rows do not show: clicks that go with rows that are left out, and rows that were chosen by their clicks."""

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from command_results import Run, manifest_of

from posbias.core.simulation.simulate import SimulationOptions, simulate

CLICK, FILTERED = pl.col("click"), "positions-before-a-filter"


@pytest.fixture(scope="module")
def log() -> pl.DataFrame:
    """Return a log of 2,000 pages of 9 results."""
    return simulate(SimulationOptions(n_sessions=2000, n_queries=20, n_positions=9, seed=2)).log


def reasons_of(output: Path) -> dict[str, dict[str, Any]]:
    """The reasons of a result by their code."""
    return {reason["code"]: reason for reason in manifest_of(output)["reasons"]}


@pytest.mark.slow_after(3)
@pytest.mark.parametrize("rows_of_a_bucket", [1 << 20, 1000])
@pytest.mark.parametrize("fault", ["rows", "pages", "repeats"])
def test_clicks_on_rows_that_are_left_out_are_counted(
    run_in_process: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    log: pl.DataFrame,
    fault: str,
    rows_of_a_bucket: int,
) -> None:
    monkeypatch.setattr("posbias.io.engines.local._ROWS_THAT_STAY_IN_CACHE", rows_of_a_bucket)
    bad = pl.col("session") % 4 == 0
    first, top = pl.col("doc").first().over("session"), pl.col("position") == 1
    odd = {
        "rows": pl.when(bad & ~top).then(0).otherwise("position").alias("position"),
        "pages": pl.when(bad & top).then(2).otherwise("position").alias("position"),
        "repeats": pl.when(bad).then(first).otherwise("doc").alias("doc"),
    }[fault]
    lost = log.filter(bad & ((pl.col("position") > 1) | (fault == "pages")))["click"].sum()
    log.with_columns(odd).write_parquet(tmp_path / "log.parquet")
    words = ("log.parquet", "--on-bad-rows", "drop", "--duplicate-docs", "first", "--check-pages", "all")

    run_in_process("collect", *words, "--max-bad-rows", 0.5, "-o", "out")
    few = reasons_of(tmp_path / "out")["clicks-left-out"]
    assert few["figures"] == {"clicks": lost, "of": log["click"].sum()}
    assert few["severity"] == "note"

    if fault == "repeats":
        run_in_process("collect", *words, "--max-bad-rows", 0.01, "-o", "many", code=1)
        assert reasons_of(tmp_path / "many")["clicks-left-out"]["severity"] == "stop"


def test_copies_of_rows_lose_no_click(run_in_process: Run, tmp_path: Path, log: pl.DataFrame) -> None:
    pl.concat([log, log.head(500)]).write_parquet(tmp_path / "log.parquet")

    run_in_process("collect", "log.parquet", "--duplicate-docs", "first", "-o", "out")

    assert "clicks-left-out" not in reasons_of(tmp_path / "out")


@pytest.mark.parametrize(
    ("kept", "weight", "code", "of_gaps"),
    [
        ("clicked", None, None, "stop"),
        ("clicked", pl.when(CLICK == 1).then(1.0).otherwise(10.0), "weights-depend-on-clicks", "caution"),
        ("some", None, None, "caution"),
        ("some", pl.lit(10.0), None, "caution"),
    ],
)
def test_rows_that_were_sampled_by_their_clicks_are_told(
    run_in_process: Run,
    tmp_path: Path,
    log: pl.DataFrame,
    kept: str,
    weight: pl.Expr | None,
    code: str | None,
    of_gaps: str,
) -> None:
    tenth = pl.concat_str("session", "position").hash(seed=3) % 10 == 0
    rows = log.filter(tenth | (CLICK == 1) if kept == "clicked" else tenth)
    words = [] if weight is None else ["--weight-column", "weight"]
    (rows if weight is None else rows.with_columns(weight=weight)).write_parquet(tmp_path / "log.parquet")

    run_in_process("collect", "log.parquet", *words, "-o", "out", code=1 if of_gaps == "stop" else 0)

    found = {code: reason["severity"] for code, reason in reasons_of(tmp_path / "out").items()}
    codes = {"pages-with-gaps", "weights-depend-on-clicks"} & found.keys()
    expected = {"pages-with-gaps": of_gaps} | ({} if code is None else {code: "caution"})
    assert {one: found[one] for one in codes} == expected


def test_pages_that_end_at_their_last_click_in_part_are_a_caution(
    run_in_process: Run, tmp_path: Path, log: pl.DataFrame
) -> None:
    last = pl.col("position").filter(CLICK == 1).max().over("session")
    log.filter((pl.col("session") % 2 == 0) | (pl.col("position") <= last)).write_parquet(tmp_path / "log.parquet")

    run_in_process("collect", "log.parquet", "-o", "out")

    assert reasons_of(tmp_path / "out")["pages-end-on-clicks"]["severity"] == "caution"


LAST = pl.col("position").filter(CLICK == 1).max().over("session")
DEPTH = pl.col("session").hash(seed=4) % 9 + 1
CUT = {  # the last row that is logged of a page, and whether that depends on the clicks above or below
    "two rows below the last click": (LAST + 2, True),
    "screen of the last click": (((LAST - 1) // 3 + 1) * 3, True),
    "pages of any length": (DEPTH, False),
    "users who leave after a click": (
        pl.col("position").filter((CLICK == 1) & (pl.col("session") % 3 > 0)).min().over("session"),
        False,
    ),
}


@pytest.mark.parametrize("where", CUT)
def test_pages_that_end_soon_after_their_last_click_stop_and_pages_of_any_length_do_not(
    run_in_process: Run, tmp_path: Path, log: pl.DataFrame, where: str
) -> None:
    end, is_cut = CUT[where]
    log.filter(pl.col("position") <= end.fill_null(99)).write_parquet(tmp_path / "log.parquet")

    run_in_process("collect", "log.parquet", "-o", "out", code=int(is_cut))

    stops = {code for code, reason in reasons_of(tmp_path / "out").items() if reason["severity"] == "stop"}
    assert stops == ({"pages-end-on-clicks"} if is_cut else set())


def test_pages_that_are_logged_again_as_they_grow_are_told(
    run_in_process: Run, tmp_path: Path, log: pl.DataFrame
) -> None:
    begun = log.filter(pl.col("position") <= 4).with_columns(
        pl.col("session") + 10_000, pl.lit(0, pl.Int8).alias("click")
    )
    pl.concat([log, begun]).write_parquet(tmp_path / "log.parquet")

    run_in_process("collect", "log.parquet", "-o", "out", code=0)

    assert reasons_of(tmp_path / "out")["pages-never-clicked"]["figures"]["position"] == 4


def test_positions_that_are_ranks_before_a_filter_stop_and_the_query_that_is_named_mends_them(
    run_in_process: Run, tmp_path: Path
) -> None:
    shown = simulate(SimulationOptions(n_sessions=12_000, n_queries=20, n_positions=8, seed=2)).log
    rank = pl.col("position") + pl.col("left_out").cum_sum().over("session")
    left_out = (pl.concat_str("session", "position").hash(seed=3) % 3 == 0).cast(pl.Int32).alias("left_out")
    shown.with_columns(left_out).with_columns(position=rank).write_parquet(tmp_path / "log.parquet")

    run_in_process("fit", "log.parquet", "-o", "out", "--no-compare", code=1)
    found = reasons_of(tmp_path / "out")
    words = shlex.split(found[FILTERED]["sentence"].partition("shown: ")[2].removesuffix("."))
    run_in_process("fit", "log.parquet", *words, "-o", "mended", "--no-compare", code=0)

    assert {code for code, reason in found.items() if reason["severity"] == "stop"} == {FILTERED}
    assert FILTERED not in reasons_of(tmp_path / "mended")
    truth = 1 / np.arange(2, 9)
    wrong, right = (
        pl.read_parquet(tmp_path / name / "propensities.parquet").filter(pl.col("position").is_between(2, 8))
        for name in ("out", "mended")
    )
    assert (wrong["propensity"].to_numpy() > truth).all()
    assert np.abs(np.log(right["propensity"].to_numpy() / truth) / right["std_error"].to_numpy()).max() < 3


def test_gaps_say_how_wrong_the_number_is_at_worst(run_in_process: Run, tmp_path: Path, log: pl.DataFrame) -> None:
    half = pl.concat_str("session", "position").hash(seed=3) % 2 == 0
    log.filter((pl.col("position") != 6) | half).write_parquet(tmp_path / "log.parquet")

    run_in_process("collect", "log.parquet", "-o", "out", code=0)

    found = reasons_of(tmp_path / "out")["pages-with-gaps"]
    assert found["figures"]["position"] == 6
    assert found["figures"]["lacking"] == pytest.approx(0.5, abs=0.03)
    assert "2.0 times too high" in found["sentence"]


def test_rows_below_the_fold_that_are_logged_for_their_clicks_stop_and_the_option_named_leaves_them_out(
    run_in_process: Run, tmp_path: Path, log: pl.DataFrame
) -> None:
    some = pl.concat_str("session", "position").hash(seed=3) % 3 == 0
    log.filter((pl.col("position") <= 3) | some | (CLICK == 1)).write_parquet(tmp_path / "log.parquet")

    run_in_process("collect", "log.parquet", "-o", "out", code=1)

    found = reasons_of(tmp_path / "out")["pages-with-gaps"]
    assert (found["severity"], found["figures"]["position"]) == ("stop", 4)
    assert "--max-position 3." in found["sentence"]
    run_in_process("collect", "log.parquet", "-o", "out", "--force", "--max-position", 3, code=0)


def test_redirects_that_are_logged_as_pages_of_one_clicked_result_are_a_caution(
    run_in_process: Run, tmp_path: Path, log: pl.DataFrame
) -> None:
    led, top = pl.col("session") % 20 == 0, pl.col("position") == 1
    pages = log.filter(~led | top).with_columns(pl.when(led).then(1).otherwise(CLICK).cast(pl.Int8).alias("click"))
    pages.write_parquet(tmp_path / "log.parquet")

    run_in_process("collect", "log.parquet", "-o", "out", code=0)

    assert reasons_of(tmp_path / "out")["pages-lead-on"]["figures"] == {"pages": 100, "share": 1}


@pytest.mark.parametrize("kept", ["first", "last"])
def test_logs_of_one_click_a_page_are_a_caution(
    run_in_process: Run, tmp_path: Path, log: pl.DataFrame, kept: str
) -> None:
    clicked = pl.col("position").filter(CLICK == 1)
    only = (clicked.min() if kept == "first" else clicked.max()).over("session") == pl.col("position")
    log.with_columns(click=only.fill_null(value=False).cast(pl.Int8)).write_parquet(tmp_path / "log.parquet")

    run_in_process("collect", "log.parquet", "-o", "out", code=0)

    found = reasons_of(tmp_path / "out")["one-click-a-page"]
    assert found["severity"] == "caution"
    assert found["figures"]["several"] == 0


def test_sums_of_clicks_without_impressions_are_no_counts_of_a_row(
    run_in_process: Run, tmp_path: Path, log: pl.DataFrame
) -> None:
    sums = log.group_by("query", "doc", "position").agg(clicks=CLICK.cast(pl.Int64).sum())
    sums.write_csv(tmp_path / "sums.csv")

    done = run_in_process("fit", "sums.csv", "--click-counts", "-o", "out", code=2)

    assert "These are sums that lack their impressions" in done.stderr


def test_totals_among_the_documents_of_sums_are_told_and_the_query_that_is_named_leaves_them_out(
    run_in_process: Run, tmp_path: Path, log: pl.DataFrame
) -> None:
    sums = log.group_by("query", pl.col("doc").cast(pl.String), "position").agg(
        impressions=pl.len(), clicks=CLICK.cast(pl.Int64).sum()
    )
    totals = sums.group_by("query", pl.lit("(all)").alias("doc"), "position").agg(pl.sum("impressions", "clicks"))
    pl.concat([sums, totals]).write_csv(tmp_path / "sums.csv")
    words = ("collect", "sums.csv", "--impressions", "impressions", "--click", "clicks")

    run_in_process(*words, "-o", "out", code=1)
    query = re.search('--sql "(.*)"', str(reasons_of(tmp_path / "out")["total-rows"]["sentence"]))
    assert query is not None
    run_in_process(*words, "--sql", query[1], "-o", "without")

    assert "total-rows" not in reasons_of(tmp_path / "without")
