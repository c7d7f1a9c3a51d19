"""From options, a log and propensities to what rankings are worth: what `evaluate` does once the log is read."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from posbias.cli.options.evaluation import EvaluationOptions
from posbias.cli.report import evaluation as report
from posbias.cli.report import summary
from posbias.cli.report.result import WITH_DOUBTS, Result
from posbias.cli.work.training_files import weights_from
from posbias.core.counts.plan import StatisticsPlan
from posbias.core.errors import StatisticsError, UsageError
from posbias.core.evaluation.query_sums import N_CLICKS, Asked
from posbias.core.evaluation.tables import Bound, Comparison, comparison, difference_table, metric_table
from posbias.core.fit.fit import WANTED_CLICK_SHARE
from posbias.core.fit.fitted_theta import FittedTheta
from posbias.core.fit.propensities import choose_propensities
from posbias.io.engines.engine import Engine, ReadLog
from posbias.io.log.log import Log
from posbias.io.rankings.evaluation import Evaluated, Theta, evaluate_rankings, judged_lists
from posbias.io.rankings.names import LOGGED, split_name
from posbias.io.rankings.read import Rankings, open_rankings, read_judgments
from posbias.io.results.tables import write_small_table
from posbias.io.stores.store import find_statistics

METRICS, DIFFERENCES = "metrics", "differences"


@dataclass(frozen=True)
class Request:
    """What evaluation is asked for.

    Attributes:
        scores: tables of scores, as said.
        runs: TREC runs, as said.
        asked: the options.
    """

    scores: tuple[str, ...]
    runs: tuple[str, ...]
    asked: EvaluationOptions

    @property
    def files(self) -> list[str]:
        """What is read beside the log."""
        judged = [] if self.asked.judgments is None else [self.asked.judgments]
        return [*(split_name(said)[1] for said in (*self.scores, *self.runs)), *judged]

    def open(self, log: Log) -> Rankings:
        """The rankings, in the ids of a log."""
        return open_rankings(self.scores, self.runs, log.roles, log.schema)


def requested(asked: EvaluationOptions) -> Request:
    """Read the options, and find wrong ones before anything is read.

    Raises:
        UsageError: a value is out of range, or no ranking is named.
    """
    if not (asked.scores or asked.rankings):
        raise UsageError(
            "nothing to evaluate: name a table of scores (--scores FILE), a TREC run (--rankings FILE) or click "
            "models (--models pbm,ubm)."
        )
    if not 0 < asked.min_propensity <= 1:
        raise UsageError(f"--min-propensity {asked.min_propensity:g}: must be above 0 and at most 1.")
    if asked.bound is not None and not 0 < asked.bound < 1:
        raise UsageError(f"--bound {asked.bound:g}: must be above 0 and below 1; it is a confidence, e.g. 0.95.")
    return Request(tuple(asked.scores or ()), tuple(asked.rankings or ()), asked)


def check_logs(inputs: Sequence[str]) -> None:
    """Rankings are evaluated on pages.

    Raises:
        StatisticsError: the inputs are statistics, which hold none.
    """
    found = find_statistics(inputs)
    if found:
        raise StatisticsError(
            f"{found[0].path} holds statistics, and rankings and click models are evaluated on pages. Give the logs."
        )


def check_files(log: Log, request: Request) -> None:
    """Find wrong rankings and judgments before the log is read, where its columns are known by then.

    Raises:
        PosbiasError: those of `open_rankings` and `read_judgments`; the baseline is none of the rankings.
    """
    if log.raw is not None and log.raw.of_lines:
        return
    _baseline(request, request.open(log))
    if request.asked.judgments is not None:
        read_judgments(request.asked.judgments, log.roles, log.schema)


def evaluate(
    read: ReadLog, plan: StatisticsPlan, theta: FittedTheta, request: Request, engine: Engine, result: Result
) -> None:
    """Evaluate rankings on a log that has been read, write the tables, and say what they show."""
    asked, log = request.asked, read.log
    chosen = choose_propensities(theta.propensities, asked.propensity)
    rankings = request.open(log)
    names = (LOGGED, *rankings.names)
    what = Asked(len(names), asked.cutoff, asked.candidates)
    baseline = _baseline(request, rankings)
    found = evaluate_rankings(
        read, plan, rankings, Theta(chosen.table, theta, asked.min_propensity), what, engine, result.progress
    )
    judged = None
    if asked.judgments is not None:
        judgments = read_judgments(asked.judgments, log.roles, log.schema)
        judged = judged_lists(rankings, judgments, what)
    bound = _bound(asked, plan, found)
    metrics = metric_table(found.evaluation, names, judged, bound)
    compared = comparison(names, baseline)
    differences = difference_table(found.evaluation, compared, judged)
    write_small_table(metrics, result.folder, METRICS, csv=asked.csv)
    write_small_table(differences, result.folder, DIFFERENCES, csv=asked.csv)
    result.content["weights_from"] = weights_from(asked.propensity, chosen)
    if chosen.smooth:
        result.printed.append(summary.smooth_weights_line(chosen))
    _describe(found, rankings, compared, bound, result)
    result.printed += [*report.metrics_table(metrics, asked.cutoff), *report.remarks(found.evaluation, names)]
    if bound is not None:
        result.printed.append(report.bounds_line(metrics, bound.confidence, names, asked.cutoff))
    said = report.verdicts(differences, compared)
    result.printed += report.lines(said)
    result.content["verdicts"] = said
    result.warnings += report.warnings(found.evaluation, names)


def _bound(asked: EvaluationOptions, plan: StatisticsPlan, found: Evaluated) -> Bound | None:
    """The bound that is asked for; none where no independent pages have weights that do not depend on the clicks."""
    holds = asked.candidates == "page" and not plan.weighted
    return Bound(asked.bound, found.weights) if asked.bound is not None and holds else None


def _baseline(request: Request, rankings: Rankings) -> int:
    """The number of the ranking that the others are compared with: the first, or the log's own where there is but one.

    Raises:
        UsageError: none is called as said.
    """
    said, names = request.asked.baseline, (LOGGED, *rankings.names)
    if said is None:
        return 1 if len(rankings.names) > 1 else 0
    if said not in names:
        raise UsageError(f"--baseline {said}: no ranking is called so; there are {', '.join(names)}.")
    return names.index(said)


def _describe(found: Evaluated, rankings: Rankings, compared: Comparison, bound: Bound | None, result: Result) -> None:
    """Say in the manifest what the values rest on."""
    totals = found.evaluation.totals
    clicks = float(totals.sums[N_CLICKS])
    weighted = clicks - totals.unweighted
    if weighted <= 0 or totals.unweighted > (1 - WANTED_CLICK_SHARE) * clicks:
        result.exit_code = WITH_DOUBTS
    said: dict[str, Any] = {
        "baseline": compared.names[compared.baseline],
        "candidates": found.evaluation.asked.candidates,
        "cutoff": found.evaluation.asked.depth,
        "pages": totals.n_pages,
        "queries": totals.n_queries,
        "effective_queries": found.evaluation.effective_queries,
        "clicks": clicks,
        "clicks_without_propensity": totals.unweighted,
        "share_clipped": totals.clipped / weighted if weighted > 0 else None,
        "errors_of_theta": found.evaluation.covariance is not None,
    }
    if bound is not None:
        said["bound"] = bound.description(found.evaluation)
    result.content["evaluation"] = said
    shares = report.shares(found.evaluation)
    digests = {str(source.path): source.digest() for source in rankings.sources}
    result.content["rankings"] = [
        {"name": name, "file": file, **shares[number]}
        for number, (name, file) in enumerate(zip(rankings.names, rankings.files, strict=True), start=1)
    ]
    result.content["ranking_files"] = digests
