"""The demonstration: commands on a small simulated log, each with its own output and one sentence of what it says."""

import os
import subprocess
import sys
from contextlib import suppress

import polars as pl

from posbias.core.errors import PosbiasError
from posbias.core.simulation.simulate import SimulationOptions, simulate
from posbias.io.jobs.tables import Result
from posbias.io.reports.report import check_drawing

_THIS_WEEK, _NEXT_WEEK = "this_week.parquet", "next_week.parquet"
_LOG = SimulationOptions(n_sessions=20_000, n_queries=100, docs_per_query=20, n_positions=8, score_weight=0.5, seed=3)
_CANNOT_RUN = 2


def steps() -> list[tuple[str, str]]:
    """Return the arguments of `posbias`, with what its output says."""
    with_charts = False
    with suppress(PosbiasError):
        check_drawing("a report")
        with_charts = True
    report = "report result -o report.html" if with_charts else "show result --plot"
    return [
        (
            f"check {_THIS_WEEK}",
            "This log can be read as it is; its documents change places, which tells positions apart.",
        ),
        (
            f"run {_THIS_WEEK} -o result",
            "Half as many users look at position 2 as at position 1, and clicks now weigh it.",
        ),
        (
            f"train {_THIS_WEEK} --learner factors --propensities result -o ranker",
            "A ranker was learnt from the clicks.",
        ),
        (
            f"predict {_NEXT_WEEK} --propensities result --scores ranker/scores.parquet -o predicted",
            "That ranker would get so many more clicks than the log's own: the A/B test before it is run.",
        ),
        (
            report,
            "report.html shows all of it with charts, offline."
            if with_charts
            else "This is the curve. `posbias report` makes a page with charts; it says what it needs for that.",
        ),
    ]


def demonstrate(result: Result) -> None:
    """Write a log, and run the commands on it, in the directory of the result.

    Raises:
        PosbiasError: a command failed.
    """
    result.headline = "the main commands ran on a simulated log"
    log = simulate(_LOG).log
    is_later = pl.col("session") % 2 == 1
    log.filter(~is_later).write_parquet(result.folder / _THIS_WEEK)
    log.filter(is_later).write_parquet(result.folder / _NEXT_WEEK)
    _say(f"{_THIS_WEEK} and {_NEXT_WEEK}: {log.height // 2:,} impressions each, simulated, so that the truth is known.")
    settings = {name: value for name, value in os.environ.items() if not name.startswith("POSBIAS_")}
    for words, sentence in steps():
        _say(f"\n$ posbias {words}")
        program = [sys.executable, "-m", "posbias.cli", *words.split()]
        done = subprocess.run(  # noqa: S603 - our own program
            program, cwd=result.folder, env=settings, stderr=subprocess.STDOUT, check=False
        )
        if done.returncode >= _CANNOT_RUN or done.returncode < 0:
            raise PosbiasError(f"posbias {words}: ended with exit code {done.returncode}. What it says stands above.")
        _say(f"--> {sentence}")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
