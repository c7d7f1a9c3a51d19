"""A ranker that learns from the clicks shows by the order of the rows, and by times that no option names."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from arm_logs import log_of_arms
from checked_logs import checked
from command_results import Run, manifest_of
from small_logs import feed, log_in_order

from posbias.io.results.conclusions import CONDITIONS

NO_JOINT = ("--no-compare",)  # joint EM takes three quarters of the time of a fit
CONDITION, IN_ORDER = CONDITIONS["ranker-not-tested"], CONDITIONS["rows-in-order"]
DAYS = ["2026-01-05", "2026-01-06", "2026-01-07"]


@pytest.fixture(scope="module")
def learns() -> pl.DataFrame:
    """Return a log of a ranker that learns at once, in the order of time."""
    return log_in_order(7, learns=3.0)


@pytest.fixture(scope="module")
def stays() -> pl.DataFrame:
    """Return a log of a ranker that stays as it is."""
    return log_in_order(7)


def timed(log: pl.DataFrame) -> pl.DataFrame:
    """The log with a time for each page, over two days."""
    moment = pl.datetime(2026, 1, 5) + pl.duration(minutes=pl.col("session"))
    return log.with_columns(shown_at=moment)


def fitted(run: Run, tmp_path: Path, *words: object) -> tuple[int, str, dict[str, str]]:
    """The exit code of a fit, its conclusion, and the severities of its reasons by their code."""
    done = run("fit", *words, *NO_JOINT, "-o", "out", "--force", code=(0, 1))
    manifest = manifest_of(tmp_path / "out")
    return done.returncode, manifest["conclusion"], {one["code"]: one["severity"] for one in manifest["reasons"]}


@pytest.mark.slow
@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("rows_of_a_bucket", [1 << 20, 1000])
def test_a_ranker_that_learns_is_seen_without_times(
    run_in_process: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    learns: pl.DataFrame,
    rows_of_a_bucket: int,
    backwards: bool,  # noqa: FBT001
) -> None:
    monkeypatch.setattr("posbias.io.engines.local._ROWS_THAT_STAY_IN_CACHE", rows_of_a_bucket)
    (learns.reverse() if backwards else learns).write_parquet(tmp_path / "log.parquet")

    for words in (("run", *NO_JOINT), ("fit", "--model", "ubm", *NO_JOINT)):
        done = run_in_process(*words, "log.parquet", "-o", "out", "--force", code=1)
        assert "Do not use: the ranker learns from these clicks" in done.stderr
    run_in_process("check", "log.parquet", code=1)
    run_in_process("collect", "log.parquet", "-o", "counts", code=0)
    assert fitted(run_in_process, tmp_path, "counts")[2]["ranker-learns"] == "stop"


@pytest.mark.slow
def test_a_store_whose_days_show_a_ranker_that_learns_within_the_day_says_so(
    run_in_process: Run, tmp_path: Path, learns: pl.DataFrame, stays: pl.DataFrame
) -> None:
    for name, log in (("learns", learns), ("stays", stays)):
        for number, day in enumerate(DAYS):
            third = log.filter(pl.col("session") // 800 == number)
            third.sort("query", maintain_order=True).write_parquet(tmp_path / "day.parquet")
            run_in_process("collect", "day.parquet", "--date", day, "--into", name)

    assert fitted(run_in_process, tmp_path, "learns")[2]["ranker-learns"] == "stop"
    period = manifest_of(tmp_path / "out")["estimate"]["period"]["looks"][-1]
    assert (period["length"], period["feedback"]["by_rows"], period["feedback"]["rejected"]) == ("day", True, True)
    assert "ranker-learns" not in fitted(run_in_process, tmp_path, "stays")[2]


@pytest.mark.slow
@pytest.mark.parametrize("changes", [False, True])
def test_where_rows_show_no_feedback_the_verdict_rests_on_their_order(
    run_in_process: Run,
    tmp_path: Path,
    changes: bool,  # noqa: FBT001
) -> None:
    log_in_order(7, changes=changes).write_parquet(tmp_path / "log.parquet")

    for command in ("run", "fit", "check"):
        done = run_in_process(
            command, "log.parquet", *(() if command == "check" else ("-o", command, *NO_JOINT)), code=0
        )
        assert f", {IN_ORDER}: " in " ".join((done.stdout + done.stderr).split())
    done = run_in_process("weight", "log.parquet", "--propensities", "fit", "-o", "weighted", code=0)
    assert f", {IN_ORDER}: " in done.stderr
    run_in_process("collect", "log.parquet", "-o", "counts", code=0)
    assert "rows-in-order" in fitted(run_in_process, tmp_path, "counts")[2]
    log_in_order(8).write_parquet(tmp_path / "other.parquet")
    run_in_process("collect", "other.parquet", "-o", "others", code=0)
    assert (
        "ranker-not-tested" in fitted(run_in_process, tmp_path, "counts", "others")[2]
    )  # movement between them is unseen


@pytest.mark.parametrize("order", ["pages", "rows"])
@pytest.mark.slow_after(1)
def test_a_ranker_that_learns_is_never_called_good_where_the_order_of_time_is_lost(
    run_in_process: Run, tmp_path: Path, learns: pl.DataFrame, order: str
) -> None:
    shuffled = learns.sample(fraction=1, shuffle=True, seed=1)
    (shuffled if order == "rows" else learns.sort(pl.col("session").hash(1), "position")).write_parquet(
        tmp_path / "log.parquet"
    )

    found = checked(run_in_process, "log.parquet")
    reasons = fitted(run_in_process, tmp_path, "log.parquet")[2]

    assert (found["verdict"], manifest_of(tmp_path / "out")["verdict"]) == ("with care", "with care")
    assert {"ranker-not-tested", "rows-in-order"} & reasons.keys()
    assert any("the propensities are wrong" in warning for warning in found["warnings"])


@pytest.mark.slow
def test_pages_of_one_arm_after_those_of_the_other_are_no_order_of_time(run_in_process: Run, tmp_path: Path) -> None:
    log = log_of_arms("learns", 0, queries=40, pages=120).drop("timestamp", "segment")
    drawn = np.random.default_rng(0).random(log["session"].n_unique())[log["session"].to_numpy()]
    log = log.with_columns(drawn=drawn).sort("arm", "drawn", maintain_order=True)
    log.drop("arm", "drawn").write_parquet(tmp_path / "log.parquet")

    conclusion, reasons = fitted(run_in_process, tmp_path, "log.parquet")[1:]

    assert "rows-in-order" in reasons
    assert conclusion.startswith(IN_ORDER)


@pytest.mark.slow
@pytest.mark.parametrize("column", ["signup_date", "birthday", "check_in", "created_at", "loaded_at"])
@pytest.mark.parametrize("text", [False, True])
def test_dates_of_something_else_are_no_times_of_pages(
    run_in_process: Run,
    tmp_path: Path,
    learns: pl.DataFrame,
    column: str,
    text: bool,  # noqa: FBT001
) -> None:
    sessions, later = learns["session"].to_numpy(), 1 if column == "loaded_at" else 2000
    days = pl.Series("days", np.random.default_rng(0).integers(0, later, learns["session"].n_unique())[sessions])
    dates = pl.date(2019, 1, 1) + pl.duration(days="days")
    log = learns.with_columns(days).with_columns(dates.cast(pl.String if text else pl.Date).alias(column)).drop("days")
    log.write_parquet(tmp_path / "log.parquet")
    seconds = pl.datetime(2026, 3, 1) + pl.duration(minutes=3 * pl.col("session"))
    log.with_columns(request_ts=seconds).write_parquet(tmp_path / "both.parquet")

    done = run_in_process("fit", "log.parquet", "-o", "fit", *NO_JOINT, code=1)
    assert "times:" not in done.stderr
    assert "The ranker learns from these clicks: in the order of the rows" in done.stderr
    assert (
        "times: read from column 'request_ts'"
        in run_in_process("fit", "both.parquet", "-o", "both", *NO_JOINT, code=1).stderr
    )


@pytest.mark.parametrize("lost", ["shuffled", "by position", "weighted", "sums"])
@pytest.mark.slow_after(2)
def test_where_no_order_can_tell_the_verdict_says_what_it_rests_on(
    run_in_process: Run, tmp_path: Path, stays: pl.DataFrame, lost: str
) -> None:
    sums = stays.group_by("query", "doc", "position").agg(shown=pl.len(), click=pl.col("click").cast(pl.Int64).sum())
    log, words = {
        "shuffled": (stays.sample(fraction=1, shuffle=True, seed=1), ()),
        "by position": (stays.sort("position", maintain_order=True), ()),
        "weighted": (stays.with_columns(w=pl.lit(2.0)), ("--weight-column", "w")),
        "sums": (sums, ("--impressions", "shown")),
    }[lost]
    log.write_parquet(tmp_path / "log.parquet")

    code, conclusion, reasons = fitted(run_in_process, tmp_path, "log.parquet", *words)
    assert (code, reasons["ranker-not-tested"]) == (0, "caution")
    assert conclusion.startswith(CONDITION)


@pytest.mark.slow
def test_times_are_taken_from_a_column_that_no_option_names_and_this_is_printed(
    run_in_process: Run, tmp_path: Path, learns: pl.DataFrame, stays: pl.DataFrame
) -> None:
    times = "times: read from column 'shown_at' (--timestamp none leaves them out)"
    shuffled = timed(learns).sample(fraction=1, shuffle=True, seed=1)  # so that rows have no order
    shuffled.write_parquet(tmp_path / "log.parquet")
    timed(stays).write_csv(tmp_path / "stays.csv")

    done = run_in_process("fit", "log.parquet", "-o", "fit", *NO_JOINT, code=1)
    assert times in done.stderr
    assert "The ranker learns from these clicks" in done.stderr
    named = run_in_process("fit", "log.parquet", "--timestamp", "shown_at", "-o", "named", *NO_JOINT, code=1)
    for name in ("estimate", "counted"):
        assert manifest_of(tmp_path / "fit")[name] == manifest_of(tmp_path / "named")[name]
    assert times not in named.stderr
    run_in_process("collect", "log.parquet", "-o", "counts", code=0)
    assert manifest_of(tmp_path / "counts")["counted"]["period"] == "quarter"
    without = run_in_process("fit", "log.parquet", "--timestamp", "none", "-o", "without", *NO_JOINT, code=0)
    assert f", {CONDITION}: " in without.stderr
    assert manifest_of(tmp_path / "without")["counted"]["period"] is None
    assert times in run_in_process("fit", "stays.csv", "-o", "stays", *NO_JOINT, code=0).stderr
    checked = run_in_process("check", "log.parquet", code=0)
    assert "The ranker seems to learn from these clicks" in " ".join(checked.stdout.split())


def test_the_time_that_tells_the_pages_of_a_visit_apart_is_that_of_the_page(
    run_in_process: Run, tmp_path: Path, stays: pl.DataFrame
) -> None:
    visits = timed(stays).with_columns(visit=pl.col("session") // 5).drop("session").cast({"visit": pl.String})
    visits.write_csv(tmp_path / "log.csv")
    words = ("log.csv", "--session", "visit", "--session", "shown_at")

    assert "ranker-not-tested" not in fitted(run_in_process, tmp_path, *words)[2]
    assert manifest_of(tmp_path / "out")["counted"]["period"] == "quarter"
    assert not {"rows-in-order", "ranker-not-tested"} & {
        reason["code"] for reason in checked(run_in_process, *words)["reasons"]
    }


@pytest.mark.slow_after(2)
@pytest.mark.parametrize(
    "value",
    [
        pytest.param(value, id=str(value.dtype))
        for value in (
            pl.Series([True]),
            pl.Series([9], dtype=pl.Time),
            pl.Series([9], dtype=pl.Duration),
            pl.Series(["noon"], dtype=pl.Categorical),
            pl.Series([1_767_607_200]),
        )
    ],
)
def test_a_column_with_a_name_of_times_and_one_value_is_none(
    run_in_process: Run, tmp_path: Path, stays: pl.DataFrame, value: pl.Series
) -> None:
    stays.with_columns(timestamp=pl.lit(value).first()).write_parquet(tmp_path / "log.parquet")

    assert "times:" not in run_in_process("fit", "log.parquet", "--no-compare", "-o", "out", code=0).stderr


@pytest.mark.parametrize("value", ["2026-01-05", 20260105, 20458, 1_767_571_200_000])
def test_one_day_in_the_first_rows_is_a_day_however_it_is_written(
    run_in_process: Run, tmp_path: Path, stays: pl.DataFrame, value: object
) -> None:
    stays.with_columns(timestamp=pl.lit(value)).write_parquet(tmp_path / "log.parquet")

    done = run_in_process("collect", "log.parquet", "-o", "out", code=0)

    assert "days: 2026-01-05" in done.stderr


@pytest.mark.slow
def test_what_helps_where_hours_have_been_tried_is_not_more_time(
    run_in_process: Run, tmp_path: Path, learns: pl.DataFrame
) -> None:
    hours = pl.datetime(2026, 1, 5) + pl.duration(seconds=10 * pl.col("session"))
    learns.with_columns(shown_at=hours).write_parquet(tmp_path / "log.parquet")

    done = run_in_process("fit", "log.parquet", "-o", "fit", *NO_JOINT, code=1)

    assert "which makes the propensities wrong by an unknown amount. Name the ranker's version" in done.stderr


@pytest.mark.parametrize("sessions", [True, False])
def test_times_of_documents_are_not_taken_for_times_of_pages(
    run_in_process: Run,
    tmp_path: Path,
    stays: pl.DataFrame,
    sessions: bool,  # noqa: FBT001
) -> None:
    made = pl.datetime(2026, 1, 5) + pl.duration(hours=pl.col("doc") * 30 + pl.col("query"))
    log = stays.with_columns(created_at=made)
    (log if sessions else log.drop("session")).write_parquet(tmp_path / "log.parquet")

    fitted(run_in_process, tmp_path, "log.parquet")
    assert manifest_of(tmp_path / "out")["counted"]["period"] is None


@pytest.mark.slow
def test_a_time_that_cannot_be_read_below_the_first_rows_is_refused_with_the_way_out(
    run_in_process: Run, tmp_path: Path, stays: pl.DataFrame
) -> None:
    text = pl.col("shown_at").dt.to_string("%Y-%m-%d %H:%M:%S")
    log = timed(stays).with_columns(shown_at=pl.when(pl.col("session") < 2_000).then(text).otherwise(pl.lit("noon")))
    log.write_csv(tmp_path / "log.csv")

    done = run_in_process("fit", "log.csv", "-o", "out", code=2)
    assert "--timestamp none leaves 'shown_at' out, which no option names" in " ".join(done.stderr.split())
    run_in_process("fit", "log.csv", "--timestamp", "none", "-o", "out", *NO_JOINT, code=0)


def test_a_feed_whose_documents_only_fall_is_not_called_good(run_in_process: Run, tmp_path: Path) -> None:
    feed(newest_on_top=True, ages=True).write_parquet(tmp_path / "log.parquet")

    _, _, severities = fitted(run_in_process, tmp_path, "log.parquet", "--timestamp", "period")

    assert severities["documents-drift"] == "caution"
