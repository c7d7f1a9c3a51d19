"""The standard errors that `posbias check` expects, against the errors that estimates turn out to have.

Part of `recovery.py check`. No constant was chosen on these logs: the seeds are 0 to 49. The ratio is that of root mean
squares, over logs and over all cells but the reference: expected standard error to actual error, of log propensity.
"Half" expects from half of the queries, as `check` does for UBM in a large log, what the whole log will have.
"""

from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from recovery_logs import Floats, in_parallel, silent, statistics_of, truth_of
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from posbias.core.check.outlook import outlook
from posbias.core.counts.plan import StatisticsPlan
from posbias.core.estimators import ConditionalEstimator, EstimationOptions
from posbias.core.models import get_model
from posbias.core.simulation.simulate import SimulationOptions, simulate

MEMORY = 2 << 30

DEMAND = 1.25
"""Factor by which expected and actual errors may differ."""

_BASE = SimulationOptions(docs_per_query=15, n_positions=10, attractiveness_scale=0.5, theta_shock=0.2)
_UBM = replace(_BASE, model="ubm", n_positions=5, docs_per_query=10, n_queries=200, n_sessions=12_000)
DESIGNS = {
    "PBM, 20 queries, even": replace(_BASE, n_queries=20, n_sessions=8_000, query_exponent=0.0),
    "PBM, 200 queries, even": replace(_BASE, n_queries=200, n_sessions=12_000, query_exponent=0.0),
    "PBM, 200 queries, Zipf": replace(_BASE, n_queries=200, n_sessions=12_000),
    "PBM, 20,000 queries, Zipf": replace(_BASE, n_queries=20_000, n_sessions=30_000, query_exponent=0.7),
    "PBM, no shocks": replace(_BASE, n_queries=200, n_sessions=12_000, query_exponent=0.0, theta_shock=0.0),
    "UBM, 200 queries, even": replace(_UBM, query_exponent=0.0),
    "UBM, 20,000 queries, Zipf": replace(_UBM, n_queries=20_000, n_sessions=60_000, query_exponent=0.7),
}


@dataclass(frozen=True)
class Found:
    """Of one log, sums over its cells.

    Attributes:
        cells: how many have all of what follows.
        actual: sum of squared errors of log propensity.
        expected: sum of squared standard errors that are expected.
        from_half: the same from half of the queries.
    """

    cells: int
    actual: float
    expected: float
    from_half: float


def check(console: Console, replications: int) -> None:
    """Compare, and print a table."""
    table = Table(title=f"expected to actual error, {replications} logs each", title_justify="left", box=SIMPLE_HEAD)
    for heading in ("log", "actual\nerror", "expected\nto actual", "from half\nto actual"):
        table.add_column(heading, justify="left" if heading == "log" else "right", no_wrap=True)
    for name, options in DESIGNS.items():
        logs = [replace(options, seed=seed) for seed in range(replications)]
        found = in_parallel(_look, logs, name)
        cells, actual = sum(log.cells for log in found), sum(log.actual for log in found)
        ratios = [
            np.sqrt(sum(sums) / actual) for sums in zip(*((log.expected, log.from_half) for log in found), strict=True)
        ]
        table.add_row(name, f"{np.sqrt(actual / cells):.3f}", *map(_judged, ratios))
    console.print(table)


def _judged(ratio: float) -> str:
    return f"{ratio:.2f}{'' if 1 / DEMAND <= ratio <= DEMAND else ' !'}"


def _look(options: SimulationOptions) -> Found:
    simulation = simulate(options)
    plan = StatisticsPlan(get_model(options.model))
    statistics = statistics_of(simulation.log, plan)
    estimate = ConditionalEstimator().estimate(statistics, statistics.strata(), EstimationOptions(), silent)
    truth = truth_of(statistics, simulation.propensities)
    reference = estimate.linkage.reference_of
    error = np.log(estimate.propensity) - np.log(truth / truth[reference])
    half = statistics_of(simulation.log.filter(pl.col("query").hash(1) % 2 == 0), plan)
    expected = outlook(statistics, MEMORY).cells["std_error"].to_numpy()
    from_half = _like(statistics.cells, outlook(half, MEMORY, half.n_queries / statistics.n_queries).cells)
    known = np.isfinite(error) & np.isfinite(expected) & np.isfinite(from_half) & (expected > 0)
    return Found(int(known.sum()), *(_squares(values[known]) for values in (error, expected, from_half)))


def _like(cells: pl.DataFrame, found: pl.DataFrame) -> Floats:
    """The errors to expect in the order of other cells; nan where there are none."""
    joined = cells.join(found, on=cells.columns, how="left", maintain_order="left")
    return joined["std_error"].cast(pl.Float64).fill_null(np.nan).to_numpy()


def _squares(values: Floats) -> float:
    return float((values**2).sum())
