"""What the main job costs, next to the bare work that nobody can avoid: one grouped scan of the same file.

    python tests/benchmarks/main_job.py [--impressions 1000000 10000000] [--runs 3] [--directory DIR]

Every stage runs as a process of its own, interpreter start included. Shown are the median of the wall times, its
ratio to the bare group-by, the largest peak of resident memory, and, where theta is estimated, the mean over the
identified cells of |estimate / truth - 1|, the reference cell left out.

The logs are simulated: 200,000 Zipfian queries of 20 documents each, 10 positions, theta = 1 / position. Plain EM is
the textbook algorithm in NumPy; training files are written with 10 features a pair, next to Polars' join and write.
"""

import argparse
import os
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl
from processes import POSBIAS, Measured, Stage, measure, stage_table, table_console

from posbias.core.simulation.simulate import SimulationOptions, simulate_blocks

POSITIONS, QUERIES, DOCS_PER_QUERY, EM_ITERATIONS, N_FEATURES = 10, 200_000, 20, 50, 10

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
JOIN_AND_WRITE = """
import sys
import polars as pl
log, features, output = sys.argv[1:]
pl.scan_parquet(log).join(pl.scan_parquet(features), on=["query", "doc"]).sink_parquet(output)
"""


def write_log(path: Path, n_impressions: int) -> None:
    """Simulate a log block by block into one Parquet file, and features of its pairs into another beside it."""
    options = SimulationOptions("pbm", n_impressions // POSITIONS, QUERIES, DOCS_PER_QUERY, POSITIONS)
    parquet: Any = import_module("pyarrow.parquet")  # it has no types
    writer: Any = None
    for block in simulate_blocks(options):
        table = cast("Any", block.to_arrow())
        writer = writer or parquet.ParquetWriter(path, table.schema, compression="zstd")
        writer.write_table(table)
    if writer is not None:
        writer.close()
    pairs = pl.scan_parquet(path).select("query", "doc").unique().sort("query", "doc").collect(engine="streaming")
    drawn = np.random.default_rng(0).random((pairs.height, N_FEATURES), dtype=np.float32)
    features = pl.DataFrame(drawn, [f"f{number}" for number in range(N_FEATURES)])
    pl.concat([pairs, features], how="horizontal").write_parquet(path.with_name("features.parquet"))


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
    table, source, bare, joined = "propensities.parquet", str(log), "bare group-by", "Polars: join features, write"
    features = str(log.with_name("features.parquet"))

    def posbias(command: str, target: str, *options: str, against: str = bare) -> Stage:
        output = folder / target / table if command in {"fit", "run"} else None
        words = (*POSBIAS, command, source, *options, "-o", str(folder / target), "--force")
        shown = " ".join(option for option in options if "/" not in option and option != "--propensities")
        return Stage(
            f"posbias {command} {shown}".replace("--features ", "--features F ").strip(), words, output, None, against
        )

    weigh = ("--propensities", str(folder / "fit"), "--layout")
    em = folder / "plain-em.parquet"
    return [
        Stage(bare, ("-c", GROUP_BY, source), bare=bare),
        posbias("collect", "statistics"),
        posbias("fit", "fit", "--no-compare"),
        posbias("fit", "fit-compared", "--compare"),
        posbias("weight", "pointwise", *weigh, "pointwise"),
        posbias("weight", "session", *weigh, "session"),
        posbias("run", "run"),
        Stage(f"plain EM, {EM_ITERATIONS} iterations", (__file__, "--plain-em", source, str(em)), em, None, bare),
        Stage("bare window and group-by", ("-c", WINDOW_AND_GROUP_BY, source), bare=bare),
        posbias("fit", "fit-ubm", "--model", "ubm", "--no-compare"),
        Stage(joined, ("-c", JOIN_AND_WRITE, source, features, str(folder / "joined.parquet")), bare=joined),
        *(
            posbias("weight", "files", *weigh, layout, "--features", features, "--format", form, against=joined)
            for layout, form in (("pointwise", "lightgbm"), ("session", "parquet"), ("pairs", "catboost"))
        ),
    ]


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
    for n_impressions in options.impressions:
        with tempfile.TemporaryDirectory(dir=options.directory, prefix="main-job-") as name:
            log = Path(name) / "log.parquet"
            # In a process of its own: a child starts with its parent's peak of memory.
            Measured().add((__file__, "--simulate", str(log), str(n_impressions)))
            stages = stages_of(log, Path(name))
            measured = measure(stages, options.runs, f"{n_impressions:,} impressions")
            title = f"{n_impressions:,} impressions, {log.stat().st_size / 1e6:,.0f} MB Parquet, {os.cpu_count()} cores"
            table_console().print(stage_table(title, stages, measured))


if __name__ == "__main__":
    main()
