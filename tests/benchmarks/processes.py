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
from typing import Literal

import polars as pl
from rich.console import Console
from rich.progress import track

Model = Literal["pbm", "ubm"]
MODELS: tuple[Model, ...] = ("pbm", "ubm")

POSBIAS = ("-m", "posbias.cli")
TABLE_WIDTH = 110

_DONE, _WITH_DOUBTS = 0, 1  # the latter says posbias; it is Python's word for a traceback
_KIBIBYTES_PER_MEBIBYTE = 1024
_BLOCK_BYTES = 512  # of stat(2)
_POLLING_SECONDS = 0.05
_SAID = 2_000  # characters of stderr that are shown of a process that failed


@dataclass(frozen=True)
class Stage:
    """One process that is measured.

    Attributes:
        name: what the table calls it.
        arguments: the command line, after the interpreter.
        output: the propensity table that it writes, if it estimates.
        temp: the directory for its temporary files, if their size is measured.
        bare: the name of the stage that it is compared with, if there is one.
        interpreter: the Python that runs it.
    """

    name: str
    arguments: tuple[str, ...]
    output: Path | None = None
    temp: Path | None = None
    bare: str = ""
    interpreter: str = sys.executable


@dataclass
class Measured:
    """The runs of one stage.

    Attributes:
        seconds: wall times.
        cpu_seconds: user and system time of the process and of the children that it waited for.
        mebibytes: peaks of resident memory.
        disk_mebibytes: peaks of what its temporary files take on disk; empty where that is not measured.
    """

    seconds: list[float] = field(default_factory=list[float])
    cpu_seconds: list[float] = field(default_factory=list[float])
    mebibytes: list[float] = field(default_factory=list[float])
    disk_mebibytes: list[float] = field(default_factory=list[float])

    def add(self, arguments: Sequence[str], temp: Path | None = None, interpreter: str = sys.executable) -> None:
        """Run once more.

        Raises:
            RuntimeError: the process failed.
        """
        with tempfile.TemporaryFile() as said, _watched(temp) as disk_peak:
            actions = [
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_DUP2, said.fileno(), 2),
            ]
            begin = time.perf_counter()
            process = os.posix_spawn(interpreter, [interpreter, *arguments], os.environ, file_actions=actions)
            _, status, usage = os.wait4(process, 0)
            self.seconds.append(time.perf_counter() - begin)
            usable = (_DONE, _WITH_DOUBTS) if tuple(arguments[: len(POSBIAS)]) == POSBIAS else (_DONE,)
            if os.waitstatus_to_exitcode(status) not in usable:
                said.seek(0)
                last_words = said.read().decode(errors="replace")[-_SAID:]
                raise RuntimeError(f"failed: {interpreter} {' '.join(arguments)}\n{last_words}")
        self.cpu_seconds.append(usage.ru_utime + usage.ru_stime)
        self.mebibytes.append(usage.ru_maxrss / _KIBIBYTES_PER_MEBIBYTE)
        if temp is not None:
            self.disk_mebibytes.append(disk_peak[0] / (1 << 20))

    def median_seconds(self) -> float:
        """Median of the wall times."""
        return statistics.median(self.seconds)

    def median_cpu_seconds(self) -> float:
        """Median of the CPU times."""
        return statistics.median(self.cpu_seconds)

    def times(self, bare: "Measured") -> float:
        """Median, over the rounds, of the wall time relative to that of another stage in the same round."""
        return statistics.median(one / other for one, other in zip(self.seconds, bare.seconds, strict=True))


@contextmanager
def _watched(folder: Path | None) -> Generator[list[int]]:
    """The largest size of a directory while the body runs, the only item of a list; 0 without a directory."""
    peak, over = [0], threading.Event()

    def watch(folder: Path) -> None:
        while not over.wait(_POLLING_SECONDS):
            peak[0] = max(peak[0], allocated_bytes(folder))

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


def allocated_bytes(folder: Path) -> int:
    """What the files below a directory take on disk; those that vanish meanwhile count nothing."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(place, name)).st_blocks * _BLOCK_BYTES  # noqa: PTH118 # often
            except FileNotFoundError:
                continue
    return total


def measure(stages: Sequence[Stage], runs: int, description: str) -> list[Measured]:
    """Run every stage, round by round."""
    measured = [Measured() for _ in stages]
    rounds = [pair for _ in range(runs) for pair in zip(stages, measured, strict=True)]
    for stage, result in track(rounds, description=description, console=Console(stderr=True)):
        os.sync()  # what the stage before wrote is not this one's work
        result.add(stage.arguments, stage.temp, stage.interpreter)
    return measured


def table_console() -> Console:
    """A console for tables; of a fixed width where it is not a terminal."""
    console = Console()
    if not console.is_terminal:
        console.width = TABLE_WIDTH
    return console


def errors_of_theta(propensities: Path, clicks_of: Model = "pbm") -> pl.DataFrame:
    """Relative errors |estimate / truth - 1| of the identified cells, the reference cell left out.

    Truth: 1 / position in a PBM log; in a UBM log 1 / (position - position of the last click above).
    """
    estimate = pl.read_parquet(propensities).drop_nulls("propensity")
    distance = pl.col("position") if clicks_of == "pbm" else pl.col("position") - pl.col("previous_click")
    cell = [name for name in ("position", "previous_click") if name in estimate.columns]
    error = (pl.col("propensity") * distance - 1).abs().alias("error")
    return estimate.filter(pl.col("position") > 1).select(*cell, error)
