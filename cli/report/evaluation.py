"""What is said of rankings: a table, verdicts, and what the log cannot say."""

from collections.abc import Sequence

import polars as pl

from posbias.cli.report.table import Column, Printed, PrintedTable, first, more
from posbias.core.evaluation.estimates import Evaluation
from posbias.core.evaluation.measures import measures
from posbias.core.evaluation.ndcg import NDCG
from posbias.core.evaluation.query_sums import N_CLICKS, N_PAGES
from posbias.core.evaluation.tables import JUDGED, NOT_SIGNIFICANT, Comparison
from posbias.core.wording import counted, population

_MOST_SAID = 12
_MUCH_WITHOUT_SCORE, _MUCH_NEVER_SHOWN = 0.01, 0.1
_DECIMALS = 4


def shares(evaluation: Evaluation) -> list[dict[str, float | None]]:
    """What each ranking lacks, as shares of the log; of the documents that it puts on top, those never shown."""
    totals, missing = evaluation.totals, evaluation.totals.missing
    of = {
        "impressions_without_score": (missing.impressions, totals.impressions),
        "clicks_without_score": (missing.clicks, float(totals.sums[N_CLICKS])),
        "pages_without_score": (missing.pages, float(totals.sums[N_PAGES])),
    }
    found = [
        {name: _share(float(part[number]), whole) for name, (part, whole) in of.items()}
        for number in range(evaluation.asked.n_rankings)
    ]
    return [
        {**entry, "top_never_shown": _share(float(missing.never_shown[number]), float(missing.top[number]))}
        for number, entry in enumerate(found)
    ]


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def metrics_table(metrics: pl.DataFrame, cutoff: int) -> list[Printed]:
    """Values of each ranking, by naive clicks, IPS and self-normalised IPS with its interval."""
    names = metrics["ranking"].unique(maintain_order=True).to_list()
    by_key = {(row["ranking"], row["metric"], row["estimator"]): row for row in metrics.iter_rows(named=True)}
    columns = [Column("ranking", first(names), label=True, text=True)]
    for measure in measures():
        title = measure.title(cutoff)
        for heading, estimator, spare in (("naive", "naive", 2), ("IPS", "ips", 1), ("self-norm.", "snips", 0)):
            values = first(_number(by_key[name, measure.name, estimator]["value"]) for name in names)
            above = title if estimator == "naive" else ""
            columns.append(Column(f"{above}\n{heading}", values, folded=f"{title}\n{heading}", spare=spare))
        own = [by_key[name, measure.name, "snips"] for name in names]
        intervals = first(_interval(row["ci_low"], row["ci_high"]) for row in own)
        columns.append(Column("\n95 % interval", intervals, folded=f"{title}\n95 % interval", beside=True))
    if JUDGED in metrics["estimator"]:
        judged = first(_number(by_key.get((name, NDCG, JUDGED), {}).get("value")) for name in names)
        columns.append(Column(f"NDCG@{cutoff}\njudged", judged))
    table = PrintedTable(tuple(columns), more(len(names), "in metrics.parquet"))
    return ["rankings by the clicks of this log; DCG: more is better, ARP: less is better", table, population()]


def bounds_line(metrics: pl.DataFrame, confidence: float, names: Sequence[str], cutoff: int) -> str:
    """Lower bounds of each ranking, which hold together; the larger of the two stands nowhere, as each holds alone."""
    bounded = metrics.filter(pl.col("hoeffding_bound").is_not_null())
    of_each = "; ".join(
        f"{row['ranking']} {_number(row['hoeffding_bound'])} and {_number(row['bernstein_bound'])}"
        for row in bounded.head(_MOST_SAID).iter_rows(named=True)
    )
    return (
        f"DCG@{cutoff} by IPS is at least, by Hoeffding and by empirical Bernstein: {of_each}. Each of the two holds "
        f"with probability {confidence:g} for all {len(names)} rankings at once, and so for whichever of them is best"
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.{_DECIMALS}f}"


def _interval(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"{low:.{_DECIMALS}f} - {high:.{_DECIMALS}f}"


def remarks(evaluation: Evaluation, names: Sequence[str]) -> list[str]:
    """What the values rest on."""
    totals = evaluation.totals
    clicks = float(totals.sums[N_CLICKS])
    clipped = _share(totals.clipped, clicks - totals.unweighted) or 0.0
    said = (
        f"{counted(totals.n_pages, 'pages')}, {counted(clicks, 'clicks')}, {counted(totals.n_queries, 'queries')} "
        f"(worth {evaluation.effective_queries:,.0f} equal ones); {clipped:.1%} of the weighted clicks clipped"
    )
    return [said, *_lacks(evaluation, names)]


def _lacks(evaluation: Evaluation, names: Sequence[str]) -> list[str]:
    """What each ranking lacks, where it lacks something."""
    found: list[str] = []
    for name, entry in list(zip(names, shares(evaluation), strict=True))[1:]:
        words = {
            "impressions_without_score": "of the impressions have no score",
            "clicks_without_score": "of the clicks",
            "pages_without_score": "of the pages have no score at all",
            "top_never_shown": f"of its first {evaluation.asked.depth} documents were never shown for their query",
        }
        said = [f"{entry[key]:.1%} {text}" for key, text in words.items() if entry[key]]
        found += [f"{name}: {', '.join(said)}"] if said else []
    return found[:_MOST_SAID]


def verdicts(differences: pl.DataFrame, compared: Comparison) -> list[str]:
    """What the comparisons say, ranking by ranking, by self-normalised IPS."""
    said: list[str] = []
    baseline = compared.names[compared.baseline]
    for name in (compared.names[number] for number in compared.others):
        parts: list[str] = []
        for measure in measures():
            own = differences.filter(ranking=name, metric=measure.name, estimator="snips").row(0, named=True)
            title = measure.title(own["k"] or 0)
            if own["difference"] is None or own["std_error"] is None:
                parts.append(f"{title} cannot be compared")
                continue
            apart = (
                f"{own['difference']:+.{_DECIMALS}f}, {own['ci_low']:+.{_DECIMALS}f} to {own['ci_high']:+.{_DECIMALS}f}"
            )
            verdict = "not significantly different" if own["verdict"] == NOT_SIGNIFICANT else own["verdict"]
            parts.append(f"{title} {verdict} ({apart})")
        said.append(f"{name} against {baseline}: {'; '.join(parts)}")
    return said


def lines(said: Sequence[str]) -> list[str]:
    """Sentences to show; the first ones of many."""
    rest = [f"... and {len(said) - _MOST_SAID} more in differences.parquet"] if len(said) > _MOST_SAID else []
    return [*said[:_MOST_SAID], *rest]


def warnings(evaluation: Evaluation, names: Sequence[str]) -> list[str]:
    """What a reader must know before believing a value."""
    totals, found = evaluation.totals, list[str]()
    clicks = float(totals.sums[N_CLICKS])
    if clicks <= totals.unweighted:
        found.append("no click lies in a cell with a propensity: this log says nothing of rankings.")
    elif totals.unweighted:
        found.append(
            f"{totals.unweighted:,.0f} of {clicks:,.0f} clicks lie in cells without a propensity: only the naive "
            "values count them."
        )
    if evaluation.covariance is None:
        found.append(
            "no errors of the propensities are known: intervals take them as exact, and are too narrow if they are not."
        )
    if totals.n_queries == 1:
        found.append("all pages have one query, so that nothing says how far values may be off.")
    for name, entry in list(zip(names, shares(evaluation), strict=True))[1:]:
        if (entry["clicks_without_score"] or 0.0) > _MUCH_WITHOUT_SCORE:
            found.append(
                f"{name} has no score for the documents of {entry['clicks_without_score']:.1%} of the clicks: they "
                "gain nothing in DCG, and count as the last rank in ARP."
            )
        if (entry["top_never_shown"] or 0.0) > _MUCH_NEVER_SHOWN:
            found.append(
                f"{entry['top_never_shown']:.1%} of the documents that {name} puts into the first "
                f"{evaluation.asked.depth} were never shown for their query: no click can speak for them."
            )
    return found
