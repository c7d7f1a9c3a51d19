"""What `train` costs: a log, a table of features for each of its (query, document) pairs, and a fit.

Every stage is a process of its own, interpreter start included. The log is that of `main_job.py`; with --text its ids
are texts of about 20 letters.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import polars as pl
from main_job import write_log
from processes import POSBIAS, Measured, table_console
from rich.table import Table

_ROWS = 100_000


def run(words: list[str]) -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--impressions", type=int, nargs="+", default=[100_000, 1_000_000, 10_000_000])
    parser.add_argument("--features", type=int, default=40)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--learners", default="pbm", help="separated by commas")
    parser.add_argument("--text", action="store_true")
    parser.add_argument("--directory", type=Path)
    asked = parser.parse_args(words)
    table = Table(title=f"posbias train, {asked.features} features, 100 trees", title_justify="left")
    for name in ("impressions", "pairs", "stage", "seconds", "CPU s", "peak MiB"):
        table.add_column(name, justify="left" if name == "stage" else "right")
    for n_impressions in asked.impressions:
        with tempfile.TemporaryDirectory(prefix="learners-", dir=asked.directory) as name:
            folder = Path(name)
            n_pairs = _prepare(folder, n_impressions, asked.features, text=asked.text)
            for stage, arguments in _stages(folder, asked.learners.split(",")):
                measured = Measured()
                for _ in range(asked.runs):
                    measured.add((*POSBIAS, *arguments))
                table.add_row(
                    f"{n_impressions:,}",
                    f"{n_pairs:,}",
                    stage,
                    f"{np.median(measured.seconds):.1f}",
                    f"{np.median(measured.cpu_seconds):.1f}",
                    f"{max(measured.mebibytes):,.0f}",
                )
    table_console().print(table)


def _stages(folder: Path, learners: list[str]) -> list[tuple[str, tuple[str, ...]]]:
    log, fit, features = (str(folder / name) for name in ("log.parquet", "fit", "features.parquet"))
    stages: list[tuple[str, tuple[str, ...]]] = [("fit", ("fit", log, "-o", fit, "--force", "--quiet"))]
    out = str(folder / learners[-1])
    for learner in learners:
        named = ("--features", features, "--propensities", fit, "--learner", learner, "-o", str(folder / learner))
        stages.append((f"train, {learner}", ("train", log, *named, "--force", "--quiet")))
    stages.append(("score", ("score", features, "--model", out, "-o", str(folder / "s"), "--force", "--quiet")))
    return stages


def _prepare(folder: Path, n_impressions: int, n_features: int, *, text: bool) -> int:
    """Write the log and its features; return the number of pairs."""
    log = folder / "log.parquet"
    write_log(log, n_impressions)
    if text:
        ids = (pl.format("a-longer-{}-{}", pl.lit(name), pl.col(name)).alias(name) for name in ("query", "doc"))
        pl.scan_parquet(log).with_columns(*ids).sink_parquet(folder / "text.parquet")
        (folder / "text.parquet").replace(log)
    pairs = pl.scan_parquet(log).select("query", "doc").unique().sort("query", "doc").collect(engine="streaming")
    parts = folder / "parts"
    parts.mkdir()
    rng = np.random.default_rng(0)
    for number, first in enumerate(range(0, pairs.height, _ROWS)):
        keys = pairs.slice(first, _ROWS)
        values = rng.standard_normal((keys.height, n_features), dtype=np.float32)
        columns = {f"feature_{column}": values[:, column] for column in range(n_features)}
        keys.with_columns(pl.Series(name, held) for name, held in columns.items()).write_parquet(
            parts / f"{number:05d}.parquet"
        )
    pl.scan_parquet(parts).sink_parquet(folder / "features.parquet")
    return pairs.height
