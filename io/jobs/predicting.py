"""`predict`: how many more clicks other rankings would get than the log's, its table, and what it says."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from math import isfinite
from typing import Any

import polars as pl

from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.errors import StatisticsError, UsageError, counted
from posbias.core.evaluation.page_slope import PageSlope, page_slope
from posbias.core.evaluation.prediction import Prediction, Scope
from posbias.core.fit.fit import WANTED_CLICK_SHARE
from posbias.core.fit.propensities import choose_propensities
from posbias.core.schema import CLICKS, DOC, IMPRESSIONS, PAIR, QUERY, Roles
from posbias.io import clock
from posbias.io.counting.count import count_pages, merged_parts, read_log
from posbias.io.engines.engine import Engine, Parts
from posbias.io.fits.new_fit import sections_of_reading
from posbias.io.fits.saved_fit import PreviousFit
from posbias.io.jobs import tables as summary
from posbias.io.jobs.fit import Job, describe_reading, name_propensities, open_log, weights_from
from posbias.io.jobs.tables import WITH_DOUBTS, Column, Printed, PrintedTable, Result, first, more
from posbias.io.predictions import CountsOfPages, predict_rankings, scopes_of, theta_of
from posbias.io.ranking_names import split_name
from posbias.io.rankings import Rankings, open_rankings
from posbias.io.results.tables import write_small_table
from posbias.io.stores.metadata import PageTotals, total_pages
from posbias.io.stores.segments import check_contents, scan_part
from posbias.io.stores.store import checked, merge_metadata

PREDICTIONS, BY_PART = "predictions", "predictions_by_part"
_MOST_SAID = 12
_MUCH_UNSUPPORTED, _MUCH_UNRANKED, _MUCH_EMPTY = 0.1, 0.01, 0.01


@dataclass(frozen=True)
class PredictionRequest:
    """Rankings to predict, and how."""

    scores: tuple[str, ...]  # tables of query, doc and score, each perhaps as NAME=FILE
    rankings: tuple[str, ...]  # TREC runs, likewise
    trained_until: date | None = None  # the last day of which the rankings have learned
    csv: bool = False

    def __post_init__(self) -> None:
        """Raise UsageError if there is no ranking."""
        if not (self.scores or self.rankings):
            raise UsageError(
                "nothing to predict: name a table of scores (--scores FILE) or a TREC run (--rankings FILE)."
            )

    @property
    def files(self) -> list[str]:
        """Files of rankings."""
        return [split_name(named)[1] for named in (*self.scores, *self.rankings)]

    def check(self, job: Job, fitted: PreviousFit) -> None:
        """See, before anything is read, that counts by position can be had.

        Raises:
            UsageError: the propensities are of another model, impressions carry weights, or days are not known.
        """
        if fitted.plan.model.needs_session:
            raise UsageError(
                f"--propensities {fitted.name}: under --model {fitted.plan.model.name} a click depends on those above "
                "it, and predictions are made by position. Name a fit of --model pbm."
            )
        if job.plan.weighted:
            raise UsageError(
                "--weight-column: predictions count impressions; weights would hide how sure they are. Leave it out."
            )
        if self.trained_until is not None and not job.plan.period:
            raise UsageError(
                f"--trained-until {self.trained_until}: the days of these pages are not known. Name their column "
                "(--timestamp COLUMN), or collect statistics with --timestamp or --date."
            )
        if any(entry.metadata.decay is not None for entry in job.statistics):
            raise StatisticsError(
                f"{job.statistics[0].path} has decayed, so that its counts are worth less than they say. Predict from "
                "statistics that have not, or from the logs."
            )


def predict(job: Job, fitted: PreviousFit, request: PredictionRequest, engine: Engine, result: Result) -> None:
    """Predict the clicks per page of rankings, write the tables, and say what they show.

    Raises:
        PosbiasError: those of `open_rankings`; a ranking has no document of the log.
    """
    name_propensities(fitted, result)
    chosen = choose_propensities(fitted.theta.propensities, "smooth")
    with _opened(job, request, engine, result) as opened:
        plan, rankings, days = opened.plan, opened.rankings, opened.days
        variance = None if opened.pages is None else opened.pages.variance
        cut = days[len(days) // 2] if len(days) > 1 else None
        counts = CountsOfPages.of(opened.statistics, plan, cut, opened.some_pages, engine, result.progress)
    by, covariance = theta_of(counts, chosen.table, fitted.theta)
    with result.progress.stage("comparing pages"):
        slope = None if counts.units is None or not counts.units.height else page_slope(counts.units, by, covariance)
    found = predict_rankings(counts, rankings, by, covariance, variance, engine, result.progress)
    predictions = [of_scopes[0] for of_scopes, _ in found]
    table = _table(rankings.names, predictions)
    write_small_table(table, result.folder, PREDICTIONS, csv=request.csv)
    by_part = _table_by_part(rankings.names, [of_scopes for of_scopes, _ in found], scopes_of(by))
    write_small_table(by_part, result.folder, BY_PART, csv=request.csv)
    result.content["weights_from"] = weights_from("smooth", chosen)
    result.printed += summary.smooth_weights_lines(chosen)
    impressions, clicks = (float(counts.cells[name].sum()) for name in (IMPRESSIONS, CLICKS))
    lost = float(counts.cells.filter(pl.Series(~by.known))[CLICKS].sum())
    digests = {str(source.path): source.digest() for source in rankings.sources}
    result.content["prediction"] = {
        "impressions": impressions,
        "clicks": clicks,
        "clicks_without_propensity": lost,
        "errors_of_theta": covariance is not None,
        "trained_until": None if request.trained_until is None else request.trained_until.isoformat(),
        "pages_counted": opened.pages,
        "later_half_from": None if cut is None else cut.isoformat(),
        "slope": None
        if slope is None
        else {"slope": slope.slope, "std_error": slope.std_error, "rejects": slope.rejects},
    }
    result.content["rankings"] = [
        _described(name, file, prediction)
        for name, file, prediction in zip(rankings.names, rankings.files, predictions, strict=True)
    ]
    result.content["ranking_files"] = digests
    result.content["predictions"] = [
        {**row, "changed_queries": [_changed(query) for query in changed.to_dicts()]}
        for row, (_, changed) in zip(table.to_dicts(), found, strict=True)
    ]
    if lost > (1 - WANTED_CLICK_SHARE) * clicks:
        result.exit_code = WITH_DOUBTS
    verdicts = [_slope_line(slope)]
    if slope is not None and slope.rejects:
        del result.content["predictions"]
        result.exit_code = WITH_DOUBTS
        result.warnings.append(
            "no claim is made: pages that should get more clicks than others of their query get "
            f"{slope.slope:.2f} times the difference, so clicks on a page depend on each other, as under a cascade. "
            "What is in predictions.parquet assumes that they do not. Compare click models: posbias evaluate --models."
        )
    else:
        verdicts += _sentences(rankings.names, predictions)
        result.printed += _predictions_table(rankings.names, predictions)
    result.printed += verdicts
    result.content["verdicts"] = verdicts
    result.warnings += _warnings(rankings.names, predictions, lost, clicks, known=covariance is not None)
    faded = [(name, one) for name, one in zip(rankings.names, predictions, strict=True) if one.faded]
    for name, one in faded:
        result.warnings.append(
            f"do not rely on {name}: pages before {cut} put it {_percent(one.halves[0], one.observed)} higher "
            "than those since, more than by chance. It has probably learned from the clicks before; predict it from "
            "later pages."
        )
    if faded:
        result.exit_code = WITH_DOUBTS
    if request.trained_until is None:
        result.warnings.append(
            "a ranking that has learned from the clicks of these pages is predicted far too well, and nothing repairs "
            "that. Give pages from after its training, and say so: --trained-until DATE."
        )


def _slope_line(slope: PageSlope | None) -> str:
    """The line on the check of the model."""
    if slope is None:
        return (
            "not checked: whether pages with better documents get as many more clicks as predicted. That takes pages "
            "that differ (a log with sessions, or statistics by day)."
        )
    low, high = slope.interval
    return (
        f"check by pages: those that should get more clicks than others of their query get {slope.slope:.2f} times the "
        f"difference (95 % interval {low:.2f} to {high:.2f}; 1 if clicks do not depend on each other)."
    )


@dataclass(frozen=True)
class _Opened:
    """Counts and rankings, ready to be compared."""

    plan: StatisticsPlan
    statistics: Parts
    rankings: Rankings  # in the ids of the log
    days: list[date]  # in order; none where they are not known
    pages: PageTotals | None  # None where they are not known
    some_pages: pl.LazyFrame | None = None


@contextmanager
def _opened(job: Job, request: PredictionRequest, engine: Engine, result: Result) -> Generator[_Opened]:
    """The counts of a log or of statistics, and the rankings.

    Raises:
        UsageError: pages are of days on which rankings have still learned.
    """
    if job.statistics:
        metadata = merge_metadata(job.statistics)
        types = scan_part(job.statistics[0].parts[0]).collect_schema()
        names = {role: tuple(of.to_schema()) if isinstance(of := types[role], pl.Struct) else (role,) for role in PAIR}
        rankings = open_rankings(
            request.scores, request.rankings, Roles((), names[QUERY], names[DOC], None, None), types
        )
        result.content |= sections_of_reading(metadata.plan, metadata.sources, metadata.rows)
        describe_reading(metadata.rows, None, None, (), result)
        days = sorted({date.fromisoformat(day) for entry in job.statistics for day in entry.days})
        _check_days(days, request)
        with checked(job.statistics, check_contents, engine.each):
            pages = total_pages([segment for entry in job.statistics for segment in entry.segments])
            yield _Opened(metadata.plan, merged_parts(job.statistics, metadata, engine), rankings, days, pages)
        return
    log = open_log(job, result)
    if not (log.raw is not None and log.raw.of_lines):  # its columns are known: wrong files are found at once
        open_rankings(request.scores, request.rankings, log.roles, log.schema)
    found = read_log(log, job.plan, engine, result.progress, clock.today())
    result.content |= sections_of_reading(job.plan, found.sources, found.rows)
    describe_reading(found.rows, found.clicks, found.days, found.notes, result)
    rankings = open_rankings(request.scores, request.rankings, found.log.roles, found.log.schema)
    days = [] if found.days is None else found.days.in_order
    _check_days(days, request)
    pages = count_pages(found.read, found.plan)
    yield _Opened(found.plan, found.read.statistics(found.plan), rankings, days, pages, found.read.some_pages)


def _check_days(days: Sequence[date], request: PredictionRequest) -> None:
    """Raise UsageError for pages of days on which rankings have still learned."""
    known = [] if request.trained_until is None else [day for day in days if day <= request.trained_until]
    if known:
        raise UsageError(
            f"--trained-until {request.trained_until}: there are pages of {counted(len(known), 'days')} up to then "
            f"({known[0]} to {known[-1]}), whose clicks the rankings know. Give later pages only."
        )


def _table(names: Sequence[str], predictions: Sequence[Prediction]) -> pl.DataFrame:
    """A row a ranking; null where there is no number."""
    rows = [
        {
            "ranking": name,
            "clicks_per_page": one.observed + one.difference,
            "difference": one.difference,
            "std_error": one.std_error,
            "ci_low": one.interval[0],
            "ci_high": one.interval[1],
            "new_queries_ci_low": one.new_interval[0],
            "new_queries_ci_high": one.new_interval[1],
            "relative_difference": one.relative,
            "unsupported_share": one.unsupported,
            "bound_low": one.bounds[0],
            "bound_high": one.bounds[1],
            "pages_per_arm": one.pages_per_arm(one.difference),
        }
        for name, one in zip(names, predictions, strict=True)
    ]
    return pl.DataFrame([{key: _cell(value) for key, value in row.items()} for row in rows])


def _cell(value: str | float) -> str | float | None:
    return value if isinstance(value, str) or isfinite(value) else None


def _table_by_part(
    names: Sequence[str], found: Sequence[Sequence[Prediction]], scopes: Sequence[Scope]
) -> pl.DataFrame:
    """A row for each ranking and part of the clicks."""
    rows = [
        {
            "ranking": name,
            "part": scope.name,
            "pages": one.pages,
            "clicks_per_page": one.observed + one.difference,
            "difference": one.difference,
            "std_error": one.std_error,
            "ci_low": one.interval[0],
            "ci_high": one.interval[1],
            "relative_difference": one.relative,
            "unsupported_share": one.unsupported,
        }
        for name, of_ranking in zip(names, found, strict=True)
        for scope, one in zip(scopes[1:], of_ranking[1:], strict=True)
        if one.pages
    ]
    return pl.DataFrame([{key: _cell(value) for key, value in row.items()} for row in rows])


def _described(name: str, file: str, one: Prediction) -> dict[str, Any]:
    return {
        "name": name,
        "file": file,
        "pages": one.pages,
        "clicks_per_page_of_log": one.observed,
        "exposure_filled": one.filled,
        "smallest_difference": one.smallest,
    }


def _changed(row: dict[str, Any]) -> dict[str, Any]:
    return row | {QUERY: str(row[QUERY]), "pages": round(row["pages"]), "difference": row["difference"] / row["pages"]}


def _percent(value: float, of: float) -> str:
    return f"{value / of:+.1%}"


def _predictions_table(names: Sequence[str], predictions: Sequence[Prediction]) -> list[Printed]:
    shown = list(zip(names, predictions, strict=True))

    def both(ends: tuple[float, float], observed: float) -> str:
        return f"{_percent(ends[0], observed)} to {_percent(ends[1], observed)}"

    columns = (
        Column("ranking", first(name for name, _ in shown), label=True, text=True),
        Column("clicks\nper page", first(f"{one.observed + one.difference:.4f}" for _, one in shown)),
        Column("difference", first(_percent(one.difference, one.observed) for _, one in shown)),
        Column("95 % interval", first(both(one.interval, one.observed) for _, one in shown), beside=True),
        Column("queries\nlike these", first(both(one.new_interval, one.observed) for _, one in shown), spare=2),
        Column("never\nshown", first(f"{one.unsupported:.1%}" for _, one in shown), spare=1),
    )
    title = f"predicted for the queries of this log, which gets {predictions[0].observed:.4f} clicks per page"
    return [title, PrintedTable(columns, more(len(shown), "in predictions.parquet"))]


def _sentences(names: Sequence[str], predictions: Sequence[Prediction]) -> list[str]:
    """A sentence for each ranking."""
    said = list[str]()
    for name, one in list(zip(names, predictions, strict=True))[:_MOST_SAID]:
        low, high = (_percent(end, one.observed) for end in one.interval)
        text = f"{name}: {_percent(one.difference, one.observed)} clicks per page (95 % interval {low} to {high})."
        if one.unsupported > 0:
            least, most = (_percent(end, one.observed) for end in one.bounds)
            text += (
                f" {one.unsupported:.1%} of what it shows was never shown for its query: whatever it is worth, the "
                f"difference lies between {least} and {most}, chance aside."
            )
        said.append(f"{text} {_planning(one)}")
    return said


def _planning(one: Prediction) -> str:
    """The pages of an A/B test of the difference, and the smallest difference that this log shows."""
    smallest = f"This log tells differences of {one.smallest / one.observed:.1%} in four of five cases."
    if one.interval[0] <= 0 <= one.interval[1]:
        return f"It may be no better and no worse than the log's own. {smallest}"
    ends = sorted(one.pages_per_arm(end) for end in one.interval)
    return (
        f"An A/B test needs about {one.pages_per_arm(one.difference):,.0f} pages per arm ({ends[0]:,.0f} to "
        f"{ends[1]:,.0f} at the ends of the interval). {smallest}"
    )


def _warnings(
    names: Sequence[str], predictions: Sequence[Prediction], lost: float, clicks: float, *, known: bool
) -> list[str]:
    """Warnings of clicks, propensities and documents that are missing."""
    found = list[str]()
    if lost:
        found.append(
            f"{lost:,.0f} of {clicks:,.0f} clicks lie in cells without a propensity: predictions are of the other "
            "positions only."
        )
    if not known:
        found.append(
            "no errors of the propensities are known: intervals take them as exact, and are too narrow if they are not."
        )
    pages = max(one.pages for one in predictions)
    for name, one in zip(names, predictions, strict=True):
        if one.unsupported > _MUCH_UNSUPPORTED:
            found.append(
                f"{one.unsupported:.1%} of what {name} shows was never shown for its query: no click can speak for it, "
                "and the interval rests on what other documents are worth."
            )
        if one.pages < (1 - _MUCH_UNRANKED) * pages:
            found.append(
                f"{name} has scores for the queries of {counted(one.pages, 'pages')} of {pages:,.0f}: its prediction "
                "is of these only, and is not to be compared with those of the others."
            )
        if one.filled < 1 - _MUCH_EMPTY:
            found.append(
                f"{name} has too few documents to fill the pages of the log: {1 - one.filled:.1%} of the attention "
                "meets an empty place."
            )
    return found
