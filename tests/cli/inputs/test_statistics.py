"""The store of statistics from the command line: the daily job, what is refused, and what `--info` says."""

import re
import shutil
from pathlib import Path

import polars as pl
import pytest
from command_results import contents, manifest_of
from workshop import RunPosbias as Run

from posbias.core.simulation.simulate import SimulationOptions, simulate

DAYS = ("2026-01-05", "2026-01-06", "2026-01-07")


@pytest.fixture(scope="module")
def log() -> pl.DataFrame:
    """Three days of a dense log that gives no reason for a warning."""
    options = SimulationOptions(n_sessions=6000, n_queries=60, docs_per_query=6, n_positions=4, query_exponent=0.3)
    day = pl.col("session") % len(DAYS)
    return simulate(options).log.with_columns(date=day.replace_strict(list(range(len(DAYS))), DAYS))


@pytest.fixture
def logs(log: pl.DataFrame, tmp_path: Path) -> Path:
    """The log in a directory, one file a day, without the column that says the day."""
    folder = tmp_path / "logs"
    folder.mkdir()
    for day in DAYS:
        log.filter(date=day).drop("date").write_parquet(folder / f"{day}.parquet")
    return folder


@pytest.fixture
def days(logs: Path, run_in_process: Run) -> Path:
    """The statistics of each day."""
    for day in DAYS:
        run_in_process("collect", logs / f"{day}.parquet", "--date", day, "-o", f"days/{day}", code=0)
    return logs.parent / "days"


# --- a store that is merged in place --------------------------------------------------------------------------


@pytest.mark.usefixtures("days")
def test_statistics_may_be_replaced_by_what_holds_all_of_them(run_in_process: Run, tmp_path: Path) -> None:
    run_in_process("collect", f"days/{DAYS[0]}", "-o", "store", code=0)
    refused = run_in_process("collect", "store", f"days/{DAYS[1]}", "-o", "store", code=2)
    assert "--force" in refused.stderr
    run_in_process("collect", "store", f"days/{DAYS[1]}", "-o", "store", "--force", code=0)

    manifest = manifest_of(tmp_path / "store")
    assert [segment["days"] for segment in manifest["segments"]] == [[DAYS[0]], [DAYS[1]]]


@pytest.mark.usefixtures("days")
def test_statistics_that_the_result_would_not_hold_are_not_replaced(run_in_process: Run, tmp_path: Path) -> None:
    day, inside = f"days/{DAYS[0]}", f"days/{DAYS[1]}"
    run_in_process("collect", day, "-o", "store", code=0)
    before = contents(tmp_path)
    for words, why in (
        (("store", "--decay", "0.9", "-o", "store"), "--force would delete"),  # the counts would be lost
        ((day, inside, "-o", "days"), "--force would delete"),
        (("logs", "-o", "logs"), "--force replaces only results"),
    ):
        done = run_in_process("collect", *words, "--force", code=2)
        assert why in done.stderr
    assert contents(tmp_path) == before


# --- what is refused ------------------------------------------------------------------------------------------

DAY = f"logs/{DAYS[0]}.parquet"
REFUSED = [
    (("collect", "s", "decayed"), "--decay 0.9"),
    (("fit", "s", "decayed"), "--decay 0.9"),
    (("fit", "s", "decayed", "--decay", "0.8"), "decayed was collected with --decay 0.9"),
    (("collect", "s", "text"), "'query' holds Int32 and String"),
    (("collect", "s", "s-copy"), f"s and s-copy both count the log {DAY}"),
    (("collect", DAY), "-o DIR is missing"),
]


@pytest.fixture
def inputs(logs: Path, run_in_process: Run) -> Path:
    """Statistics of every kind: s, no-days, decayed, text (ids as text), s-copy."""
    other = pl.read_parquet(logs / f"{DAYS[1]}.parquet").with_columns(pl.col("query").cast(pl.String))
    other.write_parquet(logs.parent / "text.parquet")
    for words in (
        (DAY, "--date", DAYS[0], "-o", "s"),
        ("s", "-o", "s-copy"),
        (f"logs/{DAYS[1]}.parquet", "-o", "no-days"),
        (f"logs/{DAYS[2]}.parquet", "--date", DAYS[2], "-o", "exact"),
        ("exact", "--decay", "0.9", "-o", "decayed"),
        ("text.parquet", "--date", DAYS[1], "-o", "text"),
    ):
        run_in_process("collect", *words, code=0)
    return logs.parent


@pytest.mark.slow
def test_what_cannot_work_is_refused_by_name_and_writes_nothing(run_in_process: Run, inputs: Path) -> None:
    before = contents(inputs)
    for words, says in REFUSED:
        output = () if "-o DIR" in says else ("-o", "out")
        done = run_in_process(*words, *output)
        assert (done.returncode, done.stdout) == (2, ""), words
        assert says in " ".join(done.stderr.split()), words
    assert contents(inputs) == before


# --- info -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_info_says_in_80_columns_what_statistics_hold(run_in_process: Run, inputs: Path) -> None:
    before = contents(inputs)
    run_in_process("collect", "s", "exact", "-o", "store", code=0)
    done = run_in_process("collect", "--info", "store", "decayed", "no-days", code=0)

    assert done.stderr == ""
    assert max(map(len, done.stdout.splitlines())) <= 80
    said = [re.sub(r"\s+", " ", line).strip() for line in done.stdout.splitlines()]
    for line in (
        "store",
        "model pbm",
        "keys query (Int32), doc (Int32), period (Date), position (Int32)",
        f"days {DAYS[0]} to {DAYS[2]}, 2 days; missing {DAYS[1]}",
        "sources 2",
        "rows 16,000 read",
        f"decay 0.9 per day; {DAYS[2]} has full weight",
        "days not kept",
    ):
        assert line in said
    assert any(re.fullmatch(r"statistics .* rows, .* KiB in 2 parts of 2 segments", line) for line in said)
    shutil.rmtree(inputs / "store")
    assert contents(inputs) == before
