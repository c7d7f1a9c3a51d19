"""Other implementations of the click models on the same logs: what they cost, and how far off their theta is.

CLAX (Hager et al., PyPI `clax-models`): PBM and UBM by gradient descent in JAX. It needs an environment of its own:
flax below 0.12, which does not work with a newer JAX than 0.7, and PyTorch, 6.5 GB in all. `--peers DIR` says where
that is; where there is none it is made, so:

    python3 -m venv --without-pip DIR
    python3 -m pip --python DIR/bin/python install clax-models==0.1.1 jax==0.7.1 jaxlib==0.7.1 flax==0.11.2 optax==0.2.8

PyClick (Markov, github.com/markovi/PyClick, GPL, not on PyPI): PBM and UBM by EM in plain Python. `--pyclick DIR` is a
checkout; it takes no packages. It is run on logs of up to a million impressions: on more it takes hours.

Each trains as its own examples do (`scale_peer_clax.py`, `scale_peer_pyclick.py`) and stops by its own rule. Compared
are the cells that posbias identifies. CPU seconds count all threads; one run each.
"""

import subprocess
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from processes import MODELS, POSBIAS, Measured, Model, Stage, errors_of_theta, measure
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from scale_log import simulated_log

SIZES = (1_000_000, 10_000_000)
PYCLICK_IMPRESSIONS = 1_000_000
"""The most that PyClick is given."""
CLAX_PINS = ("clax-models==0.1.1", "jax==0.7.1", "jaxlib==0.7.1", "flax==0.11.2", "optax==0.2.8")

_FOLDER = Path(__file__).parent
_CLAX, _PYCLICK = (str(_FOLDER / f"scale_peer_{name}.py") for name in ("clax", "pyclick"))


def peers(
    console: Console, sizes: Sequence[int], directory: Path | None, clax: Path | None, pyclick: Path | None
) -> None:
    """Train on a PBM log and a UBM log of each size, and print one table."""
    table = Table(title="other implementations, same logs", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("impressions", justify="right")
    table.add_column("model")
    table.add_column("by")
    for heading in ("seconds", "CPU s", "x CPU s\nof posbias", "peak MiB", "cells", "mean error\nof theta"):
        table.add_column(heading, justify="right", no_wrap=True)
    for n_impressions, model in product(sizes, MODELS):
        with simulated_log(n_impressions, model, directory) as log:
            stages = _stages(log, model, clax, pyclick if n_impressions <= PYCLICK_IMPRESSIONS else None)
            measured = measure(stages, 1, f"{n_impressions:,} impressions, {model}")
            _add_rows(table, n_impressions, model, dict(zip(stages, measured, strict=True)))
    console.print(table)
    for name, folder, option in (("CLAX", clax, "--peers"), ("PyClick", pyclick, "--pyclick")):
        if folder is None:
            console.print(f"  {name}: not at hand, {option} says where it is")


def install_clax(folder: Path) -> None:
    """Make an environment for CLAX, unless there is one.

    Raises:
        CalledProcessError: pip could not.
    """
    python = folder / "bin" / "python"
    if python.exists():
        return
    base = str(Path(sys.base_prefix) / "bin" / "python3")  # an environment of ours need not have pip
    subprocess.run([base, "-m", "venv", "--without-pip", str(folder)], check=True)
    subprocess.run([base, "-m", "pip", "--python", str(python), "install", "--quiet", *CLAX_PINS], check=True)


def _stages(log: Path, model: Model, clax: Path | None, pyclick: Path | None) -> list[Stage]:
    def output(name: str) -> Path:
        return log.with_name(f"{name}.parquet")

    fit = log.with_name("fit")
    options = ("--model", model, "--no-compare", "-o", str(fit), "--force")
    stages = [Stage("posbias fit --no-compare", (*POSBIAS, "fit", str(log), *options), fit / "propensities.parquet")]
    if clax is not None:
        install_clax(clax)
        arguments = (_CLAX, str(log), model, str(output("clax")))
        stages.append(Stage("CLAX", arguments, output("clax"), interpreter=str(clax / "bin" / "python")))
    if pyclick is not None:
        arguments = (_PYCLICK, str(log), model, str(output("pyclick")), str(pyclick))
        stages.append(Stage("PyClick", arguments, output("pyclick")))
    return stages


def _add_rows(table: Table, n_impressions: int, model: Model, runs_of: dict[Stage, Measured]) -> None:
    (own, own_runs), *_ = runs_of.items()
    identified = errors_of_theta(_written(own), model).drop("error")
    for stage, runs in runs_of.items():
        errors = errors_of_theta(_written(stage), model).join(identified, on=identified.columns)["error"]
        cpu = runs.median_cpu_seconds()
        table.add_row(
            f"{n_impressions:,}",
            model.upper(),
            stage.name,
            f"{runs.median_seconds():,.1f}",
            f"{cpu:,.1f}",
            f"{cpu / own_runs.median_cpu_seconds():,.0f}",
            f"{max(runs.mebibytes):,.0f}",
            f"{len(errors)}",
            f"{errors.mean():.1%}",
        )
    table.add_section()


def _written(stage: Stage) -> Path:
    if stage.output is None:
        raise RuntimeError(f"{stage.name}: estimates nothing")
    return stage.output
