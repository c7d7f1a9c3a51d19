"""Rankers that learn from clicks: what `--period auto` makes of their logs, and the size and power of its test.

How auto decides was worked out, and its constants chosen, on the seeds 1000 to 1009; what is printed comes from the
seeds 0, 1, 2 ... "before" is what auto did until it could see within days: the whole log, or days where their
errors are at most 1.5 times as large or the two estimates differ. What is asked once feedback has shown (that what
may be left of it fits the interval) was worked out on the seeds 1000 to 1016; the table of claims holds it against auto
without that.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from recovery_logs import Floats, in_parallel, silent, statistics_of, truth_of
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from posbias.core.counts.plan import StatisticsPlan
from posbias.core.counts.sufficient_statistics import SufficientStatistics
from posbias.core.errors import IdentifiabilityError
from posbias.core.estimators import ConditionalEstimator, Estimate, EstimationOptions
from posbias.core.fit.feedback import FeedbackTest, feedback_test
from posbias.core.fit.periods import LARGEST_ERROR_RATIO, choose_period
from posbias.core.models import get_model
from posbias.core.periods import Length
from posbias.core.simulation.simulate import SimulationOptions, simulate
from posbias.core.standard_errors.contrasts import difference_test

PLAN = StatisticsPlan(get_model("pbm"), period="quarter")
OPTIONS = EstimationOptions(reference=(1,))
BASE = SimulationOptions(
    n_sessions=20_000,
    n_queries=200,
    docs_per_query=15,
    n_positions=6,
    query_exponent=0.7,
    days=14,
    attractiveness_scale=0.5,
)
CONTINUOUS = 288
"""Updates a day that come to the same as one after each click: every five minutes, of some 60 sessions an hour."""
UPDATES = {"none": 0, "1": 1, "4": 4, "24": 24, "continuous": CONTINUOUS}
WEAK = 1.0
"""Feedback of a third of the strength: its errors are as large as the intervals, and it may not show."""
ALMOST_FIXED = {"ranker_strength": 30.0, "score_weight": 0.3}
TESTED: tuple[Length, ...] = ("none", "week", "day", "hour")


@dataclass(frozen=True)
class Kind:
    """One kind of log, drawn anew for every seed."""

    name: str
    options: SimulationOptions


def _learning(updates: int, strength: float = 3.0, **changes: float) -> SimulationOptions:
    learns = {"feedback_strength": strength, "updates_per_day": updates} if updates else {}
    return replace(BASE, **learns, **changes)


KINDS = (
    *(
        Kind(f"{n_queries:,} queries, {name}", _learning(updates, n_queries=n_queries))
        for n_queries in (15, 200, 2_000)
        for name, updates in UPDATES.items()
    ),
    *(
        Kind(f"{n_queries:,} queries, weakly {updates}", _learning(updates, WEAK, n_queries=n_queries))
        for n_queries in (200, 2_000)
        for updates in (1, 4, 24)
    ),
    *(
        Kind(f"almost fixed, {name}", _learning(updates, **ALMOST_FIXED))
        for name, updates in UPDATES.items()
        if name != "continuous"
    ),
    *(Kind(f"almost fixed, weakly {updates}", _learning(updates, WEAK, **ALMOST_FIXED)) for updates in (1, 4, 24)),
    *(
        Kind(f"60,000 in 3 days, {name}", _learning(updates, n_sessions=60_000, n_queries=50, days=3))
        for name, updates in UPDATES.items()
        if name != "continuous"
    ),
)


@dataclass(frozen=True)
class Seen:
    """What became of one log.

    Attributes:
        used: the length that auto chose.
        claims: whether a claim is made for it: the exit code is 0.
        warned: whether there is a warning.
        error: mean relative error of theta, but of the reference.
        covered: share of the intervals that contain the truth.
        undemanding: error and coverage of what would be claimed if no more were asked once feedback has shown.
        before: whether days were kept, the error and the coverage, of what auto did before.
        tests: what the test of feedback found, by length.
    """

    used: Length
    claims: bool
    warned: bool
    error: float
    covered: float
    undemanding: tuple[float, float] | None
    before: tuple[bool, float, float]
    tests: dict[Length, FeedbackTest | None]


def measure_feedback(task: tuple[Kind, int]) -> Seen:
    """Draw one log and look at it as auto does, now and before."""
    kind, seed = task
    simulation = simulate(replace(kind.options, seed=seed))
    log = simulation.log.with_columns(period=pl.col("timestamp").dt.truncate("15m"))
    statistics = statistics_of(log, PLAN)
    truth = truth_of(statistics, simulation.propensities)
    choice = choose_period(statistics, OPTIONS, silent)
    if choice.chosen is None:
        raise ValueError("auto always estimates")
    kept, before = _before(statistics)
    looks = (replace(look, learns=False) for look in choice.looks)
    taken = next((look.estimate for look in looks if look.outcome == "survives"), None)
    return Seen(
        used=choice.used,
        claims=choice.claims,
        warned=choice.feedback_possible,
        error=_error(choice.chosen, truth),
        covered=_covered(choice.chosen, truth),
        undemanding=None if taken is None else (_error(taken, truth), _covered(taken, truth)),
        before=(kept, _error(before, truth), _covered(before, truth)),
        tests={length: feedback_test(statistics.order(length)) for length in TESTED},
    )


def _before(statistics: SufficientStatistics) -> tuple[bool, Estimate]:
    """Whether days were kept, and the estimate, of what auto did before."""
    pooled = ConditionalEstimator().estimate(statistics, statistics.strata(), OPTIONS, silent)
    try:
        daily = ConditionalEstimator().estimate(statistics, statistics.strata("day"), OPTIONS, silent)
    except IdentifiabilityError:
        return False, pooled
    lost = (pooled.linkage.identified & ~daily.linkage.identified).any()
    ratio = np.nan_to_num(daily.intervals.std_error[1:] / pooled.intervals.std_error[1:], nan=np.inf)
    same = np.array_equal(pooled.linkage.references, daily.linkage.references)
    kept = not lost and bool(ratio.max() <= LARGEST_ERROR_RATIO)
    if not kept and same and daily.fitted is not None and pooled.fitted is not None:
        kept = difference_test(daily.fitted.scored(), pooled.fitted.scored()).rejected
    return kept, daily if kept else pooled


def _error(estimate: Estimate, truth: Floats) -> float:
    return float(np.nanmean(np.abs(estimate.propensity / truth - 1)[1:]))


def _covered(estimate: Estimate, truth: Floats) -> float:
    low, high = estimate.intervals.low[1:], estimate.intervals.high[1:]
    known = np.isfinite(low + high)
    return float(((low <= truth[1:]) & (truth[1:] <= high))[known].mean()) if known.any() else np.nan


def feedback(console: Console, replications: int) -> None:
    """Draw, choose, and print both tables."""
    tasks = [(kind, seed) for seed in range(replications) for kind in KINDS]
    results = in_parallel(measure_feedback, tasks, "feedback")
    rows = {kind.name: results[number :: len(KINDS)] for number, kind in enumerate(KINDS)}
    console.print(_choices(rows, replications))
    console.print(_claims(rows))
    console.print(_tests(rows))


def _choices(rows: dict[str, list[Seen]], replications: int) -> Table:
    title = f"--period auto over {replications} logs: choices, warnings, error and coverage in %"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("queries, updates a day")
    for name in ("before: days", "error", "cover", "now", "warned", "exit 1", "error", "cover", "of claims"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, logs in rows.items():
        kept, error, covered = np.nanmean([log.before for log in logs], axis=0)
        used = " ".join(f"{length}:{number}" for length, number in Counter(log.used for log in logs).most_common())
        claimed = [log for log in logs if log.claims and not log.warned]
        table.add_row(
            name,
            *(f"{value:.0%}".rstrip("%") for value in (kept, error, covered)),
            used,
            *(f"{np.mean([flag(log) for log in logs]):.0%}".rstrip("%") for flag in (_warned, _without_claim)),
            *(f"{value:.1%}".rstrip("%") for value in _error_and_cover(logs)),
            " ".join(f"{value:.1%}".rstrip("%") for value in _error_and_cover(claimed)) if claimed else "-",
        )
    return table


def _claims(rows: dict[str, list[Seen]]) -> Table:
    title = "claims by --period auto, in % of the logs; error and coverage in % of what is claimed"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("queries, updates a day")
    for name in ("logs", "before", "error", "cover", "now", "error", "cover"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, logs in rows.items():
        before = [log.undemanding for log in logs if log.undemanding is not None]
        now = [(log.error, log.covered) for log in logs if log.claims and not log.warned]
        table.add_row(name, str(len(logs)), *(cell for found in (before, now) for cell in _claimed(found, len(logs))))
    return table


def _claimed(found: Sequence[tuple[float, float]], n_logs: int) -> tuple[str, str, str]:
    share = f"{100 * len(found) / n_logs:.0f}"
    if not found:
        return share, "-", "-"
    error, covered = np.nanmean(found, axis=0)
    return share, f"{100 * error:.1f}", f"{100 * covered:.1f}"


def _warned(log: Seen) -> bool:
    return log.warned


def _without_claim(log: Seen) -> bool:
    return not log.claims


def _error_and_cover(logs: Sequence[Seen]) -> tuple[float, float]:
    return float(np.nanmean([log.error for log in logs])), float(np.nanmean([log.covered for log in logs]))


def _tests(rows: dict[str, list[Seen]]) -> Table:
    title = "test of feedback within strata, in %: how often it rejects (size where nothing is learnt within them),\n"
    title += "how often it would have found what matters (median bias of eta that it would miss)"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("queries, updates a day")
    for length in TESTED:
        table.add_column(length, justify="right", no_wrap=True)
    for name, logs in rows.items():
        table.add_row(name, *(_tested([log.tests[length] for log in logs]) for length in TESTED))
    return table


def _tested(tests: Sequence[FeedbackTest | None]) -> str:
    made = [test for test in tests if test is not None]
    if not made:
        return "-"
    rejected, enough = np.mean([test.rejected for test in made]), np.mean([test.enough for test in made])
    missed = np.median([test.missed_bias for test in made])
    return f"{rejected:.0%} {enough:.0%} ({missed:.2f})".replace("%", "")
