"""What the main job costs, next to the bare work that nobody can avoid: one grouped scan of the same file.

    python tests/benchmarks/main_job.py [--impressions 1000000 10000000] [--runs 3] [--directory DIR]

Every stage runs as a process of its own, interpreter start included. Shown are the median of the wall times, its
ratio to the bare group-by, the largest peak of resident memory, and, where theta is estimated, the mean over the
identified cells of |estimate / truth - 1|, the reference cell left out.

The logs are simulated: 200,000 Zipfian queries of 20 documents each, 10 positions, theta = 1 / position.
"""

import argparse
import os
import tempfile
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray
from processes import POSBIAS, Measured, Stage, errors_of_theta, measure, table_console
from rich.table import Table

from posbias.core.simulation.simulate import SimulationOptions, simulate_blocks

Floats = NDArray[np.float64]

POSITIONS = 10
QUERIES = 200_000
DOCS_PER_QUERY = 20
EM_ITERATIONS = 50

# Scripts, not functions of this file: its own imports must not count as part of the bare work.
GROUP_BY = """
import sys
import polars as pl
counts = pl.scan_parquet(sys.argv[1]).group_by("query", "doc", "position").agg(n=pl.len(), c=pl.col("click").sum())
print(counts.collect(engine="streaming").height)
"""
WINDOW_AND_GROUP_BY = """
import sys
import polars as pl
clicked = pl.when(pl.col("click") == 1).then("position").otherwise(0)
above = clicked.shift(1, fill_value=0).cum_max().over("session", order_by="position")
log = pl.scan_parquet(sys.argv[1]).with_columns(previous_click=above)
counts = log.group_by("query", "doc", "position", "previous_click").agg(n=pl.len(), c=pl.col("click").sum())
print(counts.collect(engine="streaming").height)
"""


def write_log(path: Path, n_impressions: int) -> None:
    """Simulate a log block by block into one Parquet file."""
    options = SimulationOptions(
        n_sessions=n_impressions // POSITIONS,
        n_queries=QUERIES,
        docs_per_query=DOCS_PER_QUERY,
        n_positions=POSITIONS,
    )
    parquet: Any = import_module("pyarrow.parquet")  # it has no types
    writer: Any = None
    for block in simulate_blocks(options):
        table = cast("Any", block.to_arrow())
        writer = writer or parquet.ParquetWriter(path, table.schema, compression="zstd")
        writer.write_table(table)
    if writer is not None:
        writer.close()


def plain_em(log: Path, output: Path) -> None:
    """Fit the textbook algorithm, nothing compressed and nothing accelerated: group to (pair, position), then iterate.

    E-step for the n - c impressions without a click, M-step as averages; maximum likelihood, from 0.5.
    """
    keys = ("query", "doc", "position")
    counts = pl.scan_parquet(log).group_by(keys).agg(n=pl.len(), c=pl.col("click").cast(pl.Int64).sum())
    frame = counts.collect(engine="streaming").sort("query", "doc")
    pair = frame.select(pl.struct("query", "doc").rle_id()).to_series().to_numpy().astype(np.int64)
    cell = frame["position"].to_numpy().astype(np.int64) - 1
    n, c = frame["n"].to_numpy().astype(np.float64), frame["c"].to_numpy().astype(np.float64)
    shown_at, shown = np.bincount(cell, n), np.bincount(pair, n)
    theta, gamma = np.full(len(shown_at), 0.5), np.full(len(shown), 0.5)
    for _ in range(EM_ITERATIONS):
        t, g = theta[cell], gamma[pair]
        unclicked = (n - c) / np.maximum(1 - t * g, 1e-6)
        theta = np.bincount(cell, c + unclicked * t * (1 - g)) / shown_at
        gamma = np.bincount(pair, c + unclicked * g * (1 - t)) / shown
    position = np.arange(1, len(theta) + 1)
    pl.DataFrame({"position": position, "propensity": theta / theta[0]}).write_parquet(output)


def stages_of(log: Path, folder: Path) -> list[Stage]:
    """Every stage, in an order in which each finds what it needs."""
    table, source = "propensities.parquet", str(log)

    def fit(name: str, target: str, *options: str) -> Stage:
        arguments = (*POSBIAS, "fit", source, "-o", str(folder / target), "--force", *options)
        return Stage(name, arguments, folder / target / table)

    def weigh(layout: str) -> Stage:
        target = str(folder / f"weighted-{layout}")
        options = ("--propensities", str(folder / "fit"), "--layout", layout, "-o", target, "--force")
        return Stage(f"posbias weight, {layout}", (*POSBIAS, "weight", source, *options))

    em, run = folder / "plain-em.parquet", folder / "run"
    return [
        Stage("bare group-by", ("-c", GROUP_BY, source)),
        Stage("posbias collect", (*POSBIAS, "collect", source, "-o", str(folder / "statistics"), "--force")),
        fit("posbias fit --no-compare", "fit", "--no-compare"),
        fit("posbias fit", "fit-compared", "--compare"),
        weigh("pointwise"),
        weigh("session"),
        Stage("posbias run", (*POSBIAS, "run", source, "-o", str(run), "--force"), run / table),
        Stage(f"plain EM, {EM_ITERATIONS} iterations", (__file__, "--plain-em", source, str(em)), em),
        Stage("bare window and group-by", ("-c", WINDOW_AND_GROUP_BY, source)),
        fit("posbias fit --model ubm --no-compare", "fit-ubm", "--model", "ubm", "--no-compare"),
    ]


def report(n_impressions: int, log: Path, stages: Sequence[Stage], measured: Sequence[Measured]) -> Table:
    """Lay the medians out."""
    size = log.stat().st_size / 1e6
    title = f"{n_impressions:,} impressions, {size:,.0f} MB Parquet, {os.cpu_count()} cores"
    table = Table(title=title, title_justify="left")
    table.add_column("stage")
    for name in ("seconds", "x bare group-by", "peak MiB", "mean error of theta"):
        table.add_column(name, justify="right")
    bare = measured[0].median_seconds()
    for stage, runs in zip(stages, measured, strict=True):
        seconds = runs.median_seconds()
        error = "" if stage.output is None else f"{errors_of_theta(stage.output)['error'].mean():.1%}"
        table.add_row(stage.name, f"{seconds:.2f}", f"{seconds / bare:.2f}", f"{max(runs.mebibytes):,.0f}", error)
    return table


def measure_log(n_impressions: int, runs: int, folder: Path) -> tuple[Path, list[Stage], list[Measured]]:
    """Simulate one log and run every stage on it, round by round."""
    log = folder / f"log-{n_impressions}.parquet"
    # In a process of its own: a child starts with its parent's peak of memory.
    Measured().add((__file__, "--simulate", str(log), str(n_impressions)))
    stages = stages_of(log, folder)
    return log, stages, measure(stages, runs, f"{n_impressions:,} impressions")


def main() -> None:
    """Parse the command line, measure, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--impressions", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--directory", type=Path, help="where the logs and results go; a temporary one by default")
    parser.add_argument("--simulate", nargs=2, metavar=("LOG", "IMPRESSIONS"), help=argparse.SUPPRESS)
    parser.add_argument("--plain-em", nargs=2, metavar=("LOG", "OUTPUT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.simulate:
        write_log(Path(options.simulate[0]), int(options.simulate[1]))
        return
    if options.plain_em:
        plain_em(*map(Path, options.plain_em))
        return
    console = table_console()
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="main-job-") as name:
        for n_impressions in options.impressions:
            console.print(report(n_impressions, *measure_log(n_impressions, options.runs, Path(name))))


if __name__ == "__main__":
    main()
