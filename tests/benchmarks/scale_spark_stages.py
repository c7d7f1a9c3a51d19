"""What each of Spark's stages costs in `fit --no-compare --engine spark`: time, tasks, bytes that move, skew.

    python tests/benchmarks/scale_spark_stages.py [--impressions N...] [--masters URL...] [--ids KIND...]
                                                  [--home SHARE] [--directory DIR]

Each fit is a process of its own, on a log of `scale_log.py`; one run each. What Spark says of its tasks is read from
its event log. Processor seconds are those of all processes that a fit has started, Java's and Python's workers, taken
from /proc twice a second: stages follow each other, so that what is spent between the start and the end of one is its
own. "driver" is the process of posbias itself, "start and rest" what no stage spans. On a cluster, workers are no
children of the fit, and their processor seconds are not seen.

"in tasks" and "in Python" are seconds of all tasks, and of what Python runs in them; "back" is what tasks send to the
driver, and "largest" the longest task of a stage in median tasks. A * marks stages that run in Python workers.
"""

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from bisect import bisect
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from processes import POSBIAS, table_console
from rich.box import SIMPLE_HEAD
from rich.table import Table
from scale_log import IDS, Ids, simulated_log

_SETTINGS = """
spark.eventLog.enabled true
spark.eventLog.dir file://{}
spark.eventLog.compress false
spark.eventLog.rolling.enabled false
"""
_WORDS = {
    ("_read", "files", "result"): "read, check, keep *",
    ("_read", "files", "shuffle"): "read, check, by session *",
    ("_read", "kept", "shuffle"): "rows by reason",
    ("_read", "shuffle", "result"): "rows by reason, in all",
    ("count_faults", "kept", "shuffle"): "pages: a sample by session",
    ("count_faults", "shuffle", "result"): "pages: judged *",
    ("count_faults", "kept", "result"): "pages: faults, in all",
    ("ends", "kept", "result"): "pages: where they end *",
    ("map", "kept", "shuffle"): "count each piece",
    ("map", "shuffle", "shuffle"): "add up counts, by query",
    ("map", "shuffle", "result"): "compress *",
    ("count", "kept", "shuffle"): "pages for tests: how many",
    ("count", "shuffle", "result"): "pages for tests: in all",
    ("some_pages", "kept", "result"): "pages for tests: fetch",
    ("each", "files", "result"): "write attractiveness *",
}
"""What a stage does, by the function that asked for it and by where its rows are from and go; * in Python workers."""
_IN_PYTHON = "time to execute Python code"
_CALL = re.compile(r"\w+ at (?P<path>.+\.py):(?P<line>\d+)")
_POLLING_SECONDS = 0.5
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Stage:
    """What a stage of Spark has cost.

    Attributes:
        asked_by: the function of posbias that asked for it.
        begin: when it began, and
        end: when it ended, in seconds since 1970.
        python: seconds in which Python workers ran code, of all tasks.
        tasks: seconds of each task.
        read: bytes of kept rows that were read.
        fetched: bytes of a shuffle that were read, and
        written: bytes that were written.
        returned: bytes that tasks sent to the driver.
    """

    asked_by: str
    begin: float = 0.0
    end: float = 0.0
    python: float = 0.0
    tasks: list[float] = field(default_factory=list[float])
    read: int = 0
    fetched: int = 0
    written: int = 0
    returned: int = 0

    @property
    def words(self) -> str:
        """What it does."""
        source = "shuffle" if self.fetched else "kept" if self.read else "files"
        target = "shuffle" if self.written else "result"
        return _WORDS.get((self.asked_by, source, target), f"{self.asked_by}: {source} to {target}")

    def add(self, task: dict[str, Any]) -> None:
        """Add what a task has cost."""
        fetched, written = task["Shuffle Read Metrics"], task["Shuffle Write Metrics"]
        self.tasks.append(task["Executor Run Time"] / 1000)
        self.read += task["Input Metrics"]["Bytes Read"]
        self.fetched += fetched["Remote Bytes Read"] + fetched["Local Bytes Read"]
        self.written += written["Shuffle Bytes Written"]
        self.returned += task["Result Size"]


@dataclass
class Watch:
    """Processor seconds of a process, and of all that it has started, over time."""

    when: list[float] = field(default_factory=list[float])
    spent: list[float] = field(default_factory=list[float])
    by_driver: float = 0.0

    def look(self, process: int) -> None:
        """Note what was spent so far; what is over stays in the account of its parent, or is lost."""
        children, ticks = defaultdict[int, list[int]](list), dict[int, int]()
        for place in Path("/proc").glob("[0-9]*/stat"):
            try:
                words = place.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            number = int(place.parent.name)
            children[int(words[1])].append(number)
            ticks[number] = sum(map(int, words[11:15]))
        if process not in ticks:
            return
        self.by_driver = ticks[process] / _TICKS
        found = [process]
        for one in found:
            found += children[one]
        self.when.append(time.time())
        self.spent.append(max(sum(ticks.get(one, 0) for one in found) / _TICKS, *self.spent[-1:], 0.0))

    def between(self, begin: float, end: float) -> float:
        """What was spent in that time."""
        return self._until(end) - self._until(begin)

    def _until(self, moment: float) -> float:
        after = bisect(self.when, moment)
        if after in (0, len(self.when)):
            return self.spent[min(after, len(self.when) - 1)]
        share = (moment - self.when[after - 1]) / (self.when[after] - self.when[after - 1])
        return self.spent[after - 1] + share * (self.spent[after] - self.spent[after - 1])


def fitted(log: Path, master: str) -> tuple[list[Stage], Watch]:
    """Run a fit, and tell what its stages have cost."""
    with tempfile.TemporaryDirectory(dir=log.parent) as folder:
        (Path(folder) / "spark-defaults.conf").write_text(_SETTINGS.format(folder))
        output = ("--quiet", "--force", "-o", str(log.with_name("fit")))
        words = ("fit", str(log), "--no-compare", "--engine", "spark", "--master", master, *output)
        process = subprocess.Popen((sys.executable, *POSBIAS, *words), env=os.environ | {"SPARK_CONF_DIR": folder})
        watch, over = Watch(), threading.Event()
        watcher = threading.Thread(target=_watch, args=(watch, process.pid, over))
        watcher.start()
        status = process.wait()
        over.set()
        watcher.join()
        if status not in (0, 1):
            raise RuntimeError(f"posbias {' '.join(words)}: exit code {status}")
        (events,) = (path for path in Path(folder).iterdir() if path.suffix != ".conf")
        return stages_of(events), watch


def _watch(watch: Watch, process: int, over: threading.Event) -> None:
    while not over.wait(_POLLING_SECONDS):
        watch.look(process)


def stages_of(events: Path) -> list[Stage]:
    """The stages of which an event log of Spark tells, in their order."""
    stages, asked_by, queries = dict[int, Stage](), dict[int, str](), dict[str, str]()
    with events.open(encoding="utf-8") as lines:
        for event in map(json.loads, lines):
            match event["Event"]:
                case "org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionStart":
                    queries[str(event["executionId"])] = event["description"]
                case "SparkListenerJobStart":
                    known = event["Properties"]
                    call = queries.get(known.get("spark.sql.execution.id"), known.get("callSite.short", "Spark itself"))
                    asked_by |= dict.fromkeys(event["Stage IDs"], _function(call))
                case "SparkListenerTaskEnd" if event["Task End Reason"]["Reason"] == "Success":
                    stages.setdefault(event["Stage ID"], Stage(asked_by[event["Stage ID"]])).add(event["Task Metrics"])
                case "SparkListenerStageCompleted":
                    told = event["Stage Info"]
                    stage = stages[told["Stage ID"]]
                    stage.begin, stage.end = told["Submission Time"] / 1000, told["Completion Time"] / 1000
                    values = {one["Name"]: one["Value"] for one in told["Accumulables"] if "Name" in one}
                    stage.python = int(values.get(_IN_PYTHON, 0)) / 1000
                case _:
                    pass
    return [stages[number] for number in sorted(stages)]


@cache
def _function(call_site: str) -> str:
    """The function in which a call stands, or what is called where Spark does not know it.

    E.g.: collect at io/engines/spark.py:216 -> _read, count at NativeMethodAccessorImpl.java:0 -> count
    """
    place = _CALL.fullmatch(call_site)
    if place is None:
        return call_site.partition(" ")[0]
    line, found = int(place["line"]), call_site
    for node in ast.walk(ast.parse(Path(place["path"]).read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef) and node.lineno <= line <= (node.end_lineno or 0):
            found = node.name  # the innermost comes last
    return found


def table_of(title: str, n_impressions: int, stages: list[Stage], watch: Watch) -> Table:
    """The stages of one fit."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column("stage", no_wrap=True)
    headings = (
        "tasks",
        "seconds",
        "in\ntasks",
        "in\nPython",
        "CPU s",
        "MB\nread",
        "shuffled\nB / row",
        "MB\nback",
        "largest",
    )
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    in_stages = 0.0
    for stage in stages:
        cpu_seconds = watch.between(stage.begin, stage.end)
        in_stages += cpu_seconds
        times = (stage.end - stage.begin, sum(stage.tasks), stage.python, cpu_seconds)
        largest = max(stage.tasks) / max(median(stage.tasks), 0.001)
        table.add_row(
            stage.words,
            f"{len(stage.tasks)}",
            *(f"{seconds:.1f}" for seconds in times),
            _megabytes(stage.read + stage.fetched),
            f"{stage.written / n_impressions:.1f}" if stage.written else "",
            _megabytes(stage.returned),
            f"{largest:.1f}" if len(stage.tasks) > 1 else "",
        )
    driver, rest = watch.by_driver, watch.spent[-1] - in_stages - watch.by_driver
    seconds, cpu_seconds = watch.when[-1] - watch.when[0], watch.spent[-1]
    table.add_row("driver", "", "", "", "", f"{driver:.1f}")
    table.add_row("start and rest", "", f"{seconds - sum(s.end - s.begin for s in stages):.1f}", "", "", f"{rest:.1f}")
    written = sum(stage.written for stage in stages) / n_impressions
    table.add_row("in all", "", f"{seconds:.1f}", "", "", f"{cpu_seconds:.1f}", "", f"{written:.1f}")
    return table


def _megabytes(number: int) -> str:
    return f"{number / 1e6:,.1f}" if number else ""


def main() -> None:
    """Parse the command line, measure, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--impressions", type=int, nargs="+", default=(1_000_000, 3_000_000, 10_000_000))
    parser.add_argument("--masters", nargs="+", default=("local[2]",), help="where Spark runs")
    parser.add_argument("--ids", nargs="+", choices=IDS, default=("integer",))
    parser.add_argument("--home", type=float, default=0.0, help="share of the one query of a home page, e.g. 0.5")
    parser.add_argument("--directory", type=Path, help="where the logs and results go; a temporary one by default")
    options = parser.parse_args()
    console = table_console()
    sizes: list[int] = options.impressions
    kinds: list[Ids] = options.ids
    for n_impressions, ids in product(sizes, kinds):
        with simulated_log(n_impressions, "pbm", options.directory, ids, options.home) as log:
            for master in options.masters:
                of_home = f", {options.home:.0%} of one query" if options.home else ""
                title = f"{n_impressions:,} impressions, ids: {ids}{of_home}, {master}"
                console.print(table_of(title, n_impressions, *fitted(log, master)))


if __name__ == "__main__":
    main()
