"""`simulate` and `demo`: options of the simulation, and the main commands on a small simulated log."""

import os
import re
import subprocess
import sys
from contextlib import suppress
from dataclasses import fields
from math import prod
from typing import Any

import polars as pl

from posbias.cli.options.groups import WorldOptions
from posbias.core.errors import PosbiasError, UsageError
from posbias.core.models import get_click_model
from posbias.core.simulation.options import CellColumn, SimulationOptions, shared_parameters
from posbias.core.simulation.simulate import simulate
from posbias.io.jobs.tables import Result

_FLAGS = {f.name: f"--{f.name.replace('_', '-')}" for f in fields(SimulationOptions) if "_" in f.name} | {
    "n_sessions": "--sessions",
    "n_queries": "--queries",
    "n_positions": "--positions",
    "attractiveness_shape": "--attractiveness",
    "satisfaction_shape": "--satisfaction",
    "contexts": "--device",
    "readiness": "--readiness",
    "parameters": "--parameters",
    "cell_columns": "--cells",
    "interleave": "--interleave",
    "users": "--users",
}
"""Flags that replace the names of fields in messages of the simulation."""


def simulation_options(world: WorldOptions) -> SimulationOptions:
    """Return the simulation that options describe.

    Raises:
        UsageError: an option cannot be parsed, or is out of range.
    """

    def number(flag: str, text: str) -> float:
        try:
            return float(text)
        except ValueError:
            raise UsageError(f"{flag} {text}: {text.strip()!r} is not a number.") from None

    def numbers(flag: str, text: str) -> tuple[float, ...]:
        return tuple(number(flag, part) for part in text.split(","))

    def one_or_several(flag: str, text: str) -> float | tuple[float, ...]:
        return numbers(flag, text) if "," in text else number(flag, text)

    def shape(flag: str, text: str) -> tuple[float, float]:
        first, separator, second = text.partition(":")
        if not separator:
            raise UsageError(f"{flag} {text}: write A:B, such as 1:2.")
        return number(flag, first), number(flag, second)

    get_click_model(world.model)
    parameters: list[tuple[str, tuple[float, ...]]] = []
    # A configuration file may set --parameters for all models, also for models without parameters.
    for text in world.parameters or () if shared_parameters(world.model) else ():
        name, separator, values = text.partition("=")
        if not (separator and name.strip()):
            raise UsageError(f"--parameters {text}: write NAME=VALUE, such as continuation=.9.")
        parameters.append((name.strip(), numbers("--parameters", values)))
    swaps: list[tuple[int, int]] = []
    for text in world.swap or ():
        match = re.fullmatch(r"(\d{1,9})-(\d{1,9})", text)
        if match is None:
            raise UsageError(f"--swap {text}: write two positions, such as 1-5.")
        swaps.append((int(match[1]), int(match[2])))
    cells = list[CellColumn]()
    for text in world.cells or ():
        name, separator, values = text.partition("=")
        share, colon, factors = values.rpartition(":")
        if not (separator and name.strip() and factors.strip()):
            raise UsageError(f"--cells {text}: write NAME=X,X,... or NAME=SHARE:X,X,..., such as row=1,.6 or ad=.3:.7.")
        shares = numbers("--cells", share) if colon else ()
        cells.append(CellColumn(name.strip(), numbers("--cells", factors), shares))
    interleave = world.interleave
    n_lists = prod(len(column.factors) for column in cells if not column.share)
    same_names = {f.name: getattr(world, f.name) for f in fields(SimulationOptions) if hasattr(world, f.name)}
    options: dict[str, Any] = same_names | {
        "n_sessions": world.sessions,
        "n_queries": world.queries or 1000,
        "docs_per_query": world.docs_per_query or max(20, world.positions * n_lists),
        "n_positions": world.positions,
        "theta": numbers("--theta", world.theta) if world.theta else None,
        "ranker_strength": number("--ranker-strength", world.ranker_strength),
        "attractiveness_shape": shape("--attractiveness", world.attractiveness or "1:2"),
        "contexts": tuple(one_or_several("--device", text) for text in world.device or ()),
        "readiness": numbers("--readiness", world.readiness) if world.readiness else (1.0,),
        "depth": one_or_several("--depth", world.depth) if world.depth else None,
        "swap_share": world.swap_share if world.swap else 0.0,
        "swaps": tuple(swaps),
        "satisfaction_shape": shape("--satisfaction", world.satisfaction or "1:1"),
        "parameters": tuple(parameters),
        "cell_columns": tuple(cells),
        "interleave": tuple(number("--interleave", weight) for weight in interleave.split(":")) if interleave else (),
    }
    try:
        return SimulationOptions(**options)
    except UsageError as error:
        pattern = "|".join(rf"(?<![\w-]){name}\b" for name in _FLAGS)
        raise UsageError(re.sub(pattern, lambda name: _FLAGS[name[0]], str(error))) from error


# --- the demonstration: commands with their own output, each explained by a sentence ---

_THIS_WEEK, _NEXT_WEEK = "this_week.parquet", "next_week.parquet"
_LOG = SimulationOptions(n_sessions=20_000, n_queries=100, docs_per_query=20, n_positions=8, score_weight=0.5, seed=3)
_CANNOT_RUN = 2


def steps() -> list[tuple[str, str]]:
    """Return the arguments of each `posbias` command, with a sentence about its output."""
    from posbias.io.reports.report import check_drawing  # noqa: PLC0415 - `simulate` draws nothing

    report = "show result --plot"
    about = "This is the curve. `posbias report` makes a page with charts; it says what it needs for that."
    with suppress(PosbiasError):
        check_drawing()
        report, about = "report result -o report.html", "report.html shows all of it with charts, offline."
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
        (report, about),
    ]


def demonstrate(result: Result) -> None:
    """Simulate two logs, and run the commands on them in the directory of the result.

    Raises:
        PosbiasError: a command ended without a result.
    """

    def say(text: str) -> None:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    result.headline = "the main commands ran on a simulated log"
    log = simulate(_LOG).log
    is_later = pl.col("session") % 2 == 1
    log.filter(~is_later).write_parquet(result.folder / _THIS_WEEK)
    log.filter(is_later).write_parquet(result.folder / _NEXT_WEEK)
    say(f"{_THIS_WEEK} and {_NEXT_WEEK}: {log.height // 2:,} impressions each, simulated, so that the truth is known.")
    settings = {name: value for name, value in os.environ.items() if not name.startswith("POSBIAS_")}
    for words, sentence in steps():
        say(f"\n$ posbias {words}")
        program = [sys.executable, "-m", "posbias.cli", *words.split()]
        done = subprocess.run(  # noqa: S603 - our own program
            program, cwd=result.folder, env=settings, stderr=subprocess.STDOUT, check=False
        )
        if done.returncode >= _CANNOT_RUN or done.returncode < 0:
            raise PosbiasError(f"posbias {words}: ended with exit code {done.returncode}. What it says stands above.")
        say(f"--> {sentence}")
