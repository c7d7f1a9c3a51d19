"""The tables of `value.py`, and whether its aims are met."""

from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.table import Table
from value_measure import CONDITIONAL, JOINT, LABELS, LOGGING, METHODS, NAIVE, NONE, SOURCES, THETA_ERROR, TRUE
from value_worlds import Setting

Floats = NDArray[np.float64]

CLOSE = 0.005
"""How far conditional may be from true propensities."""

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


def heading(setting: Setting) -> str:
    """A setting as a column's heading."""
    sticky = f"temp. {setting.temperature:g}"
    return f"{setting.dataset}\n{setting.n_sessions:,} pages\neta {setting.eta:g}, {sticky}"


def ndcg_table(results: Results, figure: str, n_seeds: int) -> Table:
    """Methods by settings."""
    table = Table(
        title=f"{figure} on the true labels of held-out queries, mean ± standard deviation over {n_seeds} seeds",
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("")
    for setting in results.settings:
        table.add_column(heading(setting), justify="right", no_wrap=True)

    def add(label: str, method: str, source: str) -> None:
        values = [results.of(number, method, source, figure) for number in range(len(results.settings))]
        if any(map(len, values)):
            table.add_row(label, *map(_mean_and_spread, values))

    add(LOGGING, LOGGING, NONE)
    for method in METHODS:
        if not method.weighted:
            add(method.name, method.name, NONE)
    for method in METHODS:
        if method.weighted:
            table.add_section()
            table.add_row(f"[bold]{method.name}")
            for source in SOURCES:
                add(f"  {source}", method.name, source)
    table.add_section()
    add(LABELS, LABELS, NONE)
    return table


def theta_table(results: Results) -> Table:
    """How wrong the propensities were."""
    table = Table(
        title=f"{THETA_ERROR} over the positions", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    table.add_column("")
    for setting in results.settings:
        table.add_column(heading(setting), justify="right", no_wrap=True)
    for source in (JOINT, CONDITIONAL):
        values = [results.of(number, THETA_ERROR, source, "theta") for number in range(len(results.settings))]
        table.add_row(source, *map(_mean_and_spread, values))
    return table


def _mean_and_spread(values: Floats) -> str:
    if not len(values):
        return "-"
    spread = f" ±{values.std(ddof=1):.3f}".replace("0.", ".") if len(values) > 1 else ""
    return f"{values.mean():.3f}".replace("0.", ".") + spread


def aims(results: Results, figure: str) -> Iterator[str]:
    """Each aim, layout by layout, and whether it is met."""
    for number, setting in enumerate(results.settings):
        labels = results.of(number, LABELS, NONE, figure).mean()
        for method in METHODS:
            naive, conditional, true = (
                results.of(number, method.name, source, figure) for source in (NAIVE, CONDITIONAL, TRUE)
            )
            if not method.weighted or not len(naive):
                continue
            gap = true - conditional
            lines = [
                _verdict(
                    abs(gap.mean()) <= CLOSE, f"conditional within {CLOSE:g} of true propensities: {_difference(-gap)}"
                )
            ]
            if setting.n_sessions >= MANY_SESSIONS:
                share = (conditional.mean() - naive.mean()) / (labels - naive.mean())
                lines.append(
                    _verdict(
                        share >= SHARE, f"{share:.0%} of the way from naive clicks to the labels, at least {SHARE:.0%}"
                    )
                )
            yield f"{heading(setting)}, {method.name}: {'; '.join(lines)}".replace("\n", ", ")


def _verdict(met: bool, text: str) -> str:  # noqa: FBT001
    return f"met ({text})" if met else f"[red]MISSED[/] ({text})"


def _difference(values: Floats) -> str:
    error = f" ± {values.std(ddof=1) / np.sqrt(len(values)):.4f}" if len(values) > 1 else ""
    return f"{values.mean():+.4f}{error}"
