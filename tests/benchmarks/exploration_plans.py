"""Which swaps make the widest interval narrow: the plan of `posbias explore` against choices without one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, product

import numpy as np
from exploration_worlds import BASE, Design, known, widths_of
from recovery_logs import Floats, in_parallel
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from posbias.core.exploration.curve import Swap
from posbias.core.exploration.swaps import PORTIONS, Plan, make_plan

_PAGES = 3_000
_POSITIONS = range(1, BASE.n_positions + 1)

DESIGNS: Mapping[str, Design] = {
    "documents stay": Design(),
    "hardly linked": Design(replace(BASE, ranker_strength=25.0)),
    "two halves": Design(replace(BASE, ranker_strength=1_000.0, n_sessions=12_000)),
    "few clicks": Design(replace(BASE, attractiveness_scale=0.2)),
}


def _by_plan(plan: Plan) -> list[Swap]:
    """Each swap as often as it has portions: the simulator draws them evenly."""
    return [swap for swap, share in plan.shares.items() for _ in range(round(share * PORTIONS))]


CHOICES: Mapping[str, Callable[[Plan], Sequence[Swap]]] = {
    "no swaps": lambda _: (),
    "plan": _by_plan,
    "best swap alone": lambda plan: (plan.best,),
    "all pairs": lambda _: list(combinations(_POSITIONS, 2)),
    "first with others": lambda _: [(1, other) for other in _POSITIONS if other > 1],
    "neighbours": lambda _: [(one, one + 1) for one in _POSITIONS if one < len(_POSITIONS)],
    "most clicked first": lambda _: ((1, 2),),
}


def measure(task: tuple[str, int]) -> Floats:
    """The widest interval after the pages, by choice; at last the one that was predicted of the plan."""
    name, seed = task
    design = DESIGNS[name]
    log = design.log(seed)
    plan = make_plan(known(design.fit(log)).curves(), _PAGES)
    found = [
        float(widths_of(design.fit(log, design.further(seed, _PAGES, choose(plan)))).max())
        for choose in CHOICES.values()
    ]
    return np.array([plan.now.largest, *found, plan.planned.largest])


def plans(console: Console, replications: int) -> None:
    """Draw, plan, swap, fit, and print the table."""
    tasks = list(product(DESIGNS, range(replications)))
    results = np.array(in_parallel(measure, tasks, "plans")).reshape(len(DESIGNS), replications, -1)
    table = Table(
        title=f"widest 95 % interval of log propensity after {_PAGES:,} further pages, {replications} logs",
        title_justify="left",
        box=SIMPLE_HEAD,
    )
    table.add_column("swaps", no_wrap=True)
    for name in DESIGNS:
        table.add_column(name, justify="right", no_wrap=True)
    for number, name in enumerate(("now", *CHOICES, "plan, as predicted")):
        table.add_row(name, *(_in_words(rows[:, number]) for rows in results))
    console.print(table)
    console.print("  medians over logs; in brackets how many have a position without an interval")


def _in_words(widest: Floats) -> str:
    without = float(np.isinf(widest).mean())
    median = float(np.median(widest))
    return ("none" if np.isinf(median) else f"{median:.3f}") + (f" ({without:.0%})" if without else "")
