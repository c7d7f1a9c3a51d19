"""What the benchmarks measure: processes of their own, interpreter start included."""

import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table

POSBIAS = ("-m", "posbias.cli")
TABLE_WIDTH = 110

_WITH_DOUBTS = 1  # exit code of posbias; it is Python's word for a traceback
_POLLING_SECONDS = 0.05
_SHOWN = 2_000  # characters of stderr that are shown of a process that failed
# Python keeps what it has compiled, as of an installed package: else a fifth of a small run would be spent on that.
_ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


@dataclass(frozen=True)
class Stage:
    """One process that is measured."""

    name: str
    arguments: tuple[str, ...]  # after the interpreter
    output: Path | None = None  # the propensity table that it writes, if it estimates
    temp: Path | None = None  # the directory for its temporary files, if their size is measured
    bare: str = ""  # the name of the stage that it is compared with


@dataclass
class Measured:
    """The runs of one stage."""

    seconds: list[float] = field(default_factory=list[float])
    cpu_seconds: list[float] = field(default_factory=list[float])
    mebibytes: list[float] = field(default_factory=list[float])  # peaks of resident memory
    disk_mebibytes: list[float] = field(default_factory=list[float])  # peaks of temporary files

    def add(self, arguments: Sequence[str], temp: Path | None = None) -> None:
        """Run once more.

        Raises:
            RuntimeError: the process failed.
        """
        with tempfile.TemporaryFile() as errors, _watched(temp) as disk_peak:
            actions = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0), (os.POSIX_SPAWN_DUP2, errors.fileno(), 2)]
            begin = time.perf_counter()
            process = os.posix_spawn(sys.executable, [sys.executable, *arguments], _ENVIRONMENT, file_actions=actions)
            _, status, usage = os.wait4(process, 0)
            self.seconds.append(time.perf_counter() - begin)
            usable = (0, _WITH_DOUBTS) if tuple(arguments[: len(POSBIAS)]) == POSBIAS else (0,)
            if os.waitstatus_to_exitcode(status) not in usable:
                errors.seek(0)
                raise RuntimeError(f"failed: {' '.join(arguments)}\n{errors.read().decode(errors='replace')[-_SHOWN:]}")
        self.cpu_seconds.append(usage.ru_utime + usage.ru_stime)
        self.mebibytes.append(usage.ru_maxrss / 1024)
        if temp is not None:
            self.disk_mebibytes.append(disk_peak[0] / (1 << 20))

    def median_seconds(self) -> float:
        """Median of the wall times."""
        return statistics.median(self.seconds)

    def times(self, bare: "Measured") -> float:
        """Median, over the rounds, of the wall time relative to that of another stage in the same round."""
        return statistics.median(one / other for one, other in zip(self.seconds, bare.seconds, strict=True))


@contextmanager
def _watched(folder: Path | None) -> Generator[list[int]]:
    """The largest size of a directory while the body runs, the only item of a list; 0 without a directory."""
    peak, over = [0], threading.Event()

    def watch(folder: Path) -> None:
        while not over.wait(_POLLING_SECONDS):
            peak[0] = max(peak[0], _allocated_bytes(folder))

    if folder is None:
        yield peak
        return
    folder.mkdir(parents=True, exist_ok=True)
    watcher = threading.Thread(target=watch, args=(folder,))
    watcher.start()
    try:
        yield peak
    finally:
        over.set()
        watcher.join()


def _allocated_bytes(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(place) / name).lstat().st_blocks * 512
            except FileNotFoundError:  # it vanished meanwhile
                continue
    return total


def measure(stages: Sequence[Stage], runs: int, description: str) -> list[Measured]:
    """Run every stage, round by round."""
    measured = [Measured() for _ in stages]
    rounds = [pair for _ in range(runs) for pair in zip(stages, measured, strict=True)]
    for stage, result in track(rounds, description=description, console=Console(stderr=True)):
        os.sync()  # what the stage before wrote is not this one's work
        result.add(stage.arguments, stage.temp)
    return measured


def table_console() -> Console:
    """A console for tables; of a fixed width where it is not a terminal."""
    console = Console()
    if not console.is_terminal:
        console.width = TABLE_WIDTH
    return console


def empty_table(title: str, *headings: str) -> Table:
    """A table without rows, its first column left-aligned."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left", no_wrap=bool(number))
    return table


def stage_table(title: str, stages: Sequence[Stage], measured: Sequence[Measured]) -> Table:
    """Medians of the runs of each stage, beside the stage that it is compared with."""
    table = empty_table(title, "stage", "seconds", "x bare", "CPU s", "peak MiB", "temp MiB", "error\nof theta")
    runs_of = {stage.name: runs for stage, runs in zip(stages, measured, strict=True)}
    for stage in stages:
        runs = runs_of[stage.name]
        table.add_row(
            stage.name,
            f"{runs.median_seconds():.2f}",
            f"{runs.times(runs_of[stage.bare]):.2f}" if stage.bare else "",
            f"{statistics.median(runs.cpu_seconds):.1f}",
            f"{max(runs.mebibytes):,.0f}",
            f"{max(runs.disk_mebibytes):,.0f}" if runs.disk_mebibytes else "",
            f"{error_of_theta(stage.output):.1%}" if stage.output else "",
        )
    return table


def error_of_theta(propensities: Path) -> float:
    """Mean of |estimate / truth - 1| over the identified cells but those of position 1.

    Truth: 1 / position in a PBM log; in a UBM log 1 / (position - position of the last click above).
    """
    estimate = pl.read_parquet(propensities).drop_nulls("propensity").filter(pl.col("position") > 1)
    above = pl.col("previous_click") if "previous_click" in estimate.columns else 0
    return float(estimate.select((pl.col("propensity") * (pl.col("position") - above) - 1).abs().mean()).item())
