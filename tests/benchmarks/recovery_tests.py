"""Size and power of every test whose p-value a manifest holds, over the designs of the coverage benchmark."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from recovery_coverage import DESIGNS, Design
from recovery_logs import in_parallel, statistics_of
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from posbias.core.counts.plan import StatisticsPlan
from posbias.core.estimators import EstimationOptions
from posbias.core.fit.fit import Fit, fit_statistics
from posbias.core.models import get_model
from posbias.core.simulation.simulate import SimulationOptions, simulate
from posbias.core.standard_errors.contrasts import LEVEL, ContrastTest
from posbias.core.theta.joint import EMOptions

SIZE_DEMAND = (0.02, 0.07)
"""Range that the share of rejected true hypotheses must lie in, at the level .05."""

_FLAT, _FLATTER = 0.0, 0.1
_WAVY = (1.0, 0.9, 0.5, 0.6, 0.35, 0.45, 0.2, 0.3, 0.15, 0.2)
_RISING = (0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0, 1.0, 1.0, 1.0)
_DAYS = 10

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
    """

    name: str
    verdict: Verdict
    true: Mapping[str, object]
    false: Mapping[str, object]
    model: str = "pbm"
    context: bool = False
    shape: str = "free"
    period: bool = False

    def fits(self, design: Design) -> bool:
        """Whether the design's model is the test's."""
        return (design.options.model == "ubm") == (self.model == "ubm")


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
        "period halves",
        lambda fit: fit.period.looks[0].halves if fit.period.looks else None,
        {"days": _DAYS},
        {"days": _DAYS, "feedback_strength": 6.0},
        period=True,
    ),
    Tested(
        "previous_click",
        lambda fit: fit.previous_click,
        {"model": "pbm"},
        {"model": "ubm"},
        model="ubm",
    ),
)

FEW = (
    Design("8 even, shocks", replace(DESIGNS[1].options, n_queries=8)),
    Design("UBM, 6 even", replace(DESIGNS[-2].options, n_queries=6)),
)
ALL = (*FEW, *DESIGNS)


def measure(task: tuple[Tested, Design, bool, int]) -> float:
    """The p-value on one log, NaN where nothing was tested."""
    tested, design, holds, seed = task
    changes = tested.true if holds else tested.false
    options: SimulationOptions = replace(design.options, seed=seed, **changes)  # pyright: ignore[reportArgumentType]
    plan = StatisticsPlan(
        get_model(tested.model), context=("device",) if tested.context else (), period="day" if tested.period else None
    )
    log = simulate(options).log
    if tested.period:
        log = log.with_columns(period=log["timestamp"].dt.date())
    wanted = EstimationOptions(
        reference=(1,), shape=tested.shape, attractiveness_prior=EMOptions().attractiveness_prior
    )
    found = tested.verdict(fit_statistics(statistics_of(log, plan), "conditional", wanted, compare=False))
    return found.p_value if found is not None and found.n_contrasts else np.nan


def tests(console: Console, replications: int) -> None:
    """Draw, fit, and print the table with its notes."""
    rows = [(tested, design) for tested in TESTS for design in ALL if tested.fits(design)]
    tasks = [(*row, holds, seed) for seed in range(replications) for row in rows for holds in (True, False)]
    p_values = np.array(in_parallel(measure, tasks, "tests")).reshape(replications, len(rows), 2)
    console.print(_table(rows, p_values))
    low, high = (f"{share:.0%}" for share in SIZE_DEMAND)
    console.print(f"  !: a size outside of what is asked for, {low} to {high}", highlight=False)


def _table(rows: Sequence[tuple[Tested, Design]], p_values: np.ndarray) -> Table:
    title = f"tests at the level {LEVEL}: rejected in % of {len(p_values)} logs"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for heading in ("test", "queries"):
        table.add_column(heading)
    for heading in ("size", "power", "not tested"):
        table.add_column(heading, justify="right")
    for number, (tested, design) in enumerate(rows):
        found = p_values[:, number]
        size, power = (found < LEVEL).mean(axis=0)
        missed = "" if SIZE_DEMAND[0] <= size <= SIZE_DEMAND[1] else "!"
        table.add_row(tested.name, design.name, f"{size:.1%}{missed}", f"{power:.1%}", f"{np.isnan(found).mean():.1%}")
    return table
