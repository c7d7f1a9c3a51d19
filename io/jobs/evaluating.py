"""`evaluate` of rankings by clicks: values, differences, and their tables."""

from collections.abc import Mapping, Sequence
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
from posbias.io.fits.saved_fit import PreviousFit
from posbias.io.fits.verdicts import (
    ERRORS_UNKNOWN,
    break_even_reason,
    heavy_weight_reasons,
    pareto_clause,
    unweighted_reason,
)
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


def _shares_of(evaluation: Evaluation) -> list[_Shares]:
    """What each ranking lacks, as shares of the log; of the documents that it puts on top, those never shown."""
    rest, sums = evaluation.totals.rest, evaluation.totals.sums
    clicks, pages = float(sums[N_CLICKS]), float(sums[N_PAGES])
    return [
        {
            "impressions_without_score": _share(float(rest.unscored_impressions[number]), rest.impressions),
            "clicks_without_score": _share(float(rest.unscored_clicks[number]), clicks),
            "pages_without_score": _share(float(rest.unscored_pages[number]), pages),
            "top_never_shown": _share(float(rest.never_shown[number]), float(rest.top[number])),
        }
        for number in range(evaluation.options.n_rankings)
    ]


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def _metrics_table(metrics: pl.DataFrame, cutoff: int) -> list[Printed]:
    """Values of each ranking, by naive clicks, IPS and self-normalised IPS with its interval."""
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


def _lacks(evaluation: Evaluation, shares: Mapping[str, _Shares], section: Mapping[str, Any]) -> list[str]:
    """Sentences on what the values rest on, and on what rankings lack."""
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


def _headline(compared: Sequence[Reason]) -> str:
    """The comparison with the baseline that turned out best for a ranking."""
    best = max(compared, key=lambda reason: reason.figures.get("difference") or -inf)
    return best.sentence.rpartition(f"; {_MEAN_RANK}")[0]


def _compared(metrics: pl.DataFrame, differences: pl.DataFrame) -> list[Reason]:
    """Each ranking against the baseline, by clicks corrected for position; the better one is named first."""
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
            both = [values.filter(ranking=one, metric=measure.name)["value"].item() for one in (first, other)]
            ends = sorted((own["ci_low"], own["ci_high"]) if first == name else (-own["ci_low"], -own["ci_high"]))
            interval = " to ".join(f"{end:{_FORM}}" for end in ends)
            title = _title(measure, own["k"])
            parts.append(
                f"{title} {both[0]:{_FORM}} against {both[1]:{_FORM}} (difference "
                f"{both[0] - both[1]:{_FORM}}, 95 % interval {interval})"
            )
            figures |= {f"{measure.name}_{key}" if number else key: own[key] for key in _FIGURES}
        names = [OWN_ORDER if one == LOGGED else one for one in (first, other)]
        reasons.append(Reason("ranking-compared", NOTE, f"{names[0]} {verb} {names[1]}: {'; '.join(parts)}.", figures))
    return reasons


def _title(measure: Measure, cutoff: int | None) -> str:
    return _MEAN_RANK if measure.name == "arp" else measure.title(cutoff or 0)


def _against(evaluation: Evaluation, shares: Mapping[str, _Shares]) -> list[Reason]:
    """What speaks against the values."""
    totals, reasons = evaluation.totals, list[Reason]()
    clicks = float(totals.sums[N_CLICKS])
    if clicks <= totals.rest.unweighted:
        reasons.append(reason("clicks-without-propensity.all", {"clicks": clicks}))
    elif totals.rest.unweighted:
        reasons.append(unweighted_reason(float(totals.rest.unweighted), clicks, "only the naive values count them"))
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
    """Raise UsageError if there is no ranking, or a value is out of range."""
    if not (given.scores or given.rankings):
        raise UsageError(
            "nothing to evaluate: name a table of scores (--scores FILE), a TREC run (--rankings FILE) or click "
            "models (--models pbm,ubm)."
        )
    if not 0 < given.min_propensity <= 1:
        raise UsageError(f"--min-propensity {given.min_propensity:g}: must be above 0 and at most 1.")
    if given.bound is not None and not 0 < given.bound < 1:
        raise UsageError(f"--bound {given.bound:g}: must be above 0 and below 1; it is a confidence, e.g. 0.95.")


def evaluate(job: Job, fitted: PreviousFit, given: EvaluationOptions, engine: Engine, result: Result) -> None:
    """Evaluate rankings by clicks corrected for position bias, write the tables, and say what they show.

    Raises:
        PosbiasError: those of `open_rankings` and `read_judgments`; the baseline is none of the rankings.
    """
    name_propensities(fitted, result)
    log, theta = job.open_log(), fitted.theta
    if not (log.raw is not None and log.raw.reads_lines):  # its columns are known: wrong files are refused at once
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
    weigh_by = chosen.table, theta, given.min_propensity
    by = (read, plan, rankings, *weigh_by, options, engine, result.progress)
    evaluation, weights, are_ranks = evaluate_rankings(*by)
    judged = None
    if given.judgments is not None:
        judged = judged_lists(rankings, read_judgments(given.judgments, log.roles, log.schema), options)
    holds = given.candidates == "page" and not plan.weighted  # independent pages, whose weights clicks do not move
    bound = Bound(given.bound, weights) if given.bound is not None and holds else None
    metrics = metric_table(evaluation, names, judged, bound)
    differences = difference_table(evaluation, names, baseline, judged)
    write_small_table(metrics, result.folder, METRICS, csv=given.csv)
    write_small_table(differences, result.folder, DIFFERENCES, csv=given.csv)
    result.reasons += smooth_curve_reasons(chosen)
    section = _section(evaluation, names[baseline], bound)
    of_others = dict(zip(rankings.names, _shares_of(evaluation)[1:], strict=True))
    result.content |= {
        "weights_from": weights_from(given.propensity, chosen),
        "evaluation": section,
        "rankings": [
            {"name": name, "file": file, **share}
            for (name, share), file in zip(of_others.items(), rankings.files, strict=True)
        ],
        "ranking_files": {str(source.path): source.digest() for source in rankings.sources},
    }
    result.printed += _metrics_table(metrics, given.cutoff)
    result.facts += _lacks(evaluation, of_others, section)
    if bound is not None:  # the larger of the two bounds stands nowhere, as each holds alone
        bounded = metrics.filter(pl.col("hoeffding_bound").is_not_null()).head(_MOST_SHOWN)
        of_each = "; ".join(
            f"{row['ranking']} {row['hoeffding_bound']:{_FORM}} and {number_in_words(row['bernstein_bound'], _FORM)}"
            for row in bounded.iter_rows(named=True)
        )
        result.printed.append(
            f"DCG@{given.cutoff} by IPS is at least, by Hoeffding and by empirical Bernstein: {of_each}. Each of the "
            f"two holds with probability {bound.confidence:g} for all {len(names)} rankings at once, and so for "
            "whichever of them is best"
        )
    compared, own = _compared(metrics, differences), [OWN_ORDER, *rankings.names]
    evens = [(number, evaluation.break_even(number, baseline)) for number in range(len(names)) if number != baseline]
    by_cell = weights.cells, weights.propensity
    held = [break_even_reason(own[number], own[baseline], even, *by_cell) for number, even in evens]
    result.content["verdicts"] = [one.figures for one in held]
    result.headline = _headline(compared)
    in_turn = chain.from_iterable(zip(compared[:_MOST_SHOWN], held, strict=False))
    result.reasons += [*rankings.in_doubt(), *in_turn, *_against(evaluation, of_others)]
    scores = " ".join(f"--scores {quote(named)}" for named in given.scores or ())
    files = scores or " ".join(f"--rankings {quote(named)}" for named in given.rankings or ())
    by_rank = " --order rank" if given.order == "rank" else ""
    if are_ranks:  # else predict refuses them
        result.next = f"posbias predict LOGS --propensities {quote(fitted.name)} {files}{by_rank} -o predicted"


def _baseline(given: EvaluationOptions, rankings: Rankings) -> int:
    """The number of the ranking that the others are compared with: the first, or the log's own where there is but one.

    Raises:
        UsageError: none has that name.
    """
    named, names = given.baseline, (LOGGED, *rankings.names)
    if named is None:
        return 1 if len(rankings.names) > 1 else 0
    if named not in names:
        raise UsageError(f"--baseline {named}: no ranking is called so; there are {', '.join(names)}.")
    return names.index(named)


def _section(evaluation: Evaluation, baseline: str, bound: Bound | None) -> dict[str, Any]:
    """The section of the manifest that says what the values rest on."""
    totals, options, (pareto_k, at_most) = evaluation.totals, evaluation.options, evaluation.pareto_k
    clicks = float(totals.sums[N_CLICKS])
    return {
        "baseline": baseline,
        "candidates": options.candidates,
        "cutoff": options.depth,
        "pages": totals.rest.n_pages,
        "queries": totals.n_queries,
        "effective_queries": evaluation.effective_queries,
        "clicks": clicks,
        "clicks_without_propensity": totals.rest.unweighted,
        "pareto_k": pareto_k,
        "pareto_k_at_most": at_most,
        "share_clipped": _share(totals.rest.clipped, clicks - totals.rest.unweighted),
        "errors_of_theta": evaluation.covariance is not None,
        **({} if bound is None else {"bound": bound.description(evaluation)}),
    }
