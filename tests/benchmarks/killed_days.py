"""The daily job over a simulated month, killed at random moments and run again; and pairs of days added at once.

    python tests/benchmarks/killed_days.py [--kills 200] [--pairs 20] [--seed N] [--directory DIR]

Every day of the month is added to a store (`collect LOG --date DAY --into STORE`); every third one first from a log
that was exported too early, which the whole one then replaces; after every fifth, the day before is removed and added
again.
Each of these lines is killed (SIGKILL, SIGTERM or SIGINT) at moments drawn at random over its usual duration, and then
run to its end. A second store is made by pairs of such lines that start together. The tables say after how many kills

before, after   the store was as before the line, or as after it: its days, each with its logs, and its files, whole
else            it was neither, or not there
good            the same line again ended well, and the store was as after it

and at the end, whether the rows of both stores, added up and sorted, are those of one that is made in one go, and
whether a fit has the same bytes.
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

import polars as pl
from processes import POSBIAS, table_console
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table

from posbias.io.results.files import foreign_in, listed_in

N_KILLS, N_PAIRS, SEED = 200, 20, 20_261_123
FIRST, N_DAYS, SESSIONS_OF_A_DAY = date(2026, 1, 1), 30, 3_000
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
EARLY_EVERY, REMOVED_EVERY = 3, 5

_DONE, _WITH_DOUBTS = 0, 1
_ENDS_WITHIN = 300  # seconds
_OUTCOMES = ("kills", "running", "before", "after", "else", "good")
_Days = dict[str, tuple[str, ...]]
"""The logs of each day of a store."""


@dataclass(frozen=True)
class Line:
    """A line that changes a day.

    Attributes:
        kind: what the table calls it.
        day: which.
        words: of the command line, without the store.
        log: from which the day is afterwards; None where it is gone.
    """

    kind: str
    day: str
    words: tuple[str, ...]
    log: str | None

    def start(self, folder: Path, store: str) -> subprocess.Popen[bytes]:
        """Start it and do not wait for it."""
        silent = subprocess.DEVNULL
        return subprocess.Popen(
            [sys.executable, *POSBIAS, "collect", *self.words, "--into", store, "--quiet"],
            cwd=folder,
            stdin=silent,
            stdout=silent,
            stderr=silent,
            env={"PATH": "/usr/bin:/bin", "TMPDIR": str(folder / "system")},
        )

    def done(self, days: _Days) -> _Days:
        """The days of a store after it."""
        rest = {day: logs for day, logs in days.items() if day != self.day}
        return rest if self.log is None else rest | {self.day: (self.log,)}


def main() -> None:
    """Parse the command line, kill, start pairs, compare, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=N_KILLS)
    parser.add_argument("--pairs", type=int, default=N_PAIRS)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--directory", type=Path, help="where all of it lies; a temporary one by default")
    options = parser.parse_args()
    moments = random.Random(options.seed)  # noqa: S311 # no secret
    with tempfile.TemporaryDirectory(prefix="killed-days-", dir=options.directory) as name:
        folder = Path(name)
        days = _make_logs(folder)
        killed = _kill(folder, list(_month(days)), options.kills, moments)
        waited = _start_pairs(folder, days, options.pairs)
        same = _compare(folder, days)
        left = len(list(folder.glob(".posbias-*")))
    console = table_console()
    console.print(_table(killed))
    console.print(f"{options.pairs} pairs at once: {waited['good']} left the store with both days as they should be")
    console.print(f"rows of the killed store, of that of pairs, and of one go: {same['rows']}")
    console.print(f"propensities, attractiveness and covariance of a fit of each: {same['bytes']}")
    console.print(f"directories of killed runs that are left beside the stores, and warned of: {left}")
    bad = sum(counts["else"] + counts["kills"] - counts["good"] for counts in killed.values())
    if bad or waited["good"] < options.pairs or set(same.values()) != {"the same"}:
        raise SystemExit("a day was lost, or counted twice, or the same line again was not good")


def _make_logs(folder: Path) -> list[str]:
    """A log a day, whole and as it was exported too early."""
    for place in ("logs", "early", "system"):
        (folder / place).mkdir()
    sessions = str(N_DAYS * SESSIONS_OF_A_DAY)
    _posbias(folder, "simulate", "--sessions", sessions, "--queries", "200", "--days", "0", "-o", "simulated")
    log = pl.read_parquet(folder / "simulated" / "log.parquet")
    days = [(FIRST + timedelta(days=number)).isoformat() for number in range(N_DAYS)]
    for number, day in enumerate(days):
        of_day = log.filter(pl.col("session") % N_DAYS == number)
        of_day.write_parquet(folder / "logs" / f"{day}.parquet")
        of_day.head(of_day.height // 2).write_parquet(folder / "early" / f"{day}.parquet")
    return days


def _month(days: list[str]) -> Iterator[Line]:
    for number, day in enumerate(days):
        if number % EARLY_EVERY == 0:
            yield _adding("add", day, f"early/{day}.parquet")
            yield _adding("replace", day, f"logs/{day}.parquet", "--replace-day")
        else:
            yield _adding("add", day, f"logs/{day}.parquet")
        if number % REMOVED_EVERY == REMOVED_EVERY - 1:
            before = days[number - 1]
            yield Line("remove", before, ("--remove-day", before), None)
            yield _adding("add", before, f"logs/{before}.parquet")


def _adding(kind: str, day: str, log: str, *options: str) -> Line:
    return Line(kind, day, (log, "--date", day, *options), log)


def _kill(folder: Path, lines: list[Line], kills: int, moments: random.Random) -> dict[str, Counter[str]]:
    """Kill each line at random moments, then run it to its end."""
    found = {line.kind: Counter[str]() for line in lines}
    store, duration = folder / "killed", _duration(folder, lines[0])
    for number, line in enumerate(track(lines, description="kills", console=Console(stderr=True))):
        days, counts = _days_of(store) or {}, found[line.kind]
        kills_of_line = kills * (number + 1) // len(lines) - kills * number // len(lines)
        for _ in range(kills_of_line):
            counts["kills"] += 1
            process = line.start(folder, store.name)
            time.sleep(moments.uniform(0, duration))
            process.send_signal(moments.choice(SIGNALS))
            counts["running"] += process.wait(_ENDS_WITHIN) not in {_DONE, _WITH_DOUBTS}
            outcome = _days_of(store) or {}
            counts["before" if outcome == days else "after" if outcome == line.done(days) else "else"] += 1
        code = line.start(folder, store.name).wait(_ENDS_WITHIN)
        if code in {_DONE, _WITH_DOUBTS} and _days_of(store) == line.done(days):
            counts["good"] += kills_of_line
        else:
            print(f"{line}: the same line again ended with {code}", file=sys.stderr)
    return found


def _duration(folder: Path, line: Line) -> float:
    """Seconds that a line usually takes."""
    began = time.perf_counter()
    if line.start(folder, "timed").wait(_ENDS_WITHIN) != _DONE:
        raise RuntimeError(f"{line} fails before anything is killed")
    return time.perf_counter() - began


def _start_pairs(folder: Path, days: list[str], pairs: int) -> Counter[str]:
    """Make a store by two lines at once, pair by pair; days that are there are added again."""
    found, store = Counter[str](), folder / "pairs"
    for number in track(range(pairs), description="pairs", console=Console(stderr=True)):
        two = [days[(2 * number + place) % len(days)] for place in range(2)]
        lines = [_adding("add", day, f"logs/{day}.parquet") for day in two]
        expected = lines[1].done(lines[0].done(_days_of(store) or {}))
        processes = [line.start(folder, store.name) for line in lines]
        codes = {process.wait(_ENDS_WITHIN) for process in processes}
        found["good"] += codes <= {_DONE, _WITH_DOUBTS} and _days_of(store) == expected
    for day in days:  # those that no pair has added
        if day not in (_days_of(store) or {}):
            _adding("add", day, f"logs/{day}.parquet").start(folder, store.name).wait(_ENDS_WITHIN)
    return found


def _days_of(store: Path) -> _Days | None:
    """The logs of each day of a store; None where it is not there, or not whole."""
    listed = listed_in(store)
    if not listed or foreign_in(store, listed) or not all((store / name).is_file() for name in listed):
        return None
    segments = json.loads((store / "manifest.json").read_bytes())["segments"]
    return {" ".join(segment["days"]): tuple(segment["sources"].values()) for segment in segments}


def _compare(folder: Path, days: list[str]) -> dict[str, str]:
    """Whether rows and fits of the stores are those of one that is made in one go."""
    for day in days:
        _posbias(folder, "collect", f"logs/{day}.parquet", "--date", day, "-o", f"days/{day}")
    _posbias(folder, "collect", *(f"days/{day}" for day in days), "-o", "at-once")
    names = ("killed", "pairs", "at-once")
    for name in names:
        _posbias(folder, "fit", name, "--no-compare", "-o", f"fit-{name}")
    rows = [_rows(folder / name) for name in names]
    fits = [{path.name: path.read_bytes() for path in (folder / f"fit-{name}").glob("*.parquet")} for name in names]
    return {
        "rows": "the same" if all(frame.equals(rows[0]) for frame in rows) else "NOT the same",
        "bytes": "the same" if all(files == fits[0] for files in fits) else "NOT the same",
    }


def _rows(store: Path) -> pl.DataFrame:
    """The rows of a store, added up and sorted."""
    keys = ("query", "doc", "period", "position")
    rows = pl.concat([pl.read_parquet(part) for part in sorted(store.glob("*.parquet"))])
    return rows.group_by(keys).agg(pl.sum("impressions", "clicks")).sort(keys)


def _posbias(folder: Path, *words: str) -> None:
    command = [sys.executable, *POSBIAS, *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode not in {_DONE, _WITH_DOUBTS}:
        raise RuntimeError(f"{' '.join(words)} failed: {done.stderr}")


def _table(found: dict[str, Counter[str]]) -> Table:
    table = Table(title="a month of days, killed", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("line")
    for heading in ("kills", "while it\nran", "store as\nbefore", "store as\nafter", "else", "next run\ngood"):
        table.add_column(heading, justify="right")
    for kind, counts in found.items():
        table.add_row(kind, *(str(counts[name]) for name in _OUTCOMES))
    table.add_section()
    total = sum(found.values(), Counter[str]())
    table.add_row("all", *(str(total[name]) for name in _OUTCOMES))
    return table


if __name__ == "__main__":
    main()
