"""What posbias costs on large logs, next to the bare work and to other tools.

    python tests/benchmarks/scale.py [commands|growth|cells|peers|spark|all] [--impressions N...] [--runs 3]
                                     [--models M...] [--ids KIND...] [--threads N...] [--fits] [--home SHARE]
                                     [--billion] [--spark]
                                     [--peers DIR] [--pyclick DIR] [--directory DIR]

commands  collect, fit, weight and run with 1 GiB, next to DuckDB's group-by and Polars' copy of the same file, for
          each model, kind of ids (integer, text, long) and number of threads; --fits leaves out check and weight;
          --home gives one query a share of the log, as a home page has
growth    `fit --no-compare` with 2 GiB at 1M to 100M impressions, with --billion also at 1,000M: cost, and how the
          numbers of pairs, statistics rows and signatures grow with the log
cells     `fit` with 100 to 5,000 positions of lists that users scroll through, 1M impressions each
peers     other implementations of PBM and UBM on the same logs: cost, and the error of theta

--spark adds the part `spark`, `fit --engine spark` next to the local engine. DuckDB is taken from this environment
(pip install duckdb; 2.0.0 was used); the peers are described in `scale_peers.py`. The logs are simulated
(`scale_log.py`), the same ones every time, and deleted at once; --directory says where they and the results go. A
billion impressions take about 4.1 GB for the log, and some times that for the rest. Every stage is a process of its
own, interpreter start included.
"""

import argparse
from pathlib import Path

from processes import MODELS, table_console
from scale_commands import SIZES as LARGE
from scale_commands import Kind, commands
from scale_growth import BILLION, cells, growth
from scale_growth import SIZES as GROWING
from scale_log import IDS
from scale_peers import SIZES as MODERATE
from scale_peers import peers
from scale_spark import SIZES as MIDDLING
from scale_spark import spark

PARTS = ("commands", "growth", "cells", "peers")


def main() -> None:
    """Parse the command line, measure, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=(*PARTS, "spark", "all"), default="all")
    parser.add_argument("--impressions", type=int, nargs="+", help="of the logs, instead of each part's own sizes")
    parser.add_argument("--runs", type=int, default=3, help="of each process that is timed")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS, help="of the part commands")
    parser.add_argument("--ids", nargs="+", choices=IDS, default=IDS, help="likewise")
    parser.add_argument("--threads", type=int, nargs="+", default=(2,), help="likewise")
    parser.add_argument("--fits", action="store_true", help="likewise: only what leads to propensities")
    parser.add_argument("--home", type=float, default=0.0, help="likewise: share of the one query of a home page")
    parser.add_argument("--billion", action="store_true", help="growth up to a billion impressions")
    parser.add_argument("--spark", action="store_true", help="also the Spark engine, next to Polars")
    parser.add_argument("--peers", type=Path, help="where the peers' environment is, or is installed")
    parser.add_argument("--pyclick", type=Path, help="a checkout of PyClick")
    parser.add_argument("--directory", type=Path, help="where the logs and results go; a temporary one by default")
    options = parser.parse_args()
    console, sizes, directory = table_console(), options.impressions, options.directory
    wanted = PARTS if options.part == "all" else (options.part,)
    if "commands" in wanted:
        kinds = (
            Kind(n_impressions, model, ids, options.home)
            for n_impressions in sizes or LARGE
            for model in options.models
            for ids in options.ids
        )
        commands(console, kinds, options.threads, options.runs, directory, fits_only=options.fits)
    if "growth" in wanted:
        growing = (*GROWING, BILLION) if options.billion else GROWING
        growth(console, sizes or growing, options.runs, directory)
    if "cells" in wanted:
        for n_impressions in sizes or GROWING[:1]:
            cells(console, n_impressions, options.runs, directory)
    if "peers" in wanted:
        peers(console, sizes or MODERATE, directory, options.peers, options.pyclick)
    if "spark" in wanted or options.spark:
        spark(console, sizes or MIDDLING, options.runs, directory)


if __name__ == "__main__":
    main()
