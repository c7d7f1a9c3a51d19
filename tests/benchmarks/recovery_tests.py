"""Size and power of the tests whose p-values a manifest holds, over the designs of the coverage benchmark.

Those of feedback and of the model have parts of their own. What was chosen, was chosen on seeds from 1000 on; the logs
here have the seeds from 0 on. Larger designs, and power, take fewer logs: `_SHARE`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from recovery_coverage import DESIGNS, Design
from recovery_logs import Floats, in_parallel, statistics_of
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from posbias.core.counts.plan import StatisticsPlan
from posbias.core.estimators import EstimationOptions
from posbias.core.fit.fit import BesideCounts, Fit, fit_statistics
from posbias.core.models import get_model
from posbias.core.simulation.simulate import SimulationOptions, simulate
from posbias.core.standard_errors.contrasts import LEVEL, ContrastTest
from posbias.core.theta.joint import EMOptions

SIZE_DEMAND = (0.02, 0.07)
"""Range that the share of rejected true hypotheses must lie in, at the level .05."""

_FLAT, _FLATTER = 0.0, 0.1
_HALF_SEEN = (0.5,) * 10
_STEPS = (1.0, 0.6, 0.4, 0.4, 0.3, 0.3, 0.3, 0.2, 0.2, 0.2)
_FIRST_OF_STEPS = (1, 2, 3, 5, 8)
_WAVY = (1.0, 0.9, 0.5, 0.6, 0.35, 0.45, 0.2, 0.3, 0.15, 0.2)
_RISING = (0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0, 1.0, 1.0, 1.0)
_DAYS = 10

_SHARE = {200: 0.25, 20_000: 0.125}
"""Of the replications, by the number of queries: what larger logs take of them."""
_POWER_SHARE = 0.2

Verdict = Callable[[Fit], ContrastTest | None]


@dataclass(frozen=True)
class Tested:
    """A test, and what makes its hypothesis true or false in a log.

    Attributes:
        name: of the test, as in the manifest.
        verdict: the test of a fit.
        true: changes of a design's options under which the hypothesis holds.
        false: changes under which it does not.
        model: the click model that is fitted.
        context: whether contexts are kept apart.
        shape: that is asked for.
        period: whether halves of the strata are compared with the whole.
        bins: first positions of the bins that are asked for.
        joint: whether joint EM runs beside the estimate.
    """

    name: str
    verdict: Verdict
    true: Mapping[str, object]
    false: Mapping[str, object]
    model: str = "pbm"
    context: bool = False
    shape: str = "free"
    period: bool = False
    bins: tuple[int, ...] = ()
    joint: bool = False

    def fits(self, design: Design) -> bool:
        """Whether the design's model is the test's."""
        return (design.options.model == "ubm") == (self.model == "ubm")

    def logs(self, design: Design, replications: int, *, holds: bool) -> int:
        """How many logs of a design are drawn, two at least."""
        share = _SHARE.get(design.options.n_queries, 1.0) * (1.0 if holds else _POWER_SHARE)
        return max(round(replications * share), 2)


TESTS = (
    Tested("position_effect", lambda fit: fit.position_effect, {"eta": _FLAT}, {"eta": _FLATTER}),
    Tested(
        "contexts_differ", lambda fit: fit.contexts, {"contexts": (1.0, 1.0)}, {"contexts": (1.0, 0.7)}, context=True
    ),
    Tested(
        "contexts_differ, of 6",
        lambda fit: fit.contexts,
        {"contexts": (1.0,) * 6},
        {"contexts": (*(1.0,) * 5, 0.6)},
        context=True,
    ),
    Tested("power", lambda fit: fit.shape and fit.shape.test, {"eta": 1.0}, {"theta": _WAVY}, shape="power"),
    Tested("monotone", lambda fit: fit.shape and fit.shape.test, {"eta": _FLAT}, {"theta": _RISING}, shape="monotone"),
    Tested(
        "position_bins",
        lambda fit: fit.bins and fit.bins.contrasts,
        {"theta": _STEPS},
        {"eta": 1.0},
        bins=_FIRST_OF_STEPS,
    ),
    Tested(
        "period halves",
        lambda fit: fit.period.looks[0].halves if fit.period.looks else None,
        {"days": _DAYS},
        {"days": _DAYS, "feedback_strength": 6.0},
        period=True,
    ),
    # By symmetry joint EM is right, whatever its priors, where theta is the same everywhere and order is random.
    Tested(
        "joint_em",
        lambda fit: fit.comparison and fit.comparison.test,
        {"theta": _HALF_SEEN, "ranker_strength": 0.0},
        {"eta": 1.0},
        joint=True,
    ),
    Tested(
        "previous_click",
        lambda fit: fit.previous_click,
        {"model": "pbm"},
        {"model": "ubm"},
        model="ubm",
    ),
)

_BY_NAME = {tested.name: tested for tested in TESTS}

FEW = (
    Design("8 even, shocks", replace(DESIGNS[1].options, n_queries=8)),
    Design("UBM, 6 even", replace(DESIGNS[-2].options, n_queries=6)),
)
ALL = (*FEW, *DESIGNS)


def measure_named(task: tuple[str, Design, bool, int]) -> float:
    """As `measure`, of a test by its name, which another process can be told."""
    name, design, holds, seed = task
    return measure((_BY_NAME[name], design, holds, seed))


def measure(task: tuple[Tested, Design, bool, int]) -> float:
    """The p-value on one log, NaN where nothing was tested."""
    tested, design, holds, seed = task
    changes = tested.true if holds else tested.false
    options: SimulationOptions = replace(design.options, seed=seed, **changes)  # pyright: ignore[reportArgumentType]
    log = simulate(options).log
    plan = StatisticsPlan(
        get_model(tested.model),
        position_bins=tested.bins,
        context=("device",) if tested.context else (),
        period="day" if tested.period else None,
    )
    found = tested.verdict(_fitted(log, plan, tested))
    return found.p_value if found is not None and found.n_contrasts else np.nan


def _fitted(log: pl.DataFrame, plan: StatisticsPlan, tested: Tested) -> Fit:
    wanted = EstimationOptions(
        reference=(1,),
        shape=tested.shape,
        attractiveness_prior=None if tested.joint else EMOptions().attractiveness_prior,
    )
    if tested.period:
        log = log.with_columns(period=log["timestamp"].dt.date())
    unbinned = statistics_of(log, replace(plan, position_bins=())) if tested.bins else None
    return fit_statistics(
        statistics_of(log, plan),
        "conditional",
        wanted,
        compare=tested.joint,
        beside=BesideCounts(unbinned=unbinned),
    )


def tests(console: Console, replications: int) -> None:
    """Draw, fit, and print the table with its notes."""
    rows = [(tested, design) for tested in TESTS for design in ALL if tested.fits(design)]
    numbers = [tested.logs(design, replications, holds=holds) for tested, design in rows for holds in (True, False)]
    tasks = [
        (tested.name, design, holds, seed)
        for tested, design in rows
        for holds in (True, False)
        for seed in range(tested.logs(design, replications, holds=holds))
    ]
    p_values = np.split(np.array(in_parallel(measure_named, tasks, "tests")), np.cumsum(numbers)[:-1])
    console.print(_table(rows, p_values[::2], p_values[1::2]))
    low, high = (f"{share:.0%}" for share in SIZE_DEMAND)
    console.print(f"  !: a size outside of what is asked for, {low} to {high}", highlight=False)


def _table(rows: Sequence[tuple[Tested, Design]], true: Sequence[Floats], false: Sequence[Floats]) -> Table:
    title = f"tests at the level {LEVEL}: share of the logs in which they reject"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("test", "queries"):
        table.add_column(heading)
    for heading in ("logs", "size", "not tested", "logs", "power"):
        table.add_column(heading, justify="right")
    for (tested, design), holds, fails in zip(rows, true, false, strict=True):
        size = (holds < LEVEL).mean()
        missed = "" if SIZE_DEMAND[0] <= size <= SIZE_DEMAND[1] else "!"
        table.add_row(
            tested.name,
            design.name,
            str(len(holds)),
            f"{size:.1%}{missed}",
            f"{np.isnan(holds).mean():.0%}",
            str(len(fails)),
            f"{(fails < LEVEL).mean():.0%}",
        )
    return table
