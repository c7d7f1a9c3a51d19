"""What the parts of `recovery.py` share: statistics of a log, estimates beside the truth, two processes at work."""

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from typing import TypeVar
from unittest.mock import patch

import narwhals as nw
import numpy as np
import polars as pl
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from posbias.core.counts.plan import StatisticsPlan
from posbias.core.counts.sufficient_statistics import SufficientStatistics, compress_part, merge_parts, over_frames
from posbias.core.errors import IdentifiabilityError, UsageError
from posbias.core.estimators import EstimationOptions, check_method
from posbias.core.fit.fit import Fit, fit_statistics
from posbias.core.randomization import RandomizedRows
from posbias.core.schema import RANDOMIZED
from posbias.core.theta.joint import EMOptions

Floats = NDArray[np.float64]
Task = TypeVar("Task")
Result = TypeVar("Result")

PROCESSES = 2

_POLICY = "policy"
_LONG_NAME = 10
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS")


def silent(_: str) -> None:
    """Nobody is told how an estimation proceeds."""


def statistics_of(log: pl.DataFrame, plan: StatisticsPlan) -> SufficientStatistics:
    """Count and compress a log in memory."""
    statistics = plan.count(nw.from_native(log.lazy())).to_native().collect()
    rows = statistics.sort(plan.keys)
    return merge_parts([compress_part(rows, plan)], plan, over_frames(rows))


def with_random_pages(log: pl.DataFrame) -> tuple[pl.DataFrame, tuple[RandomizedRows, ...]]:
    """A log with its shuffled pages marked, and what marks them, for the plan; neither where it has none."""
    if _POLICY not in log.columns:
        return log, ()
    shuffled = (pl.col(_POLICY) == "random").cast(pl.UInt8)
    return log.with_columns(shuffled.alias(RANDOMIZED)), (RandomizedRows(_POLICY, "random"),)


def attempt(
    method: str, statistics: SufficientStatistics, options: EstimationOptions
) -> Fit | IdentifiabilityError | None:
    """A fit; why the log does not allow one; or None where the method cannot serve such a plan.

    Theta is all that counts here: a given prior of attractiveness, the one that joint EM has anyway, saves estimating
    one, and changes no theta.
    """
    options = replace(options, attractiveness_prior=EMOptions().attractiveness_prior)
    try:
        check_method(method, statistics.plan, options)
    except UsageError:
        return None
    try:
        return fit_statistics(statistics, method, options, compare=False)
    except IdentifiabilityError as error:
        return error


def truth_of(statistics: SufficientStatistics, propensities: pl.DataFrame) -> Floats:
    """The true propensity of each cell of the statistics; of its position where a UBM is fitted to PBM clicks."""
    keys = [name for name in statistics.plan.cell_columns if name in propensities.columns]
    joined = statistics.cells.join(propensities, on=keys, how="left", maintain_order="left")
    return joined["propensity"].to_numpy()


def heading(name: str) -> str:
    """An estimator's name as a table's heading: a long one in two lines, e.g. `adjacent-` over `chain`."""
    if ", " in name:
        return name.replace(", ", ",\n")
    if "-" in name or len(name) < _LONG_NAME:
        return name.replace("-", "-\n")
    half = len(name) // 2 + 1
    return f"{name[:half]}-\n{name[half:]}"


def in_parallel(
    function: Callable[[Task], Result], tasks: Sequence[Task], description: str, processes: int = PROCESSES
) -> list[Result]:
    """The results, in the order of the tasks; each process computes in one thread."""
    # Spawned, not forked: a fork inherits Polars' locks, but not the threads that would release them.
    pool = ProcessPoolExecutor(processes, mp_context=get_context("spawn"))
    with patch.dict(os.environ, dict.fromkeys(_ONE_THREAD, "1")), pool:
        return _tracked(pool.map(function, tasks), len(tasks), description)


def _tracked(results: Iterable[Result], total: int, description: str) -> list[Result]:
    console = Console(stderr=True)
    if not console.is_terminal:
        return list(results)
    return list(track(results, total=total, description=description, console=console))
