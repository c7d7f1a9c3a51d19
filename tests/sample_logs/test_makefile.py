"""The Makefile's daily job does what is new, and nothing twice."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import polars as pl
import pytest
from patience import ended

N_DAYS = 3
SOME = 1  # of four parts of the pages; in another one documents seem to move after clicks, by chance (p = .002)
Make = Callable[..., CompletedProcess[str]]


@pytest.fixture
def make(sample_logs: Path, tmp_path: Path, clean_environment: dict[str, str]) -> Make:
    """Return a function that runs make on a copy of the sample logs, without the flags of a make above it."""
    program = shutil.which("make")
    if program is None:
        pytest.skip("make is not installed")
    for name in ("Makefile", "split_days.py"):
        shutil.copy(sample_logs / name, tmp_path / name)
    log = pl.read_parquet(sample_logs / "web_search.parquet")
    some = pl.col("date").is_in(log["date"].unique().sort().head(N_DAYS)) & (pl.col("session") % 4 == SOME)
    log.filter(some).write_parquet(tmp_path / "web_search.parquet")
    environment = {name: value for name, value in clean_environment.items() if not name.startswith("MAKE")}
    settings = (f"PYTHON={sys.executable}", f"POSBIAS={sys.executable} -m posbias.cli")

    def run(*arguments: str) -> CompletedProcess[str]:
        return ended([program, *settings, *arguments], cwd=tmp_path, env=environment)

    return run


def commands(done: CompletedProcess[str]) -> list[str]:
    """Return the posbias commands that make echoed, as COMMAND FIRST_ARGUMENT."""
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (line.split() for line in done.stdout.splitlines() if " posbias.cli " in line)
    return [" ".join(words[3:5]) for words in lines]


@pytest.mark.slow
def test_make_counts_only_the_days_that_are_new(make: Make, tmp_path: Path) -> None:
    days = [f"daily/2026-01-{day:02}.parquet" for day in range(5, 5 + N_DAYS)]
    fit, weight = "fit out/statistics/2026-01-05", f"weight {days[0]}"
    assert make("days").returncode == 0

    assert commands(make()) == [*(f"collect {day}" for day in days), fit, weight]
    assert "Nothing to be done" in make().stdout

    (tmp_path / days[1]).touch()
    assert commands(make()) == [f"collect {days[1]}", fit, weight]


def test_make_without_logs_says_how_to_get_them(make: Make) -> None:
    done = make()

    assert done.returncode != 0
    assert "make days" in done.stderr
