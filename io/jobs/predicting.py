"""`predict`: clicks that rankings would get compared with those of the log, tables and reasons."""

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from itertools import chain
from math import isfinite, nan

import polars as pl
import polars.selectors as cs

from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.errors import StatisticsError, UsageError, plural
from posbias.core.evaluation.break_even import bends
from posbias.core.evaluation.prediction import CLASS, CellTheta, PageSlope, Prediction, Scope, page_slope
from posbias.core.fit.propensities import choose_propensities
from posbias.core.schema import CLICKS, DOC, IMPRESSIONS, NAMES_TAKEN, PAIR, QUERY, Roles
from posbias.io.counting.count import PartsWithFacts, merged_parts, read_log, totals_of_pages
from posbias.io.counting.profile import faults_of_log
from posbias.io.engines.engine import Engine, Parts
from posbias.io.fits.saved_fit import CellPropensities
from posbias.io.fits.verdicts import ERRORS_UNKNOWN, break_even_reason, unweighted_reason
from posbias.io.jobs.agreement import disagreement_of_rows
from posbias.io.jobs.fit import Job, describe_log, describe_reading, name_propensities, sections_of_log
from posbias.io.jobs.tables import Column, Printed, PrintedTable, Result, first, more
from posbias.io.jobs.training import smooth_curve_reasons, weights_from
from posbias.io.options import PredictionOptions
from posbias.io.predictions import (
    MOST_PARTS,
    CountsOfPages,
    PredictedRanking,
    by_position,
    predict_rankings,
    theta_by_browsing,
    theta_by_position,
    theta_of,
)
from posbias.io.ranking_names import OWN_ORDER
from posbias.io.rankings import Rankings, check_ranks, open_rankings
from posbias.io.results.conclusions import CAUTION, NOTE, Reason, reason
from posbias.io.results.tables import write_small_table
from posbias.io.stores.metadata import PageTotals, total_pages
from posbias.io.stores.store import checked, merge_metadata, scan_part

PREDICTIONS, BY_PART = "predictions", "predictions_by_part"
_MOST_SHOWN = 12
_MUCH_UNSUPPORTED, _MUCH_UNRANKED, _MUCH_EMPTY = 0.1, 0.01, 0.01
_MOST_RESULTS = 1.01  # largest mean number of results at a position of a page
_MOST_RESULTS_BY_SAMPLE = 1.2  # the same if the number of pages is extrapolated from the clicks of a sample
_WIDE = 1.5  # width of an interval of the slope that may contain both 1 and the 1/4 of cascades


def prediction_job(job: Job, given: PredictionOptions) -> Job:
    """Extend a job to count classes of queries (--by), and validate it for predictions.

    Raises:
        UsageError: impressions carry weights, days are unknown, or --by names a context or a reserved column.
        StatisticsError: statistics have decayed, or lack the column of classes.
    """
    by = given.by
    if job.plan.weighted:
        raise UsageError(
            "--weight-column: predictions count impressions; weights would hide how sure they are. Leave it out."
        )
    if given.trained_until is not None and not job.plan.period:
        raise UsageError(
            f"--trained-until {given.trained_until}: the days of these pages are not known. Name their column "
            "(--timestamp COLUMN), or collect statistics with --timestamp or --date."
        )
    if any(entry.metadata.decay is not None for entry in job.statistics):
        raise StatisticsError(
            f"{job.statistics[0].path} has decayed, so that its counts are worth less than they say. Predict from "
            "statistics that have not, or from the logs."
        )
    if by is None:
        return job
    if by in job.plan.context:
        raise UsageError(f"--by {by}: the fit has it as a context, which has predictions of its own. Leave it out.")
    if by in NAMES_TAKEN["--for-each"]:
        raise UsageError(f"--by {by}: this name means something else in the results. Rename the column.")
    if not job.statistics:
        return replace(job.with_roles(each=(by,)), plan=replace(job.plan, strata=(by,)))
    if by not in (*job.plan.strata, *job.plan.auxiliary_columns):
        raise StatisticsError(
            f"--by {by}: {job.statistics[0].path} does not keep the values of that column apart. Collect with "
            f"--stratify {by}, or give the logs."
        )
    return job


def predict(job: Job, fitted: CellPropensities, given: PredictionOptions, engine: Engine, result: Result) -> None:
    """Predict the clicks per page of rankings; write tables, and add headline and reasons to the result.

    Raises:
        PosbiasError: inputs cannot be read, positions are not ranks, or a ranking shares no document with the log.
    """
    name_propensities(fitted, result)
    chosen = choose_propensities(fitted.theta.propensities, "smooth")
    with _open_inputs(job, given, engine, result) as opened:
        (plan, statistics, rankings, days, pages, page_sample), table = opened, chosen.table
        variance = None if pages is None else pages.variance
        cut = days[len(days) // 2] if len(days) > 1 else None
        counts = CountsOfPages.of(statistics, plan, cut, page_sample, given.by, engine, result.progress)
    _check_ranks(counts, pages)
    if fitted.plan.model.needs_session:
        (by, covariance), others = theta_by_position(counts, engine, result.progress), list[Reason]()
        result.reasons.append(reason("propensities-fitted-here", name=fitted.name))
    else:
        (by, covariance), others = theta_of(counts, table, fitted.theta), _disagreement(fitted, counts, engine, result)
        table = None
    counts = counts.where_known(by)
    with result.progress.stage("comparing click models"):
        browsing = theta_by_browsing(counts, None if fitted.plan.position_bins else table, engine, result.progress)
    with result.progress.stage("comparing pages"):
        slope = None if counts.units is None else page_slope(counts.units, by, covariance)
    browsing_theta = browsing if isinstance(browsing, CellTheta) else None
    predicted = predict_rankings(
        counts, rankings, by, covariance, browsing_theta, variance, bends(fitted.hidden_slope), engine, result.progress
    )
    rows, scopes = _table(_rows(predicted)), counts.scopes(by)
    write_small_table(rows, result.folder, PREDICTIONS, csv=given.csv)
    write_small_table(_table(_rows_by_part(predicted, scopes)), result.folder, BY_PART, csv=given.csv)
    result.reasons += smooth_curve_reasons(chosen)
    impressions, clicks = (float(counts.cells[name].sum()) for name in (IMPRESSIONS, CLICKS))
    lost = float(counts.cells.filter(pl.Series(~by.known))[CLICKS].sum())
    result.content |= {
        "weights_from": weights_from("smooth", chosen),
        "prediction": {
            "impressions": impressions,
            "clicks": clicks,
            "clicks_without_propensity": lost,
            "errors_of_theta": covariance is not None,
            "trained_until": given.trained_until,
            "pages_counted": pages,
            "later_half_from": None if cut is None else cut.isoformat(),
            "slope": None
            if slope is None
            else {"slope": slope.slope, "std_error": slope.std_error, "rejects": slope.rejects},
            "user_browsing_model": "compared" if browsing_theta is not None else browsing,
        },
        "rankings": [
            {
                "name": ranking.name,
                "file": ranking.file,
                "pages": ranking.whole.pages,
                "clicks_per_page_of_log": ranking.whole.observed,
                "exposure_filled": ranking.whole.filled,
                "smallest_difference": ranking.whole.smallest,
            }
            for ranking in predicted
        ],
        "ranking_files": {str(source.path): source.digest() for source in rankings.sources},
    }
    dampened = [ranking for ranking in predicted if ranking.is_dampened]
    result.reasons += rankings.in_doubt()
    result.reasons += others or [_slope_reason(slope), *_browsing_reasons(predicted, browsing)]  # which assume them
    if others or dampened or (slope is not None and slope.rejects):
        other_models = "evaluate LOGS --models pbm,ubm,dbn -o judged"
        result.next_if_refused = f"posbias {'fit LOGS -o fitted' if others else other_models}"
    else:
        result.content["predictions"] = [
            {
                **row,
                "changed_queries": [
                    query
                    | {
                        QUERY: str(query[QUERY]),
                        "pages": round(query["pages"]),
                        "difference": query["difference"] / query["pages"],
                    }
                    for query in ranking.changed.to_dicts()
                ],
            }
            for row, ranking in zip(rows.to_dicts(), predicted, strict=True)
        ]
        result.headline = _headline(predicted)
        held = [
            break_even_reason(ranking.name, OWN_ORDER, ranking.break_even, by.cells, by.theta) for ranking in predicted
        ]
        result.content["verdicts"] = [ranking.figures for ranking in held]
        result.reasons += chain.from_iterable(zip(map(_prediction_reason, predicted[:_MOST_SHOWN]), held, strict=False))
        result.printed += _predictions_table(predicted)
        if counts.by is not None:
            result.printed += _classes_table(predicted, scopes, counts)
        result.next = f"posbias report {result.target} -o report.html"
    result.reasons += _gap_reasons(predicted, lost, clicks, known=covariance is not None)
    for ranking in (ranking for ranking in predicted if ranking.whole.faded):  # may be trained on these pages
        figures = {"ranking": ranking.name, "higher": ranking.whole.halves[0] / ranking.whole.observed}
        result.reasons.append(reason("learned-from-these-clicks", figures, cut=cut))
    if given.trained_until is None:
        result.reasons.append(reason("training-dates-unknown"))


def _disagreement(fitted: CellPropensities, counts: CountsOfPages, engine: Engine, result: Result) -> list[Reason]:
    """Reasons against propensities that the sampled pages contradict; empty without pages or days."""
    if counts.units is None:
        return []
    return [*disagreement_of_rows(fitted, counts.units, counts.plan, engine, result.progress)]


def _check_ranks(counts: CountsOfPages, pages: PageTotals | None) -> None:
    """Check that positions are ranks, by the number of pages, extrapolated from the clicks of a sample."""
    if pages is not None and pages.clicks:
        number = pages.pages * float(counts.cells[CLICKS].sum()) / pages.clicks
        most = _MOST_RESULTS if number == pages.pages else _MOST_RESULTS_BY_SAMPLE
        check_ranks(counts.cells, counts.plan, number, most)


def _slope_reason(slope: PageSlope | None) -> Reason:
    """Test of the prediction on pages of a query with better and worse documents; see `page_slope`."""
    if slope is None:
        return reason("pages-not-checked")
    low, high = slope.interval
    figures = {"ratio": slope.slope, "ci_low": low, "ci_high": high}
    if slope.rejects:
        return reason("clicks-depend-on-clicks.of-better-pages", figures, cascade=slope.slope < 1)
    return reason("pages-not-checked.too-few" if high - low > _WIDE else "pages-as-predicted", figures)


def _browsing_reasons(predicted: Sequence[PredictedRanking], browsing: CellTheta | str) -> Iterator[Reason]:
    """Rankings for which the user browsing model predicts a different number of clicks."""
    if isinstance(browsing, str):
        yield reason("click-models-not-compared", why=browsing)
    for ranking in predicted:
        whole, name = ranking.whole, ranking.name
        if ranking.by_browsing is None or not (ranking.models_disagree or ranking.is_dampened):
            continue
        ours, theirs = (_percent(clicks, whole.observed) for clicks in (whole.difference, ranking.by_browsing))
        figures = {
            "ranking": name,
            "by_position": whole.difference / whole.observed,
            "by_last_click": ranking.by_browsing / whole.observed,
        }
        if ranking.is_dampened:
            code = "clicks-depend-on-clicks.by-click-models"
        elif abs(ranking.by_browsing) < abs(whole.difference):
            code = "click-models-disagree.less"
        else:
            code = "click-models-disagree"
        yield reason(code, figures, ours=ours, theirs=theirs)


_Inputs = tuple[StatisticsPlan, Parts, Rankings, list[date], PageTotals | None, pl.LazyFrame | None]
"""Plan and parts of the counts, the rankings, days (sorted, empty if unknown), page totals, and sampled pages."""


@contextmanager
def _open_inputs(job: Job, given: PredictionOptions, engine: Engine, result: Result) -> Generator[_Inputs]:
    """Open the counts of a log or of statistics, and the rankings.

    Raises:
        UsageError: pages are of days up to --trained-until.
    """
    if job.statistics:
        metadata = merge_metadata(job.statistics)
        types = scan_part(job.statistics[0].parts[0]).collect_schema()
        names = {id_: tuple(own.to_schema()) if isinstance(own := types[id_], pl.Struct) else (id_,) for id_ in PAIR}
        rankings = open_rankings(given, Roles((), names[QUERY], names[DOC], None, None), types)
        result.content |= sections_of_log(metadata.plan, metadata.sources, metadata.rows)
        describe_reading(result, metadata.rows)
        days = sorted({date.fromisoformat(day) for entry in job.statistics for day in entry.days})
        _check_days(days, given)
        with checked(job.statistics, engine.each):
            pages = total_pages([segment for entry in job.statistics for segment in entry.segments])
            yield metadata.plan, merged_parts(job.statistics, metadata, engine), rankings, days, pages, None
        return
    log = job.open_log(result)
    if not (log.raw is not None and log.raw.reads_lines):  # the schema is known: refuse invalid files early
        open_rankings(given, log.roles, log.schema)
    read = read_log(log, job.plan, engine, result.progress)
    describe_log(result, job.plan, read)
    rankings = open_rankings(given, read.log.roles, read.log.schema)
    days = [] if read.days is None else read.days.in_order
    _check_days(days, given)
    plan = replace(read.plan, model=by_position(read.plan).model)  # last clicks are counted on sampled pages only
    parts = PartsWithFacts(read.statistics(plan))
    yield plan, parts, rankings, days, totals_of_pages(read, read.plan), read.page_sample
    result.faults += faults_of_log(read, parts.facts, plan)


def _check_days(days: Sequence[date], given: PredictionOptions) -> None:
    """Raise UsageError if days are not after --trained-until."""
    known = [] if given.trained_until is None else [day for day in days if day.isoformat() <= given.trained_until]
    if known:
        raise UsageError(
            f"--trained-until {given.trained_until}: there are pages of {plural(len(known), 'days')} up to then "
            f"({known[0]} to {known[-1]}), whose clicks the rankings know. Give later pages only."
        )


def _rows(predicted: Sequence[PredictedRanking]) -> Iterator[dict[str, str | float]]:
    """Rows of `predictions.parquet`, one per ranking."""
    for ranking in predicted:
        whole, browsing = ranking.whole, nan if ranking.by_browsing is None else ranking.by_browsing
        yield {
            "ranking": ranking.name,
            **_difference(whole),
            "new_queries_ci_low": whole.new_interval[0],
            "new_queries_ci_high": whole.new_interval[1],
            "relative_difference": whole.relative,
            "unsupported_share": whole.unsupported,
            "bound_low": whole.bounds[0],
            "bound_high": whole.bounds[1],
            "pages_per_arm": whole.pages_per_arm(whole.difference),
            "ubm_difference": browsing,
            "ubm_relative_difference": browsing / whole.observed if whole.observed else nan,
        }


def _difference(prediction: Prediction) -> dict[str, float]:
    """Columns that both tables begin with."""
    ends = dict(zip(("ci_low", "ci_high"), prediction.interval, strict=True))
    clicks = prediction.observed + prediction.difference
    return {"clicks_per_page": clicks, "difference": prediction.difference, "std_error": prediction.std_error, **ends}


def _rows_by_part(predicted: Sequence[PredictedRanking], scopes: Sequence[Scope]) -> Iterator[dict[str, str | float]]:
    """Rows of `predictions_by_part.parquet`, one per ranking and scope with pages."""
    for ranking in predicted:
        for scope, prediction in zip(scopes[1:], ranking.by_scope[1:], strict=True):
            if prediction.pages:
                about = {"ranking": ranking.name, "part": scope.name, "pages": prediction.pages}
                shares = {"relative_difference": prediction.relative, "unsupported_share": prediction.unsupported}
                yield about | _difference(prediction) | shares


def _table(rows: Iterable[Mapping[str, str | float]]) -> pl.DataFrame:
    """Table of rows, with nulls for NaN and infinities."""
    numbers = cs.float()
    return pl.DataFrame([*rows]).with_columns(pl.when(numbers.is_finite()).then(numbers))


def _percent(value: float, base: float) -> str:
    return f"{value / base:+.1%}"


def _interval(ends: tuple[float, float], observed: float) -> str:
    if not isfinite(ends[0]):
        return "unknown"
    return f"{_percent(ends[0], observed)} to {_percent(ends[1], observed)}"


def _predictions_table(predicted: Sequence[PredictedRanking]) -> list[Printed]:
    """Print the predictions over all clicks."""
    shown = [(ranking.whole, ranking.whole.observed, ranking.by_browsing) for ranking in predicted]
    by_browsing = ("" if browsing is None else _percent(browsing, observed) for _, observed, browsing in shown)
    intervals = (_interval(whole.interval, observed) for whole, observed, _ in shown)
    columns = [
        Column("ranking", first(ranking.name for ranking in predicted), label=True, text=True),
        Column("clicks\nper page", first(f"{observed + whole.difference:.4f}" for whole, observed, _ in shown)),
        Column("difference", first(_percent(whole.difference, observed) for whole, observed, _ in shown)),
        Column("95 % interval", first(intervals), beside=True),
        Column("browsing\nmodel", first(by_browsing), spare=1),
        Column("queries\nlike these", first(_interval(whole.new_interval, base) for whole, base, _ in shown), spare=3),
        Column("never\nshown", first(f"{whole.unsupported:.1%}" for whole, _, _ in shown), spare=2),
    ]
    if not any(columns[4].cells):
        del columns[4]
    title = f"predicted for the queries of this log, which gets {shown[0][1]:.4f} clicks per page"
    table = PrintedTable(tuple(columns), more(len(shown), "in predictions.parquet"))
    return [title, table, "to try it: let both rankers draft pages in turns; posbias interleave LOGS --team COLUMN"]


def _classes_table(
    predicted: Sequence[PredictedRanking], scopes: Sequence[Scope], counts: CountsOfPages
) -> list[Printed]:
    """Print the predictions by class of queries."""
    shown = [
        (ranking.name, scope.part[1], part)
        for ranking in predicted
        for scope, part in zip(scopes, ranking.by_scope, strict=True)
        if scope.part is not None and scope.part[0] == CLASS and part.pages and part.observed
    ]
    columns = (
        Column("ranking", first(name for name, _, _ in shown), label=True, text=True),
        Column(counts.by or "", first(str(name) for _, name, _ in shown), label=True, text=True),
        Column("pages", first(f"{part.pages:,.0f}" for _, _, part in shown)),
        Column("difference", first(_percent(part.difference, part.observed) for _, _, part in shown)),
        Column("95 % interval", first(_interval(part.interval, part.observed) for _, _, part in shown), beside=True),
    )
    few = f", of {counts.classes.height:,} the {MOST_PARTS} with most impressions"
    title = f"by {counts.by}{few if counts.classes.height > MOST_PARTS else ''}"
    return [title, PrintedTable(columns, more(len(shown), "in predictions_by_part.parquet"))]


def _headline(predicted: Sequence[PredictedRanking]) -> str:
    """Sentence on the ranking with the largest predicted difference."""
    best = max(predicted, key=lambda ranking: ranking.whole.difference / ranking.whole.observed)
    whole, among = best.whole, f"of {plural(len(predicted), 'rankings')}, " if len(predicted) > 1 else ""
    more = f"{_percent(whole.difference, whole.observed)} clicks ({_interval(whole.interval, whole.observed)})"
    unsure = ", so it may be no better" if whole.interval[0] <= 0 <= whole.interval[1] else ""
    return f"{among}{best.name} would get {'most: ' if among else ''}{more} against {OWN_ORDER}{unsure}"


def _prediction_reason(ranking: PredictedRanking) -> Reason:
    """Prediction of a ranking, and the size of an A/B test of it."""
    whole = ranking.whole
    difference, interval = _percent(whole.difference, whole.observed), _interval(whole.interval, whole.observed)
    text, details = f"{ranking.name}: {difference} clicks per page (95 % interval {interval}).", ""
    if ranking.by_browsing is not None:
        browsing = _percent(ranking.by_browsing, whole.observed)
        details = f"The user browsing model says {browsing}, the position-based model {difference}."
    if whole.unsupported > 0:
        least, most = (_percent(end, whole.observed) for end in whole.bounds)
        text += (
            f" {whole.unsupported:.1%} of what it shows was never shown for its query: whatever it is worth, the "
            f"difference lies between {least} and {most}, chance aside."
        )
    low, high = (end / whole.observed for end in whole.interval)
    figures = {"ranking": ranking.name, "difference": whole.difference / whole.observed, "ci_low": low, "ci_high": high}
    figures |= {"pages_per_arm": whole.pages_per_arm(whole.difference), "smallest": whole.smallest / whole.observed}
    smallest = f"In four of five cases, this log reveals a difference of {whole.smallest / whole.observed:.1%} or more."
    if low <= 0 <= high:
        planning = "It may be better or worse than the log's own ranking."
    else:
        ends = sorted(whole.pages_per_arm(end) for end in whole.interval)
        planning = (
            f"An A/B test needs about {whole.pages_per_arm(whole.difference):,.0f} pages per arm ({ends[0]:,.0f} to "
            f"{ends[1]:,.0f} at the ends of the interval)."
        )
    return Reason("clicks-predicted", NOTE, f"{text} {planning} {smallest}", figures, details)


def _gap_reasons(predicted: Sequence[PredictedRanking], lost: float, clicks: float, *, known: bool) -> Iterator[Reason]:
    """Gaps of the predictions: clicks without propensity, unknown errors, unseen documents, missing scores.

    Args:
        predicted: predictions.
        lost: clicks without a propensity.
        clicks: all clicks of the log.
        known: whether errors of propensities are known.
    """
    if lost:
        yield unweighted_reason(lost, clicks, "predictions are of the other positions only")
    if not known:
        yield ERRORS_UNKNOWN
    for ranking in predicted:
        whole, name = ranking.whole, ranking.name
        if whole.unsupported > _MUCH_UNSUPPORTED:
            yield reason("never-shown", {"ranking": name, "share": whole.unsupported})
        if whole.pages < ranking.pages_of_log - 0.5:
            share = whole.difference * whole.pages / (clicks - lost)
            figures = {"ranking": name, "pages": whole.pages, "of": ranking.pages_of_log, "of_all": share}
            much = whole.pages < (1 - _MUCH_UNRANKED) * ranking.pages_of_log
            yield reason("scores-missing", figures, severity=CAUTION if much else NOTE)
        if whole.filled < 1 - _MUCH_EMPTY:
            yield reason("pages-not-filled", {"ranking": name, "share": 1 - whole.filled})
