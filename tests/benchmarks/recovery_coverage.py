"""Coverage of the 95 % intervals, per kind of log, estimator and kind of error."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from recovery_logs import Floats, attempt, heading, in_parallel, statistics_of, truth_of, with_random_pages
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from posbias.core.counts.plan import StatisticsPlan
from posbias.core.errors import IdentifiabilityError
from posbias.core.estimators import EstimationOptions, estimator_names
from posbias.core.fit.fit import Fit
from posbias.core.models import get_model
from posbias.core.simulation.simulate import SimulationOptions, simulate

MEAN_DEMAND = (0.92, 0.98)
"""Range that the mean coverage over the cells must lie in."""
CELL_DEMAND = (0.89, 0.995)
"""Range that the coverage of each cell must lie in."""
BOOTSTRAP_REPLICATES = 199
"""Few, but the ends of the interval are whole order statistics, the 5th and the 195th."""

_KINDS = {"sandwich": EstimationOptions(), "bootstrap": EstimationOptions(bootstrap=BOOTSTRAP_REPLICATES)}
_SESSIONS = {20: 8_000, 200: 12_000, 20_000: 30_000}
_SHOCK = 0.3
_NAME_WIDTH = 20

# Shocks must not meet the cap at P(click) = 1, and a fifth of the pages is shuffled, for `randomized`.
_BASE = SimulationOptions(docs_per_query=15, attractiveness_scale=0.5, randomized_share=0.2)
_UBM = SimulationOptions(
    model="ubm", docs_per_query=10, n_positions=5, n_queries=200, n_sessions=12_000, query_exponent=0.0
)


@dataclass(frozen=True)
class Design:
    """One kind of log, drawn anew for every replication."""

    name: str
    options: SimulationOptions


DESIGNS = (
    *(
        Design(
            f"{n_queries:,} {frequency}{shocked}",
            replace(_BASE, n_queries=n_queries, n_sessions=n_sessions, query_exponent=exponent, theta_shock=shock),
        )
        for (n_queries, n_sessions), (frequency, exponent), (shocked, shock) in product(
            _SESSIONS.items(), (("even", 0.0), ("Zipf", 1.0)), (("", 0.0), (", shocks", _SHOCK))
        )
    ),
    Design("UBM, 200 even", _UBM),
    Design("UBM, 20,000 Zipf", replace(_UBM, n_queries=20_000, n_sessions=60_000, query_exponent=1.0)),
)


@dataclass(frozen=True)
class Intervals:
    """The intervals of one estimate, of each cell but the reference; nan where there is none.

    Attributes:
        covered: 1 where the interval contains the truth, 0 where not.
        log_width: log of upper end / lower end.
    """

    covered: Floats
    log_width: Floats


Measured = Mapping[tuple[str, str], Intervals]


def measure_coverage(task: tuple[Design, int]) -> Measured:
    """Draw one log and look at all intervals, by estimator and kind of error."""
    design, seed = task
    simulation = simulate(replace(design.options, seed=seed))
    log, randomized = with_random_pages(simulation.log)
    statistics = statistics_of(log, StatisticsPlan(get_model(design.options.model), randomized=randomized))
    truth = truth_of(statistics, simulation.propensities)
    found = {
        (name, kind): attempt(name, statistics, replace(options, reference=(1,)))
        for name, (kind, options) in product(estimator_names(), _KINDS.items())
    }
    return {key: intervals(fit, truth) for key, fit in found.items() if fit is not None}


def intervals(fit: Fit | IdentifiabilityError, truth: Floats) -> Intervals:
    """The intervals beside the truth; an upper limit alone is none."""
    if isinstance(fit, IdentifiabilityError):
        nothing = np.full(len(truth) - 1, np.nan)
        return Intervals(nothing, nothing)
    low, high = fit.estimate.intervals.low[1:], fit.estimate.intervals.high[1:]
    covered = np.where(np.isnan(low + high), np.nan, (low <= truth[1:]) & (truth[1:] <= high))
    return Intervals(covered, np.log(high / low))


def coverage(console: Console, replications: int) -> None:
    """Draw, fit, and print the table with its notes."""
    tasks = [(design, seed) for seed in range(replications) for design in DESIGNS]
    results = in_parallel(measure_coverage, tasks, "coverage")
    rows = {design.name: results[number :: len(DESIGNS)] for number, design in enumerate(DESIGNS)}
    console.print(_table(rows, replications))
    for line in _notes(rows):
        console.print(f"  {line}", highlight=False)


def _table(rows: Mapping[str, Sequence[Measured]], replications: int) -> Table:
    columns = _columns(rows)
    title = f"coverage of the 95 % interval in %, over {replications} logs: mean over the cells, median log width"
    table = Table(
        title=f"{title};\nbelow, the lowest and the highest cell",
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("queries", min_width=_NAME_WIDTH)
    for name, kind in columns:
        table.add_column(f"{heading(name)}\n{kind}", justify="right", no_wrap=True, vertical="bottom")
    for design, logs in rows.items():
        table.add_row(design, *(_cell(logs, column) for column in columns))
    return table


def _columns(rows: Mapping[str, Sequence[Measured]]) -> list[tuple[str, str]]:
    """Estimators and kinds of errors that reported an interval anywhere, in the order in which they came."""
    reported = [key for logs in rows.values() for key in logs[0] if np.isfinite(_covered(logs, key)).any()]
    return list(dict.fromkeys(reported))


def _covered(logs: Sequence[Measured], column: tuple[str, str]) -> Floats:
    """Shape (replications, cells)."""
    return np.array([log[column].covered for log in logs])


def _cell(logs: Sequence[Measured], column: tuple[str, str]) -> str:
    if column not in logs[0]:
        return "-"
    by_cell = np.nanmean(_covered(logs, column), axis=0)
    width = np.nanmedian(np.array([log[column].log_width for log in logs]))
    mean, low, high = by_cell.mean(), by_cell.min(), by_cell.max()
    text = f"{mean:.1%} {width:.2f}\n{low:.1%}-{high:.1%}".replace("%", "")
    met = MEAN_DEMAND[0] <= mean <= MEAN_DEMAND[1] and CELL_DEMAND[0] <= low and high <= CELL_DEMAND[1]
    return text if met else f"[red]{text}![/]"


def _notes(rows: Mapping[str, Sequence[Measured]]) -> list[str]:
    """What was asked for, and where intervals are missing."""
    mean, cell = (f"{low:.1%} to {high:.1%}" for low, high in (MEAN_DEMAND, CELL_DEMAND))
    lines = [
        f"!: outside of what is asked for: the mean in {mean}, each cell in {cell}",
        f"shocks: log-normal factors (sigma {_SHOCK}) on theta that the sessions of a query share at a position",
    ]
    for design, logs in rows.items():
        for column in _columns(rows):
            missing = float(np.isnan(_covered(logs, column)).mean()) if column in logs[0] else 0.0
            if missing > 0:
                lines.append(f"{design}: {' '.join(column)} has no interval in {missing:.1%} of the cells")
    return lines
