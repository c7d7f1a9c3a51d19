"""Where the time of `posbias fit` goes on a large log: its stages, in seconds, and how many cores they keep busy.

    python tests/benchmarks/scale_stages.py [--impressions N...] [--models M...] [--ids KIND...] [--threads N...]
                                            [--directory DIR]

The stages are those that a terminal shows as bars. Each fit is a process of its own, on a log of `scale_log.py`, with
1 GiB; one run each. "rest" is what lies outside of all stages: start, loading, tables of propensities.
"""

import argparse
import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path

from processes import MODELS, Model, table_console
from rich.box import SIMPLE_HEAD
from rich.table import Table
from scale_log import IDS, Ids, simulated_log

_TIMED = """
import json, os, sys
from contextlib import contextmanager
begin = os.times()
from posbias.cli.allocators import keep_freed_memory
keep_freed_memory()  # before Polars is loaded, as the command does
found, open_stages = {}, []
from posbias.io import progress

@contextmanager
def stage(self, description, *_, **__):
    before = os.times()
    open_stages.append(description)
    try:
        yield progress._SilentStage()
    finally:
        open_stages.pop()
        after = os.times()
        if not open_stages:
            so_far = found.setdefault(description, [0.0, 0.0])
            so_far[0] += after.elapsed - before.elapsed
            so_far[1] += after.user + after.system - before.user - before.system

progress.SilentProgress.stage = stage
from posbias.cli.main import main
try:
    main()
except SystemExit as end:
    if end.code not in (0, 1):
        raise
after = os.times()
total = [after.elapsed - begin.elapsed, after.user + after.system]
rest = [all_of_it - sum(of_stage[which] for of_stage in found.values()) for which, all_of_it in enumerate(total)]
print(json.dumps(found | {"rest": rest, "in all": total}))
"""


def stages_of(log: Path, model: Model, threads: int) -> dict[str, tuple[float, float]]:
    """Seconds and processor seconds by stage."""
    words = ("fit", str(log), "--model", model, "--no-compare", "--memory", "1GiB", "--threads", str(threads))
    output = ("--quiet", "--force", "-o", str(log.with_name("fit")))
    settings = os.environ | {"OPENBLAS_NUM_THREADS": "1", "POLARS_MAX_THREADS": str(threads)}  # as --threads does
    done = subprocess.run(
        (sys.executable, "-c", _TIMED, *words, *output), capture_output=True, text=True, check=True, env=settings
    )
    return json.loads(done.stdout.splitlines()[-1])


def table_of(title: str, stages: dict[str, tuple[float, float]]) -> Table:
    """The stages of one fit."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, min_width=70)
    table.add_column("stage")
    for heading in ("seconds", "CPU s", "cores busy"):
        table.add_column(heading, justify="right")
    for name, (seconds, cpu_seconds) in stages.items():
        cores = f"{cpu_seconds / seconds:.1f}" if seconds > 0 else ""
        table.add_row(name, f"{seconds:.1f}", f"{cpu_seconds:.1f}", cores)
    return table


def main() -> None:
    """Parse the command line, measure, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--impressions", type=int, nargs="+", default=(20_000_000,), help="of the logs")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--ids", nargs="+", choices=IDS, default=IDS)
    parser.add_argument("--threads", type=int, nargs="+", default=(2,))
    parser.add_argument("--directory", type=Path, help="where the logs and results go; a temporary one by default")
    options = parser.parse_args()
    console = table_console()
    sizes: list[int] = options.impressions
    models: list[Model] = options.models
    kinds: list[Ids] = options.ids
    for n_impressions, model, ids in product(sizes, models, kinds):
        with simulated_log(n_impressions, model, options.directory, ids) as log:
            for threads in options.threads:
                title = f"{n_impressions:,} impressions of a {model.upper()}, ids: {ids}, threads: {threads}"
                console.print(table_of(title, stages_of(log, model, threads)))


if __name__ == "__main__":
    main()
