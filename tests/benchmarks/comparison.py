"""How often `compare` finds a change where there is none, and how often where there is one.

    python tests/benchmarks/comparison.py --runs 400

Logs of the position-based model, one seed each, are split into two sides: days apart with the same queries, with other
queries, or one side within the other (a week and its last two days). Queries differ in theta (`--theta-shock`), so that
what two sides share is more than documents. Both ways to compare are run on each: the two fits, whose errors are taken
as independent, and the two statistics, whose errors are known together. In the last column, position 3 of the second
side is examined a fifth less often.
"""

import argparse
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context

import numpy as np
import polars as pl
from recovery_logs import statistics_of
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from posbias.core.comparison.curves import CURVE, FittedCurve, change, curves_of, curves_of_fits, from_others
from posbias.core.counts.plan import StatisticsPlan
from posbias.core.estimators.estimate import EstimationOptions
from posbias.core.fit.fit import fit_statistics
from posbias.core.models import get_model
from posbias.core.simulation.simulate import SimulationOptions, simulate

LEVEL = 0.05
PLAN = StatisticsPlan(get_model("pbm"))
DRAWN = SimulationOptions(
    n_sessions=8000,
    n_queries=100,
    docs_per_query=10,
    n_positions=5,
    query_exponent=0.5,
    days=7,
    theta_shock=0.3,
)
FALLEN = 0.8


@dataclass(frozen=True)
class Sides:
    """How a log is split: for each side, its rows."""

    name: str
    split: Callable[[pl.DataFrame], list[pl.DataFrame]]


def _day(log: pl.DataFrame) -> pl.Series:
    first = log["timestamp"].min()
    return ((log["timestamp"] - first).dt.total_hours() // 24).alias("day")


def _halves(log: pl.DataFrame) -> list[pl.DataFrame]:
    early = _day(log) < 3
    return [log.filter(early), log.filter(~early)]


def _nested(log: pl.DataFrame) -> list[pl.DataFrame]:
    return [log, log.filter(_day(log) >= 5)]


def _other_queries(log: pl.DataFrame) -> list[pl.DataFrame]:
    even = log["query"] % 2 == 0
    return [log.filter(even), log.filter(~even)]


SIDES = (
    Sides("days apart, same queries", _halves),
    Sides("other queries", _other_queries),
    Sides("one within the other", _nested),
)


OPTIONS = EstimationOptions(shrink="none", period="none")


def _as_fitted(log: pl.DataFrame) -> FittedCurve:
    fit = fit_statistics(statistics_of(log, PLAN), "conditional", OPTIONS, compare=False)
    estimate = fit.estimate
    effective = [
        None if not np.isfinite(number) else number for number in estimate.intervals.effective_clusters.tolist()
    ]
    return FittedCurve(
        fit.propensities, fit.theta.covariance, fit.theta_errors.query_spread, effective, estimate.n_clusters
    )


def p_of_fits(sides: list[pl.DataFrame]) -> float:
    """The p-value from two fits."""
    fits = [_as_fitted(side) for side in sides]
    cells = pl.concat([fit.table.select("position") for fit in fits]).unique().sort("position")
    curves = curves_of_fits(fits, cells, ())
    return change(curves.relative_to(curves.references())).test.p_value


def p_of_statistics(sides: list[pl.DataFrame], *, days: bool = False) -> float:
    """The p-value from one fit of all sides."""
    log = pl.concat([side.with_columns(pl.lit(number).alias(CURVE)) for number, side in enumerate(sides)])
    fit = fit_statistics(statistics_of(log, replace(PLAN, context=(CURVE,))), "conditional", OPTIONS, compare=False)
    cells = fit.statistics.cells.select("position").unique().sort("position")
    curves = curves_of(fit, cells, pl.Series(range(len(sides)), dtype=pl.Int32))
    return (from_others if days else change)(curves.relative_to(curves.references())).test.p_value


def _fallen(side: pl.DataFrame, seed: int) -> pl.DataFrame:
    kept = np.random.default_rng(seed).random(side.height) < FALLEN
    lost = (pl.col("position") == 3) & ~pl.Series(kept)
    return side.with_columns(click=pl.when(lost).then(0).otherwise(pl.col("click")).cast(pl.Int8))


def run(seed: int, sides: Sides, *, changed: bool) -> tuple[float, float]:
    """Both p-values of one log."""
    log = simulate(replace(DRAWN, seed=seed)).log
    first, second = sides.split(log)
    if changed:
        second = _fallen(second, seed)
    return p_of_fits([first, second]), p_of_statistics([first, second])


def run_days(seed: int, *, changed: bool) -> float:
    """The p-value of the days of one log."""
    log = simulate(replace(DRAWN, seed=seed)).log
    days = log.with_columns(_day(log)).partition_by("day", maintain_order=True)
    if changed:
        days[-1] = _fallen(days[-1], seed)
    return p_of_statistics([day.drop("day") for day in days], days=True)


def main() -> None:
    """Print how often a change is found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    table = Table(
        box=SIMPLE_HEAD, pad_edge=False, title=f"share of {asked.runs} logs in which a change is found at 5 %"
    )
    for heading in ("sides", "compared", "no change", "change of a fifth at position 3"):
        table.add_column(heading)
    with ProcessPoolExecutor(asked.jobs, get_context("spawn")) as pool:
        for sides in SIDES:
            found = [
                np.array(list(pool.map(partial(run, sides=sides, changed=changed), range(asked.runs))))
                for changed in (False, True)
            ]
            for number, how in enumerate(("fits", "statistics")):
                table.add_row(sides.name, how, *(f"{(p[:, number] < LEVEL).mean():.1%}" for p in found))
        days = [
            np.array(list(pool.map(partial(run_days, changed=changed), range(asked.runs)))) for changed in (False, True)
        ]
        table.add_row("7 days, same queries", "--by day", *(f"{(p < LEVEL).mean():.1%}" for p in days))
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
