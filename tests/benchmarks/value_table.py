"""The tables of `value.py`, and whether its aims are met."""

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.table import Table
from value_measure import CONDITIONAL, JOINT, LABELS, LOGGING, METHODS, NAIVE, NONE, SOURCES, THETA_ERROR, TRUE
from value_worlds import Setting

Floats = NDArray[np.float64]

CLOSE = 0.005
"""How far conditional may be from true propensities, on either side."""

SHARE = 0.6
"""Of the way from naive clicks to the labels, to be gone at `MANY_SESSIONS`."""

MANY_SESSIONS = 30_000


class Results:
    """NDCG by setting, method, source of the propensities and seed, the folds averaged."""

    def __init__(self, settings: Sequence[Setting], measured: pl.DataFrame) -> None:
        """Take all seeds, with the column `setting`, its number."""
        self.settings = settings
        keys = ["setting", "method", "source", "seed"]
        self._by_seed = measured.group_by(keys).agg(pl.exclude("fold").mean()).sort(keys)

    def of(self, setting: int, method: str, source: str, figure: str) -> Floats:
        """A figure by seed; empty where the method did not run."""
        chosen = (pl.col("setting") == setting) & (pl.col("method") == method) & (pl.col("source") == source)
        return self._by_seed.filter(chosen)[figure].to_numpy()

    def of_all(self, method: str, source: str, figure: str) -> list[Floats]:
        """The same for every setting."""
        return [self.of(number, method, source, figure) for number in range(len(self.settings))]

    def weighted_methods(self) -> list[str]:
        """The methods that take weights and ran, in their order."""
        ran = set(self._by_seed["method"])
        return [method.name for method in METHODS if method.weighted and method.name in ran]


def ndcg_table(results: Results, figure: str, n_seeds: int) -> Table:
    """Methods by settings."""
    title = f"{figure} on the true labels of held-out queries; mean ± standard deviation over {n_seeds} seeds"
    table = _by_setting(title, results.settings)

    def add(label: str, method: str, source: str) -> None:
        values = results.of_all(method, source, figure)
        if any(map(len, values)):
            texts = (_mean_and_spread(value) + "°" * (0 < len(value) < n_seeds) for value in values)
            table.add_row(label, *texts)

    add(LOGGING, LOGGING, NONE)
    for method in METHODS:
        if not method.weighted:
            add(method.name, method.name, NONE)
    for name in results.weighted_methods():
        table.add_section()
        table.add_row(f"[bold]{name}")
        for source in SOURCES:
            add(f"  {source}", name, source)
    table.add_section()
    add(LABELS, LABELS, NONE)
    table.caption = "°: over the first seeds only"
    return table


def theta_table(results: Results) -> Table:
    """How wrong the propensities were."""
    table = _by_setting("theta: mean |error| over the positions", results.settings)
    for source in (JOINT, CONDITIONAL):
        table.add_row(source, *map(_mean_and_spread, results.of_all(THETA_ERROR, source, "theta")))
    return table


def aims_table(results: Results, figure: str) -> Table:
    """What was aimed at, layout by layout; what misses its aim is marked."""
    table = _by_setting(f"aims, {figure}; !: missed; ±: standard error of a paired difference", results.settings)
    table.add_row(f"[bold]conditional - true propensities, within {CLOSE:g}".replace("0.", "."))
    for name in results.weighted_methods():
        pairs = zip(results.of_all(name, CONDITIONAL, figure), results.of_all(name, TRUE, figure), strict=True)
        table.add_row(f"  {name}", *(_closeness(one - other) for one, other in pairs))
    table.add_section()
    table.add_row(f"[bold]conditional: of the way from naive to labels, {SHARE:.0%} from {MANY_SESSIONS:,} pages on")
    labels = results.of_all(LABELS, NONE, figure)
    for name in results.weighted_methods():
        ways = zip(results.of_all(name, NAIVE, figure), results.of_all(name, CONDITIONAL, figure), labels, strict=True)
        table.add_row(f"  {name}", *(_way(*way, setting) for way, setting in zip(ways, results.settings, strict=True)))
    return table


def _by_setting(title: str, settings: Sequence[Setting]) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("")
    for setting in settings:
        pages = f"{setting.dataset}\n{setting.n_sessions:,} pages"
        heading = f"{pages}\neta {setting.eta:g}\ntemp. {setting.temperature:g}"
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _mean_and_spread(values: Floats) -> str:
    if not len(values):
        return "-"
    spread = f" ±{values.std(ddof=1):.3f}" if len(values) > 1 else ""
    return _short(f"{values.mean():.3f}{spread}")


def _closeness(difference: Floats) -> str:
    if not len(difference):
        return "-"
    error = f" ±{difference.std(ddof=1) / np.sqrt(len(difference)):.3f}" if len(difference) > 1 else ""
    mean = float(difference.mean())
    return _marked(_short(f"{mean:+.3f}{error}"), met=abs(mean) <= CLOSE)


def _way(naive: Floats, conditional: Floats, labels: Floats, setting: Setting) -> str:
    if not len(naive):
        return "-"
    on_same_seeds = labels[: len(naive)]
    share = float((conditional.mean() - naive.mean()) / (on_same_seeds.mean() - naive.mean()))
    return _marked(f"{share:.0%}", met=share >= SHARE or setting.n_sessions < MANY_SESSIONS)


def _marked(text: str, *, met: bool) -> str:
    return text if met else f"[red]{text}![/]"


def _short(text: str) -> str:
    """Numbers below 1 without their leading 0."""
    return text.replace("0.", ".")
