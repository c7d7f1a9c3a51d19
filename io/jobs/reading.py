"""What a job reads: logs that are opened, read and counted, or statistics; and what is said of them."""

from collections.abc import Callable
from dataclasses import dataclass

from posbias.core.counts.plan import StatisticsPlan
from posbias.core.errors import StatisticsError
from posbias.io import clock
from posbias.io.counting.count import CountedLog, count_log, read_log, read_statistics
from posbias.io.engines.engine import Engine, ReadLog
from posbias.io.features.table import check_features
from posbias.io.fits.fit import sections_of_counts, sections_of_reading
from posbias.io.fits.read import PreviousFit
from posbias.io.jobs import tables
from posbias.io.jobs.result import WITH_DOUBTS, Result
from posbias.io.log.days import Days
from posbias.io.log.doubts import doubts
from posbias.io.log.log import Log
from posbias.io.log.lost_clicks import JoinedClicks, judge
from posbias.io.log.rows import Rows
from posbias.io.stores.store import Statistics


@dataclass(frozen=True)
class Job:
    """What is read and counted: a log, or statistics."""

    inputs: tuple[str, ...]  # as named by the user
    plan: StatisticsPlan
    opener: Callable[["Job"], Log]
    statistics: tuple[Statistics, ...] = ()  # the inputs, where they are statistics
    day: str | None = None  # of all rows of a log, where no column says it
    sessions_for: str | None = None  # the option that needs the pages themselves, if there is one
    features: tuple[str, ...] = ()  # columns of the log to learn from
    tables: tuple[str, ...] = ()  # of features, beside the log
    decay: float | None = None  # by what older days weigh less, if they do
    each: str | None = None  # the column whose values are fitted each by itself; it is one of the strata

    def open_log(self) -> Log:
        """Open the log.

        Raises:
            LogFormatError: a file is not there, or cannot be read.
            SchemaError: a column is not there, or is of the wrong type.
            UsageError: options contradict each other.
        """
        return self.opener(self)

    def require_logs(self) -> None:
        """Raise StatisticsError if statistics are at hand where the log is needed: they do not hold all of it."""
        needed_for = self.sessions_for or ("--feature" if self.features else None)
        if self.statistics and needed_for:
            raise StatisticsError(
                f"{self.statistics[0].path} holds statistics; {needed_for} needs the logs. Give the logs, or leave "
                "it out."
            )


def name_propensities(fitted: PreviousFit, result: Result) -> None:
    """Put into the manifest where propensities come from, and print it where no fit estimated them."""
    result.content["propensities"] = fitted.name
    if fitted.own:
        says = "given, not estimated: neither their errors nor whether they belong to this log are known"
        result.content["own_propensities"] = {"files": fitted.digests, "says": says}
        result.printed.append(f"propensities of {fitted.name}: {says}")


def open_log(job: Job, result: Result) -> Log:
    """Open the log of a job; what was guessed of its columns is a warning."""
    log = job.open_log()
    check_features(log, job.tables, job.features)
    result.warnings += doubts(log)
    return log


def count(job: Job, engine: Engine, result: Result) -> CountedLog:
    """Count logs or merge statistics, and describe them in the manifest; with a decay, older days weigh less."""
    job.require_logs()
    today = clock.today()
    if job.statistics:
        check_features(None, job.tables, ())
        counted = read_statistics(job.statistics, engine, result.progress, today, job.decay)
    else:
        log, keep = open_log(job, result), job.sessions_for is not None
        counted = count_log(log, job.plan, engine, result.progress, today, keep_sessions=keep, factor=job.decay)
    describe(counted, result)
    return counted


def describe(counted: CountedLog, result: Result) -> None:
    """Put into the manifest, and print, what was read and counted."""
    result.content |= sections_of_counts(counted)
    describe_reading(counted.rows, counted.clicks, counted.days, counted.said, result)
    result.printed.append(tables.totals_line(result.content["totals"]))


def read_pages(job: Job, engine: Engine, result: Result) -> ReadLog:
    """Read a log with its pages, and describe it in the manifest."""
    job.require_logs()
    found = read_log(open_log(job, result), job.plan, engine, result.progress, clock.today(), keep_sessions=True)
    result.content |= sections_of_reading(job.plan, found.sources, found.rows)
    describe_reading(found.rows, found.clicks, found.days, found.said, result)
    return found.read


def describe_reading(
    rows: Rows, clicks: JoinedClicks | None, days: Days | None, said: tuple[str, ...], result: Result
) -> None:
    """Print what was read and left out, and which days were found; clicks that were lost put a result in doubt."""
    result.printed += [*tables.rows_lines(rows), *said]
    judge_clicks(rows, clicks, result)
    if days is not None:
        result.content["days"] = days.describe()
        result.printed.append(tables.days_line(result.content["days"]))
        result.warnings += days.warnings()


def judge_clicks(rows: Rows, clicks: JoinedClicks | None, result: Result, of: str = "") -> None:
    """Warn of clicks that have no impression; where they are many, the result is in doubt."""
    verdict = judge(rows.clicks, () if clicks is None else clicks.examples)
    if verdict is not None:
        result.warnings.append(of + verdict.warning)
        result.exit_code = WITH_DOUBTS if verdict.doubtful else result.exit_code
