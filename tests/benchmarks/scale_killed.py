"""What SIGKILL at any moment leaves: the target absent or whole, to the byte, and nothing that the next run keeps.

`posbias run` with little memory, so that it writes temporary files too, once to a new target and once with --force
over an older result. It is killed at moments drawn at random over its usual duration; then the target is compared with
the old and the new result, and the next run must succeed and leave nothing but its result.
"""

import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from processes import POSBIAS
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scale_log import simulated_log

N_KILLS = 20
IMPRESSIONS, OLD_IMPRESSIONS = 2_000_000, 20_000
SEED = 20_260_105

_MEMORY = "256MiB"  # splits the log into buckets
_GENERATOR = str(Path(__file__).with_name("scale_log.py"))
_OUTCOMES = ("kills", "running", "absent", "old", "new", "partial", "leftovers", "tidy")
_Contents = dict[str, bytes]


@dataclass(frozen=True)
class Runner:
    """Runs the main job on a log: results stand in one directory, temporary files in another.

    Attributes:
        log: what is read.
        target: the result.
        scratch: for temporary files.
    """

    log: Path
    target: Path
    scratch: Path

    def start(self) -> subprocess.Popen[bytes]:
        """Start a run and do not wait for it."""
        options = ("-o", str(self.target), "--force", "--memory", _MEMORY, "--temp-dir", str(self.scratch))
        command = [sys.executable, *POSBIAS, "run", str(self.log), *options]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def succeeds(self) -> bool:
        """Whether a run from beginning to end does."""
        return self.start().wait() == 0

    def killed_after(self, seconds: float) -> bool:
        """Whether a run still ran when it was killed."""
        with self.start() as process:
            time.sleep(seconds)
            process.kill()
        return process.returncode == -signal.SIGKILL

    def leftovers(self) -> int:
        """How many files and directories there are beside the target, and for temporary files."""
        beside = [path for path in self.target.parent.iterdir() if path != self.target]
        return len(beside) + len(list(self.scratch.iterdir()))


def killed(console: Console, directory: Path | None, n_impressions: int = IMPRESSIONS, kills: int = N_KILLS) -> None:
    """Kill, look, run again; print a table.

    Raises:
        RuntimeError: something partial stood at the target, or the next run failed or left something.
    """
    table = Table(title=f"run killed by SIGKILL, {n_impressions:,} impressions", title_justify="left", box=SIMPLE_HEAD)
    headings = ("kills", "while it\nran", "target\nabsent", "old\nwhole", "new\nwhole", "partial")
    table.add_column("target")
    for heading in (*headings, "left\nsomething", "next run\nwell and tidy"):
        table.add_column(heading, justify="right")
    found: Counter[str] = Counter()
    with simulated_log(n_impressions, "pbm", directory) as log:
        small = log.with_name("small.parquet")
        subprocess.run([sys.executable, _GENERATOR, str(small), str(OLD_IMPRESSIONS)], check=True)
        for case in ("new", "--force"):
            counts = _kill(log, small if case == "--force" else None, kills)
            table.add_row(case, *(str(counts[name]) for name in _OUTCOMES))
            found += counts
    console.print(table)
    if found["partial"] or found["tidy"] < found["kills"]:
        raise RuntimeError("a kill left something partial, or something that the next run did not mend")


def _kill(log: Path, small: Path | None, kills: int) -> Counter[str]:
    """Kill at random moments; how often what was found."""
    results, scratch = log.with_name("results"), log.with_name("scratch")
    for folder in (results, scratch):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    runner = Runner(log, results / "out", scratch)
    older = Runner(small, log.with_name("older"), scratch) if small is not None else None
    old = {} if older is None else _whole_result(older)
    began = time.perf_counter()
    new = _whole_result(runner)
    duration = time.perf_counter() - began
    moments = random.Random(SEED)  # noqa: S311 # no secret
    found: Counter[str] = Counter(kills=kills)
    for _ in track(range(kills), description="killing", console=Console(stderr=True)):
        shutil.rmtree(runner.target)
        if older is not None:
            shutil.copytree(older.target, runner.target)
        found["running"] += runner.killed_after(moments.uniform(0, duration))
        found[_outcome(runner.target, old, new)] += 1
        found["leftovers"] += runner.leftovers() > 0
        found["tidy"] += runner.succeeds() and _contents(runner.target) == new and runner.leftovers() == 0
    return found


def _whole_result(runner: Runner) -> _Contents:
    if not runner.succeeds():
        raise RuntimeError(f"{runner.log}: the run failed before anything was killed")
    return _contents(runner.target)


def _outcome(target: Path, old: _Contents, new: _Contents) -> str:
    if not target.exists():
        return "partial" if old else "absent"
    left = _contents(target)
    return "new" if left == new else "old" if old and left == old else "partial"


def _contents(folder: Path) -> _Contents:
    """Every file below a directory, to the byte."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
