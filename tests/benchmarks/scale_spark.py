"""The Spark engine next to the local one: `fit --no-compare` of the same log, on this machine's two cores.

Spark's work is done by a Java process. Its memory and CPU time count in so far as the driver waits for it; what a
cluster buys is not speed on two cores, but logs that no single machine holds.
"""

from collections.abc import Sequence
from pathlib import Path

from processes import POSBIAS, Stage, errors_of_theta, measure
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from scale_log import simulated_log

SIZES = (10_000_000,)
MASTER = "local[2]"


def spark(console: Console, sizes: Sequence[int], runs: int, directory: Path | None) -> None:
    """Measure both engines, and print a table."""
    table = Table(title="fit --no-compare, by engine", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("impressions", justify="right")
    table.add_column("engine")
    for heading in ("seconds", "x polars", "error\nof theta"):
        table.add_column(heading, justify="right", no_wrap=True)
    for n_impressions in sizes:
        with simulated_log(n_impressions, "pbm", directory) as log:
            stages = [_fit(log, "polars"), _fit(log, "spark", "--master", MASTER)]
            measured = measure(stages, runs, f"{n_impressions:,} impressions")
            for stage, result in zip(stages, measured, strict=True):
                times = f"{result.times(measured[0]):.2f}"
                error = f"{errors_of_theta(log.with_name(stage.name) / 'propensities.parquet')['error'].mean():.2%}"
                table.add_row(f"{n_impressions:,}", stage.name, f"{result.median_seconds():.1f}", times, error)
    console.print(table)


def _fit(log: Path, engine: str, *options: str) -> Stage:
    target = str(log.with_name(engine))
    settings = ("-o", target, "--force", "--no-compare", "--engine", engine, *options)
    return Stage(engine, (*POSBIAS, "fit", str(log), *settings))
