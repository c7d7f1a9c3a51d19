"""What replicate weights are worth: their spread beside the actual error that theta's own errors cause.

Two numbers that people take from weighted clicks, on a log with N impressions:

    click rate      sum over clicks of w / N, which estimates the mean attractiveness of what was shown
    value           sum over clicks of w b / N with the discount b = 1 / log2(2 + number of the document), which
                    estimates what another ranking of the same documents is worth (inverse propensity scoring)

Each by the estimated propensities, by the true ones, and by 40 and 2,000 replicates. Replicates speak of theta's errors
alone: the interval around the first, 1.96 standard deviations of the replicates wide on the log scale, should hold the
second in 95 % of the logs. Beside them "in all": the truth, by attractiveness itself, in the interval made of the
replicates' variance and of the clicks' own, sum of (w b)^2 over the clicks, added up. Where queries differ in theta
(shocks), so do their sums beyond chance, and there is no such column.

Nothing was chosen; the logs have the seeds from 0 on.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from recovery_coverage import DESIGNS, Design
from recovery_logs import Floats, in_parallel, statistics_of, truth_of
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from posbias.core.counts.plan import StatisticsPlan
from posbias.core.estimators import EstimationOptions
from posbias.core.fit.fit import fit_statistics
from posbias.core.fit.fitted_theta import covariance_of
from posbias.core.fit.propensities import PROPENSITY, STD_ERROR
from posbias.core.models import get_model
from posbias.core.simulation.simulate import SimulationOptions, simulate
from posbias.core.theta.joint import EMOptions
from posbias.core.training.replicates import draw_propensities, relative_covariance

DEMAND = (0.92, 0.98)
"""Range that coverage must lie in."""

FEW, MANY = 40, 2_000
"""Replicates: as the documents advise, and so many that their number no longer matters."""

_NORMAL = 1.959963984540054
_PAGE = SimulationOptions(docs_per_query=15, attractiveness_scale=0.5)
_CHOSEN = tuple(design for design in DESIGNS if design.options.model == "pbm")
LOGS = (
    Design("8 even, shocks", replace(_PAGE, n_queries=8, n_sessions=8_000, query_exponent=0.0, theta_shock=0.3)),
    *_CHOSEN,
    Design("2,000 Zipf, 3,000 pages", replace(_PAGE, n_queries=2_000, n_sessions=3_000, attractiveness_scale=1.0)),
)
NUMBERS = ("click rate", "value")


@dataclass(frozen=True)
class Measured:
    """What one log says of one number, on the log scale.

    Attributes:
        by_theta: estimate - what the true propensities give.
        in_all: estimate - truth.
        few: standard deviation over few replicates.
        many: over many.
        clicks: standard error by the clicks' own chance.
    """

    by_theta: float
    in_all: float
    few: float
    many: float
    clicks: float


def measure_replicates(task: tuple[Design, int]) -> list[Measured]:
    """Draw one log, and look at both numbers."""
    design, seed = task
    simulation = simulate(replace(design.options, seed=seed))
    statistics = statistics_of(simulation.log, StatisticsPlan(get_model("pbm")))
    asked = EstimationOptions(reference=(1,), attractiveness_prior=EMOptions().attractiveness_prior)
    fit = fit_statistics(statistics, "conditional", asked, compare=False)
    cells, theta = statistics.cells, fit.estimate.propensity
    table = fit.propensities.select(*cells.columns, PROPENSITY, STD_ERROR)
    assert fit.theta.covariance is not None
    covariance = relative_covariance(
        table, covariance_of(cells, fit.theta.covariance), table[STD_ERROR].fill_null(np.nan).to_numpy()
    )
    drawn = draw_propensities(theta, covariance, MANY)
    log = simulation.log.join(simulation.attractiveness, on=["query", "doc"], how="left")
    truth = truth_of(statistics, simulation.propensities)
    return [
        _measured(log.with_columns(discount=discount), theta, truth, drawn)
        for discount in (pl.lit(1.0), 1 / (pl.col("doc").cast(pl.Float64) + 2).log(2))
    ]


def _measured(log: pl.DataFrame, theta: Floats, truth: Floats, drawn: Floats) -> Measured:
    discounted = pl.col("discount") * pl.col("click")
    by_position = log.group_by("position").agg(clicks=discounted.sum(), squares=(pl.col("discount") * discounted).sum())
    sums, squares = (by_position.sort("position")[name].to_numpy() for name in ("clicks", "squares"))
    actual = log.select((pl.col("discount") * pl.col("attractiveness")).sum()).item()
    value = float(np.nansum(sums / theta))
    others = np.log(np.nansum(sums / drawn, axis=1))
    return Measured(
        by_theta=float(np.log(value / np.nansum(sums / truth))),
        in_all=float(np.log(value / actual)),
        few=float(others[:FEW].std(ddof=1)),
        many=float(others.std(ddof=1)),
        clicks=float(np.sqrt(np.nansum(squares / theta**2)) / value),
    )


def replicates(console: Console, replications: int) -> None:
    """Draw, fit, and print the table with its notes."""
    tasks = [(design, seed) for design in LOGS for seed in range(replications)]
    results = in_parallel(measure_replicates, tasks, "replicates")
    table = Table(
        title=f"replicate weights, {replications} logs: actual error that theta causes in %, the replicates' spread\n"
        "over it, and how often their interval holds what the true propensities give, in %; the same in all",
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for heading in ("queries", "number"):
        table.add_column(heading)
    for heading in ("error", "spread", f"cover,\n{FEW}", f"cover,\n{MANY:,}", "error\nin all", "spread\n", "cover\n"):
        table.add_column(heading, justify="right")
    for number, design in enumerate(LOGS):
        logs = results[number * replications : (number + 1) * replications]
        for which, name in enumerate(NUMBERS):
            table.add_row(design.name if not which else "", name, *_row([log[which] for log in logs], design))
    console.print(table)
    low, high = (f"{share:.0%}" for share in DEMAND)
    console.print(f"  !: coverage outside of what is asked for, {low} to {high}", highlight=False)


def _row(logs: Sequence[Measured], design: Design) -> list[str]:
    by_theta, in_all, few, many, clicks = (
        np.array([getattr(log, name) for log in logs]) for name in ("by_theta", "in_all", "few", "many", "clicks")
    )
    both = np.hypot(many, clicks)
    cells = [f"{100 * _size(by_theta):.1f}", f"{_size(many) / _size(by_theta):.2f}"]
    cells += [_covered(by_theta, few), _covered(by_theta, many)]
    if design.options.theta_shock:
        return [*cells, "-", "-", "-"]
    return [*cells, f"{100 * _size(in_all):.1f}", f"{_size(both) / _size(in_all):.2f}", _covered(in_all, both)]


def _size(values: Floats) -> float:
    return float(np.sqrt((values**2).mean()))


def _covered(error: Floats, spread: Floats) -> str:
    share = float((np.abs(error) <= _NORMAL * spread).mean())
    return f"{100 * share:.1f}{'' if DEMAND[0] <= share <= DEMAND[1] else '!'}"
