"""Speed of the fits on a compressed log, and what `posbias fit` costs beyond collecting."""

import statistics
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import main_job
import polars as pl
from processes import POSBIAS, Measured
from recovery_logs import silent, statistics_of
from recovery_real import YANDEX
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from posbias.core.arrays.count_table import CountTable
from posbias.core.counts.plan import StatisticsPlan
from posbias.core.counts.sufficient_statistics import SufficientStatistics
from posbias.core.estimators import EstimationOptions, get_estimator
from posbias.core.models import get_model
from posbias.core.theta.joint import EMOptions, JointFit, fit_joint

IMPRESSIONS = 10_000_000
COST_DEMAND = 0.15
"""Cost of `fit --no-compare` beyond collecting, relative to collecting, that is asked for."""
SAME_OBJECTIVE = 1e-9
"""Relative distance to the converged objective at which EM has arrived."""

_CONVERGED = EMOptions(tolerance=1e-12, max_iterations=30_000)
_RESOLUTION = 0.01  # of the number of evaluations
_FIRST_TRY = 24


@contextmanager
def simulated_log(n_impressions: int) -> Generator[Path]:
    """A log in a temporary directory, drawn in a process of its own: a child starts with its parent's peak memory."""
    with tempfile.TemporaryDirectory(prefix="recovery-") as folder:
        log = Path(folder) / "log.parquet"
        Measured().add((main_job.__file__, "--simulate", str(log), str(n_impressions)))
        yield log


@dataclass(frozen=True)
class Timed:
    """How long something took, in seconds, and in passes over the entries."""

    seconds: float
    evaluations: int


def speed(console: Console, n_impressions: int) -> None:
    """Time the fits, and print the table."""
    title = (
        "fits of a compressed log: seconds, and passes over it (Newton steps; EM steps\n"
        f"until the objective is within {SAME_OBJECTIVE:.0e} of the converged one, relatively)"
    )
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column("log")
    for heading in ("impressions", "pairs", "signatures", "conditional\nwith errors", "plain EM", "SQUAREM", "ratio"):
        table.add_column(heading, justify="right", no_wrap=True)
    with simulated_log(n_impressions) as log:
        table.add_row("simulated", *_timings(_statistics(log)))
    if YANDEX.exists():
        table.add_row("Yandex", *_timings(_statistics(YANDEX)))
    console.print(table)


def _statistics(log: Path) -> SufficientStatistics:
    return statistics_of(pl.read_parquet(log), StatisticsPlan(get_model("pbm")))


def _timings(statistics: SufficientStatistics) -> list[str]:
    table = statistics.pair_signatures
    objective = fit_joint(table, _CONVERGED).objective
    conditional = _time_conditional(statistics)
    plain, squarem = (_time_em(table, objective, accelerate=accelerate) for accelerate in (False, True))
    impressions, _ = statistics.cell_totals
    sizes = (f"{impressions.sum():,.0f}", f"{statistics.n_pairs:,}", f"{table.n_units:,}")
    times = (f"{timed.seconds:.2f} s, {timed.evaluations:,}" for timed in (conditional, plain, squarem))
    return [*sizes, *times, f"{plain.evaluations / squarem.evaluations:.1f}"]


def _time_conditional(statistics: SufficientStatistics) -> Timed:
    estimator, strata = get_estimator("conditional"), statistics.strata()
    begin = time.perf_counter()
    estimate = estimator.estimate(statistics, strata, EstimationOptions(), silent)
    return Timed(time.perf_counter() - begin, estimate.iterations)


def _time_em(table: CountTable, objective: float, *, accelerate: bool) -> Timed:
    """The fewest evaluations, up to 1 %, that reach the objective, and how long they take."""
    wanted = objective - SAME_OBJECTIVE * abs(objective)

    def run(evaluations: int) -> JointFit:
        return fit_joint(table, EMOptions(tolerance=0.0, max_iterations=evaluations, accelerate=accelerate))

    evaluations = _fewest(lambda number: run(number).objective >= wanted)
    begin = time.perf_counter()
    fit = run(evaluations)
    return Timed(time.perf_counter() - begin, fit.evaluations)


def _fewest(enough: Callable[[int], bool]) -> int:
    """The smallest number that is enough, up to 1 %: by doubling, then by halving the gap.

    Raises:
        RuntimeError: not even the most iterations that are ever allowed are enough.
    """
    low, high = 0, _FIRST_TRY
    while not enough(high):
        if high > _CONVERGED.max_iterations:
            raise RuntimeError(f"not there after {high:,} evaluations")
        low, high = high, 2 * high
    while high - low > max(1, _RESOLUTION * high):
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


_COLLECT, _FIT, _COMPARE = "posbias collect LOG", "posbias fit --no-compare LOG", "posbias fit --compare LOG"
_FIT_KEPT, _COMPARE_KEPT = "posbias fit --no-compare STATISTICS", "posbias fit --compare STATISTICS"


def cost(console: Console, n_impressions: int, runs: int) -> None:
    """Time whole processes, round by round, and print the table."""
    with simulated_log(n_impressions) as log:
        commands = _commands(log)
        measured = {name: Measured() for name in commands}
        for _ in range(runs):
            for name, arguments in commands.items():
                measured[name].add(arguments)
    seconds = {name: statistics.median(result.seconds) for name, result in measured.items()}
    title = f"whole processes, {n_impressions:,} impressions, medians of {runs} runs"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column("process")
    for name in ("seconds", "beyond collecting", "share of collecting"):
        table.add_column(name, justify="right")
    table.add_row(_COLLECT, f"{seconds[_COLLECT]:.2f}")
    for name in (_FIT, _COMPARE, _FIT_KEPT, _COMPARE_KEPT):
        beyond = seconds[name] - (seconds[_COLLECT] if name in (_FIT, _COMPARE) else 0.0)
        share = beyond / seconds[_COLLECT]
        missed = " !" if name == _FIT and share > COST_DEMAND else ""
        table.add_row(name, f"{seconds[name]:.2f}", f"{beyond:.2f}", f"{share:.0%}{missed}")
    console.print(table)
    added = seconds[_COMPARE_KEPT] - seconds[_FIT_KEPT]
    console.print(
        f"  the comparison with joint EM adds {added:.2f} s, {added / seconds[_COLLECT]:.0%} of collecting",
        highlight=False,
    )
    console.print(f"  !: more than the {COST_DEMAND:.0%} that are asked for", highlight=False)


def _commands(log: Path) -> dict[str, tuple[str, ...]]:
    """Command lines, in an order in which each finds what it needs."""
    kept = str(log.with_name("statistics"))

    def fit(source: str, option: str) -> tuple[str, ...]:
        return (*POSBIAS, "fit", source, "-o", str(log.with_name("fit")), "--force", option)

    return {
        _COLLECT: (*POSBIAS, "collect", str(log), "-o", kept, "--force"),
        _FIT: fit(str(log), "--no-compare"),
        _COMPARE: fit(str(log), "--compare"),
        _FIT_KEPT: fit(kept, "--no-compare"),
        _COMPARE_KEPT: fit(kept, "--compare"),
    }


_FIRST_MOMENT, _TWO_WEEKS = datetime(2026, 1, 5), timedelta(days=14)  # noqa: DTZ001 - logs without a zone
_KINDS = ("no time", "dates", "times of day")


def times(console: Console, n_impressions: int, runs: int) -> None:
    """Processor time of `posbias fit`, by what the log says of time, round by round: the machine need not be idle."""
    with simulated_log(n_impressions) as log:
        logs = _with_times(log)
        measured = {kind: Measured() for kind in _KINDS}
        for _ in range(runs):
            for kind, path in logs.items():
                asked = () if kind == _KINDS[0] else ("--timestamp", "moment")
                output = str(log.with_name("fit"))
                measured[kind].add((*POSBIAS, "fit", str(path), *asked, "-o", output, "--force"))
    title = f"posbias fit, {n_impressions:,} impressions over 14 days, --period auto, medians of {runs} runs"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column("log")
    for name in ("processor seconds", "to no time"):
        table.add_column(name, justify="right")
    seconds = {kind: statistics.median(result.cpu_seconds) for kind, result in measured.items()}
    for kind in _KINDS:
        table.add_row(kind, f"{seconds[kind]:.1f}", f"{seconds[kind] / seconds[_KINDS[0]]:.2f}")
    console.print(table)


def _with_times(log: Path) -> dict[str, Path]:
    """The log, and copies with the date or the time of each session, evenly over two weeks."""
    rows = pl.scan_parquet(log)
    share = pl.col("session") / (pl.col("session").max() + 1)
    moment = (pl.lit(_FIRST_MOMENT) + share * pl.lit(_TWO_WEEKS)).alias("moment")
    logs = {kind: log.with_name(f"log-{number}.parquet") for number, kind in enumerate(_KINDS[1:])}
    rows.with_columns(moment.dt.date()).sink_parquet(logs["dates"])
    rows.with_columns(moment).sink_parquet(logs["times of day"])
    return {_KINDS[0]: log, **logs}
