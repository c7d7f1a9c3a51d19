"""What is written: values of each ranking, and their differences from a baseline."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import Floats
from posbias.core.evaluation.bounds import empirical_bernstein, hoeffding, largest_gain, sample_variance
from posbias.core.evaluation.estimates import CONFIDENCE, ESTIMATORS, Evaluation, Value, holm, t_quantile
from posbias.core.evaluation.measures import MEASURES, Measure
from posbias.core.evaluation.ndcg import NDCG
from posbias.core.evaluation.query_sums import N_PAGES
from posbias.core.evaluation.shown import CellWeights

BETTER, WORSE, NOT_SIGNIFICANT = "better", "worse", "not significant"
"""Verdicts: by the p-value that holds for all rankings together."""

JUDGED = "judgments"
"""Where NDCG comes from: no estimator."""


@dataclass(frozen=True)
class Bound:
    """A finite-sample lower bound."""

    confidence: float  # C, with which it holds for all rankings at once
    weights: CellWeights

    def description(self, evaluation: Evaluation) -> dict[str, Any]:
        """What it rests on, for the manifest."""
        return {
            "confidence": self.confidence,
            "holds_for": evaluation.asked.n_rankings,
            "largest_gain_of_a_page": largest_gain(self.weights, evaluation.asked.depth),
            "says": "a lower bound on DCG by IPS with clipped weights, which are at most the true ones, so that it "
            "bounds the true gain too; it holds for all rankings at once, and so for the best of them; pages are taken "
            "as independent and theta as known. There is none from above, which would need the bias of clipping, and "
            "none for self-normalised values.",
        }

    def of(self, evaluation: Evaluation, ranking: int, measure: Measure) -> tuple[float, float]:
        """Hoeffding's and the empirical Bernstein bound; NaN where there is none."""
        if not measure.gain:
            return np.nan, np.nan
        rest, asked = evaluation.totals.rest, evaluation.asked
        total = float(evaluation.totals.sums[asked.column(ranking, measure, weighted=True)])
        variance = sample_variance(total, float(rest.squares[ranking, MEASURES.index(measure)]), rest.n_pages)
        given = rest.n_pages, largest_gain(self.weights, asked.depth), self.confidence, asked.n_rankings
        mean = total / rest.n_pages
        return hoeffding(mean, *given), empirical_bernstein(mean, variance, *given)


_METRICS = {
    **dict.fromkeys(("ranking", "metric"), pl.String),
    "k": pl.Int64,
    "estimator": pl.String,
    **dict.fromkeys(("value", "std_error", "ci_low", "ci_high", "std_error_of_theta"), pl.Float64),
    "queries": pl.Int64,
    **dict.fromkeys(("hoeffding_bound", "bernstein_bound"), pl.Float64),
}
_DIFFERENCES = {
    **dict.fromkeys(("ranking", "baseline", "metric"), pl.String),
    "k": pl.Int64,
    "estimator": pl.String,
    **dict.fromkeys(("difference", "std_error", "ci_low", "ci_high", "p_value", "p_value_holm"), pl.Float64),
    "verdict": pl.String,
}


def metric_table(
    evaluation: Evaluation, names: Sequence[str], judged: pl.DataFrame | None, bound: Bound | None
) -> pl.DataFrame:
    """A row for each ranking, measure and estimator; what is not known is null.

    Args:
        evaluation: of the rankings.
        names: of them, the log's own first.
        judged: NDCG by query, if there are judgments.
        bound: lower bounds, if they are asked for.

    Returns:
        `ranking`, `metric`, `k`, `estimator`, `value`, `std_error`, `ci_low`, `ci_high`, `std_error_of_theta`,
        `queries`, `hoeffding_bound`, `bernstein_bound`.
    """
    rows: list[tuple[object, ...]] = []
    totals, depth = evaluation.totals, evaluation.asked.depth
    for number, name in enumerate(names):
        for measure in MEASURES:
            for estimator in ESTIMATORS:
                found = evaluation.value(number, measure, estimator)
                low = (np.nan, np.nan)
                if bound is not None and estimator == "ips" and totals.sums[N_PAGES] > 0:
                    low = bound.of(evaluation, number, measure)
                said = name, measure.name, depth if measure.gain else None, estimator
                rows.append((*said, *_numbers(found), found.std_error_of_theta, totals.n_queries, *low))
        if judged is not None and number:
            found = _mean(judged[str(number)].to_numpy())
            rows.append((name, NDCG, depth, JUDGED, *_numbers(found), np.nan, judged.height, np.nan, np.nan))
    return _table(rows, _METRICS)


def difference_table(
    evaluation: Evaluation, names: Sequence[str], baseline: int, judged: pl.DataFrame | None
) -> pl.DataFrame:
    """A row for each ranking but the baseline, measure and estimator; what is not known is null.

    P-values of one measure and estimator are corrected together (Holm). Naive clicks have no verdict: they favour
    rankings that are like the log's own.

    Returns:
        `ranking`, `baseline`, `metric`, `k`, `estimator`, `difference`, `std_error`, `ci_low`, `ci_high`, `p_value`,
        `p_value_holm`, `verdict`.
    """
    others, depth = [number for number in range(len(names)) if number != baseline], evaluation.asked.depth
    found: list[tuple[str, int | None, str, bool, dict[int, Value]]] = []
    for measure in MEASURES:
        for estimator in ESTIMATORS:
            values = {number: evaluation.difference(number, baseline, measure, estimator) for number in others}
            found.append((measure.name, depth if measure.gain else None, estimator, measure.gain, values))
    if judged is not None and baseline:
        base = judged[str(baseline)]
        values = {number: _mean((judged[str(number)] - base).to_numpy()) for number in others if number}
        found.append((NDCG, depth, JUDGED, True, values))
    rows: list[tuple[object, ...]] = []
    for metric, k, estimator, gain, values in found:
        p_values = np.array([value.p_value for value in values.values()])
        for (number, value), p_value, together in zip(
            values.items(), p_values.tolist(), holm(p_values).tolist(), strict=True
        ):
            verdict = None if estimator == "naive" else _verdict(value.value if gain else -value.value, together)
            names_of = names[number], names[baseline]
            rows.append((*names_of, metric, k, estimator, *_numbers(value), p_value, together, verdict))
    return _table(rows, _DIFFERENCES)


def _verdict(gained: float, p_value: float) -> str:
    if not p_value < 1 - CONFIDENCE:  # NaN is none
        return NOT_SIGNIFICANT
    return BETTER if gained > 0 else WORSE


def _numbers(found: Value) -> tuple[float, float, float, float]:
    return found.value, found.std_error, found.low, found.high


def _mean(values: Floats) -> Value:
    """A mean over queries with its t interval."""
    n_queries, mean = len(values), float(np.mean(values))
    if n_queries <= 1:
        return Value(mean)
    error, degrees = float(np.std(values, ddof=1) / np.sqrt(n_queries)), n_queries - 1.0
    margin = t_quantile(degrees) * error
    return Value(mean, error, margin, np.nan, degrees)


def _table(rows: Sequence[tuple[object, ...]], schema: dict[str, Any]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=schema, orient="row").with_columns(pl.col(pl.Float64).fill_nan(None))
