"""Errors that users, markets or days share: coverage by query, by a column of the log, and two-way.

    python tests/benchmarks/recovery.py clusters [--replications 200]

Each cluster has a theta of its own at each position, off by a factor exp(N(0, sd^2)); the truth is its mean. The rule
for variances below those of one way was chosen on the seeds from 1000 on; the table is of the seeds from 0.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from recovery_logs import Floats, in_parallel, silent, statistics_of
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from posbias.core.arrays.linalg import student_quantile
from posbias.core.counts.plan import StatisticsPlan
from posbias.core.estimators import ConditionalEstimator, EstimationOptions
from posbias.core.models import get_model
from posbias.core.simulation.simulate import SimulationOptions, simulate
from posbias.core.standard_errors.cluster import sum_clusters
from posbias.core.standard_errors.column import TwoWaySums, column_sums

if TYPE_CHECKING:
    from posbias.core.counts.sufficient_statistics import SufficientStatistics

COVERAGE = (0.92, 0.98)
"""Range that the mean coverage over the positions must lie in."""

_PLAN = replace(StatisticsPlan(get_model("pbm")), clusters=("cluster",))
_POSITIONS = 5
_OTHER_SEEDS = 10**6  # what is drawn beside the simulated log


@dataclass(frozen=True)
class Clustered:
    """One kind of log.

    Attributes:
        name: in the table.
        clusters: their number.
        sd: of log theta between clusters, at each position.
        sessions, queries: of the log.
        by_query: sd of log theta between queries, at each position.
        zipf: exponent of the clusters' frequencies.
    """

    name: str
    clusters: int
    sd: float
    sessions: int = 6_000
    queries: int = 300
    by_query: float = 0.0
    zipf: float = 0.0

    def draw(self, seed: int) -> tuple[pl.DataFrame, Floats]:
        """A log, and log theta of the positions from the second on."""
        options = SimulationOptions(
            n_sessions=self.sessions, n_queries=self.queries, docs_per_query=8, n_positions=_POSITIONS, seed=seed
        )
        simulation = simulate(replace(options, query_exponent=0.5, attractiveness_scale=0.5))
        log = simulation.log.join(simulation.attractiveness, on=["query", "doc"], how="left", maintain_order="left")
        rng = np.random.default_rng(seed + _OTHER_SEEDS)
        frequency = np.arange(1, self.clusters + 1.0) ** -self.zipf
        drawn = rng.choice(self.clusters, self.sessions, p=frequency / frequency.sum())
        cluster, query = drawn[log["session"].to_numpy()], log["query"].to_numpy()
        position = log["position"].to_numpy()
        shocks = rng.normal(0, self.sd, (self.clusters, _POSITIONS)), rng.normal(0, self.by_query, (10**4, _POSITIONS))
        for shock in shocks:
            shock[:, 0] = 0
        log_theta = shocks[0][cluster, position - 1] + shocks[1][query, position - 1] - np.log(position)
        click = rng.random(log.height) < np.minimum(np.exp(log_theta) * log["attractiveness"].to_numpy(), 1)
        log = log.with_columns(click=pl.Series(click.astype(np.int8)), cluster=pl.Series(cluster))
        return log, (self.sd**2 + self.by_query**2) / 2 - np.log(np.arange(2, _POSITIONS + 1))


DESIGNS = (
    Clustered("500 users, nothing shared", 500, 0.0),
    Clustered("500 users, 2 impressions a pair", 500, 0.0, sessions=3_000, queries=1_500),
    Clustered("100 users", 100, 0.3),
    Clustered("100 users, Zipf", 100, 0.3, zipf=1.0),
    Clustered("20 markets", 20, 0.3),
    Clustered("8 markets", 8, 0.3),
    Clustered("14 days", 14, 0.3),
    Clustered("100 users, and 30 queries", 100, 0.3, queries=30, by_query=0.3),
)


def measure(task: tuple[Clustered, int]) -> tuple[Floats, Floats, Floats]:
    """Error of log theta, shape (4,), and by each way standard errors and half-widths, shape (3, 4)."""
    design, seed = task
    log, truth = design.draw(seed)
    statistics: SufficientStatistics = statistics_of(log, _PLAN)
    fitted = ConditionalEstimator().estimate(statistics, statistics.strata(), EstimationOptions(), silent).fitted
    if fitted is None:
        raise ValueError("a conditional estimate has a fit")
    by_query = sum_clusters(fitted.fit, fitted.strata)
    by_column = column_sums(statistics, fitted.fit, "none", ("cluster",))
    by_both = column_sums(statistics, fitted.fit, "none", ("query", "cluster"))
    ways = by_query, by_column, TwoWaySums(by_query, by_column, by_both)
    errors = np.stack([np.sqrt(np.diag(way.covariance)) for way in ways])
    widths = errors * np.stack([student_quantile(0.975, way.degrees) for way in ways])
    return fitted.fit.log_theta[1:] - truth, errors, widths


def clusters(console: Console, replications: int) -> None:
    """Print coverage and the standard error over the spread, by each way."""
    tasks = [(design, seed) for design in DESIGNS for seed in range(replications)]
    found = in_parallel(measure, tasks, "clusters")
    title = (
        f"coverage in % over {replications} logs, and standard error over the spread of the estimates "
        f"(!: outside {COVERAGE[0]:.0%} to {COVERAGE[1]:.0%}); before, there was only the first"
    )
    table = Table(title=title, box=SIMPLE_HEAD, title_justify="left", title_style="")
    table.add_column("what shares a theta")
    for heading in ("by query", "", "by column", "", "two-way", ""):
        table.add_column(heading, justify="right")
    for number, design in enumerate(DESIGNS):
        runs = found[number * replications : (number + 1) * replications]
        distance, errors, widths = (np.stack(arrays) for arrays in zip(*runs, strict=True))
        covered = (np.abs(distance)[:, np.newaxis] <= widths).mean(axis=(0, 2))
        ratio = (errors.mean(axis=0) / distance.std(axis=0)).mean(axis=1)
        cells = [
            cell
            for way in range(3)
            for cell in (
                f"{100 * covered[way]:.0f}{'' if COVERAGE[0] <= covered[way] <= COVERAGE[1] else '!'}",
                f"{ratio[way]:.2f}",
            )
        ]
        table.add_row(design.name, *cells)
    console.print(table)
