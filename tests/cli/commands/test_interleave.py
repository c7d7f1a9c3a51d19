"""`posbias interleave`: the verdict of a log, of days one by one, and what is broken."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from command_results import manifest_of
from drafts import drafted
from polars.testing import assert_frame_equal
from workshop import RunPosbias as Run

COLUMNS = ("--team", "team", "--rank-a", "rank_a", "--rank-b", "rank_b")
DAYS = [f"2026-01-{day:02d}" for day in range(1, 6)]


@pytest.fixture(scope="module")
def alike() -> pl.DataFrame:
    return drafted(1, 900, queries=60)


@pytest.fixture(scope="module")
def better() -> pl.DataFrame:
    """A ranker that knows what is attractive, against one that does not."""
    return drafted(2, 900, queries=60, strength=(float("inf"), 0.0))


def verdict_of(folder: Path) -> dict[str, dict[str, Any]]:
    rows = pl.read_parquet(folder / "verdict.parquet").iter_rows(named=True)
    return {row["question"]: row for row in rows}


def reasons_of(folder: Path) -> dict[str, dict[str, Any]]:
    manifest = manifest_of(folder)
    return {reason["code"]: reason for reason in manifest["reasons"]}


def test_a_better_ranker_wins_with_exit_code_3_and_equal_ones_are_undecided(
    run_in_process: Run, tmp_path: Path, better: pl.DataFrame, alike: pl.DataFrame
) -> None:
    better.write_parquet(tmp_path / "better.parquet")
    alike.write_parquet(tmp_path / "alike.parquet")
    done = run_in_process("interleave", "better.parquet", *COLUMNS, "--user", "user", "-o", "won", code=3)
    assert "on this traffic, A beats B by" in done.stderr.lower().replace("a beats b", "A beats B")
    won = verdict_of(tmp_path / "won")
    assert list(won) == ["traffic", "queries", "users"]
    assert {row["winner"] for row in won.values()} == {"A"}
    assert all(row["pages"] == 900 and 0 < row["ci_low"] < row["difference"] < row["ci_high"] for row in won.values())
    run_in_process("interleave", "alike.parquet", *COLUMNS, "-o", "open", code=0)
    run_in_process("interleave", "alike.parquet", *COLUMNS, "--timestamp", "none", "-o", "undated", code=0)
    assert pl.read_parquet(tmp_path / "undated" / "days.parquet")["day"].to_list() == [None]
    (undecided,) = (row for row in verdict_of(tmp_path / "open").values() if row["question"] == "traffic")
    assert undecided["winner"] is None
    assert undecided["ci_low"] < 0 < undecided["ci_high"]


def test_days_one_by_one_give_the_verdict_of_all_and_a_day_may_come_again(run_in_process: Run, tmp_path: Path) -> None:
    better = drafted(2, 900, queries=60, strength=(4.0, 1.0))
    better.write_parquet(tmp_path / "all.parquet")
    own = [*COLUMNS, "--user", "user", "--quiet"]
    run_in_process("interleave", "all.parquet", *own, "-o", "whole", code=3)
    codes = list[int]()
    for day in DAYS:
        better.filter(pl.col("day").cast(pl.String) == day).drop("day").write_parquet(tmp_path / f"{day}.parquet")
        codes.append(run_in_process("interleave", f"{day}.parquet", *own, "--date", day, "--into", "store").returncode)
    assert (codes[0], codes[-1]) == (0, 3)
    run_in_process("interleave", f"{DAYS[1]}.parquet", *own, "--date", DAYS[1], "--into", "store", code=3)
    for name in ("verdict", "days"):
        one, other = (pl.read_parquet(tmp_path / folder / f"{name}.parquet") for folder in ("whole", "store"))
        assert_frame_equal(one, other, check_exact=False, rel_tol=1e-9)
    days = pl.read_parquet(tmp_path / "store" / "days.parquet")
    assert days["day"].cast(pl.String).to_list() == DAYS
    assert days["pages"].sum() == 900
    assert days.row(-1, named=True)["e_value"] == verdict_of(tmp_path / "store")["traffic"]["e_value"]


def test_a_store_takes_only_what_was_counted_alike(run_in_process: Run, tmp_path: Path, alike: pl.DataFrame) -> None:
    one, other = alike.filter(pl.col("session") < 300), alike.filter(pl.col("session") >= 300)
    one.write_parquet(tmp_path / "one.parquet")
    other.write_parquet(tmp_path / "other.parquet")
    other.with_columns(pl.col("team").replace({"B": "C"})).write_parquet(tmp_path / "another.parquet")
    other.with_columns(query=pl.col("query").str.slice(1).cast(pl.Int64)).write_parquet(tmp_path / "numbers.parquet")
    first, second = ("--into", "store", "--date", "2026-01-01"), ("--into", "store", "--date", "2026-01-02")
    run_in_process("interleave", "one.parquet", *COLUMNS, *first, code=0)
    before = sorted(path.read_bytes() for path in (tmp_path / "store").rglob("*.*"))
    rehearsed = run_in_process("interleave", "other.parquet", "--team", "team", *second, "--dry-run", code=2)
    assert "was counted with --rank-a rank_a" in rehearsed.stderr
    refused = {
        ("other.parquet", *COLUMNS, *first): "holds 2026-01-01 already, from other logs than other.parquet",
        ("one.parquet", *COLUMNS, *second): "has counted one.parquet as 2026-01-01 already",
        (
            "other.parquet",
            *COLUMNS[:2],
            *second,
        ): "was counted with --rank-a rank_a --rank-b rank_b, and this is without --rank-a and --rank-b",
        (
            "other.parquet",
            *COLUMNS,
            *second,
            "--credit",
            "pairs",
        ): "was counted with --credit plain, and this is with --credit pairs",
        ("other.parquet", *COLUMNS, *second, "--expected-pages", "500"): "was counted with --expected-pages 10000",
        ("other.parquet", *COLUMNS, *second, "--propensities", "power:1"): "was counted without --propensities",
        ("other.parquet", *COLUMNS, "--into", "s3://b/store"): "Keep the store in a directory, and copy it.",
        ("another.parquet", *COLUMNS, *second): "holds A and C, and the days before A and B",
        ("numbers.parquet", *COLUMNS, *second): "column 'query' holds String in one log and Int64 in another",
        ("other.parquet", *COLUMNS, "--into", "store"): "say of which day the log is",
        ("other.parquet", *COLUMNS): "--output DIR is missing",
    }
    for words, sentence in refused.items():
        assert sentence in run_in_process("interleave", *words, code=2).stderr
    assert sorted(path.read_bytes() for path in (tmp_path / "store").rglob("*.*")) == before
    run_in_process("interleave", "other.parquet", *COLUMNS, *first, "--replace-day", code=0)
    assert verdict_of(tmp_path / "store")["traffic"]["pages"] == 600


def test_what_is_no_store_is_left_alone(run_in_process: Run, tmp_path: Path, alike: pl.DataFrame) -> None:
    alike.write_parquet(tmp_path / "log.parquet")
    run_in_process("collect", "log.parquet", "-o", "counts", "--quiet")
    day = ("--date", "2026-01-01")
    message = run_in_process("interleave", "log.parquet", *COLUMNS, *day, "--into", "counts", code=2).stderr
    assert "was written by `posbias collect`" in message
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file.txt").write_text("mine")
    run_in_process("interleave", "log.parquet", *COLUMNS, *day, "--into", "mine", code=2)
    assert (tmp_path / "mine" / "file.txt").read_text() == "mine"


_DAY = pl.col("day").cast(pl.String).str.tail(1).cast(pl.Int64)
_SWAPPED = pl.col("team").replace({"A": "B", "B": "A"})
_LAST = pl.when(pl.col("position") % 2 == 1).then(pl.lit("B")).otherwise(pl.lit("A"))
_LED = pl.when(pl.col("position") % 2 == 1).then(pl.lit("A")).otherwise(pl.lit("B"))
BROKEN: dict[str, tuple[pl.Expr | list[pl.Expr], int]] = {
    "coin-unfair": (pl.when(pl.col("session") % 3 == 0).then(pl.col("team")).otherwise(pl.lit("A")).alias("team"), 1),
    "coin-unfair: below": (pl.when(pl.col("position") < 3).then(pl.col("team")).otherwise(_LED).alias("team"), 1),
    "coin-unfair: from 3 on": ([_LED.alias("team"), pl.col("position") + 2], 1),
    "not-team-draft": (pl.when(pl.col("session") % 2 == 0).then(pl.lit("A")).otherwise(pl.lit("B")).alias("team"), 1),
    "teams-unequal": (pl.when(pl.col("position") > 3).then(pl.lit("B")).otherwise(pl.col("team")).alias("team"), 1),
    "teams-unequal: evenly": (
        pl.when((pl.struct("session", "doc").hash(5) % 2) == 0).then(pl.lit("A")).otherwise(pl.lit("B")).alias("team"),
        0,
    ),
    "ranks-of-other-team": ([pl.col("rank_a").alias("rank_b"), pl.col("rank_b").alias("rank_a")], 1),
    "ranks-of-other-team: no ranks": (pl.when(_DAY > 3).then(pl.col("rank_a", "rank_b")), 1),
    "coin-repeats": ([(pl.col("session") // 30).alias("user")], 1),
    "coin-repeats: day": (pl.when(_DAY % 2 == 0).then(_LED).otherwise(_LAST).alias("team"), 1),
    "coin-repeats: hour": (
        [
            (pl.col("day").cast(pl.Datetime) + pl.duration(hours=pl.col("session") % 24)).alias("timestamp"),
            pl.when(pl.col("session") % 24 < 12).then(_LED).otherwise(_LAST).alias("team"),
        ],
        1,
    ),
    "days-contradict": (pl.when(_DAY > 3).then(_SWAPPED).otherwise(pl.col("team")).alias("team"), 1),
    "nothing-credited": (pl.col("rank_a").alias("rank_b"), 0),
    "teams-missing": (pl.when(_DAY > 1).then("team"), 0),
    "users-differ": (pl.col("user") + pl.col("position") % 2, 1),
    "users-of-one-page": (pl.col("session").alias("user"), 0),
    "outcomes-differ": (pl.when(pl.col("position") == 2).then(2).otherwise(1).alias("orders"), 1),
    "one-dominates": (pl.when(pl.col("session") < 300).then(0).otherwise(pl.col("user")).alias("user"), 0),
    "ranks-unknown": (pl.col("user"), 0),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_broken_is_seen(run_in_process: Run, tmp_path: Path, case: str) -> None:
    (change, exit_code), code = BROKEN[case], case.partition(":")[0]
    strength = (float("inf"), -8.0) if code == "days-contradict" else (1.0, 1.0)
    log = drafted(8, 900, queries=60, strength=strength).with_columns(change)
    if case == "coin-repeats":  # one draft for all pages of a user
        pages = log.select("session", "user", "position", "click").with_columns(of=pl.col("session") // 30 * 30)
        log = pages.join(log.rename({"session": "of"}).drop("user", "click"), on=["of", "position"])
    log.with_columns(orders=pl.col("orders") if "orders" in log.columns else pl.lit(1)).write_parquet(
        tmp_path / "log.parquet"
    )
    ranked = not code.startswith(("ranks-unknown", "not-team", "teams", "days"))
    columns = (*(COLUMNS if ranked else COLUMNS[:2]), "--user", "user", "--outcome", "orders")
    run_in_process("interleave", "log.parquet", *columns, "-o", "out", "--quiet", code=exit_code)
    assert code in reasons_of(tmp_path / "out")
    assert exit_code == 0 or {row["winner"] for row in verdict_of(tmp_path / "out").values()} == {None}


def test_a_log_that_is_counted_as_two_days_is_seen(run_in_process: Run, tmp_path: Path, better: pl.DataFrame) -> None:
    for day, log in zip(DAYS, (better, better.sort("doc")), strict=False):
        log.drop("day").write_parquet(tmp_path / f"{day}.parquet")
        run_in_process("interleave", f"{day}.parquet", *COLUMNS, "--into", "store", "--date", day, "--quiet")
    assert reasons_of(tmp_path / "store")["day-twice"]["sentence"].startswith("2026-01-01 and 2026-01-02 have the same")


def test_pages_without_a_user_are_no_user(run_in_process: Run, tmp_path: Path, better: pl.DataFrame) -> None:
    better.with_columns(pl.when(pl.col("user") % 3 > 0).then("user")).write_parquet(tmp_path / "log.parquet")
    run_in_process("interleave", "log.parquet", *COLUMNS, "--user", "user", "-o", "out", "--quiet", code=3)
    known = better.filter(pl.col("user") % 3 > 0)["session"].n_unique()
    verdicts = verdict_of(tmp_path / "out")
    assert [row["pages"] for row in verdicts.values()] == [900, 900, known]
    assert verdicts["users"]["winner"] == "A"


@pytest.mark.parametrize("missing", ["", " ", float("nan")])
def test_a_missing_rank_may_be_empty_text_or_nan(
    run_in_process: Run, tmp_path: Path, better: pl.DataFrame, missing: object
) -> None:
    rank, dtype = pl.col("rank_a"), pl.Float64 if missing != missing else pl.String  # noqa: PLR0124 - NaN
    seen = {"null": pl.lit(None, dtype), "other": pl.lit(missing, dtype)}
    for name, of_missing in seen.items():
        log = better.with_columns(
            rank_a=pl.when((rank < 8) | (pl.col("team") == "A")).then(rank.cast(dtype)).otherwise(of_missing)
        )
        log.write_parquet(tmp_path / f"{name}.parquet")
        run_in_process("interleave", f"{name}.parquet", *COLUMNS, "-o", name, "--quiet")
    assert verdict_of(tmp_path / "null") == verdict_of(tmp_path / "other")


def test_a_sound_draft_has_no_fault(run_in_process: Run, tmp_path: Path, alike: pl.DataFrame) -> None:
    alike.write_parquet(tmp_path / "log.parquet")
    run_in_process("interleave", "log.parquet", *COLUMNS, "--user", "user", "-o", "out", "--quiet", code=0)
    found = {code for code, of in reasons_of(tmp_path / "out").items() if of["severity"] in {"caution", "stop"}}
    assert found == set()


def test_weighted_credit_is_that_of_the_propensities(run_in_process: Run, tmp_path: Path, better: pl.DataFrame) -> None:
    better.write_parquet(tmp_path / "log.parquet")
    run_in_process("interleave", "log.parquet", "--team", "team", "--propensities", "power:1", "-o", "out", "--quiet")
    weight = pl.min_horizontal(pl.col("position").cast(pl.Float64), 5.0)
    sign = pl.when(pl.col("team") == "A").then(1).otherwise(-1)
    total = better.select((weight * sign * pl.col("click")).sum()).item()
    assert verdict_of(tmp_path / "out")["traffic"]["difference"] == pytest.approx(total / 900, rel=1e-12)
    assert "own-propensities" in reasons_of(tmp_path / "out")


def test_outcomes_go_to_the_rankers_as_the_clicks_of_their_users(run_in_process: Run, tmp_path: Path) -> None:
    log = drafted(5, 600, users=60).with_columns(orders=(pl.col("session") % 4 == 0).cast(pl.Int64))
    log.write_parquet(tmp_path / "log.parquet")
    options = ("--team", "team", "--user", "user", "--outcome", "orders")
    run_in_process("interleave", "log.parquet", *options, "-o", "out", "--quiet")
    sign = pl.when(pl.col("team") == "A").then(1).otherwise(-1) * pl.col("click")
    users = log.group_by("user").agg(
        share=sign.sum() / pl.col("click").sum(), orders=pl.col("orders").filter(pl.col("position") == 1).sum()
    )
    credited = users.select((pl.col("share").fill_nan(0) * pl.col("orders")).sum()).item()
    assert verdict_of(tmp_path / "out")["users"]["difference"] == pytest.approx(credited / 600, rel=1e-9)


@pytest.mark.slow
def test_the_report_draws_the_course_and_puts_predictions_beside_what_came_out(
    run_in_process: Run, tmp_path: Path, better: pl.DataFrame
) -> None:
    better.write_parquet(tmp_path / "log.parquet")
    better.select("query", "doc", score=-pl.col("rank_a")).unique(maintain_order=True).write_csv(tmp_path / "a.csv")
    run_in_process("interleave", "log.parquet", *COLUMNS, "-o", "out", "--quiet", code=3)
    done = run_in_process("predict", "log.parquet", "--propensities", "power:1", "--scores", "a.csv", "-o", "predicted")
    assert "posbias interleave LOGS --team COLUMN" in done.stderr
    run_in_process("report", "out", "-o", "course.svg", "--chart", "running", code=0)
    assert "A minus B, clicks a page" in (tmp_path / "course.svg").read_text(encoding="utf-8")
    run_in_process("report", "predicted", "out", "-o", "both.html", code=0)
    page = (tmp_path / "both.html").read_text(encoding="utf-8")
    rows = page[page.index("What was predicted, and what came out") :]
    assert rows.index("predicted: a against the log") < rows.index("came out: A against B, interleaved")
    assert "A wins" in rows
    run_in_process("report", "out", "-o", "one.html", code=0)
    assert "What was predicted, and" not in (tmp_path / "one.html").read_text(encoding="utf-8")
    shown = run_in_process("show", "out", "--format", "csv", code=0).stdout
    assert shown.splitlines()[0] == "question,winner,e_value,difference,ci_low,ci_high,pages"


@pytest.mark.slow
def test_spark_and_buckets_on_disk_give_the_same_verdict(run_posbias: Run, tmp_path: Path) -> None:
    drafted(6, 3000, queries=80).write_parquet(tmp_path / "log.parquet")
    options = ("log.parquet", *COLUMNS, "--user", "user", "--quiet")
    assert not run_posbias("interleave", *options, "-o", "here").stderr
    assert not run_posbias("interleave", *options, "-o", "there", "--engine", "spark").stderr
    for name in ("verdict", "days"):
        one, other = (pl.read_parquet(tmp_path / folder / f"{name}.parquet") for folder in ("here", "there"))
        assert_frame_equal(one, other, check_exact=False, rel_tol=1e-9)
