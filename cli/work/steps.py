"""Steps that several commands share: gather and fit; each adds its section to the manifest and its table."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from posbias.cli import clock
from posbias.cli.console import line
from posbias.cli.options.options import (
    ColumnOptions,
    CountingOptions,
    EstimationOptions,
    ReadingOptions,
)
from posbias.cli.report import summary, verdicts
from posbias.cli.report.result import WITH_DOUBTS, Result
from posbias.cli.work import setup
from posbias.core.counts.plan import StatisticsPlan
from posbias.core.estimators import check_method
from posbias.core.fit.fit import LARGEST_COMPARISON, WANTED_CLICK_SHARE, Fit, fit_statistics
from posbias.core.training.weights import as_count
from posbias.io.counting.count import CountedLog, count_log, read_log, read_statistics
from posbias.io.engines.engine import Engine, ReadLog
from posbias.io.features.table import check_features
from posbias.io.fits.manifest import fit_section
from posbias.io.fits.write import require_logs, sum_sessions, write_attractiveness_of
from posbias.io.log.days import Days
from posbias.io.results.tables import write_propensities
from posbias.io.stores.metadata import describe_decay, describe_plan
from posbias.io.stores.store import find_statistics

SCHEMA = "posbias.result"


@dataclass(frozen=True)
class Kept:
    """What must be kept of a log beside what is counted.

    Attributes:
        sessions_for: the option that needs the pages themselves, if there is one.
        features: columns to train on.
        tables: tables of features beside the log.
    """

    sessions_for: str | None = None
    features: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()

    @property
    def why(self) -> str | None:
        """The option that needs the log, if there is one: statistics do not hold this."""
        return self.sessions_for or ("--feature" if self.features else None)


def option_that_needs_sessions(estimation: EstimationOptions) -> str | None:
    """The option for which pages must be kept together while a log is read, if there is one."""
    return "--cluster session" if estimation.cluster == "session" else None


def check_estimation(
    inputs: list[str],
    columns: ColumnOptions,
    counting: CountingOptions,
    estimation: EstimationOptions,
    factor: float | None = None,
) -> None:
    """Find wrong options before anything is read."""
    options = setup.estimation_options(estimation, counting)
    statistics = find_statistics(inputs)
    if statistics:
        setup.check_counting(statistics[0].metadata.plan, counting, columns)
    plan = statistics[0].metadata.plan if statistics else setup.statistics_plan(columns, counting)
    setup.check_decay(factor, plan, estimation)
    check_method(estimation.method, plan, options)


def count_inputs(
    inputs: list[str],
    columns: ColumnOptions,
    reading: ReadingOptions,
    counting: CountingOptions,
    engine: Engine,
    result: Result,
    *,
    kept: Kept | None = None,
    factor: float | None = None,
) -> CountedLog:
    """Count logs or merge statistics, and describe them in the manifest; with a `factor`, older days weigh less."""
    kept = kept or Kept()
    statistics = find_statistics(inputs)
    if statistics:
        if kept.why:
            require_logs(statistics[0], what=kept.why)
        check_features(None, kept.tables, ())
        setup.check_counting(statistics[0].metadata.plan, counting, columns)
        counted = read_statistics(statistics, engine, result.progress, clock.today(), factor)
    else:
        plan = setup.statistics_plan(columns, counting)
        keep = kept.sessions_for is not None
        log = setup.open_requested_log(
            inputs, columns, reading, plan, needs_session=keep, day=counting.date, features=kept.features
        )
        check_features(log, kept.tables, kept.features)
        counted = count_log(log, plan, engine, result.progress, clock.today(), keep_sessions=keep, factor=factor)
    describe(counted, result)
    return counted


def read_pages(
    logs: list[str],
    columns: ColumnOptions,
    reading: ReadingOptions,
    plan: StatisticsPlan,
    engine: Engine,
    result: Result,
    kept: Kept,
) -> ReadLog:
    """Read a log for a layout of pages, and describe it in the manifest."""
    statistics = find_statistics(logs)
    if statistics:
        require_logs(statistics[0], what=kept.why or "")
    log = setup.open_requested_log(logs, columns, reading, plan, needs_session=True, features=kept.features)
    check_features(log, kept.tables, kept.features)
    found = read_log(log, plan, engine, result.progress, clock.today(), keep_sessions=True)
    result.content |= {"schema": SCHEMA, "counted": describe_plan(plan), "sources": found.sources, "rows": found.rows}
    result.tables.append(summary.rows_line(found.rows))
    describe_reading(found.days, found.said, result)
    return found.read


def describe_reading(days: Days | None, said: Iterable[str], result: Result) -> None:
    """Say which days were found, and what else a reader should know of how a log was read."""
    result.tables += map(line, said)
    if days is not None:
        result.content["days"] = days.describe()
        result.tables.append(summary.days_line(result.content["days"]))
        result.warnings += days.warnings()


def describe(counted: CountedLog, result: Result) -> None:
    """Say what was read and counted."""
    statistics = counted.statistics
    impressions, clicks = statistics.cell_totals
    result.content |= {
        "schema": SCHEMA,
        "counted": describe_plan(counted.plan),
        "sources": counted.sources,
        "rows": counted.rows,
        "decay": describe_decay(counted.decay),
        "totals": {
            "queries": statistics.n_queries,
            "pairs": statistics.n_pairs,
            "signatures": statistics.pair_signatures.n_units,
            "impressions": as_count(impressions.sum()),
            "clicks": as_count(clicks.sum()),
        },
    }
    result.tables.append(summary.rows_line(counted.rows))
    describe_reading(counted.days, counted.said, result)
    result.tables.append(summary.totals_line(result.content["totals"]))


def _asked_of_joint(estimation: EstimationOptions) -> str | None:
    """The option that only joint EM knows, if one is set."""
    if estimation.examination_prior != EstimationOptions().examination_prior:
        return f"--examination-prior {estimation.examination_prior}"
    return "--no-acceleration" if estimation.no_acceleration else None


def fit(
    counted: CountedLog, engine: Engine, estimation: EstimationOptions, counting: CountingOptions, result: Result
) -> Fit:
    """Fit, write propensities and attractiveness, and say how sure they are."""
    with result.progress.stage("fitting") as stage:
        found = fit_statistics(
            counted.statistics,
            estimation.method,
            setup.estimation_options(estimation, counting),
            compare=estimation.compare,
            sum_sessions=None if counted.read is None else partial(sum_sessions, counted.read),
            on_iteration=stage.say,
        )
    write_propensities(found.propensities, result.folder, csv=estimation.csv)
    write_attractiveness_of(counted, found, engine, result.folder, result.progress, csv=estimation.csv)
    result.content["estimate"] = fit_section(found)
    result.tables.append(summary.propensity_table(found))
    said = verdicts.fit_verdicts(found)
    result.tables += [line(sentence) for sentence in said]
    result.content["verdicts"] = said
    result.warnings += verdicts.fit_warnings(found)
    about_joint = _asked_of_joint(estimation)
    if about_joint and found.joint is None and estimation.compare is None:
        result.warnings.append(
            f"{about_joint}: had no effect, because joint EM does not run beside the chosen method for a log of more "
            f"than {LARGEST_COMPARISON:,} signatures. --compare runs it."
        )
    all_identified = bool(found.estimate.linkage.identified.all())
    doubtful = not found.converged or found.click_share < WANTED_CLICK_SHARE
    if doubtful or (estimation.strict and not all_identified):
        result.exit_code = WITH_DOUBTS
    return found
