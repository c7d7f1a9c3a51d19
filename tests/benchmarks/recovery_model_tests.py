"""Tests of the model: how often they reject where it holds, and where it does not.

The constants (halves, two clicks counting twice, how many counts are split) were chosen on seeds from 1000; what is
reported is drawn from seeds from 0. Size: the logs of the coverage benchmark, and more that follow the model though
they look otherwise. Power: clicks that are drawn anew on the same pages by other models.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray
from recovery_coverage import DESIGNS
from recovery_logs import Floats, in_parallel, silent, statistics_of
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from posbias.core.counts.clicks_above import count_pages
from posbias.core.counts.plan import StatisticsPlan
from posbias.core.errors import IdentifiabilityError
from posbias.core.estimators import ConditionalEstimator, EstimationOptions
from posbias.core.fit.model_tests import ATTRACTIVENESS, CLICKS_ABOVE, LAST_CLICK, TESTS, ModelTests, run_model_tests
from posbias.core.models import get_model
from posbias.core.schema import CLICK, POSITION
from posbias.core.simulation.simulate import Simulation, SimulationOptions, simulate
from posbias.core.standard_errors.contrasts import LEVEL
from posbias.core.standard_errors.score_test import ScoreTest

SIZE_DEMAND = (0.02, 0.07)
"""Range that the share of false alarms must lie in, up to chance."""

POWER_DEMAND = 0.5
"""Share of the logs that a test must notice which is made for them."""

_FEWER = 4  # logs are enough to see power
_ETA = 0.7
_TRUSTED = (0.98, 0.3)
_LOGIT_SLOPE = 1.2
_SATISFIED, _TIRED = 0.4, 0.1
_BASE = SimulationOptions(
    docs_per_query=15, attractiveness_scale=0.5, n_queries=200, n_sessions=12_000, query_exponent=0.0
)
_ZIPF = replace(_BASE, n_queries=20_000, n_sessions=30_000, query_exponent=1.0)

Clicks = NDArray[np.bool_]
Clicker = Callable[[Floats, np.random.Generator], Clicks]


def trust(attractiveness: Floats, rng: np.random.Generator) -> Clicks:
    """Trust bias (Agarwal et al. 2019): poor documents gain most from standing at the top."""
    position = _positions(attractiveness)
    relevant, other = _TRUSTED
    clicked = relevant * attractiveness + other / position * (1 - attractiveness)
    return rng.random(attractiveness.shape) < position**-_ETA * clicked


def additive_logits(attractiveness: Floats, rng: np.random.Generator) -> Clicks:
    """Position and document add up on the scale of log odds."""
    position = _positions(attractiveness)
    odds = attractiveness / (1 - attractiveness) * position**-_LOGIT_SLOPE
    return rng.random(attractiveness.shape) < odds / (1 + odds)


def cascade(attractiveness: Floats, rng: np.random.Generator) -> Clicks:
    """Users read from the top and stop at the first click (Craswell et al. 2008)."""
    return _first_only(rng.random(attractiveness.shape) < attractiveness)


def dynamic(attractiveness: Floats, rng: np.random.Generator) -> Clicks:
    """Users read from the top until a click satisfies them or they tire (Chapelle & Zhang 2009)."""
    clicks: Clicks = np.zeros(attractiveness.shape, np.bool_)
    reads: Clicks = np.ones(len(clicks), np.bool_)
    for place in range(attractiveness.shape[-1]):
        clicks[:, place] = reads & (rng.random(len(clicks)) < attractiveness[:, place])
        reads &= ~(clicks[:, place] & (rng.random(len(clicks)) < _SATISFIED))
        reads &= rng.random(len(clicks)) >= _TIRED
    return clicks


def one_click(attractiveness: Floats, rng: np.random.Generator) -> Clicks:
    """The position-based model, but of each page only the first click is kept."""
    position = _positions(attractiveness)
    return _first_only(rng.random(attractiveness.shape) < attractiveness / position)


def _positions(attractiveness: Floats) -> Floats:
    return np.arange(1.0, attractiveness.shape[-1] + 1)


def _first_only(clicks: Clicks) -> Clicks:
    return clicks & (np.cumsum(clicks, axis=1) == clicks)


@dataclass(frozen=True)
class Case:
    """One kind of log.

    Attributes:
        name: as the table calls it.
        options: of the pages, and of the clicks unless others are drawn.
        clicker: draws other clicks on the same pages.
        meets: the tests that are to notice; none where the propensities are right.
        fitted: the model that is fitted and tested.
    """

    name: str
    options: SimulationOptions
    clicker: Clicker | None = None
    meets: tuple[str, ...] = ()
    fitted: str = "pbm"


_PAGES = (CLICKS_ABOVE,)
HOLDS = (
    *(Case(design.name, design.options, fitted=design.options.model) for design in DESIGNS),
    *(
        Case(f"{name}, {queries}", replace(base, **options))
        for queries, base in (("200 even", _BASE), ("20,000 Zipf", _ZIPF))
        for name, options in (
            ("pages end early", {"depth": 0.85}),
            ("sticky ranker", {"ranker_strength": 30.0, "score_weight": 0.3}),
        )
    ),
)
FAILS = tuple(
    Case(f"{name}, {queries}", replace(base, **options), clicker, meets, *fitted)
    for name, options, clicker, meets, *fitted in (
        ("trust bias", {}, trust, (ATTRACTIVENESS,)),
        ("additive logits", {}, additive_logits, (ATTRACTIVENESS,)),
        ("cascade", {"attractiveness_scale": 0.3}, cascade, _PAGES),
        ("dynamic Bayesian", {}, dynamic, (CLICKS_ABOVE, LAST_CLICK)),
        ("one click kept", {}, one_click, _PAGES),
        ("UBM", {"model": "ubm"}, None, (CLICKS_ABOVE, LAST_CLICK)),
        ("uneven readiness", {"readiness": (0.3, 1.7)}, None, ()),
        ("uneven readiness, by UBM", {"model": "ubm", "readiness": (0.3, 1.7)}, None, _PAGES, "ubm"),
        ("personalised", {"segments": 4, "segment_difference": 0.7, "ranker_strength": 2.0}, None, ()),
        ("re-ranked daily, pooled", {"days": 10, "feedback_strength": 3.0}, None, ()),
    )
    for queries, base in (("200 even", _BASE), ("20,000 Zipf", _ZIPF))
)


def try_one(task: tuple[Case, int]) -> ModelTests | None:
    """Draw one log and test the model that is fitted; None where the log identifies nothing."""
    case, seed = task
    simulation = simulate(replace(case.options, seed=seed))
    log = simulation.log if case.clicker is None else _clicked_anew(simulation, case.clicker, seed)
    plan = StatisticsPlan(get_model(case.fitted))
    statistics = statistics_of(log, plan)
    strata = statistics.strata()
    try:
        fitted = ConditionalEstimator().estimate(statistics, strata, EstimationOptions(), silent).fitted
    except IdentifiabilityError:
        return None
    pages = count_pages(log, plan)
    return None if fitted is None else run_model_tests(statistics, fitted, pages, "none")


def _clicked_anew(simulation: Simulation, clicker: Clicker, seed: int) -> pl.DataFrame:
    log = simulation.log.join(simulation.attractiveness, on=["query", "doc"], how="left", maintain_order="left")
    n_positions = int(log[POSITION].to_numpy().max())
    attractiveness = log["attractiveness"].to_numpy().reshape(-1, n_positions)
    clicks = clicker(attractiveness, np.random.default_rng(seed))
    return simulation.log.with_columns(pl.Series(CLICK, clicks.ravel().astype(np.int8)))


def model_tests(console: Console, replications: int) -> None:
    """Draw, test, and print both tables."""
    for title, cases in (("the model holds", HOLDS), ("the model does not hold", FAILS)):
        seeds = replications if cases is HOLDS else replications // _FEWER
        tasks = [(case, seed) for seed in range(seeds) for case in cases]
        results = in_parallel(try_one, tasks, title)
        console.print(_table(title, {case: results[number :: len(cases)] for number, case in enumerate(cases)}))
    console.print(
        f"  !: outside of {SIZE_DEMAND[0]:.0%} to {SIZE_DEMAND[1]:.0%} by more than two standard errors, or power "
        f"below {POWER_DEMAND:.0%}; where nothing is asked of a test, its share is not judged",
        highlight=False,
    )


def _table(title: str, rows: Mapping[Case, Sequence[ModelTests | None]]) -> Table:
    n_logs = len(next(iter(rows.values())))
    table = Table(
        title=f"{title}: share of {n_logs} logs in which a test rejects at .05, in %, and mean |t|;\n"
        "some: any of the three, adjusted; doubt: the propensities are doubted, exit code 1",
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("log", min_width=28)
    for name in (*TESTS, "some", "doubt"):
        table.add_column(name.replace("_", "\n"), justify="right", no_wrap=True, vertical="bottom")
    for case, found in rows.items():
        logs = [tests for tests in found if tests is not None]
        of_family = [bool(tests.rejected) for tests in logs], [bool(tests.doubts) for tests in logs]
        table.add_row(
            case.name,
            *(_cell(case, name, [tests.made[name] for tests in logs if name in tests.made]) for name in TESTS),
            *(f"{np.mean(said):.1%}".replace("%", "") for said in of_family),
        )
    return table


def _cell(case: Case, name: str, found: Sequence[ScoreTest]) -> str:
    if not found:
        return "-"
    share = float(np.mean([test.p_value < LEVEL for test in found]))
    text = f"{share:.1%} {np.mean([test.statistic for test in found]):.1f}".replace("%", "")
    slack = 2 * np.sqrt(SIZE_DEMAND[1] * (1 - SIZE_DEMAND[1]) / len(found))
    wrong = case in HOLDS and not SIZE_DEMAND[0] - slack <= share <= SIZE_DEMAND[1] + slack
    missed = name in case.meets and share < POWER_DEMAND
    return f"[red]{text}![/]" if wrong or missed else text
