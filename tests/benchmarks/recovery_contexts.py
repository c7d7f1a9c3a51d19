"""Contexts: error and coverage of shrunk estimates beside the free ones, where contexts share queries or do not."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from recovery_logs import Floats, statistics_of, truth_of

from posbias.core.counts.plan import StatisticsPlan
from posbias.core.counts.sufficient_statistics import SufficientStatistics
from posbias.core.models import get_model
from posbias.core.schema import QUERY, SESSION
from posbias.core.simulation.options import Theta
from posbias.core.simulation.simulate import SimulationOptions, simulate

CONTEXT = "device"
_SHOCK = 0.3
_BASE = SimulationOptions(
    docs_per_query=15, attractiveness_scale=0.5, n_queries=30, n_sessions=12_000, query_exponent=0.0
)
_WAVY = (1.0, 0.9, 0.5, 0.55, 0.35, 0.4, 0.2, 0.25, 0.15, 0.1)


@dataclass(frozen=True)
class ContextDesign:
    """One kind of log of several contexts.

    Attributes:
        name: as the table says it.
        options: of the simulation; its contexts are parts of the log of equal size.
        parts: the context that each part of the simulation belongs to; empty for one of its own each.
        copies: how often the whole log is copied, each time as another context; 0 for not at all.
        own_queries: whether contexts have queries of their own.
    """

    name: str
    options: SimulationOptions
    parts: tuple[int, ...] = ()
    copies: int = 0
    own_queries: bool = False

    def draw(self, seed: int) -> tuple[SufficientStatistics, Floats]:
        """Statistics of one log, and the true propensity of each cell."""
        simulation = simulate(replace(self.options, seed=seed))
        log, truth = simulation.log, simulation.propensities
        if self.copies:
            log = pl.concat([_as_device(log, copy) for copy in range(self.copies)])
            truth = pl.concat([truth.with_columns(_device(copy)) for copy in range(self.copies)])
        if self.parts:
            log, truth = _joined(log, self.parts), _joined(truth, self.parts).unique(["position", CONTEXT])
        if self.own_queries:
            log = log.with_columns(_with_device(QUERY))
        statistics = statistics_of(log, StatisticsPlan(get_model("pbm"), context=(CONTEXT,)))
        return statistics, truth_of(statistics, truth)


def _device(number: int) -> pl.Expr:
    return pl.lit(number, pl.Int32).alias(CONTEXT)


def _with_device(column: str) -> pl.Expr:
    return pl.format("{} of {}", pl.col(column), pl.col(CONTEXT)).alias(column)


def _as_device(log: pl.DataFrame, number: int) -> pl.DataFrame:
    return log.with_columns(_device(number)).with_columns(_with_device(SESSION))


def _joined(table: pl.DataFrame, parts: Sequence[int]) -> pl.DataFrame:
    return table.with_columns(pl.Series(parts, dtype=pl.Int32).gather(table[CONTEXT]).alias(CONTEXT))


def _curves(*curves: Theta) -> SimulationOptions:
    return replace(_BASE, contexts=curves)


DESIGNS = (
    *(
        ContextDesign(f"{n} equal, 30 queries with shocks", replace(_curves(*(1.0,) * n), theta_shock=_SHOCK))
        for n in (2, 6, 12)
    ),
    *(ContextDesign(f"{n} equal, 30 queries", _curves(*(1.0,) * n)) for n in (2, 12)),
    *(
        ContextDesign(f"5 % {how}, other curve", replace(_curves(*(1.0,) * 19, curve), **more), (0,) * 19 + (1,))
        for how, curve, more in (
            ("far from it", 0.3, {"n_queries": 200, "n_sessions": 20_000}),
            ("near it", 0.8, {"n_queries": 200, "n_sessions": 20_000}),
            ("with shocks", 0.5, {"n_queries": 30, "theta_shock": _SHOCK}),
        )
    ),
    ContextDesign(
        "5 % of another curve among 5",
        replace(_curves(*(1.0,) * 19, 0.5), n_queries=200, n_sessions=20_000),
        (*(0,) * 8, *(1,) * 5, *(2,) * 4, 3, 3, 4),
    ),
    ContextDesign(
        "5 % of the same curve",
        replace(_curves(*(1.0,) * 20), n_queries=200, n_sessions=20_000),
        (0,) * 19 + (1,),
    ),
    ContextDesign("4 different, own queries", replace(_curves(0.6, 0.9, 1.2, _WAVY), n_queries=200), own_queries=True),
    ContextDesign("12 copies of one log", replace(_BASE, n_queries=100, n_sessions=6_000), copies=12),
    ContextDesign("6 equal, 8 queries with shocks", replace(_curves(*(1.0,) * 6), n_queries=8, theta_shock=_SHOCK)),
    ContextDesign(
        "12 equal, long log with shocks",
        replace(_curves(*(1.0,) * 12), n_sessions=60_000, theta_shock=_SHOCK),
    ),
    ContextDesign(
        "1 of 20 contexts differs",
        replace(_curves(*(1.0,) * 19, 0.5), n_queries=200, n_sessions=60_000),
    ),
    ContextDesign(
        "5 % differ among 20 equal ones",
        replace(_curves(*(1.0,) * 19, 0.7), n_queries=200, n_sessions=60_000),
    ),
    ContextDesign(
        "5 % differ, 3 contexts",
        replace(_curves(*(1.0,) * 19, _WAVY), n_queries=200, n_sessions=60_000),
        (*(0,) * 10, *(1,) * 9, 2),
    ),
)
