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


def test_a_log_without_sessions_says_why_ubm_needs_them(run_in_process: Run, log: pl.DataFrame, tmp_path: Path) -> None:
    log.drop("session").write_parquet(tmp_path / "log.parquet")

    found = checked(run_in_process, "log.parquet")
    wanted = checked(run_in_process, "log.parquet", "--model", "pbm")

    assert found["models"]["ubm"]["reason"] == "it needs whole pages, and the log has no session column"
    assert found["pages"] is None
    assert found["models"]["pbm"]["can_be_estimated"]
    assert wanted["command"] == ["run", "log.parquet", "--model", "pbm"]


# --- standard errors ------------------------------------------------------------------------------------------


def test_of_many_parts_some_tell_the_errors_of_all(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.write_parquet(tmp_path / "log.parquet")

    whole = checked(run_in_process, "log.parquet")
    monkeypatch.setattr("posbias.io.engines.local._ROWS_THAT_STAY_IN_CACHE", 1000)
    monkeypatch.setattr("posbias.io.counting.samples.MOST_PARTS", 6)
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


@pytest.mark.parametrize(("width", "rows_of_each"), [(50, 40_000), (80, 1), (120, 40_000)])
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
    monkeypatch.setattr("posbias.cli.commands._WIDTH_IN_A_FILE", width)

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


def test_a_log_without_rows_carries_no_estimate(run_in_process: Run, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("session,query,doc,position,click\n", encoding="utf-8")

    assert checked(run_in_process, "log.csv", code=1)["reasons"] == ["log.csv: the log holds no rows."]
