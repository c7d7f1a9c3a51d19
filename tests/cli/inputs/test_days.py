"""The days of a log: recognised whatever timestamps look like, shown, and not led astray by one that is not meant."""

from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path

import polars as pl
import pytest
from command_results import manifest_of
from workshop import RunPosbias

from posbias.core.simulation.simulate import SimulationOptions, simulate
from posbias.io.log.times import Days

TODAY = date(2026, 1, 10)
FIRST = date(2026, 1, 5)
N_DAYS = 5
Capture = pytest.CaptureFixture[str]
FACTOR = 0.5

SECONDS = {"seconds": 1, "milliseconds": 10**3, "microseconds": 10**6, "nanoseconds": 10**9}
OUTPUTS = {
    "yyyymmdd": "%Y%m%d",
    "yyyymmddhh": "%Y%m%d%H",
    "yyyymmddhhmm": "%Y%m%d%H%M",
    "yyyymmddhhmmss": "%Y%m%d%H%M%S",
}


@pytest.fixture(autouse=True)
def _a_fixed_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posbias.io.clock.today", lambda: TODAY)


@pytest.fixture(scope="module")
def log() -> pl.DataFrame:
    """Return a log of five days, the same number of rows in each."""
    frame = simulate(SimulationOptions(n_sessions=600, n_queries=3, docs_per_query=3, n_positions=3, seed=3)).log
    return frame.select(
        *("session", "query", "doc", "position", "click"),
        day=pl.lit(FIRST) + pl.duration(days=pl.col("session") % N_DAYS),
    )


def at(unit: str) -> Callable[[date], int | str]:
    """How a unit says 13:30 of a day."""

    def number(day: date) -> int | str:
        moment = datetime.combine(day, time(13, 30), UTC)
        if unit in OUTPUTS:
            return int(moment.strftime(OUTPUTS[unit]))
        if unit == "days":
            return (day - date(1970, 1, 1)).days
        return int(moment.timestamp()) * SECONDS[unit]

    return number


def with_times(log: pl.DataFrame, unit: str) -> pl.DataFrame:
    """The log with its days in a unit."""
    numbers = {day: at(unit)(day) for day in log["day"].unique()}
    return log.with_columns(day=pl.col("day").replace_strict(numbers, return_dtype=pl.Int64))


@pytest.mark.parametrize(
    ("unit", "ending"),
    [*((unit, "parquet") for unit in (*OUTPUTS, "days", *SECONDS)), ("yyyymmddhh", "csv"), ("milliseconds", "csv")],
)
def test_the_days_are_the_same_in_every_unit_and_shown(
    run_in_process: RunPosbias, tmp_path: Path, log: pl.DataFrame, unit: str, ending: str
) -> None:
    path = tmp_path / f"log.{ending}"
    frame = with_times(log, unit)
    frame.write_parquet(path) if ending == "parquet" else frame.write_csv(path)

    done = run_in_process("collect", path, "--timestamp", "day", "-o", "out", code=0)

    name = unit if unit in OUTPUTS else f"{unit} since 1970"
    assert f"days: 2026-01-05 to 2026-01-09, 5 days (timestamps are {name})" in done.stderr
    assert "warning" not in done.stderr
    assert manifest_of(tmp_path / "out")["days"] == {
        "first": "2026-01-05",
        "last": "2026-01-09",
        "number": N_DAYS,
        "read_as": name,
    }
    counted = pl.read_parquet(tmp_path / "out" / "part-*.parquet").group_by(pl.col("period").cast(pl.Date))
    counted = counted.agg(pl.sum("impressions"))
    assert dict(counted.iter_rows()) == dict(log.group_by("day").len().iter_rows())


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_a_file_of_another_unit_is_an_error_that_names_it(
    run_in_process: RunPosbias, tmp_path: Path, log: pl.DataFrame, ending: str
) -> None:
    for name, unit, rows in (("a", "seconds", log.height), ("b", "yyyymmdd", 300)):
        frame = with_times(log, unit).head(rows).with_columns(session=pl.format("{}{}", pl.lit(name), "session"))
        path = tmp_path / f"{name}.{ending}"
        frame.write_parquet(path) if ending == "parquet" else frame.write_csv(path)

    done = run_in_process("fit", f"a.{ending}", f"b.{ending}", "--timestamp", "day", "-o", "out", code=2)

    assert f"300 x the timestamp is not a date or time: b.{ending} row 1 (day = " in done.stderr
    assert "Numbers are read as seconds since 1970 here" in done.stderr


_ROW, _MOST = 7, 2**63 - 1
_MOMENT = int(datetime(2026, 1, 5, 13, 30, tzinfo=UTC).timestamp()) * 10**6  # microseconds
PLAIN = (pl.String, pl.Float64)
STRAY: dict[str, tuple[type[pl.DataType] | pl.DataType, int | None, int | float | str]] = {
    "microseconds among milliseconds": (pl.Int64, 1_000, _MOMENT),
    "microseconds in a column of milliseconds": (pl.Datetime("ms"), 1_000, _MOMENT),
    "the year 57983": (pl.Datetime("us"), 1, _MOMENT * 1_000),
    "infinity": (pl.Datetime("us"), 1, _MOST),
    "minus infinity in a zone": (pl.Datetime("us", "Europe/Berlin"), 1, -_MOST),
    "a day of infinity": (pl.Date, 86_400 * 10**6, 2**31 - 1),
    "an infinite number": (pl.Float64, 10**6, float("inf")),
    "no number": (pl.Float64, 10**6, float("nan")),
    "infinity in words": (pl.String, 1_000, "infinity"),
    "a number of 30 digits": (pl.String, 1_000, "9" * 30),
    "another year in words": (pl.String, None, "57983-05-01 10:00:00"),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "ending"), [*((case, "parquet") for case in STRAY), *((case, "csv") for case in [*STRAY][6:])]
)
def test_a_time_that_no_calendar_has_is_a_bad_row(
    run_in_process: RunPosbias, tmp_path: Path, log: pl.DataFrame, case: str, ending: str, capfd: Capture
) -> None:
    dtype, per, stray = STRAY[case]
    days = log["day"].cast(pl.Datetime("us"))
    usual = days.cast(pl.String) if per is None else (days.cast(pl.Int64) // per).cast(pl.Int64)
    values = pl.Series(usual.cast(pl.String) if dtype == pl.String else usual).to_list()
    values[_ROW - 1] = stray
    as_number = pl.Int32 if dtype == pl.Date else pl.Int64
    frame = log.with_columns(pl.Series("day", values, dtype if dtype in PLAIN else as_number).cast(dtype))
    path = tmp_path / f"log.{ending}"
    frame.write_parquet(path) if ending == "parquet" else frame.write_csv(path)
    words = (path, "--timestamp", "day", "-o")

    stopped = run_in_process("collect", *words, "stopped", code=2)
    dropped = run_in_process("collect", *words, "dropped", "--on-bad-rows", "drop", code=0)
    checked = run_in_process("check", path, "--timestamp", "day")

    assert f"1 x the timestamp is not a date or time: {path} row {_ROW} (day = " in stopped.stderr
    assert "1 left out (1 because the timestamp is not a date or time)" in dropped.stderr
    assert "days: 2026-01-05 to 2026-01-09, 5 days" in dropped.stderr
    assert "1 because the timestamp is not a date or time" in checked.stdout
    assert "panicked" not in capfd.readouterr().err


def test_an_id_that_no_calendar_has_is_a_bad_row(
    run_in_process: RunPosbias, tmp_path: Path, log: pl.DataFrame, capfd: Capture
) -> None:
    first = pl.int_range(pl.len()) < 2
    when = pl.when(first).then(pl.lit(_MOST)).otherwise(_MOMENT).cast(pl.Datetime("us"))
    log.with_columns(when=when).write_parquet(tmp_path / "log.parquet")

    done = run_in_process("collect", "log.parquet", "--session", "session", "--session", "when", "-o", "out", code=2)

    assert "2 x the timestamp is not a date or time: log.parquet row 1 (when = " in done.stderr
    assert "panicked" not in capfd.readouterr().err


# --- days that cannot be meant --------------------------------------------------------------------------------


def with_stray(log: pl.DataFrame, day: str) -> pl.DataFrame:
    """The log with one row dated otherwise."""
    first = pl.int_range(pl.len()) == 0
    return log.with_columns(day=pl.when(first).then(pl.lit(date.fromisoformat(day))).otherwise("day"))


def clicks_by_day(folder: Path) -> dict[date, float]:
    """Impressions of statistics by day."""
    found = pl.read_parquet(folder / "part-*.parquet").group_by("period").agg(pl.sum("impressions"))
    return dict(found.iter_rows())


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("stray", ["2038-01-19", "2026-03-01", "2026-01-12"])
def test_one_row_of_the_future_is_said_and_does_not_make_the_log_forgotten(
    run_in_process: RunPosbias, tmp_path: Path, log: pl.DataFrame, stray: str
) -> None:
    with_stray(log, stray).write_parquet(tmp_path / "stray.parquet")
    log.write_parquet(tmp_path / "log.parquet")
    clicks: dict[str, float] = {}
    for name in ("log", "stray"):
        words = ("--timestamp", "day", "--decay", str(FACTOR))
        done = run_in_process("fit", f"{name}.parquet", *words, "-o", name, "--no-compare", code=(0, 1))
        assert (f"! 1 row is dated after tomorrow: {stray}. Look" in done.stderr) == (name == "stray")
        assert manifest_of(tmp_path / name)["decay"]["newest"] == "2026-01-09"
        clicks[name] = manifest_of(tmp_path / name)["totals"]["impressions"]

    assert clicks["stray"] == pytest.approx(clicks["log"], rel=0.01)


@pytest.mark.slow
def test_a_segment_of_the_future_is_said_and_is_not_the_anchor(
    run_in_process: RunPosbias, tmp_path: Path, log: pl.DataFrame
) -> None:
    log.write_parquet(tmp_path / "log.parquet")
    log.head(30).with_columns(day=date(2038, 1, 19)).write_parquet(tmp_path / "few.parquet")
    run_in_process("collect", "log.parquet", "--timestamp", "day", "-o", "s", code=0)
    done = run_in_process("collect", "few.parquet", "--timestamp", "day", "-o", "future")
    assert "! 30 rows are dated after tomorrow: 2038-01-19." in done.stderr

    merged = run_in_process("collect", "s", "future", "-o", "both")
    decayed = run_in_process("collect", "s", "future", "--decay", str(FACTOR), "-o", "decayed")
    fitted = run_in_process("fit", "both", "--decay", str(FACTOR), "-o", "fit", "--no-compare")

    for done in (merged, decayed, fitted):
        assert done.returncode in (0, 1), done.stderr
        assert "! 30 rows are dated after tomorrow: 2038-01-19." in done.stderr
        assert "days: 2026-01-05 to 2038-01-19, 6 days" in done.stderr
    assert manifest_of(tmp_path / "decayed")["decay"]["newest"] == "2026-01-09"
    assert manifest_of(tmp_path / "fit")["decay"]["newest"] == "2026-01-09"
    ages = {day: (date(2026, 1, 9) - day).days for day in log["day"].unique()}
    expected = {day: rows * FACTOR ** ages[day] for day, rows in log.group_by("day").len().iter_rows()}
    assert clicks_by_day(tmp_path / "decayed") == pytest.approx(expected | {date(2038, 1, 19): 30})


def day_counts(*others: tuple[str, int]) -> dict[date, float]:
    """A month of 1,000 rows a day, and other days."""
    usual = {date(2025, 12, 1) + timedelta(days=number): 1000.0 for number in range(30)}
    return usual | {date.fromisoformat(day): float(rows) for day, rows in others}


@pytest.mark.parametrize(
    ("others", "after_tomorrow", "far_off", "newest"),
    [
        ((), [], [], "2025-12-30"),
        ((("2026-01-10", 3),), [], [], "2026-01-10"),
        ((("2026-01-11", 3),), [], [], "2026-01-11"),  # somewhere it is tomorrow
        ((("2026-01-12", 3),), ["2026-01-12"], [], "2025-12-30"),
        ((("1970-01-01", 3),), [], ["1970-01-01"], "2025-12-30"),
        ((("1970-01-01", 500),), [], [], "2025-12-30"),  # a day as any other, before a long pause
        ((("2025-09-01", 3), ("2038-01-19", 3)), ["2038-01-19"], ["2025-09-01"], "2025-12-30"),
    ],
)
def test_days_that_cannot_be_meant_are_told_from_the_others(
    others: tuple[tuple[str, int], ...], after_tomorrow: list[str], far_off: list[str], newest: str
) -> None:
    days = Days(day_counts(*others), TODAY)

    assert [day.isoformat() for day in days.after_tomorrow] == after_tomorrow
    assert [day.isoformat() for day in days.far_off] == far_off
    assert days.newest.isoformat() == newest
    assert len(days.reasons()) == bool(after_tomorrow) + bool(far_off)


def test_a_day_with_hardly_any_rows_long_after_the_others_is_not_the_newest() -> None:
    days = Days(
        {date(2025, 1, 1) + timedelta(days=number): 1000 for number in range(10)} | {date(2025, 6, 1): 2}, TODAY
    )

    assert days.far_off == [date(2025, 6, 1)]
    assert days.newest == date(2025, 1, 10)
    assert [reason.sentence for reason in days.reasons()] == [
        "2 rows are dated more than a month away from the others: 2025-06-01. Look at the timestamps."
    ]


def test_where_no_day_can_be_meant_the_last_one_is_the_newest() -> None:
    days = Days({date(2040, 1, 1): 10, date(2040, 1, 2): 10}, TODAY)

    assert days.newest == date(2040, 1, 2)


@pytest.mark.parametrize("unit", [pl.Datetime("us"), pl.Datetime("us", "Asia/Tokyo"), pl.Int64])
def test_a_log_of_other_days_than_its_date_is_named(
    run_in_process: RunPosbias, tmp_path: Path, log: pl.DataFrame, unit: pl.DataType
) -> None:
    moment = pl.col("day").cast(pl.Datetime("us", "UTC")) + pl.duration(minutes=pl.col("session") * 2)
    moment = moment.dt.epoch("ms") if unit == pl.Int64 else moment.cast(unit)
    of_a_day = log.select(pl.exclude("day"), moment.alias("timestamp")).sort("timestamp").head(log.height // N_DAYS)
    of_a_day.write_parquet(tmp_path / "log.parquet")

    for day, is_named in (("2026-01-05", False), ("2026-01-03", True), ("2026-01-10", True)):
        done = run_in_process("collect", "log.parquet", "--date", day, "-o", "out", "--force", code=(0, 1))
        assert (f"and --date says {day}" in done.stderr) == is_named
