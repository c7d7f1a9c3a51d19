"""Days that do not look like the others, in a log and beside a store: warnings, exit codes and `--gate`."""

import json
import shutil
from collections.abc import Callable, Generator
from datetime import date, timedelta
from pathlib import Path
from subprocess import CompletedProcess
from typing import Protocol

import polars as pl
import pytest
from workshop import RunPosbias as Run

from posbias.core.errors import EngineError
from posbias.core.simulation.simulate import SimulationOptions, simulate
from posbias.io.engines.spark_session import check_java, open_session

Change = Callable[[pl.DataFrame], pl.DataFrame]


class MakeDay(Protocol):
    """Counts the last day, changed, under a name and a date, and says the name."""

    def __call__(self, change: Change = ..., name: str = ..., day: date = ...) -> str:
        """Count it."""
        ...


FIRST, N_DAYS = date(2026, 1, 5), 6
ODD = FIRST + timedelta(days=3)
NEW = FIRST + timedelta(days=N_DAYS)
POSITION, CLICK, TOP = pl.col("position"), pl.col("click"), pl.col("position") == 1
HALF = pl.col("session") % 2 == 0


def longer(day: pl.DataFrame) -> pl.DataFrame:
    """A day with a further position below the last one."""
    last = day.filter(POSITION == 5).with_columns(POSITION + 1, pl.col("doc") + 1000)
    return pl.concat([day, last])


FAULTS: dict[str, tuple[Change, str]] = {
    "shifted": (
        lambda day: day.with_columns(POSITION + 1),
        "its positions go from 2 to 6, and theirs from 1 to 5, as if they were shifted or counted from another base",
    ),
    "shifted and cut": (
        lambda day: day.with_columns(POSITION + 1).filter(POSITION <= 5),
        "its positions go from 2 to 5, and theirs from 1 to 5",
    ),
    "a new last position": (longer, "it has impressions at position 6, where they have hardly any"),
    "a last position that is gone": (
        lambda day: day.filter(POSITION < 5),
        "it has hardly anything at position 5, where they have",
    ),
    "no clicks": (
        lambda day: day.with_columns(click=pl.lit(0, pl.Int8)),
        "it has no clicks, where about ",
    ),
    "a third of the clicks": (
        lambda day: day.with_columns(click=CLICK * (pl.col("session") % 3 == 0)),
        "further positions are far off as well",
    ),
    "another click rate at the top": (
        lambda day: day.with_columns(click=pl.when(TOP & (pl.col("session") % 3 > 0)).then(0).otherwise(CLICK)),
        "the click rate of position 1 is ",
    ),
}
EACH = pytest.mark.parametrize("fault", list(FAULTS))


@pytest.fixture(scope="module")
def log() -> pl.DataFrame:
    """Return a log of a week."""
    options = SimulationOptions(
        *("pbm", 7 * 1000, 50, 8, 5),
        query_exponent=0.3,
        attractiveness_shape=(2.0, 2.0),
        days=N_DAYS + 1,
        seed=5,
    )
    return simulate(options).log.with_columns(date=pl.col("timestamp").cast(pl.Date)).drop("timestamp")


def with_fault(log: pl.DataFrame, day: date, change: Change) -> pl.DataFrame:
    """The log, one day of which is changed."""
    is_odd = pl.col("date") == day
    return pl.concat([log.filter(~is_odd), change(log.filter(is_odd))], how="vertical_relaxed")


@pytest.fixture(scope="module")
def made(log: pl.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the logs of the days."""
    folder = tmp_path_factory.mktemp("days")
    for (day,), of_day in log.group_by("date"):
        of_day.drop("date").write_parquet(folder / f"{day}.parquet")
    return folder


@pytest.fixture
def store(made: Path, run_in_process: Run, tmp_path: Path) -> Path:
    """Return a store of all days but the last, in the working directory."""
    if not (made / "store").exists():
        for number in range(N_DAYS):
            day = FIRST + timedelta(days=number)
            done = run_in_process("collect", made / f"{day}.parquet", "--date", day, "-o", made / "days" / str(day))
            assert done.returncode == 0, done.stderr
        done = run_in_process("collect", *sorted((made / "days").iterdir()), "-o", made / "store")
        assert (done.returncode, "does not look like" in done.stderr) == (0, False)
    shutil.copytree(made / "store", tmp_path / "store")
    return tmp_path / "store"


def collected(run: Run, log: pl.DataFrame, name: str, *options: str | Path) -> CompletedProcess[str]:
    """Collect a log under a name."""
    log.write_parquet(f"{name}.parquet")
    return run("collect", f"{name}.parquet", "-o", name, *options)


@pytest.fixture
def new_day(log: pl.DataFrame, run_in_process: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeDay:
    """Return a function that counts the last day, changed, and names its statistics."""
    monkeypatch.chdir(tmp_path)

    def make(change: Change = lambda day: day, name: str = "new", day: date = NEW) -> str:
        of_day = change(log.filter(pl.col("date") == NEW).drop("date"))
        done = collected(run_in_process, of_day, name, "--date", str(day))
        assert done.returncode == 0, done.stderr  # alone it has nothing to be compared with
        return name

    return make


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a directory, to the byte."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def warnings_of(folder: Path) -> list[str]:
    """The warnings in a manifest."""
    return json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["warnings"]


# --- within a log -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["parquet", "csv", "csv.gz"])
def test_a_file_whose_positions_start_elsewhere_is_named_in_a_log_without_days(
    log: pl.DataFrame, run_in_process: Run, form: str, tmp_path: Path
) -> None:
    for number in range(4):
        part = log.filter(pl.col("session") % 4 == number).drop("date")
        part = part.with_columns(POSITION + 1) if number == 2 else part
        path = tmp_path / f"{number}.{form}"
        if form == "parquet":
            part.write_parquet(path)
        else:
            part.write_csv(path, compression="gzip" if form.endswith("gz") else "uncompressed")
    done = run_in_process("collect", f"*.{form}", "-o", "out")
    assert done.returncode == 1, done.stderr
    [warning] = warnings_of(tmp_path / "out")
    assert warning.startswith(f"2.{form} does not look like the other files: its positions go from 2 to 6")
    (tmp_path / f"2.{form}").unlink()
    assert run_in_process("collect", f"*.{form}", "-o", "rest").returncode == 0


@pytest.mark.parametrize("columns", ["flat", "nested"])
def test_pages_from_another_base_are_warned_of(
    log: pl.DataFrame, run_in_process: Run, columns: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shifted = log.drop("date").with_columns(POSITION + (pl.col("session") % 5 == 0).cast(pl.Int32))
    if columns == "nested":
        shifted = shifted.group_by("session", "query", maintain_order=True).agg("doc", "position", "click")
    done = collected(run_in_process, shifted, "out")
    assert done.returncode == 1, done.stderr
    [warning] = warnings_of(tmp_path / "out")
    assert warning.startswith("1,400 of 7,000 pages that were looked at go from position 2 to 6, and most from 1 to 5")


# --- beside a store -----------------------------------------------------------------------------------------------


@EACH
def test_an_odd_day_goes_into_a_store_with_a_warning_and_exit_code_1_and_a_gate_keeps_it_out_with_2(
    store: Path, new_day: MakeDay, run_in_process: Run, fault: str
) -> None:
    change, says = FAULTS[fault]
    name, before = new_day(change), contents(store)
    merge = ("collect", "store", name, "-o", "store", "--force")

    refused = run_in_process(*merge, "--gate", "0.5")
    said = " ".join(refused.stderr.split())
    assert refused.returncode == 2
    assert f"{NEW} is kept out by --gate 0.5, and nothing is written: beside the days of the store, " in said
    assert ("more than 50 %" if "click" in fault and fault != "no clicks" else says) in said
    assert "If it is right, merge it without --gate." in said
    assert contents(store) == before

    done = run_in_process(*merge)
    assert done.returncode == 1, done.stderr
    [warning] = warnings_of(store)
    assert warning.startswith(f"{NEW} does not look like the days of the store: ")
    assert says in warning


def test_a_day_that_comes_in_several_parts_is_compared_with_other_days_only(
    store: Path, new_day: MakeDay, run_in_process: Run
) -> None:
    morning, evening = (
        new_day(lambda day: day.filter(HALF), "morning"),
        new_day(lambda day: day.filter(~HALF), "evening"),
    )
    for part in (morning, evening):
        done = run_in_process("collect", "store", part, "-o", "store", "--force", "--gate", "0.5")
        assert done.returncode == 0, done.stderr
        assert "does not look" not in done.stderr
    name = new_day(lambda day: day.filter(HALF).with_columns(POSITION + 1, session=pl.col("session") + 10**6), "night")
    assert run_in_process("collect", "store", name, "-o", "store", "--force", "--gate", "0.5").returncode == 2
    assert store.is_dir()


def test_a_store_that_has_decayed_is_compared_as_well(store: Path, new_day: MakeDay, run_in_process: Run) -> None:
    decay = ("--decay", "0.9", "--force", "--gate", "0.5")
    first, shifted = new_day(), new_day(FAULTS["shifted"][0], "shifted", NEW + timedelta(days=1))
    assert run_in_process("collect", "store", first, "-o", "decayed", *decay).returncode == 0
    before = contents(store.parent / "decayed")
    assert run_in_process("collect", "decayed", shifted, "-o", "decayed", *decay).returncode == 2
    assert contents(store.parent / "decayed") == before


# --- the option ---------------------------------------------------------------------------------------------------


# --- real logs, and Spark -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ("open_bandit_zozo.parquet", "--timestamp", "timestamp", "--query", "campaign", "--doc", "item_id"),
        ("yandex_web_search.parquet",),
    ],
)
def test_real_logs_give_no_warning_of_their_days(
    shared_data: Path, run_in_process: Run, arguments: tuple[str, ...]
) -> None:
    log, *options = arguments
    done = run_in_process("collect", shared_data / log, *options, "-o", "out")
    assert done.returncode == 0, done.stderr
    assert "look" not in done.stderr


MASTER = "local[2]"


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Generator[None]:
    """Hold a Spark session, or skip where Spark cannot run."""
    pytest.importorskip("pyspark", reason="PySpark is not installed")
    try:
        check_java()
    except EngineError as error:
        pytest.skip(str(error))
    with open_session(MASTER, tmp_path_factory.mktemp("spark")):
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_spark_finds_the_same_odd_days_files_and_pages(
    log: pl.DataFrame, run_in_process: Run, store: Path, new_day: MakeDay, tmp_path: Path
) -> None:
    name = new_day(FAULTS["shifted"][0])
    with_fault(log, ODD, FAULTS["shifted"][0]).write_parquet("week.parquet")
    log.filter(HALF).drop("date").write_parquet("even.parquet")
    log.filter(~HALF).drop("date").with_columns(POSITION + 1).write_parquet("odd.parquet")
    log.drop("date").with_columns(POSITION + (pl.col("session") % 5 == 0).cast(pl.Int32)).write_parquet("pages.parquet")
    commands = [
        ("week.parquet", "--timestamp", "date", "-o", "out"),
        ("even.parquet", "odd.parquet", "-o", "out"),
        ("pages.parquet", "-o", "out"),
        ("store", name, "-o", "out", "--gate", "0.5"),
    ]
    for words in commands:
        said: list[tuple[int, str]] = []
        for engine in ("polars", "spark"):
            spark = ("--engine", "spark", "--master", MASTER) if engine == "spark" else ()
            done = run_in_process("collect", *words, *spark, "--quiet", "--force")
            found = warnings_of(tmp_path / "out") if done.returncode < 2 else [done.stderr]
            said.append((done.returncode, " ".join(found)))
        assert said[0] == said[1]
        assert said[0][0] == (2 if "--gate" in words else 1)
    assert store.is_dir()
