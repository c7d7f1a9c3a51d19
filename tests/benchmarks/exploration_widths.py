"""Whether the widths that `posbias explore` predicts are those that are found once the swaps were really made.

The part of a variance that stays, tau^2 / G, was chosen on seeds from 1000 on; what is reported is from 0 on.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from exploration_worlds import BASE, Design, known, widths_of
from recovery_logs import Floats, in_parallel
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from posbias.core.counts.plan import StatisticsPlan
from posbias.core.exploration.curve import Swap
from posbias.core.exploration.swaps import predict
from posbias.core.models import get_model

_PBM = get_model("pbm")


@dataclass(frozen=True)
class Experiment:
    """A log, and the swaps on further pages, which they share."""

    design: Design
    pages: int
    swaps: tuple[Swap, ...]


EXPERIMENTS: Mapping[str, Experiment] = {
    "documents stay": Experiment(Design(), 2_000, ((1, 5),)),
    "documents stay, two swaps": Experiment(Design(), 8_000, ((1, 5), (2, 6))),
    "documents move": Experiment(Design(replace(BASE, ranker_strength=1.0)), 2_000, ((1, 5),)),
    "3,000 queries": Experiment(Design(replace(BASE, n_queries=3_000, ranker_strength=2.0)), 2_000, ((1, 5),)),
    "queries differ": Experiment(Design(replace(BASE, theta_shock=0.3, attractiveness_scale=0.5)), 2_000, ((1, 5),)),
    "queries differ, many pages": Experiment(
        Design(replace(BASE, theta_shock=0.3, attractiveness_scale=0.5)), 16_000, ((1, 5), (2, 6))
    ),
    "hardly linked": Experiment(Design(replace(BASE, ranker_strength=25.0)), 2_000, ((1, 5), (2, 6))),
    "nearly nothing moves": Experiment(
        Design(replace(BASE, ranker_strength=1_000.0)), 4_000, ((1, 2), (1, 3), (1, 4), (1, 5), (1, 6))
    ),
    "two devices": Experiment(
        Design(replace(BASE, contexts=(0.5, 1.5)), plan=StatisticsPlan(_PBM, context=("device",))), 4_000, ((1, 5),)
    ),
    "days apart": Experiment(
        Design(
            replace(BASE, days=7, ranker_strength=2.0, feedback_strength=2.0),
            plan=StatisticsPlan(_PBM, period="day"),
        ),
        4_000,
        ((1, 5), (2, 6)),
    ),
    "randomised rows": Experiment(Design(replace(BASE, randomized_share=0.2), method="randomized"), 2_000, ((1, 5),)),
}


def measure(task: tuple[str, int]) -> Floats:
    """Widths by cell, shape (4, K): now, predicted, found, and the error of the propensity that was found."""
    name, seed = task
    asked = EXPERIMENTS[name]
    log = asked.design.log(seed)
    fit = asked.design.fit(log)
    curves = known(fit).curves()
    growth = asked.pages / sum(curve.pages for curve in curves)
    predicted = predict(curves, growth, dict.fromkeys(asked.swaps, 1 / len(asked.swaps)))
    after = asked.design.fit(log, asked.design.further(seed, asked.pages, asked.swaps))
    true = asked.design.options.examination
    error = np.log(after.estimate.propensity) - np.log((true / true[:, :1]).ravel())
    return np.array([widths_of(fit), predicted.width, widths_of(after), error])


def widths(console: Console, replications: int) -> None:
    """Draw, predict, swap, fit, and print the table."""
    tasks = list(product(EXPERIMENTS, range(replications)))
    results = in_parallel(measure, tasks, "widths")
    table = Table(
        title=f"widths of 95 % intervals of log propensity after further pages with swaps, {replications} logs",
        title_justify="left",
        box=SIMPLE_HEAD,
    )
    table.add_column("log", no_wrap=True)
    headings = ("pages", "now", "predicted", "found", "ratio", "by cell", "cover")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for number, (name, asked) in enumerate(EXPERIMENTS.items()):
        rows = np.array(results[number * replications : (number + 1) * replications])
        table.add_row(name, f"{asked.pages:,}", *_in_words(rows))
    console.print(table)
    console.print("  widths: root mean square over logs, mean over cells; in brackets how many have an interval now;")
    console.print("  ratio: predicted to found, and its smallest and largest value by cell;")
    console.print("  cover: how often the interval that was found contains the truth")


def _in_words(rows: Floats) -> list[str]:
    cells = np.flatnonzero((rows[:, 2] > 0).any(axis=0))
    now, predicted, found, error = np.moveaxis(rows[:, :, cells], 1, 0)
    both = np.isfinite(predicted) & np.isfinite(found)
    shown = [_rms(np.where(both, values, np.nan)) for values in (now, predicted, found)]
    ratio = shown[1] / shown[2]
    known_now = np.isfinite(now).mean()
    always = np.isfinite(now).any(axis=0)
    first = f"{_rms(np.where(np.isfinite(now), now, np.nan)[:, always]).mean():.3f}" if always.any() else "-"
    covered = (np.abs(error) <= found / 2)[both].mean()
    return [
        first + ("" if known_now == 1 else f" ({known_now:.0%})"),
        f"{shown[1].mean():.3f}",
        f"{shown[2].mean():.3f}",
        f"{ratio.mean():.2f}",
        f"{ratio.min():.2f}, {ratio.max():.2f}",
        f"{covered:.0%}",
    ]


def _rms(values: Floats) -> Floats:
    """Over logs."""
    return np.sqrt(np.nanmean(values**2, axis=0))
