"""`predict`: how many more clicks other rankings would get than the log's, its table, and what it says."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from typing import Any

import polars as pl

from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.errors import StatisticsError, UsageError, counted
from posbias.core.evaluation.prediction import Prediction
from posbias.core.fit.fit import WANTED_CLICK_SHARE
from posbias.core.fit.propensities import EXAMINATION, choose_propensities
from posbias.core.schema import CLICKS, DOC, IMPRESSIONS, PAIR, QUERY, Roles
from posbias.io import clock
from posbias.io.counting.count import merged_parts, read_log
from posbias.io.engines.engine import Engine, Parts
from posbias.io.fits.new_fit import sections_of_reading
from posbias.io.fits.saved_fit import PreviousFit
from posbias.io.jobs import tables as summary
from posbias.io.jobs.fit import Job, describe_reading, name_propensities, open_log, weights_from
from posbias.io.jobs.tables import WITH_DOUBTS, Column, Printed, PrintedTable, Result, first, more
from posbias.io.predictions import SCOPES, CountsOfPages, predict_rankings
from posbias.io.ranking_names import split_name
from posbias.io.rankings import Rankings, open_rankings
from posbias.io.results.tables import write_small_table
from posbias.io.stores.segments import check_contents, scan_part
from posbias.io.stores.store import checked, merge_metadata
from posbias.io.training.laid_out import propensities_of_cells

PREDICTIONS, BY_PART = "predictions", "predictions_by_part"
_MOST_SAID = 12
_MUCH_UNSUPPORTED, _MUCH_UNRANKED, _MUCH_EMPTY = 0.1, 0.01, 0.01


@dataclass(frozen=True)
class PredictionRequest:
    """Rankings to predict, and how."""

    scores: tuple[str, ...]  # tables of query, doc and score, each perhaps as NAME=FILE
    rankings: tuple[str, ...]  # TREC runs, likewise
    csv: bool = False

    def __post_init__(self) -> None:
        """Raise UsageError if there is no ranking."""
        if not (self.scores or self.rankings):
            raise UsageError(
                "nothing to predict: name a table of scores (--scores FILE) or a TREC run (--rankings FILE)."
            )

    @property
    def files(self) -> list[str]:
        """What is read beside the log and the fit."""
        return [split_name(named)[1] for named in (*self.scores, *self.rankings)]

    def check(self, job: Job, fitted: PreviousFit) -> None:
        """See, before anything is read, that counts by position can be had.

        Raises:
            UsageError: the propensities are of another model, or impressions carry weights.
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
    with _counts(job, request, engine, result) as (statistics, rankings, plan):
        counts = CountsOfPages.of(statistics, plan, engine, result.progress)
    found = predict_rankings(counts, rankings, chosen.table, fitted.theta, engine, result.progress)
    predictions = [of_ranking[0] for of_ranking in found]
    write_small_table(_table(rankings.names, predictions), result.folder, PREDICTIONS, csv=request.csv)
    write_small_table(_table_by_part(rankings.names, found), result.folder, BY_PART, csv=request.csv)
    result.content["weights_from"] = weights_from("smooth", chosen)
    result.printed += summary.smooth_weights_lines(chosen)
    theta = propensities_of_cells(counts.cells.select(plan.cell_columns), chosen.table, EXAMINATION)
    impressions, clicks = (float(counts.cells[name].sum()) for name in (IMPRESSIONS, CLICKS))
    lost = float(counts.cells.filter(theta.is_null())[CLICKS].sum())
    digests = {str(source.path): source.digest() for source in rankings.sources}
    result.content["prediction"] = {
        "impressions": impressions,
        "clicks": clicks,
        "clicks_without_propensity": lost,
        "errors_of_theta": fitted.theta.covariance is not None,
    }
    result.content["rankings"] = [
        _described(name, file, prediction)
        for name, file, prediction in zip(rankings.names, rankings.files, predictions, strict=True)
    ]
    result.content["ranking_files"] = digests
    if lost > (1 - WANTED_CLICK_SHARE) * clicks:
        result.exit_code = WITH_DOUBTS
    result.printed += [*_predictions_table(rankings.names, predictions), *_sentences(rankings.names, predictions)]
    result.warnings += _warnings(rankings.names, predictions, lost, clicks, known=fitted.theta.covariance is not None)


@contextmanager
def _counts(
    job: Job, request: PredictionRequest, engine: Engine, result: Result
) -> Generator[tuple[Parts, Rankings, StatisticsPlan]]:
    """The counts of a log or of statistics, the rankings in its ids, and the plan."""
    if job.statistics:
        metadata = merge_metadata(job.statistics)
        types = scan_part(job.statistics[0].parts[0]).collect_schema()
        names = {role: tuple(of.to_schema()) if isinstance(of := types[role], pl.Struct) else (role,) for role in PAIR}
        rankings = open_rankings(
            request.scores, request.rankings, Roles((), names[QUERY], names[DOC], None, None), types
        )
        result.content |= sections_of_reading(metadata.plan, metadata.sources, metadata.rows)
        describe_reading(metadata.rows, None, None, (), result)
        with checked(job.statistics, check_contents, engine.each):
            yield merged_parts(job.statistics, metadata, engine), rankings, metadata.plan
        return
    log = open_log(job, result)
    if not (log.raw is not None and log.raw.of_lines):  # its columns are known: wrong files are found at once
        open_rankings(request.scores, request.rankings, log.roles, log.schema)
    found = read_log(log, job.plan, engine, result.progress, clock.today())
    result.content |= sections_of_reading(job.plan, found.sources, found.rows)
    describe_reading(found.rows, found.clicks, found.days, found.said, result)
    rankings = open_rankings(request.scores, request.rankings, found.log.roles, found.log.schema)
    yield found.read.statistics(found.plan), rankings, found.plan


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None


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
    return value if isinstance(value, str) else _finite(value)


def _table_by_part(names: Sequence[str], found: Sequence[Sequence[Prediction]]) -> pl.DataFrame:
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
        for scope, one in zip(SCOPES[1:], of_ranking[1:], strict=True)
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
    """What a reader should know of each ranking."""
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
    """What it takes to see the difference in an A/B test, and the least that this log can tell."""
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
    """What a reader must know before believing a prediction."""
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
