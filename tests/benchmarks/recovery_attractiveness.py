"""Whether the standard deviation of attractiveness says how far it is off, with and without the errors of theta.

Constants were chosen on other seeds (1000 and up) than those that are reported.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import product

import narwhals as nw
import numpy as np
from recovery_logs import Floats, in_parallel
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from posbias.core.attractiveness.prior import posterior_by_position
from posbias.core.counts.plan import StatisticsPlan
from posbias.core.counts.sufficient_statistics import SIGNATURE, compress_part, merge_parts
from posbias.core.estimators import EstimationOptions
from posbias.core.fit.fit import fit_statistics
from posbias.core.models import get_model
from posbias.core.schema import IMPRESSIONS
from posbias.core.simulation.simulate import SimulationOptions, simulate

_BASE = SimulationOptions(docs_per_query=15, attractiveness_scale=0.5)
_SESSIONS = {20: 8_000, 200: 12_000, 2_000: 30_000}
_SHOCK = 0.3
_NORMAL = 1.96
_TOP = 0.9

DESIGNS: Mapping[str, SimulationOptions] = {
    f"{n_queries:,} {frequency}{', shocks' if shock else ''}": replace(
        _BASE, n_queries=n_queries, n_sessions=n_sessions, query_exponent=exponent, theta_shock=shock
    )
    for (n_queries, n_sessions), (frequency, exponent), shock in product(
        _SESSIONS.items(), (("even", 0.0), ("Zipf", 1.0)), (0.0, _SHOCK)
    )
}


def measure(task: tuple[str, int]) -> Floats:
    """Coverage of mean +- 1.96 sd: of all and of the most shown tenth, by the counts alone and in all; and tau."""
    name, seed = task
    plan = StatisticsPlan(get_model("pbm"))
    simulation = simulate(replace(DESIGNS[name], seed=seed))
    counts = plan.count(nw.from_native(simulation.log.lazy())).to_native().collect()
    part = compress_part(counts.sort(plan.keys), plan)
    statistics = merge_parts([part], plan)
    fit = fit_statistics(statistics, "conditional", EstimationOptions(), compare=False)
    _, by_counts = posterior_by_position(
        statistics.pair_signatures, fit.estimate.examination, fit.prior, statistics.position_of_cell
    )
    signature = statistics.signature_of_part[0][part.pairs[SIGNATURE].to_numpy()]
    pairs = part.pairs.join(simulation.attractiveness, on=["query", "doc"], how="left", maintain_order="left")
    off = np.abs(fit.attractiveness[signature] - pairs["attractiveness"].to_numpy())
    shown = pairs[IMPRESSIONS].to_numpy()
    top = shown >= np.quantile(shown, _TOP)
    covered = [off <= _NORMAL * sd[signature] for sd in (by_counts, fit.std_dev)]
    shares = [float(part.mean()) for one in covered for part in (one, one[top])]
    return np.array([*shares, fit.theta_errors.query_spread])


def attractiveness(console: Console, replications: int) -> None:
    """Draw, fit, and print the table."""
    tasks = list(product(DESIGNS, range(replications)))
    results = np.array(in_parallel(measure, tasks, "attractiveness")).reshape(len(DESIGNS), replications, -1)
    table = Table(
        title=f"attractiveness: share of the documents within 1.96 std_dev of the truth, {replications} logs",
        title_justify="left",
        box=SIMPLE_HEAD,
    )
    table.add_column("queries", no_wrap=True)
    for heading in ("counts\nalone", "most shown\ntenth", "with theta's\nerrors", "most shown\ntenth", "query\nspread"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, rows in zip(DESIGNS, results, strict=True):
        *shares, spread = rows.mean(axis=0)
        table.add_row(name, *(f"{share:.1%}" for share in shares), f"{spread:.2f}")
    console.print(table)
    console.print(f"  shocks: the theta of a query differs by log-normal factors (sigma {_SHOCK}) from that of all")
