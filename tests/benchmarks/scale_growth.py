"""How cost, and what there is to count and to fit, grow with the log, and with its positions: `posbias fit`, PBM.

Linked pairs, the ones that a propensity can be learned from, have a click and stand in two cells at least; DuckDB
counts them in the statistics.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from processes import POSBIAS, Measured, Stage, errors_of_theta, measure
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from scale_log import scrolled_log, simulated_log

SIZES = (1_000_000, 10_000_000, 100_000_000)
BILLION = 1_000_000_000
MEMORY = "2GiB"
POSITIONS = (100, 500, 2_000, 5_000)

_LARGE = 500_000_000
"""Impressions from which on one run must do."""

_LINKED = """
import sys
import duckdb
statistics, temp, output = sys.argv[1:]
duckdb.execute("SET memory_limit='4GB'; SET temp_directory=$temp", dict(temp=temp))
pairs = "SELECT 1 FROM read_parquet($files) GROUP BY query, doc HAVING count(*) > 1 AND sum(clicks) > 0"
found = duckdb.execute(f"SELECT count(*) FROM ({pairs})", dict(files=statistics + "/*.parquet")).fetchone()
open(output, "w").write(str(found[0]))
"""


@dataclass(frozen=True)
class Size:
    """What a log of one size holds, and what it costs.

    Attributes:
        megabytes: of the Parquet file.
        counts: queries, pairs, signatures and so on, by name.
        error: mean relative error of theta.
        fit, collect: the processes.
    """

    megabytes: float
    counts: dict[str, int]
    error: float
    fit: Measured
    collect: Measured


def growth(console: Console, sizes: Sequence[int], runs: int, directory: Path | None) -> None:
    """Measure one size after the other, and print both tables."""
    found: dict[int, Size] = {}
    for n_impressions in sizes:
        with simulated_log(n_impressions, "pbm", directory) as log:
            found[n_impressions] = _measured(log, n_impressions, 1 if n_impressions >= _LARGE else runs)
    console.print(_costs(found))
    console.print(_numbers(found))


def _measured(log: Path, n_impressions: int, runs: int) -> Size:
    temp, fit, statistics = (log.with_name(name) for name in ("temp", "fit", "statistics"))
    settings = ("--force", "--memory", MEMORY, "--temp-dir", str(temp))
    stages = (
        Stage("fit", (*POSBIAS, "fit", str(log), "-o", str(fit), "--no-compare", *settings), temp=temp),
        Stage("collect", (*POSBIAS, "collect", str(log), "-o", str(statistics), *settings), temp=temp),
    )
    measured = measure(stages, runs, f"{n_impressions:,} impressions")
    counts = dict(_manifest(fit)["totals"])
    counts["statistics rows"] = _manifest(statistics)["statistics"]["rows"]
    counts["linked pairs"] = _linked_pairs(statistics, temp)
    error = errors_of_theta(fit / "propensities.parquet")["error"].to_numpy().mean()
    return Size(log.stat().st_size / 1e6, counts, float(error), *measured)


def _manifest(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "manifest.json").read_text(encoding="utf-8"))


def _linked_pairs(statistics: Path, temp: Path) -> int:
    output = temp.with_name("linked")
    Measured().add(("-c", _LINKED, str(statistics), str(temp), str(output)))
    return int(output.read_text(encoding="utf-8"))


def _costs(found: dict[int, Size]) -> Table:
    title = f"posbias --memory {MEMORY}, PBM"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column("command")
    headings = ("impressions", "MB\nParquet", "seconds", "s per\nmillion", "CPU s", "peak MiB", "temp MiB", "error")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for name in ("fit --no-compare", "collect"):
        for n_impressions, size in found.items():
            runs, error = (size.fit, f"{size.error:.2%}") if name != "collect" else (size.collect, "")
            table.add_row(
                name,
                f"{n_impressions:,}",
                f"{size.megabytes:,.0f}",
                f"{runs.median_seconds():,.1f}",
                f"{runs.median_seconds() / n_impressions * 1e6:.3f}",
                f"{runs.median_cpu_seconds():,.1f}",
                f"{max(runs.mebibytes):,.0f}",
                f"{max(runs.disk_mebibytes):,.0f}",
                error,
            )
        table.add_section()
    return table


def _numbers(found: dict[int, Size]) -> Table:
    """Counts by size; beneath each but the first the exponent of its growth since the size before."""
    title = "what grows with the log, and how: count ~ impressions ** (exponent)"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    names = ("queries", "pairs", "statistics rows", "signatures", "linked pairs")
    for name in ("impressions", *names):
        table.add_column(name, justify="right")
    before: int | None = None
    for n_impressions, size in found.items():
        cells = [f"{size.counts[name]:,}" for name in names]
        if before is not None:
            ratio = math.log(n_impressions / before)
            grown = (math.log(size.counts[name] / found[before].counts[name]) / ratio for name in names)
            cells = [f"{cell} ({exponent:.2f})" for cell, exponent in zip(cells, grown, strict=True)]
        table.add_row(f"{n_impressions:,}", *cells)
        before = n_impressions
    return table


def cells(console: Console, n_impressions: int, runs: int, directory: Path | None) -> None:
    """Measure `fit` with more and more positions, and print a table."""
    title = f"posbias fit --memory {MEMORY}, PBM, {n_impressions:,} impressions"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for heading in ("cells", "identified", "seconds", "CPU s", "peak MiB"):
        table.add_column(heading, justify="right", no_wrap=True)
    for n_positions in POSITIONS:
        with scrolled_log(n_impressions, n_positions, directory) as log:
            fit, temp = log.with_name("fit"), log.with_name("temp")
            command = (*POSBIAS, "fit", str(log), "-o", str(fit), "--force", "--memory", MEMORY)
            (found,) = measure((Stage("fit", command, temp=temp),), runs, f"{n_positions:,} positions")
            propensities = pl.read_parquet(fit / "propensities.parquet")
        table.add_row(
            f"{propensities.height:,}",
            f"{propensities['identified'].sum():,}",
            f"{found.median_seconds():,.1f}",
            f"{found.median_cpu_seconds():,.1f}",
            f"{max(found.mebibytes):,.0f}",
        )
    console.print(table)
