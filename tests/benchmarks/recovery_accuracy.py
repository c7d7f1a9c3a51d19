"""Mean relative error of theta, per log and estimator."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from recovery_logs import Floats, attempt, heading, in_parallel, silent, statistics_of, truth_of, with_random_pages
from recovery_worlds import SPARSE_AIM, WORLDS, Fitting, World
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from posbias.core.arrays.count_table import CountTable
from posbias.core.attractiveness.prior import estimate_prior, shown_position
from posbias.core.counts.plan import StatisticsPlan
from posbias.core.errors import IdentifiabilityError
from posbias.core.estimators import EstimationOptions, estimator_names
from posbias.core.fit.fit import Fit
from posbias.core.fit.joint_causes import NO_PRIOR, pooled_prior
from posbias.core.fit.periods import choose_period
from posbias.core.models import get_model
from posbias.core.periods import Length, Resolution
from posbias.core.simulation.simulate import Simulation, simulate
from posbias.core.theta.joint import EMOptions, fit_joint

CONDITIONAL, JOINT = "conditional", "joint"
JOINT_OWN_PRIOR, JOINT_NO_PRIOR = "joint, own", "joint, none"
COLUMNS = (*estimator_names(), JOINT_OWN_PRIOR, JOINT_NO_PRIOR)
NOISE = 2.0
"""Standard errors of a paired difference up to which two estimators are called equal."""

_NAME_WIDTH = 19
_TABLE_WIDTH = 130
_TOLERANCE = 1e-5  # of EM with other priors: its error is then known to a tenth of a percent
_NO_DIGITS = 99.95  # percent, from which on a table shows no tenths
_RARE = 10
_MILLION, _THOUSANDS = 1e6, 1e4  # from which on sizes are shown in millions, in thousands


@dataclass(frozen=True)
class LogSize:
    """How large a log is.

    Attributes:
        pairs: (query, document).
        per_pair: median impressions per pair.
        rare: share of the pairs that were shown ten times or less.
        impressions: of all pairs.
        clicks: of all pairs.
    """

    pairs: float
    per_pair: float
    rare: float
    impressions: float
    clicks: float


@dataclass(frozen=True)
class Accuracy:
    """What one log says.

    Attributes:
        size: of the log.
        errors: by estimator, |estimate / truth - 1| of each cell but the first, nan where there is no number;
            an estimator that cannot serve such a log is missing.
        period: the length of periods that was chosen.
    """

    size: LogSize
    errors: Mapping[str, Floats]
    period: Length


def measure_accuracy(task: tuple[World, int]) -> list[Accuracy]:
    """Draw one log and fit it in every way."""
    world, seed = task
    simulation = simulate(replace(world.options, seed=seed))
    return [_fitted(simulation, fitting) for fitting in world.fittings]


def _fitted(simulation: Simulation, fitting: Fitting) -> Accuracy:
    log, randomized = with_random_pages(simulation.log)
    kept: Resolution | None = None if fitting.period == "none" else "quarter"
    if kept is not None:
        log = log.with_columns(period=pl.col("timestamp").dt.truncate("15m"))
    plan = StatisticsPlan(get_model(fitting.model), period=kept, strata=fitting.strata, randomized=randomized)
    statistics = statistics_of(log, plan)
    asked = EstimationOptions(period=fitting.period, reference=(1,))
    used = choose_period(statistics, asked, silent).used
    options = replace(asked, period=used)  # decided once, not for each estimator
    truth = truth_of(statistics, simulation.propensities)
    found = {name: attempt(name, statistics, options) for name in estimator_names()}
    errors = {name: relative_errors(fit, truth) for name, fit in found.items() if fit is not None}
    conditional = found[CONDITIONAL]
    if isinstance(conditional, Fit):
        errors |= _joint_with_other_priors(conditional, statistics.strata(used).signatures, truth)
    return Accuracy(_size(log), errors, used)


def _joint_with_other_priors(fit: Fit, table: CountTable, truth: Floats) -> dict[str, Floats]:
    """The errors of joint EM with the prior of attractiveness that the log itself says, and without any."""
    position = fit.statistics.position_of_cell
    examination = fit.estimate.examination
    prior = pooled_prior(estimate_prior(table, examination, position), shown_position(table, position), table)
    known = np.isfinite(fit.estimate.propensity)

    def errors(options: EMOptions) -> Floats:
        theta = fit_joint(table, options).examination
        return np.where(known, np.abs(theta / theta[0] / truth - 1), np.nan)[1:]

    return {
        JOINT_OWN_PRIOR: errors(EMOptions(attractiveness_prior=prior, tolerance=_TOLERANCE)),
        JOINT_NO_PRIOR: errors(EMOptions(NO_PRIOR, NO_PRIOR, tolerance=_TOLERANCE)),
    }


def relative_errors(fit: Fit | IdentifiabilityError, truth: Floats) -> Floats:
    """|estimate / truth - 1| of each cell but the first, which is the reference; nan where there is no number."""
    if isinstance(fit, IdentifiabilityError):
        return np.full(len(truth) - 1, np.nan)
    return np.abs(fit.estimate.propensity / truth - 1)[1:]


def _size(log: pl.DataFrame) -> LogSize:
    shown = log.group_by("query", "doc").len()["len"].to_numpy()
    clicks = float(log["click"].sum())
    return LogSize(len(shown), float(np.median(shown)), float((shown <= _RARE).mean()), log.height, clicks)


@dataclass(frozen=True)
class Row:
    """One line of the table: a kind of log, fitted in one way, over all seeds."""

    name: str
    aim: float
    logs: Sequence[Accuracy]

    def size(self) -> LogSize:
        """Mean over the logs; of the share of rare pairs the smallest."""
        sizes = [log.size for log in self.logs]
        return LogSize(
            pairs=float(np.mean([size.pairs for size in sizes])),
            per_pair=float(np.median([size.per_pair for size in sizes])),
            rare=float(np.min([size.rare for size in sizes])),
            impressions=float(np.mean([size.impressions for size in sizes])),
            clicks=float(np.mean([size.clicks for size in sizes])),
        )

    def estimators(self) -> list[str]:
        """Those that serve such a log and found a number in each of them."""
        names = self.logs[0].errors
        return [name for name in names if all(np.isfinite(log.errors[name]).any() for log in self.logs)]

    def by_seed(self, name: str) -> Floats:
        """The estimator's mean error over its cells, by seed."""
        return np.array([float(np.nanmean(log.errors[name])) for log in self.logs])

    def gain(self, name: str) -> tuple[float, float]:
        """Mean error of conditional minus the estimator's on the cells that both have, and its standard error."""
        both = [log.errors[CONDITIONAL] - log.errors[name] for log in self.logs]
        return mean_and_error(np.array([float(np.nanmean(difference)) for difference in both]))

    def missing(self, name: str) -> float:
        """Share of the cells without a number."""
        return float(np.mean([np.isnan(log.errors[name]) for log in self.logs]))


def mean_and_error(values: Floats) -> tuple[float, float]:
    """Mean, and its standard error."""
    spread = float(values.std(ddof=1)) if len(values) > 1 else np.nan
    return float(values.mean()), spread / np.sqrt(len(values))


def accuracy(console: Console, n_seeds: int) -> None:
    """Draw, fit, and print the table with its notes."""
    tasks = [(world, seed) for seed in range(n_seeds) for world in WORLDS]
    results = in_parallel(measure_accuracy, tasks, "accuracy")
    rows = [
        Row(
            f"{world.name}: {fitting.label}" if fitting.label else world.name,
            fitting.aim,
            [results[seed * len(WORLDS) + number][way] for seed in range(n_seeds)],
        )
        for number, world in enumerate(WORLDS)
        for way, fitting in enumerate(world.fittings)
    ]
    console.print(_table(rows, n_seeds), width=max(console.width, _TABLE_WIDTH))
    for line in _notes(rows):
        console.print(f"  {line}", highlight=False)


def _table(rows: Sequence[Row], n_seeds: int) -> Table:
    title = f"mean relative error of theta in %, with the standard error of that mean over {n_seeds} logs"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=0)
    table.add_column("log", min_width=_NAME_WIDTH)
    for name in ("pairs", "shown", "impr.", "clicks", *map(heading, COLUMNS), "joint/\ncond."):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        size = row.size()
        sizes = (_short(size.pairs), f"{size.per_pair:,.0f}", _short(size.impressions), _short(size.clicks))
        table.add_row(row.name, *sizes, *_cells(row), _ratio(row))
    return table


def _cells(row: Row) -> list[str]:
    served = row.estimators()
    means = {name: mean_and_error(100 * row.by_seed(name)) for name in served}
    best = min(mean for mean, _ in means.values())
    texts = dict[str, str]()
    for name, (mean, error) in means.items():
        digits = 1 if mean < _NO_DIGITS else 0
        text = f"{mean:.{digits}f}±{error:.{digits}f}" + ("°" if row.missing(name) > 0 else "")
        texts[name] = f"[bold]{text}*[/]" if mean == best else text
    return [texts.get(name, "-") for name in COLUMNS]


def _ratio(row: Row) -> str:
    ratio = _joint_to_conditional(row)
    return f"[red]{ratio:.1f}![/]" if ratio < row.aim else f"{ratio:.1f}"


def _joint_to_conditional(row: Row) -> float:
    return float(row.by_seed(JOINT).mean() / row.by_seed(CONDITIONAL).mean())


def _notes(rows: Sequence[Row]) -> list[str]:
    """What a reader must know: the columns, missed aims, who beats conditional, and cells without a number."""
    rare = min(row.size().rare for row in rows if row.aim == SPARSE_AIM)
    return [
        "shown: median impressions per pair; *: the smallest error; -: the method does not serve such a log;",
        "joint: EM with its prior of 0.5:2; own: with the prior that the log says; none: without any;",
        f"beats: by more than {NOISE:g} standard errors of the difference on the same logs and cells;",
        f"on every log that is called sparse, at least {rare:.0%} of the pairs were shown {_RARE} times or less",
        *(note for row in rows for note in _missed_aims(row)),
        *(note for row in rows for note in _better_ones(row)),
        *(note for row in rows for note in _peculiarities(row)),
    ]


def _missed_aims(row: Row) -> list[str]:
    ratio = _joint_to_conditional(row)
    return [f"! {row.name}: joint / conditional is {ratio:.2f}, should be {row.aim:g} or more"] * (ratio < row.aim)


def _better_ones(row: Row) -> list[str]:
    """Estimators that beat conditional by more than noise."""
    gains = {name: row.gain(name) for name in row.estimators()}
    return [
        f"{name} beats conditional on: {row.name} (by {gain:.2%} ± {error:.2%})"
        for name, (gain, error) in gains.items()
        if gain > NOISE * error > 0
    ]


def _peculiarities(row: Row) -> list[str]:
    """Cells without a number, and what `auto` decided."""
    missing = {name: row.missing(name) for name in row.logs[0].errors}
    notes = [
        f"° {row.name}: {name} has no number in {share:.1%} of the cells" for name, share in missing.items() if share
    ]
    if row.name.endswith("auto"):
        parted = sum(log.period != "none" for log in row.logs)
        notes.append(f"{row.name}: periods were kept apart in {parted} of {len(row.logs)} logs")
    return notes


def _short(number: float) -> str:
    if number >= _MILLION:
        return f"{number / 1e6:.1f}M"
    return f"{number / 1e3:.0f}k" if number >= _THOUSANDS else f"{number:,.0f}"
