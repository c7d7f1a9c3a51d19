"""Another implementation of the estimate: pyfixest's `fepois`, a Poisson regression with a fixed effect per pair.

pyfixest (Fischer et al., PyPI) is a Python port of R's fixest (Bergé 2018). It needs an environment of its own, of
560 MB; `--pyfixest DIR` says where that is; where there is none it is made, so:

    python3 -m venv --without-pip DIR
    python3 -m pip --python DIR/bin/python install pyfixest==0.60.0

It is given the counts of pairs and cells, with the logarithm of the impressions as an offset. Its errors are by query
as ours are, but CRV1, without leaving queries out.
"""

import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

import narwhals as nw
import numpy as np
import polars as pl
from recovery_coverage import DESIGNS, Design
from recovery_logs import Floats, statistics_of
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from posbias.core.counts.plan import StatisticsPlan
from posbias.core.estimators import EstimationOptions
from posbias.core.fit.fit import fit_statistics
from posbias.core.models import get_model
from posbias.core.simulation.simulate import simulate
from posbias.core.theta.joint import EMOptions

PIN = "pyfixest==0.60.0"
_PEER = str(Path(__file__).with_name("recovery_fepois_peer.py"))
_NAMES = ("20 even, shocks", "20 Zipf", "200 Zipf, shocks", "20,000 even", "UBM, 200 even")


def fepois(console: Console, environment: Path | None) -> None:
    """Fit a log of several kinds by both, and print the table."""
    if environment is None:
        console.print(f"  fepois: pyfixest is not at hand, --pyfixest says where it is ({PIN})", highlight=False)
        return
    table = Table(
        title="log theta by posbias and by pyfixest's fepois, on one log each", title_justify="left", box=SIMPLE_HEAD
    )
    table.add_column("queries")
    for heading in ("pairs", "clicks", "cells", "largest\ndifference", "CRV1 to CR3,\nlowest", "highest"):
        table.add_column(heading, justify="right")
    for design in (design for design in DESIGNS if design.name in _NAMES):
        table.add_row(design.name, *_compared(design, environment))
    console.print(table)


def _compared(design: Design, environment: Path) -> tuple[str, ...]:
    log = simulate(replace(design.options, seed=0)).log
    plan = StatisticsPlan(get_model(design.options.model))
    counts = statistics_of(log, plan)
    asked = EstimationOptions(attractiveness_prior=EMOptions().attractiveness_prior)
    fit = fit_statistics(counts, "conditional", asked, compare=False)
    linkage = fit.estimate.linkage
    free = np.setdiff1d(np.flatnonzero(linkage.identified), linkage.references)
    theirs = _by_pyfixest(_by_pair(log, plan, counts.cells), environment)
    log_theta, std_error = (_of_cells(theirs, name, counts.n_cells) for name in ("log_theta", "std_error"))
    reference = int(linkage.references[0])
    difference = np.abs(np.log(fit.estimate.propensity) - (log_theta - log_theta[reference]))[free]
    ratio = (std_error / fit.estimate.intervals.std_error)[free]
    return (
        f"{log.select('query', 'doc').n_unique():,}",
        f"{log['click'].sum():,}",
        str(len(free)),
        f"{difference.max():.0e}",
        f"{ratio.min():.2f}",
        f"{ratio.max():.2f}",
    )


def _by_pair(log: pl.DataFrame, plan: StatisticsPlan, cells: pl.DataFrame) -> pl.DataFrame:
    """Impressions and clicks of each pair and cell, by numbers."""
    counted = plan.count(nw.from_native(log.lazy())).to_native().collect()
    numbered = cells.with_row_index("cell")
    return counted.join(numbered, on=cells.columns).select(
        pl.struct("query", "doc").rank("dense").alias("pair"), "query", "cell", "impressions", "clicks"
    )


def _by_pyfixest(counts: pl.DataFrame, environment: Path) -> pl.DataFrame:
    with tempfile.TemporaryDirectory() as folder:
        given, found = Path(folder, "counts.csv"), Path(folder, "found.csv")
        counts.write_csv(given)
        python = str(environment / "bin" / "python")
        subprocess.run([python, "-W", "ignore", _PEER, str(given), str(found)], check=True, stdout=subprocess.DEVNULL)
        return pl.read_csv(found)


def _of_cells(found: pl.DataFrame, column: str, n_cells: int) -> Floats:
    values = np.zeros(n_cells)
    values[found["cell"].to_numpy()] = found[column].to_numpy()
    return values
