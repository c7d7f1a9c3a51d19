"""Contexts: error and coverage where they borrow from each other and one of them differs, or none does.

In the small context that differs, eta is 1.1 where it is .7 in the others. Contexts share queries unless a name says
otherwise; with shocks, each query has a theta of its own at each position.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from recovery_logs import Floats, in_parallel, silent, statistics_of, truth_of
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from posbias.core.counts.plan import StatisticsPlan
from posbias.core.counts.sufficient_statistics import SufficientStatistics
from posbias.core.errors import IdentifiabilityError
from posbias.core.estimators import ConditionalEstimator, EstimationOptions
from posbias.core.fit.refinements import with_shrinkage
from posbias.core.models import get_model
from posbias.core.schema import QUERY
from posbias.core.simulation.options import Theta
from posbias.core.simulation.simulate import SimulationOptions, simulate

CONTEXT = "device"

LOWEST, HIGHEST = 0.90, 0.99
"""Coverage asked for: the one in every context, that which differs included; the other where none differs."""

_PARTS = 100  # of equal size, of which a log consists
_USUAL, _OTHER = 0.7, 1.1
_SHOCK = 0.3
_BASE = SimulationOptions(
    docs_per_query=10,
    n_positions=6,
    attractiveness_scale=0.5,
    n_queries=60,
    n_sessions=12_000,
    query_exponent=0.0,
)
_WAVY = (1.0, 0.9, 0.5, 0.55, 0.35, 0.4)


@dataclass(frozen=True)
class ContextDesign:
    """One kind of log of several contexts.

    Attributes:
        name: as the table says it.
        options: of the simulation; its contexts are parts of the log of equal size.
        parts: the context that each part of the simulation belongs to; empty for one of its own each.
        own_queries: whether contexts have queries of their own.
        differ: whether the contexts differ.
    """

    name: str
    options: SimulationOptions
    parts: tuple[int, ...] = ()
    own_queries: bool = False
    differ: bool = False

    def draw(self, seed: int) -> tuple[SufficientStatistics, Floats]:
        """Statistics of one log, and the true propensity of each cell."""
        simulation = simulate(replace(self.options, seed=seed))
        log, truth = simulation.log, simulation.propensities
        if self.parts:
            log, truth = _joined(log, self.parts), _joined(truth, self.parts).unique(["position", CONTEXT])
        if self.own_queries:
            log = log.with_columns(pl.format("{} of {}", pl.col(QUERY), pl.col(CONTEXT)).alias(QUERY))
        statistics = statistics_of(log, StatisticsPlan(get_model("pbm"), context=(CONTEXT,)))
        return statistics, truth_of(statistics, truth)


def _joined(table: pl.DataFrame, parts: Sequence[int]) -> pl.DataFrame:
    return table.with_columns(pl.Series(parts, dtype=pl.Int32).gather(table[CONTEXT]).alias(CONTEXT))


def _curves(*curves: Theta) -> SimulationOptions:
    return replace(_BASE, contexts=curves)


def small_context(n_contexts: int, percent: int, *, shocks: bool, eta: float = _OTHER) -> ContextDesign:
    """The last of some contexts has a share of the log, and perhaps a curve of its own; the others share the rest."""
    large = _PARTS - percent
    parts = (*(number * (n_contexts - 1) // large for number in range(large)), *(n_contexts - 1,) * percent)
    options = replace(_curves(*(_USUAL,) * large, *(eta,) * percent), theta_shock=_SHOCK if shocks else 0.0)
    kind = "equal" if eta == _USUAL else "differs"
    name = f"{n_contexts} contexts, one of {percent} % {kind}{', shocks' if shocks else ''}"
    return ContextDesign(name, options, parts, differ=eta != _USUAL)


DESIGNS = (
    *(
        small_context(n_contexts, percent, shocks=shocks)
        for n_contexts, percents in ((2, (1, 3, 5)), (5, (3,)), (12, (1, 3, 5)))
        for percent in percents
        for shocks in (False, True)
    ),
    *(small_context(n_contexts, 1, shocks=shocks, eta=_USUAL) for n_contexts in (2, 12) for shocks in (False, True)),
    *(
        ContextDesign(
            f"{n} contexts alike{', shocks' if shock else ''}", replace(_curves(*(_USUAL,) * n), theta_shock=shock)
        )
        for n in (2, 12)
        for shock in (0.0, _SHOCK)
    ),
    ContextDesign(
        "6 contexts alike, 8 queries, shocks", replace(_curves(*(_USUAL,) * 6), n_queries=8, theta_shock=_SHOCK)
    ),
    ContextDesign("4 contexts differ, own queries", _curves(0.6, 0.9, 1.2, _WAVY), own_queries=True, differ=True),
)


@dataclass(frozen=True)
class Measured:
    """What was found in one log, by estimate (free, posbias) and free cell; NaN without a number.

    Attributes:
        squares: shape (2, F), squared error of log theta.
        covered: shape (2, F), whether the interval covers the truth.
        width: shape (2, F), of the interval of log theta.
        context: shape (F,), each cell's context.
        borrowed: shape (F,), what its context borrows.
    """

    squares: Floats
    covered: Floats
    width: Floats
    context: Floats
    borrowed: Floats


def measure(task: tuple[ContextDesign, int]) -> Measured | None:
    """Draw one log and look at both estimates; None where nothing can be compared."""
    design, seed = task
    statistics, truth = design.draw(seed)
    options = EstimationOptions(reference=(1,))
    try:
        by_itself = ConditionalEstimator().estimate(statistics, statistics.strata("none"), options, silent)
    except IdentifiabilityError:
        return None
    if by_itself.fitted is None:
        return None
    estimate, shrunk = with_shrinkage(by_itself, by_itself.fitted, statistics.position_of_cell)
    free = by_itself.fitted.fit.free_cells
    found = (by_itself, estimate)
    low, high = (np.array([getattr(each.intervals, end)[free] for each in found]) for end in ("low", "high"))
    covered = np.where(np.isnan(low + high), np.nan, (low <= truth[free]) & (truth[free] <= high))
    squares = np.log(np.array([each.propensity[free] for each in found]) / truth[free]) ** 2
    width = np.where(np.isnan(covered), np.nan, np.log(high / np.where(low > 0, low, np.nan)))
    context = statistics.context_of_cell[free].astype(np.float64)
    return Measured(squares, covered, width, context, shrunk.borrowed_of_cell[free])


def contexts(console: Console, replications: int) -> None:
    """Draw, fit, and print the table with its notes."""
    tasks = [(design, seed) for seed in range(replications) for design in DESIGNS]
    results = in_parallel(measure, tasks, "contexts")
    title = "contexts that borrow from each other: the last (small) context, below it all contexts"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("log")
    for heading in ("logs", "error\nfree", "\nposbias", "cover %\nfree", "\nposbias", "width\nof free", "borrowed\n%"):
        table.add_column(heading, justify="right")
    for number, design in enumerate(DESIGNS):
        table.add_row(design.name, *_cells([found for found in results[number :: len(DESIGNS)] if found], design))
    console.print(table)
    console.print(
        "  error: root mean square of log theta; width: of the interval of log theta, relative to the free one;\n"
        "  below the coverage of all contexts, the lowest and the highest context.\n"
        f"  !: coverage below {LOWEST:.0%} in a context, or above {HIGHEST:.0%} where contexts are equal",
        highlight=False,
    )


def _cells(logs: Sequence[Measured], design: ContextDesign) -> list[str]:
    numbers = np.unique(logs[0].context)

    def by_context(values: Sequence[Floats]) -> Floats:
        """Means over logs and cells, shape (C, ...)."""
        means = [
            np.nanmean(
                np.concatenate([v[..., log.context == c] for v, log in zip(values, logs, strict=True)], axis=-1),
                axis=-1,
            )
            for c in numbers
        ]
        return np.array(means)

    errors = np.sqrt(by_context([log.squares for log in logs]))
    covered = by_context([log.covered for log in logs])
    width = by_context([log.width for log in logs])
    width = width[:, 1] / width[:, 0]
    borrowed = by_context([log.borrowed for log in logs])
    free, own = covered.T
    missed = own.min() < LOWEST or (not design.differ and own.max() > HIGHEST)
    return [
        str(len(logs)),
        *(f"{of[-1]:.3f}\n{np.sqrt((of**2).mean()):.3f}" for of in errors.T),
        f"{free[-1]:.1%}\n{free.mean():.1%}".replace("%", ""),
        f"{own[-1]:.1%}{'!' if missed else ''}\n{own.mean():.1%} ({own.min():.1%}-{own.max():.1%})".replace("%", ""),
        f"{width[-1]:.2f}\n{width.mean():.2f}",
        f"{borrowed[-1]:.0%}\n{borrowed.mean():.0%}".replace("%", ""),
    ]
