"""What a signal at a random moment of a command leaves: one whole result or none, and nothing of others touched.

    python tests/benchmarks/killed.py [--kills 200] [--seed N] [--directory DIR] [--only CASE...]

Every command runs on a small log with little memory, so that it writes temporary files too; in every other case over an
older result. SIGKILL, SIGTERM or SIGINT meets it at a moment drawn at random over its usual duration; in a quarter of
the cases a second process writes the same target at the same time. Directories of others, under the names that
posbias uses or once used, lie in every place that it writes to. After each kill:

partial   what stands at the target is neither the old result nor a whole new one, file by file as its manifest lists
lost      there was an old result, and now there is none; or a merge that ended well is not in its store
foreign   a file of others is not there, or not as it was
good      the next run of the same command succeeds, its result is whole, and nothing of ours is left beside it
"""

import argparse
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import polars as pl
from processes import POSBIAS, table_console
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table

from posbias.io.results.files import foreign_in, listed_in

N_KILLS, SEED = 200, 20_261_122
SESSIONS = 30_000
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
FOREIGN_NAMES = (
    "posbias-mine",
    "posbias-0123456789ab",
    "posbias-" + "0" * 32,
    ".posbias-" + "0" * 32,
    ".posbias-0123456789ab",
    "posbias-output-0123456789ab",
    "posbias-input-0123456789ab",
    ".out.posbias-0123456789ab",
    ".out.posbias.old",
)

_DONE, _CANNOT_RUN = 0, 2
_ENDS_WITHIN = 300  # seconds
_OUTCOMES = ("kills", "two", "running", "absent", "old", "new", "partial", "lost", "foreign", "good")
_Contents = dict[str, bytes]


@dataclass(frozen=True)
class Case:
    """A command that is killed.

    Attributes:
        name: what the table calls it.
        share: how many of all kills it gets.
        words: the command line without target and options of all.
        old: the result that stands at the target before, in every other kill; in all, for a merge into it.
        merges: whether the target is an input as well.
    """

    name: str
    share: float
    words: tuple[str, ...]
    old: Path
    merges: bool = False


@dataclass(frozen=True)
class Bench:
    """Where it all happens.

    Attributes:
        results: in which the target stands.
        scratch: for temporary files.
        system: the system's place for temporary files.
    """

    results: Path
    scratch: Path
    system: Path

    @property
    def target(self) -> Path:
        """Where every result stands."""
        return self.results / "out"

    def start(self, case: Case) -> subprocess.Popen[bytes]:
        """Start a command and do not wait for it."""
        inputs = (str(self.target),) if case.merges else ()
        options = ("-o", str(self.target), "--force")
        if case.words[0] != "simulate":
            options += ("--memory", "256MiB", "--temp-dir", str(self.scratch))
        command = [sys.executable, *POSBIAS, case.words[0], *inputs, *case.words[1:], *options]
        silent = subprocess.DEVNULL
        return subprocess.Popen(
            command,
            stdin=silent,
            stdout=silent,
            stderr=silent,
            env={"TMPDIR": str(self.system), "PATH": "/usr/bin:/bin"},
        )

    def stand(self, case: Case, *, old: bool) -> None:
        """Put the old result at the target, or nothing."""
        shutil.rmtree(self.target, ignore_errors=True)
        if old:
            shutil.copytree(case.old, self.target)

    def foreign(self) -> _Contents:
        """All that belongs to others."""
        places = (self.results, self.scratch, self.system)
        return {str(place): b"" for place in places} | {
            str(path): path.read_bytes()
            for place in places
            for name in FOREIGN_NAMES
            for path in (place / name).rglob("*")
            if path.is_file()
        }

    def ours(self) -> list[Path]:
        """What is left that is neither of others nor the target."""
        places = (self.results, self.scratch, self.system)
        left = [path for place in places for path in place.iterdir()]
        return [path for path in left if path.name not in FOREIGN_NAMES and path != self.target]


def main() -> None:
    """Parse the command line, kill, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=N_KILLS)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--directory", type=Path, help="where all of it lies; a temporary one by default")
    parser.add_argument("--only", nargs="+", default=[], help="cases by their names")
    options = parser.parse_args()
    moments = random.Random(options.seed)  # noqa: S311 # no secret
    with tempfile.TemporaryDirectory(prefix="killed-", dir=options.directory) as folder:
        bench = _bench(Path(folder))
        cases = [case for case in _cases(Path(folder)) if not options.only or case.name in options.only]
        table, found = _table(), Counter[str]()
        for case in cases:
            counts = _kill(bench, case, max(1, round(options.kills * case.share)), moments)
            table.add_row(case.name, *(str(counts[name]) for name in _OUTCOMES))
            found += counts
        table.add_section()
        table.add_row("all", *(str(found[name]) for name in _OUTCOMES))
    table_console().print(table)
    if found["partial"] or found["lost"] or found["foreign"] or found["good"] < found["kills"]:
        raise SystemExit(
            "a kill left something partial, lost or touched what it must not, or the next run was not good"
        )


def _table() -> Table:
    table = Table(title="killed by SIGKILL, SIGTERM or SIGINT", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("command")
    headings = ("kills", "with a\nsecond", "while it\nran", "target\nabsent", "old\nwhole", "new\nwhole", "partial")
    for heading in (*headings, "lost", "foreign\ntouched", "next run\ngood"):
        table.add_column(heading, justify="right")
    return table


def _bench(folder: Path) -> Bench:
    bench = Bench(folder / "results", folder / "scratch", folder / "system")
    for place in (bench.results, bench.scratch, bench.system):
        for name in FOREIGN_NAMES:
            (place / name / "below").mkdir(parents=True)
            (place / name / "below" / "thesis.txt").write_text(name, encoding="utf-8")
    return bench


def _cases(folder: Path) -> list[Case]:
    """The commands, with the logs, statistics, fits and older results that they need."""
    simulated, small = folder / "simulated", folder / "small"
    _posbias("simulate", "--sessions", str(SESSIONS), "--days", "0", "-o", str(simulated))
    _posbias("simulate", "--sessions", "2000", "--days", "0", "--seed", "1", "-o", str(small))
    log, small_log = str(folder / "log.parquet"), str(small / "log.parquet")
    pl.read_parquet(simulated / "log.parquet").with_columns(feature=pl.col("doc") % 7).write_parquet(log)
    for name, of in (("day", log), ("old-day", small_log)):
        _posbias("collect", of, "--date", f"2026-01-0{1 if name == 'day' else 2}", "-o", str(folder / name))
    for name in ("run", "fit"):
        _posbias(name, small_log, "-o", str(folder / f"old-{name}"))
    day, fit = str(folder / "day"), str(folder / "old-fit")
    weight = ("weight", log, "--propensities", fit, "--layout", "clicked-group", "--feature", "feature")
    return [
        Case("run", 0.2, ("run", log), folder / "old-run"),
        Case("collect", 0.1, ("collect", log), folder / "old-day"),
        Case("collect, merge", 0.2, ("collect", day), folder / "old-day", merges=True),
        Case("weight, parquet", 0.075, weight, folder / "old-run"),
        Case("weight, lightgbm", 0.075, (*weight, "--format", "lightgbm"), folder / "old-run"),
        Case("weight, xgboost", 0.075, (*weight, "--format", "xgboost"), folder / "old-run"),
        Case("fit", 0.1, ("fit", log), folder / "old-fit"),
        Case("fit, spark", 0.075, ("fit", log, "--engine", "spark", "--master", "local[2]"), folder / "old-fit"),
        Case("simulate", 0.1, ("simulate", "--sessions", str(SESSIONS)), small),
    ]


def _posbias(*words: str) -> None:
    done = subprocess.run([sys.executable, *POSBIAS, *words], capture_output=True, text=True, check=False)
    if done.returncode != _DONE:
        raise RuntimeError(f"{' '.join(words)} failed: {done.stderr}")


def _kill(bench: Bench, case: Case, kills: int, moments: random.Random) -> Counter[str]:
    """Kill at random moments; how often what was found."""
    before, duration = bench.foreign(), _duration(bench, case)
    found: Counter[str] = Counter(kills=kills)
    for number in track(range(kills), description=case.name, console=Console(stderr=True)):
        old, two = case.merges or number % 2 == 1, number % 4 >= 2 and number % 8 < 4
        bench.stand(case, old=old)
        ended_well = _one_is_killed(
            bench, case, moments.uniform(0, duration * (2 if two else 1)), moments, found, two=two
        )
        outcome = _outcome(bench.target, case)
        found[outcome] += 1
        found["lost"] += (old and outcome == "absent") or (case.merges and ended_well and outcome != "new")
        found["foreign"] += bench.foreign() != before
        found["good"] += _next_is_good(bench, case, outcome)
        found["foreign"] += bench.foreign() != before
    return found


def _duration(bench: Bench, case: Case) -> float:
    """Seconds that the command usually takes."""
    bench.stand(case, old=True)
    began = time.perf_counter()
    if bench.start(case).wait(_ENDS_WITHIN) != _DONE:
        raise RuntimeError(f"{case.name}: fails before anything is killed")
    return time.perf_counter() - began


def _one_is_killed(
    bench: Bench,
    case: Case,
    after: float,
    moments: random.Random,
    found: Counter[str],
    *,
    two: bool,
) -> bool:
    """Start one process or two, kill the first; return whether one of them ended well."""
    processes = [bench.start(case) for _ in range(2 if two else 1)]
    time.sleep(after)
    processes[0].send_signal(moments.choice(SIGNALS))
    codes = [process.wait(_ENDS_WITHIN) for process in processes]
    found["two"] += two
    found["running"] += codes[0] not in (_DONE, _CANNOT_RUN)
    return _DONE in codes


def _outcome(target: Path, case: Case) -> str:
    """What stands at the target."""
    if not target.exists():
        return "absent"
    if _contents(target) == _contents(case.old):
        return "old"
    return "new" if _is_whole(target) else "partial"


def _is_whole(target: Path) -> bool:
    """Whether all is there that the manifest lists, and nothing else."""
    listed = listed_in(target)
    return bool(listed) and not foreign_in(target, listed) and all((target / name).is_file() for name in listed)


def _next_is_good(bench: Bench, case: Case, outcome: str) -> bool:
    """Whether the same command now succeeds and leaves nothing else; a merge that is done is refused a second time."""
    code = bench.start(case).wait(_ENDS_WITHIN)
    expected = _CANNOT_RUN if case.merges and outcome == "new" else _DONE
    good = code == expected and _is_whole(bench.target) and _outcome(bench.target, case) == "new" and not bench.ours()
    if not good:
        print(f"{case.name}: after {outcome}, the next run ended with {code} and left {bench.ours()}", file=sys.stderr)
    return good


def _contents(folder: Path) -> _Contents:
    """Every file below a directory, to the byte."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


if __name__ == "__main__":
    main()
