"""What the parts of `exploration.py` share: a world, its log, further pages of the same world, and fits of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl
from recovery_logs import Floats, statistics_of

from posbias.core.counts.plan import StatisticsPlan
from posbias.core.estimators import EstimationOptions
from posbias.core.exploration.curve import Strata, Swap
from posbias.core.exploration.known import KnownFit
from posbias.core.fit.fit import Fit, fit_statistics
from posbias.core.models import get_model
from posbias.core.priors import BetaPrior
from posbias.core.randomization import RandomizedRows
from posbias.core.schema import RANDOMIZED
from posbias.core.simulation.simulate import SimulationOptions, random_world, simulate

BASE = SimulationOptions(
    n_sessions=8_000, n_queries=100, docs_per_query=12, n_positions=6, ranker_strength=4.0, query_exponent=0.7
)

_OTHER_SEED = 50_000  # of the further pages: the same world, other clicks
_NEW_SESSIONS = 10**9
_A_WEEK = 7 * 86_400_000_000
_PRIOR = BetaPrior(1 / 3, 3.0)  # theta does not depend on it; a given one saves estimating it
_SHUFFLED = RandomizedRows("policy", "random")


@dataclass(frozen=True)
class Design:
    """A kind of log, and how it is fitted.

    Attributes:
        options: what is simulated.
        method: of the fit.
        plan: what is counted.
    """

    options: SimulationOptions = BASE
    method: str = "conditional"
    plan: StatisticsPlan = field(default_factory=lambda: StatisticsPlan(get_model("pbm")))

    def log(self, seed: int) -> pl.DataFrame:
        """The log that there is."""
        options = replace(self.options, seed=seed)
        return simulate(options, random_world(options)).log

    def further(self, seed: int, pages: int, swaps: Sequence[Swap]) -> pl.DataFrame:
        """Further pages of the same world, each in one of the swap experiments, which are equally frequent."""
        world = random_world(replace(self.options, seed=seed))
        share = 1.0 if swaps else 0.0
        options = replace(
            self.options,
            seed=seed + _OTHER_SEED,
            n_sessions=pages,
            swap_share=share,
            swaps=tuple(swaps),
            randomized_share=0.0,
        )
        log = simulate(options, world).log.with_columns(pl.col("session") + _NEW_SESSIONS)
        return log.with_columns(pl.col("timestamp") + _A_WEEK * pl.duration(microseconds=1)) if options.days else log

    def fit(self, *logs: pl.DataFrame) -> Fit:
        """The fit of all of these pages together."""
        log, plan = pl.concat(logs, how="diagonal"), self.plan
        if self.method == "randomized":
            log, plan = _marked(log, plan)
        if plan.period:
            log = log.with_columns(period=pl.col("timestamp").dt.date())
        options = EstimationOptions(attractiveness_prior=_PRIOR, shrink="none")
        return fit_statistics(statistics_of(log, plan), self.method, options, compare=False)


def _marked(log: pl.DataFrame, plan: StatisticsPlan) -> tuple[pl.DataFrame, StatisticsPlan]:
    """The log with its randomised rows numbered, and the plan that says what the numbers mean."""
    found = [_SHUFFLED]
    number = (pl.col("policy") == "random").fill_null(value=False).cast(pl.UInt8)
    names = log["experiment"].drop_nulls().unique().sort().to_list() if "experiment" in log.columns else []
    for name in names:
        positions = tuple(int(part) for part in name.removeprefix("swap ").split("-"))
        found.append(RandomizedRows("experiment", name, positions))
        rows = (pl.col("experiment") == name) & pl.col("position").is_in(positions)
        number = pl.when(rows.fill_null(value=False)).then(len(found)).otherwise(number).cast(pl.UInt8)
    return log.with_columns(number.alias(RANDOMIZED)), replace(plan, randomized=tuple(found))


def known(fit: Fit) -> KnownFit:
    """What `explore` reads of a fit."""
    shared = fit.shared_clicks
    if shared is None:
        raise ValueError("the fit has no shared clicks")
    strata: Strata = "shared" if fit.period.used == "none" else "apart"
    return KnownFit(
        table=fit.propensities,
        context=fit.statistics.plan.context,
        shared=shared.clicks,
        query_spread=fit.theta_errors.query_spread,
        effective_clusters=fit.estimate.intervals.effective_clusters,
        strata="randomized" if fit.estimate.method == "randomized" else strata,
        n_strata=shared.n_strata,
    )


def widths_of(fit: Fit) -> Floats:
    """The widths of the intervals of log propensity, infinite where there is none."""
    with np.errstate(divide="ignore", invalid="ignore"):
        width = np.log(fit.estimate.intervals.high) - np.log(fit.estimate.intervals.low)
    return np.where(np.isfinite(width), width, np.inf)
