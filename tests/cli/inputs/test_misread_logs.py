"""Logs that were misread: another column for the click, sums of impressions, columns for each position, times, grids.

The log is a small one, in another form; the truth is what the log without that form says.
"""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from checked_logs import POSITIONS, checked, good_log
from command_results import Output, manifest_of
from workshop import RunPosbias as Run

PAGE = ("session", "query")
CLICK = pl.col("click")


@pytest.fixture(scope="module")
def log() -> pl.DataFrame:
    """Return 400 pages, in their order, with flags that are no clicks."""
    rows = good_log().drop("timestamp").filter(pl.col("session") < 400).sort("session", "position")
    even = (pl.col("doc").cast(pl.Int64) % 2).cast(pl.Int8)
    seen = (pl.col("position") <= 3).cast(pl.Int8) | CLICK
    return rows.with_columns(counts=CLICK.cast(pl.Int64) * (1 + pl.col("session") % 2), even=even, seen=seen)


def nested(log: pl.DataFrame, **lists: str) -> pl.DataFrame:
    """Pages with lists, by the names of columns."""
    pages = log.group_by(PAGE, maintain_order=True)
    return pages.agg(pl.col("doc").alias("docs"), *(pl.col(name).alias(as_) for as_, name in lists.items()))


def write(frame: pl.DataFrame, path: Path) -> str:
    """Write as the ending says; return the name."""
    writers = {".csv": frame.write_csv, ".ndjson": frame.write_ndjson, ".parquet": frame.write_parquet}
    writers[path.suffix](path)
    return path.name


def said(run: Run, *words: str | Path) -> str:
    """What a command says that ends with exit code 2, in one line."""
    return " ".join(run(*words, code=2).stderr.split())


def counts(log: pl.DataFrame) -> list[tuple[int, int, int]]:
    """Position, impressions and clicks."""
    return log.group_by("position").agg(pl.len(), CLICK.cast(pl.Int64).sum()).sort("position").rows()


def counted(content: dict[str, Any]) -> list[tuple[int, int, int]]:
    """The same, of what `check --json` says."""
    return [(row["position"], row["impressions"], row["clicks"]) for row in content["positions"]]


# --- which column is the click ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lists", "options"),
    [
        ({"viewed": "seen", "clicks": "counts"}, ["--click-counts"]),
        ({"in_stock": "even", "num_clicks": "counts"}, ["--click", "num_clicks", "--click-counts"]),
        ({"viewed": "seen", "tapped": "click"}, ["--click", "tapped"]),
    ],
)
@pytest.mark.slow_after(1)
def test_a_list_that_is_called_like_clicks_is_the_click_beside_others_of_0_and_1(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path, lists: dict[str, str], options: list[str]
) -> None:
    name = write(nested(log, **lists), tmp_path / "pages.ndjson")

    found = checked(run_in_process, name)

    assert found["command"] == ["run", name, "--doc", "docs", *options]
    assert counted(found) == counts(log)


def test_ids_of_clicked_documents_are_the_clicks_beside_a_list_of_0_and_1(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path
) -> None:
    ids = pl.col("doc").filter(CLICK == 1).alias("clicked")
    pages = log.group_by(PAGE, maintain_order=True).agg(
        pl.col("doc").alias("docs"), pl.col("seen").alias("viewed"), ids
    )
    pages.write_parquet(tmp_path / "pages.parquet")

    found = checked(run_in_process, "pages.parquet")

    assert found["command"][2:] == ["--doc", "docs", "--clicked", "clicked"]
    assert counted(found) == counts(log)


FLAGS: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "none says clicks": ({"wert": "click", "flag": "even"}, ("wert", "flag")),
    "one, which says something else": ({"in_stock": "even"}, ("in_stock",)),
    "two say clicks": ({"ad_clicked": "even", "organic_clicked": "click"}, ("ad_clicked", "organic_clicked")),
}


@pytest.mark.parametrize("form", ["lists", "rows"])
@pytest.mark.parametrize("case", FLAGS)
@pytest.mark.slow_after(1)
def test_which_of_several_columns_is_the_click_is_a_question(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path, form: str, case: str
) -> None:
    columns, candidates = FLAGS[case]
    rows = log.select(*PAGE, "doc", "position", **{as_: pl.col(name) for as_, name in columns.items()})
    name = write(
        nested(log, **columns) if form == "lists" else rows, tmp_path / f"log.{'ndjson' * (form == 'lists') or 'csv'}"
    )

    question = said(run_in_process, "check", name)
    settled = json.loads(run_in_process("check", name, "--click", candidates[-1], "--json").stdout)

    assert all(one in question for one in candidates)
    assert f"--click '{candidates[0]}'" in question or "Choose one with --click COLUMN" in question
    assert settled["totals"]["clicks"] == log[columns[candidates[-1]]].cast(pl.Int64).sum()
    run_in_process("fit", name, "-o", "fit", code=2)


@pytest.mark.slow
def test_a_column_that_only_its_values_make_the_click_is_a_guess_with_a_caution(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path
) -> None:
    rows = log.select(*PAGE, "doc", "position", geklickt="click", is_mobile="even")
    rows.write_csv(tmp_path / "log.csv")
    nested(log, geklickt="click", viewed="seen").write_parquet(tmp_path / "pages.parquet")

    for name in ("log.csv", "pages.parquet"):
        found = checked(run_in_process, name)
        assert found["command"][-2:] == ["--click", "geklickt"]
        (reason,) = (reason for reason in found["reasons"] if reason["code"] == "columns-guessed")
        assert reason["severity"] == "caution"
        assert "the click: --click geklickt." in reason["sentence"]
        assert counted(found) == counts(log)


# --- sums of impressions ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sums() -> pl.DataFrame:
    """Return hourly sums: `n` impressions of a document at a position, and clicks."""
    rows = good_log().drop("timestamp").with_columns(hour=pl.col("session") % 24)
    keys = ("query", "doc", "position", "hour")
    return rows.group_by(keys).agg(n=pl.len(), clicks=CLICK.cast(pl.Int64).sum()).sort(keys)


@pytest.mark.parametrize("name", ["Impression", "impression_cnt", "pv", "shows", "Times Shown", "anzahl"])
@pytest.mark.slow
def test_sums_are_recognised_by_their_names_and_by_their_values(
    run_in_process: Run, sums: pl.DataFrame, tmp_path: Path, name: str
) -> None:
    sums.rename({"n": name}).write_csv(tmp_path / "log.csv")

    found = checked(run_in_process, "log.csv")
    refused = said(run_in_process, "fit", "log.csv", "--click-counts", "-o", "fit")
    advised = re.search(r"use (--impressions .*?)\.", said(run_in_process, "fit", "log.csv", "-o", "fit"))

    assert found["command"][2:] == ["--impressions", name]
    assert found["totals"]["impressions"] == sums["n"].sum()
    assert f"Use --impressions {shlex.quote(name)} --click clicks, instead of --click-counts" in refused
    assert advised is not None
    run_in_process("fit", "log.csv", *shlex.split(advised[1]), "-o", "advised", "--no-compare")
    assert manifest_of(tmp_path / "advised")["totals"]["clicks"] == sums["clicks"].sum()


@pytest.mark.parametrize(("name", "severity"), [("impression_cnt", "stop"), ("anzahl", "caution")])
@pytest.mark.slow
def test_sums_of_at_most_one_click_are_not_read_as_impressions_in_silence(
    run_in_process: Run, sums: pl.DataFrame, tmp_path: Path, name: str, severity: str
) -> None:
    few = sums.with_columns(
        clicks=(pl.struct("query", "doc", "position", "hour").hash() % 10 < pl.col("n")).cast(pl.Int8)
    )
    few.rename({"n": name}).write_parquet(tmp_path / "log.parquet")

    run_in_process("fit", "log.parquet", "-o", "fit", "--no-compare")
    (reason,) = (each for each in manifest_of(tmp_path / "fit")["reasons"] if each["code"] == "counts-not-used")
    found = checked(run_in_process, "log.parquet", *re.findall(r"--impressions \w+", reason["sentence"])[0].split())

    assert reason["severity"] == severity
    assert found["totals"]["impressions"] == sums["n"].sum()


def test_whole_numbers_that_clicks_do_not_go_with_are_no_impressions(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path
) -> None:
    numbers = {"price": pl.col("doc").hash() % 90 + 2, "visits": pl.col("session").hash() % 5 + 1}
    numbers |= {"impression": pl.lit(1), "row": pl.int_range(1, pl.len() + 1)}
    rows = log.with_columns(**numbers).drop("session", "even", "seen")
    rows.drop("counts").write_parquet(tmp_path / "log.parquet")
    rows.drop("click").rename({"counts": "clicks"}).write_parquet(tmp_path / "counts.parquet")

    for name in ("log", "counts"):
        found = checked(run_in_process, f"{name}.parquet")
        assert "--impressions" not in found["command"]
        assert {reason["code"] for reason in found["reasons"]}.isdisjoint({"counts-not-used", "columns-guessed"})


# --- positions that are none ------------------------------------------------------------------------------------

WHY = "A sum or an average of positions, also a sum divided by impressions, is no position"


def test_positions_that_are_fractions_are_averages(run_in_process: Run, sums: pl.DataFrame, tmp_path: Path) -> None:
    table = sums.with_columns(position=pl.col("position") + 0.4, impressions="n").drop("n", "hour")
    table.write_csv(tmp_path / "log.csv")

    assert WHY in said(run_in_process, "run", "log.csv", "--impressions", "impressions", "-o", "out")
    assert WHY in checked(run_in_process, "log.csv", "--impressions", "impressions", code=1)["reasons"][0]["sentence"]


# --- a query that reads it --------------------------------------------------------------------------------------


def wide(log: pl.DataFrame, doc: str, click: str, base: int) -> pl.DataFrame:
    """A row per page, with columns for each position; the last of every third page is empty."""
    shown = log.filter((pl.col("session") % 3 > 0) | (pl.col("position") < POSITIONS))
    pages = shown.with_columns(pl.col("position") - 1 + base).pivot("position", index=PAGE, values=["doc", "click"])
    numbers = range(base, POSITIONS + base)
    names = {f"doc_{n}": doc.format(n) for n in numbers} | {f"click_{n}": click.format(n) for n in numbers}
    return pages.rename(names).with_columns(pl.lit(0.5).alias(f"price{n}") for n in numbers)


@pytest.mark.parametrize(
    ("file", "names"),
    [
        ("log.csv", ("doc{}", "clicked{}", 1)),
        ("log.parquet", ("domain_{}", "click_{}", 0)),
        ("log.ndjson", ("result {} id", "result {} taps", 1)),
        ("log.csv", ("doc.{}", "c.{}", 1)),
    ],
)
@pytest.mark.slow
def test_columns_for_each_position_are_read_by_the_query_that_is_named(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path, file: str, names: tuple[str, str, int]
) -> None:
    write(wide(log, *names), tmp_path / file)
    shown = log.filter((pl.col("session") % 3 > 0) | (pl.col("position") < POSITIONS))

    found = checked(run_in_process, file)
    refused = run_in_process("collect", file, "-o", "out", code=2).stderr
    again = shlex.split(refused.partition("Try: posbias ")[2])
    run_in_process(*again, code=0)

    assert counted(found) == counts(shown)
    assert "a row is a page with columns for each position" in found["recognised"]["findings"][0]["said"]
    assert manifest_of(tmp_path / "out")["statistics"]["clicks"] == shown["click"].sum()


def test_numbered_features_are_no_positions(run_in_process: Run, log: pl.DataFrame, tmp_path: Path) -> None:
    features = {f"doc_feature_{n}": pl.col("doc") for n in range(4)} | {
        f"click_last_{n}": pl.col("even") for n in range(4)
    }
    log.select(*PAGE, "doc", "position", "click", **features).write_parquet(tmp_path / "log.parquet")

    assert checked(run_in_process, "log.parquet")["command"] == ["run", "log.parquet"]


MOMENT = pl.datetime(2026, 1, 5) + pl.duration(seconds=pl.col("session") * 41 + pl.col("position"))
TIMES: dict[str, tuple[str, pl.Expr, pl.Expr]] = {
    "log.parquet": ("clicked_at", MOMENT, pl.lit(None)),
    "log.csv": ("click_time", MOMENT.dt.strftime("%Y-%m-%d %H:%M:%S"), pl.lit(None)),
    "epoch.csv": ("clicked_at", MOMENT.dt.epoch("s"), pl.lit(0)),
    "seconds.ndjson": ("seconds_to_click", (pl.col("session") % 60 + pl.col("position") / 4), pl.lit(None)),
    "ids.csv": ("click_id", pl.int_range(pl.len()), pl.lit(None)),
    "uuids.parquet": ("click_uuid", pl.format("{}-{}", "session", "position"), pl.lit(None)),
    "german.csv": ("clicked", MOMENT.dt.strftime("%d.%m.%Y %H:%M"), pl.lit("-")),
}


@pytest.mark.parametrize("file", TIMES)
@pytest.mark.slow
def test_the_time_or_id_of_a_click_is_a_click_by_the_query_that_is_named(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path, file: str
) -> None:
    name, time, none = TIMES[file]
    rows = log.select(*PAGE, "doc", "position", pl.when(CLICK == 1).then(time).otherwise(none).alias(name))
    write(rows, tmp_path / file)

    found = checked(run_in_process, file)
    run_in_process(*found["command"], "-o", "out", "--no-compare")

    assert counted(found) == counts(log)
    kind = "ids" if file in {"ids.csv", "uuids.parquet"} else "times"
    assert f"holds {kind} of clicks" in found["recognised"]["findings"][0]["said"]
    assert manifest_of(tmp_path / "out")["totals"]["clicks"] == log["click"].sum()


@pytest.mark.parametrize("file", ["log.parquet", "log.csv"])
@pytest.mark.slow_after(1)
def test_a_column_of_times_that_is_named_as_the_click_is_refused_with_the_query(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path, file: str
) -> None:
    name, time, none = TIMES[file]
    rows = log.select(*PAGE, "doc", "position", pl.when(CLICK == 1).then(time).otherwise(none).alias(name))
    write(rows, tmp_path / file)

    query = re.search(r"--sql (?:'(.*?)'|\"(.*?)\")", said(run_in_process, "fit", file, "--click", name, "-o", "fit"))

    assert query is not None
    assert counted(checked(run_in_process, file, "--sql", query[1] or query[2])) == counts(log)


# --- grids ------------------------------------------------------------------------------------------------------


def columns_of_two(base: int) -> Callable[[str, str], dict[str, pl.Expr]]:
    """Rows and columns of a grid of two columns."""
    at = pl.col("position") - 1
    return lambda row, column: {row: at // 2 + base, column: at % 2 + base}


@pytest.mark.parametrize(("names", "base"), [(("row", "column"), 1), (("grid_row", "grid_col"), 0)])
@pytest.mark.slow
def test_a_grid_is_named_with_the_options_that_read_it(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path, names: tuple[str, str], base: int
) -> None:
    grid = log.select(*PAGE, "doc", "click", **columns_of_two(base)(*names))
    grid.write_csv(tmp_path / "grid.csv")
    grid.drop("session").write_csv(tmp_path / "no_pages.csv")

    found = checked(run_in_process, "grid.csv")
    refused = said(
        run_in_process, "fit", "no_pages.csv", "--position", names[1], "--position-base", str(base), "-o", "fit"
    )

    assert f"--cell {names[0]}" in shlex.join(found["command"])
    assert f"{names[0]!r} looks like the row of a grid" in refused
    assert f"Use --cell {names[0]}. If {names[0]!r} is something else, use --page none" in refused
    run_in_process("collect", *found["command"][1:], "-o", "out", code=0)
    cells = Output(tmp_path / "out").statistics
    place = (pl.col(names[0]).cast(pl.Int32) - base) * 2 + pl.col("position")
    sums = cells.group_by(place.alias("place")).agg(pl.col("impressions", "clicks").sum()).sort("place")
    assert sums.rows() == counts(log)
