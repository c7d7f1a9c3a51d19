"""`evaluate`: measures of rankings by clicks, their differences, tables and reasons."""

from collections.abc import Mapping
from itertools import chain
from math import inf
from shlex import quote
from typing import Any

import polars as pl

from posbias.core.errors import UsageError, plural, population
from posbias.core.evaluation.break_even import bends
from posbias.core.evaluation.clicked import MEASURES, N_CLICKS, N_PAGES, NDCG, Measure, RankingMeasures
from posbias.core.evaluation.estimates import JUDGED, Bound, Evaluation, difference_table, metric_table
from posbias.core.fit.propensities import choose_propensities
from posbias.io.engines.engine import Engine
from posbias.io.fits.saved_fit import CellPropensities
from posbias.io.fits.verdicts import (
    ERRORS_UNKNOWN,
    break_even_reason,
    heavy_weight_reasons,
    pareto_clause,
    unweighted_reason,
)
from posbias.io.jobs.agreement import disagreement
from posbias.io.jobs.fit import Job, name_propensities, read_pages
from posbias.io.jobs.tables import (
    Column,
    Printed,
    PrintedTable,
    Result,
    first,
    interval_in_words,
    more,
    number_in_words,
)
from posbias.io.jobs.training import smooth_curve_reasons, weights_from
from posbias.io.options import EvaluationOptions
from posbias.io.ranking_names import LOGGED, OWN_ORDER
from posbias.io.rankings import Rankings, evaluate_rankings, judged_lists, open_rankings, read_judgments
from posbias.io.results.conclusions import NOTE, Reason, reason
from posbias.io.results.tables import write_small_table

_MOST_SHOWN = 12
_MUCH_WITHOUT_SCORE, _MUCH_NEVER_SHOWN = 0.01, 0.1
_FORM = ".4f"
_VERBS = ("better", "worse")
_FIGURES = ("difference", "ci_low", "ci_high")
_MEAN_RANK = "mean rank of clicked results (lower is better)"


_Shares = dict[str, float | None]
"""Missing shares of a ranking: of impressions, clicks and pages without a score, and of top documents never shown."""


def _missing_shares(evaluation: Evaluation) -> list[_Shares]:
    """Missing shares of each ranking."""
    pooled, sums = evaluation.totals.pooled, evaluation.totals.sums
    clicks, pages = float(sums[N_CLICKS]), float(sums[N_PAGES])
    return [
        {
            "impressions_without_score": _share(float(pooled.unscored_impressions[number]), pooled.impressions),
            "clicks_without_score": _share(float(pooled.unscored_clicks[number]), clicks),
            "pages_without_score": _share(float(pooled.unscored_pages[number]), pages),
            "top_never_shown": _share(float(pooled.never_shown[number]), float(pooled.top[number])),
        }
        for number in range(evaluation.options.n_rankings)
    ]


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def _metrics_table(metrics: pl.DataFrame, cutoff: int) -> list[Printed]:
    """Print the measures of each ranking: naive, IPS, and self-normalised IPS with its interval."""
    names = metrics["ranking"].unique(maintain_order=True).to_list()
    by_key = {(row["ranking"], row["metric"], row["estimator"]): row for row in metrics.iter_rows(named=True)}
    columns = [Column("ranking", first(names), label=True, text=True)]
    for measure in MEASURES:
        title = measure.title(cutoff)
        for heading, estimator, spare in (("naive", "naive", 2), ("IPS", "ips", 1), ("self-norm.", "snips", 0)):
            values = first(number_in_words(by_key[name, measure.name, estimator]["value"], _FORM) for name in names)
            above = title if estimator == "naive" else ""
            columns.append(Column(f"{above}\n{heading}", values, folded=f"{title}\n{heading}", spare=spare))
        own = [by_key[name, measure.name, "snips"] for name in names]
        intervals = first(interval_in_words(row["ci_low"], row["ci_high"], _FORM) for row in own)
        columns.append(Column("\n95 % interval", intervals, folded=f"{title}\n95 % interval", beside=True))
    if JUDGED in metrics["estimator"]:
        judged = first(number_in_words(by_key.get((name, NDCG, JUDGED), {}).get("value"), _FORM) for name in names)
        columns.append(Column(f"NDCG@{cutoff}\njudged", judged))
    table = PrintedTable(tuple(columns), more(len(names), "in metrics.parquet"))
    return [
        "rankings by the clicks of this log; DCG: more is better, ARP (mean rank of clicked results): less is better",
        table,
        population(),
    ]


def _basis_lines(evaluation: Evaluation, shares: Mapping[str, _Shares], section: Mapping[str, Any]) -> list[str]:
    """Lines on the clicks that measures are computed from, and on missing shares of rankings."""
    clipped = section["share_clipped"] or 0.0
    words = {
        "impressions_without_score": "of the impressions have no score",
        "clicks_without_score": "of the clicks",
        "pages_without_score": "of the pages have no score at all",
        "top_never_shown": f"of its first {evaluation.options.depth} documents were never shown for their query",
    }
    lines: list[str] = []
    for name, entry in shares.items():
        parts = [f"{entry[key]:.1%} {text}" for key, text in words.items() if entry[key]]
        lines += [f"{name}: {', '.join(parts)}"] if parts else []
    basis = (
        f"{', '.join(plural(section[name], name) for name in ('pages', 'clicks', 'queries'))} "
        f"(worth {evaluation.effective_queries:,.0f} equal ones); {clipped:.1%} of the weighted clicks clipped"
    )
    return [basis + pareto_clause(*evaluation.pareto_k), *lines[:_MOST_SHOWN]]


def _comparisons(metrics: pl.DataFrame, differences: pl.DataFrame) -> list[Reason]:
    """Compare each ranking with the baseline by self-normalised IPS; each sentence names the better ranking first."""
    reasons: list[Reason] = []
    values = metrics.filter(estimator="snips")
    for name, baseline in differences.select("ranking", "baseline").unique(maintain_order=True).rows():
        parts, figures = list[str](), dict[str, float | str | None](ranking=name, baseline=baseline)
        first, other, verb = name, baseline, "may be no better and no worse than"
        for number, measure in enumerate(MEASURES):
            own = differences.filter(ranking=name, metric=measure.name, estimator="snips").row(0, named=True)
            if own["difference"] is None or own["std_error"] is None:
                parts.append(f"{_title(measure, own['k'])} cannot be compared")
                continue
            if not number and own["verdict"] in _VERBS:
                verb = "beats"
                first, other = (name, baseline) if own["verdict"] == "better" else (baseline, name)
            both = [values.filter(ranking=ranking, metric=measure.name)["value"].item() for ranking in (first, other)]
            ends = sorted((own["ci_low"], own["ci_high"]) if first == name else (-own["ci_low"], -own["ci_high"]))
            interval = " to ".join(f"{end:{_FORM}}" for end in ends)
            title = _title(measure, own["k"])
            parts.append(
                f"{title} {both[0]:{_FORM}} against {both[1]:{_FORM}} (difference "
                f"{both[0] - both[1]:{_FORM}}, 95 % interval {interval})"
            )
            figures |= {f"{measure.name}_{key}" if number else key: own[key] for key in _FIGURES}
        names = [OWN_ORDER if ranking == LOGGED else ranking for ranking in (first, other)]
        reasons.append(Reason("ranking-compared", NOTE, f"{names[0]} {verb} {names[1]}: {'; '.join(parts)}.", figures))
    return reasons


def _title(measure: Measure, cutoff: int | None) -> str:
    return _MEAN_RANK if measure.name == "arp" else measure.title(cutoff or 0)


def _doubts(evaluation: Evaluation, shares: Mapping[str, _Shares]) -> list[Reason]:
    """Reasons against the measures."""
    totals, reasons = evaluation.totals, list[Reason]()
    clicks = float(totals.sums[N_CLICKS])
    if clicks <= totals.pooled.unweighted:
        reasons.append(reason("clicks-without-propensity.all", {"clicks": clicks}))
    elif totals.pooled.unweighted:
        reasons.append(unweighted_reason(float(totals.pooled.unweighted), clicks, "only the naive values count them"))
    reasons += heavy_weight_reasons(*evaluation.pareto_k)
    if evaluation.covariance is None:
        reasons.append(ERRORS_UNKNOWN)
    if totals.n_queries == 1:
        reasons.append(reason("one-query"))
    for name, entry in shares.items():
        if (entry["clicks_without_score"] or 0.0) > _MUCH_WITHOUT_SCORE:
            figures = {"ranking": name, "share": entry["clicks_without_score"]}
            reasons.append(reason("scores-missing.of-clicks", figures))
        if (entry["top_never_shown"] or 0.0) > _MUCH_NEVER_SHOWN:
            figures = {"ranking": name, "share": entry["top_never_shown"]}
            reasons.append(reason("never-shown.at-the-top", figures, depth=evaluation.options.depth))
    return reasons


METRICS, DIFFERENCES = "metrics", "differences"


def check_evaluation(given: EvaluationOptions) -> None:
    """Raise UsageError without a ranking, or if an option is out of range."""
    if not (given.scores or given.rankings):
        raise UsageError(
            "nothing to evaluate: name a table of scores (--scores FILE), a TREC run (--rankings FILE) or click "
            "models (--models pbm,ubm)."
        )
    if not 0 < given.min_propensity <= 1:
        raise UsageError(f"--min-propensity {given.min_propensity:g}: must be above 0 and at most 1.")
    if given.bound is not None and not 0 < given.bound < 1:
        raise UsageError(f"--bound {given.bound:g}: must be above 0 and below 1; it is a confidence, e.g. 0.95.")


def evaluate(job: Job, fitted: CellPropensities, given: EvaluationOptions, engine: Engine, result: Result) -> None:
    """Evaluate rankings by clicks corrected for position bias; write tables, and add headline and reasons.

    Raises:
        PosbiasError: inputs cannot be read, or the baseline is not among the rankings.
    """
    name_propensities(fitted, result)
    log, theta = job.open_log(), fitted.theta
    if not (log.raw is not None and log.raw.reads_lines):  # the schema is known: refuse invalid files early
        _baseline(given, open_rankings(given, log.roles, log.schema))
        if given.judgments is not None:
            read_judgments(given.judgments, log.roles, log.schema)
    read = read_pages(job, engine, result)
    log, plan = read.log, job.plan
    chosen = choose_propensities(theta.propensities, given.propensity)
    rankings = open_rankings(given, log.roles, log.schema)
    names = (LOGGED, *rankings.names)
    options = RankingMeasures(len(names), given.cutoff, given.candidates, bends(fitted.hidden_slope))
    baseline = _baseline(given, rankings)
    evaluation, weights, are_ranks = evaluate_rankings(
        read, plan, rankings, chosen.table, theta, given.min_propensity, options, engine, result.progress
    )
    judged = None
    if given.judgments is not None:
        judged = judged_lists(rankings, read_judgments(given.judgments, log.roles, log.schema), options)
    holds = given.candidates == "page" and not plan.weighted  # pages independent, weights independent of clicks
    bound = Bound(given.bound, weights) if given.bound is not None and holds else None
    metrics = metric_table(evaluation, names, judged, bound)
    differences = difference_table(evaluation, names, baseline, judged)
    write_small_table(metrics, result.folder, METRICS, csv=given.csv)
    write_small_table(differences, result.folder, DIFFERENCES, csv=given.csv)
    result.reasons += [*smooth_curve_reasons(chosen), *disagreement(fitted, read, engine, result.progress)]
    section = _section(evaluation, names[baseline], bound)
    shares = dict(zip(rankings.names, _missing_shares(evaluation)[1:], strict=True))
    result.content |= {
        "weights_from": weights_from(given.propensity, chosen),
        "evaluation": section,
        "rankings": [
            {"name": name, "file": file, **share}
            for (name, share), file in zip(shares.items(), rankings.files, strict=True)
        ],
        "ranking_files": {str(source.path): source.digest() for source in rankings.sources},
    }
    result.printed += _metrics_table(metrics, given.cutoff)
    result.facts += _basis_lines(evaluation, shares, section)
    if bound is not None:  # the maximum of the two bounds is not a bound of this confidence
        bounded = metrics.filter(pl.col("hoeffding_bound").is_not_null()).head(_MOST_SHOWN)
        bounds = "; ".join(
            f"{row['ranking']} {row['hoeffding_bound']:{_FORM}} and {number_in_words(row['bernstein_bound'], _FORM)}"
            for row in bounded.iter_rows(named=True)
        )
        result.printed.append(
            f"DCG@{given.cutoff} by IPS is at least, by Hoeffding and by empirical Bernstein: {bounds}. Each of the "
            f"two holds with probability {bound.confidence:g} for all {len(names)} rankings at once, and so for "
            "whichever of them is best"
        )
    compared, titles = _comparisons(metrics, differences), [OWN_ORDER, *rankings.names]
    held = [
        break_even_reason(
            titles[number], titles[baseline], evaluation.break_even(number, baseline), weights.cells, weights.propensity
        )
        for number in range(len(names))
        if number != baseline
    ]
    result.content["verdicts"] = [verdict.figures for verdict in held]
    best = max(compared, key=lambda reason: reason.figures.get("difference") or -inf)
    result.headline = best.sentence.rpartition(f"; {_MEAN_RANK}")[0]
    in_turn = chain.from_iterable(zip(compared[:_MOST_SHOWN], held, strict=False))
    result.reasons += [*rankings.in_doubt(), *in_turn, *_doubts(evaluation, shares)]
    scores = " ".join(f"--scores {quote(named)}" for named in given.scores or ())
    files = scores or " ".join(f"--rankings {quote(named)}" for named in given.rankings or ())
    by_rank = " --order rank" if given.order == "rank" else ""
    if are_ranks:  # as `predict` requires
        result.next = f"posbias predict LOGS --propensities {quote(fitted.name)} {files}{by_rank} -o predicted"


def _baseline(given: EvaluationOptions, rankings: Rankings) -> int:
    """Number of the baseline: as named, else the first of several rankings, else the log's own (0).

    Raises:
        UsageError: no ranking has the name.
    """
    named, names = given.baseline, (LOGGED, *rankings.names)
    if named is None:
        return 1 if len(rankings.names) > 1 else 0
    if named not in names:
        raise UsageError(f"--baseline {named}: no ranking is called so; there are {', '.join(names)}.")
    return names.index(named)


def _section(evaluation: Evaluation, baseline: str, bound: Bound | None) -> dict[str, Any]:
    """Section of the manifest on the clicks, weights and options of an evaluation."""
    totals, options, (pareto_k, at_most) = evaluation.totals, evaluation.options, evaluation.pareto_k
    clicks = float(totals.sums[N_CLICKS])
    return {
        "baseline": baseline,
        "candidates": options.candidates,
        "cutoff": options.depth,
        "pages": totals.pooled.n_pages,
        "queries": totals.n_queries,
        "effective_queries": evaluation.effective_queries,
        "clicks": clicks,
        "clicks_without_propensity": totals.pooled.unweighted,
        "pareto_k": pareto_k,
        "pareto_k_at_most": at_most,
        "share_clipped": _share(totals.pooled.clipped, clicks - totals.pooled.unweighted),
        "errors_of_theta": evaluation.covariance is not None,
        **({} if bound is None else {"bound": bound.description(evaluation)}),
    }
