"""Real logs: every estimator side by side, with its intervals."""

from itertools import product
from pathlib import Path

import polars as pl
from recovery_logs import attempt, heading, statistics_of, with_random_pages
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from posbias.core.counts.plan import StatisticsPlan
from posbias.core.counts.sufficient_statistics import SufficientStatistics
from posbias.core.estimators import Estimate, EstimationOptions, estimator_names
from posbias.core.fit.fit import Fit
from posbias.core.models import get_model

BOOTSTRAP_REPLICATES = 1_000

_LARGE = 10.0
_SHOWN = "propensity and 95 % interval; p of no position effect"
_DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
YANDEX, OPEN_BANDIT = _DATA / "yandex_web_search.parquet", _DATA / "open_bandit_zozo.parquet"
_KINDS = {"": EstimationOptions(), "\nbootstrap": EstimationOptions(bootstrap=BOOTSTRAP_REPLICATES)}


def real(console: Console) -> None:
    """Fit both logs and print a table each; logs that are not there are named."""
    missing = [path.name for path in (YANDEX, OPEN_BANDIT) if not path.exists()]
    if missing:
        console.print(f"not in {_DATA}: {', '.join(missing)}")
        return
    statistics = statistics_of(pl.read_parquet(YANDEX), StatisticsPlan(get_model("pbm")))
    console.print(_table(f"Yandex web search, PBM: {_SHOWN}", statistics))
    log, randomized = with_random_pages(pl.read_parquet(OPEN_BANDIT).rename({"campaign": "query", "item_id": "doc"}))
    statistics = statistics_of(log, StatisticsPlan(get_model("pbm"), randomized=randomized))
    console.print(_table(f"Open Bandit (ZOZOTOWN), PBM, two campaigns: {_SHOWN}", statistics))


def _table(title: str, statistics: SufficientStatistics) -> Table:
    found = {
        f"{heading(name)}{kind}": attempt(name, statistics, options)
        for name, (kind, options) in product(estimator_names(), _KINDS.items())
    }
    served = {name: fit for name, fit in found.items() if isinstance(fit, Fit)}
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=0)
    table.add_column("at", justify="right")
    for name in served:
        table.add_column(name, justify="right", no_wrap=True)
    for cell, position in enumerate(statistics.position_of_cell.tolist()):
        table.add_row(str(position), *(_number(fit.estimate, cell) for fit in served.values()))
    table.add_section()
    table.add_row("p", *map(_p_value, served.values()))
    return table


def _number(estimate: Estimate, cell: int) -> str:
    propensity, low, high = (
        values[cell] for values in (estimate.propensity, estimate.intervals.low, estimate.intervals.high)
    )
    return f"{_short(propensity)} {_short(low)}-{_short(high)}" if low < high else _short(propensity)


def _short(value: float) -> str:
    return f"{value:.{2 if value < _LARGE else 0}f}"


def _p_value(fit: Fit) -> str:
    """Of the hypothesis that no propensity differs from 1, over all positions at once."""
    return "-" if fit.position_effect is None else f"{fit.position_effect.p_value:.2g}"
