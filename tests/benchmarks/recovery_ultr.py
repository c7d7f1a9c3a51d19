"""Another implementation of intervention harvesting: the ULTR bias toolkit (Hager, PyPI), beside ours.

It needs an environment of its own; `--ultr DIR` says where that is; where there is none it is made, so:

    python3 -m venv --without-pip DIR
    python3 -m pip --python DIR/bin/python install ultr_bias_toolkit==0.0.5

It is given the rows of the log. Adjacent chain is a product of ratios, in which both must agree. All pairs it climbs by
5,000 epochs of stochastic steps, its relevance of two positions being that of their product, so that 2 and 6 share one
with 3 and 4: there the two need not agree, and the error against the truth says which is closer. The pivot has no
counterpart here.
"""

import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl
from recovery_coverage import DESIGNS, Design
from recovery_logs import Floats, attempt, statistics_of, truth_of
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from posbias.core.counts.plan import StatisticsPlan
from posbias.core.estimators import EstimationOptions
from posbias.core.fit.fit import Fit
from posbias.core.models import get_model
from posbias.core.simulation.simulate import simulate

PIN = "ultr_bias_toolkit==0.0.5"
_PEER = str(Path(__file__).with_name("recovery_ultr_peer.py"))
_NAMES = ("20 even", "200 even", "200 Zipf", "20,000 even", "20,000 Zipf")
_DEFAULT, _PIVOT = "conditional", "pivot"
_SHARED = ("adjacent-chain", "allpairs")


def ultr(console: Console, environment: Path | None, logs: int) -> None:
    """Estimate logs of several kinds by both, and print the table."""
    if environment is None:
        console.print(f"  ultr: the toolkit is not at hand, --ultr says where it is ({PIN})", highlight=False)
        return
    title = f"mean relative error of theta in %, {logs} logs each; the largest difference of log theta between the two"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column("queries")
    table.add_column("method")
    for name in ("posbias", "toolkit", "largest difference"):
        table.add_column(name, justify="right")
    for design in (design for design in DESIGNS if design.name in _NAMES):
        measured = [_compared(design, seed, environment) for seed in range(logs)]
        for number, method in enumerate(measured[0]):
            table.add_row("" if number else design.name, method, *_cells([log[method] for log in measured]))
    console.print(table)


@dataclass(frozen=True)
class _Both:
    """One estimator on one log: the errors of both implementations, NaN where there is none, and their difference."""

    ours: float
    theirs: float
    difference: float


def _compared(design: Design, seed: int, environment: Path) -> dict[str, _Both]:
    simulation = simulate(replace(design.options, seed=seed))
    statistics = statistics_of(simulation.log, StatisticsPlan(get_model(design.options.model)))
    truth = truth_of(statistics, simulation.propensities)
    theirs = _by_toolkit(simulation.log, environment)
    ours = {name: _by_posbias(attempt(name, statistics, EstimationOptions())) for name in (_DEFAULT, *_SHARED)}
    return {
        _DEFAULT: _Both(_error(ours[_DEFAULT], truth), np.nan, np.nan),
        **{
            name: _Both(_error(ours[name], truth), _error(theirs[name], truth), _difference(ours[name], theirs[name]))
            for name in _SHARED
        },
        _PIVOT: _Both(np.nan, _error(theirs[_PIVOT], truth), np.nan),
    }


def _cells(logs: Sequence[_Both]) -> tuple[str, str, str]:
    ours, theirs = (float(np.mean(errors)) for errors in ([log.ours for log in logs], [log.theirs for log in logs]))
    difference = max(log.difference for log in logs)
    return _known(f"{100 * ours:.1f}"), _known(f"{100 * theirs:.1f}"), _known(f"{difference:.0e}")


def _known(number: str) -> str:
    return "-" if number == "nan" else number


def _by_posbias(fit: object) -> Floats:
    if not isinstance(fit, Fit):
        raise TypeError(f"these logs allow a fit: {fit}")
    return fit.estimate.propensity


def _by_toolkit(log: pl.DataFrame, environment: Path) -> Mapping[str, Floats]:
    """Theta of each position, relative to the first, by estimator."""
    rows = log.select(query_id="query", doc_id="doc", position="position", click="click")
    with tempfile.TemporaryDirectory() as folder:
        given, written = Path(folder, "log.csv"), Path(folder, "found.csv")
        rows.write_csv(given)
        command = [str(environment / "bin" / "python"), "-W", "ignore", _PEER, str(given), str(written)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        found = pl.read_csv(written).sort("method", "position")
    return {name: _relative(found.filter(method=name)["examination"].to_numpy()) for name in (*_SHARED, _PIVOT)}


def _relative(examination: Floats) -> Floats:
    return examination / examination[0]


def _difference(ours: Floats, theirs: Floats) -> float:
    return float(np.abs(np.log(ours / theirs)).max())


def _error(propensity: Floats, truth: Floats) -> float:
    return float(np.abs(propensity / truth - 1)[1:].mean())
