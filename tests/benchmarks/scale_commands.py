"""What the commands cost on a large log, next to the bare work on the same file, round by round.

The bare work of counting is DuckDB's (as many threads, memory limit 2 GB, more than posbias is given): the group-by to
(query, document, position), for UBM with the last click above from a window over the session. Its result is summed up
and not written, which is the least that anyone can do; a second row also writes it, as `posbias collect` does. The
bare work of weighting is Polars copying the file.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from processes import POSBIAS, Measured, Model, Stage, errors_of_theta, measure
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from scale_log import Ids, simulated_log

SIZES = (10_000_000, 100_000_000)
MEMORY = "1GiB"
DUCKDB_MEMORY = "2GB"

_SUMMED, _WRITTEN, _COPIED = "DuckDB: count", "DuckDB: count and write", "Polars: copy the log"
_PREVIOUS_CLICK = """(
    SELECT *, coalesce(max(CASE WHEN click = 1 THEN position END) OVER (
        PARTITION BY session ORDER BY position ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ), 0) AS previous_click FROM log
)"""
_COUNTS = "SELECT {keys}, count(*) AS n, sum(click)::BIGINT AS c FROM {log} GROUP BY ALL"
_SUM = "SELECT count(*), sum(n), sum(c) FROM ({counts})"
_WRITE = "COPY ({counts}) TO '{file}' (FORMAT parquet)"
_DUCKDB = f"""
import sys
import duckdb
log, temp, threads, query = sys.argv[1:]
duckdb.sql(f"SET memory_limit='{DUCKDB_MEMORY}'; SET threads={{threads}}; SET preserve_insertion_order=false")
duckdb.execute("SET temp_directory=$temp", dict(temp=temp))
duckdb.read_parquet(log).create_view("log")
print(duckdb.execute(query).fetchall())
"""
_COPY = """
import os
import sys
log, copy, os.environ["POLARS_MAX_THREADS"] = sys.argv[1:]
import polars as pl
pl.scan_parquet(log).sink_parquet(copy)
"""


@dataclass(frozen=True)
class Kind:
    """A log as it is simulated."""

    n_impressions: int
    model: Model
    ids: Ids
    home: float


@dataclass(frozen=True)
class Trial:
    """What one table is about."""

    kind: Kind
    threads: int

    def describe(self) -> str:
        """In words."""
        kind = self.kind
        ids = {"integer": "integer ids", "text": "short text ids", "long": "long text ids"}[kind.ids]
        home = f", {kind.home:.0%} of one query" if kind.home else ""
        with_threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        return f"{kind.n_impressions:,} impressions of a {kind.model.upper()}{home}, {ids}, {with_threads}"


def commands(
    console: Console,
    kinds: Iterable[Kind],
    threads: Sequence[int],
    runs: int,
    directory: Path | None,
    *,
    fits_only: bool,
) -> None:
    """Measure on logs of each kind, with each number of threads, and print a table each."""
    if not find_spec("duckdb"):
        console.print("DuckDB is not at hand: pip install duckdb")
        return
    for kind in kinds:
        with simulated_log(kind.n_impressions, kind.model, directory, kind.ids, kind.home) as log:
            for number in threads:
                trial = Trial(kind, number)
                stages = stages_of(log, trial, fits_only=fits_only)
                measured = measure(stages, runs, trial.describe())
                console.print(_table(trial, log, dict(zip(stages, measured, strict=True))))


def stages_of(log: Path, trial: Trial, *, fits_only: bool) -> list[Stage]:
    """Every stage, in an order in which each finds what it needs; or only what leads to propensities."""
    model, threads = trial.kind.model, str(trial.threads)
    table, temp = "propensities.parquet", log.with_name("temp")

    def target(name: str) -> str:
        return str(log.with_name(name))

    def posbias(command: str, name: str, *options: str, bare: str = _SUMMED, counted: bool = False) -> Stage:
        settings = ("-o", target(name), "--force", "--memory", MEMORY, "--temp-dir", str(temp))
        settings = (*settings, "--threads", threads)
        output = log.with_name(name) / table if command in {"fit", "run"} else None
        words = (command, *(("STATISTICS",) if counted else ()), *options)
        label = " ".join(words).replace(target("fit"), "FIT")
        read = target("statistics") if counted else str(log)
        return Stage(label, (*POSBIAS, command, read, *options, *settings), output, temp, bare)

    def duckdb(name: str, query: str) -> Stage:
        return Stage(name, ("-c", _DUCKDB, str(log), str(temp), threads, query), temp=temp, bare=_SUMMED)

    def weigh(layout: str, *, counted: bool = False) -> Stage:
        options = ("--propensities", target("fit"), "--layout", layout)
        return posbias("weight", f"{layout}{counted}", *options, bare=_COPIED, counted=counted)

    check = ("check", str(log), "--quiet", "--memory", MEMORY, "--temp-dir", str(temp), "--threads", threads)
    counts = counting_query(model)
    of_model = () if model == "pbm" else ("--model", model)
    fits = [
        duckdb(_SUMMED, _SUM.format(counts=counts)),
        posbias("collect", "statistics", *of_model),
        posbias("fit", "fit", *of_model, "--no-compare"),
        posbias("fit", "fit-counted", "--no-compare", counted=True),
        posbias("run", "run", *of_model),
    ]
    if fits_only:
        return fits
    return [
        *fits,
        duckdb(_WRITTEN, _WRITE.format(counts=counts, file=target("counts.parquet"))),
        Stage("check", (*POSBIAS, *check), temp=temp, bare=_SUMMED),
        Stage(_COPIED, ("-c", _COPY, str(log), target("copy.parquet"), threads), bare=_COPIED),
        weigh("pointwise"),
        weigh("pointwise", counted=True),
        weigh("session"),
    ]


def counting_query(model: Model) -> str:
    """SQL for the counts of a view `log`."""
    if model == "pbm":
        return _COUNTS.format(keys="query, doc, position", log="log")
    return _COUNTS.format(keys="query, doc, position, previous_click", log=_PREVIOUS_CLICK)


def _table(trial: Trial, log: Path, runs_of: dict[Stage, Measured]) -> Table:
    size = log.stat().st_size / 1e6
    title = f"{trial.describe()}, {size:,.0f} MB Parquet, --memory {MEMORY}"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column("stage")
    for heading in ("seconds", "x bare", "CPU s", "peak MiB", "temp MiB", "error\nof theta"):
        table.add_column(heading, justify="right", no_wrap=True)
    by_name = {stage.name: runs for stage, runs in runs_of.items()}
    for stage, runs in runs_of.items():
        error = "" if stage.output is None else f"{errors_of_theta(stage.output, trial.kind.model)['error'].mean():.1%}"
        table.add_row(
            stage.name,
            f"{runs.median_seconds():.1f}",
            f"{runs.times(by_name[stage.bare]):.2f}",
            f"{runs.median_cpu_seconds():.1f}",
            f"{max(runs.mebibytes):,.0f}",
            f"{max(runs.disk_mebibytes):,.0f}" if runs.disk_mebibytes else "",
            error,
        )
    return table
