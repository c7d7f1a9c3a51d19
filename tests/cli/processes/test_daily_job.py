"""The daily job as cron runs it, killed at every step and run again, and two at once: no day is lost or twice."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess, Popen

import polars as pl
import pytest
from command_results import manifest_of
from patience import PATIENCE, ended
from workshop import RunPosbias as Run

from posbias.core.simulation.simulate import SimulationOptions, simulate
from posbias.io.places.locations import checksum
from posbias.io.places.ownership import claimed

DAYS = ("2026-01-31", "2026-02-01")
EARLIER = ("2026-01-29", "2026-01-30")  # with the first day a month that is over when the second comes
STEPS = ("collect", "fit", "weight")
CRON = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "SHELL": "/bin/sh", "LANG": "C"}


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with a log a day, which give no reason for a warning."""
    folder = tmp_path_factory.mktemp("logs")
    options = SimulationOptions(n_sessions=4000, n_queries=60, docs_per_query=6, n_positions=4, query_exponent=0.3)
    log = simulate(options).log
    for number, day in enumerate(DAYS):
        log.filter(pl.col("session") % len(DAYS) == number).write_parquet(folder / f"{day}.parquet")
    for number, day in enumerate(EARLIER, start=3):
        log.filter(pl.col("session") % number > 0).write_parquet(folder / f"{day}.parquet")
    return folder


@pytest.fixture
def place(logs: Path, tmp_path: Path) -> Path:
    """Return a directory with the logs."""
    shutil.copytree(logs, tmp_path / "logs")
    return tmp_path


def line(day: str, store: str = "store") -> list[str]:
    """The line that adds a day."""
    return ["collect", f"logs/{day}.parquet", "--date", day, "--into", store, "--quiet"]


def parts(folder: Path) -> dict[str, bytes]:
    """The tables of a result, to the byte."""
    return {path.name: path.read_bytes() for path in folder.rglob("*.parquet")}


# --- the script -----------------------------------------------------------------------------------------------

STEP = """#!/bin/sh
# One command of posbias; after the command that is to be the last one, the script that runs it is killed.
{python} -m posbias.cli "$@"
code=$?
if [ "$1" = "$(cat kill-after)" ]; then kill -KILL $PPID; fi
exit $code
"""


@pytest.fixture
def daily(place: Path, sample_logs: Path) -> Callable[..., CompletedProcess[str]]:
    """Return a function that runs the script as cron does: from elsewhere, with cron's environment."""
    shutil.copy(sample_logs / "daily.sh", place / "daily.sh")
    program = place / ".venv" / "bin" / "posbias"
    program.parent.mkdir(parents=True)
    program.write_text(STEP.format(python=sys.executable))
    program.chmod(0o755)

    def run(day: str, kill_after: str = "") -> CompletedProcess[str]:
        (place / "kill-after").write_text(kill_after)
        return ended(["/bin/sh", "-c", f"{place}/daily.sh {day}"], cwd="/", env=CRON)

    return run


def test_the_script_is_three_lines_of_posbias_and_the_one_in_the_documents(repository: Path) -> None:
    script = (repository / "sample_logs" / "daily.sh").read_text(encoding="utf-8")
    assert [row.split()[1] for row in script.splitlines() if row.startswith("posbias ")] == list(STEPS)
    assert f"```sh\n{script}```" in (repository / "cli" / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_script_that_is_killed_at_any_step_does_the_right_thing_when_it_is_run_again(
    daily: Callable[..., CompletedProcess[str]], run_in_process: Run, place: Path
) -> None:
    assert daily(DAYS[0]).returncode == 0
    for step in STEPS:
        killed = daily(DAYS[1], kill_after=step)
        assert killed.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL), killed.stderr
    done = daily(DAYS[1])
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "left in place" not in done.stderr

    for day in DAYS:
        run_in_process(*line(day, "expected-store"), code=0)
    run_in_process("fit", "expected-store", "--decay", "0.98", "-o", "expected-fit")
    run_in_process("weight", f"logs/{DAYS[1]}.parquet", "--propensities", "expected-fit", "-o", "expected-training")
    assert parts(place / "store") == parts(place / "expected-store")
    assert parts(place / "fit") == parts(place / "expected-fit")
    assert parts(place / "training" / DAYS[1]) == parts(place / "expected-training")


@pytest.mark.slow
def test_training_files_of_an_earlier_day_can_be_asked_for_again(
    daily: Callable[..., CompletedProcess[str]], place: Path
) -> None:
    for day in (*DAYS, DAYS[0]):
        assert daily(day).returncode == 0
    earlier = manifest_of(place / "training" / DAYS[0])

    assert earlier["rows"]["read"] == pl.read_parquet(place / "logs" / f"{DAYS[0]}.parquet").height
    assert sorted(path.name for path in (place / "training").iterdir()) == list(DAYS)
    shutil.rmtree(place / "training")
    assert daily(DAYS[0]).returncode == 0
    assert len(parts(place / "training" / DAYS[0])) > 0


# --- one line, killed -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("how", "earlier"), [("exchange", ()), ("renames", ()), ("exchange", EARLIER)])
def test_a_day_that_is_killed_at_any_step_is_in_the_store_or_not_and_then_goes_in(
    run_in_process: Run, repository: Path, place: Path, how: str, earlier: tuple[str, ...]
) -> None:
    """Each start finds what the killed ones before it have left. With `renames`, the store is aside for a moment."""
    for day in (*earlier, DAYS[0]):
        run_in_process(*line(day), code=0)
    before = parts(place / "store")
    script = repository / "tests" / "support" / "killed_steps.py"
    done = ended([sys.executable, script, place, "store", how, *line(DAYS[1])])
    assert done.returncode == 0, done.stderr
    found = [json.loads(row) for row in done.stdout.splitlines()]
    tables = [{name for name in files if name.endswith(".parquet")} for files in found]

    for day in (*earlier, *DAYS):
        run_in_process(*line(day, "expected"), code=0)
    assert parts(place / "store") == parts(place / "expected")
    old, new = set(before), set(parts(place / "expected"))
    absent = [number for number, files in enumerate(tables) if not files]
    assert len(absent) <= (0 if how == "exchange" else 2)
    whole = [files for files in tables if files]
    switch = whole.index(new)
    assert whole == [old] * switch + [new] * (len(whole) - switch)
    assert 10 < switch < len(whole) - 1  # kills before it was there, and kills after
    assert all("manifest.json" in files for files in found if files)
    first = next(iter(files for files in found if files))
    assert (first["part-00000.parquet"] == found[-1]["part-00000.parquet"]) is not bool(earlier)
    left = [path for path in place.iterdir() if path.name.startswith(".posbias-")]
    assert left == []


# --- two at once ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_second_run_waits_for_the_first_and_says_so(
    clean_environment: dict[str, str], run_in_process: Run, place: Path
) -> None:
    """The first one is this process, which holds what a run holds while it changes the store."""
    run_in_process(*line(DAYS[0]), code=0)
    with claimed(place, checksum([os.fsencode(place / "store")]), None):
        second = Popen(
            [sys.executable, "-m", "posbias.cli", *line(DAYS[1])[:-1]],
            cwd=place,
            env=clean_environment,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert second.stderr is not None
        said = second.stderr.readline()
        assert said.startswith(f"store: waiting for process {os.getpid()} on ")
        assert second.poll() is None
        assert [path.name for path in (place / "store").glob("*.parquet")] == ["part-00000.parquet"]
    _, said = second.communicate(timeout=PATIENCE)

    assert second.returncode == 0, said
    assert [path.name for path in sorted((place / "store").glob("*.parquet"))] == [
        "part-00000.parquet",
        "part-00001.parquet",
    ]


@pytest.mark.slow
def test_days_that_are_added_at_once_are_all_there(clean_environment: dict[str, str], place: Path) -> None:
    """Into a store that is not there yet; the same day twice among them."""
    started = [
        Popen([sys.executable, "-m", "posbias.cli", *line(day)], cwd=place, env=clean_environment)
        for day in (*DAYS, DAYS[0])
    ]
    assert [process.wait(PATIENCE) for process in started] == [0, 0, 0]

    days = [entry["days"] for entry in manifest_of(place / "store")["segments"]]
    assert days == [[day] for day in DAYS]
