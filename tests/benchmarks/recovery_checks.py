"""What logs say against their own numbers: size and power of the checks, and what makes joint EM biased.

Part of `recovery.py checks`. The constants of the checks (levels, the correlation from which rows are refused) were
chosen on the seeds from 1000 on; what is printed is from the seeds 0 to 199.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import polars as pl
from recovery_logs import in_parallel, statistics_of
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from posbias.core.counts.clicks_above import count_pages
from posbias.core.counts.plan import StatisticsPlan
from posbias.core.estimators import EstimationOptions
from posbias.core.estimators.placement_test import placement_tests
from posbias.core.fit.fit import BesideCounts, fit_statistics
from posbias.core.fit.joint_causes import NO_PRIOR
from posbias.core.fit.model_tests import CLICKS_ABOVE
from posbias.core.models import get_model
from posbias.core.randomization import RandomizedRows
from posbias.core.schema import RANDOMIZED
from posbias.core.simulation.simulate import SimulationOptions, simulate
from posbias.core.theta.joint import EMOptions, fit_joint

Marked = Literal["pages", "swap", "moved arm", "other arm", "not shuffled"]

HONEST: tuple[Marked, ...] = ("pages", "swap")
SIZE_DEMAND = (0.02, 0.07)
SWAP = RandomizedRows("arm", "swap", (1, 5))
PAGES = RandomizedRows("policy", "random")
_EXPERIMENT = 0.2
_LEVEL = 0.05


@dataclass(frozen=True)
class Placed:
    """One kind of log with randomised rows, and which rows are marked as such."""

    name: str
    options: SimulationOptions
    marked: Marked


_BASE = SimulationOptions(docs_per_query=15)
_LOGS = {
    "20 even": replace(_BASE, n_queries=20, n_sessions=8_000, query_exponent=0.0),
    "200 Zipf": replace(_BASE, n_queries=200, n_sessions=12_000),
    "200, one order": replace(_BASE, n_queries=200, n_sessions=12_000, ranker_strength=np.inf),
    "20,000 Zipf": replace(_BASE, n_queries=20_000, n_sessions=30_000),
}
PLACED = tuple(
    Placed(name, options, marked)
    for name, options in _LOGS.items()
    for marked in (*HONEST, "moved arm", "other arm", "not shuffled")
)


def marked_rows(design: Placed, seed: int) -> tuple[pl.DataFrame, RandomizedRows]:
    """A log with its marks, and what they are called."""
    options = replace(design.options, seed=seed)
    if design.marked == "pages":
        log = simulate(replace(options, randomized_share=_EXPERIMENT)).log
        return log.with_columns((pl.col("policy") == "random").cast(pl.UInt8).alias(RANDOMIZED)), PAGES
    log, rng = simulate(options).log, np.random.default_rng(seed)
    sessions = log["session"].unique().sort()
    lots = pl.DataFrame({"session": sessions, "lot": rng.random(len(sessions)), "coin": rng.random(len(sessions))})
    log, moved, takes_part = log.join(lots, on="session"), pl.col("coin") < 1 / 2, pl.col("lot") < _EXPERIMENT
    if design.marked == "not shuffled":
        return log.with_columns(takes_part.cast(pl.UInt8).alias(RANDOMIZED)), PAGES
    position = pl.col("position")
    shown = pl.when(takes_part & moved).then(position.replace({1: 5, 5: 1})).otherwise(position)
    of_arm = {"swap": pl.lit(value=True), "moved arm": moved, "other arm": ~moved}[design.marked]
    marks = (takes_part & of_arm & position.is_in([1, 5])).cast(pl.UInt8).alias(RANDOMIZED)
    return log.with_columns(shown.alias("position"), marks), SWAP


def measure_placed(task: tuple[Placed, int]) -> tuple[float, bool]:
    """Draw one log: the p-value of its randomised rows, and whether they are refused."""
    rows, marked = marked_rows(*task)
    plan = StatisticsPlan(get_model("pbm"), randomized=(marked,))
    test = placement_tests(statistics_of(rows, plan))[0]
    return test.p_value, test.refused


@dataclass(frozen=True)
class Pages:
    """One kind of log, whole or with the first click of each page alone."""

    name: str
    options: SimulationOptions
    first_only: bool


_EXAMINED = SimulationOptions(theta=(1.0,) * 10, attractiveness_scale=0.3, n_sessions=6_000)
PAGES_OF = tuple(
    Pages(name, options, first_only)
    for name, options in {
        "PBM": SimulationOptions(n_sessions=6_000),
        "PBM, few clicks": SimulationOptions(n_sessions=6_000, attractiveness_scale=0.1),
        "UBM": SimulationOptions(n_sessions=6_000, model="ubm"),
        "everything seen": _EXAMINED,
    }.items()
    for first_only in (False, True)
)


def measure_pages(task: tuple[Pages, int]) -> bool:
    """Draw one log: whether the model is doubted because of what is clicked below clicks."""
    design, seed = task
    log = simulate(replace(design.options, seed=seed)).log
    if design.first_only:
        above = pl.col("click").cum_sum().over("session", order_by="position") - pl.col("click")
        log = log.with_columns(click=pl.when(above > 0).then(0).otherwise("click").cast(pl.Int8))
    plan = StatisticsPlan(get_model("pbm"))
    beside = BesideCounts(pages=lambda: count_pages(log, plan))
    fit = fit_statistics(statistics_of(log, plan), "conditional", EstimationOptions(), compare=False, beside=beside)
    return fit.model_tests is not None and CLICKS_ABOVE in fit.model_tests.doubts


_PAIRS = SimulationOptions(query_exponent=0.0, attractiveness_scale=0.3)
JOINT_LOGS = {
    "70 impressions per pair": replace(_PAIRS, n_sessions=14_000, n_queries=100),
    "8 impressions per pair": replace(_PAIRS, n_sessions=16_000, n_queries=1_000),
    "1.5 impressions per pair": replace(_PAIRS, n_sessions=30_000, n_queries=10_000),
}


def measure_joint(task: tuple[SimulationOptions, int]) -> tuple[float, ...]:
    """Draw one log: mean error of the conditional estimate, and of joint EM with 0.5:2, the log's prior, and none."""
    options, seed = task
    simulation = simulate(replace(options, seed=seed))
    statistics = statistics_of(simulation.log, StatisticsPlan(get_model("pbm")))
    truth = simulation.propensities["propensity"].to_numpy()
    fit = fit_statistics(statistics, "conditional", EstimationOptions())
    none = fit_joint(statistics.pair_signatures, EMOptions(NO_PRIOR, NO_PRIOR, tolerance=1e-6)).examination
    estimates = [fit.estimate.propensity, np.full(len(truth), np.nan), none / none[0]]
    if fit.joint is not None:
        estimates[1] = fit.joint.propensity
    if fit.causes is not None:
        estimates.insert(2, fit.estimate.propensity * np.exp(fit.causes.with_estimated))
    else:
        estimates.insert(2, np.full(len(truth), np.nan))
    return tuple(float(np.abs(estimate / truth - 1)[1:].mean()) for estimate in estimates)


def checks(console: Console, replications: int) -> None:
    """Draw, check, and print the tables."""
    tasks = [(design, seed) for design in PLACED for seed in range(replications)]
    console.print(_placed_table(in_parallel(measure_placed, tasks, "placements"), replications))
    of_pages = [(design, seed) for design in PAGES_OF for seed in range(replications)]
    console.print(_pages_table(in_parallel(measure_pages, of_pages, "pages"), replications))
    seeds = min(replications, 20)
    of_joint = [(options, seed) for options in JOINT_LOGS.values() for seed in range(seeds)]
    console.print(_joint_table(in_parallel(measure_joint, of_joint, "joint EM"), seeds))


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    return table


def _placed_table(found: Sequence[tuple[float, bool]], replications: int) -> Table:
    title = (
        f"randomised rows, {replications} logs a row: share in % with p < .05, and refused; before, none was refused\n"
        f"(!: a size outside of {SIZE_DEMAND[0]:.0%} to {SIZE_DEMAND[1]:.0%})"
    )
    table = _table(title, "queries", "marked", "p < .05", "refused")
    for number, design in enumerate(PLACED):
        p_values, refused = zip(*found[number * replications : (number + 1) * replications], strict=True)
        share = float(np.mean(np.array(p_values) < _LEVEL))
        missed = design.marked in HONEST and not SIZE_DEMAND[0] <= share <= SIZE_DEMAND[1]
        text = f"{100 * share:.1f}" + ("!" if missed else "")
        table.add_row(design.name, design.marked, text, f"{100 * np.mean(refused):.1f}")
    return table


def _pages_table(found: Sequence[bool], replications: int) -> Table:
    title = f"logs that are doubted for what is clicked below a click, in % of {replications}; before, none was"
    table = _table(title, "log", "as it is", "first clicks alone")
    shares = [
        f"{100 * np.mean(found[first : first + replications]):.1f}" for first in range(0, len(found), replications)
    ]
    for design, whole, first_only in zip(PAGES_OF[::2], shares[::2], shares[1::2], strict=True):
        table.add_row(design.name, whole, first_only)
    return table


def _joint_table(found: Sequence[tuple[float, ...]], seeds: int) -> Table:
    title = f"mean relative error of theta in % over {seeds} logs: joint EM by its prior"
    table = _table(title, "log", "conditional", "EM, 0.5:2", "EM, prior of the log", "EM, no prior")
    for number, name in enumerate(JOINT_LOGS):
        means = np.nanmean(np.array(found[number * seeds : (number + 1) * seeds]), axis=0)
        table.add_row(name, *(f"{100 * mean:.1f}" for mean in means))
    return table
