"""What rows do not show: clicks that go with rows that are left out, and rows that were chosen by their clicks."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from command_results import Run, manifest_of

from posbias.core.simulation.simulate import SimulationOptions, simulate

CLICK, POSITION = pl.col("click"), pl.col("position")
FILTERED = "positions-before-a-filter"
Change = Callable[[pl.DataFrame], pl.DataFrame]


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


@pytest.mark.parametrize(
    ("queries", "sampled", "options", "told"),
    [
        (5_000, "pages without a click", (), True),
        (5_000, "pages", (), False),
        (5_000, "phones", (), True),
        (5_000, "phones", ("--stratify", "device"), False),
        (20, "pages without a click", (), False),  # documents of many rows: weights make up for it
    ],
)
def test_weights_that_go_with_clicks_are_named_where_documents_have_few_rows(
    run_in_process: Run, tmp_path: Path, queries: int, sampled: str, options: tuple[str, ...], *, told: bool
) -> None:
    world = SimulationOptions(n_queries=queries, n_sessions=10_000, n_positions=5, docs_per_query=7, query_exponent=0)
    phone, draw = pl.col("session") % 2 == 0, pl.col("session").hash(seed=5) % 2
    half_as_many = pl.when(phone & (pl.struct("session", "position").hash(seed=6) % 2 == 0)).then(0).otherwise(CLICK)
    log = simulate(world).log.with_columns(click=half_as_many, device=pl.when(phone).then(1).otherwise(2))
    is_sampled = {
        "pages": pl.lit(value=True),
        "phones": phone,
        "pages without a click": CLICK.max().over("session") == 0,
    }
    log = log.with_columns(weight=pl.when(is_sampled[sampled]).then(2.0).otherwise(1.0))
    log.filter((pl.col("weight") == 1) | (draw == 0)).write_parquet(tmp_path / "log.parquet")

    run_in_process("collect", "log.parquet", "--weight-column", "weight", *options, "-o", "out")

    assert ("weights-depend-on-clicks" in reasons_of(tmp_path / "out")) == told


SAMPLED = pl.concat_str("session", "position").hash(seed=3)
LAST = POSITION.filter(CLICK == 1).max().over("session")
DEPTH = pl.col("session").hash(seed=4) % 9 + 1
LEAVES = POSITION.filter((CLICK == 1) & (pl.col("session") % 3 > 0)).min().over("session")
LED = pl.col("session") % 20 == 0


def cut(last: pl.Expr) -> Change:
    """The log without the rows below the last one that is logged of a page."""
    return lambda log: log.filter(last.fill_null(99) >= POSITION)


def one_click(clicked: pl.Expr) -> Change:
    """The log with one click a page."""
    only = (clicked.over("session") == POSITION).fill_null(value=False)
    return lambda log: log.with_columns(click=only.cast(pl.Int8))


def grown(log: pl.DataFrame) -> pl.DataFrame:
    """The log with its pages once more as they began, without a click."""
    begun = log.filter(POSITION <= 4).with_columns(pl.col("session") + 10_000, click=pl.lit(0, pl.Int8))
    return pl.concat([log, begun])


def led_on(log: pl.DataFrame) -> pl.DataFrame:
    """The log with redirects as pages of one clicked result."""
    click = pl.when(LED).then(1).otherwise(CLICK).cast(pl.Int8).alias("click")
    return log.filter(~LED | (POSITION == 1)).with_columns(click)


TOLD: dict[str, tuple[Change, str, str | None, dict[str, object]]] = {
    "copies of rows": (lambda log: pl.concat([log, log.head(500)]), "clicks-left-out", None, {}),
    "half of the pages end at their last click": (
        lambda log: log.filter((pl.col("session") % 2 == 0) | (POSITION <= LAST)),
        "pages-end-on-clicks",
        "caution",
        {},
    ),
    "pages end two rows below their last click": (cut(LAST + 2), "pages-end-on-clicks", "stop", {}),
    "pages end with the screen of their last click": (
        cut(((LAST - 1) // 3 + 1) * 3),
        "pages-end-on-clicks",
        "stop",
        {},
    ),
    "pages of any length": (cut(DEPTH), "pages-end-on-clicks", None, {}),
    "users who leave after a click": (cut(LEAVES), "pages-end-on-clicks", None, {}),
    "pages that are logged again as they grow": (grown, "pages-never-clicked", "caution", {"position": 4}),
    "half of the rows at a position": (
        lambda log: log.filter((POSITION != 6) | (SAMPLED % 2 == 0)),
        "pages-with-gaps",
        "caution",
        {"position": 6, "lacking": pytest.approx(0.5, abs=0.03)},
    ),
    "redirects": (led_on, "pages-lead-on", "caution", {"pages": 100, "share": 1}),
    "first clicks alone": (one_click(POSITION.filter(CLICK == 1).min()), "one-click-a-page", "caution", {"several": 0}),
    "last clicks alone": (one_click(POSITION.filter(CLICK == 1).max()), "one-click-a-page", "caution", {"several": 0}),
}
"""What was done to a log, the code of the reason, its severity (None where there is no such stop), and its figures."""


@pytest.mark.parametrize("case", TOLD)
def test_rows_that_are_missing_by_what_was_clicked_are_told(
    run_in_process: Run, tmp_path: Path, log: pl.DataFrame, case: str
) -> None:
    change, code, severity, figures = TOLD[case]
    change(log).write_parquet(tmp_path / "log.parquet")

    run_in_process("collect", "log.parquet", "--duplicate-docs", "first", "-o", "out", code=int(severity == "stop"))

    found = reasons_of(tmp_path / "out")
    stops = {of for of, reason in found.items() if reason["severity"] == "stop"}
    assert stops == ({code} if severity == "stop" else set())
    assert severity is None or found[code]["severity"] == severity
    assert severity is None or found[code]["figures"].items() >= figures.items()
    assert case != "copies of rows" or code not in found
    assert case != "half of the rows at a position" or "2.0 times too high" in found[code]["sentence"]


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
