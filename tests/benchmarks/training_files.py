"""What training files with features cost, next to a plain Polars join and write of the same rows.

    python tests/benchmarks/training_files.py [--impressions 10000000] [--features 40] [--runs 1]

The log is that of scale_log.py. Its (query, document) pairs have 40 features (Float32), in one Parquet file. The plain
work joins the features to every impression and writes them, label first, as tab-separated values with Polars'
streaming engine: no weights, no groups, no checks, and the rows in whatever order they come in. So it is compared with
the layout `session`, which has the same rows. What makes fewer rows of the log is shown beside.
"""

import argparse
from pathlib import Path

import numpy as np
import polars as pl
from processes import POSBIAS, Measured, Stage, measure, table_console
from rich.box import SIMPLE_HEAD
from rich.table import Table
from scale_log import simulated_log

MEMORY = "2GiB"
SEED = 20_261_121
LAYOUTS = (
    ("session", "lightgbm"),
    ("session", "parquet"),
    ("pointwise", "lightgbm"),
    ("clicked-group", "lightgbm"),
    ("clicked-group", "xgboost"),
    ("pairs", "catboost"),
)

_PLAIN_TSV, _PLAIN_PARQUET = "Polars: join, write TSV", "Polars: join, write Parquet"
_PLAIN = """
import sys
import polars as pl
log, features, target = map(str, sys.argv[1:])
rows = pl.scan_parquet(log).join(pl.scan_parquet(features), on=["query", "doc"], how="left")
if target.endswith(".parquet"):
    rows.sink_parquet(target)
else:
    rows.select("click", pl.exclude("session", "query", "doc", "position", "click")).sink_csv(
        target, separator="\\t", include_header=False
    )
"""
_WRITE_FEATURES = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from training_files import write_features
write_features(Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
"""


def write_features(log: Path, path: Path, n_features: int) -> None:
    """Write features of every pair of a log, in no order."""
    pairs = pl.scan_parquet(log).select("query", "doc").unique().collect(engine="streaming")
    rng = np.random.default_rng(SEED)
    columns = [pl.Series(f"f{k}", rng.random(pairs.height, dtype=np.float32)) for k in range(n_features)]
    pairs.with_columns(columns).write_parquet(path)


def stages_of(log: Path, features: Path) -> list[Stage]:
    """Every stage; each posbias stage with the plain work that it is compared with."""
    fit = log.with_name("fit")

    def plain(name: str, file: str) -> Stage:
        return Stage(name, ("-c", _PLAIN, str(log), str(features), str(log.with_name(file))), bare=name)

    def weigh(layout: str, form: str) -> Stage:
        temp = log.with_name("temp")
        options = ("--propensities", str(fit), "--layout", layout, "--format", form, "--features", str(features))
        where = ("-o", str(log.with_name("weighted")), "--force", "--memory", MEMORY, "--temp-dir", str(temp))
        bare = _PLAIN_PARQUET if form == "parquet" else _PLAIN_TSV
        return Stage(
            f"weight --layout {layout} --format {form}",
            (*POSBIAS, "weight", str(log), *options, *where),
            temp=temp,
            bare=bare,
        )

    return [
        plain(_PLAIN_TSV, "plain.tsv"),
        plain(_PLAIN_PARQUET, "plain.parquet"),
        *(weigh(layout, form) for layout, form in LAYOUTS),
    ]


def table_of(title: str, runs_of: dict[Stage, Measured]) -> Table:
    """Print medians, ratios of the same round, and peaks."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column("stage")
    for heading in ("seconds", "x plain", "CPU s", "peak MiB", "temp MiB"):
        table.add_column(heading, justify="right", no_wrap=True)
    by_name = {stage.name: runs for stage, runs in runs_of.items()}
    for stage, runs in runs_of.items():
        table.add_row(
            stage.name,
            f"{runs.median_seconds():.1f}",
            f"{runs.times(by_name[stage.bare]):.2f}",
            f"{runs.median_cpu_seconds():.1f}",
            f"{max(runs.mebibytes):,.0f}",
            f"{max(runs.disk_mebibytes):,.0f}" if runs.disk_mebibytes else "",
        )
    return table


def main() -> None:
    """Parse the command line, measure, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--impressions", type=int, default=10_000_000)
    parser.add_argument("--features", type=int, default=40)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--directory", type=Path, help="where the log and all files are made")
    options = parser.parse_args()
    with simulated_log(options.impressions, directory=options.directory) as log:
        features = log.with_name("features.parquet")
        here = str(Path(__file__).parent)
        Measured().add(("-c", _WRITE_FEATURES, here, str(log), str(features), str(options.features)))
        fit = ("fit", str(log), "-o", str(log.with_name("fit")), "--no-compare", "--memory", MEMORY)
        Measured().add((*POSBIAS, *fit))
        stages = stages_of(log, features)
        measured = measure(stages, options.runs, f"{options.impressions:,} impressions")
        pairs = pl.scan_parquet(features).select(pl.len()).collect().item()
        title = (
            f"{options.impressions:,} impressions, {pairs:,} pairs with {options.features} features, --memory {MEMORY}"
        )
        table_console().print(table_of(title, dict(zip(stages, measured, strict=True))))


if __name__ == "__main__":
    main()
