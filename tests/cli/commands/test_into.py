"""A store that grows by `collect --into`: days come, come again, are replaced and go, and the store is always whole."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import polars as pl
import pytest
from workshop import RunPosbias as Run

from posbias.core.simulation.simulate import SimulationOptions, simulate

DAYS = ("2026-01-05", "2026-01-06", "2026-01-07", "2026-01-08")


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with a log a day, which give no reason for a warning."""
    folder = tmp_path_factory.mktemp("logs")
    options = SimulationOptions(n_sessions=6000, n_queries=40, docs_per_query=6, n_positions=4, query_exponent=0.3)
    log = simulate(options).log
    for number, day in enumerate(DAYS):
        log.filter(pl.col("session") % len(DAYS) == number).write_parquet(folder / f"{day}.parquet")
    return folder


@pytest.fixture
def add(run_in_process: Run, logs: Path, tmp_path: Path) -> Callable[..., CompletedProcess[str]]:
    """Return a function that adds days to `store`, each by its own line, with further options."""
    shutil.copytree(logs, tmp_path / "logs")

    def run(*days: str, options: tuple[str, ...] = (), code: int = 0) -> CompletedProcess[str]:
        done = CompletedProcess[str]("", 0)
        for day in days:
            done = run_in_process("collect", f"logs/{day}.parquet", "--date", day, "--into", "store", *options)
            assert done.returncode == code, done.stderr
        return done

    return run


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a directory, to the byte."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def parts(store: Path) -> dict[str, bytes]:
    """Its counts, to the byte."""
    return {name: content for name, content in contents(store).items() if name != "manifest.json"}


def days_of(store: Path) -> list[list[str]]:
    """The days of each of its segments."""
    return [segment["days"] for segment in json.loads((store / "manifest.json").read_text())["segments"]]


def rows_of(store: Path) -> pl.DataFrame:
    """Its rows, added up and sorted."""
    keys = ("query", "doc", "period", "position")
    rows = pl.concat([pl.read_parquet(part) for part in sorted(store.glob("*.parquet"))])
    return rows.group_by(keys).agg(pl.sum("impressions", "clicks")).sort(keys)


Add = Callable[..., CompletedProcess[str]]


# --- days that come, in any order -----------------------------------------------------------------------------


@pytest.mark.slow
def test_whatever_order_days_come_go_and_are_replaced_in_the_store_is_that_of_one_go(
    add: Add, run_in_process: Run, tmp_path: Path
) -> None:
    first, second, third, fourth = DAYS
    shorter = pl.read_parquet(tmp_path / "logs" / f"{second}.parquet").filter(pl.col("session") % 3 > 0)
    whole = (tmp_path / "logs" / f"{second}.parquet").read_bytes()
    shorter.write_parquet(tmp_path / "logs" / f"{second}.parquet")
    add(third, second, first, second)
    (tmp_path / "logs" / f"{second}.parquet").write_bytes(whole)
    add(second, options=("--replace-day",))
    add(fourth)
    assert run_in_process("collect", "--into", "store", "--remove-day", third).returncode == 0
    add(third, third)

    for day in DAYS:
        run_in_process("collect", f"logs/{day}.parquet", "--date", day, "-o", f"days/{day}")
    assert run_in_process("collect", *(f"days/{day}" for day in DAYS), "-o", "at-once").returncode == 0
    pl.concat(
        [pl.read_parquet(tmp_path / "logs" / f"{day}.parquet").with_columns(date=pl.lit(day)) for day in DAYS]
    ).write_parquet(tmp_path / "all.parquet")
    run_in_process("collect", "all.parquet", "--timestamp", "date", "-o", "one-log")

    assert days_of(tmp_path / "store") == [[day] for day in DAYS]
    assert parts(tmp_path / "store") == parts(tmp_path / "at-once")
    assert rows_of(tmp_path / "store").equals(rows_of(tmp_path / "one-log"))
    fits = [tmp_path / f"fit-{name}" for name in ("store", "at-once", "one-log")]
    for fit in fits:
        done = run_in_process("fit", fit.name.removeprefix("fit-"), "--no-compare", "-o", fit)
        assert done.returncode == 0, done.stderr
    tables = [{path.name: path.read_bytes() for path in fit.glob("*.parquet")} for fit in fits]
    assert tables[0] == tables[1] == tables[2]

    for name in ("store", "one-log"):
        run_in_process("fit", name, "--no-compare", "--decay", "0.98", "-o", f"decayed-{name}")
    found, expected = (
        pl.read_parquet(tmp_path / f"decayed-{name}" / "propensities.parquet")["propensity"].to_list()
        for name in ("store", "one-log")
    )
    assert found == pytest.approx(expected, rel=1e-9)


def test_the_same_line_again_is_a_success_that_changes_no_count(add: Add, tmp_path: Path) -> None:
    add(*DAYS[:2])
    before = parts(tmp_path / "store")
    done = add(DAYS[0])

    assert parts(tmp_path / "store") == before
    assert f"{DAYS[0]}: counted again, and replaced" in done.stderr


def test_the_same_log_read_in_another_way_is_what_the_line_says(add: Add, tmp_path: Path) -> None:
    """A retry after a line that named the wrong column must not pass for done."""
    path = tmp_path / "logs" / f"{DAYS[0]}.parquet"
    pl.read_parquet(path).with_columns(bought=pl.col("click") * (pl.col("doc") % 9 > 0)).write_parquet(path)
    add(*DAYS[:2])
    clicks = rows_of(tmp_path / "store")["clicks"].sum()
    add(DAYS[0], options=("--click", "bought"))

    assert rows_of(tmp_path / "store")["clicks"].sum() < clicks
    assert days_of(tmp_path / "store") == [[DAYS[0]], [DAYS[1]]]


def test_a_day_from_a_log_that_has_changed_is_an_error_that_names_the_option(add: Add, tmp_path: Path) -> None:
    add(*DAYS[:2])
    before = contents(tmp_path / "store")
    path = tmp_path / "logs" / f"{DAYS[0]}.parquet"
    pl.read_parquet(path).head(2000).write_parquet(path)
    refused = add(DAYS[0], code=2)

    assert f"store: holds {DAYS[0]} already, from other logs" in " ".join(refused.stderr.split())
    assert "--replace-day" in refused.stderr
    assert contents(tmp_path / "store") == before
    add(DAYS[0], options=("--replace-day",))
    assert rows_of(tmp_path / "store").filter(pl.col("period").cast(pl.String) == DAYS[0])["impressions"].sum() == 2000


def test_a_day_may_have_several_logs_and_is_known_by_all_of_them(add: Add, run_in_process: Run, tmp_path: Path) -> None:
    """A retry with all of them is the same day; with some of them it is another one."""
    log = pl.read_parquet(tmp_path / "logs" / f"{DAYS[0]}.parquet")
    for number in range(2):
        log.filter(pl.col("session") % 8 // 4 == number).write_parquet(tmp_path / f"{number}.parquet")
    line = ("collect", "0.parquet", "1.parquet", "--date", DAYS[0], "--into", "store")
    add(DAYS[1])
    for _ in range(2):
        assert run_in_process(*line).returncode == 0
    some = run_in_process("collect", "0.parquet", "--date", DAYS[0], "--into", "store")

    assert some.returncode == 2
    assert days_of(tmp_path / "store") == [[DAYS[0]], [DAYS[1]]]


def test_a_log_that_was_counted_as_another_day_is_refused(add: Add, run_in_process: Run, tmp_path: Path) -> None:
    add(*DAYS[:2])
    before = contents(tmp_path / "store")
    for options in ((), ("--replace-day",)):
        done = run_in_process("collect", f"logs/{DAYS[0]}.parquet", "--date", DAYS[1], "--into", "store", *options)
        assert done.returncode == 2
        assert f"has counted logs/{DAYS[0]}.parquet as {DAYS[0]} already" in " ".join(done.stderr.split())
    assert contents(tmp_path / "store") == before


def test_a_removed_day_is_gone_and_the_same_line_again_says_so(add: Add, run_in_process: Run, tmp_path: Path) -> None:
    add(*DAYS[:3])
    for number in range(2):
        done = run_in_process("collect", "--into", "store", "--remove-day", DAYS[1], "--quiet")
        assert done.returncode == 0
        assert ("holds no" in done.stderr) == (number == 1)
        assert days_of(tmp_path / "store") == [[DAYS[0]], [DAYS[2]]]
    run_in_process("collect", "--into", "store", "--remove-day", DAYS[0])
    last = run_in_process("collect", "--into", "store", "--remove-day", DAYS[2])
    assert last.returncode == 2
    assert "holds no other day" in last.stderr
    assert days_of(tmp_path / "store") == [[DAYS[2]]]


# --- odd days -------------------------------------------------------------------------------------------------


def test_a_gate_keeps_an_odd_day_out_and_a_day_is_not_compared_with_itself(add: Add, tmp_path: Path) -> None:
    gate = ("--gate", "0.5")
    add(*DAYS, options=gate)
    path = tmp_path / "logs" / f"{DAYS[1]}.parquet"
    pl.read_parquet(path).with_columns(click=pl.lit(0, pl.Int8)).write_parquet(path)
    before = contents(tmp_path / "store")
    refused = add(DAYS[1], options=(*gate, "--replace-day"), code=2)
    assert "kept out by --gate" in refused.stderr
    assert contents(tmp_path / "store") == before

    for _ in range(2):  # without a gate it is in, and the same line says the same again
        doubtful = add(DAYS[1], options=("--replace-day",), code=1)
        assert f"{DAYS[1]} does not look like the days of the store" in " ".join(doubtful.stderr.split())


# --- what is refused ------------------------------------------------------------------------------------------

DATED = (f"logs/{DAYS[2]}.parquet", "--date", DAYS[2], "--into")
REFUSED = [
    ((*DATED, "fitted"), "fitted: holds no store"),
    ((*DATED, "logs"), "logs: holds no store"),
    ((*DATED, "times"), "times: keeps times of day"),
    ((*DATED, "decayed"), "decayed: its counts have decayed"),
    ((f"logs/{DAYS[0]}.parquet", "--date", DAYS[0], "--into", "week"), "was counted together with other days"),
    (("two-days.parquet", *DATED[1:], "week"), f"as {DAYS[0]} to {DAYS[1]} already"),
    ((*DATED[:2], DAYS[0], "--into", "week", "--replace-day"), "was counted together with other days"),
    (("--into", "week", "--remove-day", DAYS[0]), "was counted together with other days"),
]


@pytest.fixture
def others(add: Add, run_in_process: Run, tmp_path: Path) -> Path:
    """Return the directory with what cannot become a store, beside `store` with a day."""
    add(DAYS[0])
    log = pl.read_parquet(tmp_path / "logs" / f"{DAYS[1]}.parquet")
    log.with_columns(at=pl.lit(f"{DAYS[1]} 10:20:00").str.to_datetime()).write_parquet(tmp_path / "timed.parquet")
    first = pl.read_parquet(tmp_path / "logs" / f"{DAYS[0]}.parquet")
    pl.concat([first.with_columns(on=pl.lit(DAYS[0])), log.with_columns(on=pl.lit(DAYS[1]))]).write_parquet(
        tmp_path / "two-days.parquet"
    )
    for words in (
        ("collect", "timed.parquet", "--timestamp", "at", "-o", "times"),
        ("collect", "store", "--decay", "0.9", "-o", "decayed"),
        ("collect", "two-days.parquet", "--timestamp", "on", "-o", "week"),
        ("fit", "store", "--no-compare", "-o", "fitted"),
    ):
        done = run_in_process(*words)
        assert done.returncode == 0, done.stderr
    return tmp_path


def test_what_cannot_work_is_refused_and_changes_nothing(run_in_process: Run, others: Path) -> None:
    before = {path: path.read_bytes() for path in others.rglob("*") if path.is_file()}
    for words, says in REFUSED:
        done = run_in_process("collect", *words)
        assert (done.returncode, done.stdout) == (2, ""), words
        assert says in " ".join(done.stderr.split()), (words, done.stderr)
    assert {path: path.read_bytes() for path in others.rglob("*") if path.is_file()} == before


def test_a_file_of_others_in_the_store_is_never_replaced(add: Add, tmp_path: Path) -> None:
    add(DAYS[0])
    (tmp_path / "store" / "notes.txt").write_text("mine")
    before = contents(tmp_path / "store")
    refused = add(DAYS[1], code=2)

    assert "notes.txt is not part of the result there" in " ".join(refused.stderr.split())
    assert contents(tmp_path / "store") == before
