"""`posbias check`: what a log holds, what is wrong with it, what can be estimated, and how that is said."""

from pathlib import Path

import polars as pl
import pytest
from checked_logs import Run, checked, good_log

CLICK = pl.col("click")


@pytest.fixture(scope="module")
def log() -> pl.DataFrame:
    """Return a log that needs no option."""
    return good_log()


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


@pytest.mark.slow
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


def test_statistics_are_no_log(run_in_process: Run, log: pl.DataFrame, tmp_path: Path) -> None:
    log.write_parquet(tmp_path / "log.parquet")
    assert run_in_process("collect", "log.parquet", "-o", "counts").returncode == 0

    done = run_in_process("check", "counts")

    assert done.returncode == 2
    assert "counts holds statistics, and only logs are checked" in done.stderr
