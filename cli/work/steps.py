"""Steps that several commands share: read, count and fit; each adds its section to the manifest and its table."""

from collections.abc import Iterable

from posbias.cli.report import summary
from posbias.cli.report.curve import Curve
from posbias.cli.report.result import WITH_DOUBTS, Result
from posbias.cli.work.job import EstimateRequest, Job
from posbias.core.arrays.linalg import loaded_meanwhile
from posbias.core.fit.fit import LARGEST_COMPARISON, MOST_CELLS_BESIDE, Fit, check_cells
from posbias.core.fit.from_rows import FromRows
from posbias.io import clock
from posbias.io.counting.count import CountedLog, count_log, read_log, read_statistics
from posbias.io.engines.engine import Engine, ReadLog
from posbias.io.features.table import check_features
from posbias.io.fits.fit import FitRequest, fit_counts, sections_of_counts, sections_of_reading
from posbias.io.fits.read import PreviousFit
from posbias.io.log.days import Days
from posbias.io.log.doubts import doubts
from posbias.io.log.log import Log
from posbias.io.log.lost_clicks import JoinedClicks, judge
from posbias.io.log.rows import Rows


def count(job: Job, engine: Engine, result: Result) -> CountedLog:
    """Count logs or merge statistics, and describe them in the manifest; with a decay, older days weigh less."""
    job.require_logs()
    if job.statistics:
        check_features(None, job.kept.tables, ())
        counted = read_statistics(job.statistics, engine, result.progress, clock.today(), job.decay)
    else:
        keep = job.kept.sessions_for is not None
        log = open_log(job, result)
        counted = count_log(log, job.plan, engine, result.progress, clock.today(), keep_sessions=keep, factor=job.decay)
    describe(counted, result)
    return counted


def name_propensities(fitted: PreviousFit, result: Result) -> None:
    """Say in the manifest where propensities come from, and in print where no fit estimated them."""
    result.content["propensities"] = fitted.name
    if fitted.own:
        says = "given, not estimated: neither their errors nor whether they belong to this log are known"
        result.content["own_propensities"] = {"files": fitted.digests, "says": says}
        result.printed.append(f"propensities of {fitted.name}: {says}")


def count_for_fit(job: Job, engine: Engine, result: Result) -> CountedLog:
    """The same, while what the fit needs is loaded."""
    with loaded_meanwhile():
        return count(job, engine, result)


def read_pages(job: Job, engine: Engine, result: Result) -> ReadLog:
    """Read a log for a layout of pages, and describe it in the manifest."""
    job.require_logs()
    found = read_log(open_log(job, result), job.plan, engine, result.progress, clock.today(), keep_sessions=True)
    result.content |= sections_of_reading(job.plan, found.sources, found.rows)
    describe_rows(found.rows, found.clicks, result)
    describe_reading(found.days, found.said, result)
    return found.read


def open_log(job: Job, result: Result) -> Log:
    """Open the log of a job; what was guessed of its columns is said."""
    log = job.open_log()
    check_features(log, job.kept.tables, job.kept.features)
    result.warnings += doubts(log)
    return log


def describe_rows(rows: Rows, clicks: JoinedClicks | None, result: Result) -> None:
    """Say what was read and left out; a result from which too many clicks are missing is in doubt.

    Args:
        rows: of a log or of statistics.
        clicks: of a log that was read now.
        result: what is written.
    """
    result.printed += summary.rows_lines(rows)
    judge_clicks(rows, clicks, result)


def judge_clicks(rows: Rows, clicks: JoinedClicks | None, result: Result, of: str = "") -> None:
    """Warn of clicks that have no impression."""
    verdict = judge(rows.clicks, () if clicks is None else clicks.examples)
    if verdict is not None:
        result.warnings.append(of + verdict.warning)
        result.exit_code = WITH_DOUBTS if verdict.doubtful else result.exit_code


def describe_reading(days: Days | None, said: Iterable[str], result: Result) -> None:
    """Say which days were found, and what else a reader should know of how a log was read."""
    result.printed += said
    if days is not None:
        result.content["days"] = days.describe()
        result.printed.append(summary.days_line(result.content["days"]))
        result.warnings += days.warnings()


def describe(counted: CountedLog, result: Result) -> None:
    """Say what was read and counted."""
    result.content |= sections_of_counts(counted)
    describe_rows(counted.rows, counted.clicks, result)
    describe_reading(counted.days, counted.said, result)
    result.printed.append(summary.totals_line(result.content["totals"]))


def _from_rows(counted: CountedLog, engine: Engine, request: EstimateRequest, result: Result) -> FromRows | None:
    """What a method of rows finds in them, and what is said of its features; None for other methods."""
    if request.rows is None:
        return None
    from posbias.io.exposure.estimate import estimate_from_rows  # noqa: PLC0415 - other methods need no trees

    check_cells(counted.statistics, request.method, request.options, engine.memory, compare=request.asked.compare)
    found = estimate_from_rows(counted, request.rows, request.options, engine, result.progress)
    result.content["features_of_fit"] = found.features
    result.printed.append(summary.features_line(found.features))
    result.warnings += found.warnings
    return found.found


def fit(counted: CountedLog, engine: Engine, request: EstimateRequest, result: Result) -> Fit:
    """Fit, write propensities and attractiveness, and say how sure they are."""
    asked = request.asked
    from_rows = _from_rows(counted, engine, request, result)
    wanted = FitRequest(request.method, request.options, asked.compare, asked.csv)
    written = fit_counts(counted, wanted, engine, result.folder, result.progress, from_rows)
    found = written.fit
    result.content |= written.sections
    result.printed += summary.propensity_table(found)
    result.curve = Curve.of(found.propensities, counted.plan.cell_columns)
    result.printed += [*written.notes, *summary.clicks_above_table(found)]
    result.warnings += written.warnings
    about_joint = request.option_of_joint_em
    if about_joint and found.joint is None and asked.compare is None:
        result.warnings.append(
            f"{about_joint}: had no effect, because joint EM is not run for comparison on a log of more than "
            f"{LARGEST_COMPARISON:,} signatures or {MOST_CELLS_BESIDE:,} cells. Use --compare to run it."
        )
    all_identified = bool(found.estimate.linkage.identified.all())
    if written.doubtful or (asked.strict and not all_identified):
        result.exit_code = WITH_DOUBTS
    return found
