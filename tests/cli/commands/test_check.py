"""`posbias check`: what is recognised of a log is a command that reads it; what is wrong with it is said."""

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import polars as pl
import pytest

from posbias.core.simulation.simulate import SimulationOptions, simulate

Run = Callable[..., CompletedProcess[str]]

POSITIONS = 5
CLICK = pl.col("click")


@pytest.fixture(scope="module")
def log() -> pl.DataFrame:
    """Return a log that needs no option."""
    options = SimulationOptions(
        n_sessions=3000, n_queries=60, n_positions=POSITIONS, docs_per_query=8, query_exponent=0.5, days=3, seed=5
    )
    return simulate(options).log.with_columns(pl.col("doc").cast(pl.String))


def checked(run: Run, *words: str | Path, code: int = 0) -> dict[str, Any]:
    """What `check --json` says."""
    done = run("check", *words, "--json")
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def totals_of_run(run: Run, command: list[str], folder: Path) -> dict[str, Any]:
    """What the main job counts with the command that was found."""
    done = run(*command, "-o", "out", "--no-compare")
    assert done.returncode in {0, 1}, done.stderr
    return json.loads((folder / "out" / "manifest.json").read_text(encoding="utf-8"))["totals"]


# --- what is recognised ---------------------------------------------------------------------------------------


def visits(log: pl.DataFrame) -> pl.DataFrame:
    """The log with three pages, of different queries or times, under each session."""
    return log.with_columns(pl.col("session") // 3, query_time=pl.col("timestamp")).drop("timestamp")


def sums(log: pl.DataFrame) -> pl.DataFrame:
    return log.group_by("query", "doc", "position").agg(views=pl.len(), clicks=CLICK.cast(pl.Int64).sum())


FORMS: dict[str, tuple[Callable[[pl.DataFrame], pl.DataFrame], list[str]]] = {
    "well-known names": (lambda log: log, []),
    "names of others": (
        lambda log: log.rename({"query": "search_term", "doc": "objectID", "position": "slot", "click": "isClicked"}),
        ["--query", "search_term", "--doc", "objectID", "--position", "slot", "--click", "isClicked"],
    ),
    "names that are guessed": (
        lambda log: log.rename({"query": "our search", "doc": "theItem", "position": "gridPlace", "click": "tapped"}),
        ["--query", "our search", "--doc", "theItem", "--position", "gridPlace", "--click", "tapped"],
    ),
    "names in another language": (
        lambda log: log.drop("timestamp").rename(
            {"session": "sitzung", "query": "suche", "doc": "artikel", "position": "rang", "click": "geklickt"}
        ),
        ["--session", "sitzung", "--query", "suche", "--doc", "artikel", "--position", "rang", "--click", "geklickt"],
    ),
    "two names for a role": (
        lambda log: log.with_columns(item_id=pl.col("doc").hash()).with_columns(doc_id="doc").drop("doc"),
        ["--doc", "doc_id"],
    ),
    "positions from 0": (lambda log: log.with_columns(pl.col("position") - 1), ["--position-base", "0"]),
    "counts of clicks": (
        lambda log: log.with_columns(pl.when(CLICK == 1).then(1 + pl.col("session") % 3).otherwise(0).alias("click")),
        ["--click-counts"],
    ),
    "empty where there is no click": (
        lambda log: log.with_columns(pl.when(CLICK == 1).then(CLICK)),
        ["--null-click", "0"],
    ),
    "sums": (sums, ["--impressions", "views"]),
    "positions from 0, names of others, empty cells": (
        lambda log: log.select(
            "session", "query", sku="doc", rank=pl.col("position") - 1, clicked=pl.when(CLICK == 1).then(1)
        ),
        ["--doc", "sku", "--position-base", "0", "--null-click", "0"],
    ),
    "visits": (visits, ["--session", "session", "--session", "query_time"]),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_the_command_that_is_found_reads_the_log_with_the_right_totals(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path, form: str, ending: str
) -> None:
    make, options = FORMS[form]
    file = tmp_path / f"log.{ending}"
    made = make(log)
    made.write_parquet(file) if ending == "parquet" else made.write_csv(file)

    found = checked(run_in_process, file.name)

    assert found["command"] == ["run", file.name, *options]
    assert found["carries_estimate"] is True
    totals = totals_of_run(run_in_process, found["command"], tmp_path)
    assert (totals["impressions"], totals["clicks"]) == (log.height, log["click"].sum())
    assert (found["totals"]["impressions"], found["totals"]["clicks"]) == (log.height, log["click"].sum())


def test_lists_are_recognised_without_an_option(run_in_process: Run, log: pl.DataFrame, tmp_path: Path) -> None:
    pages = log.sort("session", "position").group_by("session", "query", maintain_order=True).agg("doc", "click")
    pages.write_ndjson(tmp_path / "pages.ndjson")

    found = checked(run_in_process, "pages.ndjson")

    assert found["command"] == ["run", "pages.ndjson"]
    assert found["recognised"]["form"] == "nested"
    assert found["totals"]["impressions"] == log.height


def test_ubi_is_recognised(run_in_process: Run, shared_data: Path, tmp_path: Path) -> None:
    sample = shared_data / "opensearch_ubi_sample.ndjson.gz"

    found = checked(run_in_process, sample, code=1)

    assert found["command"] == ["run", str(sample), "--input-format", "ubi"]
    assert totals_are(run_in_process, found, tmp_path)


def totals_are(run: Run, found: dict[str, Any], folder: Path) -> bool:
    done = run("collect", *found["command"][1:], "-o", "out")
    assert done.returncode == 0, done.stderr
    counted = json.loads((folder / "out" / "manifest.json").read_text(encoding="utf-8"))["statistics"]
    return (counted["impressions"], counted["clicks"]) == (found["totals"]["impressions"], found["totals"]["clicks"])


def test_clicks_apart_and_whatever_the_user_says_are_kept_in_the_command(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path
) -> None:
    log.drop("click").rename({"doc": "artikel"}).write_csv(tmp_path / "shown.csv")
    log.filter(CLICK == 1).select("session", artikel="doc").write_csv(tmp_path / "clicks.csv")
    said = ["--clicks", "clicks.csv", "--doc", "artikel", "--clicks-doc", "artikel", "--max-position", "4"]

    found = checked(run_in_process, "shown.csv", *said)

    assert found["command"][:2] == ["run", "shown.csv"]
    pairs = zip(said[::2], said[1::2], strict=True)
    held = list(zip(found["command"][2::2], found["command"][3::2], strict=True))
    assert sorted(held) == sorted(pairs)
    within = log.filter(pl.col("position") <= 4)
    assert totals_of_run(run_in_process, found["command"], tmp_path)["clicks"] == within["click"].sum()


def test_what_is_said_in_a_file_is_kept_in_the_command(run_in_process: Run, log: pl.DataFrame, tmp_path: Path) -> None:
    log.rename({"doc": "artikel"}).write_csv(tmp_path / "log.csv")
    (tmp_path / "posbias.toml").write_text('doc = "artikel"\nmin-propensity = 0.02\n', encoding="utf-8")

    assert checked(run_in_process, "log.csv")["command"] == ["run", "log.csv", "--doc", "artikel"]


def test_what_would_have_no_effect_on_a_run_is_not_in_the_command(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path
) -> None:
    log.write_csv(tmp_path / "log.csv")
    (tmp_path / "posbias.toml").write_text('click-actions = "tap"\nmax-bad-rows = 0.1\n', encoding="utf-8")

    found = checked(run_in_process, "log.csv")
    (tmp_path / "posbias.toml").unlink()

    assert found["command"] == ["run", "log.csv"]
    assert totals_of_run(run_in_process, found["command"], tmp_path)["impressions"] == log.height


def test_rows_that_stand_twice_are_said_to_do_so(run_in_process: Run, log: pl.DataFrame, tmp_path: Path) -> None:
    pl.concat([log, log]).write_parquet(tmp_path / "log.parquet")

    found = checked(run_in_process, "log.parquet", code=1)

    assert found["command"] == ["run", "log.parquet"]
    assert "100.00% of the pages hold rows twice" in found["recognised"]["findings"][0]["said"]


def test_a_name_that_begins_with_a_dash_is_no_option(run_in_process: Run, log: pl.DataFrame, tmp_path: Path) -> None:
    log.rename({"doc": "-item"}).write_csv(tmp_path / "-log.csv")

    found = checked(run_in_process, "--doc=-item", "./-log.csv")

    assert found["command"] == ["run", "./-log.csv", "--doc=-item"]
    assert totals_of_run(run_in_process, found["command"], tmp_path)["impressions"] == log.height


def test_a_few_bad_rows_and_documents_twice_on_a_page_are_counted_and_said(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path
) -> None:
    # On one page in twenty, the document at the top stands at the end once more.
    twice = (pl.col("session") % 20 == 0) & (pl.col("position") == POSITIONS)
    first = pl.col("doc").first().over("session", order_by="position")
    no_doc = pl.col("session").is_in([7, 8])
    broken = log.with_columns(pl.when(twice).then(first).when(no_doc).then(None).otherwise("doc").alias("doc"))
    broken.write_csv(tmp_path / "log.csv")

    found = checked(run_in_process, "log.csv")

    assert found["command"] == ["run", "log.csv", "--on-bad-rows", "drop", "--duplicate-docs", "first"]
    assert found["rows"]["rejected"]["the document is missing"] == 2 * POSITIONS
    assert found["rows"]["rejected"]["the document stands further up on the page"] == 150
    totals = totals_of_run(run_in_process, found["command"], tmp_path)
    assert totals["impressions"] == found["totals"]["impressions"] == found["rows"]["used"]


def test_a_mark_of_a_missing_position_is_no_top_position(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path
) -> None:
    marked = pl.when(pl.col("session") == 3).then(0).otherwise(pl.col("position"))
    log.with_columns(marked.alias("position")).write_parquet(tmp_path / "log.parquet")

    found = checked(run_in_process, "log.parquet")

    assert found["command"] == ["run", "log.parquet", "--on-bad-rows", "drop"]


# --- what is wrong --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (CLICK == 1, "This looks like a log of clicks only"),
        (
            pl.col("position") <= pl.col("position").filter(CLICK == 1).max().over("session"),
            "They seem to be logged only down to the last click",
        ),
        (pl.col("position") == 1, "in 1 cell(s) (positions) only"),
        (CLICK == 0, "The log has no click"),
    ],
)
def test_a_log_that_carries_no_estimate_is_shown_with_the_reason_and_exit_code_1(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path, fault: pl.Expr, says: str
) -> None:
    log.filter(fault).write_parquet(tmp_path / "log.parquet")

    found = checked(run_in_process, "log.parquet", code=1)

    assert found["carries_estimate"] is False
    assert says in " ".join(found["reasons"])
    assert found["totals"]["impressions"] == log.filter(fault).height
    assert [row["position"] for row in found["positions"]]


def test_the_reason_is_that_of_the_run(run_in_process: Run, log: pl.DataFrame, tmp_path: Path) -> None:
    log.filter(CLICK == 1).write_parquet(tmp_path / "log.parquet")

    found = checked(run_in_process, "log.parquet", code=1)
    refused = run_in_process("collect", "log.parquet", "-o", "out")

    assert refused.returncode == 2
    assert refused.stderr == f"posbias: error: {found['reasons'][0]}\n"


def test_too_many_bad_rows_are_said_in_the_words_of_a_run(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path
) -> None:
    log.with_columns(pl.when(pl.col("session") % 5 > 0).then("doc").alias("doc")).write_parquet(
        tmp_path / "log.parquet"
    )

    found = checked(run_in_process, "log.parquet", code=1)

    assert "--on-bad-rows drop would leave out 3,000 of 15,000 rows (20 %)" in found["reasons"][0]
    assert "the document is missing" in found["reasons"][0]


def test_positions_that_no_document_links_are_named_and_swaps_are_advised(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path
) -> None:
    own = pl.concat_str(pl.col("doc"), pl.lit("@"), pl.col("position"))
    log.with_columns(doc=own).write_parquet(tmp_path / "log.parquet")

    found = checked(run_in_process, "log.parquet", code=1)

    assert found["models"]["pbm"]["can_be_estimated"] is False
    assert "No two of the 5 cells (positions) can be compared" in found["reasons"][0]
    assert found["advice"][0].startswith("swaps: let the same document appear at different positions")


def test_robots_large_clients_gaps_and_late_pages_are_warned_of(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path
) -> None:
    robot = pl.col("session") % 10 == 0
    odd = log.with_columns(
        pl.when(robot).then(1).otherwise(CLICK).alias("click"),
        client=pl.when(robot).then(pl.lit("crawler")).otherwise(pl.col("session").cast(pl.String)),
    ).filter(~((pl.col("session") % 10 == 1) & (pl.col("position") == 1)))
    odd.filter(~((pl.col("session") % 10 == 2) & (pl.col("position") == 3))).write_parquet(tmp_path / "log.parquet")

    found = checked(run_in_process, "log.parquet")
    warnings = " ".join(found["warnings"])

    assert found["pages"]["clicked_in_full"] >= 300
    assert f"{found['pages']['clicked_in_full']} of 3,000 pages of 4 results or more are clicked in full" in warnings
    assert "one value of 'client' has 10% of the first" in warnings
    assert "10.0% of the pages start below position 1" in warnings
    assert "10.0% of the pages lack positions" in warnings


def test_nothing_is_said_against_a_good_log(run_in_process: Run, log: pl.DataFrame, tmp_path: Path) -> None:
    log.write_parquet(tmp_path / "log.parquet")

    found = checked(run_in_process, "log.parquet")

    assert found["warnings"] == []
    assert found["reasons"] == []
    assert found["recognised"]["findings"] == []
    assert [said.split(":")[0] for said in found["advice"]] == ["--timestamp timestamp"]


def test_a_time_that_is_said_is_counted_by_day(run_in_process: Run, log: pl.DataFrame, tmp_path: Path) -> None:
    log.write_parquet(tmp_path / "log.parquet")

    found = checked(run_in_process, "log.parquet", "--timestamp", "timestamp")

    assert found["days"] == {"number": 3, "first": "2026-01-05", "last": "2026-01-07"}
    assert found["advice"] == []


def test_a_log_without_sessions_says_why_ubm_needs_them(run_in_process: Run, log: pl.DataFrame, tmp_path: Path) -> None:
    log.drop("session").write_parquet(tmp_path / "log.parquet")

    found = checked(run_in_process, "log.parquet")
    wanted = checked(run_in_process, "log.parquet", "--model", "pbm")

    assert found["models"]["ubm"]["reason"] == "it needs whole pages, and the log has no session column"
    assert found["pages"] is None
    assert found["models"]["pbm"]["can_be_estimated"]
    assert wanted["command"] == ["run", "log.parquet", "--model", "pbm"]


# --- standard errors ------------------------------------------------------------------------------------------


def test_the_errors_to_expect_are_those_of_the_fit(run_in_process: Run, log: pl.DataFrame, tmp_path: Path) -> None:
    log.write_parquet(tmp_path / "log.parquet")

    found = checked(run_in_process, "log.parquet")

    for model in ("pbm", "ubm"):
        assert run_in_process("fit", "log.parquet", "--model", model, "-o", model).returncode in {0, 1}
        fitted = pl.read_parquet(tmp_path / model / "propensities.parquet")
        cells = found["models"][model]["cells"]
        assert [cell["std_error"] for cell in cells] == pytest.approx(fitted["std_error"].to_list(), nan_ok=True)
        assert [cell["identified"] for cell in cells] == fitted["identified"].to_list()
        assert [cell["linking_clicks"] for cell in cells] == fitted["linking_clicks"].to_list()


def test_a_log_in_several_parts_says_what_it_says_in_one(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.write_parquet(tmp_path / "log.parquet")

    at_once = checked(run_in_process, "log.parquet")
    monkeypatch.setattr("posbias.io.engines.local._ROWS_THAT_STAY_IN_CACHE", 3000)
    monkeypatch.setattr("posbias.io.engines.local._FEW_QUERIES", 5)
    in_parts = checked(run_in_process, "log.parquet")

    for part in ("command", "rows", "days", "queries", "movement", "warnings", "advice"):
        assert in_parts[part] == at_once[part]
    assert [row["ctr_high"] for row in in_parts["positions"]] == pytest.approx(
        [row["ctr_high"] for row in at_once["positions"]]
    )
    errors = [[cell["std_error"] for cell in found["models"]["pbm"]["cells"]] for found in (in_parts, at_once)]
    assert errors[0] == pytest.approx(errors[1])
    assert (in_parts["totals"]["pages"], in_parts["totals"]["pages_exact"]) == (log["session"].n_unique(), False)
    assert 0 < in_parts["models"]["ubm"]["share_of_queries"] < 1
    assert in_parts["totals"]["documents"] == at_once["totals"]["documents"]
    assert "about 3,000 pages" in run_in_process("check", "log.parquet").stdout


def test_of_many_parts_some_tell_the_errors_of_all(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.write_parquet(tmp_path / "log.parquet")

    whole = checked(run_in_process, "log.parquet")
    monkeypatch.setattr("posbias.io.engines.local._ROWS_THAT_STAY_IN_CACHE", 1000)
    monkeypatch.setattr("posbias.io.checking.look.MOST_PARTS", 6)
    sample = checked(run_in_process, "log.parquet")

    assert 0.2 < sample["models"]["pbm"]["share_of_queries"] < 0.7
    assert (whole["totals"]["pairs_exact"], sample["totals"]["pairs_exact"]) == (True, False)
    for name in ("impressions", "clicks", "queries", "documents"):
        assert sample["totals"][name] == whole["totals"][name]
    assert sample["totals"]["pairs"] == pytest.approx(whole["totals"]["pairs"], rel=0.05)
    errors = [[cell["std_error"] for cell in found["models"]["pbm"]["cells"][1:]] for found in (sample, whole)]
    assert errors[0] == pytest.approx(errors[1], rel=0.5)
    assert "(query, doc) pairs" in run_in_process("check", "log.parquet").stdout.partition("about")[2]


# --- how it is said -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [50, 80, 120])
@pytest.mark.parametrize("rows_of_each", [1, 40_000])
def test_the_table_for_people_fits_the_terminal_and_cuts_no_number(
    *,
    run_in_process: Run,
    log: pl.DataFrame,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    width: int,
    rows_of_each: int,
) -> None:
    log.with_columns(copies=pl.lit(rows_of_each)).write_parquet(tmp_path / "log.parquet")
    monkeypatch.setattr("posbias.cli.commands.check._WIDTH_IN_A_FILE", width)

    done = run_in_process("check", "log.parquet", "--weight-column", "copies")

    assert done.returncode == 0
    *report, _, command = done.stdout.splitlines()
    assert max(map(len, report)) <= width
    assert "…" not in done.stdout
    assert command == "posbias run log.parquet --weight-column copies -o result"
    assert done.stderr == ""


def test_quiet_says_only_what_is_wrong(run_in_process: Run, log: pl.DataFrame, tmp_path: Path) -> None:
    log.write_parquet(tmp_path / "good.parquet")
    log.filter(CLICK == 1).write_parquet(tmp_path / "bad.parquet")

    good, bad = run_in_process("check", "good.parquet", "--quiet"), run_in_process("check", "bad.parquet", "--quiet")

    assert (good.returncode, good.stdout, good.stderr) == (0, "", "")
    assert (bad.returncode, bad.stdout) == (1, "")
    assert "This looks like a log of clicks only" in bad.stderr


def test_nothing_is_written(run_in_process: Run, log: pl.DataFrame, tmp_path: Path) -> None:
    log.write_parquet(tmp_path / "log.parquet")
    (tmp_path / "scratch").mkdir()

    assert run_in_process("check", "log.parquet", "--temp-dir", "scratch").returncode == 0

    assert sorted(path.name for path in tmp_path.rglob("*")) == ["log.parquet", "scratch"]


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "no such file or directory"), (b"a,b\n1,2\n", "4 roles have no column"), (b"PAR1 broken", "log.csv")],
    ids=["no file", "no roles", "damaged"],
)
def test_what_cannot_be_read_is_an_error(run_in_process: Run, tmp_path: Path, content: bytes | None, says: str) -> None:
    if content is not None:
        (tmp_path / "log.csv").write_bytes(content)

    done = run_in_process("check", "log.csv")

    assert done.returncode == 2, done.stdout
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_log_without_rows_carries_no_estimate(run_in_process: Run, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("session,query,doc,position,click\n", encoding="utf-8")

    assert checked(run_in_process, "log.csv", code=1)["reasons"] == ["log.csv: the log holds no rows."]


def test_nothing_is_guessed_from_values_where_rows_are_in_no_order(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path
) -> None:
    shuffled = log.sample(fraction=1, shuffle=True, seed=1).with_columns(chance=pl.col("doc").hash() / 2**64)
    shuffled.drop("session").rename({"query": "suche"}).write_parquet(tmp_path / "log.parquet")

    done = run_in_process("check", "log.parquet")

    assert done.returncode == 2
    assert "no column looks like the query" in done.stderr


def test_statistics_are_no_log(run_in_process: Run, log: pl.DataFrame, tmp_path: Path) -> None:
    log.write_parquet(tmp_path / "log.parquet")
    assert run_in_process("collect", "log.parquet", "-o", "counts").returncode == 0

    done = run_in_process("check", "counts")

    assert done.returncode == 2
    assert "counts holds statistics, and only logs are checked" in done.stderr
